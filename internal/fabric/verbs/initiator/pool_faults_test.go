//go:build cgo

package initiator

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// soon is longer than a move takes that fails at once, and much shorter than its time.
const soon = wait / 3

// lose has the pool lose n of its DCIs by moves that fail.
func (g *poolRig) lose(n int) {
	g.t.Helper()
	for range n {
		fail := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Fail, Status: fakeverbs.RetryExceeded,
			Device: "fake0"})
		wantIs(g.t, g.pool.Move(g.t.Context(), g.dc(g.write(100))), ErrLost)
		fail.Remove()
	}
}

// TestPoolMakesDCIsAnew: DCIs that a firmware does not take back to work are made anew, for as long as it takes; while
// there is none moves fail at once, and the pool says that it serves nobody.
func TestPoolMakesDCIsAnew(t *testing.T) {
	const lanes = 3
	for _, at := range []fakeverbs.Point{fakeverbs.AtInit, fakeverbs.AtReceive, fakeverbs.AtSend, fakeverbs.AtCreateQP} {
		var told atomic.Int64
		g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: lanes,
			Lost: func(error) { told.Add(1) }})
		g.pool.renewal = time.Millisecond
		rules := []*fakeverbs.Fault{g.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, Device: "fake0",
			Errno: syscall.ENOMEM, Times: fakeverbs.Always})}
		if at == fakeverbs.AtCreateQP { // a DCI is only made where one was not connected
			rules = append(rules, g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtSend, Do: fakeverbs.Fail, Device: "fake0",
				Errno: syscall.EIO, Times: lanes}))
		}
		g.lose(lanes)
		g.nic.Await("no DCI", func() bool { return g.pool.counts().Gone == lanes })
		if g.pool.Serves() {
			t.Error("a pool without DCIs serves")
		}
		began := time.Now()
		wantIs(t, g.pool.Move(t.Context(), g.dc(g.write(100))), ErrLost)
		if took := time.Since(began); took > soon {
			t.Errorf("a move waited %v for no DCI", took)
		}
		rules[0].Await(3 * lanes) // it is tried again and again
		for _, f := range rules {
			f.Remove()
		}
		g.nic.Await("DCIs", func() bool { return g.pool.counts().Idle == lanes })
		if n := told.Load(); n != lanes || !g.pool.Serves() {
			t.Errorf("point %d: told %d times, serves %v", at, n, g.pool.Serves())
		}
		for range 2 * lanes {
			if err := g.pool.Move(t.Context(), g.dc(g.read(50))); err != nil {
				t.Errorf("point %d: %v", at, err)
			}
		}
	}
}

// TestPoolClosesWithoutDCIs: a rail whose DCIs are gone closes, whatever is being tried again.
func TestPoolClosesWithoutDCIs(t *testing.T) {
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 2})
	g.pool.renewal = time.Millisecond
	fail := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtSend, Do: fakeverbs.Fail, Device: "fake0", Errno: syscall.EIO,
		Times: fakeverbs.Always})
	g.lose(2)
	fail.Await(5)
	if err := g.rail.Close(); err != nil {
		t.Error(err)
	}
	wantIs(t, g.pool.Move(t.Context(), g.dc(g.write(1))), ErrClosed)
}

// TestPoolWithALateDriver: a driver that does not return from a reset costs those who wait nothing but a refusal, is
// said loudly, and serves again when it has returned.
func TestPoolWithALateDriver(t *testing.T) {
	told := make(chan error, 1)
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 1,
		Lost: func(err error) { told <- err }})
	g.pool.lateIn = 10 * time.Millisecond
	hang := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReset, Do: fakeverbs.Hold, QPN: g.pool.dcis[0].Number()})
	silent := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReadResponse, Do: fakeverbs.Fail, Times: fakeverbs.Always})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended, queued := make(chan error, 1), make(chan error, 1)
	go func() { ended <- g.pool.Move(ctx, g.dc(g.write(5000))) }()
	silent.Await(1)
	go func() { queued <- g.pool.Move(t.Context(), g.dc(g.write(100))) }()
	g.nic.Await("a move to wait", func() bool { return g.pool.counts().Waiting == 1 })
	cancel()
	wantIs(t, <-queued, ErrLost)
	wantIs(t, <-told, ErrStuck)
	if g.pool.Serves() {
		t.Error("it serves")
	}
	wantIs(t, g.pool.Move(t.Context(), g.dc(g.write(100))), ErrLost)
	select {
	case err := <-ended:
		t.Errorf("the buffers came back before the reset: %v", err)
	default:
	}
	silent.Remove()
	hang.Release()
	wantIs(t, <-ended, context.Canceled)
	g.nic.Await("the DCI", g.pool.Serves)
	if err := g.pool.Move(t.Context(), g.dc(g.write(100))); err != nil {
		t.Error(err)
	}
}

// TestPoolForgetsPorts: the address of a peer's port is kept while it works and this port's table stays as it is, and
// is made anew after.
func TestPoolForgetsPorts(t *testing.T) {
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 2})
	fine := func() {
		t.Helper()
		if err := g.pool.Move(t.Context(), g.dc(g.write(100))); err != nil {
			t.Error(err)
		}
	}
	known := func() int {
		g.pool.ports.mu.Lock()
		defer g.pool.ports.mu.Unlock()
		return len(g.pool.ports.known)
	}
	open := g.nic.Counters().Addresses
	for what, change := range map[string]func(){
		"a lost move": func() { g.lose(1) },
		"a table that changed": func() {
			g.nic.SetAddr("fake1", netip.MustParseAddr("10.99.0.2")) // as it was
			g.nic.SetAddr("fake0", netip.MustParseAddr("10.99.0.1"))
			g.nic.Await("the event", func() bool { return known() == 0 })
		},
		"a change without an event": func() {
			was, now := g.rail.Rail(), g.rail.Rail()
			was.GIDIndex++
			g.pool.seen(was, now)
		},
	} {
		fine()
		fail := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtCreateAddress, Do: fakeverbs.Fail, Device: "fake0",
			Errno: syscall.EHOSTUNREACH})
		fine()
		if fail.Hits() != 0 {
			t.Errorf("before %s: an address was made that was there", what)
		}
		change()
		wantIs(t, g.pool.Move(t.Context(), g.dc(g.write(100))), ErrLost)
		if fail.Hits() != 1 {
			t.Errorf("after %s: no address was made", what)
		}
		fine()
		if n := g.nic.Counters().Addresses - open; n != 1 {
			t.Errorf("after %s: %d addresses are open", what, n)
		}
	}
}

// TestPoolPortInUse: who uses an address that was forgotten goes on with it, and it is closed after.
func TestPoolPortInUse(t *testing.T) {
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16},
		PoolOptions{Lanes: 2, PerPeer: 2, PerOwner: 2})
	open := g.nic.Counters().Addresses
	hold := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, Op: native.OpRead,
		Device: "fake0"})
	ended := make(chan error, 1)
	go func() { ended <- g.pool.Move(t.Context(), g.dc(g.write(5000))) }()
	hold.Await(1)
	g.pool.ports.forgetAll()
	if err := g.pool.Move(t.Context(), g.dc(g.read(10))); err != nil {
		t.Error(err)
	}
	if n := g.nic.Counters().Addresses - open; n != 2 {
		t.Errorf("%d addresses are open", n)
	}
	hold.Release()
	if err := <-ended; err != nil {
		t.Errorf("on the old address: %v", err)
	}
	if n := g.nic.Counters().Addresses - open; n != 1 {
		t.Errorf("%d addresses are open at the end", n)
	}
}

// TestPoolUpWithoutEvent: a pool whose event was lost goes up and down by the next look at the port; one of a rail that
// has failed stays down.
func TestPoolUpWithoutEvent(t *testing.T) {
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 1})
	g.pool.down()
	wantIs(t, g.pool.Move(t.Context(), g.dc(g.write(100))), ErrLost)
	look := func() {
		t.Helper()
		if _, err := g.rail.Refresh(); err != nil {
			t.Error(err)
		}
	}
	look()
	if err := g.pool.Move(t.Context(), g.dc(g.write(100))); err != nil {
		t.Error(err)
	}
	g.nic.PortDown("fake0")
	next(t, g.rail, native.EventPortDown)
	g.pool.up() // as if the event had not come
	look()
	if g.pool.Serves() {
		t.Error("it serves on a port that is down")
	}
	g.nic.PortUp("fake0")
	next(t, g.rail, native.EventPortUp)
	g.rail.breakDown(errors.New("the adapter has failed"))
	look()
	if g.pool.up(); g.pool.Serves() {
		t.Error("it serves on a rail that has failed")
	}
}

// TestPoolSharesByOwner: an owner that names several ports has no more DCIs than its share, and leaves others theirs.
func TestPoolSharesByOwner(t *testing.T) {
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 2, PerPeer: 2, PerOwner: 1})
	port, err := g.peer.dev.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	hold := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, Op: native.OpRead,
		Device: "fake0"})
	move := func(owner string, gid [16]byte) chan error {
		m := g.dc(g.write(100))
		m.Owner, m.Target.Port.GID = owner, gid
		ended := make(chan error, 1)
		go func() { ended <- g.pool.Move(t.Context(), m) }()
		return ended
	}
	own, other := g.target.Port.GID, [16]byte{}
	for _, gid := range port.GIDs {
		if gid.Type == native.GIDRoCEv2 && gid.Raw != own {
			other = gid.Raw
		}
	}
	first := move("alice", own)
	hold.Await(1)
	second := move("alice", other)
	g.nic.Await("a move to wait", func() bool { return g.pool.counts().Waiting == 1 })
	if err := <-move("bob", own); err != nil {
		t.Error(err)
	}
	select {
	case err := <-second:
		t.Errorf("an owner has two DCIs: %v", err)
	default:
	}
	hold.Release()
	for _, ended := range []chan error{first, second} {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
