package accesslog

import (
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of what one line takes from a client: a key has at most 1,024 bytes and a bucket 63, but requests
// that are refused may carry anything. What is longer is cut and ends in an ellipsis.
const (
	maxKeyBytes     = 1024
	maxNameBytes    = 255
	maxRefererBytes = 512
	maxAgentBytes   = 256
)

// Entry is one request and its answer. Empty texts are left out of the line.
type Entry struct {
	Time      time.Time // when the header of the request was read
	RequestID string
	Remote    string // address and port of the peer
	TLS       string // version, as TLS 1.3; empty: plain
	Subject   string // of the client's certificate, when one was verified

	Principal string // empty: the signature was not verified
	AccessKey string // its id, never its secret

	Method    string
	Operation string // S3's name
	Bucket    string
	Key       string
	Version   string

	Status int    // 0: cut off without an answer, or in the middle of one
	Code   string // S3 error code
	Reason string // why the answer was cut off

	BytesIn  int64 // of the request's HTTP body, framing of aws-chunked included
	BytesOut int64 // of the answer's HTTP body
	Payload  int64 // bytes of objects that moved, by whatever path
	Path     string
	Declined string // why RDMA was declined
	Session  string // first digits of the id of the fabric session

	Total     time.Duration // from Time to the end of the operation
	FirstByte time.Duration // from Time to the header of the answer; 0: none went out

	Referer   string // without query, which may hold a presigned URL's signature
	UserAgent string
}

// append adds the line, with its newline.
func (e *Entry) append(b []byte) []byte {
	b = append(b, `{"time":"`...)
	b = e.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, '"')
	b = text(b, "request_id", e.RequestID, maxNameBytes)
	b = text(b, "remote", e.Remote, maxNameBytes)
	b = text(b, "tls", e.TLS, maxNameBytes)
	b = text(b, "client_subject", e.Subject, maxRefererBytes)
	b = text(b, "principal", e.Principal, maxNameBytes)
	b = text(b, "access_key", e.AccessKey, maxNameBytes)
	b = text(b, "method", e.Method, maxNameBytes)
	b = text(b, "operation", e.Operation, maxNameBytes)
	b = text(b, "bucket", e.Bucket, maxNameBytes)
	b = text(b, "key", e.Key, maxKeyBytes)
	b = text(b, "version", e.Version, maxNameBytes)
	b = number(b, "status", int64(e.Status))
	b = text(b, "error", e.Code, maxNameBytes)
	b = text(b, "cut", e.Reason, maxRefererBytes)
	b = number(b, "bytes_in", e.BytesIn)
	b = number(b, "bytes_out", e.BytesOut)
	b = number(b, "payload_bytes", e.Payload)
	b = text(b, "path", e.Path, maxNameBytes)
	b = text(b, "declined", e.Declined, maxNameBytes)
	b = text(b, "session", e.Session, maxNameBytes)
	b = number(b, "total_us", e.Total.Microseconds())
	b = number(b, "first_byte_us", e.FirstByte.Microseconds())
	b = text(b, "referer", e.Referer, maxRefererBytes)
	b = text(b, "user_agent", e.UserAgent, maxAgentBytes)
	return append(b, "}\n"...)
}

func number(b []byte, name string, n int64) []byte {
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	return strconv.AppendInt(b, n, 10)
}

// text adds a member unless it is empty.
func text(b []byte, name, value string, limit int) []byte {
	if value == "" {
		return b
	}
	cut := len(value) > limit
	if cut {
		for limit > 0 && !utf8.RuneStart(value[limit]) {
			limit--
		}
		value = value[:limit]
	}
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":"`...)
	b = quoted(b, value)
	if cut {
		b = append(b, "…"...)
	}
	return append(b, '"')
}

// quoted escapes what JSON must have escaped, and what does not print: a line that is shown on a terminal
// must not steer it. Bytes that are not UTF-8 become U+FFFD.
func quoted(b []byte, s string) []byte {
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if c >= utf8.RuneSelf && !(r == utf8.RuneError && size == 1) && unicode.IsPrint(r) {
			i += size
			continue
		}
		b = append(b, s[start:i]...)
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case r > 0xffff: // as JSON wants it: two halves
			r -= 0x10000
			b = hex4(hex4(b, 0xd800+r>>10), 0xdc00+r&0x3ff)
		default:
			b = hex4(b, r)
		}
		i += size
		start = i
	}
	return append(b, s[start:]...)
}

func hex4(b []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	return append(b, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}
