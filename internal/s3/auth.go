package s3

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Request is what a signature covers, taken from a request as it was received.
type Request struct {
	Method           string
	Host             string // with port, as received
	RawPath          string // still encoded, never cleaned; begins with "/"
	RawQuery         string // still encoded
	Header           http.Header
	ContentLength    int64 // < 0: unknown
	TransferEncoding []string
}

// Credentials are what a client signs with.
type Credentials struct{ AccessKey, SecretKey, SessionToken string }

// String shows the access key only.
func (c Credentials) String() string { return "credentials of " + c.AccessKey }

// GoString shows the access key only.
func (c Credentials) GoString() string { return c.String() }

// LogValue shows the access key only.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Secret is what a server knows of an access key. SessionToken and Expires are set for temporary
// keys only.
type Secret struct {
	SecretKey    string
	Principal    string
	SessionToken string
	Expires      time.Time
}

// String shows the principal only.
func (s Secret) String() string { return "secret of " + s.Principal }

// GoString shows the principal only.
func (s Secret) GoString() string { return s.String() }

// LogValue shows the principal only.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Lookup finds the secret of an access key. known is false for a key that does not exist or is
// disabled; an error means that the answer could not be found out. It is called once per request
// and should be a map look-up.
type Lookup func(ctx context.Context, accessKey string) (secret Secret, known bool, err error)

// Identity is who signed a request and what the signature covers.
type Identity struct {
	AccessKey, Principal string
	Region, Service      string    // of the credential scope
	Time                 time.Time // of the signature
	Presigned            bool
	SignedHeaders        []string // lower case, sorted
	PayloadHash          string   // x-amz-content-sha256 as signed; UNSIGNED-PAYLOAD when a presigned URL names none
	Unsigned             bool     // of a request without any signature: see Anonymous

	// Hoisted are x-amz-* parameters of a presigned query that stand for headers. They are signed.
	// ApplyHoisted adds them to the headers of the request. A hoisted RDMA header is not among them: a
	// URL is no place for a capability.
	Hoisted http.Header

	chain chain
}

// chain is what the signatures of chunks go on from.
type chain struct {
	key         [sha256.Size]byte
	date, scope string
	seed        [2 * sha256.Size]byte
}

// Signed says whether the signature covers the header.
func (id *Identity) Signed(header string) bool {
	_, ok := slices.BinarySearch(id.SignedHeaders, strings.ToLower(header))
	return ok
}

// ApplyHoisted adds hoisted headers that the request does not have itself.
func (id *Identity) ApplyHoisted(h http.Header) {
	for name, values := range id.Hoisted {
		if _, ok := h[name]; !ok {
			h[name] = values
		}
	}
}
