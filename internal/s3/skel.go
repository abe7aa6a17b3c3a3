package s3

import (
	"io"
	"net/http"
)

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
