package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

const (
	patience   = 30 * time.Second
	shortly    = 150 * time.Millisecond
	regionSize = 64 << 20
)

// rawClient speaks the protocol frame by frame, so that it can break it.
type rawClient struct {
	t      *testing.T
	conn   *net.TCPConn
	offer  fabric.SessionOffer
	tokens uint32 // numbers given out
}

func newFabric(t *testing.T, limits fabric.Limits) *Fabric {
	t.Helper()
	f, err := New(Options{Ledger: fabric.NewLedger(limits), Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if s := f.Stats(); s.Sessions != 0 || s.Regions != 0 || s.OpenWindows != 0 {
			t.Errorf("left over: %+v", s)
		}
	})
	return f
}

func dialRaw(t *testing.T, f *Fabric) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", f.address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

// connect opens a session with one connection and region 1.
func connect(t *testing.T, f *Fabric) *rawClient {
	t.Helper()
	offer, err := f.NewSession(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t: t, offer: offer, conn: dialRaw(t, f)}
	if _, err := frame.Connect(c.conn, offer.ID, offer.Secret.Reveal(), 0); err != nil {
		t.Fatal(err)
	}
	c.send(frame.Header{Type: frame.Region, Region: 1, Size: regionSize}, nil)
	if h := c.receive(); h.Type != frame.RegionOK {
		t.Fatalf("region: %+v", h)
	}
	return c
}

// number is that of the next token.
func (c *rawClient) number() uint32 {
	c.tokens++
	return c.tokens
}

func (c *rawClient) send(h frame.Header, body []byte) {
	c.t.Helper()
	if err := frame.WriteFrame(c.conn, h, body); err != nil {
		c.t.Fatal(err)
	}
}

// receive returns the next header; the body of a Data frame is thrown away.
func (c *rawClient) receive() frame.Header {
	c.t.Helper()
	var b [frame.HeaderBytes]byte
	h, err := frame.ReadHeader(c.conn, &b)
	if err == nil {
		_, err = io.CopyN(io.Discard, c.conn, int64(h.Length))
	}
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	return h
}

func (c *rawClient) ended(what string) {
	c.t.Helper()
	_, err := io.Copy(io.Discard, c.conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Errorf("%s: the session lives", what)
	}
}

func (c *rawClient) alive(what string) {
	c.t.Helper()
	c.send(frame.Header{Type: frame.Ping}, nil)
	if h := c.receive(); h.Type != frame.Pong {
		c.t.Errorf("%s: %+v instead of a pong", what, h)
	}
}

func (c *rawClient) open(f *Fabric, d fabric.Direction, bytes int64, wait time.Duration) fabric.Remote {
	c.t.Helper()
	r, err := f.Open(context.Background(), token.Descriptor{
		Kind: token.Session, Fabric: Name, SessionID: c.offer.ID,
		Region: frame.JoinRegion(1, c.number()), Addr: 4096, Size: bytes,
	}, fabric.Grant{Principal: "p", Direction: d, Bytes: bytes, Deadline: time.Now().Add(wait)})
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func newBuffer(t *testing.T) arena.Buffer {
	t.Helper()
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 1, BufferBytes: 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := a.Share("fabric").Alloc(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Release()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// soon polls.
var soon = fabrictest.Soon

// TestFrames follows a GET and a PUT frame by frame.
func TestFrames(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	c := connect(t, f)
	b := newBuffer(t)
	get := c.open(f, fabric.ForGet, 1000, patience)
	closed := make(chan error, 1)
	go func() {
		closed <- errors.Join(get.Write(t.Context(), 0, b.Slice(0, 600)), get.Write(t.Context(), 600, b.Slice(0, 400)),
			get.Close())
	}()
	start := c.receive()
	if start != (frame.Header{Type: frame.Start, Status: frame.StatusGet, ID: start.ID,
		Region: frame.JoinRegion(1, c.tokens), Offset: 4096, Size: 1000}) {
		t.Errorf("start %+v", start)
	}
	for _, want := range []frame.Header{
		{Type: frame.Data, ID: start.ID, Length: 600}, {Type: frame.Data, ID: start.ID, Offset: 600, Length: 400},
		{Type: frame.Done, ID: start.ID},
	} {
		if got := c.receive(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	c.send(frame.Header{Type: frame.Ack, ID: start.ID, Size: 1000}, nil)
	if err := <-closed; err != nil {
		t.Error(err)
	}

	put := c.open(f, fabric.ForPut, 1000, patience)
	go func() { closed <- errors.Join(put.Read(t.Context(), 500, b.Slice(0, 300)), put.Close()) }()
	start = c.receive()
	if start.Type != frame.Start || start.Status != frame.StatusPut {
		t.Errorf("start %+v", start)
	}
	if got := c.receive(); got != (frame.Header{Type: frame.Read, ID: start.ID, Offset: 500, Size: 300}) {
		t.Errorf("read %+v", got)
	}
	body := make([]byte, 300)
	body[299] = 42
	c.send(frame.Header{Type: frame.Payload, ID: start.ID, Offset: 500}, body)
	if got := c.receive(); got != (frame.Header{Type: frame.Done, ID: start.ID}) {
		t.Errorf("done %+v", got)
	}
	c.send(frame.Header{Type: frame.Ack, ID: start.ID}, nil)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if b.Bytes()[299] != 42 {
		t.Error("payload not in the buffer")
	}
	c.alive("after transfers")
}

// TestStalls lets clients stall in the middle of transfers: the deadline or the stall wait, whichever
// is nearer, ends their sessions, and their buffers come back.
func TestStalls(t *testing.T) {
	t.Run("deadline", func(t *testing.T) { testStalls(t, newFabric(t, fabric.Limits{}), shortly) })
	t.Run("stall wait", func(t *testing.T) {
		f := newFabric(t, fabric.Limits{})
		f.stall = shortly // the deadline is far away
		testStalls(t, f, patience)
	})
}

func testStalls(t *testing.T, f *Fabric, wait time.Duration) {
	b := newBuffer(t)
	cases := map[string]func(c *rawClient) error{
		"get, data not read": func(c *rawClient) error {
			r := c.open(f, fabric.ForGet, regionSize-4096, wait)
			var err error
			for off := int64(0); err == nil && off < 60<<20; off += 1 << 20 {
				err = r.Write(t.Context(), off, b)
			}
			return errors.Join(err, r.Close())
		},
		"get, no ack": func(c *rawClient) error {
			r := c.open(f, fabric.ForGet, 1000, wait)
			if err := r.Write(t.Context(), 0, b.Slice(0, 1000)); err != nil {
				t.Error(err)
			}
			return r.Close()
		},
		"put, read not answered": func(c *rawClient) error {
			r := c.open(f, fabric.ForPut, 1<<20, wait)
			return errors.Join(r.Read(t.Context(), 0, b), r.Close())
		},
		"put, half a payload": func(c *rawClient) error {
			r := c.open(f, fabric.ForPut, 1<<20, wait)
			go func() {
				start := c.receive()
				c.receive()
				var head [frame.HeaderBytes]byte
				frame.Header{Type: frame.Payload, ID: start.ID, Length: 1 << 20}.Encode(head[:])
				_, _ = c.conn.Write(append(head[:], make([]byte, 1000)...))
			}()
			return errors.Join(r.Read(t.Context(), 0, b), r.Close())
		},
		"put, payload after payload of one byte": func(c *rawClient) error {
			r := c.open(f, fabric.ForPut, 1<<20, wait)
			go func() {
				start := c.receive()
				c.receive()
				_ = frame.WriteFrame(c.conn, frame.Header{Type: frame.Payload, ID: start.ID}, []byte{1})
			}()
			return errors.Join(r.Read(t.Context(), 0, b), r.Close())
		},
	}
	for name, stall := range cases {
		c := connect(t, f)
		begin := time.Now()
		if err := stall(c); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(begin); took > patience/2 {
			t.Errorf("%s: took %v", name, took)
		}
		soon(t, name+": session ends", func() bool { return f.Stats().Sessions == 0 })
		_ = c.conn.Close()
	}
}

// TestNeighbour moves bytes in one session while another one's client does not read.
func TestNeighbour(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	stalled, healthy := connect(t, f), connect(t, f)
	b := newBuffer(t)
	r := stalled.open(f, fabric.ForGet, regionSize-4096, patience)
	blocked := make(chan error, 1)
	go func() {
		var err error
		for off := int64(0); err == nil; off += 1 << 20 {
			err = r.Write(t.Context(), off, b)
		}
		blocked <- err
	}()
	for range 3 {
		ok := healthy.open(f, fabric.ForGet, 100, patience)
		closed := make(chan error, 1)
		go func() { closed <- errors.Join(ok.Write(t.Context(), 0, b.Slice(0, 100)), ok.Close()) }()
		start := healthy.receive()
		healthy.receive()
		healthy.receive()
		healthy.send(frame.Header{Type: frame.Ack, ID: start.ID, Size: 100}, nil)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
	}
	f.RevokePrincipal("p")
	if err := <-blocked; !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("blocked write: %v", err)
	}
	if err := r.Close(); !errors.Is(err, fabric.ErrRevoked) {
		t.Errorf("close: %v", err)
	}
}

// TestForgedFrames answers transfers wrongly: each costs the session, and only it.
func TestForgedFrames(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	other := connect(t, f)
	b := newBuffer(t)
	answers := map[string]func(c *rawClient, id uint64){
		"payload of another transfer": func(c *rawClient, id uint64) {
			c.send(frame.Header{Type: frame.Payload, ID: id + 1}, make([]byte, 100))
		},
		"payload at another offset": func(c *rawClient, id uint64) {
			c.send(frame.Header{Type: frame.Payload, ID: id, Offset: 1}, make([]byte, 100))
		},
		"payload too short": func(c *rawClient, id uint64) {
			c.send(frame.Header{Type: frame.Payload, ID: id}, make([]byte, 99))
		},
		"payload too long": func(c *rawClient, id uint64) {
			c.send(frame.Header{Type: frame.Payload, ID: id}, make([]byte, 101))
		},
		"payload header only": func(c *rawClient, id uint64) {
			var head [frame.HeaderBytes]byte
			frame.Header{Type: frame.Payload, ID: id, Length: 100}.Encode(head[:])
			_, _ = c.conn.Write(head[:])
			_ = c.conn.CloseWrite()
		},
		"ack before done":        func(c *rawClient, id uint64) { c.send(frame.Header{Type: frame.Ack, ID: id}, nil) },
		"ack of nothing":         func(c *rawClient, _ uint64) { c.send(frame.Header{Type: frame.Ack, ID: 999}, nil) },
		"deny of nothing":        func(c *rawClient, _ uint64) { c.send(frame.Header{Type: frame.Deny, ID: 999}, nil) },
		"frame of a server":      func(c *rawClient, _ uint64) { c.send(frame.Header{Type: frame.Done}, nil) },
		"close":                  func(c *rawClient, _ uint64) { c.send(frame.Header{Type: frame.Close}, nil) },
		"hang up":                func(c *rawClient, _ uint64) { _ = c.conn.Close() },
		"payload larger than is": func(c *rawClient, _ uint64) { _, _ = c.conn.Write(oversized()) },
	}
	for name, answer := range answers {
		c := connect(t, f)
		r := c.open(f, fabric.ForPut, 1000, patience)
		read := make(chan error, 1)
		go func() { read <- r.Read(t.Context(), 0, b.Slice(0, 100)) }()
		start := c.receive()
		c.receive()
		answer(c, start.ID)
		if err := <-read; !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("%s: read: %v", name, err)
		}
		if err := r.Close(); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("%s: close: %v", name, err)
		}
		_ = c.conn.Close()
	}
	c := connect(t, f)
	c.send(frame.Header{Type: frame.Payload, ID: 1}, []byte{1})
	c.ended("payload that nobody asked for")
	other.alive("other session")
	soon(t, "one session left", func() bool { return f.Stats().Sessions == 1 })
}

func oversized() []byte {
	var head [frame.HeaderBytes]byte
	frame.Header{Type: frame.Payload, Length: frame.MaxPayload + 1}.Encode(head[:])
	return head[:]
}

// TestDenied lets the client deny a transfer; the session lives on.
func TestDenied(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	c := connect(t, f)
	b := newBuffer(t)
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		r := c.open(f, d, 1000, patience)
		moved := make(chan error, 1)
		go func() {
			if d == fabric.ForPut {
				moved <- errors.Join(r.Read(t.Context(), 0, b.Slice(0, 100)), r.Close())
				return
			}
			moved <- errors.Join(r.Write(t.Context(), 0, b.Slice(0, 100)), r.Close())
		}()
		start := c.receive()
		c.send(frame.Header{Type: frame.Deny, ID: start.ID}, nil)
		for c.receive().Type != frame.Done {
		}
		c.send(frame.Header{Type: frame.Ack, ID: start.ID}, nil)
		if err := <-moved; !errors.Is(err, fabric.ErrTransfer) || errors.Is(err, fabric.ErrFenced) {
			t.Errorf("direction %d: %v", d, err)
		}
		c.alive("after a denial")
	}
}

// TestShortAck lets the client say that it placed fewer bytes than were sent.
func TestShortAck(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	c := connect(t, f)
	b := newBuffer(t)
	r := c.open(f, fabric.ForGet, 100, patience)
	closed := make(chan error, 1)
	go func() { closed <- errors.Join(r.Write(t.Context(), 0, b.Slice(0, 100)), r.Close()) }()
	start := c.receive()
	for c.receive().Type != frame.Done {
	}
	c.send(frame.Header{Type: frame.Ack, ID: start.ID, Size: 99}, nil)
	if err := <-closed; !errors.Is(err, fabric.ErrTransfer) {
		t.Errorf("short ack: %v", err)
	}
}

// TestJoin adds connections to a session, rightly and wrongly.
func TestJoin(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	c := connect(t, f)
	secret := c.offer.Secret.Reveal()
	join := func(secret [32]byte, index uint32) error {
		_, err := frame.Connect(dialRaw(t, f), c.offer.ID, secret, index)
		return err
	}
	if err := join(secret, 1); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"index used twice":      join(secret, 1),
		"first index again":     join(secret, 0),
		"index over the limit":  join(secret, frame.MaxConns),
		"wrong secret":          join([32]byte{1}, 2),
		"join before the first": joinOffer(t, f),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	core, err := f.roster.Find(c.offer.ID)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(core.Carrier.(*session).conns); n != 2 {
		t.Errorf("%d connections", n)
	}
	c.alive("after joins")
	f.RevokePrincipal("p")
	if err := join(secret, 3); err == nil {
		t.Error("joined a session that has ended")
	}
}

func joinOffer(t *testing.T, f *Fabric) error {
	t.Helper()
	offer, err := f.NewSession(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	_, err = frame.Connect(dialRaw(t, f), offer.ID, offer.Secret.Reveal(), 1)
	return err
}

// TestBadRegions announces regions that must be refused.
func TestBadRegions(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	c := connect(t, f)
	for name, h := range map[string]frame.Header{
		"zero": {Region: 2}, "absurd": {Region: 2, Size: frame.MaxRegionBytes + 1},
		"number": {Region: 1 << 32, Size: 1}, "twice": {Region: 1, Size: 1},
	} {
		h.Type = frame.Region
		c.send(h, nil)
		if got := c.receive(); got.Type != frame.RegionRefused || got.Status == frame.StatusOK {
			t.Errorf("%s: %+v", name, got)
		}
	}
	c.send(frame.Header{Type: frame.Forget, Region: 9}, nil)
	if got := c.receive(); got.Status != frame.StatusUnknown {
		t.Errorf("forget of an unknown region: %+v", got)
	}
	c.alive("after refusals")
}

// TestFlood sends questions without reading the replies: the session ends.
func TestFlood(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	c := connect(t, f)
	go func() {
		pings := make([]byte, 0, 1000*frame.HeaderBytes)
		for range 1000 {
			var head [frame.HeaderBytes]byte
			frame.Header{Type: frame.Ping}.Encode(head[:])
			pings = append(pings, head[:]...)
		}
		for {
			if _, err := c.conn.Write(pings); err != nil {
				return
			}
		}
	}()
	soon(t, "session ends", func() bool { return f.Stats().Sessions == 0 })
}

func TestIdle(t *testing.T) {
	f := newFabric(t, fabric.Limits{IdleWait: 50 * time.Millisecond})
	connect(t, f).ended("no pings")
}

// TestHandshakeAbandoned closes the fabric while a client sits in its handshake.
func TestHandshakeAbandoned(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	conn := dialRaw(t, f)
	soon(t, "connection accepted", func() bool { return f.door.Waiting() == 1 })
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Error("connection lives")
		}
	}
}

// FuzzFrames sends anything after an honest handshake, with a read under way: the session ends, and
// the server lives.
func FuzzFrames(f *testing.F) {
	frames := func(headers ...frame.Header) (out []byte) {
		for _, h := range headers {
			var b [frame.HeaderBytes]byte
			h.Encode(b[:])
			out = append(append(out, b[:]...), make([]byte, h.Length)...)
		}
		return out
	}
	f.Add(frames(frame.Header{Type: frame.Payload, ID: 1, Length: 100}, frame.Header{Type: frame.Ack, ID: 1}))
	f.Add(frames(frame.Header{Type: frame.Ping}, frame.Header{Type: frame.Region, Region: 2, Size: 5},
		frame.Header{Type: frame.Forget, Region: 2}, frame.Header{Type: frame.Deny, ID: 1}))
	f.Add(frames(frame.Header{Type: frame.Forget, Region: 1}, frame.Header{Type: frame.Close}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		fab := newFabric(t, fabric.Limits{})
		c := connect(t, fab)
		buf := newBuffer(t)
		r := c.open(fab, fabric.ForPut, 1000, patience)
		read := make(chan error, 1)
		go func() { read <- r.Read(t.Context(), 0, buf.Slice(0, 100)) }()
		if _, err := c.conn.Write(b); err == nil {
			_ = c.conn.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, c.conn)
		<-read
		_ = r.Close()
		soon(t, "session ends", func() bool { return fab.Stats().Sessions == 0 })
	})
}

// TestHandshakeFlood opens more connections than may be in their handshake: each newcomer takes the place
// of the one that has waited longest, and an honest client gets in while all places are taken.
func TestHandshakeFlood(t *testing.T) {
	f := newFabric(t, fabric.Limits{})
	var idle []*net.TCPConn
	for range fabric.MaxHandshakes {
		idle = append(idle, dialRaw(t, f))
	}
	soon(t, "places are taken", func() bool { return f.door.Waiting() == fabric.MaxHandshakes })
	for i := range 3 {
		connect(t, f).alive("during the flood")
		if _, err := io.Copy(io.Discard, idle[i]); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d, which has waited longest, lives", i)
		}
		idle = append(idle, dialRaw(t, f)) // and the place is taken again
		soon(t, "places are taken", func() bool { return f.door.Waiting() == fabric.MaxHandshakes })
	}
	for _, c := range idle {
		_ = c.Close()
	}
	soon(t, "places come free", func() bool { return f.door.Waiting() == 0 })
	connect(t, f).alive("after the flood")
}
