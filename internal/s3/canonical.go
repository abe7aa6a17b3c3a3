package s3

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

const (
	algorithmV4  = "AWS4-HMAC-SHA256"
	algorithmV4A = "AWS4-ECDSA-P256-SHA256"
	scopeEnd     = "aws4_request"
	amzTime      = "20060102T150405Z"

	unsignedPayload = "UNSIGNED-PAYLOAD"
	emptySHA256     = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

	// maxQueryPairs bounds a query: the longest real ones, presigned with hoisted headers, have under
	// 40.
	maxQueryPairs = 256
	// maxSignedHeaders bounds SignedHeaders: 2 KB of user metadata can be some hundred headers.
	maxSignedHeaders = 1024
)

// FromHTTP takes what a signature covers from a request: the raw request target when net/http's
// server received it, otherwise what net/http's client would send.
func FromHTTP(r *http.Request) Request {
	out := Request{
		Method: r.Method, Host: r.Host, Header: r.Header,
		ContentLength: r.ContentLength, TransferEncoding: r.TransferEncoding,
	}
	if r.RequestURI != "" {
		out.RawPath, out.RawQuery = splitTarget(r.RequestURI)
		return out
	}
	if r.URL != nil {
		out.RawPath, out.RawQuery = r.URL.EscapedPath(), r.URL.RawQuery
		if out.Host == "" {
			out.Host = r.URL.Host
		}
	}
	if out.RawPath == "" {
		out.RawPath = "/"
	}
	if out.Method == "" {
		out.Method = http.MethodGet
	}
	return out
}

// splitTarget splits a request target, origin-form or absolute-form, into raw path and raw query.
func splitTarget(target string) (path, query string) {
	path, query, _ = strings.Cut(target, "?")
	if strings.HasPrefix(path, "/") || path == "*" {
		return path, query
	}
	if _, rest, ok := strings.Cut(path, "://"); ok {
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			return rest[i:], query
		}
		return "/", query
	}
	return "/" + path, query
}

// queryPair is one item of a query in canonical encoding.
type queryPair struct{ name, value string }

// parseQueryPairs splits a raw query and brings its items into canonical encoding, in their order.
func parseQueryPairs(dst []queryPair, raw string) ([]queryPair, bool) {
	for len(raw) > 0 {
		var item string
		item, raw, _ = strings.Cut(raw, "&")
		if item == "" {
			continue
		}
		if len(dst) == maxQueryPairs {
			return nil, false
		}
		name, value, _ := strings.Cut(item, "=")
		n, ok1 := canonicalEscape(name, false)
		v, ok2 := canonicalEscape(value, false)
		if !ok1 || !ok2 {
			return nil, false
		}
		dst = append(dst, queryPair{n, v})
	}
	return dst, true
}

// canonicalInput is what a canonical request is made from.
type canonicalInput struct {
	method, path, host string
	query              []queryPair // sorted, without X-Amz-Signature
	signedHeaders      string      // as sent: lower case, ascending, joined by ";"
	payloadHash        string
}

func sortPairs(p []queryPair) {
	slices.SortFunc(p, func(a, b queryPair) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return strings.Compare(a.value, b.value)
	})
}

// appendCanonical appends the canonical request.
func appendCanonical(dst []byte, c *canonicalInput, r *Request) []byte {
	dst = append(dst, c.method...)
	dst = append(dst, '\n')
	dst = append(dst, c.path...)
	dst = append(dst, '\n')
	for i, p := range c.query {
		if i > 0 {
			dst = append(dst, '&')
		}
		dst = append(dst, p.name...)
		dst = append(dst, '=')
		dst = append(dst, p.value...)
	}
	dst = append(dst, '\n')
	for rest := c.signedHeaders; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, ";")
		dst = append(dst, name...)
		dst = append(dst, ':')
		dst = appendSignedValue(dst, name, c.host, r)
		dst = append(dst, '\n')
	}
	dst = append(dst, '\n')
	dst = append(dst, c.signedHeaders...)
	dst = append(dst, '\n')
	return append(dst, c.payloadHash...)
}

// appendSignedValue appends the value of a signed header. Some headers do not survive the way into
// http.Header; they are restored from where net/http keeps them.
func appendSignedValue(dst []byte, name, host string, r *Request) []byte {
	if name == "host" {
		return appendTrimmed(dst, host)
	}
	values := r.Header[textproto.CanonicalMIMEHeaderKey(name)]
	if len(values) == 0 {
		switch {
		case name == "content-length" && r.ContentLength >= 0:
			return strconv.AppendInt(dst, r.ContentLength, 10)
		case name == "transfer-encoding":
			return append(dst, strings.Join(r.TransferEncoding, ",")...)
		case name == "expect": // proxies take it out; the client can have sent nothing else
			return append(dst, "100-continue"...)
		}
		return dst
	}
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendTrimmed(dst, v)
	}
	return dst
}

// appendTrimmed appends v without outer white space and with inner runs of spaces made one.
func appendTrimmed(dst []byte, v string) []byte {
	v = strings.Trim(v, " \t")
	if !strings.Contains(v, "  ") {
		return append(dst, v...)
	}
	space := false
	for i := range len(v) {
		if v[i] == ' ' {
			if space {
				continue
			}
			space = true
		} else {
			space = false
		}
		dst = append(dst, v[i])
	}
	return dst
}

// appendStringToSign appends the string to sign of a canonical request.
func appendStringToSign(dst []byte, date, scope string, canonical []byte) []byte {
	sum := sha256.Sum256(canonical)
	dst = append(dst, algorithmV4...)
	dst = append(dst, '\n')
	dst = append(dst, date...)
	dst = append(dst, '\n')
	dst = append(dst, scope...)
	dst = append(dst, '\n')
	return hex.AppendEncode(dst, sum[:])
}

// sign returns the hex signature.
func sign(key, stringToSign []byte) (out [2 * sha256.Size]byte) {
	sum := hmacSHA256(key, stringToSign)
	hex.Encode(out[:], sum[:])
	return out
}
