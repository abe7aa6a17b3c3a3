package shim_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

var errPayload = errors.New("payload that the server had no right to")

// liar is a node that knows the protocol and breaks it as its script says.
type liar struct {
	t      *testing.T
	fabric string
	url    string
	listen net.Listener
	secret [32]byte
	script func(*peer)   // after the handshake; the connection ends with it
	proves bool          // knows the secret
	issued chan struct{} // closed when the client has its token
	acted  chan struct{} // closed when the client may put it back
	act    func()

	over chan struct{} // closed when a server that reads nothing may end

	mu    sync.Mutex
	noted []error
}

// peer is the node's end of one data connection.
type peer struct {
	net.Conn
	issued chan struct{}
	acted  func() // the client may go on
	leaks  func() // the client gave bytes away
	over   <-chan struct{}
}

const (
	lieRegion = 1<<32 | 1       // the first token's first region
	lieBytes  = 100_000         // of the window
	putMost   = 8 * time.Second // the liar's deadline and 2 s for FORGOTTEN, 3 s for the fence, and a slow machine
)

func newLiar(t *testing.T, fabric string, proves bool, script func(*peer)) *liar {
	t.Helper()
	l := &liar{t: t, fabric: fabric, script: script, proves: proves}
	l.issued, l.acted, l.over = make(chan struct{}), make(chan struct{}), make(chan struct{})
	l.act = sync.OnceFunc(func() { close(l.acted) })
	_, _ = rand.Read(l.secret[:]) // documented to never fail
	network, address := "tcp", "127.0.0.1:0"
	if fabric == "shm" {
		network, address = "unix", "@penstock-liar-"+rand.Text()
	}
	var err error
	if l.listen, err = net.Listen(network, address); err != nil {
		t.Fatal(err)
	}
	if fabric != "shm" {
		address = l.listen.Addr().String()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+frame.ControlPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"version":1,"host":%q,"fabrics":[{"name":%q,"up":true,"foreign":true}],`+
			`"limits":{"deadline_ms":1}}`, client.LocalHostID(), fabric)
	})
	mux.HandleFunc("POST "+frame.SessionsPath, func(w http.ResponseWriter, _ *http.Request) {
		body, err := frame.SessionReply{
			Session: [16]byte{1}, Secret: token.SecretFrom(l.secret), Fabric: fabric, Network: network, Address: address,
		}.Encode()
		if err == nil {
			_, err = w.Write(body)
		}
		l.note(err)
	})
	server := httptest.NewServer(mux)
	l.url = server.URL
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.listen.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { l.serve(conn) })
		}
	})
	t.Cleanup(func() {
		server.Close()
		_ = l.listen.Close()
		wg.Wait()
		for _, err := range l.noted {
			t.Error(err)
		}
	})
	return l
}

func (l *liar) note(err error) {
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.noted = append(l.noted, err)
	}
}

// Secret implements frame.Gatekeeper.
func (l *liar) Secret(frame.HelloBody) ([32]byte, bool) { return l.secret, true }

// Admit implements frame.Gatekeeper.
func (l *liar) Admit(frame.HelloBody) frame.Status { return frame.StatusOK }

func (l *liar) serve(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	limits := frame.ReadyBody{Regions: 256, Conns: 1, Payload: frame.MaxPayload, IdleMillis: 60_000}
	if !l.proves {
		for i, size := range []int{frame.HelloBytes, frame.ProofBytes} {
			if _, err := io.CopyN(io.Discard, conn, int64(frame.HeaderBytes+size)); err != nil {
				return
			}
			h := []frame.Header{{Type: frame.Challenge}, {Type: frame.Ready}}[i]
			if frame.WriteFrame(conn, h, make([]byte, []int{frame.NonceBytes, frame.ReadyBytes}[i])) != nil {
				return
			}
		}
		if n, _ := io.Copy(io.Discard, conn); n > 0 { // until the client goes
			l.note(fmt.Errorf("%d bytes for a server without a proof", n))
		}
		return
	}
	if _, err := frame.Accept(conn, l, limits); err != nil {
		return
	}
	l.script(&peer{conn, l.issued, l.act, func() { l.note(errPayload) }, l.over})
}

// send writes one frame.
func (p *peer) send(h frame.Header, body ...byte) { _ = frame.WriteFrame(p, h, body) }

// await reads frames until one of the type; false: the connection ended.
func (p *peer) await(want frame.Type) (frame.Header, bool) {
	var b [frame.HeaderBytes]byte
	for {
		h, err := frame.ReadHeader(p, &b)
		if err != nil {
			return h, false
		}
		if _, err := io.CopyN(io.Discard, p, int64(h.Length)); err != nil {
			return h, false
		}
		switch h.Type {
		case want:
			return h, true
		case frame.Payload:
			p.leaks()
		}
	}
}

// grant answers ATTACH and the first REGION, and waits until the client has its token.
func (p *peer) grant(shm bool) {
	if shm {
		p.await(frame.Attach)
		p.send(frame.Header{Type: frame.Attached})
	}
	h, _ := p.await(frame.Region)
	p.send(frame.Header{Type: frame.RegionOK, Region: h.Region})
	select {
	case <-p.issued:
	case <-time.After(patience):
	}
}

// placed lets the client go on when it has taken all frames before: it answers the last.
func (p *peer) placed() {
	p.send(frame.Header{Type: frame.Start, ID: 99, Region: 9 << 32, Size: 1, Status: frame.StatusGet})
	p.await(frame.Deny)
	p.acted()
}

func (l *liar) driver(binary string, more ...string) *driver {
	return newDriver(l.t, binary, append(more, "AWS_ENDPOINT_URL="+l.url, "AWS_ACCESS_KEY_ID=A",
		"AWS_SECRET_ACCESS_KEY=S", "PENSTOCK_CUOBJ_FABRIC="+l.fabric)...)
}

// lie is what a server does once the client has a token.
type lie struct {
	name    string
	put     bool   // direction of the token
	changes change // of the window, by right
	lie     func(*peer)
}

// honest is the START of a server that obeys.
func honest() frame.Header {
	return frame.Header{Type: frame.Start, ID: 7, Region: lieRegion, Size: lieBytes, Status: frame.StatusGet}
}

func data(off uint64) frame.Header { return frame.Header{Type: frame.Data, ID: 7, Offset: off} }

func with(f func(*frame.Header)) frame.Header {
	h := honest()
	f(&h)
	return h
}

// denied sends a START that must be denied, and goes on as if it had not been.
func denied(h frame.Header) func(*peer) {
	return func(p *peer) {
		p.send(h)
		if _, ok := p.await(frame.Deny); ok {
			p.send(data(0), make([]byte, 1000)...)
			p.send(frame.Header{Type: frame.Read, ID: 7, Size: 100})
			p.send(frame.Header{Type: frame.Done, ID: 7})
		}
	}
}

func read(offset, size uint64) func(*peer) {
	return func(p *peer) {
		p.send(with(func(h *frame.Header) { h.Status = frame.StatusPut }))
		p.send(frame.Header{Type: frame.Read, ID: 7, Offset: offset, Size: size})
		p.await(0)
	}
}

func raw(bytes ...byte) func(*peer) {
	return func(p *peer) { _, _ = p.Write(append(bytes, make([]byte, 100)...)) }
}

func lies() []lie { return append(brokenFrames(), brokenRules()...) }

func brokenFrames() []lie {
	start := honest()
	return []lie{
		{"end", false, never, func(*peer) {}},
		{"half a header", false, never, func(p *peer) { _, _ = p.Write(make([]byte, 20)) }},
		{"zeros", false, never, raw()},
		{"unknown type", false, never, raw(99)},
		{"unknown status", false, never, raw(byte(frame.Pong), 99)},
		{"reserved bytes", false, never, raw(byte(frame.Pong), 0, 1)},
		{"body of a PONG", false, never, raw(byte(frame.Pong), 0, 0, 0, 1)},
		{"DATA without bytes", false, never, func(p *peer) { p.send(start); p.send(data(0)) }},
		{"DATA too long", false, never, func(p *peer) {
			p.send(start)
			p.acted() // the client reads no more than the header, so the rest may not get away before it ends
			p.send(data(0), make([]byte, frame.MaxPayload+1)...)
		}},
		{"frame of a client", false, never, func(p *peer) { p.send(frame.Header{Type: frame.Close}) }},
		{"frame of shm", false, never, func(p *peer) { p.send(frame.Header{Type: frame.Closed}) }},
		{"frame of rc", false, never, func(p *peer) { p.send(frame.Header{Type: frame.Lost}) }},
		{"unknown transfer", false, never, func(p *peer) { p.send(data(0), 1, 2, 3) }},
		{"DONE of an unknown one", false, never, func(p *peer) { p.send(frame.Header{Type: frame.Done, ID: 9}) }},
		{"READ of an unknown one", true, never, func(p *peer) { p.send(frame.Header{Type: frame.Read, ID: 9, Size: 1}) }},
		{"behind the window", false, never, func(p *peer) { p.send(start); p.send(data(lieBytes), 1) }},
		{"across its end", false, never, func(p *peer) { p.send(start); p.send(data(lieBytes-1), 1, 2) }},
		{"overflow", false, never, func(p *peer) { p.send(start); p.send(data(frame.MaxNumber), 1, 2) }},
		{"READ across its end", true, never, read(lieBytes-1, 2)},
		{"READ behind the window", true, never, read(frame.MaxNumber, 10)},
		{"READ without bounds", true, never, read(0, frame.MaxNumber)},
	}
}

func brokenRules() []lie {
	start := honest()
	return []lie{
		{"START beyond the window", false, never, denied(with(func(h *frame.Header) { h.Size++ }))},
		{"START behind it", false, never, denied(with(func(h *frame.Header) { h.Offset = 1 }))},
		{"START far away", false, never, denied(with(func(h *frame.Header) { h.Offset = frame.MaxNumber }))},
		{"another token", false, never, denied(with(func(h *frame.Header) { h.Region += 1 << 32 }))},
		{"another region", false, never, denied(with(func(h *frame.Header) { h.Region++ }))},
		{"GET by a token for PUT", true, never, denied(start)},
		{"PUT by a token for GET", false, never, denied(with(func(h *frame.Header) { h.Status = frame.StatusPut }))},
		{"DATA in a PUT", true, never, func(p *peer) {
			p.send(with(func(h *frame.Header) { h.Status = frame.StatusPut }))
			p.send(data(0), 1, 2, 3)
		}},
		{"READ in a GET", false, never, func(p *peer) {
			p.send(start)
			p.send(frame.Header{Type: frame.Read, ID: 7, Size: 1})
		}},
		{"READ of nothing", true, never, read(0, 0)},
		{"number twice", false, never, func(p *peer) { p.send(start); p.send(start) }},
		{"token twice", false, always, func(p *peer) {
			p.send(start)
			denied(with(func(h *frame.Header) { h.ID = 8 }))(p)
		}},
		{"answers nobody asked for", false, never, func(p *peer) {
			for _, q := range []frame.Type{frame.RegionOK, frame.Forgotten, frame.Ask, frame.Attached, frame.RegionRefused} {
				p.send(frame.Header{Type: q, Region: 1})
			}
			p.acted()
			p.await(frame.Forget)
		}},
		{"half of the bytes, and silence", false, always, func(p *peer) {
			p.send(start)
			p.send(data(0), make([]byte, lieBytes/2)...)
			p.placed()
			p.await(0) // until the client cuts it off
		}},
		{"late bytes", false, always, func(p *peer) {
			p.send(start)
			p.send(data(0), make([]byte, 1000)...)
			p.placed()
			h, _ := p.await(frame.Forget)
			p.send(frame.Header{Type: frame.Forgotten, Region: h.Region}) // a lie: the transfer is not over
			p.await(0)
			p.send(data(1000), make([]byte, 1000)...)
		}},
		{"START by a token that was put back", false, never, func(p *peer) {
			p.acted()
			h, _ := p.await(frame.Forget)
			denied(start)(p)
			p.send(frame.Header{Type: frame.Forgotten, Region: h.Region})
		}},
		{"does not forget", false, never, func(p *peer) { p.acted(); p.await(0) }},
	}
}

// TestHostileTCP: whatever a server sends, memory changes only where and while a token for a GET allows it, and comes
// back. The oracle is the memory after the token was put back, which a server that is cut off cannot change any more.
func TestHostileTCP(t *testing.T) {
	binary := program(t, "driver", "address,undefined")
	for _, c := range lies() {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			l := newLiar(t, "tcp", true, func(p *peer) {
				p.grant(false)
				c.lie(p)
				p.acted()
			})
			l.check(binary, c.put, c.changes)
		})
	}
}

// TestServerThatReadsNothing: a payload that the server asked for and does not take holds up nobody beyond the deadline
// of his own question.
func TestServerThatReadsNothing(t *testing.T) {
	const reads = 8 // more than sockets hold
	l := newLiar(t, "tcp", true, func(p *peer) {
		p.grant(false)
		p.send(frame.Header{Type: frame.Start, Status: frame.StatusPut, ID: 1, Region: lieRegion, Size: frame.MaxPayload})
		for range reads {
			p.send(frame.Header{Type: frame.Read, ID: 1, Size: frame.MaxPayload})
		}
		var b [frame.HeaderBytes]byte
		if h, err := frame.ReadHeader(p, &b); err != nil || h.Type != frame.Payload {
			t.Errorf("%+v %v, want a payload", h, err)
		}
		p.acted() // now it writes
		select {
		case <-p.over:
		case <-time.After(patience):
		}
	})
	d := l.driver(program(t, "driver", "address,undefined"))
	d.memory(1, frame.MaxPayload, 1)
	tok := d.token(1, frame.MaxPayload, 0, true)
	close(l.issued)
	select {
	case <-l.acted:
	case <-time.After(patience):
		t.Error("the script hangs")
	}
	began := time.Now()
	d.want("0", "put %s", tok)
	if took := time.Since(began); took > putMost {
		t.Errorf("put took %v", took)
	}
	close(l.over)
	d.want("0", "deregister 1")
	d.want("0", "free 1")
}

// TestUnansweredRegion: a server on this host that leaves one question open and confirms the fence costs no other token
// its memory.
func TestUnansweredRegion(t *testing.T) {
	l := newLiar(t, "shm", true, func(p *peer) {
		p.grant(true)
		p.await(frame.Region)
		p.await(frame.Close)
		p.send(frame.Header{Type: frame.Closed})
		p.await(0)
	})
	d := l.driver(program(t, "driver", "address,undefined"))
	d.memory(1, 1000, 1)
	d.memory(2, 1000, 1)
	tok := d.token(1, 1000, 0, false)
	close(l.issued)
	if got := d.ask("token 2 1000 0 0"); !strings.Contains(got, "did not answer") {
		t.Errorf("second token: %s", got)
	}
	d.want("0", "put %s", tok)
	d.want("0", "deregister 1")
	d.want("0", "deregister 2")
}

// change says whether a window may or must change.
type change int

const (
	never change = iota
	perhaps
	always
)

// check takes a token over the middle of a memory and puts it back. What lies around the window must be the same.
func (l *liar) check(binary string, put bool, changes change) {
	d := l.driver(binary)
	const guard = 1000
	d.memory(1, lieBytes+2*guard, 3)
	d.memory(2, guard, 5)
	tok := d.token(1, lieBytes, guard, put)
	close(l.issued)
	select {
	case <-l.acted:
	case <-time.After(patience):
		l.t.Error("the script hangs")
	}
	began := time.Now()
	d.want("0", "put %s", tok)
	if took := time.Since(began); took > putMost {
		l.t.Errorf("put took %v", took)
	}
	d.want("same", "check 1 0 %d 3", guard)
	d.want("same", "check 2 0 %d 5", guard)
	changed := d.ask("check 1 0 %d 3", guard+lieBytes) != "same"
	if changed && changes == never || !changed && changes == always {
		l.t.Errorf("the window changed: %v", changed)
	}
	tail := d.ask("check 1 0 %d 3", lieBytes+2*guard) // what lies behind: all the same, or the first change is inside
	if !changed && tail != "same" {
		l.t.Errorf("behind the window: %s", tail)
	}
	d.want("0", "fill 1 4") // the memory is the client's own again
	d.want("0", "deregister 1")
	d.want("same", "check 1 0 %d 4", lieBytes+2*guard)
	d.want("0", "free 1")
}

// TestRandomFrames: a server of random frames, most of them well formed. Seeds name the runs.
func TestRandomFrames(t *testing.T) {
	binary := program(t, "driver", "address,undefined")
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			l := newLiar(t, "tcp", true, func(p *peer) {
				p.grant(false)
				random := mathrand.New(mathrand.NewPCG(seed, 1))
				number := func(small uint64) uint64 {
					if random.IntN(20) == 0 {
						return random.Uint64N(frame.MaxNumber)
					}
					return random.Uint64N(small)
				}
				for range 1 + random.IntN(60) {
					h := frame.Header{
						Type:   []frame.Type{frame.Start, frame.Data, frame.Read, frame.Done, frame.Pong}[random.IntN(5)],
						Status: []frame.Status{0, frame.StatusGet, frame.StatusPut}[random.IntN(3)],
						ID:     number(4), Region: []uint64{lieRegion, 1, 2 << 32}[random.IntN(3)],
						Offset: number(lieBytes), Size: number(lieBytes),
					}
					var body []byte
					if h.Type == frame.Data {
						body = make([]byte, 1+random.IntN(2000))
					}
					p.send(h, body...)
				}
				p.acted()
			})
			l.check(binary, seed%2 == 0, change(seed%2)) // a PUT changes nothing
		})
	}
}

// TestPutByTwo: one who puts a token back while somebody else does so waits for that, though the text that he has of it
// is gone by then. The server does not answer, so that both are inside; the sanitizer sees what is read.
func TestPutByTwo(t *testing.T) {
	l := newLiar(t, "tcp", true, func(p *peer) {
		close(p.issued)
		p.grant(false)
		p.await(0)
	})
	d := l.driver(program(t, "driver", "address,undefined"))
	d.memory(1, 10_000, 3)
	d.want("0", "twice 1 5000 100 0")
	d.want("0", "deregister 1")
}

// TestNodesWords: what a node says of itself reaches people as plain text: no commands to a terminal, nothing that is
// not ASCII, or half of a character where it was cut.
func TestNodesWords(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"version":1,"host":%q,"fabrics":[{"name":"shm","up":true,"foreign":false,`+
			`"foreign_reason":"\u001b[2Jgone\u009b\n%s"}]}`, client.LocalHostID(), "\xff\xc3")
	}))
	defer server.Close()
	d := newDriver(t, program(t, "driver", "address,undefined"), "AWS_ENDPOINT_URL="+server.URL, "AWS_ACCESS_KEY_ID=A",
		"AWS_SECRET_ACCESS_KEY=S", "PENSTOCK_CUOBJ_FABRIC=shm")
	got := d.ask("available") // a line
	isIn(t, got, "gone")
	for _, text := range []string{got, d.text.String()} {
		for _, b := range []byte(strings.TrimSuffix(text, "\n")) {
			if b < ' ' || b > '~' {
				t.Fatalf("%q", text)
			}
		}
	}
}

// TestNoProof: memory is announced to nobody who does not know the session's secret.
func TestNoProof(t *testing.T) {
	binary := program(t, "driver", "address,undefined")
	for _, fabric := range []string{"tcp", "shm"} {
		l := newLiar(t, fabric, false, nil)
		d := l.driver(binary)
		d.want("0", "alloc 1 1000")
		if got := d.ask("register 1"); !strings.Contains(got, "did not prove") {
			t.Errorf("%s: %s", fabric, got)
		}
	}
}

// TestSpent: a server on this host that lives and does not confirm its fence keeps the memory for good.
func TestSpent(t *testing.T) {
	binary := program(t, "driver", "address,undefined")
	cases := []struct {
		name  string
		lie   func(*peer)
		spent bool
	}{
		{"confirms", func(p *peer) {
			p.await(frame.Close)
			p.send(frame.Header{Type: frame.Closed})
			p.await(0)
		}, false},
		{"says nothing", func(p *peer) { p.await(0) }, true},
		{"ends", func(*peer) {}, true},
		{"breaks the protocol", func(p *peer) { p.send(frame.Header{Type: frame.Start}); p.await(0) }, true},
		{"closed too early", func(p *peer) { p.send(frame.Header{Type: frame.Closed}); p.await(0) }, true},
	}
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			l := newLiar(t, "shm", true, func(p *peer) {
				p.grant(true)
				c.lie(p)
			})
			d := l.driver(binary)
			d.memory(1, 10_000, 1)
			tok := d.token(1, 5000, 100, false)
			close(l.issued)
			if !c.spent {
				d.want("0", "put %s", tok)
				d.want("0", "deregister 1")
				return
			}
			for _, question := range []string{"put " + tok, "put " + tok, "deregister 1", "register 1"} {
				if got := d.ask("%s", question); !strings.Contains(got, "must not be reused") {
					t.Errorf("%.10s: %s", question, got)
				}
			}
			d.want("0", "alloc 2 1000") // other memory is not concerned
			d.want("0", "register 2")
			d.want("0", "deregister 2")
		})
	}
}
