package gateway_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// rawAnswers reads everything that a connection says to the bytes and splits it into answers. The last
// request has to end the connection: an end of our side would cancel the requests.
func (n *node) rawAnswers(p []byte) (answers []rawAnswer) {
	n.t.Helper()
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	go func() { _, _ = conn.Write(p) }() // the server may answer and close before it has read all
	all, _ := io.ReadAll(conn)           // a reset after the answer is fine
	for _, text := range regexp.MustCompile(`HTTP/1\.[01] `).Split(string(all), -1)[1:] {
		head, body, _ := strings.Cut(text, "\r\n\r\n")
		a := rawAnswer{status: head[:min(3, len(head))], body: body, header: http.Header{}}
		for _, line := range strings.Split(head, "\r\n")[1:] {
			name, value, _ := strings.Cut(line, ": ")
			a.header.Add(name, value)
		}
		answers = append(answers, a)
	}
	return answers
}

type rawAnswer struct {
	status string
	header http.Header
	body   string
}

// errorIDs are the parts of an error document that name the request.
type errorIDs struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	RequestID string `xml:"RequestId"`
	HostID    string `xml:"HostId"`
}

// TestUnreadableRequestsGetARequestID: in S3's form, where net/http by itself would answer in plain text.
// Each error's document names the same request as its header.
func TestUnreadableRequestsGetARequestID(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "ids")
	const last = "\r\nConnection: close\r\n\r\n"
	good := string(n.raw(request{method: "GET", path: "/ids?location"}))
	for _, c := range []struct {
		name, text   string
		status, code string // of the last answer
	}{
		{"good", strings.TrimSuffix(good, "\r\n\r\n") + last, "200", ""},
		{"unsigned", "GET / HTTP/1.1\r\nHost: x" + last, "403", "AccessDenied"},
		{"health", "GET /.penstock/livez HTTP/1.1\r\nHost: x" + last, "200", ""},
		{"control plane", "GET /.penstock/fabric/v1 HTTP/1.1\r\nHost: x" + last, "403", "AccessDenied"},
		{"hipobj", "POST /.hipobj-rc/prepare HTTP/1.1\r\nHost: x" + last, "501", "NotImplemented"},
		{"preflight", "OPTIONS /ids HTTP/1.1\r\nHost: x" + last, "403", "AccessDenied"},
		{"options of all", "OPTIONS * HTTP/1.1\r\nHost: x" + last, "", ""},
		{"unknown method", "BREW /ids HTTP/1.1\r\nHost: x" + last, "403", "AccessDenied"},
		{"escape", "GET /%zz HTTP/1.1\r\nHost: x" + last, "400", "BadRequest"},
		{"not HTTP", "\x00\x01\x02\r\n\r\n", "400", "BadRequest"},
		{"no target", "GET\r\n\r\n", "400", "BadRequest"},
		{"absurd version", "GET / HTTP/9.9\r\nHost: x" + last, "505", "HttpVersionNotSupported"},
		{"version is no number", "GET / HTTP/x\r\nHost: x" + last, "400", "BadRequest"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", ""},
		{"no host", "GET / HTTP/1.1\r\n\r\n", "400", "BadRequest"},
		{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400", "BadRequest"},
		{"bad host", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400", "BadRequest"},
		{"header name", "GET / HTTP/1.1\r\nHost: x\r\nBad Name: y\r\n\r\n", "400", "BadRequest"},
		{"header value", "GET / HTTP/1.1\r\nHost: x\r\nName: \x01\r\n\r\n", "400", "BadRequest"},
		{"no colon", "GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n", "400", "BadRequest"},
		{"negative length", "PUT /ids/k HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", "400", "BadRequest"},
		{"two lengths", "PUT /ids/k HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "400",
			"BadRequest"},
		{"transfer encoding", "PUT /ids/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", "501",
			"NotImplemented"},
		{"expectation", "PUT /ids/k HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\nContent-Length: 1\r\n\r\n", "417",
			"ExpectationFailed"},
		{"too large for the gateway", "GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("x", 64<<10) + last, "400",
			"RequestHeaderSectionTooLarge"},
		{"too large for net/http", "GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("x", 2<<20) + "\r\n\r\n", "400",
			"RequestHeaderSectionTooLarge"},
		{"good, then not HTTP", good + "\x00\x01\x02\r\n\r\n", "400", "BadRequest"},
		{"good, then no host", good + "GET / HTTP/1.1\r\n\r\n", "400", "BadRequest"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.t = t
			answers := n.rawAnswers([]byte(c.text))
			if len(answers) == 0 {
				t.Fatal("no answer")
			}
			seen := map[string]bool{}
			for _, a := range answers {
				n.checkIDs(a, seen)
			}
			last := answers[len(answers)-1]
			if c.status != "" && last.status != c.status {
				t.Errorf("status %s, want %s: %s", last.status, c.status, last.body)
			}
			if c.code != "" && !strings.Contains(last.body, "<Code>"+c.code+"</Code>") {
				t.Errorf("%s lacks the code %s", last.body, c.code)
			}
		})
	}
}

func (n *node) checkIDs(a rawAnswer, seen map[string]bool) {
	n.t.Helper()
	id := a.header.Get("X-Amz-Request-Id")
	if !regexp.MustCompile(`^[0-9A-F]{16}$`).MatchString(id) || seen[id] || len(a.header["X-Amz-Request-Id"]) != 1 {
		n.t.Errorf("request ids %q, seen before: %v", a.header["X-Amz-Request-Id"], seen[id])
	}
	seen[id] = true
	if a.header.Get("X-Amz-Id-2") == "" || a.header.Get("Date") == "" || a.header.Get("Server") != "Penstock" {
		n.t.Errorf("header %v", a.header)
	}
	if a.status < "400" {
		return
	}
	var e errorIDs
	if err := xml.Unmarshal([]byte(a.body), &e); err != nil {
		n.t.Fatalf("%v: %s", err, a.body)
	}
	if e.RequestID != id || e.HostID != a.header.Get("X-Amz-Id-2") || e.Code == "" {
		n.t.Errorf("the document says %+v, the header %s", e, id)
	}
}

// TestPayloadThatLooksLikeARefusal: what an object holds is never taken for an answer of net/http, wherever
// in a write it stands.
func TestPayloadThatLooksLikeARefusal(t *testing.T) {
	n := newNode(t)
	c := n.root()
	makeBucket(t, c, "ids")
	line := []byte("HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n431\n")
	for _, size := range []int{len(line), 8 << 10, 200 << 10, 3 << 20} {
		payload := bytes.Repeat(line, size/len(line)+1)[:size]
		put(t, c, "ids", "k", payload)
		for off := 0; off < 2*len(line) && off < size; off += 7 {
			got := n.send(request{method: "GET", path: "/ids/k", header: map[string]string{
				"Range": fmt.Sprintf("bytes=%d-", off),
			}})
			if got.status != 206 || !bytes.Equal(got.body, payload[off:]) {
				t.Fatalf("%d bytes from %d: %d, %d bytes", size, off, got.status, len(got.body))
			}
		}
	}
}
