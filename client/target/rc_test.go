package target_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native"
)

// TestRCTransfer writes and reads windows by the server's queue pair: memory of the package and of the heap, at odd
// places. Oracle: the bytes, and those around the windows.
func TestRCTransfer(t *testing.T) {
	l := network(t).library
	d := openDevices(t, l)
	own, err := target.NewMemory(10_000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Free(); err != nil {
			t.Error(err)
		}
	})
	s, c, paths := dialRC(t, d, l, upRails(t, l)...)
	for name, m := range map[string]*target.Memory{
		"own": own, "heap": target.WrapMemory(make([]byte, 10_001)[1:]), "one byte": target.WrapMemory(make([]byte, 1)),
	} {
		r, k := registerRC(t, s, c, m)
		for i, p := range paths {
			copy(m.Bytes(), fill(len(m.Bytes()), 9))
			from, to := 0, 1
			if len(m.Bytes()) > 1 {
				from, to = 777, 5003
			}
			g := expectWindow(t, c, r, int64(from), int64(to-from), target.ForGet)
			if d := g.Descriptor(); d.Fabric != "rc" || d.Addr != uint64(from) {
				t.Errorf("%s: token of %s at %d", name, d.Fabric, d.Addr)
			}
			if got := s.move(p, native.OpWrite, k, from, fill(to-from, byte(i+1))); got != native.StatusOK {
				t.Fatalf("%s: write: %d", name, got)
			}
			back := make([]byte, to-from)
			if got := s.move(p, native.OpRead, k, from, back); got != native.StatusOK {
				t.Fatalf("%s: read: %d", name, got)
			}
			if err := g.End(); err != nil {
				t.Error(err)
			}
			want := fill(len(m.Bytes()), 9)
			copy(want[from:], fill(to-from, byte(i+1)))
			if !bytes.Equal(m.Bytes(), want) || !bytes.Equal(back, want[from:to]) {
				t.Errorf("%s by path %d: other bytes", name, p.id)
			}
		}
	}
	if c.Fabric() != "rc" || c.Err() != nil {
		t.Errorf("%s %v", c.Fabric(), c.Err())
	}
	if err := c.Fence(t.Context()); err != nil {
		t.Error(err)
	}
	if own.Abandoned() {
		t.Error("abandoned")
	}
}

// TestRCFencedAfterLost: the queue pair of a lost path reaches nothing when FENCED comes, and another path is offered.
func TestRCFencedAfterLost(t *testing.T) {
	n := network(t)
	s, c, paths := dialRC(t, openDevices(t, n.library), n.library, upRails(t, n.library)[0])
	_, k := registerRC(t, s, c, target.WrapMemory(make([]byte, 100)))
	for round := range 3 {
		p := paths[0]
		if err := p.qp.Reset(); err != nil {
			t.Fatal(err)
		}
		s.send(frame.Header{Type: frame.Lost, ID: p.id}, nil)
		if h, _ := s.expect(frame.Fenced); h.ID != p.id {
			t.Fatalf("path %d is fenced, want %d", h.ID, p.id)
		}
		n.dead(t, p.peer.QPN)
		next := s.offered()
		if next.id != p.id+1 || next.peer.QPN == p.peer.QPN && next.peer.PSN == p.peer.PSN {
			t.Errorf("round %d: path %d with the same queue pair", round, next.id)
		}
		paths[0] = s.up(next)
		if got := s.move(paths[0], native.OpWrite, k, 0, fill(100, byte(round))); got != native.StatusOK {
			t.Errorf("round %d: write: %d", round, got)
		}
		s.send(frame.Header{Type: frame.Lost, ID: p.id}, nil) // again: it is fenced already
	}
	if c.Err() != nil {
		t.Error(c.Err())
	}
}

// TestRCFenceNeedsNoServer: the server keeps its queue pair and its connection, and does not read. After Fence its
// writes fail and change nothing.
func TestRCFenceNeedsNoServer(t *testing.T) {
	n := network(t)
	s, c, paths := dialRC(t, openDevices(t, n.library), n.library, upRails(t, n.library)[0])
	m := target.WrapMemory(make([]byte, 1000))
	r, k := registerRC(t, s, c, m)
	expectWindow(t, c, r, 0, 1000, target.ForGet)
	if err := c.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.Abandoned() {
		t.Error("abandoned")
	}
	n.dead(t, paths[0].peer.QPN)
	if got := s.move(paths[0], native.OpWrite, k, 0, fill(1000, 1)); got == native.StatusOK {
		t.Error("a write after the fence succeeded")
	}
	if !bytes.Equal(m.Bytes(), make([]byte, 1000)) {
		t.Error("memory changed after the fence")
	}
	if _, err := c.Expect(r, 0, 1, target.ForGet); !errors.Is(err, target.ErrClosed) {
		t.Errorf("grant after the fence: %v", err)
	}
	if err := m.Free(); err != nil {
		t.Error(err)
	}
}

// TestRCForget: after FORGOTTEN the key is worthless, while the session lives.
func TestRCForget(t *testing.T) {
	n := network(t)
	s, c, paths := dialRC(t, openDevices(t, n.library), n.library, upRails(t, n.library)[0])
	r, k := registerRC(t, s, c, target.WrapMemory(make([]byte, 100)))
	forgotten := make(chan error, 1)
	go func() { forgotten <- r.Forget(t.Context()) }()
	h, _ := s.expect(frame.Forget)
	if got := s.move(paths[0], native.OpWrite, k, 0, fill(100, 1)); got != native.StatusOK {
		t.Errorf("before FORGOTTEN: %d", got)
	}
	s.send(frame.Header{Type: frame.Forgotten, Region: h.Region}, nil)
	if err := <-forgotten; err != nil {
		t.Fatal(err)
	}
	clear(r.Bytes())
	if got := s.move(paths[0], native.OpWrite, k, 0, fill(100, 1)); got != native.StatusRemoteAccess {
		t.Errorf("after FORGOTTEN: %d", got)
	}
	if !bytes.Equal(r.Bytes(), make([]byte, 100)) || c.Err() != nil {
		t.Errorf("memory changed, or the session ended: %v", c.Err())
	}
}

// TestRCBrokenServer sends what a server must not send: the session ends and nothing is left of it.
func TestRCBrokenServer(t *testing.T) {
	l := network(t).library
	d := openDevices(t, l)
	first := upRails(t, l)[0]
	empty := make([]byte, frame.PathBytes)
	for name, lie := range map[string]func(s *rcServer, p *serverPath){
		"accepts an unknown path": func(s *rcServer, p *serverPath) { s.ok(99, s.body(p)) },
		"accepts path 0":          func(s *rcServer, p *serverPath) { s.ok(0, s.body(p)) },
		"accepts a path twice":    func(s *rcServer, p *serverPath) { s.ok(p.id, s.body(p)) },
		"refuses an unknown path": func(s *rcServer, p *serverPath) {
			s.send(frame.Header{Type: frame.PathRefused, ID: 99, Status: frame.StatusRail}, nil)
		},
		"refuses an accepted path": func(s *rcServer, p *serverPath) {
			s.send(frame.Header{Type: frame.PathRefused, ID: p.id, Status: frame.StatusRail}, nil)
		},
		"loses an unknown path": func(s *rcServer, p *serverPath) { s.send(frame.Header{Type: frame.Lost, ID: 99}, nil) },
		"loses path 0":          func(s *rcServer, p *serverPath) { s.send(frame.Header{Type: frame.Lost}, nil) },
		"is ready again": func(s *rcServer, p *serverPath) {
			s.send(frame.Header{Type: frame.Ready}, make([]byte, frame.ReadyBytes))
		},
		"names a rail twice": func(s *rcServer, p *serverPath) {
			r := frame.Rail{MTU: 3, GID: first.GID}
			s.send(frame.Header{Type: frame.Rails}, frame.EncodeRails([]frame.Rail{r, r}))
		},
		"names a broken rail": func(s *rcServer, p *serverPath) {
			s.send(frame.Header{Type: frame.Rails}, frame.EncodeRails([]frame.Rail{{}}))
		},
		"accepts nothing": func(s *rcServer, p *serverPath) {
			s.send(frame.Header{Type: frame.PathOK, ID: p.id}, empty)
		},
		"starts a transfer":    func(s *rcServer, p *serverPath) { s.send(frame.Header{Type: frame.Start}, nil) },
		"closed unasked":       func(s *rcServer, p *serverPath) { s.send(frame.Header{Type: frame.Closed}, nil) },
		"sends a client frame": func(s *rcServer, p *serverPath) { s.send(frame.Header{Type: frame.PathUp, ID: p.id}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			s, c, paths := dialRC(t, d, l, first)
			m := target.WrapMemory(make([]byte, 100))
			registerRC(t, s, c, m)
			lie(s, paths[0])
			s.closed(c)
			if err := errors.Join(c.Fence(t.Context()), m.Free()); err != nil || m.Abandoned() {
				t.Errorf("after the end: %v, abandoned %v", err, m.Abandoned())
			}
		})
	}
	for name, lie := range map[string]func(b *frame.PathBody){
		"another device": func(b *frame.PathBody) { b.Device++ },
		"more reads":     func(b *frame.PathBody) { b.Reads = 255 },
	} {
		t.Run(name, func(t *testing.T) {
			s, dialed := hello(t, d, upRails(t, l)[:1], l)
			s.list()
			p := s.offered()
			b := s.body(p)
			lie(&b)
			if b.Reads == 255 && p.peer.Reads == 255 {
				t.Skip("the adapter takes as many")
			}
			s.ok(p.id, b)
			if done := <-dialed; !errors.Is(done.err, target.ErrClosed) {
				t.Errorf("%v", done.err)
			}
		})
	}
	t.Run("loses an offered path", func(t *testing.T) {
		s, dialed := hello(t, d, upRails(t, l)[:1], l)
		s.list()
		p := s.offered()
		s.send(frame.Header{Type: frame.Lost, ID: p.id}, nil)
		// Whether the broken session or the lack of a path is seen first depends on the adapter's speed.
		if done := <-dialed; !errors.Is(done.err, target.ErrClosed) && !errors.Is(done.err, target.ErrRefused) {
			t.Errorf("%v", done.err)
		}
	})
}

// TestRCRefused: without a path there is no session, and the error says why.
func TestRCRefused(t *testing.T) {
	l := network(t).library
	d := openDevices(t, l)
	rails := upRails(t, l)
	for _, status := range []frame.Status{frame.StatusGID, frame.StatusRail, frame.StatusLimit, frame.StatusDevice} {
		s, dialed := hello(t, d, rails[:1], l)
		s.list()
		var done dialing
		offers := map[[16]byte]int{} // by port of the client
		for over := false; !over; {
			select {
			case done = <-dialed:
				over = true
			default:
				h, body, ok := s.tryReceive()
				if ok && h.Type == frame.Path {
					peer, err := frame.DecodePath(body)
					if err != nil {
						t.Fatal(err)
					}
					offers[peer.GID]++
					s.send(frame.Header{Type: frame.PathRefused, ID: h.ID, Status: status}, nil)
				}
			}
		}
		refused := new(frame.RefusedError)
		if !errors.Is(done.err, target.ErrRefused) || !errors.As(done.err, &refused) || refused.Status != status {
			t.Errorf("status %d: %v", status, done.err)
		}
		for _, r := range rails {
			if offers[r.GID] != 1 {
				t.Errorf("status %d: %s was offered %d times", status, r.Name(), offers[r.GID])
			}
		}
	}
	s, dialed := hello(t, d, rails, l)
	s.list(make([]bool, len(rails))...)
	if done := <-dialed; !errors.Is(done.err, target.ErrRefused) {
		t.Errorf("all rails down: %v", done.err)
	}
	s, dialed = hello(t, d, nil, l)
	s.list()
	if done := <-dialed; !errors.Is(done.err, target.ErrRefused) {
		t.Errorf("no rails: %v", done.err)
	}
}

// TestRCPathless: a session whose last path is gone for good ends by itself; one whose rail comes back does not.
func TestRCPathless(t *testing.T) {
	l := network(t).library
	s, c, paths := dialRC(t, openDevices(t, l), l, upRails(t, l)[0])
	lose := func(p *serverPath) {
		if err := p.qp.Reset(); err != nil {
			t.Fatal(err)
		}
		s.send(frame.Header{Type: frame.Lost, ID: p.id}, nil)
		s.expect(frame.Fenced)
	}
	s.list(false)
	lose(paths[0])
	s.list(true)
	p := s.up(s.offered())
	if c.Err() != nil {
		t.Fatal(c.Err())
	}
	s.list(false)
	lose(p)
	s.closed(c)
}

// TestRCSharesDevices: sessions of one process share the opened adapters, and memory can be on several at once.
func TestRCSharesDevices(t *testing.T) {
	n := network(t)
	d := openDevices(t, n.library)
	first := upRails(t, n.library)[0]
	m := target.WrapMemory(make([]byte, 100))
	var ends []func()
	for range 3 {
		s, c, paths := dialRC(t, d, n.library, first)
		_, k := registerRC(t, s, c, m)
		if got := s.move(paths[0], native.OpWrite, k, 0, fill(100, 1)); got != native.StatusOK {
			t.Errorf("write: %d", got)
		}
		ends = append(ends, func() {
			if err := c.Fence(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if n.nic != nil { // the servers have their own, and looking for rails opens one for a moment
		n.nic.Await("four openings", func() bool { return n.nic.Counters().Contexts == 1+3 })
	}
	for _, end := range ends {
		end()
	}
	if err := m.Free(); err != nil {
		t.Error(err)
	}
}
