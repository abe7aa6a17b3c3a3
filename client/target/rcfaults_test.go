package target_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// pairsOf is the number of queue pairs, the server's included.
func (a *adapters) pairsOf() int { return int(a.nic.Counters().QPs) }

// fencedPath takes FENCED of the path.
func (s *rcServer) fencedPath(p *serverPath) {
	s.t.Helper()
	if h, _ := s.expect(frame.Fenced); h.ID != p.id {
		s.t.Fatalf("path %d is fenced, want %d", h.ID, p.id)
	}
}

// writeHeld posts a WRITE whose packets stay in the network until the fault is released.
func (s *rcServer) writeHeld(nic *fakeverbs.NIC, p *serverPath, k keyed, n int) *fakeverbs.Fault {
	s.t.Helper()
	held := nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold, QPN: p.qp.Number(), Times: fakeverbs.Always,
	})
	mr, err := p.port.pd.Register(fill(n, 1), native.LocalWrite)
	must(s.t, mr, err)
	s.t.Cleanup(func() {
		if err := mr.Close(); err != nil {
			s.t.Error(err)
		}
	})
	_, err = p.qp.Post([]native.Work{{
		ID: 1, Local: mr.Addr(), Remote: k.address, Length: uint32(n), LKey: mr.LKey(), RKey: k.keys[p.peer.Device],
		Op: native.OpWrite, Signal: true,
	}})
	must(s.t, 0, err)
	held.Await(1)
	return held
}

// TestRCLatePackets: packets that were under way when the path was lost, or the session fenced, arrive later and
// change nothing, though the client's memory is in other use by then.
func TestRCLatePackets(t *testing.T) {
	const size = 10_000
	for _, how := range []string{"lost", "fence", "hung up", "forgotten by the server"} {
		t.Run(how, func(t *testing.T) {
			n := faked(t, fakeverbs.Options{})
			s, c, paths := dialRC(t, openDevices(t, n.library, "fake0"), n.library, upRails(t, n.library)[1])
			m := target.WrapMemory(make([]byte, size))
			_, k := registerRC(t, s, c, m)
			held := s.writeHeld(n.nic, paths[0], k, size)
			switch how {
			case "lost":
				must(t, 0, paths[0].qp.Reset())
				s.send(frame.Header{Type: frame.Lost, ID: paths[0].id}, nil)
				s.fencedPath(paths[0])
				paths[0] = s.up(s.offered())
			case "fence":
				must(t, 0, c.Fence(t.Context()))
			case "hung up":
				_ = s.conn.Close()
				<-c.Done()
			case "forgotten by the server":
				s.send(frame.Header{Type: frame.Lost, ID: 77}, nil) // which breaks the protocol
				<-c.Done()
			}
			copy(m.Bytes(), fill(size, 5))
			mark := n.nic.Mark()
			before := n.nic.Counters().Dropped
			held.Release()
			n.nic.Await("late packets", func() bool { return n.nic.Counters().Dropped > before })
			if how != "lost" {
				n.nic.Await("retries to end", func() bool { return !n.nic.Busy() })
			}
			if touched := n.nic.Touched(m.Bytes(), mark); len(touched) != 0 || !bytes.Equal(m.Bytes(), fill(size, 5)) {
				t.Errorf("memory was touched: %+v", touched)
			}
			if m.Abandoned() {
				t.Error("abandoned")
			}
		})
	}
}

// TestRCFencedOnlyWhenDead: FENCED comes when the queue pair is destroyed, whether or not the adapter takes it to its
// error state before: no packet of it is being copied then.
func TestRCFencedOnlyWhenDead(t *testing.T) {
	n := faked(t, fakeverbs.Options{})
	d := openDevices(t, n.library, "fake0")
	s, _, paths := dialRC(t, d, n.library, upRails(t, n.library)[1])
	p := paths[0]
	for _, c := range []struct {
		refused bool
		state   native.QPState // while it is being destroyed
	}{{false, native.QPError}, {true, native.QPReady}} {
		if c.refused {
			n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtError, Device: "fake0", Errno: syscall.EIO})
		}
		slow := n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtDestroyQP, Do: fakeverbs.Hold, Device: "fake0"})
		t.Cleanup(slow.Release) // also when the test ends early: cleanups destroy queue pairs
		must(t, 0, p.qp.Reset())
		s.send(frame.Header{Type: frame.Lost, ID: p.id}, nil)
		slow.Await(1)
		fenced := make(chan frame.Header, 1)
		go func() {
			h, _, _ := s.tryReceive()
			fenced <- h
		}()
		select {
		case h := <-fenced:
			t.Errorf("frame of type %d before the queue pair is destroyed", h.Type)
		default:
		}
		if q, ok := n.nic.QP(p.peer.QPN); !ok || q.State != c.state {
			t.Errorf("before its destruction: state %d, there %v", q.State, ok)
		}
		slow.Release()
		if h := <-fenced; h.Type != frame.Fenced || h.ID != p.id {
			t.Errorf("%+v", h)
		}
		n.dead(t, p.peer.QPN)
		p = s.up(s.offered())
	}
}

// TestRCAdapterHoldsOn: what an adapter refuses to end decides what becomes of the memory.
func TestRCAdapterHoldsOn(t *testing.T) {
	for name, c := range map[string]struct {
		refused   []fakeverbs.Point
		abandoned bool
	}{
		"nothing":                   {nil, false},
		"the error state":           {[]fakeverbs.Point{fakeverbs.AtError}, false},
		"destruction":               {[]fakeverbs.Point{fakeverbs.AtDestroyQP}, false},
		"both":                      {[]fakeverbs.Point{fakeverbs.AtError, fakeverbs.AtDestroyQP}, false},
		"the key":                   {[]fakeverbs.Point{fakeverbs.AtDeregMR}, false},
		"the key and the state":     {[]fakeverbs.Point{fakeverbs.AtDeregMR, fakeverbs.AtError}, false},
		"the key, state and object": {[]fakeverbs.Point{fakeverbs.AtDeregMR, fakeverbs.AtError, fakeverbs.AtDestroyQP}, true},
	} {
		for _, how := range []string{"fence", "lost"} {
			t.Run(name+" at "+how, func(t *testing.T) {
				n := faked(t, fakeverbs.Options{Lenient: true})
				d := openDevices(t, n.library, "fake0")
				s, conn, paths := dialRC(t, d, n.library, upRails(t, n.library)[1])
				m := target.WrapMemory(make([]byte, 100))
				_, k := registerRC(t, s, conn, m)
				var faults []*fakeverbs.Fault
				for _, at := range c.refused {
					faults = append(faults, n.nic.Inject(fakeverbs.Rule{
						At: at, Device: "fake0", Times: fakeverbs.Always, Errno: syscall.EBUSY,
					}))
				}
				if how == "lost" {
					s.send(frame.Header{Type: frame.Lost, ID: paths[0].id}, nil)
					if len(c.refused) > 0 && c.refused[len(c.refused)-1] == fakeverbs.AtDestroyQP && len(c.refused) > 1 {
						s.closed(conn)
					} else {
						s.fencedPath(paths[0])
					}
				}
				err := conn.Fence(t.Context())
				if errors.Is(err, target.ErrNotFenced) != c.abandoned || m.Abandoned() != c.abandoned {
					t.Errorf("%v, abandoned %v", err, m.Abandoned())
				}
				mark := n.nic.Mark()
				if !c.abandoned && how == "fence" {
					if got := s.move(paths[0], native.OpWrite, k, 0, fill(100, 1)); got == native.StatusOK {
						t.Error("a write succeeded")
					}
				}
				if touched := n.nic.Touched(m.Bytes(), mark); len(touched) != 0 {
					t.Errorf("memory was touched: %+v", touched)
				}
				for _, f := range faults {
					f.Remove()
				}
			})
		}
	}
}

// TestRF_30_RCPins: memory is registered on each device of the session, once, and deregistered once; what cannot be
// pinned leaves nothing behind.
func TestRF_30_RCPins(t *testing.T) {
	n := faked(t, fakeverbs.Options{})
	d := openDevices(t, n.library)
	s, c, paths := dialRC(t, d, n.library, upRails(t, n.library)...)
	if len(paths) != 2 || paths[0].peer.Device == paths[1].peer.Device {
		t.Fatalf("%d paths by devices %d and %d", len(paths), paths[0].peer.Device, paths[1].peer.Device)
	}
	keys := func() int { return int(n.nic.Counters().MRs) }
	m := target.WrapMemory(make([]byte, 100))
	r, k := registerRC(t, s, c, m)
	if keys() != 2 || len(k.keys) != 2 {
		t.Errorf("%d registrations, %d keys announced", keys(), len(k.keys))
	}
	forgotten := make(chan error, 1)
	go func() { forgotten <- r.Forget(t.Context()) }()
	s.expect(frame.Forget)
	s.send(frame.Header{Type: frame.Forgotten, Region: k.number}, nil)
	if err := <-forgotten; err != nil || keys() != 0 {
		t.Errorf("forgotten: %v, %d registrations", err, keys())
	}
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EINVAL} {
		n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtRegMR, Device: "fake1", Errno: errno})
		if _, err := c.Register(t.Context(), m); !errors.Is(err, target.ErrPinned) || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
		if keys() != 0 {
			t.Errorf("%v: %d registrations", errno, keys())
		}
	}
	refused := make(chan error, 1)
	go func() {
		_, err := c.Register(context.Background(), m)
		refused <- err
	}()
	h, _ := s.expect(frame.Keyed)
	s.send(frame.Header{Type: frame.RegionRefused, Region: h.Region, Status: frame.StatusLimit}, nil)
	if err := <-refused; !errors.Is(err, target.ErrRefused) || keys() != 0 {
		t.Errorf("refused by the server: %v, %d registrations", err, keys())
	}
	registerRC(t, s, c, m)
	if err := errors.Join(c.Fence(t.Context()), m.Free()); err != nil || keys() != 0 {
		t.Errorf("at the end: %v, %d registrations", err, keys())
	}
}

// TestRCOwnFailures: a queue pair or a port of ours that fails is fenced unasked, and the rail gets another path.
func TestRCOwnFailures(t *testing.T) {
	n := faked(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}, {}}})
	// The server is fake2; the client may use the other two.
	s, c, paths := dialRC(t, openDevices(t, n.library, "fake0", "fake1"), n.library, upRails(t, n.library)[2])
	_, k := registerRC(t, s, c, target.WrapMemory(make([]byte, 100)))
	works := func(p *serverPath, v byte) {
		t.Helper()
		if got := s.move(p, native.OpWrite, k, 0, fill(100, v)); got != native.StatusOK {
			t.Errorf("write: %d", got)
		}
	}
	p := paths[0]
	works(p, 1)
	n.nic.FailQP(p.peer.QPN)
	s.fencedPath(p)
	p = s.up(s.offered())
	works(p, 2)
	n.nic.PortDown("fake0")
	s.fencedPath(p)
	n.nic.PortUp("fake0")
	p = s.up(s.offered())
	works(p, 3)
	n.nic.PortDown("fake1") // not in use
	n.nic.Kill("fake0")
	s.fencedPath(p)
	s.closed(c) // no other device was announced to the server
}

// TestRCMovesToTheOtherDevice: a rail whose port of ours is down is reached by the other device; when the port comes
// back it has its own path again, beside the other.
func TestRCMovesToTheOtherDevice(t *testing.T) {
	n := faked(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}, {}, {}}})
	rails := upRails(t, n.library)
	s, c, paths := dialRC(t, openDevices(t, n.library, "fake0", "fake1"), n.library, rails[2:]...)
	_, k := registerRC(t, s, c, target.WrapMemory(make([]byte, 100)))
	if len(k.keys) != 2 {
		t.Fatalf("%d devices", len(k.keys))
	}
	ofFirst, other := paths[0], paths[1]
	if ofFirst.peer.GID != rails[0].GID {
		ofFirst, other = other, ofFirst
	}
	n.nic.PortDown("fake0")
	s.fencedPath(ofFirst)
	moved := s.up(s.offered())
	if moved.rail != ofFirst.rail || moved.peer.GID != rails[1].GID {
		t.Errorf("rail %d by %x", moved.rail, moved.peer.GID)
	}
	n.nic.PortUp("fake0")
	back := s.up(s.offered())
	if back.rail != ofFirst.rail || back.peer.GID != rails[0].GID {
		t.Errorf("rail %d by %x", back.rail, back.peer.GID)
	}
	for _, p := range []*serverPath{other, moved, back} {
		if got := s.move(p, native.OpWrite, k, 0, fill(100, 1)); got != native.StatusOK {
			t.Errorf("path %d: %d", p.id, got)
		}
	}
}

// TestRCRegistersWithoutTheLostDevice: a session that has lost one of its devices takes new memory on the others.
func TestRCRegistersWithoutTheLostDevice(t *testing.T) {
	n := faked(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}, {}, {}}})
	rails := upRails(t, n.library)
	s, c, paths := dialRC(t, openDevices(t, n.library, "fake0", "fake1"), n.library, rails[2:]...)
	lost, other := paths[0], paths[1]
	if lost.peer.GID != rails[0].GID {
		lost, other = other, lost
	}
	n.nic.Kill("fake0")
	s.fencedPath(lost)
	moved := s.up(s.offered()) // to the rail of the lost one, by the other device
	m := target.WrapMemory(make([]byte, 100))
	_, k := registerRC(t, s, c, m)
	if len(k.keys) != 2 || k.keys[lost.peer.Device] != 0 {
		t.Fatalf("%d keys, for the lost device not zero: %v", len(k.keys), k.keys[lost.peer.Device] != 0)
	}
	for i, p := range []*serverPath{other, moved} {
		if got := s.move(p, native.OpWrite, k, 0, fill(100, byte(i+1))); got != native.StatusOK {
			t.Errorf("path %d: %d", p.id, got)
		}
		if !bytes.Equal(m.Bytes(), fill(100, byte(i+1))) {
			t.Errorf("path %d: other bytes", p.id)
		}
	}
}

// TestRCDeviceIsLostWithItsServer: all paths of a device fail at once while nobody reads what is said about them: the
// end of the session takes every one of them along.
func TestRCDeviceIsLostWithItsServer(t *testing.T) {
	for range 20 {
		n := faked(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}, {}}})
		d := openDevices(t, n.library, "fake0")
		s, c, paths := dialRC(t, d, n.library, upRails(t, n.library)[1:]...)
		m := target.WrapMemory(make([]byte, 100))
		registerRC(t, s, c, m)
		hold := n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtError, Do: fakeverbs.Hold, Device: "fake0"})
		t.Cleanup(hold.Release)
		n.nic.PortDown("fake0")
		hold.Await(1)
		must(t, 0, s.conn.(*net.TCPConn).SetLinger(0))
		_ = s.conn.Close() // what is sent now fails
		hold.Release()
		s.closed(c)
		if err := c.Fence(t.Context()); err != nil || m.Abandoned() {
			t.Errorf("%v, abandoned %v", err, m.Abandoned())
		}
		for _, p := range paths {
			n.dead(t, p.peer.QPN)
		}
	}
}

// TestRCFenceDoesNotWaitForADriver: a driver that does not return from ending a queue pair is not waited for longer
// than the caller's context and a little: the fence has failed, and the memory is nobody's until the driver returns.
func TestRCFenceDoesNotWaitForADriver(t *testing.T) {
	n := faked(t, fakeverbs.Options{})
	s, c, _ := dialRC(t, openDevices(t, n.library, "fake0"), n.library, upRails(t, n.library)[1])
	m := target.WrapMemory(make([]byte, 100))
	registerRC(t, s, c, m)
	hang := n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtError, Do: fakeverbs.Hold, Device: "fake0"})
	t.Cleanup(hang.Release)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Fence(ctx); !errors.Is(err, target.ErrNotFenced) {
		t.Errorf("fenced while the driver hangs: %v", err)
	}
	if err := m.Free(); !errors.Is(err, target.ErrMemory) {
		t.Errorf("freed while the driver hangs: %v", err)
	}
	hang.Release()
	<-c.Done()
	if err := errors.Join(c.Fence(ctx), m.Free()); err != nil || m.Abandoned() {
		t.Errorf("after the driver's return: %v, abandoned %v", err, m.Abandoned())
	}
}

// TestRCForgetIsRefused: a key that the adapter does not take back ends the session, which makes it worthless.
func TestRCForgetIsRefused(t *testing.T) {
	n := faked(t, fakeverbs.Options{Lenient: true})
	s, c, paths := dialRC(t, openDevices(t, n.library, "fake0"), n.library, upRails(t, n.library)[1])
	m := target.WrapMemory(make([]byte, 100))
	r, k := registerRC(t, s, c, m)
	refused := n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtDeregMR, Times: fakeverbs.Always, Errno: syscall.EBUSY})
	forgotten := make(chan error, 1)
	go func() { forgotten <- r.Forget(t.Context()) }()
	s.expect(frame.Forget)
	s.send(frame.Header{Type: frame.Forgotten, Region: k.number}, nil)
	<-forgotten
	s.closed(c)
	refused.Remove()
	if got := s.move(paths[0], native.OpWrite, k, 0, fill(100, 1)); got == native.StatusOK {
		t.Error("a write succeeded")
	}
	if err := m.Free(); err != nil || m.Abandoned() || !bytes.Equal(m.Bytes(), make([]byte, 100)) {
		t.Errorf("%v, abandoned %v", err, m.Abandoned())
	}
}

// TestRCFailsBeforeTheAnswer: the port goes down between PATH and PATH_OK. The server is told as soon as it has
// answered; and a queue pair that cannot be connected is fenced as well.
func TestRCFailsBeforeTheAnswer(t *testing.T) {
	n := faked(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}, {}}})
	s, c, paths := dialRC(t, openDevices(t, n.library, "fake0"), n.library, upRails(t, n.library)[2])
	must(t, 0, paths[0].qp.Reset())
	s.send(frame.Header{Type: frame.Lost, ID: paths[0].id}, nil)
	s.fencedPath(paths[0])
	p := s.offered()
	n.nic.FailQP(p.peer.QPN)
	// A ping's answer proves nothing about the adapter's event, so the path may also come up, and be fenced then.
	s.ok(p.id, s.body(p))
	h, _ := s.receive()
	if h.Type == frame.PathUp {
		h, _ = s.receive()
	}
	if h.Type != frame.Fenced || h.ID != p.id {
		t.Fatalf("frame %+v", h)
	}
	p = s.offered()
	n.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReceive, Device: "fake0", Errno: syscall.ETIMEDOUT})
	s.ok(p.id, s.body(p))
	s.fencedPath(p)
	s.up(s.offered())
	if c.Err() != nil {
		t.Error(c.Err())
	}
}

// TestRCDialWithoutAdapters: each call of the library that fails is a clear error, and leaves nothing behind.
func TestRCDialWithoutAdapters(t *testing.T) {
	for _, at := range []fakeverbs.Point{
		fakeverbs.AtOpenDevice, fakeverbs.AtAllocPD, fakeverbs.AtCreateCQ, fakeverbs.AtCreateQP, fakeverbs.AtInit,
		fakeverbs.AtReceive,
	} {
		n := faked(t, fakeverbs.Options{})
		d := openDevices(t, n.library, "fake0")
		s, dialed := hello(t, d, upRails(t, n.library)[1:], n.library)
		n.nic.Inject(fakeverbs.Rule{At: at, Device: "fake0", Times: fakeverbs.Always, Errno: syscall.EPERM})
		s.list()
		if at == fakeverbs.AtReceive {
			p := s.offered()
			s.ok(p.id, s.body(p))
			s.fencedPath(p)
		}
		done := <-dialed
		// rail.Discover opens devices too; one that does not open is no rail.
		if !errors.Is(done.err, target.ErrRefused) || (at != fakeverbs.AtOpenDevice && !errors.Is(done.err, syscall.EPERM)) {
			t.Errorf("point %d: %v", at, done.err)
		}
	}
}

// TestRCEverythingAtOnce ends a session while memory is registered and forgotten, paths are lost and accepted, and the
// adapter fails queue pairs. Oracle: nothing is open at the end, nothing is abandoned, and no write comes through.
func TestRCEverythingAtOnce(t *testing.T) {
	for round := range 20 {
		n := faked(t, fakeverbs.Options{Seed: uint64(round + 1)})
		s, c, paths := dialRC(t, openDevices(t, n.library), n.library, upRails(t, n.library)...)
		memories := make([]*target.Memory, 8)
		var all sync.WaitGroup
		for i := range memories {
			memories[i] = target.WrapMemory(make([]byte, 5000))
			all.Go(func() {
				for {
					r, err := c.Register(context.Background(), memories[i])
					if err != nil {
						return
					}
					if r.Forget(context.Background()) != nil {
						return
					}
				}
			})
		}
		all.Go(func() { s.serve(paths, n.nic, 200+50*round) })
		all.Wait()
		if err := c.Fence(t.Context()); err != nil {
			t.Error(err)
		}
		for _, m := range memories {
			if m.Abandoned() {
				t.Error("abandoned")
			}
		}
	}
}

// TestRCGarbage sends frames of every type with numbers near and far from those that mean something, and bodies that
// may be right: the session lives or ends, and when it has ended nothing is open and no memory was touched.
func TestRCGarbage(t *testing.T) {
	n := faked(t, fakeverbs.Options{})
	d := openDevices(t, n.library)
	rails := upRails(t, n.library)
	m := target.WrapMemory(make([]byte, 5000))
	for round := range uint64(60) {
		rng := rand.New(rand.NewPCG(round, 1))
		s, c, paths := dialRC(t, d, n.library, rails...)
		registerRC(t, s, c, m)
		go func() { // the client's frames do not matter
			for {
				if _, _, ok := s.tryReceive(); !ok {
					return
				}
			}
		}()
		number := func() uint64 {
			return []uint64{0, 1, 2, 3, 4, 5, 6, 1 << 40, rng.Uint64N(frame.MaxNumber)}[rng.IntN(9)]
		}
		types := []frame.Type{
			frame.Rails, frame.PathOK, frame.PathRefused, frame.Lost, frame.RegionOK, frame.Forgotten, frame.Pong,
			frame.Type(rng.IntN(40)),
		}
		for range 20 {
			h := frame.Header{
				Type: types[rng.IntN(len(types))], Status: frame.Status(rng.IntN(25)), ID: number(), Region: number(),
				Offset: number(), Size: number(),
			}
			var body []byte
			switch {
			case h.Type == frame.Rails:
				body = make([]byte, rng.IntN(4)*frame.RailBytes)
				for i := 0; i < len(body); i += frame.RailBytes {
					copy(body[i:], frame.EncodeRails([]frame.Rail{{
						Index: uint8(rng.IntN(4)), Up: rng.IntN(2) == 0, MTU: uint8(1 + rng.IntN(5)), GID: rails[rng.IntN(2)].GID,
					}}))
				}
			case h.Type == frame.PathOK:
				body = make([]byte, frame.PathBytes)
				b := s.body(paths[rng.IntN(2)])
				b.Device, b.Reads = uint8(rng.IntN(3)), uint8(1+rng.IntN(20))
				b.Encode(body)
			case rng.IntN(8) == 0:
				body = make([]byte, rng.IntN(100))
			}
			if frame.WriteFrame(s.conn, h, body) != nil {
				break // it has hung up
			}
		}
		if err := c.Fence(t.Context()); err != nil || m.Abandoned() {
			t.Fatalf("round %d: %v", round, err)
		}
		if got := n.nic.Counters().MRs; got != 0 {
			t.Errorf("round %d: %d registrations", round, got)
		}
	}
	if !bytes.Equal(m.Bytes(), make([]byte, 5000)) {
		t.Error("memory changed")
	}
}

// serve answers what comes, loses paths all the time, and ends the session after so many frames.
func (s *rcServer) serve(paths []*serverPath, nic *fakeverbs.NIC, frames int) {
	live := map[uint64]*serverPath{}
	for _, p := range paths {
		live[p.id] = p
	}
	for i := range frames {
		h, body, ok := s.tryReceive()
		if !ok {
			return
		}
		answer := frame.Header{Region: h.Region, ID: h.ID}
		switch h.Type {
		case frame.Keyed:
			answer.Type = frame.RegionOK
		case frame.Forget:
			answer.Type = frame.Forgotten
		case frame.Path:
			peer, err := frame.DecodePath(body)
			if err != nil {
				s.t.Error(err)
				return
			}
			p := &serverPath{id: h.ID, rail: int(h.Region), peer: peer}
			live[p.id] = p
			r := s.rails[p.rail]
			ok := make([]byte, frame.PathBytes)
			frame.PathBody{QPN: 5, GID: r.GID, MTU: 3, Device: peer.Device, Reads: 1}.Encode(ok)
			_ = frame.WriteFrame(s.conn, frame.Header{Type: frame.PathOK, ID: h.ID}, ok)
			continue
		case frame.Fenced:
			delete(live, h.ID)
			continue
		case frame.PathUp:
			if i%3 == 0 {
				nic.FailQP(live[h.ID].peer.QPN)
				continue
			}
			answer = frame.Header{Type: frame.Lost, ID: h.ID}
		default:
			s.t.Errorf("frame of type %d", h.Type)
			return
		}
		_ = frame.WriteFrame(s.conn, answer, nil) // the client may have hung up
	}
	_ = s.conn.Close()
}
