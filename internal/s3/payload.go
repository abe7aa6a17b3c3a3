package s3

import (
	"strconv"
	"strings"
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

// signedChunks says whether every chunk carries a signature.
func (m PayloadMode) signedChunks() bool { return m == PayloadChunked || m == PayloadChunkedTrailer }

// hasTrailer says whether trailers follow the last chunk.
func (m PayloadMode) hasTrailer() bool {
	return m == PayloadChunkedTrailer || m == PayloadChunkedUnsignedTrailer
}

// ParsePayloadMode reads a value of x-amz-content-sha256.
func ParsePayloadMode(hash string) (PayloadMode, error) {
	switch hash {
	case unsignedPayload:
		return PayloadUnsigned, nil
	case "STREAMING-" + algorithmV4 + "-PAYLOAD":
		return PayloadChunked, nil
	case "STREAMING-" + algorithmV4 + "-PAYLOAD-TRAILER":
		return PayloadChunkedTrailer, nil
	case "STREAMING-UNSIGNED-PAYLOAD-TRAILER":
		return PayloadChunkedUnsignedTrailer, nil
	}
	if strings.HasPrefix(hash, "STREAMING-"+algorithmV4A) {
		return 0, refuseV4A()
	}
	if len(hash) == len(emptySHA256) {
		ok := true
		for i := range len(hash) {
			_, digit := hexDigit(hash[i])
			ok = ok && digit
		}
		if ok {
			return PayloadLiteral, nil
		}
	}
	return 0, New(InvalidArgument, "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, "+
		"a STREAMING-* value or 64 hex digits.").With("ArgumentName", "x-amz-content-sha256")
}

const (
	// maxTrailerNames bounds x-amz-trailer: S3 knows one checksum trailer per request.
	maxTrailerNames = 8
	// maxDecodedLength is far above any object and leaves room for sums without overflow.
	maxDecodedLength = 1 << 52
)

// BodySpec is what the headers say of a body.
type BodySpec struct {
	Mode     PayloadMode
	Size     int64    // decoded length; < 0: unknown, which a write answers with MissingContentLength
	Trailers []string // lower-case names from x-amz-trailer
}

// ParseBodySpec reads the headers that describe the body.
func ParseBodySpec(r *Request, id *Identity) (BodySpec, error) {
	mode, err := ParsePayloadMode(id.PayloadHash)
	if err != nil {
		return BodySpec{}, err
	}
	spec := BodySpec{Mode: mode, Size: r.ContentLength}
	if r.ContentLength == 0 && r.Header["Content-Length"] == nil {
		spec.Size = -1 // net/http takes "no length at all" for no body
	}
	if err := spec.readDecodedLength(r); err != nil {
		return BodySpec{}, err
	}
	names := strings.Join(r.Header["X-Amz-Trailer"], ",")
	if names == "" {
		return spec, nil
	}
	if !mode.hasTrailer() {
		return BodySpec{}, New(InvalidRequest,
			"x-amz-trailer is given, but x-amz-content-sha256 does not name a body with trailers.")
	}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		if !isLowerToken(name) || len(spec.Trailers) == maxTrailerNames {
			return BodySpec{}, New(InvalidRequest, "x-amz-trailer is not a short list of header names.")
		}
		spec.Trailers = append(spec.Trailers, name)
	}
	return spec, nil
}

func (s *BodySpec) readDecodedLength(r *Request) error {
	values := r.Header["X-Amz-Decoded-Content-Length"]
	if len(values) == 0 {
		if s.Mode.Streaming() {
			return New(MissingContentLength, "An aws-chunked body needs x-amz-decoded-content-length.")
		}
		return nil
	}
	n, ok := parseDecimal(strings.TrimSpace(values[0]))
	if !ok || len(values) > 1 || n > maxDecodedLength {
		return New(InvalidArgument, "x-amz-decoded-content-length is not a valid length.").
			With("ArgumentName", "x-amz-decoded-content-length")
	}
	switch {
	case !s.Mode.Streaming():
		if s.Size < 0 {
			s.Size = n
		}
	case r.ContentLength > 0 && r.ContentLength < n:
		return New(IncompleteBody, "Content-Length is below x-amz-decoded-content-length.")
	default:
		s.Size = n
	}
	return nil
}

// parseDecimal reads digits only, at most 18 of them.
func parseDecimal(s string) (int64, bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// StripAWSChunked removes aws-chunked from a Content-Encoding list; the rest is what is stored.
func StripAWSChunked(contentEncoding string) string {
	if !strings.Contains(strings.ToLower(contentEncoding), "aws-chunked") {
		return contentEncoding
	}
	var kept []string
	for item := range strings.SplitSeq(contentEncoding, ",") {
		if item = strings.TrimSpace(item); item != "" && !strings.EqualFold(item, "aws-chunked") {
			kept = append(kept, item)
		}
	}
	return strings.Join(kept, ",")
}
