package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/internal/accesslog"
)

// recorded is a node with an access log in memory.
type recorded struct {
	*node
	log  *accesslog.Log
	text *syncBuffer
}

func recordedNode(t *testing.T, tweaks ...tweak) *recorded {
	t.Helper()
	r := &recorded{text: &syncBuffer{}}
	var err error
	if r.log, err = accesslog.Open(accesslog.Options{To: r.text}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, r.log.Close(context.Background())) })
	r.node = newNode(t, append(tweaks, func(o *tweakOptions) { o.Access = r.log })...)
	return r
}

// line waits for the line of a request: it is written after the answer went out.
func (r *recorded) line(want func(line map[string]any) bool) (found map[string]any) {
	r.t.Helper()
	eventually(r.t, func() bool {
		if err := r.log.Reopen(r.t.Context()); err != nil { // writes what waits
			r.t.Fatal(err)
		}
		for text := range strings.Lines(r.text.String()) {
			var line map[string]any
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				r.t.Fatalf("%v: %s", err, text)
			}
			if want(line) {
				found = line
				return true
			}
		}
		return false
	})
	return found
}

func (r *recorded) lineOf(id string) map[string]any {
	r.t.Helper()
	return r.line(func(l map[string]any) bool { return l["request_id"] == id })
}

func wantMembers(t *testing.T, line map[string]any, pairs ...any) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got, name := line[pairs[i].(string)], pairs[i]; got != pairs[i+1] {
			t.Errorf("%s is %v, want %v, in %v", name, got, pairs[i+1], line)
		}
	}
}

func TestAccessLog(t *testing.T) {
	n := recordedNode(t)
	c := n.root()
	makeBucket(t, c, "acc")
	p := randomBytes(100_000)
	at := time.Now().Add(-time.Second)
	put(t, c, "acc", "a \"b\"\n", p)
	line := n.line(func(l map[string]any) bool { return l["operation"] == "PutObject" })
	when, err := time.Parse(time.RFC3339, line["time"].(string))
	if err != nil || when.Before(at) || when.After(time.Now()) {
		t.Errorf("time %v, %v", line["time"], err)
	}
	wantMembers(t, line, "method", "PUT", "bucket", "acc", "key", "a \"b\"\n", "status", 200.0, "path", "http",
		"payload_bytes", 100_000.0, "bytes_out", 0.0, "principal", "root", "access_key", rootID, "declined", nil)
	if in := line["bytes_in"].(float64); in < 100_000 || in > 101_000 {
		t.Errorf("%v bytes in", in)
	}
	if !strings.Contains(line["user_agent"].(string), "aws-sdk-go-v2") || line["total_us"].(float64) <= 0 ||
		line["first_byte_us"].(float64) > line["total_us"].(float64) || line["first_byte_us"].(float64) <= 0 {
		t.Errorf("%v", line)
	}
	for _, r := range []struct {
		request
		members []any
	}{
		{request{method: "GET", path: "/acc/a%20%22b%22%0A", header: map[string]string{"Range": "bytes=10-19"}},
			[]any{"operation", "GetObject", "status", 206.0, "bytes_out", 10.0, "payload_bytes", 10.0, "path", "http"}},
		{request{method: "HEAD", path: "/acc/none", id: aliceID, secret: aliceSecret},
			[]any{"operation", "HeadObject", "status", 403.0, "error", "AccessDenied", "principal", "alice", "path", nil}},
		{request{method: "GET", path: "/acc/none?versionId=null"},
			[]any{"status", 404.0, "error", "NoSuchKey", "key", "none", "version", "null", "payload_bytes", 0.0}},
		{request{method: "GET", path: "/", id: aliceID, secret: "wrong"},
			[]any{"status", 403.0, "error", "SignatureDoesNotMatch", "principal", nil, "access_key", nil}},
		{withToken("GET", "/acc/a%20%22b%22%0A", tokenFor(0, 1<<20)),
			[]any{"status", 200.0, "path", "tcp", "payload_bytes", 100_000.0, "bytes_out", 0.0}},
		{withToken("GET", "/acc/a%20%22b%22%0A", dcToken),
			[]any{"status", 501.0, "error", "NotImplemented", "declined", "no-rail", "session", nil, "path", nil}},
		{request{method: "GET", path: "/.penstock/livez", anonymous: true, unsigned: map[string]string{
			"Referer": "http://x/?X-Amz-Signature=hush#frag", "User-Agent": strings.Repeat("u", 300)}},
			[]any{"operation", "Control", "referer", "http://x/", "user_agent", strings.Repeat("u", 256) + "…"}},
	} {
		got := n.send(r.request)
		line := n.lineOf(got.header.Get("X-Amz-Request-Id"))
		wantMembers(t, line, r.members...)
		if r.header["X-Amz-Rdma-Token"] == tokenFor(0, 1<<20) && len(line["session"].(string)) != 8 {
			t.Errorf("session %v", line["session"])
		}
	}
	answers := n.rawAnswers([]byte("GET / HTTP/1.1\r\n\r\n"))
	wantMembers(t, n.lineOf(answers[0].header.Get("X-Amz-Request-Id")), "operation", "None", "status", 400.0,
		"error", "BadRequest", "bytes_out", float64(len(answers[0].body)), "method", nil)
}

// TestAccessLogHasNoSecrets: neither tokens nor signatures nor what a presigned URL holds.
func TestAccessLogHasNoSecrets(t *testing.T) {
	n := recordedNode(t)
	c := n.root()
	makeBucket(t, c, "acc")
	put(t, c, "acc", "k", []byte("hello"))
	token := tokenFor(0, 1<<20)
	signed := must(awss3.NewPresignClient(c).PresignGetObject(t.Context(), &awss3.GetObjectInput{
		Bucket: aws.String("acc"), Key: aws.String("k"),
	}))(t)
	resp, err := n.client.Get(signed.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	n.lineOf(resp.Header.Get("X-Amz-Request-Id"))
	got := n.send(withToken("GET", "/acc/k", token, "Referer", signed.URL))
	n.lineOf(got.header.Get("X-Amz-Request-Id"))
	u, err := url.Parse(signed.URL)
	if err != nil {
		t.Fatal(err)
	}
	text := n.text.String()
	for _, secret := range []string{
		rootSecret, token, strings.Split(token, ":")[2], u.Query().Get("X-Amz-Signature"), "Signature=", "X-Amz-",
	} {
		if secret == "" || strings.Contains(text, secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
}

// TestAccessLogOfCutAnswers: an answer that broke off says so, with status 0 and the reason.
func TestAccessLogOfCutAnswers(t *testing.T) {
	n := recordedNode(t, stall(300*time.Millisecond))
	c := n.root()
	makeBucket(t, c, "acc")
	put(t, c, "acc", "big", randomBytes(32<<20))
	cut := func(word string) func(map[string]any) bool {
		return func(l map[string]any) bool { return l["status"] == 0.0 && l["cut"] == word }
	}
	begin := func() net.Conn {
		conn, err := net.Dial("tcp", n.host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(n.raw(request{method: "GET", path: "/acc/big"})); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	stalled := begin()
	defer stalled.Close()
	wantMembers(t, n.line(cut("client-stalled")), "operation", "GetObject", "path", "http")
	left := begin()
	if _, err := io.ReadFull(left, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	_ = left.(*net.TCPConn).SetLinger(0)
	_ = left.Close()
	line := n.line(cut("client-gone"))
	if out := line["bytes_out"].(float64); out < 1<<19 || out >= 32<<20 {
		t.Errorf("%v bytes went out", out)
	}
}

// nowhere takes answers and keeps nothing.
type nowhere struct{ h http.Header }

func (n *nowhere) Header() http.Header         { return n.h }
func (n *nowhere) WriteHeader(int)             {}
func (n *nowhere) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkAccessLog is a whole small request, with and without its line.
func BenchmarkAccessLog(b *testing.B) {
	for name, path := range map[string]string{"off": "", "on": b.TempDir() + "/access.log"} {
		b.Run(name, func(b *testing.B) {
			var log *accesslog.Log
			if path != "" {
				var err error
				if log, err = accesslog.Open(accesslog.Options{Path: path}); err != nil {
					b.Fatal(err)
				}
				defer func() { closed(b, log.Close(context.Background())) }()
			}
			n := newNode(b, func(o *tweakOptions) { o.Access = log })
			c := n.root()
			makeBucket(b, c, "acc")
			put(b, c, "acc", "k", bytes.Repeat([]byte("x"), 4096))
			signed := n.raw(request{method: "GET", path: "/acc/k"})
			req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(signed)))
			if err != nil {
				b.Fatal(err)
			}
			req.RemoteAddr = "127.0.0.1:1234"
			w := &nowhere{h: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.h)
				n.g.ServeHTTP(w, req)
			}
		})
	}
}
