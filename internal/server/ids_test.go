package server_test

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"
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
