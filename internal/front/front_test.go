package front

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// loopback starts a server whose handler marks its answers, and sends back the request's body.
func loopback(t testing.TB) string {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("From", "handler")
			body, _ := io.ReadAll(r.Body) // a request that ends early is fine
			_, _ = w.Write(body)
		}),
		DisableGeneralOptionsHandler: true, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	open := Attach(srv)
	l := NewListener(inner, Options{
		Refuse: func(r Refusal) []byte {
			return fmt.Appendf(nil, "HTTP/1.1 %d x\r\nFrom: front\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", r.Status)
		},
		Log: slog.New(slog.DiscardHandler),
	})
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		_ = srv.Close()
		served.Wait()
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for end := time.Now().Add(10 * time.Second); open.Load() > 0; <-ticker.C {
			if time.Now().After(end) {
				t.Error("connections stay")
				return
			}
		}
	})
	return inner.Addr().String()
}

// everyAnswer sends bytes, and checks that each answer has exactly one author. http.ReadResponse is the
// oracle of where an answer ends.
func everyAnswer(t *testing.T, address string, text []byte) (answers []string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	go func() {
		_, _ = conn.Write(text) // the server may close before it has read all
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	all, _ := io.ReadAll(conn) // a reset after the answer is fine
	r := bufio.NewReader(bytes.NewReader(all))
	for {
		resp, err := http.ReadResponse(r, nil)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return answers
		}
		if err != nil {
			t.Fatalf("%v: %q to %q", err, all, text)
		}
		if resp.StatusCode == http.StatusContinue {
			continue
		}
		from := resp.Header["From"]
		if len(from) != 1 {
			t.Fatalf("an answer of %v: %q to %q", from, all, text)
		}
		answers = append(answers, fmt.Sprint(resp.StatusCode, " ", from[0]))
		if head := strings.HasPrefix(string(text), "HEAD "); head {
			return answers // what its answer's length means depends on the request
		}
		_, _ = io.Copy(io.Discard, resp.Body) // cut off bodies are net/http's to show
	}
}

const refusal = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400"

// echo is a request whose answer has the body.
func echo(body string) string {
	return fmt.Sprintf("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

var raw = []struct{ text, want string }{
	{echo("a"), "[200 handler]"},
	{echo(refusal), "[200 handler]"},
	{echo(strings.Repeat("x", 2048-len("x")) + refusal), "[200 handler]"},
	{echo(strings.Repeat(refusal, 1000)), "[200 handler]"},
	{echo(refusal) + echo(refusal) + "\x00\r\n\r\n", "[200 handler 200 handler 400 front]"},
	{"GET / HTTP/1.1\r\n\r\n", "[400 front]"},
	{"GET / HTTP/1.1\r\nHost: x\r\nExpect: y\r\n\r\n" + echo("a"), "[417 front]"},
	{"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: y\r\n\r\n", "[501 front]"},
	{"GET / HTTP/3.0\r\nHost: x\r\n\r\n", "[505 front]"},
	{"GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("y", 200<<10) + "\r\n\r\n", "[431 front]"},
	{"PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na", "[200 handler]"},
	{"GET / HTTP/1.0\r\n\r\n", "[200 handler]"},
	{"GET / HTT", "[400 front]"},
	{"", "[]"},
}

func TestEveryAnswerHasOneAuthor(t *testing.T) {
	address := loopback(t)
	for _, c := range raw {
		if got := fmt.Sprint(everyAnswer(t, address, []byte(c.text))); got != c.want {
			t.Errorf("%.80q: %s, want %s", c.text, got, c.want)
		}
	}
}

func FuzzEveryAnswerHasOneAuthor(f *testing.F) {
	address := loopback(f)
	for _, c := range raw {
		f.Add([]byte(c.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { everyAnswer(t, address, text) })
}

// TestRefusedConnectionEnds: also when the request announced a body that never comes.
func TestRefusedConnectionEnds(t *testing.T) {
	address := loopback(t)
	for _, text := range []string{
		"PUT / HTTP/1.1\r\nHost: x\r\nExpect: y\r\nContent-Length: 5\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
		"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: y\r\nContent-Length: 5\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // well above lingerWait
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(all), "From: front") {
			t.Errorf("%q: %q, %v", text, all, err)
		}
		_ = conn.Close()
	}
}

// TestRefusalReachesAClientThatGoesOnSending: a close with unread bytes would be a reset, which takes the
// answer away.
func TestRefusalReachesAClientThatGoesOnSending(t *testing.T) {
	address := loopback(t)
	for range 20 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 100_000))); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(all), "From: front") {
			t.Errorf("%q, %v", all, err)
		}
		_ = conn.Close()
	}
}
