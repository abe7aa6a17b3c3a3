//go:build cgo

package initiator

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestMakingAQueuePairHangs holds up who asked for it, and the rail's end for as long as that waits.
func TestMakingAQueuePairHangs(t *testing.T) {
	g := faultRig(t)
	g.rail.closeWait = 50 * time.Millisecond
	other := g.path()
	hang := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtCreateQP, Do: fakeverbs.Hold, Device: "fake0"})
	made := make(chan *Path, 1)
	go func() {
		p, err := g.rail.NewPath(PathOptions{})
		if err != nil {
			t.Error(err)
		}
		made <- p
	}()
	hang.Await(1)
	g.works(other)
	wantIs(t, g.rail.Close(), ErrStuck)
	hang.Release()
	if p := <-made; p != nil {
		ended(t, "failing a path made on a rail that is closing", p.Failed())
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	g.rail.closeWait = wait
	if err := g.rail.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRailEndsWhileAPathIsDestroyed: its end waits for the owner's call, for a while.
func TestRailEndsWhileAPathIsDestroyed(t *testing.T) {
	g := faultRig(t)
	p := g.path()
	hang := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtDestroyQP, Do: fakeverbs.Hold, QPN: p.Local().QPN})
	left := make(chan error, 1)
	go func() { left <- p.Close() }()
	hang.Await(1)
	g.rail.closeWait = 50 * time.Millisecond
	wantIs(t, g.rail.Close(), ErrStuck)
	g.rail.closeWait = wait
	closed := make(chan error, 1)
	go func() { closed <- g.rail.Close() }()
	select {
	case err := <-closed:
		t.Errorf("closed while a queue pair is destroyed: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	hang.Release()
	if err := errors.Join(result(t, left), result(t, closed)); err != nil {
		t.Error(err)
	}
}

// TestDestroyingAQueuePairHangs holds up who closes it; its place is free for another path.
func TestDestroyingAQueuePairHangs(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16, fake: true, Options: Options{Paths: 2}})
	p, other := g.path(), g.path()
	hang := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtDestroyQP, Do: fakeverbs.Hold, QPN: p.Local().QPN})
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	hang.Await(1)
	g.works(other)
	hang.Release()
	if err := result(t, closed); err != nil {
		t.Error(err)
	}
}

// TestEventsWithoutAReader are left out, and paths fail by them all the same.
func TestEventsWithoutAReader(t *testing.T) {
	g := faultRig(t)
	for range 2 * eventRoom {
		g.nic.PortDown("fake0")
		g.nic.PortUp("fake0")
	}
	g.nic.Await("events", func() bool { return len(g.rail.Events()) == eventRoom })
	for range eventRoom {
		p, err := g.rail.NewPath(PathOptions{})
		if err != nil {
			t.Fatal(err)
		}
		g.nic.FailQP(p.Local().QPN)
		g.nic.PortDown("fake0")
		g.nic.PortUp("fake0")
		ended(t, "failing", p.Failed())
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestASweepThatFails: completions that a failed path left in the queue can no longer be counted, so nothing is posted
// any more.
func TestASweepThatFails(t *testing.T) {
	g := faultRig(t)
	p, idle := g.path(), g.path()
	mustMove(t, p, g.write(1))
	g.quiet()
	polls := func() uint64 { return g.nic.Counters().Polls }
	for before := polls(); ; before = polls() { // the poller sleeps, so that the next one to poll is the sweep
		g.nic.Await("the poller to sleep", func() bool { return g.rail.Stats().Works == 2 })
		if polls() == before {
			break
		}
	}
	f := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtPoll, Do: fakeverbs.Fail, Device: "fake0", Errno: syscall.EIO})
	p.Fail()
	ended(t, "settling", p.Settled())
	f.Await(1)
	next(t, g.rail, native.EventDeviceFatal)
	ended(t, "settling", idle.Settled())
	_, err := g.rail.NewPath(PathOptions{})
	wantIs(t, err, ErrClosed)
}

// TestProbeFindsWhatDoesNotWork, leaves nothing behind, and harms no path.
func TestProbeFindsWhatDoesNotWork(t *testing.T) {
	g := faultRig(t)
	p := g.path()
	open := g.nic.Counters().Open()
	for _, rule := range []fakeverbs.Rule{
		{At: fakeverbs.AtAllocPD, Errno: syscall.ENOMEM},
		{At: fakeverbs.AtCreateCQ, Errno: syscall.ENOMEM},
		{At: fakeverbs.AtCreateQP, Errno: syscall.ENOMEM, Skip: 1},
		{At: fakeverbs.AtRegMR, Errno: syscall.ENOMEM, Skip: 1},
		{At: fakeverbs.AtSend, Errno: syscall.ETIMEDOUT},
		{At: fakeverbs.AtWork, Status: fakeverbs.RetryExceeded},
		{At: fakeverbs.AtWork, Status: fakeverbs.RemoteAccess, Skip: 3},
		{At: fakeverbs.AtWork, Do: fakeverbs.Short, Op: native.OpRead, Bytes: 0},
	} {
		rule.Device = "fake0"
		f := g.nic.Inject(rule)
		err := g.rail.Probe(wait)
		var failed *rail.LoopbackError
		if !errors.As(err, &failed) || f.Hits() != 1 {
			t.Errorf("%+v: %v, %d hits", rule, err, f.Hits())
		}
		f.Remove()
		if now := g.nic.Counters().Open(); now != open {
			t.Errorf("%+v: %d objects are open, before %d", rule, now, open)
		}
	}
	if err := g.rail.Probe(wait); err != nil {
		t.Error(err)
	}
	g.works(p)
}

// TestProbesWhileClosing: the rail closes after the probes that run, and no other begins.
func TestProbesWhileClosing(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16, fake: true})
	hold := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, Device: "fake0"})
	probed := make(chan error, 1)
	go func() { probed <- g.rail.Probe(wait) }()
	hold.Await(1)
	closed := make(chan error, 1)
	go func() { closed <- g.rail.Close() }()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for err := g.rail.Probe(wait); !errors.Is(err, ErrClosed); err = g.rail.Probe(wait) {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	select {
	case err := <-closed:
		t.Fatalf("closed with a probe under way: %v", err)
	default:
	}
	hold.Release()
	if err := result(t, probed); err != nil {
		t.Error(err)
	}
	if err := result(t, closed); err != nil {
		t.Error(err)
	}
}
