package hostile

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	isoBasic  = "20060102T150405Z"
	emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// item is a query item or a header line, in the form in which it goes out.
type item struct{ name, value string }

// forged is a request in pieces, with a signer of its own that follows the documentation of Signature
// Version 4 and signs whatever it is told to. It shares nothing with the one under test.
type forged struct {
	method, host, path string // the path in its canonical encoding
	query              []item
	headers            []item
	body               string
	hash               string
	unsigned           []string // names of headers that are sent and left out of SignedHeaders
	presigned          bool
	expires            string // presigned only

	accessKey, secret                      string
	date                                   time.Time
	scopeDate, region, service, terminator string
	algorithm, signedHeaders, signature    string

	omitHost bool // from SignedHeaders
	// wire is how the parts are written, after signing; nil: as they are.
	wire func(*forged)
	// raw changes the bytes of the request.
	raw func(string) string
}

func (n *node) forge(method, path string) *forged {
	now := time.Now().UTC()
	return &forged{
		method: method, host: n.host, path: path, hash: "UNSIGNED-PAYLOAD",
		accessKey: n.root.ID, secret: string(n.root.Secret), date: now,
		region: "us-east-1", service: "s3", terminator: "aws4_request", algorithm: "AWS4-HMAC-SHA256", expires: "3600",
	}
}

func (f *forged) get(name string) string {
	for _, h := range f.headers {
		if strings.EqualFold(h.name, name) {
			return h.value
		}
	}
	return ""
}

func (f *forged) set(name, value string) {
	for i, h := range f.headers {
		if strings.EqualFold(h.name, name) {
			f.headers[i].value = value
			return
		}
	}
	f.headers = append(f.headers, item{name, value})
}

func (f *forged) drop(name string) {
	f.headers = slices.DeleteFunc(f.headers, func(h item) bool { return strings.EqualFold(h.name, name) })
}

func (f *forged) setQuery(name, value string) {
	for i, q := range f.query {
		if q.name == name {
			f.query[i].value = value
			return
		}
	}
	f.query = append(f.query, item{name, value})
}

func (f *forged) dropQuery(name string) {
	f.query = slices.DeleteFunc(f.query, func(q item) bool { return q.name == name })
}

func (f *forged) scope() string {
	day := f.scopeDate
	if day == "" {
		day = f.date.Format("20060102")
	}
	return strings.Join([]string{day, f.region, f.service, f.terminator}, "/")
}

// sign fills what the signature needs and computes it.
func (f *forged) sign() {
	f.headers = append(f.headers, item{"Host", f.host})
	if !f.presigned {
		f.headers = append(f.headers, item{"X-Amz-Date", f.date.Format(isoBasic)}, item{"X-Amz-Content-Sha256", f.hash})
	}
	var names []string
	for _, h := range f.headers {
		name := strings.ToLower(h.name)
		if !slices.Contains(f.unsigned, name) && !slices.Contains(names, name) && !(f.omitHost && name == "host") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	f.signedHeaders = strings.Join(names, ";")
	if f.presigned {
		for _, q := range []item{
			{"X-Amz-Algorithm", f.algorithm}, {"X-Amz-Credential", percent(f.accessKey + "/" + f.scope())},
			{"X-Amz-Date", f.date.Format(isoBasic)}, {"X-Amz-Expires", percent(f.expires)},
			{"X-Amz-SignedHeaders", percent(f.signedHeaders)},
		} {
			f.setQuery(q.name, q.value)
		}
	}
	f.signature = hex.EncodeToString(mac(f.key(), f.stringToSign(f.canonical(names))))
	if f.presigned {
		f.query = append(f.query, item{"X-Amz-Signature", f.signature})
	}
}

func (f *forged) canonical(names []string) string {
	var pairs []string
	for _, q := range f.query {
		pairs = append(pairs, q.name+"="+q.value)
	}
	slices.Sort(pairs)
	lines := []string{f.method, f.path, strings.Join(pairs, "&")}
	for _, name := range names {
		lines = append(lines, name+":"+strings.TrimSpace(f.get(name)))
	}
	return strings.Join(append(lines, "", f.signedHeaders, f.hash), "\n")
}

func (f *forged) stringToSign(canonical string) string {
	return strings.Join([]string{f.algorithm, f.date.Format(isoBasic), f.scope(), hashOf(canonical)}, "\n")
}

func (f *forged) key() []byte {
	k := []byte("AWS4" + f.secret)
	for part := range strings.SplitSeq(f.scope(), "/") {
		k = mac(k, part)
	}
	return k
}

// bytes is the request as it goes out, signed and then changed.
func (f *forged) bytes() []byte {
	f.sign()
	if f.wire != nil {
		f.wire(f)
	}
	var b strings.Builder
	b.WriteString(f.method + " " + f.path)
	for i, q := range f.query {
		b.WriteString([]string{"?", "&"}[min(i, 1)] + q.name + "=" + q.value)
	}
	b.WriteString(" HTTP/1.1\r\n")
	for _, h := range f.headers {
		b.WriteString(h.name + ": " + h.value + "\r\n")
	}
	if !f.presigned {
		fmt.Fprintf(&b, "Authorization: %s Credential=%s/%s, SignedHeaders=%s, Signature=%s\r\n",
			f.algorithm, f.accessKey, f.scope(), f.signedHeaders, f.signature)
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(f.body), f.body)
	if f.raw != nil {
		return []byte(f.raw(b.String()))
	}
	return []byte(b.String())
}

// chunk is a piece of an aws-chunked body.
type chunk struct{ text, signature string }

// chunks makes the body of a signed aws-chunked request, whose signature must be known: a wire function.
// change sees the pieces before they are joined; the last two are the trailer, if there is one.
func chunks(parts []string, trailer string, change func([]chunk) []chunk) func(*forged) {
	return func(f *forged) {
		previous := f.signature
		chain := func(kind string, hashes ...string) string {
			lines := append([]string{f.algorithm + kind, f.date.Format(isoBasic), f.scope(), previous}, hashes...)
			previous = hex.EncodeToString(mac(f.key(), strings.Join(lines, "\n")))
			return previous
		}
		var all []chunk
		for _, p := range append(slices.Clone(parts), "") {
			all = append(all, chunk{p, chain("-PAYLOAD", emptyHash, hashOf(p))})
		}
		if trailer != "" {
			all = append(all, chunk{trailer, chain("-TRAILER", hashOf(trailer+"\n"))})
		}
		if change != nil {
			all = change(all)
		}
		var b strings.Builder
		for _, c := range all {
			if strings.HasPrefix(c.text, "x-amz-") {
				b.WriteString(c.text + "\r\nx-amz-trailer-signature:" + c.signature + "\r\n")
				continue
			}
			fmt.Fprintf(&b, "%x;chunk-signature=%s\r\n%s", len(c.text), c.signature, c.text)
			if c.text != "" || trailer == "" {
				b.WriteString("\r\n")
			}
		}
		if trailer != "" && len(all) > len(parts) {
			b.WriteString("\r\n")
		}
		f.body = b.String()
	}
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// percent encodes all but unreserved characters.
func percent(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
