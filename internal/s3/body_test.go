package s3

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

var docNow = time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)

func docRequest(method, host, path, query, signed, signature string, header ...string) *Request {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	h.Set("X-Amz-Date", "20130524T000000Z")
	h.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+testKey+"/20130524/us-east-1/s3/aws4_request,SignedHeaders="+
		signed+",Signature="+signature)
	return &Request{Method: method, Host: host, RawPath: path, RawQuery: query, Header: h, ContentLength: -1}
}

// Oracle: the worked examples of the AWS documentation ("Authenticating Requests", signature values).
func TestDocumentedSignatures(t *testing.T) {
	const host = "examplebucket.s3.amazonaws.com"
	const usual = "host;x-amz-content-sha256;x-amz-date"
	reqs := []*Request{
		docRequest("GET", host, "/test.txt", "", "host;range;x-amz-content-sha256;x-amz-date",
			"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
			"Range", "bytes=0-9", "X-Amz-Content-Sha256", emptySHA256),
		docRequest("PUT", host, "/test$file.text", "", "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
			"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
			"Date", "Fri, 24 May 2013 00:00:00 GMT", "X-Amz-Storage-Class", "REDUCED_REDUNDANCY",
			"X-Amz-Content-Sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
		docRequest("GET", host, "/", "lifecycle", usual,
			"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543", "X-Amz-Content-Sha256", emptySHA256),
		docRequest("GET", host, "/", "max-keys=2&prefix=J", usual,
			"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7", "X-Amz-Content-Sha256", emptySHA256),
		{Method: "GET", Host: host, RawPath: "/test.txt", Header: http.Header{},
			RawQuery: "X-Amz-Algorithm=AWS4-HMAC-SHA256" +
				"&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request" +
				"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host" +
				"&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"},
	}
	v := testVerifier(docNow)
	for _, r := range reqs {
		if _, err := v.Verify(context.Background(), r); err != nil {
			t.Errorf("%s %s?%s: %v", r.Method, r.RawPath, r.RawQuery, err)
		}
	}
}

func docChunks(signatures [3]string, tail string) string {
	return "10000;chunk-signature=" + signatures[0] + "\r\n" + strings.Repeat("a", 65536) + "\r\n" +
		"400;chunk-signature=" + signatures[1] + "\r\n" + strings.Repeat("a", 1024) + "\r\n" +
		"0;chunk-signature=" + signatures[2] + "\r\n" + tail
}

// TestS3_02: signed chunks with and without a trailer. Oracle: the documentation's signature values.
func TestS3_02_DocumentedChunks(t *testing.T) {
	plain := docRequest("PUT", "s3.amazonaws.com", "/examplebucket/chunkObject.txt", "",
		"content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;"+
			"x-amz-storage-class", "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
		"Content-Encoding", "aws-chunked", "Content-Length", "66824", "X-Amz-Storage-Class", "REDUCED_REDUNDANCY",
		"X-Amz-Decoded-Content-Length", "66560", "X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
	plain.ContentLength = 66824
	plainBody := docChunks([3]string{"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
		"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
		"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"}, "\r\n")
	trailer := docRequest("PUT", "s3.amazonaws.com", "/examplebucket/chunkObject.txt", "",
		"content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;"+
			"x-amz-trailer", "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
		"Content-Encoding", "aws-chunked", "X-Amz-Storage-Class", "REDUCED_REDUNDANCY", "X-Amz-Trailer",
		"x-amz-checksum-crc32c", "X-Amz-Decoded-Content-Length", "66560",
		"X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
	trailerBody := docChunks([3]string{"b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
		"1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
		"2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"},
		"x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:"+
			"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n")
	if len(plainBody) != 66824 {
		t.Fatalf("wire length %d", len(plainBody))
	}
	v := testVerifier(docNow)
	for _, c := range []struct {
		r    *Request
		body string
	}{{plain, plainBody}, {trailer, trailerBody},
		{trailer, strings.Replace(trailerBody, "/Q==\r\n", "/Q==\n\r\n", 1)}, // the form of the documentation
		{plain, strings.TrimSuffix(plainBody, "\r\n")}} {                     // last line end missing
		id, err := v.Verify(context.Background(), c.r)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := ParseBodySpec(c.r, id)
		if err != nil {
			t.Fatal(err)
		}
		b := NewBody(spec, id, strings.NewReader(c.body))
		got, err := io.ReadAll(b)
		if err != nil || string(got) != strings.Repeat("a", 66560) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		d, err := ParseDeclared(c.r.Header)
		if err != nil {
			t.Fatal(err)
		}
		g := NewDigester(d, DigestOptions{})
		g.Write(got)
		if _, err := g.Finish(Final{Trailer: b.Trailer()}); err != nil {
			t.Fatal(err)
		}
	}
}

// chunkEncoder signs the chunks of a body in an independent way, from the documentation.
type chunkEncoder struct {
	key         []byte
	date, scope string
	previous    string
}

func newChunkEncoder(id *Identity) *chunkEncoder {
	h := func(k []byte, s string) []byte {
		m := hmac.New(sha256.New, k)
		m.Write([]byte(s))
		return m.Sum(nil)
	}
	date := id.Time.Format("20060102T150405Z")
	k := h(h(h(h([]byte("AWS4"+testSecret), date[:8]), id.Region), "s3"), "aws4_request")
	return &chunkEncoder{k, date, date[:8] + "/" + id.Region + "/s3/aws4_request", string(id.chain.seed[:])}
}

func (c *chunkEncoder) sign(algorithm string, hashes ...string) string {
	m := hmac.New(sha256.New, c.key)
	m.Write([]byte(strings.Join(append([]string{algorithm, c.date, c.scope, c.previous}, hashes...), "\n")))
	c.previous = hex.EncodeToString(m.Sum(nil))
	return c.previous
}

func hexSHA(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }

func encodeBody(mode PayloadMode, id *Identity, payload string, sizes []int, trailers string) string {
	var out strings.Builder
	enc := newChunkEncoder(id)
	chunk := func(data string) {
		fmt.Fprintf(&out, "%x", len(data))
		if mode.signedChunks() {
			out.WriteString(";chunk-signature=" + enc.sign("AWS4-HMAC-SHA256-PAYLOAD", hexSHA(""), hexSHA(data)))
		}
		out.WriteString("\r\n")
		if data != "" {
			out.WriteString(data + "\r\n")
		}
	}
	for i := 0; payload != ""; i++ {
		n := min(len(payload), sizes[i%len(sizes)])
		chunk(payload[:n])
		payload = payload[n:]
	}
	chunk("")
	out.WriteString(strings.ReplaceAll(trailers, "\n", "\r\n"))
	if mode == PayloadChunkedTrailer {
		out.WriteString("x-amz-trailer-signature:" + enc.sign("AWS4-HMAC-SHA256-TRAILER", hexSHA(trailers)) + "\r\n")
	}
	out.WriteString("\r\n")
	return out.String()
}

const (
	hashChunked  = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	hashUnsigned = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

func modeHash(m PayloadMode) string {
	switch m {
	case PayloadUnsigned:
		return unsignedPayload
	case PayloadChunked:
		return hashChunked
	case PayloadChunkedTrailer:
		return hashChunked + "-TRAILER"
	}
	return hashUnsigned
}

// signedPut returns a verified PUT and its identity.
func signedPut(t testing.TB, hash string, contentLength int64, header ...string) (*Request, *Identity) {
	t.Helper()
	r, err := http.NewRequest("PUT", "http://s3.example.com/bucket/key", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	o := SignOptions{Credentials: Credentials{AccessKey: testKey, SecretKey: testSecret}, Region: "us-east-1",
		Time: testNow, PayloadHash: hash}
	if err := NewSigner().Sign(r, o); err != nil {
		t.Fatal(err)
	}
	req := serverSide(r)
	req.ContentLength = contentLength
	if contentLength >= 0 {
		req.Header.Set("Content-Length", fmt.Sprint(contentLength))
	}
	id, err := testVerifier(testNow).Verify(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return req, id
}

func randomPayload(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

func crc32Trailer(payload string) string {
	sum := crc32.ChecksumIEEE([]byte(payload))
	return "x-amz-checksum-crc32:" + base64.StdEncoding.EncodeToString(
		[]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}) + "\n"
}

var streamingModes = []PayloadMode{PayloadChunked, PayloadChunkedTrailer, PayloadChunkedUnsignedTrailer}

// TestS3_01/02/03: every aws-chunked form, any chunk sizes, any pieces from the network, any buffers.
func TestS3_01_ChunkedRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for i := range 600 {
		mode := streamingModes[i%3]
		payload := randomPayload(rnd, []int{0, 1, rnd.IntN(100), rnd.IntN(20000), 70000}[rnd.IntN(5)])
		trailers, header := "", []string{"X-Amz-Decoded-Content-Length", fmt.Sprint(len(payload))}
		if mode.hasTrailer() {
			trailers = crc32Trailer(payload)
			header = append(header, "X-Amz-Trailer", "x-amz-checksum-crc32")
		}
		r, id := signedPut(t, modeHash(mode), -1, header...)
		wire := encodeBody(mode, id, payload, []int{1 + rnd.IntN(9000), 1 + rnd.IntN(9000), 8192}, trailers)
		spec, err := ParseBodySpec(r, id)
		if err != nil {
			t.Fatal(err)
		}
		var src io.Reader = strings.NewReader(wire)
		switch rnd.IntN(4) {
		case 0:
			src = iotest.HalfReader(src)
		case 1:
			src = iotest.DataErrReader(src)
		case 2:
			if len(wire) < 30000 {
				src = iotest.OneByteReader(src)
			}
		}
		b := NewBody(spec, id, src)
		if b.Size() != int64(len(payload)) {
			t.Fatal("size", b.Size())
		}
		var got []byte
		if rnd.IntN(2) == 0 {
			got = make([]byte, len(payload)) // stops at Size, then Finish
			if _, err = io.ReadFull(b, got); err == nil {
				err = b.Finish()
			}
		} else {
			got, err = io.ReadAll(b)
		}
		if err != nil || string(got) != payload {
			t.Fatalf("case %d mode %d: %d of %d bytes, %v", i, mode, len(got), len(payload), err)
		}
		d, err := ParseDeclared(r.Header)
		if err != nil {
			t.Fatal(err)
		}
		g := NewDigester(d, DigestOptions{MD5: true})
		g.Write(got)
		if _, err := g.Finish(Final{Trailer: b.Trailer()}); err != nil {
			t.Fatal(err)
		}
	}
}

// Any byte of a signed body changed, removed or cut off: it fails and never ends well.
func TestTamperedChunks(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	payload := randomPayload(rnd, 700)
	for _, mode := range []PayloadMode{PayloadChunked, PayloadChunkedTrailer} {
		trailers, header := "", []string{"X-Amz-Decoded-Content-Length", "700"}
		if mode.hasTrailer() {
			trailers = crc32Trailer(payload)
			header = append(header, "X-Amz-Trailer", "x-amz-checksum-crc32")
		}
		r, id := signedPut(t, modeHash(mode), -1, header...)
		wire := encodeBody(mode, id, payload, []int{300}, trailers)
		spec, err := ParseBodySpec(r, id)
		if err != nil {
			t.Fatal(err)
		}
		read := func(wire []byte) error {
			b := NewBody(spec, id, bytes.NewReader(wire))
			got, err := io.ReadAll(b)
			if err == nil && string(got) != payload {
				t.Fatal("other bytes accepted")
			}
			if err == nil && b.Finish() != nil {
				t.Fatal("Finish fails after io.EOF")
			}
			if err != nil && b.Finish() == nil {
				t.Fatal("Finish succeeds after an error")
			}
			return err
		}
		accepted := 0
		for i := range len(wire) {
			for _, flip := range []byte{1, 0x80, 0x20} {
				w := []byte(wire)
				if w[i] ^= flip; read(w) == nil {
					accepted++
					// Only framing that means the same may pass: the case of a hex size or of a trailer name,
					// and surplus line ends at the end.
					if !strings.EqualFold(string(w), wire) && i < len(wire)-4 {
						t.Errorf("mode %d: byte %d (%q) flipped by %x is accepted", mode, i, wire[i], flip)
					}
				}
			}
			if err := read([]byte(wire[:i])); err == nil && i < len(wire)-4 {
				t.Errorf("mode %d: cut at %d of %d is accepted", mode, i, len(wire))
			}
		}
		if accepted > 120 {
			t.Errorf("mode %d: %d flips accepted", mode, accepted)
		}
	}
}

func TestBodyRefusals(t *testing.T) {
	sizes := func(n string) []string { return []string{"X-Amz-Decoded-Content-Length", n} }
	trailing := func(n string) []string {
		return append(sizes(n), "X-Amz-Trailer", "x-amz-checksum-crc32")
	}
	abc := "x-amz-checksum-crc32:NSRBwg==\r\n"
	for _, c := range []struct {
		name, hash string
		length     int64
		header     []string
		body       string
		want       Code // "" accepted
	}{
		{"unsigned", unsignedPayload, 3, nil, "abc", ""},
		{"unsigned short", unsignedPayload, 4, nil, "abc", IncompleteBody},
		{"unsigned long", unsignedPayload, 2, nil, "abc", InvalidRequest},
		{"unsigned, no length", unsignedPayload, -1, nil, "abc", ""},
		{"unsigned, chunked transfer, decoded length", unsignedPayload, -1, sizes("3"), "abc", ""},
		{"literal", hexSHA("abc"), 3, nil, "abc", ""},
		{"literal upper case", strings.ToUpper(hexSHA("abc")), 3, nil, "abc", ""},
		{"literal wrong", hexSHA("abd"), 3, nil, "abc", XAmzContentSHA256Mismatch},
		{"literal empty", emptySHA256, 0, nil, "", ""},
		{"literal of empty, no length", emptySHA256, -1, nil, "x", XAmzContentSHA256Mismatch},
		{"no such mode", "STREAMING-SOMETHING", 3, nil, "abc", InvalidArgument},
		{"V4A chunks", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", 3, nil, "abc", InvalidRequest},
		{"no decoded length", hashUnsigned, -1, nil, "0\r\n\r\n", MissingContentLength},
		{"bad decoded length", hashUnsigned, -1, sizes("-1"), "0\r\n\r\n", InvalidArgument},
		{"huge decoded length", hashUnsigned, -1, sizes("99999999999999999"), "0\r\n\r\n", InvalidArgument},
		{"decoded above wire", hashUnsigned, 5, sizes("3000"), "0\r\n\r\n", IncompleteBody},
		{"chunks", hashUnsigned, -1, sizes("3"), "3\r\nabc\r\n0\r\n\r\n", ""},
		{"chunks zero padded", hashUnsigned, -1, sizes("3"), "0000000000000003\r\nabc\r\n0\r\n\r\n", ""},
		{"chunks, extension", hashUnsigned, -1, sizes("3"), "3;a=b\r\nabc\r\n0\r\n\r\n", ""},
		{"chunks, trailer", hashUnsigned, -1, trailing("3"), "3\r\nabc\r\n0\r\n" + abc + "\r\n", ""},
		{"trailer missing", hashUnsigned, -1, trailing("3"), "3\r\nabc\r\n0\r\n\r\n", MalformedTrailer},
		{"trailer cut", hashUnsigned, -1, trailing("3"), "3\r\nabc\r\n0\r\n", MalformedTrailer},
		{"trailer half", hashUnsigned, -1, trailing("3"), "3\r\nabc\r\n0\r\n" + abc[:9], IncompleteBody},
		{"trailer twice", hashUnsigned, -1, trailing("3"), "3\r\nabc\r\n0\r\n" + abc + abc + "\r\n", MalformedTrailer},
		{"trailer not announced", hashUnsigned, -1, sizes("3"), "3\r\nabc\r\n0\r\n" + abc + "\r\n", MalformedTrailer},
		{"trailer too long", hashUnsigned, -1, trailing("0"), "0\r\nx:" + strings.Repeat("a", 5000), InvalidRequest},
		{"trailer announced without mode", unsignedPayload, 3, []string{"X-Amz-Trailer", "x-amz-checksum-crc32"},
			"abc", InvalidRequest},
		{"too short", hashUnsigned, -1, sizes("4"), "3\r\nabc\r\n0\r\n\r\n", IncompleteBody},
		{"too long", hashUnsigned, -1, sizes("2"), "3\r\nabc\r\n0\r\n\r\n", InvalidRequest},
		{"one chunk too many", hashUnsigned, -1, sizes("3"), "3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", InvalidRequest},
		{"garbage behind", hashUnsigned, -1, sizes("3"), "3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\n", InvalidRequest},
		{"cut in payload", hashUnsigned, -1, sizes("3"), "3\r\nab", IncompleteBody},
		{"cut in header", hashUnsigned, -1, sizes("3"), "3", IncompleteBody},
		{"empty wire", hashUnsigned, -1, sizes("0"), "", IncompleteBody},
		{"no line end after chunk", hashUnsigned, -1, sizes("6"), "3\r\nabc3\r\ndef\r\n0\r\n\r\n", InvalidRequest},
		{"bare LF", hashUnsigned, -1, sizes("3"), "3\nabc\r\n0\r\n\r\n", InvalidRequest},
		{"negative size", hashUnsigned, -1, sizes("3"), "-3\r\nabc\r\n0\r\n\r\n", InvalidRequest},
		{"size overflow", hashUnsigned, -1, sizes("3"), "ffffffffffffffff\r\nabc", InvalidRequest},
		{"size too wide", hashUnsigned, -1, sizes("3"), strings.Repeat("0", 17) + "3\r\nabc", InvalidRequest},
		{"line too long", hashUnsigned, -1, sizes("3"), "3;a=" + strings.Repeat("b", 600) + "\r\nabc", InvalidRequest},
		{"endless line", hashUnsigned, -1, sizes("3"), strings.Repeat("b", 1<<20), InvalidRequest},
		{"no signature", hashChunked, -1, sizes("3"), "3\r\nabc\r\n0\r\n\r\n", SignatureDoesNotMatch},
		{"wrong signature", hashChunked, -1, sizes("3"),
			"3;chunk-signature=" + emptySHA256 + "\r\nabc\r\n0\r\n\r\n", SignatureDoesNotMatch},
		{"two signatures", hashChunked, -1, sizes("3"),
			"3;chunk-signature=a;chunk-signature=b\r\nabc\r\n0\r\n\r\n", InvalidRequest},
	} {
		r, id := signedPut(t, c.hash, c.length, c.header...)
		spec, err := ParseBodySpec(r, id)
		if err == nil {
			_, err = io.ReadAll(NewBody(spec, id, strings.NewReader(c.body)))
		}
		if c.want == "" && err != nil || c.want != "" && !IsCode(err, c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestS3_18: neither Content-Length nor a decoded length.
func TestS3_18_NoLength(t *testing.T) {
	r, id := signedPut(t, unsignedPayload, -1)
	spec, err := ParseBodySpec(r, id)
	if err != nil || spec.Size >= 0 {
		t.Fatalf("size %d, %v", spec.Size, err)
	}
	r.ContentLength = 0 // what net/http's server says without Content-Length
	if spec, err = ParseBodySpec(r, id); err != nil || spec.Size >= 0 {
		t.Fatalf("size %d, %v", spec.Size, err)
	}
}

// Tiny chunks cost more than they carry: they are refused before long.
func TestFramingIsBounded(t *testing.T) {
	const n = 4 << 20
	r, id := signedPut(t, hashUnsigned, -1, "X-Amz-Decoded-Content-Length", fmt.Sprint(n))
	spec, err := ParseBodySpec(r, id)
	if err != nil {
		t.Fatal(err)
	}
	src := strings.NewReader(strings.Repeat("1;x="+strings.Repeat("y", 20)+"\r\na\r\n", n))
	got, err := io.Copy(io.Discard, NewBody(spec, id, src))
	if !IsCode(err, InvalidChunkSize) || got > n/8 {
		t.Fatalf("%d bytes, %v", got, err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

type timeoutError struct{ error }

func (timeoutError) Timeout() bool   { return true }
func (e timeoutError) Unwrap() error { return e.error }

func TestSourceErrors(t *testing.T) {
	r, id := signedPut(t, unsignedPayload, 9)
	spec, err := ParseBodySpec(r, id)
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("reset")
	b := NewBody(spec, id, io.MultiReader(strings.NewReader("abc"), failing{cause}))
	if _, err := io.ReadAll(b); !errors.Is(err, cause) || !errors.Is(b.Finish(), cause) {
		t.Error(err, b.Finish())
	}
	b = NewBody(spec, id, failing{timeoutError{cause}})
	if _, err := io.ReadAll(b); !IsCode(err, RequestTimeout) || !errors.Is(err, cause) {
		t.Error(err)
	}
	b = NewBody(spec, id, failing{io.ErrUnexpectedEOF})
	if _, err := io.ReadAll(b); !IsCode(err, IncompleteBody) {
		t.Error(err)
	}
	b = NewBody(spec, id, strings.NewReader("abcabcabc"))
	if b.Finish() == nil {
		t.Error("Finish before the bytes were read succeeds")
	}
	b = NewBody(spec, id, failing{nil})
	if _, err := io.ReadAll(b); !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
}

// TestS3_03: aws-chunked is not stored.
func TestS3_03_StripAWSChunked(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "gzip": "gzip", "aws-chunked": "", "aws-chunked,gzip": "gzip", "gzip, aws-chunked": "gzip",
		"AWS-Chunked": "", "br, aws-chunked, gzip": "br,gzip", "br, gzip": "br, gzip",
	} {
		if got := StripAWSChunked(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
