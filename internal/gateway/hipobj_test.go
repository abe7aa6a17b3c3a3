package gateway_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-store/penstock/internal/accesslog"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/gateway"
)

// wantFinal checks the last answer of a transfer, header by header.
func wantFinal(t *testing.T, n *node, got answer, status int, moved []byte) {
	t.Helper()
	crc := checksum.Base64(checksum.Sum(moved))
	want := map[string]string{
		"X-Amz-Rdma-Protocol": "hipobj-rc-v2", "X-Amz-Rdma-Cookie": cookie,
		"X-Amz-Rdma-Bytes-Transferred": strconv.Itoa(len(moved)), "X-Amz-Rdma-Checksum": "CRC64NVME " + crc,
		"X-Amz-Checksum-Crc64nvme": crc, "X-Amz-Rdma-Reply": "", "Content-Type": "",
		"X-Amz-Rdma-Etag": got.header.Get("Etag"),
	}
	for name, value := range want {
		if got.header.Get(name) != value {
			t.Errorf("%s is %q, want %q", name, got.header.Get(name), value)
		}
	}
	length := map[int]string{200: "0", 204: ""}[status]
	if got.status != status || len(got.body) != 0 || got.header.Get("Content-Length") != length ||
		!strings.HasPrefix(got.header.Get("Etag"), `"`) {
		t.Errorf("status %d, want %d: %v %s", got.status, status, got.header, got.body)
	}
	events := n.fabric.log()
	if len(events) < 3 || events[0] != "open" || !slices.Equal(events[len(events)-2:], []string{"close",
		"finish"}) ||
		slices.Contains(events, "abort") {
		t.Errorf("events %v, want open … close, finish", events)
	}
}

// wantMessageError checks an error of a message, and that nothing was touched.
func wantMessageError(t *testing.T, n *node, got answer, status int, code string) {
	t.Helper()
	if got.status != status || !bytes.Contains(got.body, []byte("<Code>"+code+"</Code>")) {
		t.Errorf("status %d: %s; want %d %s", got.status, got.body, status, code)
	}
	marker, reply := "", ""
	if status == 501 {
		marker, reply = "unsupported", got.header.Get("X-Amz-Rdma-Reply") // 501 or none
	}
	for name, want := range map[string]string{"Etag": "", "X-Amz-Rdma-Bytes-Transferred": "",
		"X-Amz-Rdma-Cookie":  "",
		"X-Amz-Rdma-Session": "", "X-Amz-Rdma-Reply": reply, "X-Amz-Rdma-Protocol-Status": marker} {
		if got.header.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.header.Get(name), want)
		}
	}
	if (status == 503) != (got.header.Get("Retry-After") != "") {
		t.Errorf("status %d, Retry-After %q", status, got.header.Get("Retry-After"))
	}
}

// TestHipObjGet: the bytes asked for at PREPARE are in the client's memory when FINAL comes, and no others.
func TestHipObjGet(t *testing.T) {
	n, x, p := hipNode(t)
	put(t, n.root(), "rdm", "small", p[:64])
	for _, c := range []struct{ key, offset, size string }{
		{"small", "", "64"}, {"small", "0", "1"}, {"small", "63", "1"}, {"k", "", strconv.Itoa(len(p))},
		{"k", "1048570", "70000"}, {"k", "3145728", "5"},
	} {
		off, _ := strconv.Atoi(c.offset)
		size, _ := strconv.Atoi(c.size)
		m := preparing("GET", "/rdm/"+c.key, size)
		if c.offset != "" {
			m.change([]string{"x-amz-rdma-offset", c.offset})
		}
		got := n.say(m.bytes())
		session := got.header.Get("X-Amz-Rdma-Session")
		if got.status != 200 || len(got.body) != 0 || got.header.Get("Content-Length") != "0" ||
			!regexp.MustCompile("^[0-9a-f]{32}$").MatchString(session) {
			t.Fatalf("PREPARE: %d %v %s", got.status, got.header, got.body)
		}
		// The fake's queue pair, byte by byte: kind, number, GID, no memory, port, LID.
		own := "01bc0a0000" + "00000000000000000000ffff0a000007" + strings.Repeat("00", 20) + "01" + "0201"
		for name, want := range map[string]string{"X-Amz-Rdma-Protocol": "hipobj-rc-v2",
			"X-Amz-Rdma-Reply": "200:" + own,
			"X-Amz-Rdma-Psn":   "00beef", "X-Amz-Rdma-Qpn": "abc", "X-Amz-Rdma-Mr-Addr": "0",
			"X-Amz-Rdma-Mr-Rkey": "0",
			"Cache-Control":      "no-store"} {
			if got.header.Get(name) != want {
				t.Errorf("%s is %q, want %q", name, got.header.Get(name), want)
			}
		}
		wantUntouched(t, n)
		clear(n.fabric.memory)
		final := n.say(readying(session, 100).bytes())
		want := p[off : off+size]
		wantFinal(t, n, final, 200, want)
		if !bytes.Equal(n.fabric.memory[100:100+size], want) || !zeros(n.fabric.memory[:100]) ||
			!zeros(n.fabric.memory[100+size:]) {
			t.Error("client memory is not what it should be")
		}
		if etag := etagOf(p); c.key == "k" && final.header.Get("Etag") != etag {
			t.Errorf("ETag %q, want %q", final.header.Get("Etag"), etag)
		}
		q := x.seen[len(x.seen)-1]
		if q.Principal != "root" || q.PSN != 1 || q.Cookie != 0x1a2b3c4d || q.Direction != fabric.ForGet ||
			q.Bytes != int64(size) || q.Token.QPN != peerQPN || q.Token.GID != peerGID ||
			q.Peer.Addr().String() != "127.0.0.1" || q.Local.String() != "127.0.0.1" {
			t.Errorf("preparation %+v", q)
		}
	}
}

// TestHipObjGetIsPinned: what PREPARE found is what moves, whatever happens to the object until READY.
func TestHipObjGetIsPinned(t *testing.T) {
	n, _, p := hipNode(t)
	c := n.root()
	for name, change := range map[string]func(){
		"replaced": func() { put(t, c, "rdm", "k", randomBytes(1<<20)) },
		"deleted": func() {
			must(c.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: aws.String("rdm"),
				Key: aws.String("k")}))(t)
		},
	} {
		put(t, c, "rdm", "k", p)
		session := n.prepare(preparing("GET", "/rdm/k", len(p)))
		change()
		final := n.say(readying(session, 0).bytes())
		wantFinal(t, n, final, 200, p)
		if !bytes.Equal(n.fabric.memory[:len(p)], p) || final.header.Get("Etag") != etagOf(p) {
			t.Errorf("%s: other bytes or another ETag", name)
		}
	}
}

// TestHipObjPut: what is in the client's memory is stored, as another client reads it. The status of FINAL is what
// the clients that sign for each service take for success.
func TestHipObjPut(t *testing.T) {
	n, _, _ := hipNode(t)
	for service, status := range map[string]int{"hipobj": 200, "s3": 204} {
		for _, size := range []int{1, 64, 70_001, 3<<20 + 9} {
			p := randomBytes(size)
			copy(n.fabric.memory[40:], p)
			m := preparing("PUT", "/rdm/new", size, "x-amz-meta-a", "b", "content-type", "text/x")
			m.service = service
			got := n.say(m.bytes())
			if got.header.Get("X-Amz-Rdma-Mr-Addr") != "7f0000001000" || got.header.Get("X-Amz-Rdma-Mr-Rkey") != "dead01" {
				t.Fatalf("%d %v %s", got.status, got.header, got.body)
			}
			ready := readying(got.header.Get("X-Amz-Rdma-Session"), 40)
			ready.service = service
			final := n.say(ready.bytes())
			wantFinal(t, n, final, status, p)
			out := must(n.root().GetObject(t.Context(), &awss3.GetObjectInput{
				Bucket: aws.String("rdm"), Key: aws.String("new")}))(t)
			var back bytes.Buffer
			_, err := back.ReadFrom(out.Body)
			if err != nil || !bytes.Equal(back.Bytes(), p) || *out.ETag != final.header.Get("Etag") ||
				out.Metadata["a"] != "b" || *out.ContentType != "text/x" {
				t.Errorf("%d bytes by %s: stored others, or other metadata: %v", size, service, err)
			}
		}
	}
}

// TestHipObjParts: parts that came by the exchange make an object, with the checksums of its upload.
func TestHipObjParts(t *testing.T) {
	n, _, _ := hipNode(t)
	c := n.root()
	up := must(c.CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{Bucket: aws.String("rdm"),
		Key: aws.String("a b/c"), ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c}))(t)
	p := randomBytes(5<<20 + 77)
	copy(n.fabric.memory, p)
	var parts []types.CompletedPart
	for i, at := range []int{0, 5 << 20} {
		size := min(5<<20, len(p)-at)
		target := fmt.Sprintf("/rdm/a%%20b/c?partNumber=%d&uploadId=%s", i+1, *up.UploadId)
		final := n.say(readying(n.prepare(preparing("PUT", target, size)), at).bytes())
		wantFinal(t, n, final, 200, p[at:at+size])
		if final.header.Get("X-Amz-Checksum-Crc32c") == "" {
			t.Errorf("no checksum of the upload: %v", final.header)
		}
		parts = append(parts, types.CompletedPart{PartNumber: aws.Int32(int32(i + 1)),
			ETag:           aws.String(final.header.Get("Etag")),
			ChecksumCRC32C: aws.String(final.header.Get("X-Amz-Checksum-Crc32c"))})
	}
	must(c.CompleteMultipartUpload(t.Context(), &awss3.CompleteMultipartUploadInput{Bucket: aws.String("rdm"),
		Key: aws.String("a b/c"), UploadId: up.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}}))(t)
	if !bytes.Equal(get(t, c, "rdm", "a b/c"), p) {
		t.Error("other bytes came back")
	}
}

// TestHipObjChecksums: what the client declares at PREPARE is verified before the commit.
func TestHipObjChecksums(t *testing.T) {
	n, _, _ := hipNode(t)
	p := randomBytes(90_000)
	sum := sha256.Sum256(p)
	for name, c := range map[string]struct {
		header, value string
		ok            bool
	}{
		"sha256":       {"x-amz-checksum-sha256", b64(sum[:]), true},
		"crc":          {"x-amz-checksum-crc64nvme", checksum.Base64(checksum.Sum(p)), true},
		"wrong sha256": {"x-amz-checksum-sha256", b64(make([]byte, 32)), false},
		"wrong crc":    {"x-amz-checksum-crc64nvme", "AAAAAAAAAAE=", false},
	} {
		copy(n.fabric.memory, p)
		final := n.say(readying(n.prepare(preparing("PUT", "/rdm/sum", len(p), c.header, c.value)), 0).bytes())
		head := n.send(request{method: "HEAD", path: "/rdm/sum"})
		if !c.ok {
			wantMessageError(t, n, final, 400, "BadDigest")
			if head.status != 404 {
				t.Errorf("%s: stored", name)
			}
			continue
		}
		if final.header.Get(c.header) != c.value || head.status != 200 {
			t.Errorf("%s: %d %v", name, final.status, final.header)
		}
		n.send(request{method: "DELETE", path: "/rdm/sum"})
	}
}

// TestHipObjConditions: those of PREPARE hold for the transfer.
func TestHipObjConditions(t *testing.T) {
	n, x, p := hipNode(t)
	wantMessageError(t, n, n.say(preparing("GET", "/rdm/k", 5, "if-match", `"x"`).bytes()), 412,
		"PreconditionFailed")
	if got := n.say(preparing("GET", "/rdm/k", 5, "if-none-match", etagOf(p)).bytes()); got.status != 304 {
		t.Errorf("status %d, want 304", got.status)
	}
	wantFinal(t, n, n.say(readying(n.prepare(preparing("GET", "/rdm/k", 5, "if-match", etagOf(p))),
		0).bytes()), 200, p[:5])
	session := n.prepare(preparing("PUT", "/rdm/once", 5, "if-none-match", "*"))
	put(t, n.root(), "rdm", "once", []byte("first"))
	wantMessageError(t, n, n.say(readying(session, 0).bytes()), 412, "PreconditionFailed")
	if string(get(t, n.root(), "rdm", "once")) != "first" || x.open() != 0 {
		t.Error("overwritten, or a session is left")
	}
}

// TestHipObjPrepareRefused: each row of the errors that PREPARE can have. Nothing is prepared, and nothing is touched.
func TestHipObjPrepareRefused(t *testing.T) {
	n, x, p := hipNode(t)
	makeBucket(t, n.alice(), "alices")
	put(t, n.alice(), "alices", "k", p[:100])
	for name, c := range map[string]struct {
		m      message
		status int
		code   string
	}{
		"no protocol": {preparing("GET", "/rdm/k", 5, "x-amz-rdma-protocol", "-"), 501, "NotImplemented"},
		"other protocol": {preparing("GET", "/rdm/k", 5, "x-amz-rdma-protocol", "hipobj-rc-v3"), 501,
			"NotImplemented"},
		"protocol in caps": {preparing("GET", "/rdm/k", 5, "x-amz-rdma-protocol", "HIPOBJ-RC-V2"), 501,
			"NotImplemented"},
		"other op":         {preparing("DELETE", "/rdm/k", 5), 501, "NotImplemented"},
		"op in lower case": {preparing("get", "/rdm/k", 5), 501, "NotImplemented"},
		"version":          {preparing("GET", "/rdm/k?versionId=null", 5), 501, "NotImplemented"},
		"sub-resource":     {preparing("PUT", "/rdm/k?acl", 5), 501, "NotImplemented"},
		"part of a GET":    {preparing("GET", "/rdm/k?partNumber=1&uploadId=x", 5), 501, "NotImplemented"},
		"part alone":       {preparing("PUT", "/rdm/k?partNumber=1", 5), 501, "NotImplemented"},
		"upload alone":     {preparing("PUT", "/rdm/k?uploadId=1", 5), 501, "NotImplemented"},
		"part and more":    {preparing("PUT", "/rdm/k?partNumber=1&uploadId=x&x-id=1", 5), 501, "NotImplemented"},
		"two parts": {preparing("PUT", "/rdm/k?partNumber=1&partNumber=2&uploadId=x", 5), 501,
			"NotImplemented"},
		"part 0":    {preparing("PUT", "/rdm/k?partNumber=0&uploadId=x", 5), 400, "InvalidArgument"},
		"no upload": {preparing("PUT", "/rdm/k?partNumber=1&uploadId=x", 5), 404, "NoSuchUpload"},
		"client's key": {preparing("GET", "/rdm/k", 5, "x-amz-server-side-encryption-customer-key", "x"),
			501, "NotImplemented"},
		"lock": {preparing("PUT", "/rdm/k", 5, "x-amz-object-lock-mode", "GOVERNANCE"), 501,
			"NotImplemented"},
		"grant": {preparing("PUT", "/rdm/k", 5, "x-amz-grant-read", "x"), 400,
			"AccessControlListNotSupported"},
		"acl": {preparing("PUT", "/rdm/k", 5, "x-amz-acl", "public-read"), 400,
			"AccessControlListNotSupported"},
		"range": {preparing("GET", "/rdm/k", 5, "range", "bytes=0-4"), 400, "InvalidRequest"},
		"copy":  {preparing("PUT", "/rdm/c", 5, "x-amz-copy-source", "/rdm/k"), 400, "InvalidRequest"},
		"trailer": {preparing("PUT", "/rdm/c", 5, "x-amz-trailer", "x-amz-checksum-crc32"), 400,
			"InvalidRequest"},
		"no key":            {preparing("GET", "/rdm/none", 5), 404, "NoSuchKey"},
		"no bucket":         {preparing("GET", "/none-here/k", 5), 404, "NoSuchBucket"},
		"no bucket for PUT": {preparing("PUT", "/none-here/k", 5), 404, "NoSuchBucket"},
		"bucket only":       {preparing("PUT", "/rdm/", 5), 400, "InvalidURI"},
		"too long":          {preparing("GET", "/rdm/k", len(p)+1), 416, "InvalidRange"},
		"beyond the end": {preparing("GET", "/rdm/k", 5, "x-amz-rdma-offset", strconv.Itoa(len(p)-4)), 416,
			"InvalidRange"},
		"huge offset": {preparing("GET", "/rdm/k", 5, "x-amz-rdma-offset", "99999999999999999999999"), 416,
			"InvalidRange"},
		"offset of 2^63": {preparing("GET", "/rdm/k", 5, "x-amz-rdma-offset", "9223372036854775807"), 416,
			"InvalidRange"},
		"empty object":  {preparing("GET", "/rdm/empty", 1), 416, "InvalidRange"},
		"offset of PUT": {preparing("PUT", "/rdm/k", 5, "x-amz-rdma-offset", "0"), 400, "InvalidArgument"},
		"2 GiB":         {preparing("PUT", "/rdm/k", 1<<31), 413, "EntityTooLarge"},
		"huge": {preparing("PUT", "/rdm/k", 5, "x-amz-rdma-size", "99999999999999999999999999"), 413,
			"EntityTooLarge"},
		"others' bucket": {as(preparing("GET", "/rdm/k", 5), aliceID, aliceSecret), 403, "AccessDenied"},
		"others' bucket for PUT": {as(preparing("PUT", "/rdm/k", 5), aliceID, aliceSecret), 403,
			"AccessDenied"},
		"other owner": {preparing("GET", "/alices/k", 5, "x-amz-expected-bucket-owner", "root"), 403,
			"AccessDenied"},
		"long key": {preparing("GET", "/rdm/"+strings.Repeat("k", 1025), 5), 400, "KeyTooLongError"},
	} {
		t.Run(name, func(t *testing.T) {
			wantMessageError(t, n, n.say(c.m.bytes()), c.status, c.code)
		})
	}
	if len(x.seen) != 0 {
		t.Errorf("%d were prepared", len(x.seen))
	}
	wantUntouched(t, n)
	for err, want := range map[error]int{fabric.ErrNotGranted: 403, fabric.ErrNoFabric: 501, fabric.ErrLimit: 503,
		fabric.ErrTooLarge: 413, fabric.ErrTransfer: 500, fabric.ErrNotSupported: 501} {
		x.fails = fmt.Errorf("prepare: %w", err)
		code := map[int]string{403: "AccessDenied", 501: "NotImplemented", 503: "SlowDown", 413: "EntityTooLarge",
			500: "RDMATransferFailed"}[want]
		for _, op := range []string{"GET", "PUT"} {
			wantMessageError(t, n, n.say(preparing(op, "/rdm/k", 5).bytes()), want, code)
		}
	}
}

// TestHipObjMalformed: whatever is missing, there twice or not of its form is 400, and nothing else is looked at.
func TestHipObjMalformed(t *testing.T) {
	n, x, _ := hipNode(t)
	bad := map[string][]string{
		"x-amz-rdma-psn": {"0", "000000", "1000000", "g", "-1", "+1", "0x1", "1 1", "000000001", "1_0"},
		"x-amz-rdma-cookie": {"00000000", "1", "1a2b3c4", "1a2b3c4d5", "1a2b3c4g", "+a2b3c4d", "0x2b3c4d",
			"1a2b 3c4"},
		"x-amz-rdma-size":   {"0", "-1", "+5", "05", "0x5", "5.0", "1e3", "5 5", "٥"},
		"x-amz-rdma-offset": {"-1", "+0", "00", "x", "1 1"},
		"x-amz-rdma-target": {"rdm/k", "/", "//k", "/rdm", "/rdm/k k", "/rdm/%", "/rdm/%zz", "/rdm/k\u00e9",
			"/%2Frdm",
			"/rdm/k?partNumber=%", "http://x/rdm/k"},
		"x-amz-rdma-token": {"x", strings.Repeat("0", 88), strings.Repeat("1", 88), peerToken(0, peerQPN, peerGID),
			peerToken(2, peerQPN, peerGID), peerToken(1, 0, peerGID), peerToken(1, 1<<24, peerGID),
			peerToken(1, peerQPN, [16]byte{}), peerToken(1, peerQPN, peerGID)[:86], dcToken, tokenFor(0, 5)},
	}
	for name, values := range bad {
		for _, value := range values {
			got := n.say(preparing("GET", "/rdm/k", 5, name, value).bytes())
			if got.status != 400 || bytes.Contains(got.body, []byte("<ArgumentValue>")) {
				t.Errorf("%s %q: %d %s", name, value, got.status, got.body)
			}
		}
	}
	m := preparing("GET", "/rdm/k", 5)
	for _, f := range m.fields {
		if slices.Contains([]string{"x-amz-rdma-mr-addr", "x-amz-rdma-mr-rkey", "x-amz-rdma-qpn"}, f[0]) {
			continue // at PREPARE nobody needs them
		}
		want := 400
		if f[0] == "x-amz-rdma-protocol" {
			want = 501
		}
		if got := n.say(preparing("GET", "/rdm/k", 5, f[0], "-").bytes()); got.status != want {
			t.Errorf("without %s: %d %s", f[0], got.status, got.body)
		}
		twice := preparing("GET", "/rdm/k", 5)
		twice.fields = append(twice.fields, f)
		if got := n.say(twice.bytes()); got.status != 400 && got.status != want {
			t.Errorf("two of %s: %d %s", f[0], got.status, got.body)
		}
	}
	if len(x.seen) != 0 {
		t.Fatalf("%d were prepared", len(x.seen))
	}
	session := n.prepare(preparing("GET", "/rdm/k", 5))
	for name, values := range map[string][]string{
		"x-amz-rdma-session": {"x", session[1:], session + "0", strings.Replace(session, "a", "g", 1), "-"},
		"x-amz-rdma-cookie":  {"00000000", "1", "-"},
		"x-amz-rdma-qpn":     {"0", "1000000", "x", "-1", strings.Repeat("0", 16) + "1", "-"},
		"x-amz-rdma-mr-addr": {"x", strings.Repeat("f", 17), "-1", "-"},
		"x-amz-rdma-mr-rkey": {"100000000", "x", "-"},
	} {
		for _, value := range values {
			if got := n.say(readying(session, 0, name, value).bytes()); got.status != 400 {
				t.Errorf("READY with %s %q: %d %s", name, value, got.status, got.body)
			}
		}
		if name == "x-amz-rdma-session" {
			continue
		}
		twice := readying(session, 0)
		for _, f := range twice.fields {
			if f[0] == name {
				twice.fields = append(twice.fields, f)
			}
		}
		if got := n.say(twice.bytes()); got.status != 400 {
			t.Errorf("READY with two of %s: %d", name, got.status)
		}
	}
	for _, other := range []string{"x", session + "00"} {
		if got := n.say(cancelling(other).bytes()); got.status != 400 {
			t.Errorf("CANCEL of %q: %d", other, got.status)
		}
	}
	wantUntouched(t, n)
	// None of that cost the session. Padded numbers, as another client has them, are taken.
	final := n.say(readying(session, 0, "x-amz-rdma-qpn", fmt.Sprintf("%016x", peerQPN), "x-amz-rdma-mr-addr",
		fmt.Sprintf("%016X", 0), "x-amz-rdma-mr-rkey", "00001234").bytes())
	if final.status != 200 {
		t.Errorf("FINAL: %d %s", final.status, final.body)
	}
}

// TestHipObjTargets: a target names the object that the same path over HTTP names, whatever it looks like.
func TestHipObjTargets(t *testing.T) {
	n, x, _ := hipNode(t)
	c := n.root()
	for key, target := range map[string]string{
		"a/b": "/rdm/a%2Fb", "../../secret": "/rdm/../../secret", "./x": "/rdm/.%2fx", "a%2Fb": "/rdm/a%252Fb",
		"/lead": "/rdm//lead", "end/": "/rdm/end/", "p+q": "/rdm/p+q", "é": "/rdm/%C3%A9", "q?acl": "/rdm/q%3Facl",
		"nul\x00": "/rdm/nul%00", "h#f": "/rdm/h%23f", "..": "/rdm/..", "..%2f..": "/rdm/..%252f..",
	} {
		p := randomBytes(300 + len(key))
		copy(n.fabric.memory, p)
		wantFinal(t, n, n.say(readying(n.prepare(preparing("PUT", target, len(p))), 0).bytes()), 200, p)
		if !bytes.Equal(get(t, c, "rdm", key), p) {
			t.Errorf("%s is not %q", target, key)
		}
		clear(n.fabric.memory)
		wantFinal(t, n, n.say(readying(n.prepare(preparing("GET", target, len(p))), 0).bytes()), 200, p)
	}
	before := len(x.seen)
	for _, target := range []string{"/../rdm/k", "/./rdm/k", "/%2e%2e/rdm", "/rdm%2Fk/x", "/%2E%2E%2Frdm/k",
		"/.penstock/x",
		"/.hipobj-rc/prepare", "/RDM/k", "/rdm%00/k", "/rdm%20/k"} {
		for _, op := range []string{"GET", "PUT"} {
			if got := n.say(preparing(op, target, 5).bytes()); got.status != 404 {
				t.Errorf("%s %s: %d %s", op, target, got.status, got.body)
			}
		}
	}
	if len(x.seen) != before {
		t.Error("something was prepared")
	}
}

// TestHipObjReadyRefused: a READY that is not the one of its session ends nothing, and one that was used is no other.
func TestHipObjReadyRefused(t *testing.T) {
	n, x, p := hipNode(t)
	session := n.prepare(preparing("GET", "/rdm/k", 100))
	unknown := strings.Repeat("7", 32)
	for name, c := range map[string]struct {
		m      message
		status int
		code   string
	}{
		"unknown":     {readying(unknown, 0), 409, "OperationAborted"},
		"other key":   {as(readying(session, 0), aliceID, aliceSecret), 403, "AccessDenied"},
		"cookie":      {readying(session, 0, "x-amz-rdma-cookie", "1a2b3c4e"), 403, "AccessDenied"},
		"queue pair":  {readying(session, 0, "x-amz-rdma-qpn", "1a2c"), 403, "AccessDenied"},
		"window":      {readying(session, 1<<40), 403, "AccessDenied"},
		"no protocol": {readying(session, 0, "x-amz-rdma-protocol", "-"), 501, "NotImplemented"},
	} {
		wantMessageError(t, n, n.say(c.m.bytes()), c.status, c.code)
		if x.open() != 1 {
			t.Fatalf("%s ended the session", name)
		}
	}
	if got := n.say(as(cancelling(session), aliceID, aliceSecret).bytes()); got.status != 204 || x.open() != 1 {
		t.Errorf("CANCEL by another key: %d, %d sessions", got.status, x.open())
	}
	wantUntouched(t, n)
	ready := readying(session, 0).bytes()
	wantFinal(t, n, n.say(ready), 200, p[:100])
	clear(n.fabric.memory)
	for range 2 {
		wantMessageError(t, n, n.say(ready), 409, "OperationAborted") // the same bytes again
	}
	session = n.prepare(preparing("PUT", "/rdm/cancelled", 100))
	for _, id := range []string{session, session, unknown} {
		if got := n.say(cancelling(id).bytes()); got.status != 204 || len(got.body) != 0 ||
			got.header.Get("X-Amz-Rdma-Protocol") != "hipobj-rc-v2" {
			t.Errorf("CANCEL: %d %v", got.status, got.header)
		}
	}
	wantMessageError(t, n, n.say(readying(session, 0).bytes()), 409, "OperationAborted")
	wantUntouched(t, n)
	if got := n.send(request{method: "HEAD",
		path: "/rdm/cancelled"}); got.status != 404 || !zeros(n.fabric.memory) {
		t.Error("stored, or written, after CANCEL")
	}
}

// TestHipObjReplayedPrepare: a copy of a PREPARE makes a session of its own, which only its principal can use. It does
// nothing to the first one.
func TestHipObjReplayedPrepare(t *testing.T) {
	n, x, p := hipNode(t)
	raw := preparing("GET", "/rdm/k", 100).bytes()
	first, second := n.say(raw).header.Get("X-Amz-Rdma-Session"), n.say(raw).header.Get("X-Amz-Rdma-Session")
	if first == second || x.open() != 2 {
		t.Fatalf("sessions %q, %q", first, second)
	}
	wantMessageError(t, n, n.say(as(readying(second, 0), aliceID, aliceSecret).bytes()), 403, "AccessDenied")
	wantUntouched(t, n)
	wantFinal(t, n, n.say(readying(first, 0).bytes()), 200, p[:100])
	// A READY is signed for its session: with another one in it, the signature is wrong.
	moved := bytes.Replace(readying(first, 0).bytes(), []byte(first), []byte(second), 1)
	wantMessageError(t, n, n.say(moved), 403, "SignatureDoesNotMatch")
	wantUntouched(t, n)
}

// TestHipObjTransferFails: what goes wrong after READY has its status, ends the session, and stores nothing.
func TestHipObjTransferFails(t *testing.T) {
	n, x, _ := hipNode(t)
	for _, op := range []string{"GET", "PUT"} {
		for name, c := range map[string]struct {
			move, end error
			status    int
			code      string
		}{
			"memory":     {fabric.ErrTransfer, nil, 500, "RDMATransferFailed"},
			"fenced":     {fabric.ErrFenced, fabric.ErrFenced, 500, "RDMATransferFailed"},
			"at the end": {nil, fmt.Errorf("immediate: %w", fabric.ErrTransfer), 500, "RDMATransferFailed"},
			"late":       {fmt.Errorf("%w: %w", fabric.ErrFenced, fabric.ErrOverdue), nil, 408, "RequestTimeout"},
			"late at the end": {nil, fmt.Errorf("%w: %w", fabric.ErrFenced, fabric.ErrOverdue), 408,
				"RequestTimeout"},
			"in use": {nil, errors.Join(fabric.ErrFenced, fabric.ErrLingering), 0, ""},
		} {
			session := n.prepare(preparing(op, map[string]string{"GET": "/rdm/k", "PUT": "/rdm/k2"}[op], 100))
			n.fabric.moveErr, n.fabric.endErr = c.move, c.end
			final := n.say(readying(session, 0).bytes())
			eventually(t, func() bool { return x.open() == 0 })
			n.fabric.moveErr, n.fabric.endErr = nil, nil
			if c.status == 0 && final.status != 0 {
				t.Errorf("%s %s: answered %d", op, name, final.status)
			} else if c.status != 0 {
				wantMessageError(t, n, final, c.status, c.code)
			}
			wantMessageError(t, n, n.say(readying(session, 0).bytes()), 409, "OperationAborted")
			if op == "PUT" {
				if got := n.send(request{method: "HEAD", path: "/rdm/k2"}); got.status != 404 {
					t.Fatalf("%s: stored", name)
				}
			}
		}
	}
}

// TestHipObjDeadline: when the deadline passes, nothing is stored and the answer is 408.
func TestHipObjDeadline(t *testing.T) {
	n, x, _ := hipNode(t)
	x.life = 50 * time.Millisecond
	n.fabric.gate = make(chan struct{})
	for op, key := range map[string]string{"GET": "k", "PUT": "late"} {
		wantMessageError(t, n, n.say(readying(n.prepare(preparing(op, "/rdm/"+key, 100)), 0).bytes()), 408,
			"RequestTimeout")
		if events := n.fabric.log(); !slices.Equal(events[len(events)-3:], []string{"abort", "close", "finish"}) {
			t.Errorf("%s: events %v", op, events)
		}
	}
	if got := n.send(request{method: "HEAD", path: "/rdm/late"}); got.status != 404 {
		t.Error("stored after the deadline")
	}
}

// TestHipObjPeerGone: a PUT is not committed for a client that went away after its READY.
func TestHipObjPeerGone(t *testing.T) {
	n, x, _ := hipNode(t)
	n.fabric.gate, n.fabric.entered = make(chan struct{}), make(chan struct{}, 1)
	session := n.prepare(preparing("PUT", "/rdm/gone", 100))
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(readying(session, 0).bytes()); err != nil {
		t.Fatal(err)
	}
	<-n.fabric.entered
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return x.open() == 0 })
	if got := n.send(request{method: "HEAD", path: "/rdm/gone"}); got.status != 404 {
		t.Error("committed for a client that went away")
	}
}

// TestHipObjCancelWaits: the answer to a CANCEL comes when nothing touches the client's memory any more.
func TestHipObjCancelWaits(t *testing.T) {
	n, x, _ := hipNode(t)
	n.fabric.gate, n.fabric.entered = make(chan struct{}), make(chan struct{}, 1)
	for op, key := range map[string]string{"GET": "k", "PUT": "stopped"} {
		session := n.prepare(preparing(op, "/rdm/"+key, 100))
		final := make(chan answer, 1)
		go func() { final <- n.say(readying(session, 0).bytes()) }()
		<-n.fabric.entered
		if got := n.say(cancelling(session).bytes()); got.status != 204 {
			t.Errorf("CANCEL: %d", got.status)
		}
		if events := n.fabric.log(); x.open() != 0 || events[len(events)-1] != "finish" {
			t.Errorf("answered before the end: %v", events)
		}
		wantMessageError(t, n, <-final, 500, "RDMATransferFailed")
	}
	if got := n.send(request{method: "HEAD", path: "/rdm/stopped"}); got.status != 404 {
		t.Error("stored after CANCEL")
	}
	x.cannotCancel(fabric.ErrLingering)
	if got := n.say(cancelling(strings.Repeat("0", 32)).bytes()); got.status != 0 {
		t.Errorf("answered %d while memory is in use", got.status)
	}
	x.cannotCancel(nil)
}

// TestHipObjBusy: buffers are reserved before the client's memory is touched; without any the client tries again.
func TestHipObjBusy(t *testing.T) {
	n, _, _ := hipNode(t)
	all, err := n.arena.Share("fabric").Reserve(context.Background(), 8)
	if err != nil {
		t.Fatal(err)
	}
	wantMessageError(t, n, n.say(readying(n.prepare(preparing("GET", "/rdm/k", 100)), 0).bytes()), 503, "SlowDown")
	wantMessageError(t, n, n.say(readying(n.prepare(preparing("PUT", "/rdm/busy", 100)), 0).bytes()), 503,
		"SlowDown")
	all.Close()
	if events := n.fabric.log(); slices.Contains(events, "read") || slices.Contains(events, "write") {
		t.Errorf("client memory was touched: %v", events)
	}
}

// TestHipObjAccessIsAskedTwice: a key that is revoked, or a bucket that is another one, ends what PREPARE allowed.
func TestHipObjAccessIsAskedTwice(t *testing.T) {
	n, x, _ := hipNode(t)
	c := n.alice()
	makeBucket(t, c, "alices")
	mine := func(m message) []byte { return as(m, aliceID, aliceSecret).bytes() }
	session := n.prepare(as(preparing("PUT", "/alices/k", 100), aliceID, aliceSecret))
	must(c.DeleteBucket(t.Context(), &awss3.DeleteBucketInput{Bucket: aws.String("alices")}))(t)
	makeBucket(t, n.root(), "alices")
	wantMessageError(t, n, n.say(mine(readying(session, 0))), 404, "NoSuchBucket")
	wantMessageError(t, n, n.say(mine(preparing("PUT", "/alices/k", 100))), 403, "AccessDenied")
	makeBucket(t, c, "alices2")
	session = n.prepare(as(preparing("PUT", "/alices2/k", 100), aliceID, aliceSecret))
	x.prepared = func() {
		if err := n.keys.Delete(context.Background(), aliceID); err != nil {
			t.Error(err)
		}
	}
	before := x.open()
	wantMessageError(t, n, n.say(mine(preparing("PUT", "/alices2/k", 100))), 403, "InvalidAccessKeyId")
	if x.open() != before {
		t.Error("a key that was revoked meanwhile has a new session")
	}
	wantMessageError(t, n, n.say(mine(readying(session, 0))), 403, "InvalidAccessKeyId")
	for _, event := range n.fabric.log() {
		if event == "read" {
			t.Error("client memory was read")
		}
	}
}

// TestHipObjOff: a node that does not offer the protocol says so to everybody, and one that does to what it does not
// know.
func TestHipObjOff(t *testing.T) {
	off, _, _ := hipNode(t, func(o *tweakOptions) { o.Exchange = nil })
	noRDMA, _, _ := hipNode(t, func(o *tweakOptions) { o.RDMA.Enabled = false })
	on, _, _ := hipNode(t)
	for _, path := range []string{"prepare", "ready", "cancel", "else"} {
		for _, n := range []*node{off, noRDMA} {
			wantMessageError(t, n, n.send(request{method: "POST", path: "/.hipobj-rc/" + path,
				anonymous: true}), 501,
				"NotImplemented")
		}
		want := 403
		if path == "else" {
			want = 501
		}
		if got := on.send(request{method: "POST", path: "/.hipobj-rc/" + path,
			anonymous: true}); got.status != want {
			t.Errorf("unsigned %s: %d %s", path, got.status, got.body)
		}
	}
}

// TestHipObjIsCounted: bytes are counted by the operation that they moved for and the path that carried them, each
// message has its line, and neither log has anything that gives access to memory.
func TestHipObjIsCounted(t *testing.T) {
	var log, access syncBuffer
	lines, err := accesslog.Open(accesslog.Options{To: &access})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, lines.Close(context.Background())) })
	registry := prometheus.NewRegistry()
	n, x, p := hipNode(t, func(o *tweakOptions) {
		o.Log, o.Access, o.Metrics = debugLogger(&log), lines, gateway.NewMetrics(registry)
	})
	session := n.prepare(preparing("GET", "/rdm/k", 100))
	wantFinal(t, n, n.say(readying(session, 0).bytes()), 200, p[:100])
	wantFinal(t, n, n.say(readying(n.prepare(preparing("PUT", "/rdm/new", 70)), 0).bytes()), 200,
		n.fabric.memory[:70])
	n.say(preparing("PUT", "/rdm/k", 100, "x-amz-rdma-psn", "0").bytes())
	n.say(readying(session, 0, "x-amz-rdma-mr-rkey", "c0ffee").bytes())
	left := n.prepare(preparing("PUT", "/rdm/k", 100))
	n.say(readying(left, 0, "x-amz-rdma-cookie", "7b2b3c4d").bytes())
	n.say(cancelling(left).bytes())
	n.say(preparing("GET", "/rdm/k", 100, "x-amz-rdma-protocol", "-").bytes())
	x.fails = fabric.ErrTransfer
	n.say(preparing("PUT", "/rdm/k", 100).bytes())
	for name, want := range map[string]float64{
		`penstock_payload_bytes_total{op="GetObject",path="hipobj"}`:                  100,
		`penstock_payload_bytes_total{op="PutObject",path="hipobj"}`:                  70,
		`penstock_requests_total{op="HipObjPrepare",status="2xx"}`:                    3,
		`penstock_requests_total{op="HipObjPrepare",status="4xx"}`:                    1,
		`penstock_requests_total{op="HipObjReady",status="4xx"}`:                      2,
		`penstock_requests_total{op="HipObjCancel",status="2xx"}`:                     1,
		`penstock_rdma_declines_total{op="HipObjPrepare",reason="unsupported-token"}`: 1,
	} {
		eventually(t, func() bool { return counted(t, registry)[name] == want })
	}
	if err := lines.Reopen(t.Context()); err != nil { // writes what waits
		t.Fatal(err)
	}
	for _, want := range []string{`"operation":"HipObjPrepare","bucket":"rdm","key":"k","status":200`,
		`"operation":"GetObject","bucket":"rdm","key":"k","status":200`, `"path":"hipobj"`,
		`"operation":"HipObjReady","status":403`, `"operation":"HipObjCancel","status":204`} {
		eventually(t, func() bool { return strings.Contains(access.String(), want) })
	}
	for _, secret := range []string{session, session[:8], left, cookie, "7b2b3c4d", peerToken(1, peerQPN,
		peerGID), "c0ffee",
		"dead01"} {
		if strings.Contains(log.String(), secret) || strings.Contains(access.String(), secret) {
			t.Errorf("a log has %q", secret)
		}
	}
	if !strings.Contains(log.String(), "message refused") {
		t.Error("the log does not say why a message is refused")
	}
}

// counted reads the counters, in the form of their text.
func counted(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, f := range must(r.Gather())(t) {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			all[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue()
		}
	}
	return all
}
