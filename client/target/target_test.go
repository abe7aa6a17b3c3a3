package target_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// server is the other end, played by the test frame by frame, so that it can lie.
type server struct {
	t    *testing.T
	conn net.Conn
}

type keeper struct{ secret [32]byte }

func (k keeper) Secret(frame.HelloBody) ([32]byte, bool) { return k.secret, true }
func (k keeper) Admit(frame.HelloBody) frame.Status      { return frame.StatusOK }

// dial connects a Conn with one data connection to a played server.
func dial(t *testing.T, fabric string) (*server, *target.Conn) {
	t.Helper()
	network, address := "tcp", "127.0.0.1:0"
	if fabric == "shm" {
		network, address = "unix", t.TempDir()+"/s"
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	secret := [32]byte{1, 2, 3}
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = frame.Accept(conn, keeper{secret}, frame.ReadyBody{
				RegionBytes: 1 << 40, Regions: 9, Conns: 1, Payload: frame.MaxPayload, IdleMillis: 60_000,
			})
		}
		if err != nil {
			t.Errorf("accept: %v", err)
		}
		accepted <- conn
	}()
	c, err := target.Dial(t.Context(), frame.SessionReply{
		Session: [16]byte{7}, Secret: token.SecretFrom(secret), Fabric: fabric, Network: network, Address: l.Addr().String(),
	}, target.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, conn: <-accepted}
	_ = s.conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() {
		_ = s.conn.Close()
		_ = c.Close()
	})
	return s, c
}

func (s *server) send(h frame.Header, body []byte) {
	s.t.Helper()
	if err := frame.WriteFrame(s.conn, h, body); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) receive() (frame.Header, []byte) {
	s.t.Helper()
	var b [frame.HeaderBytes]byte
	h, err := frame.ReadHeader(s.conn, &b)
	if err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	body := make([]byte, h.Length)
	if _, err := io.ReadFull(s.conn, body); err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	return h, body
}

func (s *server) expect(typ frame.Type) (frame.Header, []byte) {
	s.t.Helper()
	h, body := s.receive()
	if h.Type != typ {
		s.t.Fatalf("type %d, want %d", h.Type, typ)
	}
	return h, body
}

// register announces memory and plays the server's answer.
func register(t *testing.T, s *server, c *target.Conn, m *target.Memory) *target.Region {
	t.Helper()
	registered := make(chan *target.Region, 1)
	go func() {
		r, err := c.Register(t.Context(), m)
		if err != nil {
			t.Errorf("register: %v", err)
		}
		registered <- r
	}()
	h, _ := s.expect(frame.Region)
	if h.Size != uint64(len(m.Bytes())) {
		t.Errorf("announced %d bytes", h.Size)
	}
	s.send(frame.Header{Type: frame.RegionOK, Region: h.Region}, nil)
	return <-registered
}

func expectWindow(t *testing.T, c *target.Conn, r *target.Region, off, size int64, d target.Direction) *target.Grant {
	t.Helper()
	g, err := c.Expect(r, off, size, d)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// start is the Start frame of a server that obeys.
func start(id uint64, g *target.Grant, status frame.Status) frame.Header {
	d := g.Descriptor()
	return frame.Header{
		Type: frame.Start, Status: status, ID: id, Region: d.Region, Offset: d.Addr, Size: uint64(d.Size),
	}
}

func fill(n int, v byte) []byte { return bytes.Repeat([]byte{v}, n) }

// TestTransfer plays a GET in pieces that arrive out of order, and a PUT.
func TestTransfer(t *testing.T) {
	s, c := dial(t, "tcp")
	r := register(t, s, c, target.WrapMemory(fill(1000, 9)))
	g := expectWindow(t, c, r, 100, 300, target.ForGet)
	if d, err := token.Parse(g.Token()); err != nil || d != g.Descriptor() || d.Addr != 100 || d.Size != 300 {
		t.Errorf("token: %v", err)
	}
	s.send(start(5, g, frame.StatusGet), nil)
	s.send(frame.Header{Type: frame.Data, ID: 5, Offset: 200}, fill(100, 3))
	s.send(frame.Header{Type: frame.Data, ID: 5}, fill(200, 2))
	s.send(frame.Header{Type: frame.Done, ID: 5}, nil)
	if h, _ := s.expect(frame.Ack); h.ID != 5 || h.Size != 300 {
		t.Errorf("ack %+v", h)
	}
	want := append(append(append(fill(100, 9), fill(200, 2)...), fill(100, 3)...), fill(600, 9)...)
	if !bytes.Equal(r.Bytes(), want) {
		t.Error("wrong bytes")
	}
	if err := g.End(); err != nil {
		t.Error(err)
	}
	g = expectWindow(t, c, r, 250, 200, target.ForPut)
	s.send(start(6, g, frame.StatusPut), nil)
	s.send(frame.Header{Type: frame.Read, ID: 6, Offset: 10, Size: 150}, nil)
	h, body := s.expect(frame.Payload)
	if h.ID != 6 || h.Offset != 10 || !bytes.Equal(body, want[260:410]) {
		t.Errorf("payload %+v", h)
	}
	s.send(frame.Header{Type: frame.Done, ID: 6}, nil)
	s.expect(frame.Ack)
	if err := g.End(); err != nil {
		t.Error(err)
	}
	if c.Err() != nil {
		t.Error(c.Err())
	}
}

// TestDenied starts transfers that no running request granted: their bytes are thrown away, and the
// session lives on.
func TestDenied(t *testing.T) {
	s, c := dial(t, "tcp")
	r := register(t, s, c, target.WrapMemory(fill(1000, 9)))
	ended := expectWindow(t, c, r, 0, 1000, target.ForGet)
	if err := ended.End(); err != nil {
		t.Fatal(err)
	}
	g := expectWindow(t, c, r, 100, 300, target.ForGet)
	put := expectWindow(t, c, r, 100, 300, target.ForPut)
	change := func(h frame.Header, change func(*frame.Header)) frame.Header {
		change(&h)
		return h
	}
	good := start(1, g, frame.StatusGet)
	cases := map[string]frame.Header{
		"ended":           start(1, ended, frame.StatusGet),
		"wrong direction": start(1, g, frame.StatusPut),
		"put as get":      start(1, put, frame.StatusGet),
		"no direction":    start(1, g, frame.StatusOK),
		"before":          change(good, func(h *frame.Header) { h.Offset-- }),
		"behind":          change(good, func(h *frame.Header) { h.Offset++ }),
		"larger":          change(good, func(h *frame.Header) { h.Size++ }),
		"far":             change(good, func(h *frame.Header) { h.Offset, h.Size = frame.MaxNumber, frame.MaxNumber }),
		"unknown token":   change(good, func(h *frame.Header) { h.Region = frame.JoinRegion(1, 999) }),
		"other region":    change(good, func(h *frame.Header) { h.Region++ }),
		"no token":        change(good, func(h *frame.Header) { h.Region = 1 }),
	}
	id := uint64(10)
	for name, h := range cases {
		id++
		h.ID = id
		s.send(h, nil)
		if got, _ := s.expect(frame.Deny); got.ID != id {
			t.Errorf("%s: %+v", name, got)
		}
		s.send(frame.Header{Type: frame.Data, ID: id}, fill(1000, 1))
		s.send(frame.Header{Type: frame.Read, ID: id, Size: 10}, nil) // stays unanswered
		s.send(frame.Header{Type: frame.Done, ID: id}, nil)
		if got, _ := s.expect(frame.Ack); got.Size != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	s.send(start(90, g, frame.StatusGet), nil)
	s.send(start(91, g, frame.StatusGet), nil) // a grant counts once
	if got, _ := s.expect(frame.Deny); got.ID != 91 {
		t.Errorf("second start: %+v", got)
	}
	if !bytes.Equal(r.Bytes(), fill(1000, 9)) {
		t.Error("memory changed")
	}
}

// TestBrokenServer sends frames that a server must not send: the session ends, and memory outside the
// window does not change.
func TestBrokenServer(t *testing.T) {
	cases := map[string]func(s *server, get, put *target.Grant){
		"data outside": func(s *server, _, _ *target.Grant) {
			s.send(frame.Header{Type: frame.Data, ID: 1, Offset: 250}, fill(100, 1))
		},
		"data far outside": func(s *server, _, _ *target.Grant) {
			s.send(frame.Header{Type: frame.Data, ID: 1, Offset: frame.MaxNumber}, fill(100, 1))
		},
		"data of nothing": func(s *server, _, _ *target.Grant) {
			s.send(frame.Header{Type: frame.Data, ID: 9}, fill(1, 1))
		},
		"data into a put": func(s *server, _, _ *target.Grant) {
			s.send(frame.Header{Type: frame.Data, ID: 2}, fill(1, 1))
		},
		"read of a get": func(s *server, _, _ *target.Grant) {
			s.send(frame.Header{Type: frame.Read, ID: 1, Size: 1}, nil)
		},
		"read outside": func(s *server, _, _ *target.Grant) {
			s.send(frame.Header{Type: frame.Read, ID: 2, Offset: 299, Size: 2}, nil)
		},
		"read of zero": func(s *server, _, _ *target.Grant) { s.send(frame.Header{Type: frame.Read, ID: 2}, nil) },
		"read too large": func(s *server, _, _ *target.Grant) {
			s.send(frame.Header{Type: frame.Read, ID: 2, Size: frame.MaxPayload + 1}, nil)
		},
		"done of nothing": func(s *server, _, _ *target.Grant) { s.send(frame.Header{Type: frame.Done, ID: 9}, nil) },
		"number in use":   func(s *server, g, _ *target.Grant) { s.send(start(1, g, frame.StatusGet), nil) },
		"client's frame":  func(s *server, _, _ *target.Grant) { s.send(frame.Header{Type: frame.Ping}, nil) },
		"closed unasked":  func(s *server, _, _ *target.Grant) { s.send(frame.Header{Type: frame.Closed}, nil) },
		"garbage": func(s *server, _, _ *target.Grant) {
			_, _ = s.conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n..................."))
		},
		"half a body": func(s *server, _, _ *target.Grant) {
			var b [frame.HeaderBytes]byte
			frame.Header{Type: frame.Data, ID: 1, Length: 100}.Encode(b[:])
			_, _ = s.conn.Write(append(b[:], 9, 9, 9))
			_ = s.conn.Close()
		},
	}
	for name, attack := range cases {
		s, c := dial(t, "tcp")
		r := register(t, s, c, target.WrapMemory(fill(1000, 9)))
		get := expectWindow(t, c, r, 100, 300, target.ForGet)
		put := expectWindow(t, c, r, 500, 300, target.ForPut)
		s.send(start(1, get, frame.StatusGet), nil)
		s.send(start(2, put, frame.StatusPut), nil)
		attack(s, get, put)
		select {
		case <-c.Done():
		case <-time.After(patience):
			t.Fatalf("%s: session lives", name)
		}
		if !errors.Is(c.Err(), target.ErrClosed) {
			t.Errorf("%s: %v", name, c.Err())
		}
		if err := get.End(); !errors.Is(err, target.ErrClosed) {
			t.Errorf("%s: end: %v", name, err)
		}
		if !bytes.Equal(r.Bytes(), fill(1000, 9)) {
			t.Errorf("%s: memory changed", name)
		}
		if _, err := c.Expect(r, 0, 1, target.ForGet); !errors.Is(err, target.ErrClosed) {
			t.Errorf("%s: grant after the end: %v", name, err)
		}
	}
}

// TestEndInTheMiddle gives up while the server is in the middle of a body: after End nothing is
// placed, whatever comes.
func TestEndInTheMiddle(t *testing.T) {
	s, c := dial(t, "tcp")
	r := register(t, s, c, target.WrapMemory(make([]byte, 1000)))
	g := expectWindow(t, c, r, 0, 1000, target.ForGet)
	s.send(start(1, g, frame.StatusGet), nil)
	s.send(start(2, g, frame.StatusGet), nil)
	s.expect(frame.Deny) // so the first was taken
	var b [frame.HeaderBytes]byte
	frame.Header{Type: frame.Data, ID: 1, Length: 1000}.Encode(b[:])
	if _, err := s.conn.Write(append(b[:], 1, 1, 1)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := g.EndContext(ctx); !errors.Is(err, target.ErrClosed) {
		t.Errorf("end: %v", err)
	}
	clear(r.Bytes())
	_, _ = s.conn.Write(fill(997, 1))
	if err := c.Fence(t.Context()); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(r.Bytes(), make([]byte, 1000)) {
		t.Error("memory changed after End")
	}
	if err := r.Memory().Free(); err != nil || r.Memory().Abandoned() {
		t.Errorf("memory after a fence: %v", err)
	}
}

// TestForget plays refusals and answers.
func TestForget(t *testing.T) {
	s, c := dial(t, "tcp")
	m := target.WrapMemory(make([]byte, 10))
	r := register(t, s, c, m)
	if err := m.Free(); !errors.Is(err, target.ErrMemory) {
		t.Errorf("free while announced: %v", err)
	}
	forgotten := make(chan error, 1)
	forget := func() { forgotten <- r.Forget(t.Context()) }
	go forget()
	h, _ := s.expect(frame.Forget)
	s.send(frame.Header{Type: frame.Forgotten, Region: h.Region, Status: frame.StatusUnknown}, nil)
	if err := <-forgotten; !errors.Is(err, target.ErrRefused) {
		t.Errorf("refused: %v", err)
	}
	go forget()
	s.expect(frame.Forget)
	s.send(frame.Header{Type: frame.Forgotten, Region: h.Region}, nil)
	if err := <-forgotten; err != nil {
		t.Error(err)
	}
	if _, err := c.Expect(r, 0, 1, target.ForGet); !errors.Is(err, target.ErrMemory) {
		t.Errorf("grant of a forgotten region: %v", err)
	}
	if err := m.Free(); err != nil {
		t.Error(err)
	}
	go func() {
		_, err := c.Register(t.Context(), target.WrapMemory(make([]byte, 10)))
		forgotten <- err
	}()
	h, _ = s.expect(frame.Region)
	s.send(frame.Header{Type: frame.RegionRefused, Region: h.Region, Status: frame.StatusLimit}, nil)
	if err := <-forgotten; !errors.Is(err, target.ErrRefused) {
		t.Errorf("refused region: %v", err)
	}
}

// TestRF_42_Abandoned: without the server's confirmation shm memory is abandoned.
func TestRF_42_Abandoned(t *testing.T) {
	for _, confirm := range []bool{true, false} {
		s, c := dial(t, "shm")
		m, err := target.NewMemory(10_000)
		if err != nil {
			t.Fatal(err)
		}
		register(t, s, c, m)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		fenced := make(chan error, 1)
		go func() { fenced <- c.Fence(ctx) }()
		s.expect(frame.Close)
		if confirm {
			s.send(frame.Header{Type: frame.Closed}, nil)
		} else {
			cancel()
		}
		err = <-fenced
		cancel()
		if confirm != (err == nil) || confirm == errors.Is(err, target.ErrNotFenced) || m.Abandoned() == confirm {
			t.Errorf("confirmed %v: %v, abandoned %v", confirm, err, m.Abandoned())
		}
		if !confirm {
			again, other := dial(t, "shm")
			_ = again
			if _, err := other.Register(t.Context(), m); !errors.Is(err, target.ErrMemory) {
				t.Errorf("abandoned memory announced: %v", err)
			}
		}
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	}
	s, c := dial(t, "shm")
	m, err := target.NewMemory(10_000)
	if err != nil {
		t.Fatal(err)
	}
	register(t, s, c, m)
	_ = s.conn.Close() // a server that hangs up has not said that it unmapped
	<-c.Done()
	if !m.Abandoned() {
		t.Error("memory is not abandoned after the server hung up")
	}
	if err := errors.Join(c.Close(), m.Free()); err != nil {
		t.Error(err)
	}
}

func TestMemoryRefused(t *testing.T) {
	_, c := dial(t, "shm")
	for name, m := range map[string]*target.Memory{
		"empty": target.WrapMemory(nil), "empty, not nil": target.WrapMemory([]byte{}),
	} {
		if _, err := c.Register(t.Context(), m); !errors.Is(err, target.ErrMemory) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, size := range []int{0, -1} {
		if _, err := target.NewMemory(size); !errors.Is(err, target.ErrMemory) {
			t.Errorf("size %d: %v", size, err)
		}
	}
	m, err := target.NewMemory(5000)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Free(), m.Free()); err != nil {
		t.Error(err)
	}
	if _, err := c.Register(t.Context(), m); !errors.Is(err, target.ErrMemory) {
		t.Errorf("freed: %v", err)
	}
	s, c := dial(t, "tcp")
	r := register(t, s, c, target.WrapMemory(make([]byte, 100)))
	for _, w := range [][2]int64{{-1, 1}, {0, -1}, {0, 101}, {100, 1}, {1 << 62, 1 << 62}, {0, 1 << 40}} {
		if _, err := c.Expect(r, w[0], w[1], target.ForGet); !errors.Is(err, target.ErrMemory) {
			t.Errorf("window %v: %v", w, err)
		}
	}
}

func TestDialRefused(t *testing.T) {
	secret := [32]byte{1}
	for name, offer := range map[string]frame.SessionReply{
		"no secret":     {Fabric: "tcp", Network: "tcp", Address: "127.0.0.1:1"},
		"wrong network": {Secret: token.SecretFrom(secret), Fabric: "shm", Network: "tcp", Address: "127.0.0.1:1"},
		"no fabric":     {Secret: token.SecretFrom(secret), Network: "tcp", Address: "127.0.0.1:1"},
	} {
		if _, err := target.Dial(t.Context(), offer, target.Options{}); !errors.Is(err, target.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = target.Dial(ctx, frame.SessionReply{ // the server accepts and says nothing
		Secret: token.SecretFrom(secret), Fabric: "tcp", Network: "tcp", Address: l.Addr().String(),
	}, target.Options{})
	if err == nil {
		t.Error("dialled a server that does not answer")
	}
}

// FuzzServer sends anything to the client's receiver, with a window granted: bytes outside of it
// stay what they are.
func FuzzServer(f *testing.F) {
	frames := func(headers ...frame.Header) (out []byte) {
		for _, h := range headers {
			var b [frame.HeaderBytes]byte
			h.Encode(b[:])
			out = append(append(out, b[:]...), make([]byte, h.Length)...)
		}
		return out
	}
	good := frame.Header{
		Type: frame.Start, Status: frame.StatusGet, ID: 1, Region: frame.JoinRegion(1, 1), Offset: 100, Size: 300,
	}
	f.Add(frames(good, frame.Header{Type: frame.Data, ID: 1, Offset: 10, Length: 200},
		frame.Header{Type: frame.Done, ID: 1}))
	f.Add(frames(good, frame.Header{Type: frame.Data, ID: 1, Offset: 299, Length: 2}))
	f.Add(frames(frame.Header{Type: frame.RegionOK, Region: 1}, frame.Header{Type: frame.Pong}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, c := dial(t, "tcp")
		r := register(t, s, c, target.WrapMemory(fill(1000, 9)))
		g := expectWindow(t, c, r, 100, 300, target.ForGet)
		go func() { _, _ = io.Copy(io.Discard, s.conn) }()
		_, _ = s.conn.Write(b)
		_ = s.conn.(*net.TCPConn).CloseWrite()
		<-c.Done()
		_ = g.End()
		if !bytes.Equal(r.Bytes()[:100], fill(100, 9)) || !bytes.Equal(r.Bytes()[400:], fill(600, 9)) {
			t.Fatal("memory outside the window changed")
		}
	})
}
