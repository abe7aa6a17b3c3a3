package fabrictest

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
)

// testEnds ends a session in every way at every point of a transfer. Afterwards the operations fail,
// Close says ErrFenced, and client memory does not change any more.
func testEnds(t *testing.T, bed Bed) {
	ends := []struct {
		name string
		end  func(s *stage, c Client)
	}{
		{"drop", func(s *stage, c Client) {
			c.Drop()
			sessionGone(s)
		}},
		{"fence", func(s *stage, c Client) {
			if err := c.Fence(s.ctx); err != nil {
				s.t.Errorf("fence: %v", err)
			}
			sessionGone(s)
		}},
		{"revoke", func(s *stage, _ Client) { s.fabric.RevokePrincipal(principal) }},
	}
	points := []string{"registered", "opened", "moved", "moving", "closed"}
	for _, e := range ends {
		for _, point := range points {
			for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
				name := e.name + "/" + point + "/get"
				if d == fabric.ForPut {
					name = e.name + "/" + point + "/put"
				}
				t.Run(name, func(t *testing.T) { endAt(t, bed, point, d, e.end) })
			}
		}
	}
}

func sessionGone(s *stage) {
	s.t.Helper()
	Soon(s.t, "session ends", func() bool { return s.fabric.Stats().Sessions == 0 })
}

func endAt(t *testing.T, bed Bed, point string, d fabric.Direction, end func(*stage, Client)) {
	s := newStage(t, bed, fabric.Limits{DrainWait: shortly})
	c := s.connect(principal)
	const size = 8 << 20
	r := s.register(c, size)
	w := s.grant(r, 0, size, d)
	if point == "registered" {
		end(s, c)
		stays(s, r, func() {
			if _, err := s.fabric.Open(s.ctx, w.Descriptor(), request(d, size)); !errors.Is(err, fabric.ErrNoSession) {
				t.Errorf("open after the end: %v", err)
			}
		})
		return
	}
	remote := s.open(w, d, size)
	move := func() error {
		if d == fabric.ForPut {
			b := s.buffer(1<<20, 1, 0)
			defer b.Release()
			return remote.Read(s.ctx, 0, b)
		}
		return s.sendAll(remote, 1, 1<<20, 1<<20)
	}
	stop := make(chan struct{})
	moving := make(chan error, 1)
	switch point {
	case "moved":
		if err := move(); err != nil {
			t.Fatal(err)
		}
	case "moving":
		go func() { moving <- moveUntil(stop, move) }()
	case "closed":
		if err := move(); err != nil {
			t.Fatal(err)
		}
		if err := remote.Close(); err != nil {
			t.Fatal(err)
		}
	}
	end(s, c)
	stays(s, r, func() {
		close(stop)
		if point == "moving" {
			if err := <-moving; err != nil && !errors.Is(err, fabric.ErrFenced) {
				t.Errorf("moving: %v", err)
			}
		}
		if err := move(); err == nil {
			t.Error("moved after the end")
		}
		if point == "closed" {
			return
		}
		if err := remote.Close(); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("close after the end: %v", err)
		}
	})
}

// moveUntil repeats move until stop is closed or it fails.
func moveUntil(stop chan struct{}, move func() error) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := move(); err != nil {
			return err
		}
	}
}

// stays fills client memory with a pattern, runs what must not touch it, and compares.
func stays(s *stage, r Region, attempt func()) {
	s.t.Helper()
	copy(r.Bytes(), pattern(77, 0, len(r.Bytes())))
	before := snap(r.Bytes())
	attempt()
	before.unchanged(s.t, "after the end", r.Bytes())
}

// testDeadlineBeforeUse lets the deadline pass while nothing is under way: the window is dead, the
// session is not.
func testDeadlineBeforeUse(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	r := s.register(s.connect(principal), 1<<20)
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		for _, begun := range []bool{false, true} {
			w := s.grant(r, 0, 1<<20, d)
			g := request(d, 1<<20)
			g.Deadline = time.Now().Add(shortly + bed.Stop)
			remote, err := s.fabric.Open(s.ctx, w.Descriptor(), g)
			if err != nil {
				t.Fatal(err)
			}
			b := s.buffer(4096, 1, 0)
			move := remote.Write
			if d == fabric.ForPut {
				move = remote.Read
			}
			if begun {
				if err := move(s.ctx, 0, b); err != nil {
					t.Fatal(err)
				}
			}
			Soon(t, "deadline passes", func() bool { return time.Now().After(g.Deadline) })
			stays(s, r, func() {
				if err := move(s.ctx, 0, b); !errors.Is(err, fabric.ErrFenced) {
					t.Errorf("move after the deadline: %v", err)
				}
				if err := remote.Close(); !errors.Is(err, fabric.ErrFenced) {
					t.Errorf("close after the deadline: %v", err)
				}
			})
			b.Release()
			if err := w.EndContext(s.ctx); err != nil {
				t.Errorf("end: %v", err)
			}
		}
	}
	if n := s.fabric.Stats().Sessions; n != 1 && bed.Attach == nil {
		t.Errorf("%d sessions after deadlines without operations under way", n)
	}
}

// testDeadlineMapped lets the deadline pass while the window is mapped, as by a device read that
// hangs: Close returns in time, what the read brings later does not reach the client, and the addresses
// stay usable until Unmap.
func testDeadlineMapped(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	r := s.register(s.connect(principal), 1<<20)
	w := s.grant(r, 4096, 100_000, fabric.ForGet)
	g := request(fabric.ForGet, 100_000)
	g.Deadline = time.Now().Add(shortly)
	remote, err := s.fabric.Open(s.ctx, w.Descriptor(), g)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := remote.(fabric.Mapper)
	if !ok {
		_ = remote.Close()
		t.Skip("no Mapper")
	}
	view, err := m.Map(10, 50_000)
	if err != nil {
		t.Fatal(err)
	}
	copy(view, pattern(3, 0, 1000))
	want(t, "mapped", r.Bytes()[4106:5106], 3, 0)
	if err := remote.Close(); !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("close while mapped: %v", err)
	}
	if late := time.Since(g.Deadline); late < 0 || late > patience/2 {
		t.Errorf("close returned %v after the deadline", late)
	}
	stays(s, r, func() {
		copy(view, pattern(4, 0, len(view))) // must not fault either
		m.Unmap(10, 50_000)
	})
	sessionGone(s)
}

// testCloseWaitsForMapped unmaps in time: Close waits for it and succeeds.
func testCloseWaitsForMapped(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	r := s.register(s.connect(principal), 1<<20)
	w := s.grant(r, 0, 1<<20, fabric.ForGet)
	remote := s.open(w, fabric.ForGet, 1<<20)
	m, ok := remote.(fabric.Mapper)
	if !ok {
		_ = remote.Close()
		t.Skip("no Mapper")
	}
	view, err := m.Map(0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- remote.Close() }()
	Soon(t, "close begins", func() bool {
		again, err := m.Map(0, 1)
		if err == nil {
			_ = again
			m.Unmap(0, 1)
		}
		return err != nil
	})
	copy(view, pattern(6, 0, len(view)))
	select {
	case err := <-closed:
		t.Fatalf("closed while mapped: %v", err)
	default:
	}
	m.Unmap(0, 1<<20)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	want(t, "mapped window", r.Bytes(), 6, 0)
}

// testIdleSession checks that the client's pings keep its session.
func testIdleSession(t *testing.T, bed Bed) {
	const idle = time.Second // three pings; a loaded machine may delay two
	s := newStage(t, bed, fabric.Limits{IdleWait: idle})
	c := s.connect(principal)
	r := s.register(c, 4096)
	begin := time.Now()
	Soon(t, "idle waits pass", func() bool { return time.Since(begin) > 5*idle/2 })
	select {
	case <-c.Done():
		t.Fatal("a session with pings ended")
	default:
	}
	w := s.grant(r, 0, 4096, fabric.ForGet)
	remote := s.open(w, fabric.ForGet, 4096)
	if err := s.sendAll(remote, 1, 4096, 4096); err != nil {
		t.Error(err)
	}
	if err := remote.Close(); err != nil {
		t.Error(err)
	}
}

// testServerClose closes the fabric with a window open.
func testServerClose(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	c := s.connect(principal)
	r := s.register(c, 1<<20)
	remote := s.open(s.grant(r, 0, 1<<20, fabric.ForGet), fabric.ForGet, 1<<20)
	if err := s.fabric.Close(); err != nil {
		t.Fatal(err)
	}
	stays(s, r, func() {
		if err := s.sendAll(remote, 1, 1<<20, 1<<20); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("write: %v", err)
		}
		if err := remote.Close(); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("close: %v", err)
		}
	})
	if bed.Attach != nil {
		return // its clients know of no server
	}
	<-c.Done()
	if _, err := s.offer(principal); err == nil {
		t.Error("session offered after close")
	}
}
