package hostile

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

// Tokens of other clients' grammars.
const (
	dcToken = "00007f7c80000000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0a000102"
	rcToken = "rc:00112233445566778899aabbccddeeff:00007f7c80000000:00400000:01f2e973"
)

// TestForeignTokens: tokens that no fabric here takes are declined, and nothing looks like success.
func TestForeignTokens(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	hipToken := token.Descriptor{
		Kind: token.HipObj, HipRC: true, QPN: 7, RKey: 0x01f2e973, Addr: 1 << 30, Size: 1 << 20,
	}.Encode()
	n.secret(dcToken[27:35], hipToken[40:])
	for what, c := range map[string]struct{ token, reason, status string }{
		"dc":            {dcToken, "no-rail", ""},
		"dc in capital": {strings.ToUpper(dcToken) + ";", "no-rail", ""},
		"dc, narrowed":  {dcToken + ":00007f7c80000000:0000000000000010", "no-rail", ""},
		"rc":            {rcToken, "no-rail", ""},
		"hipobj":        {hipToken, "unsupported-token", "unsupported"},
	} {
		for _, r := range []request{n.put("/"+bucket+"/foreign", nil), {method: "GET", path: "/" + bucket + "/object"}} {
			a := n.send(r.with(headerToken, c.token))
			n.expectDeclined(what+" "+r.method, a, c.reason)
			if got := a.header.Get("X-Amz-Rdma-Protocol-Status"); got != c.status {
				t.Errorf("%s: protocol status %q", what, got)
			}
		}
		n.expectError(what+" of a key that is not there",
			n.send(request{method: "GET", path: "/" + bucket + "/none"}.with(headerToken, c.token)), 404, "NoSuchKey")
		n.expectError(what+" of no bucket",
			n.send(n.put("/no-bucket/x", nil).with(headerToken, c.token)), 404, "NoSuchBucket")
		a := n.send(request{method: "HEAD", path: "/" + bucket + "/object"}.with(headerToken, c.token))
		if a.status != 200 ||
			a.header.Get("Content-Length") != fmt.Sprint(objectBytes) || a.header.Get("X-Amz-Rdma-Reply") != "" {
			t.Errorf("%s: HEAD %d %v", what, a.status, a.header)
		}
	}
	for _, bad := range []string{
		"", "x", ":", "::::::", "ps1", "ps1:", "ps1:shm:::::", "rc:", "ps1:shm:" + strings.Repeat("0", 10_000),
		dcToken + ":", dcToken[1:] + "g", hipToken + "00", "02" + hipToken[2:], strings.Repeat(":", 500), "\xff\xfe\x80",
		dcToken + ":00007f7c80000000:0000000000400001", dcToken + ":00007f7c7fffffff:0000000000000001",
		"ffffffffffffffff:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0a000102",
	} {
		for _, r := range []request{n.put("/"+bucket+"/foreign", nil), {method: "GET", path: "/" + bucket + "/object"}} {
			n.expectError(fmt.Sprintf("%s %.40q", r.method, bad), n.send(r.with(headerToken, bad)), 400, "InvalidRDMAToken")
		}
	}
	n.settled(before, "afterwards")
	n.absent("foreign")
}

// TestTokenRequests: what a request with a good token may not be.
func TestTokenRequests(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	for _, fabric := range []string{"shm", "tcp"} {
		l := n.attacker(n.root, fabric, objectBytes)
		if fabric == "tcp" {
			go l.obey(func(frame.Header) {})
		}
		tok := l.token(1, 0, 1<<20)
		n.secret(tok)
		put := n.put("/"+bucket+"/tokens", nil).with(headerToken, tok)
		get := l.get("object", tok).with("Range", "bytes=0-9")
		streaming, hashed := put, put
		streaming.hash, hashed.hash = "STREAMING-UNSIGNED-PAYLOAD-TRAILER", strings.Repeat("a", 64)
		withBody := put
		withBody.body = []byte("x")
		unsignedToken := n.put("/"+bucket+"/tokens", nil).plus(headerToken + ": " + tok)
		const deadline = "X-Penstock-Rdma-Deadline-Ms"
		for what, c := range map[string]struct {
			r      request
			status int
			code   string
		}{
			"streaming":           {streaming.with("X-Amz-Decoded-Content-Length", "0"), 400, "InvalidRequest"},
			"hash of a body":      {hashed, 400, "InvalidRequest"},
			"with a body":         {withBody, 400, "InvalidRequest"},
			"with MD5":            {put.with("Content-Md5", "1B2M2Y8AsgTpgAmY7PhCfg=="), 400, "InvalidRequest"},
			"with a trailer":      {put.with("X-Amz-Trailer", "x-amz-checksum-crc32"), 400, "InvalidRequest"},
			"token unsigned":      {unsignedToken, 403, "AccessDenied"},
			"token added":         {put.plus(headerToken + ": " + tok), 403, "SignatureDoesNotMatch"},
			"deadline unsigned":   {put.plus(deadline + ": 1000"), 403, "AccessDenied"},
			"deadline 0":          {get.with(deadline, "0"), 400, "InvalidArgument"},
			"deadline negative":   {get.with(deadline, "-1"), 400, "InvalidArgument"},
			"deadline of words":   {get.with(deadline, "soon"), 400, "InvalidArgument"},
			"deadline absurd":     {get.with(deadline, "99999999999999999999"), 400, "InvalidArgument"},
			"checksum of another": {put.with("X-Amz-Checksum-Crc32c", "AAAAAA=="), 400, "BadDigest"},
			"condition":           {l.get("object", tok).with("If-Match", `"x"`), 412, "PreconditionFailed"},
			"range":               {l.get("object", tok).with("Range", "bytes=99999999999-"), 416, "InvalidRange"},
			"missing":             {l.get("none", tok), 404, "NoSuchKey"},
			"no upload": {n.put("/"+bucket+"/tokens?partNumber=1&uploadId=x", nil).with(
				headerToken, tok), 404, "NoSuchUpload"},
			"another principal": {n.as(n.alice, put), 403, "AccessDenied"},
		} {
			n.expectError(fabric+" "+what, n.send(l.fresh(c.r)), c.status, c.code)
		}
		chunked := l.fresh(put).plus("Transfer-Encoding: chunked")
		chunked.noLength = true
		a, err := n.talk(append(n.raw(chunked), "0\r\n\r\n"...), "PUT")
		if err != nil {
			t.Fatal(err)
		}
		n.expectError(fabric+" chunked", a, 400, "InvalidRequest")
		n.expectDeclined(fabric+" agent", n.send(l.fresh(put).with("X-Amz-Rdma-Agent", "other")), "unsupported-agent")
		n.expectDeclined(fabric+" too small", n.send(l.fresh(l.get("object", tok))), "too-large")
		n.expectDeclined(fabric+" client's key", n.send(
			l.fresh(put).with("X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256")), "encrypted-client-key")
		n.urlTokens(fabric, tok)
		if !bytes.Equal(l.mem.bytes, bytes.Repeat([]byte{0xee}, objectBytes)) {
			t.Errorf("%s: memory was touched", fabric)
		}
		l.close()
	}
	n.settled(before, "afterwards")
	n.absent("tokens")
}

// urlTokens: a presigner moves headers into the query. A token there stores nothing and moves nothing.
func (n *node) urlTokens(fabric, tok string) {
	n.t.Helper()
	for method, key := range map[string]string{"PUT": "tokens", "GET": "object"} {
		u := n.presigned(&http.Request{Method: method, Host: n.host, URL: &url.URL{Scheme: "http", Host: n.host,
			Path: "/" + bucket + "/" + key, RawQuery: "X-Amz-Rdma-Token=" + url.QueryEscape(tok)}}, time.Now())
		raw := method + " " + u.RequestURI() + " HTTP/1.1\r\nHost: " + n.host + "\r\nContent-Length: 0\r\n\r\n"
		a, err := n.talk([]byte(raw), method)
		if err != nil {
			n.t.Fatal(err)
		}
		n.expectError(fabric+" token in the URL", a, 400, "InvalidRDMAToken")
	}
}

// TestEmptyPayloads: L = 0 is answered without a fabric.
func TestEmptyPayloads(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	n.expectStatus(200, n.send(n.put("/"+bucket+"/empty", nil)))
	for _, fabric := range []string{"shm", "tcp"} {
		l := n.attacker(n.root, fabric, 1<<20)
		for _, r := range []request{
			l.get("empty", l.token(1, 0, 1<<20)), l.get("empty", l.token(1, 0, 0)),
			n.put("/"+bucket+"/empty", nil).with(headerToken, l.token(1, 5, 0)),
		} {
			a := n.send(r)
			if a.status != 200 || a.header.Get("X-Amz-Rdma-Reply") != "200" ||
				a.header.Get("X-Amz-Rdma-Bytes-Transferred") != "0" {
				t.Errorf("%s %s: %d %v", fabric, r.method, a.status, a.header)
			}
		}
		l.close()
	}
	n.expectStatus(204, n.send(request{method: "DELETE", path: "/" + bucket + "/empty"}))
	n.settled(before, "afterwards")
}

// TestForgedRecords: objects whose payload is a drive's own records, byte for byte, aligned as records are.
// After the index is lost, the scan finds what was written and nothing that was forged.
func TestForgedRecords(t *testing.T) {
	n := startNode(t)
	small := pattern(3, 200_000)
	n.expectStatus(200, n.send(n.put("/"+bucket+"/small", small)))
	n.stop()
	drive := n.config.Drives[0]
	segments, err := filepath.Glob(filepath.Join(drive, "*", "*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("segments: %v %v", segments, err)
	}
	image, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	n.open()
	// The payload of the first record of this size lies on a unit; so do the records inside it.
	forged := image[:min(len(image), 32<<20)]
	n.expectStatus(200, n.send(n.put("/"+bucket+"/forged", forged)))
	n.expectStatus(204, n.send(request{method: "DELETE", path: "/" + bucket + "/small"}))
	records := n.metrics()
	n.stop()
	if err := os.RemoveAll(filepath.Join(drive, "index")); err != nil {
		t.Fatal(err)
	}
	n.open()
	for name, v := range n.metrics() {
		if strings.HasPrefix(name, "penstock_drive_records") && strings.Contains(name, "live") && v > records[name]+1 {
			t.Errorf("%s: %v after the scan, %v before", name, v, records[name])
		}
	}
	a := n.send(request{method: "GET", path: "/" + bucket + "/forged"})
	if a.status != 200 || !bytes.Equal(a.body, forged) {
		t.Errorf("the forged object: %d, %d bytes", a.status, len(a.body))
	}
	a = n.send(request{method: "GET", path: "/" + bucket + "/object"})
	if a.status != 200 || !bytes.Equal(a.body, n.object) {
		t.Errorf("the honest object: %d, %d bytes", a.status, len(a.body))
	}
	n.expectError("the deleted object", n.send(request{method: "GET", path: "/" + bucket + "/small"}), 404, "NoSuchKey")
	n.listed("object", "forged")
}
