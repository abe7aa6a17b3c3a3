package target_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestRCFenceOfAnAdapterThatHangs: a call of the driver does not return. Fence returns when its context ends, and says
// what is true by then: either no queue pair reaches the memory, or the fence has failed. The rest ends by itself.
func TestRCFenceOfAnAdapterThatHangs(t *testing.T) {
	const size = 10_000
	for name, c := range map[string]struct {
		at      fakeverbs.Point
		reached bool
	}{
		"error state": {fakeverbs.AtError, true},
		"destruction": {fakeverbs.AtDestroyQP, true},
		"keys":        {fakeverbs.AtDeregMR, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := faked(t, fakeverbs.Options{})
			s, conn, paths := dialRC(t, openDevices(t, n.library, "fake0"), n.library, upRails(t, n.library)[1])
			m := target.WrapMemory(make([]byte, size))
			_, k := registerRC(t, s, conn, m)
			held := s.writeHeld(n.nic, paths[0], k, size)
			hang := n.nic.Inject(fakeverbs.Rule{At: c.at, Do: fakeverbs.Hold, Device: "fake0", Times: fakeverbs.Always})
			t.Cleanup(hang.Release)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			fenced := make(chan error, 1)
			go func() { fenced <- conn.Fence(ctx) }()
			hang.Await(1)
			cancel()
			err := <-fenced
			if errors.Is(err, target.ErrNotFenced) != c.reached || !errors.Is(m.Free(), target.ErrMemory) {
				t.Errorf("%v, abandoned %v", err, m.Abandoned())
			}
			mark := n.nic.Mark()
			copy(m.Bytes(), fill(size, 5))
			held.Release()
			n.nic.Await("retries to end", func() bool { return !n.nic.Busy() })
			touched := n.nic.Touched(m.Bytes(), mark)
			if !c.reached && (len(touched) != 0 || !bytes.Equal(m.Bytes(), fill(size, 5))) {
				t.Errorf("memory was touched: %+v", touched)
			}
			hang.Release()
			s.closed(conn)
			if err := m.Free(); err != nil || m.Abandoned() {
				t.Errorf("afterwards: %v, abandoned %v", err, m.Abandoned())
			}
		})
	}
}

// TestRCFenceWhileMemoryIsPinned: other memory of the session is being registered, which takes its time. The fence
// does not wait for it longer than its context, and abandons nothing.
func TestRCFenceWhileMemoryIsPinned(t *testing.T) {
	const size = 10_000
	n := faked(t, fakeverbs.Options{})
	s, conn, paths := dialRC(t, openDevices(t, n.library, "fake0"), n.library, upRails(t, n.library)[1])
	m, late := target.WrapMemory(make([]byte, size)), target.WrapMemory(make([]byte, size))
	_, k := registerRC(t, s, conn, m)
	held := s.writeHeld(n.nic, paths[0], k, size)
	slow := n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtRegMR, Do: fakeverbs.Hold, Device: "fake0"})
	t.Cleanup(slow.Release)
	registered := make(chan error, 1)
	go func() {
		_, err := conn.Register(context.Background(), late)
		registered <- err
	}()
	slow.Await(1)
	ctx, cancel := context.WithCancel(t.Context())
	fenced := make(chan error, 1)
	go func() { fenced <- conn.Fence(ctx) }()
	n.nic.Await("the end of the queue pair", func() bool { return n.pairsOf() == 1 }) // the server's
	cancel()
	if err := <-fenced; err != nil || m.Abandoned() || late.Abandoned() {
		t.Errorf("%v, abandoned %v %v", err, m.Abandoned(), late.Abandoned())
	}
	mark := n.nic.Mark()
	held.Release()
	n.nic.Await("retries to end", func() bool { return !n.nic.Busy() })
	if touched := n.nic.Touched(m.Bytes(), mark); len(touched) != 0 {
		t.Errorf("memory was touched: %+v", touched)
	}
	select {
	case <-conn.Done():
		t.Error("the session is over while its memory is being registered")
	default:
	}
	slow.Release()
	if err := <-registered; !errors.Is(err, target.ErrClosed) {
		t.Errorf("registered: %v", err)
	}
	s.closed(conn)
	if err := errors.Join(m.Free(), late.Free()); err != nil || m.Abandoned() || late.Abandoned() {
		t.Errorf("afterwards: %v, abandoned %v %v", err, m.Abandoned(), late.Abandoned())
	}
}

// TestRCFenceWhileAPathConnects: the kernel is busy connecting a queue pair when the session is fenced. Fence waits
// for it, since it would be ready to receive afterwards; and leaves nothing of it.
func TestRCFenceWhileAPathConnects(t *testing.T) {
	for _, errno := range []syscall.Errno{0, syscall.ETIMEDOUT} {
		n := faked(t, fakeverbs.Options{})
		s, conn, paths := dialRC(t, openDevices(t, n.library, "fake0"), n.library, upRails(t, n.library)[1])
		m := target.WrapMemory(make([]byte, 100))
		_, k := registerRC(t, s, conn, m)
		must(t, 0, paths[0].qp.Reset())
		s.send(frame.Header{Type: frame.Lost, ID: paths[0].id}, nil)
		s.fencedPath(paths[0])
		p := s.offered()
		s.connect(p)
		slow := n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReceive, Do: fakeverbs.Hold, Device: "fake0", Errno: errno})
		t.Cleanup(slow.Release)
		s.ok(p.id, s.body(p))
		slow.Await(1)
		fenced := make(chan error, 1)
		go func() { fenced <- conn.Fence(context.Background()) }()
		<-hungUp(s)
		select {
		case err := <-fenced:
			t.Errorf("fenced while a queue pair connects: %v", err)
		default:
		}
		slow.Release()
		if err := <-fenced; err != nil || m.Abandoned() {
			t.Errorf("%v, abandoned %v", err, m.Abandoned())
		}
		n.dead(t, p.peer.QPN)
		if got := s.move(p, native.OpWrite, k, 0, fill(100, 1)); got == native.StatusOK {
			t.Error("a write succeeded")
		}
		if !bytes.Equal(m.Bytes(), make([]byte, 100)) {
			t.Error("memory changed")
		}
	}
}

// hungUp is closed when the client has closed the connection.
func hungUp(s *rcServer) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			if _, _, ok := s.tryReceive(); !ok {
				return
			}
		}
	}()
	return over
}

// TestRCConnectingHoldsUpNothing: while the kernel connects one path, another one that fails is fenced.
func TestRCConnectingHoldsUpNothing(t *testing.T) {
	n := faked(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}, {}}})
	d := openDevices(t, n.library, "fake0")
	s, conn, paths := dialRC(t, d, n.library, upRails(t, n.library)[1:]...)
	must(t, 0, paths[0].qp.Reset())
	s.send(frame.Header{Type: frame.Lost, ID: paths[0].id}, nil)
	s.fencedPath(paths[0])
	p := s.offered()
	slow := n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReceive, Do: fakeverbs.Hold, Device: "fake0"})
	t.Cleanup(slow.Release)
	s.connect(p)
	s.ok(p.id, s.body(p))
	slow.Await(1)
	n.nic.FailQP(paths[1].peer.QPN)
	s.fencedPath(paths[1])
	n.nic.FailQP(p.peer.QPN) // the one that connects
	slow.Release()
	for {
		h, _ := s.receive()
		if h.Type == frame.Fenced && h.ID == p.id {
			break
		}
		if h.Type != frame.PathUp && h.Type != frame.Path {
			t.Fatalf("frame %+v", h)
		}
	}
	if conn.Err() != nil {
		t.Error(conn.Err())
	}
}

// TestRCFencedComesAfterPathUp: a queue pair fails at the moment at which it comes up. A server takes PATH_UP of a path
// that was fenced for a breach of the protocol, so whatever happens it must not come behind FENCED.
func TestRCFencedComesAfterPathUp(t *testing.T) {
	n := faked(t, fakeverbs.Options{})
	d := openDevices(t, n.library, "fake0")
	for range 200 {
		s, dialed := hello(t, d, upRails(t, n.library)[1:], n.library)
		s.list()
		p := s.offered()
		s.connect(p)
		failed := make(chan struct{})
		go func() {
			defer close(failed)
			for q, ok := n.nic.QP(p.peer.QPN); ok && q.State == native.QPInit; q, ok = n.nic.QP(p.peer.QPN) {
				runtime.Gosched()
			}
			n.nic.FailQP(p.peer.QPN)
		}()
		s.ok(p.id, s.body(p))
		fenced := false
		for {
			h, _, ok := s.tryReceive()
			if !ok || (fenced && h.Type != frame.PathUp) {
				break
			}
			if fenced {
				t.Fatalf("frame of type %d behind FENCED", h.Type)
			}
			fenced = h.Type == frame.Fenced && h.ID == p.id
		}
		<-failed
		_ = s.conn.Close()
		if done := <-dialed; done.conn != nil {
			_ = done.conn.Close()
		}
		if !fenced {
			t.Fatal("not fenced")
		}
	}
}

// TestRCDialOnAnAdapterThatHangs: Dial gives up, and what it began ends when the driver returns.
func TestRCDialOnAnAdapterThatHangs(t *testing.T) {
	n := faked(t, fakeverbs.Options{})
	d := openDevices(t, n.library, "fake0")
	hang := n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtCreateQP, Do: fakeverbs.Hold, Device: "fake0"})
	t.Cleanup(hang.Release)
	s, dialed := hello(t, d, upRails(t, n.library)[1:], n.library)
	s.list()
	hang.Await(1)
	s.giveUp()
	if done := <-dialed; done.conn != nil || !errors.Is(done.err, context.Canceled) {
		t.Errorf("%v", done.err)
	}
	hang.Release()
	n.nic.Await("what was begun to go", func() bool {
		open := n.nic.Counters()
		return open.QPs == 0 && open.PDs == 1 // of the server
	})
	must(t, 0, d.Close()) // whoever is last closes the adapter
	n.nic.Await("the adapter to be closed", func() bool { return n.nic.Counters().Contexts == 1 })
}

// TestRCDeviceThatComesLate: a session uses the devices that were up when it was opened. When they are gone it ends by
// itself, and the next one has those that came meanwhile.
func TestRCDeviceThatComesLate(t *testing.T) {
	n := faked(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}, {}}})
	d := openDevices(t, n.library, "fake0", "fake1")
	rails := upRails(t, n.library)
	server := rails[2]
	n.nic.PortDown("fake1")
	s, c, paths := dialRC(t, d, n.library, server)
	m := target.WrapMemory(make([]byte, 100))
	_, k := registerRC(t, s, c, m)
	if len(k.keys) != 1 {
		t.Fatalf("%d devices", len(k.keys))
	}
	n.nic.PortUp("fake1")
	n.nic.PortDown("fake0")
	s.fencedPath(paths[0])
	s.closed(c)
	if err := m.Free(); err != nil || m.Abandoned() {
		t.Errorf("%v, abandoned %v", err, m.Abandoned())
	}
	s, c, paths = dialRC(t, d, n.library, server)
	if paths[0].peer.GID != rails[1].GID {
		t.Errorf("the next session uses %x", paths[0].peer.GID)
	}
	_, k = registerRC(t, s, c, m)
	if got := s.move(paths[0], native.OpWrite, k, 0, fill(100, 1)); got != native.StatusOK {
		t.Errorf("write: %d", got)
	}
}

// TestRCAddressThatChanges: a port whose address the server did not take is offered again when it has another.
func TestRCAddressThatChanges(t *testing.T) {
	n := faked(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}, {}}})
	rails := upRails(t, n.library)
	s, dialed := hello(t, openDevices(t, n.library, "fake0", "fake1"), []rail.Rail{rails[2], rails[2]}, n.library)
	s.list()
	first, second := s.offered(), s.offered()
	if first.peer.GID != rails[0].GID || second.peer.GID != rails[1].GID {
		t.Fatalf("offered by %x and %x", first.peer.GID, second.peer.GID)
	}
	s.send(frame.Header{Type: frame.PathRefused, ID: first.id, Status: frame.StatusGID}, nil)
	s.up(s.offered()) // the first rail, by the other port
	s.up(second)
	done := <-dialed
	must(t, 0, done.err)
	t.Cleanup(func() { _ = done.conn.Close() })
	address := rails[2].Address().Next()
	n.nic.SetAddr("fake0", address)
	if again := s.offered(); again.rail != first.rail || again.peer.GID != address.As16() {
		t.Errorf("rail %d by %x", again.rail, again.peer.GID)
	}
}
