package verbs

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestAdapterThatNeitherResetsNorDestroys a queue pair: the request under way gets no answer and its buffer stays out.
// The session's other requests go on until that one's deadline cuts it, other sessions for good; and closing the fabric
// says so, in a bounded time. Once the adapter does it, closing again ends everything.
func TestAdapterThatNeitherResetsNorDestroys(t *testing.T) {
	const wait = time.Second // of the request that is caught
	b := newBench(t, fakeverbs.Options{Lenient: true, Poison: true})
	c, other := b.connect("p", device0), b.connect("q", device1)
	_, answer := c.path(0)
	c.path(1)
	other.path(0)
	other.path(1)
	memory, theirs, core := c.region(lateBytes), other.region(lateBytes), c.session().core
	held := b.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: answer.QPN, Times: fakeverbs.Always,
	})
	var broken []*fakeverbs.Fault
	for _, at := range []fakeverbs.Point{fakeverbs.AtReset, fakeverbs.AtDestroyQP} {
		broken = append(broken, b.nic.Inject(fakeverbs.Rule{
			At: at, Do: fakeverbs.Fail, QPN: answer.QPN, Times: fakeverbs.Always, Errno: syscall.EIO,
		}))
	}
	r := c.mustOpen(fabric.ForPut, lateBytes, wait)
	buf, moved, done := moving(r, fabric.ForPut, b, lateBytes)
	held.Await(1)
	b.nic.FailQP(answer.QPN)
	soon(t, "the queue pair is stuck", func() bool { return b.rail(0).Engine.Stuck == 1 })
	for range 3 {
		c.works(memory)
		other.works(theirs)
	}
	if err := core.Err(); err != nil {
		t.Errorf("the session has ended before the deadline: %v", err)
	}
	err := r.Close()
	for _, want := range []error{fabric.ErrLingering, fabric.ErrFenced, fabric.ErrOverdue} {
		if !errors.Is(err, want) {
			t.Errorf("close: %v is no %v", err, want)
		}
	}
	other.works(theirs)
	stays := func(when string) {
		t.Helper()
		select {
		case err := <-moved:
			t.Errorf("%s: the buffer came back: %v", when, err)
		default:
		}
		if !b.nic.Owned(buf) {
			t.Fatalf("%s: the adapter does not own the buffer: the test proves nothing", when)
		}
	}
	stays("after the cut")
	if err := b.fabric.Close(); !errors.Is(err, initiator.ErrStuck) {
		t.Errorf("close of the fabric: %v", err)
	}
	stays("after the end")
	for _, f := range broken {
		f.Remove()
	}
	if err := b.fabric.Close(); err != nil {
		t.Errorf("close once the adapter works: %v", err)
	}
	if err := <-moved; !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("moved: %v", err)
	}
	if b.nic.Owned(buf) {
		t.Error("the buffer came back too early")
	}
	done()
}

// TestCutsSideBySide: sessions on an adapter that hangs are cut at once, not one after another.
func TestCutsSideBySide(t *testing.T) {
	const sessions = 4
	for _, cut := range []struct {
		name string
		by   func(*bench)
	}{
		{"revoke", func(b *bench) { b.fabric.RevokePrincipal("p") }},
		{"close", func(b *bench) { b.fabric.roster.Close() }},
	} {
		t.Run(cut.name, func(t *testing.T) {
			b := newBench(t, fakeverbs.Options{Lenient: true})
			for range sessions {
				c := b.connect("p", device0)
				c.path(0)
				c.region(4096)
			}
			hang := b.nic.Inject(fakeverbs.Rule{
				At: fakeverbs.AtReset, Do: fakeverbs.Hold, Device: rail0, Times: fakeverbs.Always,
			})
			begin := time.Now()
			cut.by(b)
			if took := time.Since(begin); took < settleWait || took > sessions*settleWait-time.Second {
				t.Errorf("took %v", took)
			}
			if hang.Hits() != sessions {
				t.Errorf("%d of %d resets hang", hang.Hits(), sessions)
			}
			hang.Release()
		})
	}
}

// TestConnectThatHangs holds up paths of its own rail, and no other rail's, of its session or of others.
func TestConnectThatHangs(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	c, other := b.connect("p", device0), b.connect("p", device1)
	hang := b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReceive, Do: fakeverbs.Hold, Device: rail0})
	q, _, body := c.makePair()
	c.last++
	first := c.last
	c.pairs[first] = q
	c.send(frame.Header{Type: frame.Path, ID: first}, encode(body))
	hang.Await(1)
	c.path(1)
	c.works(c.region(4096))
	other.path(0)
	other.works(other.region(4096))
	hang.Release()
	c.want(frame.PathOK, first)
	c.fence(first)
	c.alive("after a slow path")
}

// TestHungAdapterIsEjected: queue pairs that their adapter does not reset count as the rail's failures, without a word
// of the clients, and transfers leave it. RF 15: a rail that is dead in this way costs no request more once it is out.
func TestHungAdapterIsEjected(t *testing.T) {
	b := newBench(t, fakeverbs.Options{Lenient: true})
	b.fabric.hung = shortly
	clients := []*rawClient{b.connect("p", device0), b.connect("q", device1)}
	hang := b.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtReset, Do: fakeverbs.Hold, Device: rail0, Times: fakeverbs.Always,
	})
	for i := range lapsesToEject {
		c := clients[i%2]
		if b.rail(0).Ejections != 0 {
			t.Fatalf("ejected after %d failures", i)
		}
		_, answer := c.path(0)
		b.nic.FailQP(answer.QPN)
	}
	soon(t, "the rail is ejected", func() bool { return b.rail(0).Ejections == 1 && !b.rail(0).Up })
	for _, c := range clients {
		c.path(1)
		c.works(c.region(4096))
	}
	hang.Release()
	soon(t, "the rail is back", func() bool { return b.rail(0).Up })
}

// TestWaitForAPathIsAlone: a transfer that has nothing under way, since no path is up, ends with its deadline, its
// context or its window, alone: its session goes on.
func TestWaitForAPathIsAlone(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	c := b.connect("p", device0)
	memory := c.region(4096)
	id, _ := c.offerPath(0) // it may still come up
	gone := errors.New("the caller has gone")
	for _, end := range []struct {
		name  string
		wait  time.Duration
		ctx   error
		moved error
		close error
	}{
		{name: "deadline", wait: shortly, moved: fabric.ErrOverdue, close: fabric.ErrOverdue},
		{name: "context", wait: patience, ctx: gone, moved: gone, close: gone},
	} {
		for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
			r := c.mustOpen(d, 4096, end.wait)
			buf := b.buffer(4096)
			move := r.Write
			if d == fabric.ForPut {
				move = r.Read
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			if end.ctx != nil {
				time.AfterFunc(shortly, func() { cancel(end.ctx) })
			}
			begin := time.Now()
			if err := move(ctx, 0, buf); !errors.Is(err, end.moved) {
				t.Errorf("%s: moved: %v", end.name, err)
			}
			if err := r.Close(); !errors.Is(err, end.close) {
				t.Errorf("%s: close: %v", end.name, err)
			}
			if took := time.Since(begin); took >= pathWait {
				t.Errorf("%s: took %v", end.name, took)
			}
			buf.Release()
			cancel(nil)
			c.alive(end.name)
		}
	}
	r := c.mustOpen(fabric.ForGet, 4096, patience)
	_, moved, done := moving(r, fabric.ForGet, b, 4096)
	c.send(frame.Header{Type: frame.PathUp, ID: id}, nil)
	if err := errors.Join(<-moved, r.Close()); err != nil {
		t.Errorf("once the path is up: %v", err)
	}
	done()
	c.works(memory)
	if s := b.fabric.Stats(); s.Fenced != 0 || s.Sessions != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestDeadlineWhileAnotherMoves: of two transfers of a session, one waits for a path of its own kind and one moves
// bytes; the deadline of the first leaves the second alone.
func TestDeadlineWhileAnotherMoves(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	c := b.connect("p", device0)
	c.region(bufBytes)
	id, answer := c.offerPath(0)
	waits := c.mustOpen(fabric.ForGet, bufBytes, shortly)
	_, waited, doneWaiting := moving(waits, fabric.ForGet, b, bufBytes)
	if err := <-waited; !errors.Is(err, fabric.ErrOverdue) {
		t.Errorf("waited: %v", err)
	}
	doneWaiting()
	held := b.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: answer.QPN, Times: fakeverbs.Always,
	})
	c.send(frame.Header{Type: frame.PathUp, ID: id}, nil)
	r := c.mustOpen(fabric.ForGet, bufBytes, patience)
	_, moved, done := moving(r, fabric.ForGet, b, bufBytes)
	held.Await(1)
	if err := waits.Close(); !errors.Is(err, fabric.ErrOverdue) || errors.Is(err, fabric.ErrLingering) {
		t.Errorf("close: %v", err)
	}
	held.Release()
	if err := errors.Join(<-moved, r.Close()); err != nil {
		t.Errorf("the other transfer: %v", err)
	}
	done()
}
