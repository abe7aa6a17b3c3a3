package gateway_test

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// asked is one request of a pipeline and what it must be answered.
type asked struct {
	text   []byte
	method string
	want   string // status and body, or the error's code
}

// pipeline is a series of requests each of which depends on where the one before it ends: bodies that look like
// requests, that are refused unread, that are chunked with extensions, or announced by Expect.
func (n *node) pipeline() (all []asked) {
	inner := "GET /split/secret HTTP/1.1\r\nHost: x\r\n\r\n"
	add := func(want, body string, r request) {
		r.unsigned = map[string]string{}
		text := body
		if strings.HasPrefix(want, "chunked ") {
			r.unsigned["Transfer-Encoding"] = "chunked"
			text = ""
			for i := 0; i < len(body); i += 10 {
				piece := body[i:min(i+10, len(body))]
				text += fmt.Sprintf("%x;ext=\"%s\"\r\n%s\r\n", len(piece), strings.Repeat("e", 30), piece)
			}
			text += "0\r\n\r\n"
		} else if body != "" {
			r.unsigned["Content-Length"] = fmt.Sprint(len(body))
		}
		want = strings.TrimPrefix(want, "chunked ")
		all = append(all, asked{append(n.raw(r), text...), r.method, want})
	}
	add("200 ", inner, request{method: "PUT", path: "/split/a"})
	add("200 "+inner, "", request{method: "GET", path: "/split/a"})
	add("InvalidDigest", inner, request{method: "PUT", path: "/split/a", header: map[string]string{"Content-MD5": "x"}})
	add("PreconditionFailed", inner, request{method: "PUT", path: "/split/a",
		header: map[string]string{"If-None-Match": "*"}})
	add("200 ", "", request{method: "HEAD", path: "/split/a"})
	add("404 ", "", request{method: "HEAD", path: "/split/none"})
	add("304 ", "", request{method: "GET", path: "/split/a", header: map[string]string{"If-None-Match": "*"}})
	add("204 ", inner, request{method: "DELETE", path: "/split/none"})
	add("chunked 200 ", inner, request{method: "PUT", path: "/split/b",
		header: map[string]string{"X-Amz-Decoded-Content-Length": fmt.Sprint(len(inner))}})
	add("200 "+inner, "", request{method: "GET", path: "/split/b"})
	add("chunked MalformedXML", inner, request{method: "POST", path: "/split?delete"})
	add("206 "+inner[1:3], "", request{method: "GET", path: "/split/a", header: map[string]string{"Range": "bytes=1-2"}})
	add("NotImplemented", inner, request{method: "PUT", path: "/split/a?torrent"})
	add("200 "+inner, "", request{method: "GET", path: "/split/a"})
	return all
}

// compareAnswers reads the answers of a pipeline. http.ReadResponse is the oracle of where each ends.
func compareAnswers(t *testing.T, all []asked, from io.Reader, how string) {
	t.Helper()
	in := bufio.NewReader(from)
	for i, a := range all {
		resp, err := http.ReadResponse(in, &http.Request{Method: a.method})
		if err != nil {
			t.Fatalf("%s: answer %d: %v", how, i, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%s: body %d: %v", how, i, err)
		}
		got := fmt.Sprint(resp.StatusCode, " ", string(body))
		var e errorIDs
		if xml.Unmarshal(body, &e) == nil {
			got = e.Code
		}
		if got != a.want {
			t.Fatalf("%s: answer %d: %q, want %q", how, i, got, a.want)
		}
	}
	if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
		t.Fatalf("%s: %q after the last answer, %v", how, rest, err)
	}
}

// TestPipelinesSplitAnywhere: wherever the network cuts a series of requests, each is answered for itself, in order.
func TestPipelinesSplitAnywhere(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "split")
	all := n.pipeline()
	var text []byte
	for i, a := range all {
		if i == len(all)-1 {
			a.text = bytes.Replace(a.text, []byte("\r\n"), []byte("\r\nConnection: close\r\n"), 1)
		}
		text = append(text, a.text...)
	}
	try := func(how string, cuts ...int) {
		conn, err := net.Dial("tcp", n.host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		go func() {
			at := 0
			for _, cut := range append(cuts, len(text)) {
				_, _ = conn.Write(text[at:cut]) // a server that ends early is found by its answers
				at = cut
			}
		}()
		compareAnswers(t, all, conn, how)
	}
	step := 7
	if testing.Short() {
		step = 101
	}
	for cut := 1; cut < len(text); cut += step {
		try(fmt.Sprint("cut at ", cut), cut)
	}
	var every []int
	for cut := 1; cut < len(text); cut++ {
		every = append(every, cut)
	}
	try("byte by byte", every...)
	try("whole")
}

// TestHalfClosedClientIsGone: a client that ends its side of the connection before its write is committed has gone
// away, as net/http sees it, too: nothing is committed, and what it is told is no success.
func TestHalfClosedClientIsGone(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "half")
	p := randomBytes(20_000) // no inline object, and it fits into the window: the end has arrived before the gate opens
	open := n.gate.close()
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	head := n.raw(request{method: "PUT", path: "/half/k", unsigned: map[string]string{"Content-Length": "20000"}})
	if _, err := conn.Write(append(head, p...)); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return n.g.InFlight() == 1 })
	open()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && resp.StatusCode != 503 {
		t.Errorf("status %d", resp.StatusCode)
	}
	eventually(t, func() bool { return n.g.InFlight() == 0 })
	if got := n.send(request{method: "HEAD", path: "/half/k"}); got.status != 404 {
		t.Errorf("committed for nobody (%d)", got.status)
	}
}

// TestAbsoluteForm: a request line with a whole URI, as to a proxy, means the same, and answers name the path.
func TestAbsoluteForm(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "whole")
	absolute := func(r request) []byte {
		return bytes.Replace(n.raw(r), []byte(" /"), []byte(" "+n.url+"/"), 1)
	}
	_, text := n.talk(absolute(request{method: "GET", path: "/whole/none"}))
	var e struct{ Code, Resource string }
	if err := xml.Unmarshal([]byte(text), &e); err != nil || e.Code != "NoSuchKey" || e.Resource != "/whole/none" {
		t.Errorf("%v: %+v", err, e)
	}
	up := n.newUpload("/whole/k", nil)
	part := sendPut(n, "/whole/k?partNumber=1&uploadId="+up, []byte("part"), nil)
	body := completion(part.header.Get("Etag"))
	head := absolute(request{method: "POST", path: "/whole/k?uploadId=" + up,
		unsigned: map[string]string{"Content-Length": fmt.Sprint(len(body))}})
	_, text = n.talk(append(head, body...))
	var done struct{ Location string }
	if err := xml.Unmarshal([]byte(text), &done); err != nil || done.Location != n.url+"/whole/k" {
		t.Errorf("%v: %+v", err, done)
	}
}

// TestOneReadingOfTheTarget: what the signature covers is what is acted on, also in forms of the target that can be
// read in two ways. Nothing that was signed as a name beginning with a scheme reaches another bucket.
func TestOneReadingOfTheTarget(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "whole")
	sendPut(n, "/whole/k", []byte("secret"), nil)
	for _, target := range []string{"http:whole/k", "http:/whole/k", "http:///whole/k"} {
		text := n.raw(request{method: "GET", path: "/" + target})
		text = bytes.Replace(text, []byte(" /"+target), []byte(" "+target), 1)
		if resp, body := n.talk(text); resp.StatusCode < 400 {
			t.Errorf("%s: %d %q", target, resp.StatusCode, body)
		}
	}
}
