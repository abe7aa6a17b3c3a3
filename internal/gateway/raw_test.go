package gateway_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/s3"
)

func b64(p []byte) string { return base64.StdEncoding.EncodeToString(p) }

// syncBuffer collects a log.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Reset forgets.
func (s *syncBuffer) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Reset()
}

func debugLogger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(10 * time.Second); !ok(); <-ticker.C {
		if time.Now().After(end) {
			t.Fatal("it did not happen in 10 s")
		}
	}
}

// raw is a signed request as it goes over the wire. The body follows as it is.
func (n *node) raw(r request) []byte {
	n.t.Helper()
	req, err := http.NewRequest(r.method, n.url+r.path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	o := s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: rootID, SecretKey: rootSecret}, Region: testRegion, Time: time.Now(),
		PayloadHash: r.hash,
	}
	if err := n.signer.Sign(req, o); err != nil {
		n.t.Fatal(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.method, r.path, n.host)
	for k, values := range req.Header {
		fmt.Fprintf(&b, "%s: %s\r\n", k, values[0])
	}
	for k, v := range r.unsigned {
		fmt.Fprintf(&b, "%s: %s\r\n", k, v)
	}
	b.WriteString("\r\n")
	if r.body != nil {
		if _, err := io.Copy(&b, r.body); err != nil {
			n.t.Fatal(err)
		}
	}
	return b.Bytes()
}

// talk writes bytes to a fresh connection and reads one answer.
func (n *node) talk(p []byte) (*http.Response, string) {
	n.t.Helper()
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	go func() { _, _ = conn.Write(p) }() // the server may answer and close before it has read all
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		n.t.Fatalf("no answer: %v", err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) // a connection cut after the answer is fine
	return resp, string(body)
}

func (n *node) wantRefused(p []byte, status int, code string) {
	n.t.Helper()
	resp, body := n.talk(p)
	if resp.StatusCode != status || !strings.Contains(body, "<Code>"+code+"</Code>") {
		n.t.Errorf("got %d %s, want %d %s, for %.200q", resp.StatusCode, body, status, code, p)
	}
	if resp.Header.Get("X-Amz-Request-Id") == "" {
		n.t.Error("no request id")
	}
}

// wantNothing checks that no object came out of all that.
func (n *node) wantNothing(bucket string) {
	n.t.Helper()
	got := n.send(request{method: "GET", path: "/" + bucket + "?list-type=2"})
	if got.status != 200 || bytes.Contains(got.body, []byte("<Key>")) {
		n.t.Errorf("%d %s", got.status, got.body)
	}
	eventually(n.t, func() bool { return n.arena.InUse() == 0 })
}

func TestHostileBodies(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "hst")
	length := func(l string) map[string]string { return map[string]string{"Content-Length": l} }
	sha := strings.Repeat("00", 32)
	chunked := map[string]string{
		"X-Amz-Decoded-Content-Length": "5", "Content-Encoding": "aws-chunked", "X-Amz-Trailer": "x-amz-checksum-crc32",
	}
	const unsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	framed := func(body string, more ...string) request {
		h := map[string]string{}
		for k, v := range chunked {
			h[k] = v
		}
		for i := 0; i+1 < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return request{
			method: "PUT", path: "/hst/k", header: h, hash: unsignedTrailer, unsigned: length(fmt.Sprint(len(body))),
			body: strings.NewReader(body),
		}
	}
	for name, c := range map[string]struct {
		request
		status int
		code   string
	}{
		"no length": {request{method: "PUT", path: "/hst/k", unsigned: map[string]string{
			"Transfer-Encoding": "chunked",
		},
			body: strings.NewReader("5\r\nhello\r\n0\r\n\r\n")}, 411, "MissingContentLength"},
		"too large": {request{
			method: "PUT", path: "/hst/k", unsigned: length("5368709121"), body: strings.NewReader("x"),
		},
			400, "EntityTooLarge"},
		"absurd": {request{method: "PUT", path: "/hst/k", unsigned: length("9223372036854775807"),
			body: strings.NewReader("x")}, 400, "EntityTooLarge"},
		"wrong hash": {request{method: "PUT", path: "/hst/k", hash: sha, unsigned: length("5"),
			body: strings.NewReader("hello")}, 400, "XAmzContentSHA256Mismatch"},
		"bad md5": {request{method: "PUT", path: "/hst/k", header: map[string]string{"Content-Md5": "!"},
			unsigned: length("5"), body: strings.NewReader("hello")}, 400, "InvalidDigest"},
		"metadata": {request{method: "PUT", path: "/hst/k", header: map[string]string{
			"X-Amz-Meta-A": strings.Repeat("x", 3000)}, unsigned: length("0")}, 400, "MetadataTooLarge"},
		"long key": {request{method: "PUT", path: "/hst/" + strings.Repeat("k", 1025), unsigned: length("0")},
			400, "KeyTooLongError"},
		"short trailer":  {framed("5\r\nhello\r\n0\r\n\r\n"), 400, "MalformedTrailerError"},
		"wrong trailer":  {framed("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"), 400, "BadDigest"},
		"chunk size":     {framed("zz\r\nhello\r\n0\r\n\r\n"), 400, ""},
		"endless size":   {framed(strings.Repeat("0", 100_000)), 400, ""},
		"negative chunk": {framed("-5\r\nhello\r\n0\r\n\r\n"), 400, ""},
		"huge chunk":     {framed("ffffffffffffffff\r\nhello\r\n0\r\n\r\n"), 400, ""},
		"short of chunk": {framed("3\r\nhel\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"), 400, "IncompleteBody"},
		"no decoded length": {request{method: "PUT", path: "/hst/k", hash: unsignedTrailer, unsigned: length("5"),
			body: strings.NewReader("hello")}, 411, "MissingContentLength"},
		"unknown trailer": {framed("5\r\nhello\r\n0\r\nx-amz-checksum-md4:AA==\r\n\r\n",
			"X-Amz-Trailer", "x-amz-checksum-md4"), 400, "InvalidRequest"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := n.talk(n.raw(c.request))
			ok := c.code == "" && resp.StatusCode >= 400 && resp.StatusCode < 500 && strings.Contains(body, "<Code>") ||
				resp.StatusCode == c.status && strings.Contains(body, "<Code>"+c.code+"</Code>")
			if !ok {
				t.Errorf("%d %s, want %d %s", resp.StatusCode, body, c.status, c.code)
			}
		})
	}
	n.wantNothing("hst")
}

func TestTruncatedBodyStoresNothing(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "hst")
	for _, size := range []string{"5", "100000", "2000000"} {
		conn, err := net.Dial("tcp", n.host)
		if err != nil {
			t.Fatal(err)
		}
		r := n.raw(request{method: "PUT", path: "/hst/k", unsigned: map[string]string{"Content-Length": size},
			body: strings.NewReader("hel")})
		if _, err := conn.Write(r); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 400 || !bytes.Contains(body, []byte("IncompleteBody")) {
			t.Errorf("%s: %d %s", size, resp.StatusCode, body)
		}
		_ = resp.Body.Close()
		_ = conn.Close()
	}
	n.wantNothing("hst")
}

// TestSlowBodyIsCutOff: a client that stops sending gets RequestTimeout and gives its buffers back.
func TestSlowBodyIsCutOff(t *testing.T) {
	n := newNode(t, stall(100*time.Millisecond))
	makeBucket(t, n.root(), "hst")
	n.wantRefused(n.raw(request{method: "PUT", path: "/hst/k", unsigned: map[string]string{"Content-Length": "100000"},
		body: strings.NewReader("hello")}), 400, "RequestTimeout")
	n.wantNothing("hst")
}

// TestTricklingBodyIsCutOff: one byte at a time keeps every single wait short, but not the mean rate.
func TestTricklingBodyIsCutOff(t *testing.T) {
	n := newNode(t, stall(200*time.Millisecond))
	makeBucket(t, n.root(), "hst")
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	head := n.raw(request{method: "PUT", path: "/hst/k", unsigned: map[string]string{"Content-Length": "100"}})
	if _, err := conn.Write(head); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
			if _, err := conn.Write([]byte("x")); err != nil {
				return
			}
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	start := time.Now()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != 400 {
		t.Fatalf("%v %v", resp, err)
	}
	if took := time.Since(start); took > 1500*time.Millisecond {
		t.Errorf("cut off only after %v", took)
	}
	_ = resp.Body.Close()
	_ = conn.Close()
	<-done
	n.wantNothing("hst")
}

// TestStalledReaderIsCutOff: a client that does not read its answer loses the connection, and the
// buffers come back.
func TestStalledReaderIsCutOff(t *testing.T) {
	n := newNode(t, stall(200*time.Millisecond))
	c := n.root()
	makeBucket(t, c, "hst")
	put(t, c, "hst", "big", randomBytes(32<<20))
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(n.raw(request{method: "GET", path: "/hst/big"})); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return n.g.InFlight() == 1 })
	eventually(t, func() bool { return n.g.InFlight() == 0 && n.arena.InUse() == 0 })
}

// TestStalledReaderOfALaterRequestIsCutOff: the limit holds for every request of a connection, however
// soon it follows another one that wrote within its own.
func TestStalledReaderOfALaterRequestIsCutOff(t *testing.T) {
	n := newNode(t, stall(500*time.Millisecond))
	c := n.root()
	makeBucket(t, c, "hst")
	put(t, c, "hst", "big", randomBytes(32<<20))
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	small, big := n.raw(request{method: "GET", path: "/hst?location"}), n.raw(request{method: "GET", path: "/hst/big"})
	if _, err := conn.Write(append(small, big...)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return n.g.InFlight() == 1 && n.arena.InUse() > 0 })
	eventually(t, func() bool { return n.g.InFlight() == 0 && n.arena.InUse() == 0 })
}

func stall(d time.Duration) tweak {
	return func(o *tweakOptions) { o.Limits.Stall, o.Limits.MinRate = d, 1<<20 }
}

// TestS3_24: after an early error on a PUT the connection is drained or closed; the next request on it is
// not read out of the old body.
func TestS3_24(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "hst")
	for _, size := range []int{100, 100_000, 5 << 20} {
		inner := n.raw(request{method: "DELETE", path: "/hst"}) // what a confused server would run
		body := append(bytes.Repeat([]byte("x"), size-len(inner)%size), inner...)
		first := n.raw(request{method: "PUT", path: "/nobucket/k",
			unsigned: map[string]string{"Content-Length": fmt.Sprint(len(body))}, body: bytes.NewReader(body)})
		conn, err := net.Dial("tcp", n.host)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		go func() { _, _ = conn.Write(append(first, n.raw(request{method: "GET", path: "/"})...)) }()
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 404 {
			t.Fatalf("%d: %v %v", size, resp, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if second, err := http.ReadResponse(r, nil); err == nil {
			if second.StatusCode != 200 {
				t.Errorf("%d: the next request on the connection got %d", size, second.StatusCode)
			}
			_ = second.Body.Close()
		}
		_ = conn.Close()
	}
	if got := n.send(request{method: "HEAD", path: "/hst"}); got.status != 200 {
		t.Error("a request was read out of a body")
	}
}

// TestS3_19: 100 Continue comes only after authentication and every check; otherwise the error comes at
// once.
func TestS3_19(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "hst")
	expect := map[string]string{"Expect": "100-continue", "Content-Length": "5"}
	line := func(r request) (*net.TCPConn, string) {
		conn, err := net.Dial("tcp", n.host)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Write(n.raw(r)); err != nil {
			t.Fatal(err)
		}
		text, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return conn.(*net.TCPConn), strings.TrimSpace(text)
	}
	conn, first := line(request{method: "PUT", path: "/hst/k", unsigned: expect})
	if first != "HTTP/1.1 100 Continue" {
		t.Errorf("good request: %q", first)
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(io.LimitReader(conn, 100))
	_ = conn.Close()
	for name, r := range map[string]request{
		"no bucket":    {method: "PUT", path: "/nobucket/k", unsigned: expect},
		"precondition": {method: "PUT", path: "/hst/k", header: map[string]string{"If-Match": "x"}, unsigned: expect},
		"too large": {method: "PUT", path: "/hst/x", unsigned: map[string]string{
			"Expect": "100-continue", "Content-Length": "6000000000"}},
	} {
		conn, first := line(r)
		if strings.Contains(first, " 100 ") || !strings.Contains(first, " 4") {
			t.Errorf("%s: %q", name, first)
		}
		_ = conn.Close()
	}
}

func TestAbsurdHeaders(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "hst")
	long := map[string]string{"X-Custom": strings.Repeat("x", 40<<10)}
	n.wantRefused(n.raw(request{method: "GET", path: "/hst", unsigned: long}), 400, "RequestHeaderSectionTooLarge")
	many := map[string]string{}
	for i := range 2000 {
		many[fmt.Sprintf("X-H%d", i)] = "some value"
	}
	n.wantRefused(n.raw(request{method: "GET", path: "/hst", unsigned: many}), 400, "RequestHeaderSectionTooLarge")
	// TestS3_30: headers of 16 KiB are fine.
	if got := n.send(request{method: "GET", path: "/hst", unsigned: map[string]string{
		"X-Custom": strings.Repeat("x", 16<<10)}}); got.status != 200 {
		t.Errorf("16 KiB of headers: %d %s", got.status, got.body)
	}
	for _, garbage := range []string{
		"GET / HTTP/9.9\r\n\r\n", "\x00\x01\x02\r\n\r\n", "GET\r\n\r\n",
		"PUT /hst/k HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
		"PUT /hst/k HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
		"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET /hst/k HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	} {
		if resp, body := n.talk([]byte(garbage)); resp.StatusCode < 400 || resp.StatusCode > 505 {
			t.Errorf("%q: %d %s", garbage, resp.StatusCode, body)
		}
	}
	n.wantNothing("hst")
}

// TestPipelinedGarbage: what follows a good request does not matter to it.
func TestPipelinedGarbage(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "hst")
	resp, body := n.talk(append(n.raw(request{
		method: "GET", path: "/hst?location",
	}), "\r\n\r\nGARBAGE \x00\xff\r\n\r\n"...))
	if resp.StatusCode != 200 || !strings.Contains(body, testRegion) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	n.wantNothing("hst")
}

func TestArenaBusyIsSlowDown(t *testing.T) {
	n := newNode(t)
	c := n.root()
	makeBucket(t, c, "hst")
	put(t, c, "hst", "k", randomBytes(1<<20))
	held, err := n.arena.Share("http").Reserve(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	got := n.send(request{method: "GET", path: "/hst/k"})
	if got.status != 503 || !bytes.Contains(got.body, []byte("SlowDown")) || got.header.Get("Retry-After") == "" {
		t.Errorf("GET: %d %s", got.status, got.body)
	}
	got = n.send(request{method: "PUT", path: "/hst/k", body: bytes.NewReader(make([]byte, 1<<20)), length: 1 << 20})
	if got.status != 503 {
		t.Errorf("PUT: %d %s", got.status, got.body)
	}
	held.Close()
	if got := n.send(request{method: "GET", path: "/hst/k"}); got.status != 200 || len(got.body) != 1<<20 {
		t.Errorf("afterwards: %d", got.status)
	}
}
