package gateway_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
)

// fakeConnector notes what it is asked.
type fakeConnector struct {
	mu       sync.Mutex
	asked    []fabric.ConnectRequest
	ended    [][16]byte
	err      error
	offered  func() // not nil: runs after a connection was made
	endError error
}

var theirID = [16]byte{1, 2, 3, 15: 0xfe}

func (f *fakeConnector) Connect(_ context.Context, r fabric.ConnectRequest) (fabric.Connection, error) {
	f.mu.Lock()
	f.asked = append(f.asked, r)
	err := f.err
	f.mu.Unlock()
	if f.offered != nil {
		f.offered()
	}
	if err != nil {
		return fabric.Connection{}, err
	}
	return fabric.Connection{ID: theirID, QPN: 0x123456, PSN: 0x42, GID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 9},
		Port: 2, LID: 0x0304}, nil
}

func (f *fakeConnector) Disconnect(_ context.Context, id [16]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, id)
	return f.endError
}

func (f *fakeConnector) counts() (asked, ended int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.asked), len(f.ended)
}

// pair is 88 digits, written by hand: transport, number 0x020304, GID ::ffff:10.0.0.7, port 1.
const pair = "01" + "04030200" + "00000000000000000000ffff0a000007" + "00000000" + "0000000000000000" +
	"0000000000000000" + "01" + "0000"

func dialNode(t testing.TB, unsigned bool) (*node, *fakeConnector) {
	t.Helper()
	f := &fakeConnector{}
	return newNode(t, func(o *tweakOptions) { o.Connector, o.RDMA.UnsignedConnect = f, unsigned }), f
}

func connect(token, psn string) request {
	return unsigned("POST", "/.s3rdma-rc/connect", "X-Amz-Rdma-Token", token, "X-Amz-Rdma-Psn", psn)
}

func disconnect(session string) request {
	return unsigned("POST", "/.s3rdma-rc/disconnect", "X-Amz-Rdma-Session", session)
}

// TestConnectMessages: what a client says arrives, and the answer has what it must know, in the digits of the wire.
func TestConnectMessages(t *testing.T) {
	n, f := dialNode(t, true)
	got := n.send(connect(pair, "000abc"))
	h := got.header
	const own = "01" + "56341200" + "00000000000000000000ffff0a000009" + "00000000" + "0000000000000000" +
		"0000000000000000" + "02" + "0403"
	if got.status != 200 || len(got.body) != 0 || h.Get("X-Amz-Rdma-Session") != hex.EncodeToString(theirID[:]) ||
		h.Get("X-Amz-Rdma-Reply") != "200:"+own || h.Get("X-Amz-Rdma-Psn") != "000042" ||
		h.Get("Cache-Control") != "no-store" {
		t.Errorf("status %d, %v", got.status, h)
	}
	r := f.asked[0]
	want := token.Descriptor{Kind: token.HipObj, HipRC: true, QPN: 0x20304, Port: 1,
		GID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 7}}
	if r.Token != want || r.PSN != 0xabc || r.Principal != "" || !r.Peer.Addr().IsLoopback() || !r.Local.IsLoopback() {
		t.Errorf("asked for %#v of %q at %v by %v", r.PSN, r.Principal, r.Peer, r.Local)
	}
	signed := request{method: "POST", path: "/.s3rdma-rc/connect",
		header: map[string]string{"X-Amz-Rdma-Token": pair, "X-Amz-Rdma-Psn": "FFFFFF"}}
	if got := n.send(signed); got.status != 200 || f.asked[1].Principal != "root" || f.asked[1].PSN != 0xffffff {
		t.Errorf("signed: %d %s", got.status, got.body)
	}
	for _, id := range []string{hex.EncodeToString(theirID[:]), strings.Repeat("AB", 16)} {
		if got := n.send(disconnect(id)); got.status != 204 || len(got.body) != 0 {
			t.Errorf("disconnect: %d %s", got.status, got.body)
		}
	}
	if len(f.ended) != 2 || f.ended[0] != theirID {
		t.Errorf("ended %v", f.ended)
	}
}

// TestConnectGarbage: what is missing, doubled or malformed is refused before anything is asked.
func TestConnectGarbage(t *testing.T) {
	n, f := dialNode(t, true)
	with := func(at int, digits string) string { return pair[:at] + digits + pair[at+len(digits):] }
	for name, r := range map[string]request{
		"no token":        unsigned("POST", "/.s3rdma-rc/connect", "X-Amz-Rdma-Psn", "1"),
		"no number":       unsigned("POST", "/.s3rdma-rc/connect", "X-Amz-Rdma-Token", pair),
		"empty token":     connect("", "1"),
		"short token":     connect(pair[2:], "1"),
		"long token":      connect(pair+"00", "1"),
		"a suffix":        connect(pair+":0:0", "1"),
		"no hex":          connect(with(20, "g"), "1"),
		"other transport": connect(with(0, "00"), "1"),
		"no transport":    connect(with(0, "11"), "1"),
		"pair 0":          connect(with(2, "00000000"), "1"),
		"pair 1":          connect(with(2, "01000000"), "1"),
		"a long pair":     connect(with(2, "00000001"), "1"),
		"other grammar":   connect(dcToken, "1"),
		"a connection":    connect("rc:"+strings.Repeat("a", 32)+":1:1:1", "1"),
		"packet 0":        connect(pair, "000000"),
		"no packet":       connect(pair, ""),
		"a long packet":   connect(pair, "1000000"),
		"many digits":     connect(pair, "0000001"),
		"signed packet":   connect(pair, "+1"),
		"0x":              connect(pair, "0x1"),
		"no session":      unsigned("POST", "/.s3rdma-rc/disconnect"),
		"short session":   disconnect("ab"),
		"long session":    disconnect(strings.Repeat("a", 34)),
		"odd session":     disconnect(strings.Repeat("g", 32)),
	} {
		t.Run(name, func(t *testing.T) { wantError(t, n.send(r), 400, "InvalidRDMAToken") })
	}
	for _, path := range []string{"connect", "disconnect"} {
		for _, method := range []string{"GET", "PUT", "DELETE", "HEAD"} {
			if got := n.send(unsigned(method, "/.s3rdma-rc/"+path)); got.status != 405 {
				t.Errorf("%s %s: %d", method, path, got.status)
			}
		}
	}
	if got := n.send(unsigned("POST", "/.s3rdma-rc/connect/")); got.status != 405 {
		t.Errorf("another path: %d", got.status)
	}
	body := connect(pair, "1")
	body.body, body.length = strings.NewReader("x"), 1
	wantError(t, n.send(body), 400, "InvalidRequest")
	twice := httptest.NewRequest("POST", "/.s3rdma-rc/connect", http.NoBody)
	twice.Header["X-Amz-Rdma-Token"] = []string{pair, pair}
	twice.Header["X-Amz-Rdma-Psn"] = []string{"1"}
	w := httptest.NewRecorder()
	n.g.ServeHTTP(w, twice)
	if w.Code != 400 {
		t.Errorf("two tokens: %d", w.Code)
	}
	if asked, ended := f.counts(); asked+ended != 0 {
		t.Errorf("asked %d times", asked+ended)
	}
}

// TestConnectErrors: what the fabric refuses, who may not ask, and a node that makes none.
func TestConnectErrors(t *testing.T) {
	n, f := dialNode(t, true)
	f.err = fmt.Errorf("x: %w", fabric.ErrLimit)
	wantError(t, n.send(connect(pair, "1")), 503, "SlowDown")
	f.err = fmt.Errorf("x: %w", fabric.ErrNotGranted)
	wantError(t, n.send(connect(pair, "1")), 403, "AccessDenied")
	f.err = fmt.Errorf("x: %w", fabric.ErrNoFabric)
	wantDeclined(t, n, n.send(connect(pair, "1")), "no-rail")
	f.endError = fmt.Errorf("x: %w", fabric.ErrLingering)
	w := httptest.NewRecorder()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("answered while client memory may change")
			}
		}()
		r := httptest.NewRequest("POST", "/.s3rdma-rc/disconnect", http.NoBody)
		r.Header.Set("X-Amz-Rdma-Session", strings.Repeat("a", 32))
		n.g.ServeHTTP(w, r)
	}()
	n, f = dialNode(t, false)
	wantError(t, n.send(connect(pair, "1")), 403, "AccessDenied")
	wantError(t, n.send(disconnect(strings.Repeat("a", 32))), 403, "AccessDenied")
	forged := request{method: "POST", path: "/.s3rdma-rc/connect", header: map[string]string{"X-Amz-Rdma-Psn": "1"},
		unsigned: map[string]string{"X-Amz-Rdma-Token": pair}}
	if got := n.send(forged); got.status != 403 {
		t.Errorf("a token that is not signed: %d %s", got.status, got.body)
	}
	if asked, ended := f.counts(); asked+ended != 0 {
		t.Errorf("asked %d times", asked+ended)
	}
	f.offered = func() {
		if err := n.keys.Delete(t.Context(), aliceID); err != nil {
			t.Error(err)
		}
	}
	revoked := request{method: "POST", path: "/.s3rdma-rc/connect", id: aliceID, secret: aliceSecret,
		header: map[string]string{"X-Amz-Rdma-Token": pair, "X-Amz-Rdma-Psn": "1"}}
	if got := n.send(revoked); got.status != 403 || len(f.ended) != 1 || f.ended[0] != theirID {
		t.Errorf("revoked meanwhile: %d %s, ended %v", got.status, got.body, f.ended)
	}
	off := newNode(t)
	wantDeclined(t, off, off.send(connect(pair, "1")), "no-rail")
	off = newNode(t, func(o *tweakOptions) { o.RDMA.Enabled = false })
	wantDeclined(t, off, off.send(connect(pair, "1")), "off")
}

// TestBusyConnection: a token whose connection is in use is 503 with a reason, and no decline.
func TestBusyConnection(t *testing.T) {
	n, _ := rdmaNode(t)
	n.fabric.openErr = fabric.ErrBusy
	for _, method := range []string{"GET", "PUT"} {
		got := n.send(withToken(method, "/rdm/k", tokenFor(0, 4<<20)))
		wantError(t, got, 503, "SlowDown")
		if got.header.Get("X-Penstock-Rdma-Reason") != "busy" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %v", method, got.header)
		}
	}
	wantUntouched(t, n)
}

// FuzzConnect: whatever the headers are, the answer is one of the wire's, and what is asked for could be meant.
func FuzzConnect(f *testing.F) {
	f.Add("connect", pair, "000001", "")
	f.Add("disconnect", "", "", strings.Repeat("0", 32))
	f.Add("connect", pair+":0:0", "ffffff", "x")
	n, c := dialNode(f, true)
	f.Fuzz(func(t *testing.T, path, text, psn, session string) {
		r := httptest.NewRequest("POST", "/.s3rdma-rc/", http.NoBody)
		r.URL.Path = "/.s3rdma-rc/" + path
		r.RequestURI = r.URL.EscapedPath()
		r.Header["X-Amz-Rdma-Token"] = []string{text}
		r.Header["X-Amz-Rdma-Psn"] = []string{psn}
		r.Header["X-Amz-Rdma-Session"] = []string{session}
		c.mu.Lock()
		c.asked, c.ended = nil, nil
		c.mu.Unlock()
		w := httptest.NewRecorder()
		n.g.ServeHTTP(w, r)
		asked, ended := c.counts()
		switch w.Code {
		case 200, 204:
		case 400, 405:
			if asked+ended != 0 {
				t.Errorf("asked, and answered %d", w.Code)
			}
		default:
			t.Errorf("status %d", w.Code)
		}
		for _, a := range c.asked {
			if a.PSN == 0 || a.PSN >= 1<<24 || a.Token.QPN < 2 || a.Token.QPN >= 1<<24 || !a.Token.HipRC || len(text) != 88 {
				t.Errorf("asked for packet %x of pair %x", a.PSN, a.Token.QPN)
			}
		}
	})
}
