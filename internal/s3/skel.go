package s3

import (
	"context"
	"io"
	"net/http"
	"net/url"
)

type keyCache struct{}
type chain struct{}

// FromHTTP takes what a signature covers from a request received by net/http.
func FromHTTP(r *http.Request) Request { return Request{} }

// NewVerifier returns a Verifier.
func NewVerifier(c VerifierConfig) *Verifier { return &Verifier{} }

// Verify checks the signature of a request, in its header or its query. The error is an *Error.
func (v *Verifier) Verify(ctx context.Context, r *Request) (*Identity, error) { return nil, nil }

// Signed says whether the signature covers the header.
func (id *Identity) Signed(header string) bool { return false }

// NewSigner returns a Signer.
func NewSigner() *Signer { return &Signer{} }

// Sign sets X-Amz-Date, X-Amz-Content-Sha256, X-Amz-Security-Token and Authorization on r.
func (s *Signer) Sign(r *http.Request, o SignOptions) error { return nil }

// Presign returns the URL of r with the signature in its query. Headers of r that are signed must be sent as they are.
func (s *Signer) Presign(r *http.Request, o SignOptions) (*url.URL, error) { return nil, nil }

// PayloadMode is how the body of a request is encoded and signed.
type PayloadMode uint8

// The payload modes, from x-amz-content-sha256.
const (
	PayloadUnsigned               PayloadMode = iota // UNSIGNED-PAYLOAD
	PayloadLiteral                                   // hex SHA-256 of the whole body
	PayloadChunked                                   // STREAMING-AWS4-HMAC-SHA256-PAYLOAD
	PayloadChunkedTrailer                            // STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER
	PayloadChunkedUnsignedTrailer                    // STREAMING-UNSIGNED-PAYLOAD-TRAILER
)

// Streaming says whether the body is aws-chunked.
func (m PayloadMode) Streaming() bool { return m >= PayloadChunked }

// BodySpec is what the headers say of a body.
type BodySpec struct {
	Mode     PayloadMode
	Size     int64    // decoded length; < 0: unknown (only unsigned or literal, without Content-Length)
	Trailers []string // lower-case names from x-amz-trailer
}

// ParseBodySpec reads the headers that describe the body.
func ParseBodySpec(r *Request, id *Identity) (BodySpec, error) { return BodySpec{}, nil }

// Body decodes and verifies a payload. Read gives decoded bytes; large reads go straight into the
// caller's buffer. Bytes are final only once Finish returned nil.
type Body struct{}

// NewBody returns the decoder of a body.
func NewBody(spec BodySpec, id *Identity, src io.Reader) *Body { return nil }

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) { return 0, io.EOF }

// Finish reads and verifies what follows the last payload byte. A caller that stops reading at Size
// must call it before it trusts the bytes. The error is sticky.
func (b *Body) Finish() error { return nil }

// Trailer returns the trailers, canonical names, once Finish returned nil or Read io.EOF.
func (b *Body) Trailer() http.Header { return nil }

// StripAWSChunked removes aws-chunked from a Content-Encoding list.
func StripAWSChunked(contentEncoding string) string { return "" }
