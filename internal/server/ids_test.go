package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
)

// talk sends bytes over a fresh connection and returns all that comes back.
func talk(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	go func() { _, _ = conn.Write([]byte(text)) }() // the server may answer and close before it has read all
	all, _ := io.ReadAll(conn)                      // a reset after the answer is fine
	return string(all)
}

// TestAdminAnswersHaveARequestID: every answer of the admin listener, too, whoever writes it.
func TestAdminAnswersHaveARequestID(t *testing.T) {
	r := start(t, configFor(t, t.TempDir()), nil)
	seen := map[string]bool{}
	id := regexp.MustCompile(`(?i)\r\nX-Amz-Request-Id: ([0-9A-F]{16})\r\n`)
	for _, c := range []struct{ request, status string }{
		{"GET /metrics", "200"}, {"GET /livez", "200"}, {"GET /readyz", "200"}, {"GET /nothing", "404"},
		{"POST /metrics", "405"}, {"GET //livez", "307"}, {"BREW /livez", "405"},
		{"GET /livez HTTP/1.1\r\nBad Name: x\r\n\r\n", "400"}, {"\x16\x03\x01\x00\x05hello\r\n\r\n", "400"},
		{"GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("x", 2<<20) + "\r\n\r\n", "431"},
		{"GET / HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n", "417"},
	} {
		text := c.request
		if !strings.Contains(text, "\r\n") {
			text += " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
		}
		got := talk(t, r.s.AdminAddr().String(), text)
		m := id.FindStringSubmatch(got)
		if !strings.HasPrefix(got, "HTTP/1.1 "+c.status+" ") || m == nil || seen[m[1]] {
			t.Errorf("%.60q: %.300q", c.request, got)
			continue
		}
		seen[m[1]] = true
		if c.status == "400" && !strings.Contains(got, fmt.Sprintf("(request %s)", m[1])) {
			t.Errorf("%.60q: the text does not name the request: %q", c.request, got)
		}
	}
}

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

func (s *syncBuffer) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestSessionLinesNameTheRequestThatOpenedThem: of both fabrics, at the begin and at the end; the access
// log has the same ids.
func TestSessionLinesNameTheRequestThatOpenedThem(t *testing.T) {
	var log syncBuffer
	c := configFor(t, t.TempDir())
	c.HTTP.AccessLog = filepath.Join(t.TempDir(), "access.log")
	r := start(t, c, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if status, body := r.do("PUT", "/bucket", nil); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	for _, f := range []client.Fabric{client.SHM, client.TCP} {
		c, err := client.New(client.Config{
			Endpoint: "http://" + r.s.Addr().String(), Fabric: f,
			Credentials: client.Credentials{AccessKey: r.key.ID, SecretKey: string(r.key.Secret)},
		})
		if err != nil {
			t.Fatal(err)
		}
		region, err := c.Alloc(100_000)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.PutFrom(t.Context(), region.All(), "bucket", "k", client.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(region.Close(), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	opened := map[any]bool{}
	for _, line := range readLines(t, c.HTTP.AccessLog) {
		if line["operation"] == "Control" && line["method"] == "POST" {
			opened[line["request_id"]] = true
		}
	}
	for _, message := range []string{
		`"session open"`, `"session closed"`, `"data connection open"`, `"data connection closed"`,
	} {
		lines := regexp.MustCompile(`msg=`+message+`.* request_id=([0-9A-F]+)`).FindAllStringSubmatch(log.text(), -1)
		if len(lines) == 0 {
			t.Errorf("no line %s with an id in\n%s", message, log.text())
		}
		for _, l := range lines {
			if !opened[l[1]] {
				t.Errorf("%s names %s, which opened no session", message, l[1])
			}
		}
	}
}
