//go:build cgo

package initiator

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestResetFails: destroying proves as much.
func TestResetFails(t *testing.T) {
	g := faultRig(t)
	p, other := g.path(), g.path()
	qpn := p.Local().QPN
	hold := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: qpn})
	f := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReset, Do: fakeverbs.Fail, QPN: qpn, Errno: syscall.EIO})
	c := moving(p, g.read(100))
	hold.Await(1)
	p.Fail()
	wantError(t, result(t, c), ErrLost)
	if f.Hits() != 1 || !(g.nic.Counters().QPs == 3) { // the peer's two, and the other path's
		t.Errorf("%d resets failed; %+v", f.Hits(), g.nic.Counters())
	}
	g.released(g.arena[:100], hold)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	g.works(other)
}

// TestNoStepToTheErrorState is no harm: the reset is the proof.
func TestNoStepToTheErrorState(t *testing.T) {
	g := faultRig(t)
	p, other := g.path(), g.path()
	f := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtError, Do: fakeverbs.Fail, QPN: p.Local().QPN, Errno: syscall.EIO})
	hold := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: p.Local().QPN})
	c := moving(p, g.read(100))
	hold.Await(1)
	p.Fail()
	wantError(t, result(t, c), ErrLost)
	if f.Hits() != 1 {
		t.Error("not tried")
	}
	g.released(g.arena[:100], hold)
	g.works(other)
}

// TestABrokenDriver neither resets nor destroys: the Move does not return, and everything else works. Once the driver
// does it, closing again ends what was stuck.
func TestABrokenDriver(t *testing.T) {
	g := faultRig(t)
	p, other := g.path(), g.path()
	qpn := p.Local().QPN
	hold := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: qpn})
	var broken []*fakeverbs.Fault
	for _, at := range []fakeverbs.Point{fakeverbs.AtReset, fakeverbs.AtDestroyQP} {
		broken = append(broken, g.nic.Inject(fakeverbs.Rule{
			At: at, Do: fakeverbs.Fail, QPN: qpn, Times: fakeverbs.Always, Errno: syscall.EIO,
		}))
	}
	c := moving(p, g.read(100))
	hold.Await(1)
	p.Fail()
	wantIs(t, p.Close(), ErrStuck)
	if s := g.rail.Stats(); s.Stuck != 1 || s.Paths != 2 {
		t.Errorf("%+v", s)
	}
	g.works(other)
	for range 2 {
		wantIs(t, g.rail.Close(), ErrStuck)
	}
	if !isOpen(p.Settled()) {
		t.Error("settled without a reset")
	}
	select {
	case err := <-c:
		t.Fatalf("the move returned: %v", err)
	default:
	}
	if !g.nic.Owned(g.arena[:100]) {
		t.Error("the adapter does not own the buffer: the test proves nothing")
	}
	for _, f := range broken {
		f.Remove()
	}
	if err := g.rail.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, result(t, c), ErrLost)
	ended(t, "settling", p.Settled())
	g.released(g.arena[:100], hold)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if n := g.rail.Stats().Stuck; n != 0 {
		t.Errorf("%d are stuck", n)
	}
}

// TestADriverThatHangs in a change of state holds up one path, and the rail's end for as long as that waits.
func TestADriverThatHangs(t *testing.T) {
	for _, at := range []fakeverbs.Point{fakeverbs.AtError, fakeverbs.AtReset} {
		g := faultRig(t)
		g.rail.closeWait = 50 * time.Millisecond
		p, other := g.path(), g.path()
		hang := g.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Hold, QPN: p.Local().QPN})
		hold := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: p.Local().QPN})
		c := moving(p, g.read(100))
		hold.Await(1)
		p.Fail()
		hang.Await(1)
		g.works(other)
		if !isOpen(p.Settled()) {
			t.Fatal("settled without a reset")
		}
		wantIs(t, g.rail.Close(), ErrStuck)
		if _, err := g.rail.NewPath(PathOptions{}); err == nil {
			t.Error("a path on a rail that is closing")
		}
		hang.Release()
		wantError(t, result(t, c), ErrLost)
		g.released(g.arena[:100], hold)
		g.rail.closeWait = wait
		if err := g.rail.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConnectFails at each of its steps, by an error or by hanging while the path is failed.
func TestConnectFails(t *testing.T) {
	for _, at := range []fakeverbs.Point{fakeverbs.AtInit, fakeverbs.AtReceive, fakeverbs.AtSend} {
		g := faultRig(t)
		p, err := g.rail.NewPath(PathOptions{})
		if err != nil {
			t.Fatal(err)
		}
		g.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, QPN: p.Local().QPN, Errno: syscall.EINVAL})
		_, err = g.peer.join(p)
		wantIs(t, err, native.ErrVerbs)
		wantIs(t, err, syscall.EINVAL)
		ended(t, "settling", p.Settled())
		wantError(t, p.Move(g.write(1)), ErrLost)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}

		if p, err = g.rail.NewPath(PathOptions{}); err != nil {
			t.Fatal(err)
		}
		hang := g.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Hold, QPN: p.Local().QPN})
		got := make(chan error, 1)
		own, _, err := g.peer.answer(p.Local())
		if err != nil {
			t.Fatal(err)
		}
		go func() { got <- p.Connect(own) }()
		hang.Await(1)
		p.Fail()
		g.works()
		if !isOpen(p.Settled()) {
			t.Fatal("settled with a change of state under way")
		}
		hang.Release()
		wantError(t, result(t, got), ErrLost)
		ended(t, "settling", p.Settled())
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMakingAQueuePairFails and costs no place.
func TestMakingAQueuePairFails(t *testing.T) {
	g := faultRig(t)
	g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtCreateQP, Do: fakeverbs.Fail, Times: 20, Errno: syscall.ENOMEM})
	for range 20 {
		_, err := g.rail.NewPath(PathOptions{})
		wantIs(t, err, native.ErrVerbs)
	}
	if n := g.rail.Stats().Paths; n != 0 {
		t.Errorf("%d paths", n)
	}
	g.works()
}

// TestRF_30_OpenFails at each of its steps, a registration that is refused among them, and leaves nothing open.
func TestRF_30_OpenFails(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	rails, _, err := rail.Discover(nic.Library(), rail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Library: nic.Library(), Rail: rails[0], Arena: mapped(t, 1<<16)}
	for _, at := range []fakeverbs.Point{
		fakeverbs.AtOpenDevice, fakeverbs.AtAllocPD, fakeverbs.AtRegMR, fakeverbs.AtCreateChannel, fakeverbs.AtCreateCQ,
	} {
		for skip := range 2 {
			f := nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, Skip: skip, Errno: syscall.ENOMEM})
			r, err := Open(o)
			if f.Hits() == 0 { // there is no second one
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				f.Remove()
				continue
			}
			wantIs(t, err, native.ErrVerbs)
			if at == fakeverbs.AtRegMR && !strings.Contains(err.Error(), "locked memory") {
				t.Errorf("%v does not name the limit", err)
			}
			if n := nic.Counters().Open(); n != 0 {
				t.Errorf("%d objects are open after %v", n, err)
			}
		}
	}
	r, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = r.NewPath(PathOptions{})
	wantIs(t, err, ErrClosed)
	_, err = r.Refresh()
	wantIs(t, err, ErrClosed)
}

// next waits for an event of a type.
func next(t *testing.T, r *Rail, want native.EventType) {
	t.Helper()
	limit := time.After(wait)
	for {
		select {
		case e, open := <-r.Events():
			if !open {
				t.Fatal("the events have ended")
			}
			if e.Type == want {
				return
			}
		case <-limit:
			t.Fatalf("no event of type %d", want)
		}
	}
}

// TestPortDown ends all paths; the port comes back and carries new ones.
func TestPortDown(t *testing.T) {
	g := faultRig(t)
	var moves []<-chan error
	var paths []*Path
	for i := range 4 {
		p := g.path()
		g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: p.Local().QPN})
		m := g.read(30000)
		m.Local = []Segment{g.arena[i*30000:][:30000]}
		moves, paths = append(moves, moving(p, m)), append(paths, p)
	}
	g.nic.PortDown("fake0")
	next(t, g.rail, native.EventPortDown)
	for i, c := range moves {
		wantError(t, result(t, c), ErrLost)
		ended(t, "settling", paths[i].Settled())
	}
	g.released(g.arena[:4*30000])
	if now, err := g.rail.Refresh(); err != nil || now.Up {
		t.Errorf("%+v, %v", now, err)
	}
	g.nic.PortUp("fake0")
	next(t, g.rail, native.EventPortUp)
	if now, err := g.rail.Refresh(); err != nil || !now.Up {
		t.Errorf("%+v, %v", now, err)
	}
	g.works()
}

// TestQueuePairFails on the adapter's own account.
func TestQueuePairFails(t *testing.T) {
	g := faultRig(t)
	p, other := g.path(), g.path()
	g.nic.FailQP(p.Local().QPN)
	ended(t, "failing", p.Failed())
	ended(t, "settling", p.Settled())
	next(t, g.rail, native.EventQPFatal)
	g.works(other)
}

// TestDeviceFatal: everything ends with ErrLost, and the rail closes. The adapter refuses resets then.
func TestDeviceFatal(t *testing.T) {
	g := faultRig(t)
	p := g.path()
	g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: p.Local().QPN})
	c := moving(p, g.read(30000))
	g.nic.Kill("fake0")
	wantError(t, result(t, c), ErrLost)
	g.released(g.arena[:30000])
	next(t, g.rail, native.EventDeviceFatal)
	_, err := g.rail.NewPath(PathOptions{})
	wantIs(t, err, ErrClosed)
}

// TestCompletionQueueFails in each of its calls: no completion can be had any more, so every path ends by its reset.
func TestCompletionQueueFails(t *testing.T) {
	for _, at := range []fakeverbs.Point{fakeverbs.AtPoll, fakeverbs.AtNotify} {
		g := faultRig(t)
		p, idle := g.path(), g.path()
		g.nic.Inject(fakeverbs.Rule{
			At: at, Do: fakeverbs.Fail, Device: "fake0", Times: fakeverbs.Always, Errno: syscall.EIO,
		})
		// The poller waits; the next completion wakes it.
		if err := p.Move(g.read(30000)); err != nil {
			wantError(t, err, ErrLost)
		}
		next(t, g.rail, native.EventDeviceFatal)
		ended(t, "settling", p.Settled())
		ended(t, "settling", idle.Settled())
		g.released(g.arena[:30000])
		_, err := g.rail.NewPath(PathOptions{})
		wantIs(t, err, ErrClosed)
	}
}

// TestDestroyFails for a queue pair that nothing uses: no buffer depends on it, and the rail's end tries again.
func TestDestroyFails(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16, fake: true, Options: Options{Paths: 2}})
	all := []*Path{g.path(), g.path()}
	f := g.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtDestroyQP, Do: fakeverbs.Fail, Device: "fake0", Times: 2, Errno: syscall.EBUSY,
	})
	for _, p := range all {
		wantIs(t, p.Close(), native.ErrVerbs)
	}
	s := g.rail.Stats()
	if s.Stuck != 0 || s.Paths != 0 || f.Hits() != 2 {
		t.Errorf("%+v, %d hits", s, f.Hits())
	}
}
