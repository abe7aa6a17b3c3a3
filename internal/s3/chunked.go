package s3

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"io"
	"net/http"
	"slices"
	"strings"
)

const (
	// framingBuffer holds chunk headers and trailers. It is net/http's own buffer size, so that a read
	// of it bypasses that buffer; at most this much payload per chunk is copied twice.
	framingBuffer = 4096
	// maxChunkLine bounds "<hex size>;chunk-signature=<64 hex>" with room for other extensions.
	maxChunkLine = 512
	// maxTrailerLine and maxTrailerLines bound the trailers: a checksum and a signature are under 200
	// bytes in 2 lines.
	maxTrailerLine  = 1024
	maxTrailerLines = 16
	// maxFraming and framingFactor bound what chunk headers may cost: that many bytes plus so many per
	// payload byte. One-byte chunks with signatures exceed it soon, 64-byte chunks never.
	maxFraming    = 1 << 20
	framingFactor = 4
	// maxStrayLineEnds is how many line end characters may follow a complete body.
	maxStrayLineEnds = 4
)

// chunkState is the state of the aws-chunked decoder.
type chunkState struct {
	buf     []byte
	r, w    int   // buf[r:w] is read and not consumed
	left    int64 // of the current chunk
	started bool  // a chunk header was read
	final   bool  // the header of the last, empty chunk was read

	payload, framing int64

	chain    chain                 // seed is the previous signature
	declared [2 * sha256.Size]byte // signature in the current chunk's header
	trailer  http.Header
}

// readChunked reads payload of the current chunk, after the header of the next one if need be.
func (b *Body) readChunked(p []byte) (int, error) {
	c := &b.chunks
	if c.left == 0 {
		if err := b.nextChunk(); err != nil {
			return 0, err
		}
		if c.final {
			return 0, New(IncompleteBody, "The chunks are shorter than x-amz-decoded-content-length.")
		}
	}
	p = p[:min(int64(len(p)), c.left)]
	var n int
	if c.r < c.w {
		n = copy(p, c.buf[c.r:c.w])
		c.r += n
	} else {
		var err error
		if n, err = b.read(p); err != nil {
			return 0, b.sourceError(err)
		}
	}
	if b.sha != nil {
		b.sha.Write(p[:n])
	}
	c.left -= int64(n)
	c.payload += int64(n)
	b.left -= int64(n)
	if c.left == 0 {
		return n, b.checkChunk()
	}
	return n, nil
}

// nextChunk reads a chunk header.
func (b *Body) nextChunk() error {
	c := &b.chunks
	if c.started {
		line, err := b.readLine(maxChunkLine)
		if err != nil {
			return err
		}
		if len(line) != 0 {
			return New(InvalidRequest, "A chunk is not followed by a line end.")
		}
	}
	c.started = true
	line, err := b.readLine(maxChunkLine)
	if err != nil {
		return err
	}
	if c.framing += int64(len(line)) + 4; c.framing > maxFraming+framingFactor*c.payload {
		return New(InvalidChunkSize, "The chunks are too small.")
	}
	size, signature, ok := parseChunkHeader(line)
	switch {
	case !ok:
		return New(InvalidRequest, "A chunk header is malformed.")
	case size > b.left:
		return New(InvalidRequest, "The chunks are longer than x-amz-decoded-content-length.")
	case b.spec.Mode.signedChunks():
		if len(signature) != len(c.declared) {
			return New(SignatureDoesNotMatch, "A chunk has no signature.")
		}
		copy(c.declared[:], signature)
	}
	c.left = size
	if c.final = size == 0; c.final {
		return b.checkChunk()
	}
	return nil
}

// parseChunkHeader reads "<hex size>[;name=value…]" and returns the chunk-signature.
func parseChunkHeader(line []byte) (size int64, signature []byte, ok bool) {
	number, rest, _ := bytes.Cut(line, []byte(";"))
	if len(number) == 0 || len(number) > 16 {
		return 0, nil, false
	}
	for _, c := range number {
		d, ok := hexDigit(c)
		if !ok || size > maxDecodedLength {
			return 0, nil, false
		}
		size = size<<4 | int64(d)
	}
	for len(rest) > 0 {
		var item []byte
		item, rest, _ = bytes.Cut(rest, []byte(";"))
		name, value, found := bytes.Cut(item, []byte("="))
		if !found || len(name) == 0 {
			return 0, nil, false
		}
		if string(name) == "chunk-signature" {
			if signature != nil {
				return 0, nil, false
			}
			signature = value
		}
	}
	return size, signature, true
}

// checkChunk verifies the signature of the chunk that just ended.
func (b *Body) checkChunk() error {
	c := &b.chunks
	if b.sha == nil {
		return nil
	}
	var space [512]byte
	s := c.chainPrefix(space[:0], algorithmV4+"-PAYLOAD")
	s = append(s, emptySHA256+"\n"...)
	var sum [sha256.Size]byte
	s = hex.AppendEncode(s, b.sha.Sum(sum[:0]))
	b.sha.Reset()
	return c.advance(s, c.declared[:])
}

// chainPrefix appends the first lines of a string to sign in the chain.
func (c *chunkState) chainPrefix(dst []byte, algorithm string) []byte {
	for _, line := range []string{algorithm, c.chain.date, c.chain.scope} {
		dst = append(append(dst, line...), '\n')
	}
	return append(append(dst, c.chain.seed[:]...), '\n')
}

// advance compares a signature of the chain and makes it the previous one.
func (c *chunkState) advance(stringToSign, declared []byte) error {
	want := sign(c.chain.key[:], stringToSign)
	if subtle.ConstantTimeCompare(want[:], declared) != 1 {
		return New(SignatureDoesNotMatch, "A signature within the body does not match.")
	}
	c.chain.seed = want
	return nil
}

// endChunked reads the last chunk and the trailers.
func (b *Body) endChunked() error {
	c := &b.chunks
	if err := b.nextChunk(); err != nil {
		return err
	}
	if !c.final {
		return New(InvalidRequest, "The chunks are longer than x-amz-decoded-content-length.")
	}
	if !b.spec.Mode.hasTrailer() {
		line, err := b.readLine(maxChunkLine)
		switch {
		case b.atEnd(err): // some clients leave the last line end out
			return nil
		case err != nil:
			return err
		case len(line) != 0:
			return New(InvalidRequest, "The last chunk is not followed by a line end.")
		}
		return nil
	}
	return b.readTrailers()
}

// atEnd says whether an error of readLine only means that the source ended where a line may be missing.
func (b *Body) atEnd(err error) bool {
	return err != nil && b.srcErr == io.EOF && b.chunks.r == b.chunks.w
}

// readTrailers reads "name:value" lines. An empty line ends them; in a signed trailer it does so
// only after the signature, because some clients send a line end too many before it.
func (b *Body) readTrailers() error {
	c := &b.chunks
	c.trailer = make(http.Header, len(b.spec.Trailers))
	signed := b.spec.Mode == PayloadChunkedTrailer
	var signature []byte
	var text []byte // what the trailer signature covers
	for range maxTrailerLines {
		line, err := b.readTrailerLine()
		if b.atEnd(err) {
			return b.checkTrailers(text, signature)
		}
		if err != nil {
			return err
		}
		if len(line) == 0 {
			if signed && signature == nil {
				continue
			}
			return b.checkTrailers(text, signature)
		}
		name, value, found := strings.Cut(string(line), ":")
		name, value = strings.ToLower(strings.Trim(name, " \t")), strings.Trim(value, " \t")
		switch {
		case !found || !isLowerToken(name) || !isFieldValue(value) || signature != nil:
			return New(MalformedTrailer, "")
		case name == "x-amz-trailer-signature" && signed:
			signature = []byte(value)
		case !slices.Contains(b.spec.Trailers, name) || c.trailer.Get(name) != "":
			return New(MalformedTrailer, "The body has a trailer that was not announced, or one twice.")
		default:
			c.trailer.Set(name, value)
			text = append(append(append(append(text, name...), ':'), value...), '\n')
		}
	}
	return New(MalformedTrailer, "The body has too many trailers.")
}

// checkTrailers verifies that all announced trailers came, and their signature.
func (b *Body) checkTrailers(text, signature []byte) error {
	for _, name := range b.spec.Trailers {
		if b.chunks.trailer.Get(name) == "" {
			return New(MalformedTrailer, "The announced trailer "+name+" is missing.")
		}
	}
	if b.spec.Mode != PayloadChunkedTrailer {
		return nil
	}
	if signature == nil {
		return New(MalformedTrailer, "The trailer signature is missing.")
	}
	sum := sha256.Sum256(text)
	var space [512]byte
	s := b.chunks.chainPrefix(space[:0], algorithmV4+"-TRAILER")
	return b.chunks.advance(hex.AppendEncode(s, sum[:]), signature)
}

// isFieldValue says whether s may stand in a header.
func isFieldValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// readLine returns the next line of at most limit bytes without its CRLF. It is valid until the
// next read.
func (b *Body) readLine(limit int) ([]byte, error) {
	line, err := b.readToNewline(limit)
	if err != nil {
		return nil, err
	}
	if len(line) == 0 || line[len(line)-1] != '\r' {
		return nil, New(InvalidRequest, "A line of the chunk framing does not end in CR LF.")
	}
	return line[:len(line)-1], nil
}

// readTrailerLine is readLine for trailers, where some clients end a line with LF alone.
func (b *Body) readTrailerLine() ([]byte, error) {
	line, err := b.readToNewline(maxTrailerLine)
	return bytes.TrimSuffix(line, []byte("\r")), err
}

func (b *Body) readToNewline(limit int) ([]byte, error) {
	c := &b.chunks
	scanned := 0
	for {
		if i := bytes.IndexByte(c.buf[c.r+scanned:c.w], '\n'); i >= 0 {
			line := c.buf[c.r : c.r+scanned+i]
			c.r += scanned + i + 1
			if len(line) > limit {
				break
			}
			return line, nil
		}
		if scanned = c.w - c.r; scanned > limit {
			break
		}
		if c.r > 0 {
			copy(c.buf, c.buf[c.r:c.w])
			c.r, c.w = 0, scanned
		}
		n, err := b.read(c.buf[c.w:])
		if err != nil {
			return nil, b.sourceError(err)
		}
		c.w += n
	}
	return nil, New(InvalidRequest, "A line of the chunk framing is too long.")
}
