package hostile

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/s3"
)

// attempt is one bad input and what it must be answered with. status 0: any refusal (4xx, 501 or a closed
// connection), decided by net/http or by us.
type attempt struct {
	name   string
	raw    []byte
	status int
	code   string
}

// try makes attempts and checks that the node is the same afterwards.
func (n *node) try(attempts []attempt) {
	n.t.Helper()
	before := n.baseline(1)
	for _, a := range attempts {
		method, _, _ := strings.Cut(string(a.raw), " ")
		got, err := n.talk(a.raw, method)
		switch {
		case a.status == 0 && (err != nil || got.status == 501 || got.status >= 400 && got.status < 500):
		case err != nil:
			n.t.Errorf("%s: no answer: %v", a.name, err)
		default:
			n.expectError(a.name, got, a.status, a.code)
		}
	}
	n.settled(before, "after bad input")
	n.listed("neighbour", "object")
}

// swap replaces one piece of a signed request, as somebody on the way would.
func swap(raw []byte, from, to string) []byte {
	if !bytes.Contains(raw, []byte(from)) {
		panic("hostile: request has no " + from)
	}
	return bytes.Replace(raw, []byte(from), []byte(to), 1)
}

func TestBadSignatures(t *testing.T) {
	n := startNode(t)
	const path = "/" + bucket + "/bad"
	good := func() request { return n.put(path, []byte("x")).with("X-Amz-Meta-A", "1") }
	literal := good()
	literal.hash = strings.Repeat("0", 64)
	expired := func(query string) []byte {
		return []byte("PUT " + path + query + " HTTP/1.1\r\nHost: " + n.host + "\r\nContent-Length: 1\r\n\r\nx")
	}
	presigned := n.presign("PUT", path, nil)
	mixed := n.raw(n.put(presigned.RequestURI(), []byte("x")))
	stranger := good()
	stranger.key.ID, stranger.key.Secret = "PSNOBODY", "nothing"
	wrong := good()
	wrong.key.ID, wrong.key.Secret = n.root.ID, "wrong"
	n.try([]attempt{
		{"no signature", expired(""), 403, "AccessDenied"},
		{"unknown key", n.raw(stranger), 403, "InvalidAccessKeyId"},
		{"wrong secret", n.raw(wrong), 403, "SignatureDoesNotMatch"},
		{"another method", swap(n.raw(good()), "PUT ", "POST "), 403, "SignatureDoesNotMatch"},
		{"another key", swap(n.raw(good()), "/bad", "/bbd"), 403, "SignatureDoesNotMatch"},
		{"a dot segment added", swap(n.raw(good()), "/bad", "/./bad"), 403, "SignatureDoesNotMatch"},
		{"a slash doubled", swap(n.raw(good()), "/bad", "//bad"), 403, "SignatureDoesNotMatch"},
		{"a parent segment", swap(n.raw(good()), "/bad", "/x/../bad"), 403, "SignatureDoesNotMatch"},
		{"an escaped slash", swap(n.raw(good()), "/bad", "%2Fbad"), 400, "InvalidBucketName"},
		{"another host",
			swap(n.raw(good()), "Host: "+n.host, "Host: "+alicesBucket+".s3.test"), 403, "SignatureDoesNotMatch"},
		{"absolute form of another host",
			swap(n.raw(good()), "PUT /", "PUT http://alice.s3.test/"), 403, "SignatureDoesNotMatch"},
		{"a query added", swap(n.raw(good()), "/bad", "/bad?acl"), 403, "SignatureDoesNotMatch"},
		{"a value changed", swap(n.raw(good()), "X-Amz-Meta-A: 1", "X-Amz-Meta-A: 2"), 403, "SignatureDoesNotMatch"},
		{"a value doubled", n.raw(good().plus("X-Amz-Meta-A: 1")), 403, "SignatureDoesNotMatch"},
		{"metadata added", n.raw(good().plus("X-Amz-Meta-B: 1")), 403, "AccessDenied"},
		{"copy source added", n.raw(good().plus("X-Amz-Copy-Source: " + bucket + "/object")), 403, "AccessDenied"},
		{"in lower case", n.raw(good().plus("x-amz-copy-source: " + bucket + "/object")), 403, "AccessDenied"},
		{"token added", n.raw(good().plus("X-Amz-Rdma-Token: x")), 403, "AccessDenied"},
		{"deadline added", n.raw(good().plus("X-Penstock-Rdma-Deadline-Ms: 1")), 403, "AccessDenied"},
		{"security token added", n.raw(good().plus("X-Amz-Security-Token: x")), 403, "AccessDenied"},
		{"date doubled", n.raw(good().plus("X-Amz-Date: 20000101T000000Z")), 403, "AccessDenied"},
		{"hash doubled", n.raw(good().plus("X-Amz-Content-Sha256: UNSIGNED-PAYLOAD")), 400, "InvalidRequest"},
		{"authorization doubled", n.raw(good().plus("Authorization: AWS4-HMAC-SHA256 x")), 400, "InvalidArgument"},
		{"header and query", mixed, 400, "InvalidArgument"},
		{"hash of another body", n.raw(literal), 400, "XAmzContentSHA256Mismatch"},
		{"hash that is none", swap(n.raw(good()), "UNSIGNED-PAYLOAD", "UNSIGNED-PAYLAOD"), 403, "SignatureDoesNotMatch"},
		{"a folded header", n.raw(good().plus("X-Amz-Meta-A: 1", " X-Amz-Meta-B: 2")), 0, ""},
		{"a space before the colon", n.raw(good().plus("X-Amz-Meta-B : 2")), 0, ""},
		{"scheme AWS", swap(n.raw(good()), "AWS4-HMAC-SHA256 ", "AWS "), 400, "InvalidRequest"},
		{"a header name that is none", n.raw(good().plus("X-Amz-Rdma-Tok\x00en: x")), 0, ""},
		{"presigned, expired",
			expired(n.presignAt(path, time.Now().Add(-2*time.Hour)).RequestURI()[len(path):]), 403, "AccessDenied"},
		{"presigned, with a header", n.bare(presigned, "X-Amz-Copy-Source: "+bucket+"/object"), 403, "AccessDenied"},
		{"presigned, twice signed", n.bare(presigned, "Authorization: AWS4-HMAC-SHA256 x"), 400, "InvalidArgument"},
	})
	// What was signed with a comma does not become two.
	r := request{method: "PUT", path: path}.with("X-Amz-Copy-Source", bucket+"/object,x")
	a, err := n.talk(swap(n.raw(r), "X-Amz-Copy-Source: "+bucket+"/object,x",
		"X-Amz-Copy-Source: "+bucket+"/object\r\nX-Amz-Copy-Source: x"), "PUT")
	if err != nil || a.status/100 != 4 {
		t.Errorf("a header split in two: %d %v", a.status, err)
	}
	n.listed("object")
}

func (n *node) presign(method, path string, header http.Header) *url.URL {
	return n.presigned(&http.Request{Method: method, URL: &url.URL{Scheme: "http", Host: n.host, Path: path},
		Host: n.host, Header: header}, time.Now())
}

func (n *node) presignAt(path string, at time.Time) *url.URL {
	return n.presigned(&http.Request{Method: "PUT", URL: &url.URL{Scheme: "http", Host: n.host, Path: path},
		Host: n.host}, at)
}

func (n *node) presigned(r *http.Request, at time.Time) *url.URL {
	n.t.Helper()
	u, err := n.signer.Presign(r, s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: n.root.ID, SecretKey: string(n.root.Secret)},
		Region:      "us-east-1", Time: at, Expires: time.Hour,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return u
}

// bare is a presigned PUT with header lines.
func (n *node) bare(u *url.URL, lines ...string) []byte {
	raw := "PUT " + u.RequestURI() + " HTTP/1.1\r\nHost: " + n.host + "\r\nContent-Length: 1\r\n"
	return []byte(raw + strings.Join(append(lines, ""), "\r\n") + "\r\nx")
}

// TestSmuggling: the length of a request has one meaning, so nothing hides in a body.
func TestSmuggling(t *testing.T) {
	n := startNode(t)
	const path = "/" + bucket + "/smuggled"
	inner := string(n.raw(n.put("/"+bucket+"/inner", []byte("x"))))
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(inner), inner)
	base := request{method: "PUT", path: path, noLength: true}
	body := func(r request, text string) []byte { return append(n.raw(r), text...) }
	n.try([]attempt{
		{"two lengths", body(base.plus("Content-Length: 1", "Content-Length: 5"), "x"+inner), 0, ""},
		{"length list", body(base.plus("Content-Length: 1, 5"), "x"+inner), 0, ""},
		{"negative length", body(base.plus("Content-Length: -1"), "x"), 0, ""},
		{"length with a sign", body(base.plus("Content-Length: +1"), "x"), 0, ""},
		{"hex length", body(base.plus("Content-Length: 0x1"), "x"), 0, ""},
		{"a length beyond all", body(base.plus("Content-Length: 99999999999999999999"), "x"), 0, ""},
		{"an exabyte", body(base.plus("Content-Length: 1152921504606846976"), "x"), 400, "EntityTooLarge"},
		{"no length", body(base, ""), 411, "MissingContentLength"},
		{"chunked without a length", body(base.plus("Transfer-Encoding: chunked"), chunked), 411, "MissingContentLength"},
		{"odd encoding", body(base.plus("Transfer-Encoding: xchunked", "Content-Length: 4"), "abcd"), 0, ""},
		{"two encodings", body(base.plus("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), chunked), 0, ""},
		{"bad chunk", body(base.plus("Transfer-Encoding: chunked"), "zz\r\n"), 411, "MissingContentLength"},
		{"HTTP/0.9", []byte("GET /\r\n\r\n"), 0, ""},
		{"HTTP/9.9", []byte("GET / HTTP/9.9\r\nHost: x\r\n\r\n"), 505, "HttpVersionNotSupported"},
		{"no host", []byte("GET / HTTP/1.1\r\n\r\n"), 0, ""},
		{"two hosts", []byte("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 0, ""},
		{"HTTP/2 preface", []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0, ""},
		{"a TLS hello", []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 0, ""},
		{"CONNECT", []byte("CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n"), 0, ""},
		{"OPTIONS *", []byte("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"), 0, ""},
		{"an absurd header", []byte("GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 2<<20) + "\r\n\r\n"), 0, ""},
		{"many headers", []byte("GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A: a\r\n", 20_000) + "\r\n"), 0, ""},
		{"an absurd path", []byte("GET /" + strings.Repeat("a/", 20_000) + " HTTP/1.1\r\nHost: x\r\n\r\n"), 0, ""},
		{"an absurd query", []byte("GET /?" + strings.Repeat("a&", 10_000) + " HTTP/1.1\r\nHost: x\r\n\r\n"), 0, ""},
	})
	// Both lengths: RFC 9112 lets a server take the encoding and close. Then the inner request is payload, and
	// our answer is about the missing length.
	a, err := n.talk(body(base.plus("Content-Length: 5", "Transfer-Encoding: chunked"), chunked), "PUT")
	if err == nil && a.status/100 == 2 {
		t.Errorf("length and encoding: %d", a.status)
	}
	n.listed("object")
}

// TestBadNamesRangesAndDocuments: everything a caller with a valid key can get wrong.
func TestBadNamesRangesAndDocuments(t *testing.T) {
	n := startNode(t)
	get := func(path string, pairs ...string) []byte {
		return n.raw(request{method: "GET", path: path}.with(pairs...))
	}
	post := func(path, body string) []byte {
		return n.raw(request{method: "POST", path: path, body: []byte(body)})
	}
	object := "/" + bucket + "/object"
	bomb := `<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>` +
		`<Delete><Object><Key>&b;</Key></Object></Delete>`
	upload := object + "?uploadId=0000000000000000000000000000000000000000"
	n.try([]attempt{
		{"key of 1025 bytes", n.raw(n.put("/"+bucket+"/"+strings.Repeat("k", 1025), nil)), 400, "KeyTooLongError"},
		{"key that is not UTF-8", n.raw(n.put("/"+bucket+"/%ff", nil)), 400, "InvalidURI"},
		{"broken escape", swap(get("/"+bucket+"?prefix=ab"), "prefix=ab", "prefix=%zz"), 400, "InvalidURI"},
		{"bucket with a dot", n.raw(n.put("/..", nil)), 400, "InvalidBucketName"},
		{"bucket of the control plane", n.raw(n.put("/.penstock", nil)), 400, "InvalidBucketName"},
		{"control plane, escaped",
			n.raw(request{method: "POST", path: "/%2Epenstock/fabric/v1/sessions"}), 405, "MethodNotAllowed"},
		{"session of nothing", post("/.penstock/fabric/v1/sessions", ""), 400, "InvalidRequest"},
		{"session of a bomb", post("/.penstock/fabric/v1/sessions", strings.Repeat("[", 60_000)), 400, "InvalidRequest"},
		{"session, too long",
			post("/.penstock/fabric/v1/sessions", strings.Repeat(" ", 70_000)), 400, "MaxMessageLengthExceeded"},
		{"keys of root for alice",
			n.raw(n.as(n.alice, request{method: "GET", path: "/.penstock/admin/v1/keys"})), 403, "AccessDenied"},
		{"root's bucket for alice", n.raw(n.as(n.alice, request{method: "GET", path: object})), 403, "AccessDenied"},
		{"root's object copied by alice", n.raw(n.as(n.alice, n.put("/"+alicesBucket+"/x", nil).with(
			"X-Amz-Copy-Source", bucket+"/object"))), 403, "AccessDenied"},
		{"alice deletes root's", n.raw(n.as(n.alice, request{method: "DELETE", path: object})), 403, "AccessDenied"},
		{"range behind the end", get(object, "Range", fmt.Sprintf("bytes=%d-", objectBytes)), 416, "InvalidRange"},
		{"part number of nothing", get(object + "?partNumber=9"), 416, "InvalidPartNumber"},
		{"part number 0", get(object + "?partNumber=0"), 400, "InvalidArgument"},
		{"part number, absurd", get(object + "?partNumber=99999999999999999999"), 400, "InvalidArgument"},
		{"max-keys negative", get("/" + bucket + "?max-keys=-1"), 400, "InvalidArgument"},
		{"max-keys absurd", get("/" + bucket + "?max-keys=99999999999999999999"), 400, "InvalidArgument"},
		{"continuation token", get("/" + bucket + "?list-type=2&continuation-token=%00"), 400, "InvalidArgument"},
		{"XML of nothing", post("/"+bucket+"?delete", ""), 400, "MalformedXML"},
		{"XML bomb", post("/"+bucket+"?delete", bomb), 400, "MalformedXML"},
		{"deep XML", post("/"+bucket+"?delete", strings.Repeat("<a>", 100_000)), 400, "MalformedXML"},
		{"XML without an end", post("/"+bucket+"?delete", "<Delete><Object><Key>"), 400, "MalformedXML"},
		{"UTF-16", post("/"+bucket+"?delete", "\xff\xfe<\x00D\x00"), 400, "MalformedXML"},
		{"9 MiB of XML",
			post("/"+bucket+"?delete", "<Delete>"+strings.Repeat(" ", 9<<20)), 400, "MaxMessageLengthExceeded"},
		{"complete of nothing", post(upload, "<CompleteMultipartUpload></CompleteMultipartUpload>"), 0, ""},
		{"part of no upload", n.raw(n.put(upload+"&partNumber=1", []byte("x"))), 404, "NoSuchUpload"},
		{"two sub-resources", n.raw(n.put(object+"?acl&tagging", nil)), 400, "InvalidArgument"},
		{"a checksum that lies",
			n.raw(n.put("/"+bucket+"/sum", []byte("x")).with("X-Amz-Checksum-Crc32", "AAAAAA==")), 400, "BadDigest"},
		{"a checksum that is none",
			n.raw(n.put("/"+bucket+"/sum", []byte("x")).with("X-Amz-Checksum-Crc32", "A")), 400, "InvalidRequest"},
		{"an MD5 that lies",
			n.raw(n.put("/"+bucket+"/sum", []byte("x")).with("Content-Md5", "AAAAAAAAAAAAAAAAAAAAAA==")), 400, "BadDigest"},
		{"metadata of 3 KB",
			n.raw(n.put("/"+bucket+"/meta", nil).with("X-Amz-Meta-A", strings.Repeat("a", 3000))), 400, "MetadataTooLarge"},
		{"expected size, absurd",
			n.raw(n.put("/"+bucket+"/c", []byte("x")).with("X-Amz-Decoded-Content-Length", "-5")), 400, "InvalidArgument"},
	})
}

// TestChunkFraming: aws-chunked bodies of every wrong kind.
func TestChunkFraming(t *testing.T) {
	n := startNode(t)
	unsigned := func(decoded, body string) []byte {
		r := n.put("/"+bucket+"/chunks", []byte(body)).with("X-Amz-Decoded-Content-Length", decoded)
		r.hash = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
		return n.raw(r)
	}
	with := func(body string) []byte {
		r := n.put("/"+bucket+"/chunks", []byte(body)).with(
			"X-Amz-Decoded-Content-Length", "5", "X-Amz-Trailer", "x-amz-checksum-crc32")
		r.hash = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
		return n.raw(r)
	}
	unproved := func(body string) []byte {
		r := n.put("/"+bucket+"/chunks", []byte(body)).with("X-Amz-Decoded-Content-Length", "5")
		r.hash = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
		return n.raw(r)
	}
	zeros := strings.Repeat("0", 64)
	n.try([]attempt{
		{"no chunks", unsigned("5", ""), 400, "IncompleteBody"},
		{"no hex", unsigned("5", "zz\r\nhello\r\n0\r\n\r\n"), 400, "InvalidRequest"},
		{"negative", unsigned("5", "-5\r\nhello\r\n0\r\n\r\n"), 400, "InvalidRequest"},
		{"absurd chunk", unsigned("5", "ffffffffffffffff\r\nhello\r\n0\r\n\r\n"), 400, "InvalidRequest"},
		{"17 digits", unsigned("5", "00000000000000005\r\nhello\r\n0\r\n\r\n"), 400, "InvalidRequest"},
		{"longer than said", unsigned("4", "5\r\nhello\r\n0\r\n\r\n"), 400, "InvalidRequest"},
		{"shorter than said", unsigned("6", "5\r\nhello\r\n0\r\n\r\n"), 400, "IncompleteBody"},
		{"no last chunk", unsigned("5", "5\r\nhello\r\n"), 400, "IncompleteBody"},
		{"bytes behind", unsigned("5", "5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1"), 400, "InvalidRequest"},
		{"LF only", unsigned("5", "5\nhello\n0\n\n"), 400, "InvalidRequest"},
		{"a line without end", unsigned("5", strings.Repeat("0", 5000)), 400, "InvalidRequest"},
		{"petabyte", unsigned("1125899906842624", "5\r\nhello\r\n0\r\n\r\n"), 0, ""},
		{"trailer missing", with("5\r\nhello\r\n0\r\n\r\n"), 400, "MalformedTrailerError"},
		{"trailer lies", with("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"), 400, "BadDigest"},
		{"trailer not announced", with("5\r\nhello\r\n0\r\nx-amz-meta-a:b\r\n\r\n"), 400, "MalformedTrailerError"},
		{"no chunk signature", unproved("5\r\nhello\r\n0\r\n\r\n"), 403, "SignatureDoesNotMatch"},
		{"wrong chunk signature",
			unproved("5;chunk-signature=" + zeros + "\r\nhello\r\n0;chunk-signature=" +
				zeros + "\r\n\r\n"), 403, "SignatureDoesNotMatch"},
	})
}

// TestResponseSplitting: nothing that a client names comes back as a header of its own.
func TestResponseSplitting(t *testing.T) {
	n := startNode(t)
	const evil = "a%0d%0aSet-Cookie:%20x=1%0d%0a%0d%0a<html>"
	for _, query := range []string{
		"response-content-type=" + evil, "response-expires=" + evil, "response-cache-control=a%00b",
	} {
		a := n.send(request{method: "GET", path: "/" + bucket + "/object?" + query})
		n.expectError(query, a, 400, "InvalidArgument")
	}
	u := n.presign("PUT", "/"+bucket+"/split", nil)
	q := "X-Amz-Meta-A=" + evil
	r := &http.Request{Method: "PUT", Host: n.host}
	r.URL = &url.URL{Scheme: "http", Host: n.host, Path: u.Path, RawQuery: q}
	a, err := n.talk(n.bare(n.presigned(r, time.Now())), "PUT")
	if err != nil {
		t.Fatal(err)
	}
	n.expectError("hoisted metadata", a, 400, "InvalidArgument")
	r.URL.RawQuery = "X-Amz-Copy-Source=" + bucket + "/nothing"
	if a, err = n.talk(n.bare(n.presigned(r, time.Now())), "PUT"); err != nil {
		t.Fatal(err)
	}
	n.expectError("hoisted copy", a, 404, "NoSuchKey")
	for _, path := range []string{
		"/%0d%0aX:%20y/%0a", "/" + bucket + "/%0d%0aSet-Cookie:%20a=b", "/" + bucket + "/%3Cscript%3E",
	} {
		a := n.send(request{method: "GET", path: path})
		if a.header.Get("Set-Cookie") != "" || a.header.Get("X") != "" || bytes.Contains(a.body, []byte("<script>")) {
			t.Errorf("%s: %v %s", path, a.header, a.body)
		}
	}
	if strings.Contains(n.log.text(), "\nSet-Cookie") {
		t.Error("a client writes lines of the log")
	}
	n.listed("object")
}
