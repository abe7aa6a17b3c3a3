package gateway_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/gateway"
)

const dcToken = "00007f7c80000000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0a000102"

// withToken is a request that asks for RDMA.
func withToken(method, path, token string, more ...string) request {
	r := request{method: method, path: path, header: map[string]string{"X-Amz-Rdma-Token": token}}
	for i := 0; i+1 < len(more); i += 2 {
		r.header[more[i]] = more[i+1]
	}
	return r
}

// wantDone checks a success: the reply, the exact byte count, an empty body, and the order: the window
// was closed before the answer came.
func wantDone(t *testing.T, n *node, got answer, status int, moved int64) {
	t.Helper()
	h := got.header
	if got.status != status || h.Get("X-Amz-Rdma-Reply") != strconv.Itoa(status) ||
		h.Get("X-Amz-Rdma-Bytes-Transferred") != strconv.FormatInt(moved, 10) {
		t.Errorf("status %d, reply %q, bytes %q; want %d and %d: %s", got.status, h.Get("X-Amz-Rdma-Reply"),
			h.Get("X-Amz-Rdma-Bytes-Transferred"), status, moved, got.body)
	}
	if len(got.body) != 0 || h.Get("Content-Length") != "0" {
		t.Errorf("body of %d bytes, Content-Length %q", len(got.body), h.Get("Content-Length"))
	}
	if !strings.HasPrefix(h.Get("X-Penstock-Rdma-Checksum"), "CRC64NVME ") {
		t.Errorf("checksum %q", h.Get("X-Penstock-Rdma-Checksum"))
	}
	events := n.fabric.log()
	if moved == 0 && len(events) != 0 {
		t.Errorf("an empty payload touched the fabric: %v", events)
	}
	if moved > 0 && (events[0] != "open" || events[len(events)-1] != "close" || slices.Contains(events, "abort")) {
		t.Errorf("events %v, want open … close", events)
	}
}

// wantDeclined checks a decline: 501, its reason, and nothing that a client could take for success.
func wantDeclined(t *testing.T, n *node, got answer, reason string) {
	t.Helper()
	h := got.header
	if got.status != 501 || h.Get("X-Amz-Rdma-Reply") != "501" || h.Get("X-Penstock-Rdma-Reason") != reason {
		t.Errorf("status %d, reply %q, reason %q; want 501 and %q: %s", got.status, h.Get("X-Amz-Rdma-Reply"),
			h.Get("X-Penstock-Rdma-Reason"), reason, got.body)
	}
	if h.Get("Etag") != "" || h.Get("X-Amz-Rdma-Bytes-Transferred") != "" {
		t.Errorf("a decline carries ETag %q, bytes %q", h.Get("Etag"), h.Get("X-Amz-Rdma-Bytes-Transferred"))
	}
	if !bytes.Contains(got.body, []byte("<Code>NotImplemented</Code>")) {
		t.Errorf("body %s", got.body)
	}
	if events := n.fabric.log(); len(events) != 0 {
		t.Errorf("client memory was touched: %v", events)
	}
}

// wantError checks an S3 error: no reply header, no ETag.
func wantError(t *testing.T, got answer, status int, code string) {
	t.Helper()
	if got.status != status || !bytes.Contains(got.body, []byte("<Code>"+code+"</Code>")) {
		t.Errorf("status %d: %s; want %d %s", got.status, got.body, status, code)
	}
	for _, name := range []string{"X-Amz-Rdma-Reply", "X-Amz-Rdma-Bytes-Transferred", "Etag"} {
		if v := got.header.Get(name); v != "" {
			t.Errorf("an error carries %s %q", name, v)
		}
	}
}

func wantUntouched(t *testing.T, n *node) {
	t.Helper()
	if events := n.fabric.log(); len(events) != 0 {
		t.Errorf("client memory was touched: %v", events)
	}
}

// rdmaNode has a bucket with one object of 3 MiB and an empty one.
func rdmaNode(t *testing.T, tweaks ...tweak) (n *node, p []byte) {
	t.Helper()
	n = newNode(t, tweaks...)
	c := n.root()
	makeBucket(t, c, "rdm")
	p = randomBytes(3<<20 + 5)
	put(t, c, "rdm", "k", p)
	put(t, c, "rdm", "empty", nil)
	return n, p
}

func sumText(p []byte) string { return "CRC64NVME " + checksum.Base64(checksum.Sum(p)) }

func TestRDMAGet(t *testing.T) {
	n, p := rdmaNode(t)
	got := n.send(withToken("GET", "/rdm/k", tokenFor(100, 4<<20)))
	wantDone(t, n, got, 200, int64(len(p)))
	if !bytes.Equal(n.fabric.memory[100:100+len(p)], p) {
		t.Error("other bytes in client memory")
	}
	if got.header.Get("X-Penstock-Rdma-Checksum") != sumText(p) || got.header.Get("Etag") != etagOf(p) {
		t.Errorf("headers %v", got.header)
	}
	if got.header.Get("X-Amz-Checksum-Crc64nvme") != "" {
		t.Error("a checksum that an SDK would check against the empty body")
	}
	g := n.fabric.lastGrant()
	if g.Principal != "root" || g.Bytes != int64(len(p)) || g.Direction != fabric.ForGet {
		t.Errorf("grant %+v", g)
	}
	if left := time.Until(g.Deadline); left > 8*time.Second || left < 6*time.Second {
		t.Errorf("deadline in %v, want about 8 s", left)
	}
	got = n.send(withToken("GET", "/rdm/k", tokenFor(0, 4<<20), "X-Amz-Checksum-Mode", "ENABLED"))
	wantDone(t, n, got, 200, int64(len(p)))
	if got.header.Get("X-Amz-Checksum-Type") != "FULL_OBJECT" {
		t.Errorf("ps1 and checksum mode: %v", got.header)
	}
}

func TestRDMARangedGet(t *testing.T) {
	n, p := rdmaNode(t)
	for _, r := range [][2]int{{0, 0}, {1, 70_000}, {65_536, 131_071}, {1<<20 - 1, 2<<20 + 77}, {3 << 20, 3<<20 + 4}} {
		want := p[r[0] : r[1]+1]
		clear(n.fabric.memory)
		bytesOf := fmt.Sprintf("bytes=%d-%d", r[0], r[1])
		got := n.send(withToken("GET", "/rdm/k", tokenFor(7, int64(len(want))), "Range", bytesOf))
		wantDone(t, n, got, 206, int64(len(want)))
		if cr := fmt.Sprintf("bytes %d-%d/%d", r[0], r[1], len(p)); got.header.Get("Content-Range") != cr {
			t.Errorf("Content-Range %q, want %q", got.header.Get("Content-Range"), cr)
		}
		if got.header.Get("X-Penstock-Rdma-Checksum") != sumText(want) {
			t.Errorf("%v: checksum %q", r, got.header.Get("X-Penstock-Rdma-Checksum"))
		}
		// The write starts at the window's address and nothing beside the bytes of the answer changes.
		if !bytes.Equal(n.fabric.memory[7:7+len(want)], want) || !zeros(n.fabric.memory[:7]) ||
			!zeros(n.fabric.memory[7+len(want):]) {
			t.Errorf("%v: client memory is not what it should be", r)
		}
	}
	wantDone(t, n, n.send(withToken("GET", "/rdm/k?partNumber=1", tokenFor(0, 4<<20))), 206, int64(len(p)))
}

func zeros(p []byte) bool { return len(bytes.Trim(p, "\x00")) == 0 }

func TestRDMAEmptyPayload(t *testing.T) {
	n, _ := rdmaNode(t)
	wantDone(t, n, n.send(withToken("GET", "/rdm/empty", tokenFor(0, 10))), 200, 0)
	wantDone(t, n, n.send(withToken("PUT", "/rdm/new", tokenFor(0, 0))), 200, 0)
	if got := n.send(request{method: "GET", path: "/rdm/new"}); got.status != 200 || len(got.body) != 0 {
		t.Errorf("%d, %d bytes", got.status, len(got.body))
	}
}

// TestRF_07: the length of a PUT is the window's, never Content-Length, which is 0 by design.
func TestRF_07(t *testing.T) {
	n, _ := rdmaNode(t)
	for _, size := range []int{1, 16 << 10, 64<<10 + 1, 5<<20 + 3} {
		p := randomBytes(size)
		copy(n.fabric.memory[33:], p)
		got := n.send(withToken("PUT", "/rdm/put", tokenFor(33, int64(size))))
		wantDone(t, n, got, 200, int64(size))
		etag := strings.Trim(got.header.Get("Etag"), `"`)
		if !regexp.MustCompile(`^[0-9a-f]{32}-1$`).MatchString(etag) {
			t.Fatalf("ETag %q", etag)
		}
		raw, _ := hex.DecodeString(etag[:16])
		if checksum.Base64(checksum.Sum(p)) != "" && "CRC64NVME "+b64(raw) != sumText(p) {
			t.Errorf("ETag %q does not begin with the CRC64NVME", etag)
		}
		if got.header.Get("X-Penstock-Rdma-Checksum") != sumText(p) {
			t.Errorf("checksum %q", got.header.Get("X-Penstock-Rdma-Checksum"))
		}
		if back := n.send(request{method: "GET", path: "/rdm/put"}); !bytes.Equal(back.body, p) {
			t.Errorf("%d bytes: stored %d others", size, len(back.body))
		}
	}
}

// TestRF_06: a suffix of address and size that is appended to the token narrows the window.
func TestRF_06(t *testing.T) {
	n, p := rdmaNode(t)
	suffixed := tokenFor(64, 4<<20) + fmt.Sprintf(":%016x:%016x", 64, 4<<20)
	wantDone(t, n, n.send(withToken("GET", "/rdm/k", suffixed)), 200, int64(len(p)))
	suffixed = tokenFor(64, 4096) + fmt.Sprintf(":%016x:%016x", 64, 100)
	wantDone(t, n, n.send(withToken("PUT", "/rdm/x", suffixed)), 200, 100)
}

// TestRF_13: parts by RDMA need no checksum of their own to be completed, and their ETags compose.
func TestRF_13(t *testing.T) {
	n, _ := rdmaNode(t)
	got := n.send(request{method: "POST", path: "/rdm/multi?uploads", header: map[string]string{
		"X-Amz-Checksum-Algorithm": "CRC32C",
	}})
	id := regexp.MustCompile(`<UploadId>(.*)</UploadId>`).FindSubmatch(got.body)
	if id == nil {
		t.Fatalf("%d %s", got.status, got.body)
	}
	p := randomBytes(5<<20 + 9)
	copy(n.fabric.memory, p)
	var list strings.Builder
	for i, window := range []string{tokenFor(0, 5<<20), tokenFor(5<<20, 9)} {
		got = n.send(withToken("PUT", fmt.Sprintf("/rdm/multi?partNumber=%d&uploadId=%s", i+1, id[1]), window))
		if got.status != 200 || got.header.Get("X-Amz-Checksum-Crc32c") == "" {
			t.Fatalf("part %d: %d %v %s", i+1, got.status, got.header, got.body)
		}
		fmt.Fprintf(&list, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, got.header.Get("Etag"))
	}
	doc := "<CompleteMultipartUpload>" + list.String() + "</CompleteMultipartUpload>"
	got = n.send(request{
		method: "POST", path: "/rdm/multi?uploadId=" + string(id[1]), body: strings.NewReader(doc),
		length: int64(len(doc)),
	})
	if got.status != 200 || !bytes.Contains(got.body, []byte("<ChecksumCRC32C>")) {
		t.Fatalf("complete: %d %s", got.status, got.body)
	}
	if back := n.send(request{method: "GET", path: "/rdm/multi"}); !bytes.Equal(back.body, p) {
		t.Error("other bytes came back")
	}
}

// TestRF_32: HEAD ignores the token and tells the true length; so does every other operation.
func TestRF_32(t *testing.T) {
	n, p := rdmaNode(t)
	got := n.send(withToken("HEAD", "/rdm/k", tokenFor(0, 10)))
	if got.status != 200 || got.length != int64(len(p)) || got.header.Get("X-Amz-Rdma-Reply") != "" {
		t.Errorf("HEAD: %d, length %d, %v", got.status, got.length, got.header)
	}
	for _, r := range []request{
		withToken("GET", "/rdm?list-type=2", "nonsense"), withToken("GET", "/", "nonsense"),
		withToken("DELETE", "/rdm/nothing", "nonsense"), withToken("POST", "/rdm/up?uploads", "nonsense"),
	} {
		if got := n.send(r); got.status >= 300 || got.header.Get("X-Amz-Rdma-Reply") != "" {
			t.Errorf("%s %s: %d %s", r.method, r.path, got.status, got.body)
		}
	}
	wantUntouched(t, n)
}

// TestS3_33: the token is part of what is signed, and the body is empty.
func TestS3_33(t *testing.T) {
	n, _ := rdmaNode(t)
	token := map[string]string{"X-Amz-Rdma-Token": tokenFor(0, 4<<20)}
	wantError(t, n.send(request{method: "GET", path: "/rdm/k", unsigned: token}), 403, "AccessDenied")
	wantError(t, n.send(request{method: "PUT", path: "/rdm/k", unsigned: token}), 403, "AccessDenied")
	bad := []request{
		{method: "PUT", path: "/rdm/x", header: token, body: strings.NewReader("body"), length: 4},
		{method: "PUT", path: "/rdm/x", header: token, body: strings.NewReader("body"), length: -1},
		withToken("PUT", "/rdm/x", tokenFor(0, 5), "Content-Md5", "1B2M2Y8AsgTpgAmY7PhCfg=="),
		withToken("PUT", "/rdm/x", tokenFor(0, 5), "X-Amz-Trailer", "x-amz-checksum-crc32"),
	}
	for _, hash := range []string{
		"STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", strings.Repeat("ab", 32),
	} {
		r := withToken("GET", "/rdm/k", tokenFor(0, 4<<20))
		r.hash = hash
		bad = append(bad, r)
	}
	for _, r := range bad {
		wantError(t, n.send(r), 400, "InvalidRequest")
	}
	empty := withToken("GET", "/rdm/k", tokenFor(0, 4<<20))
	empty.hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	wantUntouched(t, n)
	if got := n.send(empty); got.status != 200 {
		t.Errorf("hash of the empty body: %d %s", got.status, got.body)
	}
	if got := n.send(request{method: "HEAD", path: "/rdm/x"}); got.status != 404 {
		t.Error("a refused PUT stored something")
	}
}

func TestRDMAInvalidTokens(t *testing.T) {
	n, _ := rdmaNode(t)
	for _, token := range []string{
		"x", "ps1:tcp:1:2:3:4", tokenFor(0, 5) + "x", tokenFor(0, 1<<32), "ps1:tcp:" + strings.Repeat("0", 500),
		strings.Replace(tokenFor(0, 5), "ps1", "ps2", 1), "rc:1:2:3:4", strings.Repeat("g", 88),
		tokenFor(0, 100)[:90], tokenFor(64, 100) + fmt.Sprintf(":%016x:%016x", 64, 101),
	} {
		wantError(t, n.send(withToken("GET", "/rdm/k", token)), 400, "InvalidRDMAToken")
		wantError(t, n.send(withToken("PUT", "/rdm/x", token)), 400, "InvalidRDMAToken")
	}
	n.fabric.openErr = fmt.Errorf("region 1: %w", fabric.ErrWindow)
	wantError(t, n.send(withToken("PUT", "/rdm/x", tokenFor(0, 5))), 400, "InvalidRDMAToken")
	n.fabric.openErr = fabric.ErrNotGranted
	wantError(t, n.send(withToken("GET", "/rdm/k", tokenFor(0, 4<<20))), 403, "AccessDenied")
	n.fabric.openErr = fabric.ErrLimit
	wantError(t, n.send(withToken("GET", "/rdm/k", tokenFor(0, 4<<20))), 503, "SlowDown")
	wantUntouched(t, n)
}

func TestRDMADeclines(t *testing.T) {
	n, body := rdmaNode(t)
	session := tokenFor(0, 4<<20)
	for name, c := range map[string]struct{ token, reason string }{
		"dc":     {dcToken, "no-rail"},
		"rc":     {"rc:" + strings.Repeat("a", 32) + ":0000000000001000:00400000:01f2e973", "no-rail"},
		"hipobj": {strings.Repeat("0", 88), "unsupported-token"},
		"shm":    {strings.Replace(session, ":tcp:", ":shm:", 1), "no-rail"},
		"small":  {tokenFor(0, 100), "too-large"},
	} {
		t.Run(name, func(t *testing.T) {
			wantDeclined(t, n, n.send(withToken("GET", "/rdm/k", c.token)), c.reason)
			if name != "small" {
				wantDeclined(t, n, n.send(withToken("PUT", "/rdm/x", c.token)), c.reason)
			}
		})
	}
	// A window that is too small learns what would do, also for a range.
	for span, need := range map[string]string{"": strconv.Itoa(len(body)), "bytes=10-999": "990"} {
		got := n.send(withToken("GET", "/rdm/k", tokenFor(0, 100), "Range", span))
		if wantDeclined(t, n, got, "too-large"); got.header.Get("X-Penstock-Rdma-Need") != need {
			t.Errorf("range %q needs %q, want %s", span, got.header.Get("X-Penstock-Rdma-Need"), need)
		}
	}
	wantDeclined(t, n, n.send(withToken("GET", "/rdm/k", session, "X-Amz-Rdma-Agent", "other")), "unsupported-agent")
	if got := n.send(withToken("GET", "/rdm/k", session, "X-Amz-Rdma-Agent", "cuobj")); got.status != 200 {
		t.Errorf("agent cuobj: %d", got.status)
	}
	n.fabric.log()
	wantDeclined(t, n, n.send(withToken("GET", "/rdm/k", session,
		"X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256")), "encrypted-client-key")
	n.fabric.openErr = fabric.ErrNoSession
	wantDeclined(t, n, n.send(withToken("GET", "/rdm/k", session)), "no-session")
	n.fabric.openErr = nil
	held, err := n.arena.Share(gateway.ShareFabric).Reserve(context.Background(), 100)
	if err != nil {
		t.Fatal(err)
	}
	wantDeclined(t, n, n.send(withToken("GET", "/rdm/k", session)), "arena-busy")
	held.Close()
	// An S3 error comes before a decline, so that a fallback does not hide it.
	wantError(t, n.send(withToken("GET", "/rdm/nothing", dcToken)), 404, "NoSuchKey")
	wantError(t, n.send(withToken("PUT", "/nobucket/x", dcToken)), 404, "NoSuchBucket")
	if got := n.send(request{method: "POST", path: "/.hipobj-rc/prepare", anonymous: true}); got.status != 501 ||
		got.header.Get("X-Amz-Rdma-Protocol-Status") != "unsupported" {
		t.Errorf("hipobj: %d %v", got.status, got.header)
	}
	if got := n.send(request{method: "HEAD", path: "/rdm/x"}); got.status != 404 {
		t.Error("a declined PUT stored something")
	}
}

func TestRDMAOff(t *testing.T) {
	n, _ := rdmaNode(t, func(o *gateway.Options) { o.RDMA.Enabled = false })
	wantDeclined(t, n, n.send(withToken("GET", "/rdm/k", tokenFor(0, 4<<20))), "off")
	wantDeclined(t, n, n.send(withToken("PUT", "/rdm/x", dcToken)), "off")
}

// TestChecksBeforeMemory: whatever refuses a request does so before client memory is touched.
func TestChecksBeforeMemory(t *testing.T) {
	n, p := rdmaNode(t)
	token := tokenFor(0, 4<<20)
	wantError(t, n.send(withToken("GET", "/rdm/nothing", token)), 404, "NoSuchKey")
	wantError(t, n.send(withToken("GET", "/rdm/k", token, "If-Match", `"x"`)), 412, "PreconditionFailed")
	wantError(t, n.send(withToken("GET", "/rdm/k", token, "Range", "bytes=9999999-")), 416, "InvalidRange")
	if got := n.send(withToken("GET", "/rdm/k", token, "If-None-Match", etagOf(p))); got.status != 304 ||
		got.header.Get("X-Amz-Rdma-Reply") != "" {
		t.Errorf("304: %d %v", got.status, got.header)
	}
	alice := withToken("GET", "/rdm/k", token)
	alice.id, alice.secret = aliceID, aliceSecret
	wantError(t, n.send(alice), 403, "AccessDenied")
	forged := withToken("GET", "/rdm/k", token)
	forged.secret, forged.id = "wrong", rootID
	wantError(t, n.send(forged), 403, "SignatureDoesNotMatch")
	wantUntouched(t, n)
	for _, r := range []struct {
		request
		status int
		code   string
	}{
		{withToken("PUT", "/rdm/k", token, "If-None-Match", "*"), 412, "PreconditionFailed"},
		{withToken("PUT", "/rdm/k", token, "If-Match", `"x"`), 412, "PreconditionFailed"},
		{withToken("PUT", "/nobucket/k", token), 404, "NoSuchBucket"},
		{withToken("PUT", "/rdm/k?partNumber=1&uploadId=none", token), 404, "NoSuchUpload"},
	} {
		wantError(t, n.send(r.request), r.status, r.code)
		if events := n.fabric.log(); slices.Contains(events, "read") {
			t.Errorf("%s: %v", r.code, events)
		}
	}
}

// TestRF_40: a checksum header of a PUT is over the bytes that RDMA reads, not over the empty body.
func TestRF_40(t *testing.T) {
	n, _ := rdmaNode(t)
	copy(n.fabric.memory, "some payload")
	good := n.send(withToken("PUT", "/rdm/x", tokenFor(0, 12), "X-Amz-Checksum-Crc64nvme",
		checksum.Base64(checksum.Sum([]byte("some payload")))))
	wantDone(t, n, good, 200, 12)
	// The CRC32 of nothing, as an SDK adds it.
	for name, value := range map[string]string{
		"X-Amz-Checksum-Crc32": "AAAAAA==", "X-Amz-Checksum-Crc64nvme": "AAAAAAAAAAA=",
	} {
		wantError(t, n.send(withToken("PUT", "/rdm/y", tokenFor(0, 12), name, value)), 400, "BadDigest")
	}
	if got := n.send(request{method: "HEAD", path: "/rdm/y"}); got.status != 404 {
		t.Error("stored in spite of a wrong checksum")
	}
}

// TestRF_41: a transfer that fails is 500 RDMATransferFailed without a reply header, and a PUT stored
// nothing. The window is closed before the answer.
func TestRF_41(t *testing.T) {
	n, _ := rdmaNode(t)
	fails := func(what string) {
		t.Helper()
		wantError(t, n.send(withToken("GET", "/rdm/k", tokenFor(0, 4<<20))), 500, "RDMATransferFailed")
		wantClosed(t, n, what+" of a GET")
		wantError(t, n.send(withToken("PUT", "/rdm/x", tokenFor(0, 5<<20))), 500, "RDMATransferFailed")
		wantClosed(t, n, what+" of a PUT")
		if got := n.send(request{method: "HEAD", path: "/rdm/x"}); got.status != 404 {
			t.Errorf("%s: the PUT stored something", what)
		}
	}
	n.fabric.moveErr = fmt.Errorf("peer: %w", fabric.ErrTransfer)
	fails("move")
	n.fabric.moveErr = fmt.Errorf("copy: %w", arena.ErrMapped)
	fails("fault")
	n.fabric.moveErr = nil
	n.fabric.endErr = fabric.ErrFenced
	fails("close")
}

func wantClosed(t *testing.T, n *node, what string) {
	t.Helper()
	events := n.fabric.log()
	if len(events) == 0 || events[len(events)-1] != "close" {
		t.Errorf("%s: events %v, want close at the end", what, events)
	}
}

// TestRF_35: at the deadline the transfer ends, the window is closed, and only then the answer goes out;
// nothing is committed afterwards.
func TestRF_35(t *testing.T) {
	n, _ := rdmaNode(t)
	n.fabric.gate = make(chan struct{}) // never opened: the client stalls
	for _, r := range []request{
		withToken("GET", "/rdm/k", tokenFor(0, 4<<20), "X-Penstock-Rdma-Deadline-Ms", "60"),
		withToken("PUT", "/rdm/late", tokenFor(0, 4<<20), "X-Penstock-Rdma-Deadline-Ms", "60"),
	} {
		start := time.Now()
		wantError(t, n.send(r), 500, "RDMATransferFailed")
		if took := time.Since(start); took < 40*time.Millisecond || took > 3*time.Second {
			t.Errorf("%s took %v", r.method, took)
		}
		wantClosed(t, n, r.method)
	}
	if got := n.send(request{method: "HEAD", path: "/rdm/late"}); got.status != 404 {
		t.Error("committed after the deadline")
	}
}

func TestRDMADeadlines(t *testing.T) {
	n, _ := rdmaNode(t)
	within := func(want time.Duration, more ...string) {
		t.Helper()
		got := n.send(withToken("GET", "/rdm/k", tokenFor(0, 4<<20), more...))
		if got.status != 200 {
			t.Fatalf("%v: %d %s", more, got.status, got.body)
		}
		if left := time.Until(n.fabric.lastGrant().Deadline); left > want || left < want-5*time.Second {
			t.Errorf("%v: deadline in %v, want %v", more, left, want)
		}
	}
	within(8 * time.Second)
	within(100*time.Second, "X-Penstock-Rdma-Deadline-Ms", "100000")
	within(300*time.Second, "X-Penstock-Rdma-Deadline-Ms", "999999")
	within(7*time.Second, "X-Penstock-Rdma-Deadline-Ms", "7000")
	n.fabric.log()
	for _, text := range []string{"0", "-1", "x", "1e3", "99999999999999999999"} {
		got := n.send(withToken("GET", "/rdm/k", tokenFor(0, 4<<20), "X-Penstock-Rdma-Deadline-Ms", text))
		wantError(t, got, 400, "InvalidArgument")
	}
	r := withToken("GET", "/rdm/k", tokenFor(0, 4<<20))
	r.unsigned = map[string]string{"X-Penstock-Rdma-Deadline-Ms": "300000"}
	wantError(t, n.send(r), 403, "AccessDenied")
	wantUntouched(t, n)
}

// TestRF_42: when the HTTP peer goes away in the middle of a transfer, the window is closed at once and
// nothing is committed.
func TestRF_42(t *testing.T) {
	n, _ := rdmaNode(t)
	for _, r := range []request{
		withToken("PUT", "/rdm/gone", tokenFor(0, 4<<20)), withToken("GET", "/rdm/k", tokenFor(0, 4<<20)),
	} {
		n.fabric.gate, n.fabric.entered = make(chan struct{}), make(chan struct{})
		conn, err := net.Dial("tcp", n.host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(n.raw(r)); err != nil {
			t.Fatal(err)
		}
		<-n.fabric.entered
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return n.g.InFlight() == 0 })
		wantClosed(t, n, r.method)
		n.fabric.gate, n.fabric.entered = nil, nil
	}
	if got := n.send(request{method: "HEAD", path: "/rdm/gone"}); got.status != 404 {
		t.Error("committed for a client that went away")
	}
}

// TestRF_50: tokens are never logged, whatever becomes of the request.
func TestRF_50(t *testing.T) {
	var out syncBuffer
	n, _ := rdmaNode(t, func(o *gateway.Options) { o.Log = debugLogger(&out) })
	token := tokenFor(0, 4<<20)
	n.send(withToken("GET", "/rdm/k", token))
	n.send(withToken("GET", "/rdm/k", token+"x"))
	n.send(withToken("GET", "/rdm/k", dcToken))
	n.fabric.moveErr = fabric.ErrTransfer
	n.send(withToken("GET", "/rdm/k", token))
	n.send(withToken("PUT", "/rdm/k", token))
	if !strings.Contains(out.String(), "RDMATransferFailed") {
		t.Error("a failed transfer is not logged at all")
	}
	for _, secret := range []string{token, token[8:40], dcToken[:16], dcToken[27:35]} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("the log has %q:\n%s", secret, out.String())
		}
	}
}

// TestRF_18: many transfers at a time share bounded buffers; each ends, by RDMA or with a decline.
func TestRF_18(t *testing.T) {
	n, p := rdmaNode(t)
	n.fabric.memory = make([]byte, 24*4<<20)
	results := make(chan answer)
	for i := range 24 {
		go func() { results <- n.send(withToken("GET", "/rdm/k", tokenFor(int64(i)*(4<<20), 4<<20))) }()
	}
	for range 24 {
		got := <-results
		ok := got.status == 200 && got.header.Get("X-Amz-Rdma-Bytes-Transferred") == strconv.Itoa(len(p))
		if busy := got.header.Get("X-Penstock-Rdma-Reason") == "arena-busy"; !ok && !busy {
			t.Errorf("%d %v", got.status, got.header)
		}
	}
	eventually(t, func() bool { return n.arena.InUse() == 0 })
}

// TestCutComesFirst: when the session was cut under a transfer, the answer says so, whatever else went wrong: on rc a
// client keeps its session after other answers, and a packet may still be in the network.
func TestCutComesFirst(t *testing.T) {
	n, _ := rdmaNode(t)
	for _, moveErr := range []error{fabric.ErrLimit, fabric.ErrWindow, fabric.ErrNotGranted, arena.ErrBusy} {
		for _, cut := range []bool{false, true} {
			n.fabric.moveErr, n.fabric.endErr = moveErr, nil
			if cut {
				n.fabric.endErr = fabric.ErrFenced
			}
			for _, r := range []request{
				withToken("GET", "/rdm/k", tokenFor(0, 4<<20)), withToken("PUT", "/rdm/cut", tokenFor(0, 4<<20)),
			} {
				got := n.send(r)
				if cut {
					wantError(t, got, 500, "RDMATransferFailed")
				} else if got.status == 500 || got.status < 400 {
					t.Errorf("%s, %v: %d", r.method, moveErr, got.status)
				}
			}
		}
	}
	n.fabric.endErr, n.fabric.moveErr = nil, nil
}

// TestLingeringIsNotAnswered: while an operation on client memory may still land, no answer may say that the
// transfer is over. The connection is cut without a byte.
func TestLingeringIsNotAnswered(t *testing.T) {
	n, _ := rdmaNode(t)
	n.fabric.endErr = fmt.Errorf("%w: %w", fabric.ErrLingering, fabric.ErrFenced)
	for _, moveErr := range []error{nil, fabric.ErrFenced} {
		n.fabric.moveErr = moveErr
		for _, r := range []request{
			withToken("GET", "/rdm/k", tokenFor(0, 4<<20)), withToken("PUT", "/rdm/lost", tokenFor(0, 4<<20)),
		} {
			conn, err := net.Dial("tcp", n.host)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := conn.Write(n.raw(r)); err != nil {
				t.Fatal(err)
			}
			if answer, err := io.ReadAll(conn); len(answer) != 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: %q, %v", r.method, answer, err)
			}
			_ = conn.Close() // the server closed it first
			wantClosed(t, n, r.method)
		}
	}
	n.fabric.endErr, n.fabric.moveErr = nil, nil
	if got := n.send(request{method: "HEAD", path: "/rdm/lost"}); got.status != 404 {
		t.Error("a PUT was stored whose window lingered")
	}
}
