package s3

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Signer signs requests of a client. It is safe for concurrent use.
type Signer struct{ keys *keyCache }

// NewSigner returns a Signer.
func NewSigner() *Signer { return &Signer{keys: newKeyCache()} }

// SignOptions are the arguments of Sign and Presign beside the request.
type SignOptions struct {
	Credentials Credentials
	Region      string
	Service     string // "": s3
	Time        time.Time
	PayloadHash string        // "": UNSIGNED-PAYLOAD
	Expires     time.Duration // Presign only: whole seconds, 1 s to 7 days
}

func (o *SignOptions) complete() error {
	if o.Credentials.AccessKey == "" || o.Region == "" {
		return fmt.Errorf("s3: sign request: access key and region are needed")
	}
	if o.Service == "" {
		o.Service = "s3"
	}
	if o.PayloadHash == "" {
		o.PayloadHash = unsignedPayload
	}
	o.Time = o.Time.UTC()
	return nil
}

// Sign sets X-Amz-Date, X-Amz-Content-Sha256, X-Amz-Security-Token and Authorization on r. Headers
// that are signed (x-amz-*, x-penstock-*, Content-Type, Content-MD5, Range) and the URL must not
// change afterwards.
func (s *Signer) Sign(r *http.Request, o SignOptions) error {
	if err := o.complete(); err != nil {
		return err
	}
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	date := o.Time.Format(amzTime)
	r.Header["X-Amz-Date"] = []string{date}
	r.Header["X-Amz-Content-Sha256"] = []string{o.PayloadHash}
	if o.Credentials.SessionToken != "" {
		r.Header["X-Amz-Security-Token"] = []string{o.Credentials.SessionToken}
	}
	id, err := s.sign(r, &o, date, nil)
	if err != nil {
		return err
	}
	scope := id.chain.scope
	b := make([]byte, 0, 256)
	b = append(b, algorithmV4+" Credential="...)
	b = append(b, o.Credentials.AccessKey...)
	b = append(b, '/')
	b = append(b, scope...)
	b = append(b, ", SignedHeaders="...)
	b = append(b, strings.Join(id.SignedHeaders, ";")...)
	b = append(b, ", Signature="...)
	b = append(b, id.chain.seed[:]...)
	r.Header["Authorization"] = []string{string(b)}
	return nil
}

// Presign returns the URL of r with the signature in its query; r is not changed. Headers of r that
// Sign would sign are signed and must be sent with the same values.
func (s *Signer) Presign(r *http.Request, o SignOptions) (*url.URL, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	seconds := int64(o.Expires / time.Second)
	if seconds < 1 || o.Expires > MaxPresignExpiry {
		return nil, fmt.Errorf("s3: presign request: expiry %v is not within 1 s and 7 days", o.Expires)
	}
	date := o.Time.Format(amzTime)
	extra := []queryPair{
		{"X-Amz-Algorithm", algorithmV4},
		{"X-Amz-Credential", escapeQuery(o.Credentials.AccessKey + "/" + o.scope(date))},
		{"X-Amz-Date", date},
		{"X-Amz-Expires", strconv.FormatInt(seconds, 10)},
		{"X-Amz-SignedHeaders", escapeQuery(strings.Join(signedNames(r.Header), ";"))},
	}
	if o.PayloadHash != unsignedPayload {
		extra = append(extra, queryPair{"X-Amz-Content-Sha256", escapeQuery(o.PayloadHash)})
	}
	if t := o.Credentials.SessionToken; t != "" {
		extra = append(extra, queryPair{"X-Amz-Security-Token", escapeQuery(t)})
	}
	id, err := s.sign(r, &o, date, extra)
	if err != nil {
		return nil, err
	}
	u := *r.URL
	var b []byte
	b = append(b, u.RawQuery...)
	for _, p := range extra {
		if len(b) > 0 {
			b = append(b, '&')
		}
		b = append(append(append(b, p.name...), '='), p.value...)
	}
	b = append(b, "&X-Amz-Signature="...)
	u.RawQuery = string(append(b, id.chain.seed[:]...))
	return &u, nil
}

func escapeQuery(s string) string { return string(appendEscaped(nil, s, false)) }

func (o *SignOptions) scope(date string) string {
	return date[:8] + "/" + o.Region + "/" + o.Service + "/" + scopeEnd
}

// sign computes the signature of r with further query items.
func (s *Signer) sign(r *http.Request, o *SignOptions, date string, extra []queryPair) (*Identity, error) {
	req := FromHTTP(r)
	req.RawPath, req.RawQuery = r.URL.EscapedPath(), r.URL.RawQuery // a client's RequestURI is not sent
	if req.RawPath == "" {
		req.RawPath = "/"
	}
	path, ok := canonicalEscape(req.RawPath, true)
	if !ok {
		return nil, fmt.Errorf("s3: sign request: path %q is not validly encoded", req.RawPath)
	}
	var space [24]queryPair
	query, ok := parseQueryPairs(space[:0], req.RawQuery)
	if !ok {
		return nil, fmt.Errorf("s3: sign request: query is not validly encoded")
	}
	query = append(query, extra...)
	sortPairs(query)
	id := &Identity{
		AccessKey: o.Credentials.AccessKey, Region: o.Region, Time: o.Time, Presigned: extra != nil,
		SignedHeaders: signedNames(r.Header), PayloadHash: o.PayloadHash,
	}
	id.chain.date, id.chain.scope = date, o.scope(date)
	id.chain.key = s.keys.signingKey(o.Credentials.SecretKey,
		scopeKey{o.Credentials.AccessKey, date[:8], o.Region, o.Service})
	in := canonicalInput{
		method: req.Method, path: path, host: req.Host, query: query,
		signedHeaders: strings.Join(id.SignedHeaders, ";"), payloadHash: o.PayloadHash,
	}
	var buf [2048]byte
	var bufSTS [256]byte
	canonical := appendCanonical(buf[:0], &in, &req)
	id.chain.seed = sign(id.chain.key[:], appendStringToSign(bufSTS[:0], date, id.chain.scope, canonical))
	return id, nil
}

// signedNames returns the lower-case names to sign, ascending.
func signedNames(h http.Header) []string {
	names := make([]string, 1, 12)
	names[0] = "host"
	for name := range h {
		switch {
		case name == "Content-Type" || name == "Content-Md5" || name == "Range":
		case strings.HasPrefix(name, "X-Amz-") || strings.HasPrefix(name, "X-Penstock-"):
		default:
			continue
		}
		names = append(names, strings.ToLower(name))
	}
	slices.Sort(names)
	return names
}
