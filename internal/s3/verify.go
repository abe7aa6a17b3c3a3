package s3

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxSkew is how far the time of a request may lie from the server's clock.
	MaxSkew = 15 * time.Minute
	// DefaultRegion is accepted everywhere; tools name it when they know of no other.
	DefaultRegion = "us-east-1"
	// ServiceHipObj is the service that some clients of hipobj-rc-v2 sign for.
	ServiceHipObj = "hipobj"
	// MaxPresignExpiry is the longest life of a presigned URL.
	MaxPresignExpiry = 7 * 24 * time.Hour

	// maxAuthorization bounds the Authorization header and each presign parameter; the longest part is
	// the list of signed headers, which net/http's header limit bounds as well.
	maxAuthorization = 64 << 10

	isoTime = "2006-01-02T15:04:05Z"
)

// VerifierConfig configures a Verifier.
type VerifierConfig struct {
	Lookup  Lookup
	Regions []string         // accepted beside us-east-1; the first one is named in refusals
	Now     func() time.Time // nil: time.Now
}

// Verifier checks SigV4 signatures. It is safe for concurrent use.
type Verifier struct {
	lookup  Lookup
	regions []string
	now     func() time.Time
	keys    *keyCache
	decoy   [sha256.Size]byte // signing key of access keys that do not exist: no signature fits it
}

// NewVerifier returns a Verifier.
func NewVerifier(c VerifierConfig) *Verifier {
	v := &Verifier{lookup: c.Lookup, regions: slices.Clone(c.Regions), now: c.Now, keys: newKeyCache()}
	if len(v.regions) == 0 {
		v.regions = []string{DefaultRegion}
	}
	if v.now == nil {
		v.now = time.Now
	}
	_, _ = rand.Read(v.decoy[:]) // never returns an error
	return v
}

// authorization is a parsed Authorization header or presign query.
type authorization struct {
	accessKey, date, region, service string
	scope                            string // date/region/service/aws4_request
	signedHeaders, signature         string
	timestamp                        string // x-amz-date
	time                             time.Time
	expires                          time.Duration // presigned only
	presigned                        bool
	sessionToken, payloadHash        string
}

// Verify checks the signature of a request, in its header or its query. The error is an *Error;
// a request without any signature is AccessDenied. Beside an error about the time of the request stands
// its Identity, if the signature is right: the same bytes may be valid at another time.
func (v *Verifier) Verify(ctx context.Context, r *Request) (*Identity, error) {
	return v.verify(ctx, r, false)
}

// VerifyMessage is Verify for the messages of hipobj-rc-v2, whose clients sign otherwise: the service of the scope
// may be hipobj, and x-amz-content-sha256 may be absent, which stands for the hash of nothing. In return it is nothing
// but that hash or UNSIGNED-PAYLOAD, and the signature is in the header. An Identity comes without an error only.
func (v *Verifier) VerifyMessage(ctx context.Context, r *Request) (*Identity, error) {
	id, err := v.verify(ctx, r, true)
	if err != nil {
		return nil, err
	}
	return id, nil
}

// verify checks a signature by the rules of S3 or, message, by those of VerifyMessage.
func (v *Verifier) verify(ctx context.Context, r *Request, message bool) (*Identity, error) {
	var space [24]queryPair
	pairs, ok := parseQueryPairs(space[:0], r.RawQuery)
	if !ok {
		return nil, New(InvalidURI, "The query is not validly encoded or has too many items.")
	}
	a, err := findAuthorization(r, pairs)
	if err != nil {
		return nil, err
	}
	if a == nil {
		return nil, New(AccessDenied, "The request is not signed, and anonymous access is not allowed.")
	}
	if err := a.readPayloadHash(r, message); err != nil {
		return nil, err
	}
	if err := v.checkScope(a, message); err != nil {
		return nil, err
	}
	late := v.checkTime(a)
	id, err := v.checkSignature(ctx, r, a, pairs)
	if late != nil {
		return id, late
	}
	return id, err
}

func (v *Verifier) checkSignature(
	ctx context.Context, r *Request, a *authorization, pairs []queryPair,
) (*Identity, error) {
	signed, err := checkSignedHeaders(r, a)
	if err != nil {
		return nil, err
	}
	secret, known, err := v.secretOf(ctx, a)
	if err != nil {
		return nil, err
	}
	id := &Identity{
		AccessKey: a.accessKey, Principal: secret.Principal, Region: a.region, Service: a.service, Time: a.time,
		Presigned: a.presigned, SignedHeaders: signed, PayloadHash: a.payloadHash,
	}
	// A key that does not exist is found out after the same work as a wrong secret.
	id.chain.key = v.decoy
	if known {
		id.chain.key = v.keys.signingKey(secret.SecretKey, scopeKey{a.accessKey, a.date, a.region, a.service})
	}
	id.chain.date, id.chain.scope = a.timestamp, a.scope
	err = id.compare(a, r, pairs)
	if !known {
		return nil, New(InvalidAccessKeyID, "").With("AWSAccessKeyId", a.accessKey)
	}
	if err != nil {
		return nil, err
	}
	if a.presigned {
		id.Hoisted = hoistedHeaders(pairs)
	}
	return id, nil
}

// findAuthorization parses whichever kind of signature the request has. nil: it has none.
func findAuthorization(r *Request, pairs []queryPair) (*authorization, error) {
	header := r.Header["Authorization"]
	inQuery := false
	for _, p := range pairs {
		switch p.name {
		case "X-Amz-Algorithm", "X-Amz-Signature", "X-Amz-Credential":
			inQuery = true
		case "AWSAccessKeyId":
			return nil, refuseV2()
		}
	}
	switch {
	case len(header) > 1 || len(header) == 1 && inQuery:
		return nil, New(InvalidArgument, "A request may be signed once only, in a header or in the query.")
	case len(header) == 1:
		return parseAuthorization(header[0], r)
	case inQuery:
		return parsePresigned(r, pairs)
	}
	return nil, nil
}

func refuseV2() *Error {
	return New(InvalidRequest, "Signature Version 2 is not supported; sign with Signature Version 4 ("+algorithmV4+").")
}

func refuseV4A() *Error {
	return New(InvalidRequest, "Multi-region signatures ("+algorithmV4A+
		") are not supported; sign with "+algorithmV4+" for one region.")
}

func parseAuthorization(header string, r *Request) (*authorization, error) {
	bad := func(text string) error { return New(AuthorizationHeaderMalformed, text) }
	if len(header) > maxAuthorization {
		return nil, bad("The Authorization header is too long.")
	}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(header), " ")
	switch scheme {
	case algorithmV4:
	case algorithmV4A:
		return nil, refuseV4A()
	case "AWS":
		return nil, refuseV2()
	default:
		return nil, New(InvalidRequest, "The authorization scheme is not supported; sign with "+algorithmV4+".")
	}
	var a authorization
	var credential string
	for rest != "" {
		var item string
		item, rest, _ = strings.Cut(rest, ",")
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		var field *string
		switch name {
		case "Credential":
			field = &credential
		case "SignedHeaders":
			field = &a.signedHeaders
		case "Signature":
			field = &a.signature
		default:
			return nil, bad("The Authorization header has an unknown element.")
		}
		if *field != "" || value == "" {
			return nil, bad("The Authorization header has an empty or repeated element.")
		}
		*field = value
	}
	if credential == "" || a.signedHeaders == "" || a.signature == "" {
		return nil, bad("The Authorization header needs Credential, SignedHeaders and Signature.")
	}
	if !a.parseCredential(credential) {
		return nil, bad("The Credential must be access-key/YYYYMMDD/region/s3/" + scopeEnd + ".")
	}
	if err := a.readHeaderTime(r); err != nil {
		return nil, err
	}
	a.sessionToken = strings.TrimSpace(r.Header.Get("X-Amz-Security-Token"))
	return &a, nil
}

// readPayloadHash takes the payload hash of a request that is signed in its header. That of a presigned one is known
// already.
func (a *authorization) readPayloadHash(r *Request, message bool) error {
	if a.presigned {
		if message {
			return New(AccessDenied, "A message is signed in its header, never in a URL.")
		}
		return nil
	}
	switch hashes := r.Header["X-Amz-Content-Sha256"]; {
	case message && len(hashes) == 0:
		a.payloadHash = emptySHA256
	case len(hashes) != 1:
		return New(InvalidRequest, "The x-amz-content-sha256 header is needed, once.")
	default:
		a.payloadHash = strings.TrimSpace(hashes[0])
	}
	if message && a.payloadHash != emptySHA256 && a.payloadHash != unsignedPayload {
		return New(InvalidRequest, "The payload hash of a message is that of nothing, or UNSIGNED-PAYLOAD.")
	}
	return nil
}

// readHeaderTime takes the time of a request signed in its header from x-amz-date or Date.
func (a *authorization) readHeaderTime(r *Request) error {
	if s := r.Header["X-Amz-Date"]; len(s) > 0 {
		t, ok := parseAmzTime(strings.TrimSpace(s[0]))
		if !ok || len(s) > 1 {
			return New(AccessDenied, "The x-amz-date header is not a time of the form YYYYMMDDTHHMMSSZ.")
		}
		a.timestamp, a.time = t.Format(amzTime), t
		return nil
	}
	t, err := http.ParseTime(r.Header.Get("Date"))
	if err != nil {
		return New(AccessDenied, "A signed request needs a valid x-amz-date or Date header.")
	}
	a.time = t.UTC()
	a.timestamp = a.time.Format(amzTime)
	return nil
}

// parseCredential reads access-key/date/region/service/aws4_request; the access key may hold "/".
func (a *authorization) parseCredential(s string) bool {
	var parts [4]string // from the right
	rest := s
	for i := range parts {
		j := strings.LastIndexByte(rest, '/')
		if j < 0 {
			return false
		}
		parts[i], rest = rest[j+1:], rest[:j]
	}
	a.accessKey, a.date, a.region, a.service = rest, parts[3], parts[2], parts[1]
	if a.accessKey == "" || len(a.date) != 8 || a.region == "" || parts[0] != scopeEnd {
		return false
	}
	a.scope = s[len(rest)+1:]
	return true
}

func parseAmzTime(s string) (time.Time, bool) {
	if len(s) != len(amzTime) {
		return time.Time{}, false
	}
	t, err := time.Parse(amzTime, s)
	return t, err == nil
}

func parsePresigned(r *Request, pairs []queryPair) (*authorization, error) {
	bad := func(text string) error { return New(AuthorizationQueryParametersError, text) }
	a := authorization{presigned: true, payloadHash: unsignedPayload}
	var algorithm, credential, date, expires, hash string
	for _, p := range pairs {
		var field *string
		switch p.name {
		case "X-Amz-Algorithm":
			field = &algorithm
		case "X-Amz-Credential":
			field = &credential
		case "X-Amz-Date":
			field = &date
		case "X-Amz-Expires":
			field = &expires
		case "X-Amz-SignedHeaders":
			field = &a.signedHeaders
		case "X-Amz-Signature":
			field = &a.signature
		case "X-Amz-Security-Token":
			field = &a.sessionToken
		default:
			if !strings.EqualFold(p.name, "X-Amz-Content-Sha256") {
				continue
			}
			field = &hash
		}
		value, ok := unescape(p.value, false)
		if !ok || *field != "" || value == "" || len(value) > maxAuthorization {
			return nil, bad("A signature parameter of the query is empty, repeated or too long.")
		}
		*field = value
	}
	switch {
	case algorithm == algorithmV4A:
		return nil, refuseV4A()
	case algorithm != algorithmV4:
		return nil, bad("X-Amz-Algorithm must be " + algorithmV4 + ".")
	case credential == "" || date == "" || expires == "" || a.signedHeaders == "" || a.signature == "":
		return nil, bad("A presigned query needs X-Amz-Algorithm, X-Amz-Credential, X-Amz-Date, " +
			"X-Amz-Expires, X-Amz-SignedHeaders and X-Amz-Signature.")
	case !a.parseCredential(credential):
		return nil, bad("X-Amz-Credential must be access-key/YYYYMMDD/region/s3/" + scopeEnd + ".")
	}
	if err := a.readPresignTime(date, expires); err != nil {
		return nil, err
	}
	if hash == "" {
		hash = r.Header.Get("X-Amz-Content-Sha256")
	} else if h := r.Header.Get("X-Amz-Content-Sha256"); h != "" && h != hash {
		return nil, New(InvalidArgument, "x-amz-content-sha256 differs between header and query.")
	}
	if hash != "" {
		a.payloadHash = strings.TrimSpace(hash)
	}
	return &a, nil
}

func (a *authorization) readPresignTime(date, expires string) error {
	t, ok := parseAmzTime(date)
	if !ok {
		return New(AuthorizationQueryParametersError, "X-Amz-Date must have the form YYYYMMDDTHHMMSSZ.")
	}
	n, err := strconv.ParseUint(expires, 10, 32)
	if err != nil || n < 1 || time.Duration(n)*time.Second > MaxPresignExpiry {
		return New(AuthorizationQueryParametersError, "X-Amz-Expires must be 1 to 604800 seconds.")
	}
	a.timestamp, a.time, a.expires = date, t, time.Duration(n)*time.Second
	return nil
}

// checkScope checks date, region and service of the credential scope.
func (v *Verifier) checkScope(a *authorization, message bool) error {
	code := AuthorizationHeaderMalformed
	if a.presigned {
		code = AuthorizationQueryParametersError
	}
	if a.date != a.timestamp[:8] {
		return New(code, "The date of the credential scope differs from the time of the request.")
	}
	other, names := "s3express", "s3"
	if message {
		other, names = ServiceHipObj, "s3 or "+ServiceHipObj
	}
	if a.service != "s3" && a.service != other {
		return New(code, "The service of the credential scope must be "+names+".")
	}
	if a.region != DefaultRegion && !slices.Contains(v.regions, a.region) {
		return New(code, "The region of the credential scope is wrong; expecting '"+v.regions[0]+"'.").
			With("Region", v.regions[0]).WithHeader("X-Amz-Bucket-Region", v.regions[0]) // HEAD has no document
	}
	return nil
}

func (v *Verifier) checkTime(a *authorization) error {
	now := v.now().UTC()
	server := now.Format(isoTime)
	if !a.presigned {
		if d := now.Sub(a.time); d > MaxSkew || d < -MaxSkew {
			return New(RequestTimeTooSkewed, "").With("RequestTime", a.timestamp).With("ServerTime", server).
				With("MaxAllowedSkewMilliseconds", strconv.FormatInt(MaxSkew.Milliseconds(), 10)).
				WithHeader("Date", now.Format(http.TimeFormat)) // SDKs correct their clocks by it, not by ServerTime
		}
		return nil
	}
	if a.time.Sub(now) > MaxSkew {
		return New(AccessDenied, "The presigned URL is not valid yet.").
			With("X-Amz-Date", a.timestamp).With("ServerTime", server)
	}
	if end := a.time.Add(a.expires); now.After(end) {
		return New(AccessDenied, "The presigned URL has expired.").
			With("X-Amz-Expires", strconv.FormatInt(int64(a.expires/time.Second), 10)).
			With("Expires", end.Format(isoTime)).With("ServerTime", server)
	}
	return nil
}

// checkSignedHeaders checks the form of SignedHeaders and that nothing security-relevant was added
// to the request on its way.
func checkSignedHeaders(r *Request, a *authorization) ([]string, error) {
	code := AuthorizationHeaderMalformed
	if a.presigned {
		code = AuthorizationQueryParametersError
	}
	signed := strings.Split(a.signedHeaders, ";")
	if len(signed) > maxSignedHeaders {
		return nil, New(code, "There are too many signed headers.")
	}
	for i, name := range signed {
		if !isLowerToken(name) || i > 0 && name <= signed[i-1] {
			return nil, New(code, "SignedHeaders must be lower-case names in ascending order.")
		}
	}
	if _, ok := slices.BinarySearch(signed, "host"); !ok {
		return nil, New(code, "The host header must be signed.")
	}
	for name, values := range r.Header {
		if !mustBeSigned(name) {
			continue
		}
		lower := strings.ToLower(name)
		if len(values) > 1 && !mayRepeat(lower) {
			// The signature of "a,b" is also that of "a" and "b": somebody on the way could split a value.
			return nil, New(InvalidArgument, "A header is given more than once.").With("ArgumentName", lower)
		}
		if _, ok := slices.BinarySearch(signed, lower); !ok {
			return nil, New(AccessDenied, "The request has headers that must be signed and are not.").
				With("HeadersNotSigned", lower)
		}
	}
	return signed, nil
}

// mustBeSigned says whether a header that is present must be signed: all x-amz-* headers, and ours
// that change what happens to client memory. Excepted are two whose values the signature covers
// anyway and one that a content delivery network adds.
func mustBeSigned(name string) bool {
	switch {
	case len(name) > 6 && strings.EqualFold(name[:6], "x-amz-"):
	case len(name) > 11 && strings.EqualFold(name[:11], "x-penstock-"):
	default:
		return false
	}
	switch name {
	case "X-Amz-Content-Sha256", "X-Amz-Date", "X-Amz-Cf-Id":
		return false
	}
	return true
}

// mayRepeat says whether the value of a signed header is a list, or one header that is checked elsewhere.
func mayRepeat(lower string) bool {
	switch lower {
	case "x-amz-trailer", "x-amz-object-attributes", "x-amz-optional-object-attributes", "x-amz-rdma-token":
		return true
	}
	return strings.HasPrefix(lower, "x-amz-meta-") || strings.HasPrefix(lower, "x-amz-grant-")
}

func isLowerToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || 'A' <= c && c <= 'Z' || c == ':' || c == ',' {
			return false
		}
	}
	return s != ""
}

// secretOf looks the access key up and checks the session token.
func (v *Verifier) secretOf(ctx context.Context, a *authorization) (s Secret, known bool, err error) {
	s, known, err = v.lookup(ctx, a.accessKey)
	switch {
	case err != nil:
		return Secret{}, false, New(InternalError, "").Wrap(err)
	case !known:
		return Secret{}, false, nil
	case subtle.ConstantTimeCompare([]byte(s.SessionToken), []byte(a.sessionToken)) != 1:
		return Secret{}, false, New(InvalidToken, "")
	case !s.Expires.IsZero() && !v.now().Before(s.Expires):
		return Secret{}, false, New(ExpiredToken, "")
	}
	return s, true, nil
}

// compare computes the signature and compares it with the one given. Clients and proxies differ in
// two harmless ways, so up to four canonical requests are tried: path decoded and encoded once, or
// exactly as sent (both name the same key), and a default port with or without.
func (id *Identity) compare(a *authorization, r *Request, pairs []queryPair) error {
	query := make([]queryPair, 0, len(pairs))
	for _, p := range pairs {
		if !a.presigned || p.name != "X-Amz-Signature" {
			query = append(query, p)
		}
	}
	sortPairs(query)
	path, ok := canonicalEscape(r.RawPath, true)
	if !ok {
		return New(InvalidURI, "")
	}
	in := canonicalInput{
		method: r.Method, path: path, host: r.Host, query: query,
		signedHeaders: a.signedHeaders, payloadHash: a.payloadHash,
	}
	var space [2048]byte
	var spaceSTS [256]byte
	try := func() (canonical, toSign []byte, ok bool) {
		canonical = appendCanonical(space[:0], &in, r)
		toSign = appendStringToSign(spaceSTS[:0], a.timestamp, a.scope, canonical)
		id.chain.seed = sign(id.chain.key[:], toSign)
		return canonical, toSign, subtle.ConstantTimeCompare(id.chain.seed[:], []byte(a.signature)) == 1
	}
	if _, _, ok := try(); ok {
		return nil
	}
	for _, host := range []string{r.Host, withoutDefaultPort(r.Host)} {
		for _, p := range []string{path, r.RawPath} {
			if host == r.Host && p == path {
				continue
			}
			in.host, in.path = host, p
			if _, _, ok := try(); ok {
				return nil
			}
		}
		if withoutDefaultPort(r.Host) == r.Host {
			break
		}
	}
	in.host, in.path = r.Host, path
	canonical, toSign, _ := try()
	e := New(SignatureDoesNotMatch, "").With("AWSAccessKeyId", a.accessKey).
		With("StringToSign", string(toSign)).With("SignatureProvided", a.signature)
	if a.sessionToken == "" && !carriesGrant(r.Header) { // never echo one
		e = e.With("CanonicalRequest", string(canonical))
	}
	return e
}

// carriesGrant tells whether a header may hold a token, whatever it is called.
func carriesGrant(h http.Header) bool {
	for name := range h {
		if strings.Contains(strings.ToLower(name), "rdma") {
			return true
		}
	}
	return false
}

func withoutDefaultPort(host string) string {
	return strings.TrimSuffix(strings.TrimSuffix(host, ":443"), ":80")
}

// hoistedHeaders collects x-amz-* query items that stand for headers.
func hoistedHeaders(pairs []queryPair) http.Header {
	var h http.Header
	for _, p := range pairs {
		name := http.CanonicalHeaderKey(p.name)
		switch name {
		case "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-Signedheaders",
			"X-Amz-Signature", "X-Amz-Security-Token", "X-Amz-Content-Sha256":
			continue
		}
		if !strings.HasPrefix(name, "X-Amz-") || strings.HasPrefix(name, "X-Amz-Rdma-") {
			continue
		}
		if v, ok := unescape(p.value, false); ok {
			if h == nil {
				h = make(http.Header)
			}
			h[name] = append(h[name], v)
		}
	}
	return h
}
