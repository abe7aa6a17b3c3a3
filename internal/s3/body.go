package s3

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"
)

// maxEmptyReads is how often a source may return no bytes and no error in a row.
const maxEmptyReads = 100

// Body decodes and verifies a payload. Read gives decoded bytes; large reads go straight into the
// caller's buffer. Bytes are final only once Read returned io.EOF or Finish returned nil: a chunk's
// bytes are given out before its signature was seen, but nothing ends well when one is wrong. Errors
// are sticky: an *Error when the client is at fault, otherwise the source's error, wrapped.
// A Body is used by one goroutine at a time.
type Body struct {
	src    io.Reader
	spec   BodySpec
	left   int64 // decoded bytes to come; < 0: unknown
	err    error // sticky, io.EOF after success
	srcErr error // arrived together with bytes

	literal string    // lower-case hex SHA-256 of the whole body
	sha     hash.Hash // of the whole body or of the current chunk; nil when nothing is signed

	chunks chunkState
}

// NewBody returns the decoder of a body.
func NewBody(spec BodySpec, id *Identity, src io.Reader) *Body {
	b := &Body{src: src, spec: spec, left: spec.Size}
	if b.src == nil {
		b.src = http.NoBody
	}
	switch {
	case spec.Mode == PayloadLiteral:
		b.literal, b.sha = strings.ToLower(id.PayloadHash), sha256.New()
	case spec.Mode.signedChunks():
		b.chunks.chain, b.sha = id.chain, sha256.New()
	}
	if spec.Mode.Streaming() {
		b.chunks.buf = make([]byte, framingBuffer)
	}
	return b
}

// Size returns the decoded length, < 0 when it is not known in advance.
func (b *Body) Size() int64 { return b.spec.Size }

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.left == 0 {
		b.end()
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	var n int
	var err error
	if b.spec.Mode.Streaming() {
		n, err = b.readChunked(p)
	} else {
		n, err = b.readPlain(p)
	}
	if err != nil {
		b.err = err
		return n, err
	}
	if b.left == 0 {
		if b.end(); b.err != io.EOF || n == 0 {
			return n, b.err // a failure is reported with the last bytes, so that a caller that stops at Size sees it
		}
	}
	return n, nil
}

// Finish reads and verifies what follows the last payload byte. A caller that stops reading at Size
// must call it before it trusts the bytes.
func (b *Body) Finish() error {
	if b.err == nil && b.left < 0 {
		var one [1]byte
		if n, err := b.Read(one[:]); n > 0 || err == nil {
			b.err = errors.New("s3: finish body: bytes are left unread")
		}
	}
	if b.err == nil && b.left > 0 {
		b.err = fmt.Errorf("s3: finish body: %d bytes are left unread", b.left)
	}
	if b.err == nil {
		b.end()
	}
	if b.err == io.EOF {
		return nil
	}
	return b.err
}

// Trailer returns the trailers under their canonical names, complete once Finish returned nil or
// Read io.EOF.
func (b *Body) Trailer() http.Header { return b.chunks.trailer }

// end verifies what follows the payload and sets the sticky result.
func (b *Body) end() {
	var err error
	if b.spec.Mode.Streaming() {
		err = b.endChunked()
	}
	if err == nil {
		err = b.expectEOF()
	}
	if err == nil && b.literal != "" {
		var sum [2 * sha256.Size]byte
		hex.Encode(sum[:], b.sha.Sum(nil))
		if subtle.ConstantTimeCompare(sum[:], []byte(b.literal)) != 1 {
			err = New(XAmzContentSHA256Mismatch, "").
				With("ClientComputedContentSHA256", b.literal).With("S3ComputedContentSHA256", string(sum[:]))
		}
	}
	if err == nil {
		err = io.EOF
	}
	b.err = err
}

func (b *Body) readPlain(p []byte) (int, error) {
	if b.left > 0 && int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.read(p)
	if b.sha != nil {
		b.sha.Write(p[:n])
	}
	switch {
	case err == io.EOF && b.left < 0:
		b.left = 0
		b.srcErr = io.EOF
		return n, nil
	case err != nil:
		return n, b.sourceError(err)
	case b.left > 0:
		b.left -= int64(n)
	}
	return n, nil
}

// read reads from the source; bytes and an error never come together, nor does nothing at all.
func (b *Body) read(p []byte) (int, error) {
	if b.srcErr != nil {
		return 0, b.srcErr
	}
	for range maxEmptyReads {
		n, err := b.src.Read(p)
		if n > 0 {
			b.srcErr = err
			return n, nil
		}
		if err != nil {
			b.srcErr = err
			return 0, err
		}
	}
	b.srcErr = io.ErrNoProgress
	return 0, b.srcErr
}

// sourceError turns an error of the source in the middle of a body into the answer for it.
func (b *Body) sourceError(err error) error {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return New(IncompleteBody, "").Wrap(err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return New(RequestTimeout, "").Wrap(err)
	}
	return fmt.Errorf("s3: read body: %w", err)
}

// expectEOF makes sure that nothing follows. Line ends that some clients send too many of are
// skipped after chunks.
func (b *Body) expectEOF() error {
	var one [1]byte
	for range maxStrayLineEnds + 1 {
		var n int
		var err error
		if b.chunks.r < b.chunks.w {
			one[0] = b.chunks.buf[b.chunks.r]
			b.chunks.r++
			n = 1
		} else {
			n, err = b.read(one[:])
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return b.sourceError(err)
		case n > 0 && (!b.spec.Mode.Streaming() || one[0] != '\r' && one[0] != '\n'):
			return New(InvalidRequest, "The body is longer than announced.")
		}
	}
	return New(InvalidRequest, "The body is longer than announced.")
}
