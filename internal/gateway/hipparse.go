package gateway

import (
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/token"
)

// Headers of hipobj-rc-v2 (docs/wire.md), in the form of http.Header's keys.
const (
	headerProtocol    = "X-Amz-Rdma-Protocol"
	headerCookie      = "X-Amz-Rdma-Cookie"
	headerOp          = "X-Amz-Rdma-Op"
	headerTarget      = "X-Amz-Rdma-Target"
	headerSize        = "X-Amz-Rdma-Size"
	headerOffset      = "X-Amz-Rdma-Offset"
	headerQPN         = "X-Amz-Rdma-Qpn"
	headerMemory      = "X-Amz-Rdma-Mr-Addr"
	headerMemoryKey   = "X-Amz-Rdma-Mr-Rkey"
	headerMovedETag   = "X-Amz-Rdma-Etag"
	headerMovedSum    = "X-Amz-Rdma-Checksum"
	hipProtocol       = "hipobj-rc-v2"
	hipProtocolStatus = "unsupported"
)

// Numbers of the messages.
const (
	hipMaxBytes = 1<<31 - 1 // of one transfer: a work request of the client moves all of it
	max32       = 1<<32 - 1
)

// hipFields reads the headers of a message and keeps the first error. Each is there once; no error has a value in it.
type hipFields struct {
	h   http.Header
	err error
}

func (f *hipFields) refuse(name, why string) {
	if f.err == nil {
		lower := strings.ToLower(name)
		f.err = s3.Errorf(s3.InvalidArgument, "%s %s.", lower, why).With("ArgumentName", lower)
	}
}

func (f *hipFields) text(name string) string {
	if values := f.h[name]; len(values) == 1 && values[0] != "" {
		return values[0]
	}
	f.refuse(name, "is needed, once")
	return ""
}

// hex reads 1 to digits hex digits whose value lies between least and most.
func (f *hipFields) hex(name string, digits int, least, most uint64) uint64 {
	text := f.text(name)
	n, err := strconv.ParseUint(text, 16, 64)
	if err != nil || !isHex(text) || len(text) > digits || n < least || n > most {
		f.refuse(name, "is no hex number of its range")
		return 0
	}
	return n
}

// fixed is hex of exactly as many digits.
func (f *hipFields) fixed(name string, digits int, least, most uint64) uint64 {
	if len(f.text(name)) != digits {
		f.refuse(name, "has another number of hex digits")
	}
	return f.hex(name, digits, least, most)
}

func isHex(text string) bool {
	return strings.Trim(text, "0123456789abcdefABCDEF") == "" // ParseUint takes a sign and underscores in other bases
}

// decimal reads a number without a sign or leading zeros. One that is too large for any type is the largest.
func (f *hipFields) decimal(name string) uint64 {
	text := f.text(name)
	if strings.Trim(text, "0123456789") != "" || len(text) > 1 && text[0] == '0' {
		f.refuse(name, "is no decimal number")
		return 0
	}
	n, _ := strconv.ParseUint(text, 10, 64) // out of range: the largest number
	return n
}

// checkProtocol comes before everything else: what is of another protocol is not looked at.
func checkProtocol(h http.Header) error {
	if values := h[headerProtocol]; len(values) != 1 || values[0] != hipProtocol {
		return unsupportedProtocol()
	}
	return nil
}

func unsupportedProtocol() *declined {
	return &declined{reason: reasonUnsupported, status: hipProtocolStatus}
}

// hipPrepare is the first message.
type hipPrepare struct {
	token       token.Descriptor
	psn, cookie uint32
	direction   fabric.Direction
	size        int64
	offset      int64 // of a GET
	target      s3.Target
	part        int // 0: none
	uploadID    string
}

// parsePrepare reads the headers of the first message. Errors are S3's or a decline.
func parsePrepare(h http.Header) (m hipPrepare, err error) {
	f := &hipFields{h: h}
	text := f.text(headerToken)
	m.psn = uint32(f.hex(headerPSN, 8, 1, maxNumber))
	m.cookie = uint32(f.fixed(headerCookie, 8, 1, max32))
	op := f.text(headerOp)
	target := f.text(headerTarget)
	size := f.decimal(headerSize)
	if f.err != nil {
		return hipPrepare{}, f.err
	}
	switch op {
	case http.MethodGet:
		m.direction = fabric.ForGet
	case http.MethodPut:
		m.direction = fabric.ForPut
	default:
		return hipPrepare{}, unsupportedProtocol()
	}
	if m.token, err = hipToken(text); err != nil {
		return hipPrepare{}, err
	}
	if err = m.aim(target); err != nil {
		return hipPrepare{}, err
	}
	if h[headerOffset] != nil {
		if m.direction == fabric.ForPut {
			f.refuse(headerOffset, "is for a GET only")
		}
		m.offset = int64(min(f.decimal(headerOffset), 1<<62)) // more than any object has
	}
	switch {
	case size == 0:
		f.refuse(headerSize, "is 0")
	case size > hipMaxBytes:
		return hipPrepare{}, withStatus(http.StatusRequestEntityTooLarge,
			s3.New(s3.EntityTooLarge, "One transfer moves at most 2^31-1 bytes."))
	}
	m.size = int64(size)
	return m, f.err
}

// hipToken reads the client's queue pair.
func hipToken(text string) (token.Descriptor, error) {
	d, err := token.Parse(text)
	if err != nil {
		return token.Descriptor{}, err
	}
	if d.Kind != token.HipObj || !d.HipRC || d.QPN < firstPair || d.QPN > maxNumber || d.GID == [16]byte{} {
		return token.Descriptor{}, s3.New(s3.InvalidRDMAToken, "The token names no queue pair of kind RC with a GID.")
	}
	return d, nil
}

// aim reads the target, which is what a request line would have: nothing of it is cleaned, so that it names the object
// that the same request over HTTP would.
func (m *hipPrepare) aim(target string) (err error) {
	for i := range len(target) {
		if target[i] <= ' ' || target[i] > '~' { // a signature does not tell one space from two
			return s3.New(s3.InvalidURI, "")
		}
	}
	path, rawQuery, _ := strings.Cut(target, "?")
	if m.target, err = s3.ParseTarget(path, ""); err != nil {
		return err
	}
	if m.target.Bucket == "" || m.target.Key == "" {
		return s3.New(s3.InvalidURI, "The target of a message is an object.")
	}
	if rawQuery == "" {
		return nil
	}
	q, err := s3.ParseQuery(rawQuery)
	if err != nil {
		return err
	}
	number, upload := q["partNumber"], q["uploadId"]
	if m.direction != fabric.ForPut || len(q) != 2 || len(number) != 1 || len(upload) != 1 || upload[0] == "" {
		return unsupportedProtocol()
	}
	m.uploadID = upload[0]
	m.part, err = s3.ParsePartNumber(number[0])
	return err
}

// parseSession reads the session of a later message.
func parseSession(h http.Header) (id [16]byte, err error) {
	f := &hipFields{h: h}
	raw, hexErr := hex.DecodeString(f.text(headerSession))
	if hexErr != nil || len(raw) != len(id) {
		f.refuse(headerSession, "is not 32 hex digits")
	}
	copy(id[:], raw)
	return id, f.err
}

// parseReady reads the headers of the second message.
func parseReady(h http.Header) (id [16]byte, r fabric.Readiness, err error) {
	if id, err = parseSession(h); err != nil {
		return id, r, err
	}
	f := &hipFields{h: h}
	r.Cookie = uint32(f.fixed(headerCookie, 8, 1, max32))
	r.QPN = uint32(f.hex(headerQPN, 16, firstPair, maxNumber))
	r.Addr = f.hex(headerMemory, 16, 0, 1<<64-1)
	r.RKey = uint32(f.hex(headerMemoryKey, 16, 0, max32))
	return id, r, f.err
}

// withStatus gives an error the status that the protocol has for it.
func withStatus(status int, e *s3.Error) *s3.Error {
	e.Status = status
	return e
}
