package s3

import "strings"

// Anonymous makes an Identity for a request that carries nothing of a signature, in its header or its query: false for
// every other. It covers no header. Who may do what without a signature is the caller's to decide.
func Anonymous(r *Request, principal string) (*Identity, bool) {
	pairs, ok := parseQueryPairs(nil, r.RawQuery)
	if !ok {
		return nil, false
	}
	if a, err := findAuthorization(r, pairs); a != nil || err != nil {
		return nil, false
	}
	id := &Identity{Principal: principal, PayloadHash: unsignedPayload, Unsigned: true}
	switch hashes := r.Header["X-Amz-Content-Sha256"]; len(hashes) {
	case 0:
	case 1:
		id.PayloadHash = strings.TrimSpace(hashes[0])
	default:
		return nil, false
	}
	if mode, err := ParsePayloadMode(id.PayloadHash); err != nil || mode.signedChunks() {
		return nil, false // chunks are signed with the key of a signed request
	}
	return id, true
}
