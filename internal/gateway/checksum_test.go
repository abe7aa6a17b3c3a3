package gateway_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/minio/crc64nvme"
	"github.com/zeebo/xxh3"

	"github.com/penstock-store/penstock/internal/s3"
)

// checksumOracle computes S3's checksums with the libraries alone, as base64.
type checksumOracle struct {
	name string
	sum  func(p []byte) []byte
	crc  bool // FULL_OBJECT is possible for a multipart upload
}

func big64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
func big32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func checksumOracles() []checksumOracle {
	return []checksumOracle{
		{"CRC32", func(p []byte) []byte { return big32(crc32.ChecksumIEEE(p)) }, true},
		{"CRC32C", func(p []byte) []byte { return big32(crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli))) }, true},
		{"CRC64NVME", func(p []byte) []byte { return big64(crc64nvme.Checksum(p)) }, true},
		{"SHA1", func(p []byte) []byte { s := sha1.Sum(p); return s[:] }, false},
		{"SHA256", func(p []byte) []byte { s := sha256.Sum256(p); return s[:] }, false},
		{"SHA512", func(p []byte) []byte { s := sha512.Sum512(p); return s[:] }, false},
		{"MD5", func(p []byte) []byte { s := md5.Sum(p); return s[:] }, false},
		{"XXHASH64", func(p []byte) []byte { return big64(xxhash.Sum64(p)) }, false},
		{"XXHASH3", func(p []byte) []byte { return big64(xxh3.Hash(p)) }, false},
		{"XXHASH128", func(p []byte) []byte {
			h := xxh3.Hash128(p)
			return append(big64(h.Hi), big64(h.Lo)...)
		}, false},
	}
}

func (o checksumOracle) header() string       { return "x-amz-checksum-" + strings.ToLower(o.name) }
func (o checksumOracle) text(p []byte) string { return b64(o.sum(p)) }

// composite is the checksum of the checksums of parts.
func (o checksumOracle) composite(parts [][]byte) string {
	var all []byte
	for _, p := range parts {
		all = append(all, o.sum(p)...)
	}
	return fmt.Sprintf("%s-%d", o.text(all), len(parts))
}

// Encodings of a payload with a checksum.
const (
	inHeader         = "header"
	inSignedTrailer  = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
	inPlainTrailer   = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	chunkOfTestBytes = 64 << 10
)

// putWithSum sends a payload with a checksum in a header or in a trailer, signed chunk by chunk by code of its own.
func (n *node) putWithSum(path string, p []byte, header, value, encoding string) answer {
	n.t.Helper()
	if encoding == inHeader {
		return sendPut(n, path, p, map[string]string{header: value})
	}
	req, err := http.NewRequest(http.MethodPut, n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Content-Encoding", "aws-chunked")
	req.Header.Set("X-Amz-Decoded-Content-Length", fmt.Sprint(len(p)))
	req.Header.Set("X-Amz-Trailer", header)
	err = n.signer.Sign(req, s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: rootID, SecretKey: rootSecret}, Region: testRegion, Time: time.Now(),
		PayloadHash: encoding,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	var body []byte
	if encoding == inSignedTrailer {
		body = signedChunks(req, p, header, value)
	} else {
		for rest := p; len(rest) > 0; {
			piece := rest[:min(len(rest), chunkOfTestBytes)]
			rest = rest[len(piece):]
			body = fmt.Appendf(body, "%x\r\n%s\r\n", len(piece), piece)
		}
		body = fmt.Appendf(body, "0\r\n%s:%s\r\n\r\n", header, value)
	}
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp, err := n.client.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, text, resp.ContentLength}
}

// signedChunks frames a payload by the chain of signatures of the Amazon S3 API reference.
func signedChunks(req *http.Request, p []byte, header, value string) []byte {
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	_, previous, _ := strings.Cut(req.Header.Get("Authorization"), "Signature=")
	date := req.Header.Get("X-Amz-Date")
	key := mac(mac(mac(mac([]byte("AWS4"+rootSecret), date[:8]), testRegion), "s3"), "aws4_request")
	scope := date[:8] + "/" + testRegion + "/s3/aws4_request"
	hexSHA := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	var body []byte
	for rest := p; ; {
		piece := rest[:min(len(rest), chunkOfTestBytes)]
		rest = rest[len(piece):]
		previous = hex.EncodeToString(mac(key, strings.Join([]string{"AWS4-HMAC-SHA256-PAYLOAD", date, scope, previous,
			hexSHA(nil), hexSHA(piece)}, "\n")))
		body = fmt.Appendf(body, "%x;chunk-signature=%s\r\n%s", len(piece), previous, piece)
		if len(piece) == 0 {
			break
		}
		body = append(body, "\r\n"...)
	}
	previous = hex.EncodeToString(mac(key, strings.Join([]string{"AWS4-HMAC-SHA256-TRAILER", date, scope, previous,
		hexSHA([]byte(header + ":" + value + "\n"))}, "\n")))
	return fmt.Appendf(body, "%s:%s\r\nx-amz-trailer-signature:%s\r\n\r\n", header, value, previous)
}

// wantSum checks what HEAD and GET tell of an object.
func (n *node) wantSum(path, header, value, kind string) {
	n.t.Helper()
	for _, method := range []string{"HEAD", "GET"} {
		got := n.send(request{method: method, path: path, header: map[string]string{"X-Amz-Checksum-Mode": "ENABLED"}})
		if got.header.Get(header) != value || got.header.Get("X-Amz-Checksum-Type") != kind {
			n.t.Errorf("%s %s: %s %q of type %q, want %q %q", method, path, header, got.header.Get(header),
				got.header.Get("X-Amz-Checksum-Type"), value, kind)
		}
		plain := n.send(request{method: method, path: path})
		for name := range plain.header {
			if strings.HasPrefix(name, "X-Amz-Checksum-") {
				n.t.Errorf("%s %s: %s, and nobody asked", method, path, name)
			}
		}
	}
}

// partList lists the parts of the upload whose part 1 has that path.
func (n *node) partList(part string) answer {
	n.t.Helper()
	return n.send(request{method: "GET", path: strings.Replace(part, "partNumber=1&", "", 1)})
}

// TestS3_04_EveryAlgorithmEverywhere: PutObject and UploadPart with every algorithm in a header, in a signed and
// in an unsigned trailer. A right value is stored and answered; a wrong one is BadDigest, one that is no
// checksum InvalidRequest, and neither stores anything.
func TestS3_04_EveryAlgorithmEverywhere(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "sums")
	p := randomBytes(150_000)
	for _, o := range checksumOracles() {
		for i, encoding := range []string{inHeader, inSignedTrailer, inPlainTrailer} {
			path := fmt.Sprintf("/sums/%s-%d", o.name, i)
			part := path + "-m?partNumber=1&uploadId=" +
				n.newUpload(path+"-m", map[string]string{"X-Amz-Checksum-Algorithm": o.name})
			for _, target := range []string{path, part} {
				wantError(t, n.putWithSum(target, p, o.header(), o.text(p[1:]), encoding), 400, "BadDigest")
				wantError(t, n.putWithSum(target, p, o.header(), "bad", encoding), 400, "InvalidRequest")
				if target == path && n.send(request{method: "HEAD", path: path}).status != 404 ||
					target == part && bytes.Contains(n.partList(part).body, []byte("<Part>")) {
					t.Fatalf("%s: stored with a wrong %s", target, o.name)
				}
				got := n.putWithSum(target, p, o.header(), o.text(p), encoding)
				if got.status != 200 || got.header.Get(o.header()) != o.text(p) {
					t.Fatalf("%s by %s: %d %s %v", target, encoding, got.status, got.body, got.header)
				}
				if target == path {
					n.wantSum(path, o.header(), o.text(p), "FULL_OBJECT")
				}
			}
			listed := n.partList(part)
			if !bytes.Contains(listed.body, []byte("<Checksum"+o.name+">"+o.text(p)+"</Checksum"+o.name+">")) ||
				bytes.Count(listed.body, []byte("<Part>")) != 1 {
				t.Errorf("%s: %s", part, listed.body)
			}
		}
	}
}

// multipartCase is one way to make an object of three parts.
type multipartCase struct {
	oracle    checksumOracle
	kind      string // as asked for; "" is the default
	declare   bool   // parts and completion carry checksums
	wantKind  string
	wantWhole string
}

func multipartCases(parts [][]byte, whole []byte) (all []multipartCase) {
	for _, o := range checksumOracles() {
		for _, declare := range []bool{false, true} {
			c := multipartCase{oracle: o, declare: declare}
			if o.name != "CRC64NVME" {
				c.wantKind, c.wantWhole = "COMPOSITE", o.composite(parts)
				all = append(all, c)
				c.kind = "COMPOSITE"
				all = append(all, c)
			}
			if o.crc {
				c.kind, c.wantKind, c.wantWhole = "FULL_OBJECT", "FULL_OBJECT", o.text(whole)
				all = append(all, c)
			}
		}
	}
	return all
}

// TestS3_05_MultipartChecksums: uploads with every algorithm and type; the second part is copied from another object.
// With and without checksums of parts and of the whole; wrong ones complete nothing.
func TestS3_05_MultipartChecksums(t *testing.T) {
	n := newNodeOf(t, 1000)
	makeBucket(t, n.root(), "multi")
	parts := [][]byte{randomBytes(70_000), randomBytes(90_007), randomBytes(11)}
	whole := bytes.Join(parts, nil)
	sendPut(n, "/multi/source", append([]byte("xyz"), parts[1]...), nil)
	for i, c := range multipartCases(parts, whole) {
		path := fmt.Sprintf("/multi/%d", i)
		create := map[string]string{"X-Amz-Checksum-Algorithm": c.oracle.name}
		if c.kind != "" {
			create["X-Amz-Checksum-Type"] = c.kind
		}
		id := n.newUpload(path, create)
		doc := func(wrong int) string {
			var b strings.Builder
			for k, p := range parts {
				fmt.Fprintf(&b, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag>", k+1, etagOf(p))
				if c.declare {
					if k+1 == wrong {
						p = p[1:]
					}
					fmt.Fprintf(&b, "<Checksum%s>%s</Checksum%[1]s>", c.oracle.name, c.oracle.text(p))
				}
				b.WriteString("</Part>")
			}
			return "<CompleteMultipartUpload>" + b.String() + "</CompleteMultipartUpload>"
		}
		for k, p := range parts {
			target := fmt.Sprintf("%s?partNumber=%d&uploadId=%s", path, k+1, id)
			header := map[string]string{}
			if k == 1 {
				got := n.send(request{method: "PUT", path: target, header: map[string]string{
					"X-Amz-Copy-Source": "multi/source", "X-Amz-Copy-Source-Range": fmt.Sprintf("bytes=3-%d", len(p)+2)}})
				if !bytes.Contains(got.body, []byte(">"+c.oracle.text(p)+"</Checksum"+c.oracle.name)) { // TestS3_09
					t.Fatalf("%+v: copied part: %d %s", c, got.status, got.body)
				}
				continue
			}
			if c.declare {
				header[c.oracle.header()] = c.oracle.text(p)
			}
			if got := sendPut(n, target, p, header); got.status != 200 || got.header.Get(c.oracle.header()) != c.oracle.text(p) {
				t.Fatalf("%s: %d %s", target, got.status, got.body)
			}
		}
		complete := func(doc string, header map[string]string) answer {
			return n.send(request{method: "POST", path: path + "?uploadId=" + id, header: header,
				body: strings.NewReader(doc), length: int64(len(doc))})
		}
		other := map[string]string{"COMPOSITE": "FULL_OBJECT", "FULL_OBJECT": "COMPOSITE"}[c.wantKind]
		wantError(t, complete(doc(0), map[string]string{"X-Amz-Checksum-Type": other}), 400, "InvalidRequest")
		wantError(t, complete(doc(0), map[string]string{"X-Amz-Mp-Object-Size": fmt.Sprint(len(whole) - 1)}), 400,
			"InvalidRequest")
		wantError(t, complete(doc(0), map[string]string{c.oracle.header(): "bad"}), 400, "InvalidRequest")
		wrongWhole := c.oracle.text(whole[1:])
		if c.wantKind == "COMPOSITE" {
			wrongWhole += "-3"
		}
		wantError(t, complete(doc(0), map[string]string{c.oracle.header(): wrongWhole}), 400, "BadDigest")
		header := map[string]string{}
		if c.declare {
			wantError(t, complete(doc(2), nil), 400, "InvalidPart")
			header = map[string]string{c.oracle.header(): c.wantWhole, "X-Amz-Checksum-Type": c.wantKind,
				"X-Amz-Mp-Object-Size": fmt.Sprint(len(whole))}
		}
		if got := n.send(request{method: "HEAD", path: path}); got.status != 404 {
			t.Fatalf("%+v: completed by a wrong request", c)
		}
		got := complete(doc(0), header)
		if got.status != 200 || !bytes.Contains(got.body, []byte(">"+c.wantWhole+"</Checksum"+c.oracle.name)) ||
			!bytes.Contains(got.body, []byte("<ChecksumType>"+c.wantKind+"<")) {
			t.Fatalf("%s %s: %d %s", c.oracle.name, c.kind, got.status, got.body)
		}
		n.wantSum(path, c.oracle.header(), c.wantWhole, c.wantKind)
		one := n.send(request{method: "GET", path: path + "?partNumber=3",
			header: map[string]string{"X-Amz-Checksum-Mode": "ENABLED"}})
		if one.header.Get(c.oracle.header()) != c.oracle.text(parts[2]) || !bytes.Equal(one.body, parts[2]) ||
			one.header.Get("X-Amz-Checksum-Type") != c.wantKind {
			t.Errorf("%s %s: part: %d %v", c.oracle.name, c.kind, one.status, one.header)
		}
		n.copied(path, c, whole)
		n.send(request{method: "DELETE", path: path})
	}
}

// copied checks the checksums of a copy: it has those of the whole.
func (n *node) copied(path string, c multipartCase, whole []byte) {
	n.t.Helper()
	source := strings.TrimPrefix(path, "/")
	got := n.send(request{method: "PUT", path: "/multi/copy", header: map[string]string{"X-Amz-Copy-Source": source}})
	if got.status != 200 || !bytes.Contains(got.body, []byte(c.oracle.text(whole)+"</Checksum"+c.oracle.name)) {
		n.t.Errorf("%s %s: copy: %d %s", c.oracle.name, c.kind, got.status, got.body)
	}
	n.wantSum("/multi/copy", c.oracle.header(), c.oracle.text(whole), "FULL_OBJECT")
	if head := n.send(request{method: "HEAD", path: "/multi/copy"}); head.header.Get("Etag") != etagOf(whole) {
		n.t.Errorf("copy: ETag %s", head.header.Get("Etag"))
	}
}

// TestCopyWithAlgorithm: x-amz-checksum-algorithm of a copy, also onto itself, and a copy that keeps what was.
func TestCopyWithAlgorithm(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "copies")
	p := randomBytes(100_000)
	for _, o := range checksumOracles() {
		sendPut(n, "/copies/src", p, nil)
		header := map[string]string{"X-Amz-Copy-Source": "copies/src", "X-Amz-Checksum-Algorithm": o.name}
		for _, path := range []string{"/copies/dst", "/copies/src"} {
			got := n.send(request{method: "PUT", path: path, header: header})
			if got.status != 200 || !bytes.Contains(got.body, []byte(">"+o.text(p)+"</Checksum"+o.name)) {
				t.Fatalf("%s %s: %d %s", o.name, path, got.status, got.body)
			}
			n.wantSum(path, o.header(), o.text(p), "FULL_OBJECT")
		}
		keep := map[string]string{"X-Amz-Copy-Source": "copies/dst"}
		got := n.send(request{method: "PUT", path: "/copies/kept", header: keep})
		if !bytes.Contains(got.body, []byte("<ChecksumType>FULL_OBJECT<")) {
			t.Errorf("%s", got.body)
		}
		n.wantSum("/copies/kept", o.header(), o.text(p), "FULL_OBJECT")
	}
	wantError(t, n.send(request{method: "PUT", path: "/copies/dst", header: map[string]string{
		"X-Amz-Copy-Source": "copies/src", "X-Amz-Checksum-Algorithm": "CRC16"}}), 400, "InvalidRequest")
}
