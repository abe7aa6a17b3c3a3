package gateway_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
)

// fakeExchange stands for the adapters of both ends: the client's memory is that of the fake fabric, whose log has
// every access.
type fakeExchange struct {
	f *fakeFabric

	mu       sync.Mutex
	n        byte
	sessions map[[16]byte]*fakeSession
	seen     []fabric.Preparation
	closed   int           // sessions whose Held was closed
	life     time.Duration // of a transfer
	fails    error         // of Prepare
	prepared func()        // not nil: runs before Prepare returns
	cancels  error
}

type fakeSession struct {
	p     fabric.Preparation
	taken bool
	cut   context.CancelCauseFunc
	ctx   context.Context
	ended chan struct{}
}

func newFakeExchange(f *fakeFabric) *fakeExchange {
	return &fakeExchange{f: f, sessions: map[[16]byte]*fakeSession{}, life: 8 * time.Second}
}

func (x *fakeExchange) end(id [16]byte, s *fakeSession) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.sessions, id)
	x.closed++
	_ = s.p.Held.Close()
	close(s.ended)
}

func (x *fakeExchange) Prepare(_ context.Context, p fabric.Preparation) (fabric.Prepared, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.seen = append(x.seen, p)
	if x.fails != nil {
		x.closed++
		_ = p.Held.Close()
		return fabric.Prepared{}, x.fails
	}
	x.n++
	s := &fakeSession{p: p, ended: make(chan struct{})}
	s.ctx, s.cut = context.WithCancelCause(context.Background())
	r := fabric.Prepared{ID: [16]byte{0xab, 15: x.n}, QPN: 0xabc, PSN: 0x00beef, Port: 1, LID: 0x0102,
		GID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 7}}
	if p.Direction == fabric.ForPut {
		r.Addr, r.RKey = 0x7f00_0000_1000, 0xdead01
	}
	x.sessions[r.ID] = s
	if x.prepared != nil {
		x.mu.Unlock()
		x.prepared()
		x.mu.Lock()
	}
	return r, nil
}

func (x *fakeExchange) Take(id [16]byte, who string, r fabric.Readiness) (*fabric.Taken, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.sessions[id]
	switch {
	case s == nil:
		return nil, fabric.ErrNoSession
	case s.p.Principal != who, r.Cookie != s.p.Cookie, r.QPN != s.p.Token.QPN:
		return nil, fabric.ErrNotGranted
	case s.p.Direction == fabric.ForGet && r.Addr+uint64(s.p.Bytes) > uint64(len(x.f.memory)):
		return nil, fabric.ErrNotGranted
	case s.taken:
		return nil, fabric.ErrNoSession
	}
	s.taken = true
	x.f.note("open")
	remote := &cutRemote{&fakeRemote{f: x.f, base: int64(r.Addr), n: s.p.Bytes}, s.ctx}
	return &fabric.Taken{
		Remote: remote, Held: s.p.Held, Direction: s.p.Direction, Bytes: s.p.Bytes,
		Deadline: time.Now().Add(x.life),
		Cookie:   s.p.Cookie,
		Finish: func() {
			x.f.mu.Lock()
			open := !remote.closed
			x.f.mu.Unlock()
			if open {
				_ = remote.Close()
			}
			x.f.note("finish")
			x.end(id, s)
		},
	}, nil
}

func (x *fakeExchange) Cancel(ctx context.Context, id [16]byte, who string) error {
	x.mu.Lock()
	s, failed := x.sessions[id], x.cancels
	if s == nil || s.p.Principal != who {
		x.mu.Unlock()
		return failed
	}
	taken := s.taken
	s.taken = true
	x.mu.Unlock()
	s.cut(fabric.ErrFenced)
	if !taken {
		x.end(id, s)
	}
	select {
	case <-s.ended:
		return failed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (x *fakeExchange) open() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.sessions)
}

// cannotCancel makes Cancel fail.
func (x *fakeExchange) cannotCancel(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cancels = err
}

// expire ends what was not taken.
func (x *fakeExchange) expire() {
	for id := range x.sessions {
		x.end(id, x.sessions[id])
	}
}

// cutRemote is a fakeRemote whose moves end with the session.
type cutRemote struct {
	*fakeRemote
	session context.Context
}

func (r *cutRemote) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.session, func() { cancel(context.Cause(r.session)) })
	return ctx, func() { stop(); cancel(nil) }
}

func (r *cutRemote) Write(ctx context.Context, off int64, src ...arena.Buffer) error {
	ctx, done := r.bound(ctx)
	defer done()
	return r.fakeRemote.Write(ctx, off, src...)
}

func (r *cutRemote) Read(ctx context.Context, off int64, dst ...arena.Buffer) error {
	ctx, done := r.bound(ctx)
	defer done()
	return r.fakeRemote.Read(ctx, off, dst...)
}

// message is one message, as a client writes it: its signature is made here, from its description.
type message struct {
	path, query string
	method      string      // "": POST
	host        string      // "": without a port
	service     string      // "": hipobj
	region      string      // "": us-east-1
	hash        string      // of the canonical request; "": that of nothing, and no header says so
	fields      [][2]string // signed, in this order
	unsigned    [][2]string // added afterwards
	id, secret  string      // default: root
	at          time.Time
	body        string
}

const nothingSHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// bytes is the message as the public data client has it: lower-case names in their order, the length at the end.
func (m message) bytes() []byte {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&m.method, "POST")
	def(&m.host, "127.0.0.1")
	def(&m.service, "hipobj")
	def(&m.region, "us-east-1")
	def(&m.id, rootID)
	def(&m.secret, rootSecret)
	if m.at.IsZero() {
		m.at = time.Now()
	}
	stamp := m.at.UTC().Format("20060102T150405Z")
	fields := append([][2]string{{"host", m.host}, {"x-amz-date", stamp}}, m.fields...)
	hash := m.hash
	if hash == "" {
		hash = nothingSHA
	} else {
		fields = append(fields, [2]string{"x-amz-content-sha256", hash})
	}
	values := map[string]string{}
	for _, f := range fields {
		name := strings.ToLower(f[0])
		if old, ok := values[name]; ok {
			values[name] = old + "," + f[1]
			continue
		}
		values[name] = f[1]
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	canonical := m.method + "\n" + m.path + "\n" + m.query + "\n"
	for _, name := range names {
		canonical += name + ":" + values[name] + "\n"
	}
	canonical += "\n" + strings.Join(names, ";") + "\n" + hash
	scope := stamp[:8] + "/" + m.region + "/" + m.service + "/aws4_request"
	sum := sha256.Sum256([]byte(canonical))
	text := "AWS4-HMAC-SHA256\n" + stamp + "\n" + scope + "\n" + hex.EncodeToString(sum[:])
	key := []byte("AWS4" + m.secret)
	for _, part := range []string{stamp[:8], m.region, m.service, "aws4_request", text} {
		h := hmac.New(sha256.New, key)
		_, _ = h.Write([]byte(part)) // never fails
		key = h.Sum(nil)
	}
	var b strings.Builder
	target := m.path
	if m.query != "" {
		target += "?" + m.query
	}
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", m.method, target)
	for _, f := range append(fields, m.unsigned...) {
		fmt.Fprintf(&b, "%s: %s\r\n", f[0], f[1])
	}
	fmt.Fprintf(&b, "Authorization: AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%x\r\n",
		m.id, scope,
		strings.Join(names, ";"), key)
	fmt.Fprintf(&b, "content-length: %d\r\n\r\n%s", len(m.body), m.body)
	return []byte(b.String())
}

// say sends bytes on a connection of their own. An answer of status 0: the connection ended without one.
func (n *node) say(p []byte) answer {
	n.t.Helper()
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write(p); err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, body, resp.ContentLength}
}

// peerToken is a client's queue pair in 88 hex digits, put together here byte by byte.
func peerToken(transport byte, qpn uint32, gid [16]byte) string {
	var b [44]byte
	b[0] = transport
	binary.LittleEndian.PutUint32(b[1:], qpn)
	copy(b[5:], gid[:])
	b[41] = 1
	return hex.EncodeToString(b[:])
}

var peerGID = [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}

const (
	peerQPN = 0x1a2b
	cookie  = "1a2b3c4d"
)

// preparing is a PREPARE of the data client, in the order of its headers. Values replace its own; "-" leaves one out.
func preparing(op, target string, size int, values ...string) message {
	m := message{path: "/.hipobj-rc/prepare"}
	m.fields = [][2]string{
		{"x-amz-rdma-cookie", cookie}, {"x-amz-rdma-mr-addr", "7f8000"}, {"x-amz-rdma-mr-rkey", "1234"},
		{"x-amz-rdma-op", op}, {"x-amz-rdma-protocol", "hipobj-rc-v2"}, {"x-amz-rdma-psn", "000001"},
		{"x-amz-rdma-qpn", fmt.Sprintf("%x", peerQPN)}, {"x-amz-rdma-size", fmt.Sprint(size)},
		{"x-amz-rdma-target", target}, {"x-amz-rdma-token", peerToken(1, peerQPN, peerGID)},
	}
	m.change(values)
	return m
}

// readying is the READY that follows, for memory at addr.
func readying(session string, addr int, values ...string) message {
	m := message{path: "/.hipobj-rc/ready"}
	m.fields = [][2]string{
		{"x-amz-rdma-cookie", cookie}, {"x-amz-rdma-mr-addr", fmt.Sprintf("%x", addr)}, {"x-amz-rdma-mr-rkey",
			"1234"},
		{"x-amz-rdma-protocol", "hipobj-rc-v2"}, {"x-amz-rdma-qpn", fmt.Sprintf("%x", peerQPN)},
		{"x-amz-rdma-session", session},
	}
	m.change(values)
	return m
}

func cancelling(session string) message {
	return message{path: "/.hipobj-rc/cancel", fields: [][2]string{{"x-amz-rdma-protocol", "hipobj-rc-v2"},
		{"x-amz-rdma-session", session}}}
}

func (m *message) change(values []string) {
	for i := 0; i+1 < len(values); i += 2 {
		at := slices.IndexFunc(m.fields, func(f [2]string) bool { return f[0] == values[i] })
		switch {
		case values[i+1] == "-":
			m.fields = slices.Delete(m.fields, at, at+1)
		case at < 0:
			m.fields = append(m.fields, [2]string{values[i], values[i+1]})
		default:
			m.fields[at][1] = values[i+1]
		}
	}
}

func as(m message, id, secret string) message {
	m.id, m.secret = id, secret
	return m
}

// hipNode is rdmaNode with an exchange.
func hipNode(t *testing.T, tweaks ...tweak) (n *node, x *fakeExchange, p []byte) {
	t.Helper()
	x = newFakeExchange(nil)
	n, p = rdmaNode(t, append([]tweak{func(o *tweakOptions) { o.Exchange = x }}, tweaks...)...)
	x.f = n.fabric
	t.Cleanup(func() {
		x.expire()
		if x.closed != len(x.seen) {
			t.Errorf("%d of %d sessions let go of what they held", x.closed, len(x.seen))
		}
	})
	return n, x, p
}

// prepare sends a PREPARE that succeeds, and returns the session.
func (n *node) prepare(m message) (session string) {
	n.t.Helper()
	got := n.say(m.bytes())
	if got.status != 200 {
		n.t.Fatalf("PREPARE: %d %s", got.status, got.body)
	}
	return got.header.Get("X-Amz-Rdma-Session")
}
