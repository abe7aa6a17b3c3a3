//go:build cgo

package initiator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const testKey = 0xffeeddcc

// poolRig is a rail with a pool, and a peer with a DCT.
type poolRig struct {
	*rig
	pool   *Pool
	target DCTarget
	dct    *native.DCT
}

func newPoolRig(t *testing.T, o rigOptions, p PoolOptions) *poolRig {
	t.Helper()
	o.fake = true
	g := &poolRig{rig: newRig(t, o)}
	var err error
	if g.dct, err = g.peer.pd.NewDCT(g.peer.cq, testKey); err != nil {
		t.Fatal(err)
	}
	number, err := g.dct.Answer(native.Path{Port: g.peer.rail.Port, GIDIndex: g.peer.rail.GIDIndex, HopLimit: 64,
		Access: native.RemoteRead | native.RemoteWrite, MinRNRTimer: 12}, g.peer.rail.MTU)
	if err != nil {
		t.Fatal(err)
	}
	g.target = DCTarget{Port: native.PeerPort{GID: g.peer.rail.GID, HasGID: true}, DCT: number, Key: testKey}
	if p.Linger == 0 {
		p.Linger = time.Millisecond
	}
	if g.pool, err = g.rail.NewPool(p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the rail and the peer
		if err := g.rail.Close(); err != nil && !o.broken {
			t.Errorf("close: %v", err)
		}
		if err := g.dct.Close(); err != nil {
			t.Errorf("close of a DCT: %v", err)
		}
	})
	return g
}

// lingerByNetwork has the pool wait for the fake network itself: how long a packet of it lives depends on how busy the
// machine is.
func (g *poolRig) lingerByNetwork() {
	want := g.pool.o.Linger
	g.pool.linger = func(long time.Duration, f func()) {
		if long != want {
			g.t.Errorf("lingers for %v, want %v", long, want)
		}
		go func() {
			tick := time.NewTicker(100 * time.Microsecond)
			defer tick.Stop()
			for g.nic.Busy() {
				<-tick.C
			}
			f()
		}()
	}
}

// dc is a Move by dynamic connections, with time enough.
func (g *poolRig) dc(m Move) DCMove {
	now := time.Now()
	return DCMove{Move: m, Target: g.target, Window: Window{Addr: g.peer.at(0), Size: uint64(len(g.peer.memory))},
		Stop: now.Add(wait), Expire: now.Add(wait)}
}

// TestPoolMoves: bytes of several segments go there and come back, by many goroutines and few DCIs, and in pieces.
func TestPoolMoves(t *testing.T) {
	g := newPoolRig(t, rigOptions{Options: Options{Piece: 3000}, arena: 1 << 20, remote: 1 << 20},
		PoolOptions{Lanes: 3, PerPeer: 2, PerOwner: 2, Depth: 5})
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			from := w << 17
			out, back := g.arena[from:][:50_000], g.arena[from+1<<16:][:50_000]
			m := Move{Op: native.OpWrite, Remote: g.peer.at(from + 7), RKey: g.peer.mr.RKey(), Local: cut(out, 3)}
			for range 5 {
				if err := g.pool.Move(t.Context(), g.dc(m)); err != nil {
					t.Errorf("write: %v", err)
				}
				r := m
				r.Op, r.Local = native.OpRead, cut(back, 4)
				if err := g.pool.Move(t.Context(), g.dc(r)); err != nil {
					t.Errorf("read: %v", err)
				}
				if !bytes.Equal(out, back) || !bytes.Equal(out, g.peer.memory[from+7:][:50_000]) {
					t.Error("the bytes are not those")
				}
			}
		})
	}
	all.Wait()
	// 17 pieces of each segment at most, and a proof.
	if st := g.rail.Stats(); st.Writes != 8*5*50_000 || st.Reads != st.Writes || st.Unexpected != 0 || st.WorkNow != 0 ||
		st.Works < 8*5*2*(17+1) || st.Works > 8*5*2*(17+4+1) {
		t.Errorf("%+v", st)
	}
}

// TestPoolRefused: each way to be refused has its kind, moves nothing, and leaves the DCIs usable.
func TestPoolRefused(t *testing.T) {
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 1})
	before := bytes.Clone(g.peer.memory)
	cases := []struct {
		what   string
		change func(*DCMove)
		want   error
	}{
		{"access key", func(m *DCMove) { m.Target.Key++ }, ErrLost},
		{"number of the DCT", func(m *DCMove) { m.Target.DCT ^= 0x800000 }, ErrLost},
		{"peer's address", func(m *DCMove) { m.Target.Port.GID[15] = 99 }, ErrLost},
		{"key of memory", func(m *DCMove) { m.RKey ^= 0x5500 }, ErrDenied},
		{"beyond the region", func(m *DCMove) {
			m.Remote = g.peer.at(len(g.peer.memory)) - 99
			m.Window.Size += 4096
		}, ErrDenied},
		{"an immediate", func(m *DCMove) { m.Imm = new(uint32) }, ErrLocal},
		{"outside the window", func(m *DCMove) { m.Window.Size = 99 }, ErrLocal},
		{"memory that is not registered", func(m *DCMove) { m.Local = []Segment{make([]byte, 9)} }, ErrLocal},
		{"no GID on Ethernet", func(m *DCMove) { m.Target.Port = native.PeerPort{LID: 4} }, ErrLost},
	}
	for _, c := range cases {
		m := g.dc(g.write(100))
		c.change(&m)
		wantIs(t, g.pool.Move(t.Context(), m), c.want)
		if !bytes.Equal(g.peer.memory, before) {
			t.Fatalf("%s: something moved", c.what)
		}
		if err := g.pool.Move(t.Context(), g.dc(g.read(10))); err != nil {
			t.Fatalf("after %s: %v", c.what, err)
		}
	}
	if _, err := g.rail.NewPool(PoolOptions{Lanes: 1}); !errors.Is(err, ErrLocal) {
		t.Errorf("a second pool: %v", err)
	}
}

// TestPoolEnds: a move that hangs ends at its time, or when its context does; the adapter has let go then, for good.
func TestPoolEnds(t *testing.T) {
	for _, expire := range []bool{true, false} {
		g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 1})
		g.lingerByNetwork()
		// The proof never comes back.
		silent := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReadResponse, Do: fakeverbs.Fail, Times: fakeverbs.Always})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m, want := g.dc(g.write(50_000)), context.Canceled
		if expire {
			m.Expire, want = time.Now().Add(5*time.Millisecond), ErrExpired
			m.Stop = m.Expire
		}
		ended := make(chan error)
		go func() { ended <- g.pool.Move(ctx, m) }()
		silent.Await(1)
		if !expire {
			cancel()
		}
		wantIs(t, <-ended, want)
		if g.nic.Owned(g.arena) {
			t.Error("the adapter owns memory of no move")
		}
		silent.Remove()
		mark := g.nic.Mark()
		if err := g.pool.Move(t.Context(), g.dc(g.read(10))); err != nil {
			t.Errorf("the next move: %v", err)
		}
		for _, a := range g.nic.Touched(g.peer.memory, mark) {
			if a.Write {
				t.Errorf("a late write: %+v", a)
			}
		}
	}
}

// TestPoolFromTheirKind: a peer named by its link-local GID is reached from the rail's own.
func TestPoolFromTheirKind(t *testing.T) {
	g := newPoolRig(t, rigOptions{arena: 4096, remote: 4096}, PoolOptions{Lanes: 1})
	port, err := g.peer.dev.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, gid := range port.GIDs {
		m := g.dc(g.write(100))
		if m.Target.Port.GID = gid.Raw; gid.Type != native.GIDRoCEv2 {
			continue
		}
		if err := g.pool.Move(t.Context(), m); err != nil {
			t.Errorf("%+v: %v", gid, err)
		}
	}
	if !bytes.Equal(g.peer.memory[:100], g.arena[:100]) {
		t.Error("the bytes are not those")
	}
}

// TestPoolClosesUnderLoad: a rail closes while moves begin, are under way, wait for addresses and end by themselves;
// all of them return, and what comes later is refused.
func TestPoolClosesUnderLoad(t *testing.T) {
	for round := range 20 {
		t.Run(fmt.Sprint(round), func(t *testing.T) { closeUnderLoad(t, int64(8+5*round)) })
	}
}

// closeUnderLoad closes after so many moves.
func closeUnderLoad(t *testing.T, after int64) {
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 4})
	var workers sync.WaitGroup
	var tried atomic.Int64
	for w := range 8 {
		workers.Go(func() {
			for i := 0; ; i++ {
				m := g.dc(g.write(100 + w))
				if w%4 == 3 { // ports that nobody has, each new
					m.Target.Port.GID[14], m.Target.Port.GID[15] = byte(w), byte(i)
					m.Expire = time.Now().Add(time.Millisecond)
				}
				err := g.pool.Move(t.Context(), m)
				tried.Add(1)
				if errors.Is(err, ErrClosed) {
					return
				}
			}
		})
	}
	g.nic.Await("moves", func() bool { return tried.Load() > after })
	if err := g.rail.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	workers.Wait()
	if g.nic.Owned(g.arena) {
		t.Error("the adapter owns memory of a rail that is closed")
	}
}

// TestAStuckPoolKeepsNoPath: a rail that cannot be closed for a DCI that is not reset has ended its paths all the same.
func TestAStuckPoolKeepsNoPath(t *testing.T) {
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 1})
	p := g.path()
	hang := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReset, Do: fakeverbs.Hold, QPN: g.pool.dcis[0].Number()})
	silent := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReadResponse, Do: fakeverbs.Fail, Times: fakeverbs.Always})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- g.pool.Move(ctx, g.dc(g.write(5000))) }()
	silent.Await(1)
	cancel()
	hang.Await(1)
	g.rail.closeWait = 50 * time.Millisecond
	wantIs(t, g.rail.Close(), ErrStuck)
	select {
	case <-p.Settled():
	default:
		t.Error("a path goes on beside a pool that is stuck")
	}
	select {
	case err := <-ended:
		t.Errorf("the buffers came back before the reset: %v", err)
	default:
	}
	hang.Release()
	g.rail.closeWait = wait
	if err := g.rail.Close(); err != nil {
		t.Error(err)
	}
	wantIs(t, <-ended, context.Canceled)
}

// TestPoolNeedsDC: an adapter without dynamic connections says so.
func TestPoolNeedsDC(t *testing.T) {
	g := newRig(t, rigOptions{fake: true, arena: 4096, remote: 4096,
		nic: fakeverbs.Options{Devices: []fakeverbs.Device{{NoDC: true}, {}}}})
	var unavailable *native.UnavailableError
	_, err := g.rail.NewPool(PoolOptions{})
	if !errors.As(err, &unavailable) || unavailable.Reason != native.ReasonNoDC {
		t.Errorf("got %v", err)
	}
}

// TestPoolSchedules is TestSchedules for a pool: random moves of several workers over few DCIs with random faults among
// them, on threads. Oracle: both memories after each move, and the adapter's own books.
func TestPoolSchedules(t *testing.T) {
	n := 100
	switch {
	case os.Getenv("PENSTOCK_TEST_LONG") != "":
		n = 10_000
	case testing.Short():
		n = 30
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runPoolSchedule(t, uint64(seed)) })
	}
}

type poolSchedule struct {
	*poolRig
	t        *testing.T
	moved    atomic.Int64
	exact    bool // the completion queue is small: see schedule
	mu       sync.Mutex
	held     []*fakeverbs.Fault
	refusals int
}

func runPoolSchedule(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 5))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	workers := 1 + rng.IntN(5)
	g := newPoolRig(t, rigOptions{
		arena: workers * spanBytes, remote: workers * spanBytes, broken: true,
		Options: Options{Piece: pick(1000, 4096, 65536)},
		nic: fakeverbs.Options{
			Devices: []fakeverbs.Device{{MaxReads: pick(1, 4, 0)}, {}}, Seed: seed + 1,
			Latency: time.Duration(rng.IntN(30)) * time.Microsecond, Jitter: time.Duration(rng.IntN(30)) * time.Microsecond,
			FlushTime: time.Duration(rng.IntN(20)) * time.Microsecond, KeepCompletions: rng.IntN(2) == 0,
			ReuseNumbers: rng.IntN(2) == 0,
		},
	}, PoolOptions{
		Lanes: pick(1, 2, 6), PerPeer: pick(1, 6), PerOwner: 6, Depth: pick(1, 2, 5, 64),
		Linger: 20 * time.Millisecond, // the fake network is threads, which a busy machine holds up for longer than 1 ms
	})
	g.pool.renewal, g.pool.lateIn = time.Millisecond, 2*time.Millisecond
	s := &poolSchedule{poolRig: g, t: t, exact: g.pool.o.Lanes*g.pool.o.Depth < 128}
	done := make(chan struct{})
	var all, janitor sync.WaitGroup
	for w := range workers {
		all.Go(func() { s.work(w, rand.New(rand.NewPCG(seed, uint64(100+w)))) })
	}
	janitor.Go(func() { s.release(done) })
	all.Wait()
	close(done)
	janitor.Wait()
	err := g.rail.Close()
	for refusals := s.refusals; err != nil && refusals > 0; refusals-- {
		err = g.rail.Close()
	}
	if err != nil {
		t.Errorf("close: %v", err)
	}
}

func (s *poolSchedule) work(w int, rng *rand.Rand) {
	mine := s.arena[w*spanBytes:][:spanBytes]
	there := s.peer.memory[w*spanBytes:][:spanBytes]
	was, wasThere := bytes.Clone(mine), bytes.Clone(there)
	for range 10 {
		if rng.IntN(3) == 0 {
			s.disturb(rng)
		}
		from, at := rng.IntN(spanBytes), rng.IntN(spanBytes)
		n := 1 + rng.IntN(min(spanBytes-from, spanBytes-at))
		m := s.dc(Move{Op: native.OpWrite, Remote: s.peer.at(w*spanBytes + at), RKey: s.peer.mr.RKey(),
			Local: cut(mine[from:from+n], 1+rng.IntN(max(1, min(4, n/8))))})
		read := rng.IntN(2) == 0
		if read {
			m.Op = native.OpRead
		} else {
			for i := range n {
				mine[from+i] = byte(rng.Uint32())
			}
		}
		m.Expire = time.Now().Add(time.Duration(5+rng.IntN(20)) * time.Millisecond)
		m.Stop = m.Expire.Add(-time.Duration(rng.IntN(5)) * time.Millisecond)
		copy(was, mine)
		err := s.pool.Move(s.t.Context(), m)
		s.moved.Add(1)
		if s.nic.Owned(mine) {
			s.t.Errorf("worker %d: the adapter owns memory of no move", w)
			return
		}
		switch {
		case err == nil && read:
			copy(was[from:from+n], there[at:at+n])
		case err == nil:
			copy(wasThere[at:at+n], mine[from:from+n])
		default:
			if !errors.Is(err, ErrDenied) && !errors.Is(err, ErrLost) && !errors.Is(err, ErrLocal) &&
				!errors.Is(err, ErrExpired) {
				s.t.Errorf("undocumented: %v", err)
			}
			for i := range n { // a late access would change it
				mine[from+i] = poison
			}
			copy(was, mine)
			copy(wasThere[at:at+n], there[at:at+n]) // not known
			if read {
				copy(wasThere, there)
			}
		}
		if !bytes.Equal(mine, was) || !bytes.Equal(there, wasThere) {
			s.t.Errorf("worker %d: %d bytes, read %v: memory is not what it should be after %v", w, n, read, err)
			return
		}
	}
}

// disturb injects a fault.
func (s *poolSchedule) disturb(rng *rand.Rand) {
	rule := fakeverbs.Rule{Skip: rng.IntN(6), Device: "fake0", Errno: syscall.EIO}
	hold := false
	switch rng.IntN(11) {
	case 0, 1:
		rule.At, rule.Do = fakeverbs.AtWork, fakeverbs.Fail
		of := []fakeverbs.Status{fakeverbs.LocalProtection, fakeverbs.Flushed, fakeverbs.RemoteAccess,
			fakeverbs.RetryExceeded, fakeverbs.GeneralError}
		rule.Status, rule.Bytes = of[rng.IntN(len(of))], rng.IntN(4096)
	case 2:
		rule.At, rule.Do, rule.Op = fakeverbs.AtWork, fakeverbs.Short, native.OpRead
	case 3:
		rule.At, rule.Do = fakeverbs.AtWork, fakeverbs.Lose
	case 4, 5:
		rule.At, rule.Do, hold = fakeverbs.AtWork, fakeverbs.Hold, true
		rule.Late, rule.Overtake = !s.exact && rng.IntN(2) == 0, rng.IntN(2) == 0
	case 6:
		rule.At, rule.Do = fakeverbs.AtPost, fakeverbs.Fail
	case 7:
		at := []fakeverbs.Point{fakeverbs.AtReset, fakeverbs.AtInit, fakeverbs.AtSend, fakeverbs.AtError,
			fakeverbs.AtDestroyQP}
		rule.At, rule.Do, rule.Skip = at[rng.IntN(len(at))], fakeverbs.Fail, rng.IntN(2)
		if rng.IntN(3) == 0 {
			rule.Do, hold = fakeverbs.Hold, true
		}
	case 8, 9:
		at := []fakeverbs.Point{fakeverbs.AtWritePacket, fakeverbs.AtReadRequest, fakeverbs.AtReadResponse,
			fakeverbs.AtAck}
		do := []fakeverbs.Effect{fakeverbs.Fail, fakeverbs.Twice}
		rule.At, rule.Do, rule.Device = at[rng.IntN(len(at))], do[rng.IntN(len(do))], ""
		rule.Times = 1 + rng.IntN(20)
	default:
		s.nic.PortDown("fake0")
		s.nic.PortUp("fake0")
		return
	}
	f := s.nic.Inject(rule)
	s.mu.Lock()
	defer s.mu.Unlock()
	if hold {
		s.held = append(s.held, f)
	}
	if rule.At == fakeverbs.AtReset || rule.At == fakeverbs.AtDestroyQP {
		s.refusals++
	}
}

// release lets go of what is held, and tries DCIs again that were neither reset nor destroyed, when nothing moves.
func (s *poolSchedule) release(done <-chan struct{}) {
	defer s.letGo()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for last := int64(-1); ; {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if now := s.moved.Load(); now != last {
			last = now
			continue
		}
		s.letGo()
		for at := range s.pool.dcis {
			if s.pool.stuckLane(at) {
				s.pool.retire(at)
			}
		}
	}
}

// letGo lets go of what is held.
func (s *poolSchedule) letGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.held {
		f.Release()
	}
	s.held = nil
}
