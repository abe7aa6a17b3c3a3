//go:build cgo

package hip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// untouched says that nothing touches a client's memory from a mark on, for as long as a packet may live.
func (b *bed) untouched(what string, c *client, mark uint64) {
	b.t.Helper()
	<-time.After(2 * linger)
	if n := b.nic.Touched(c.memory, mark); len(n) != 0 {
		b.t.Errorf("%s: the client's memory was touched: %+v", what, n[0])
	}
}

// hold keeps the completions of a session's queue pair back.
func (b *bed) hold(x *exchange) *fakeverbs.Fault {
	return b.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: x.made.QPN, Times: fakeverbs.Always,
	})
}

// TestFence: a GET whose client takes no immediate, or from whose queue pair packets are on their way, ends at its
// deadline, and nothing touches its memory afterwards.
func TestFence(t *testing.T) {
	const n = 1 << 20
	for name, rule := range map[string]*fakeverbs.Rule{
		"no receive":      nil,
		"a slow adapter":  {At: fakeverbs.AtWork, Do: fakeverbs.Hold, Times: fakeverbs.Always},
		"a slow answer":   {At: fakeverbs.AtAck, Do: fakeverbs.Fail, Times: fakeverbs.Always},
		"an answer's end": {At: fakeverbs.AtReadResponse, Do: fakeverbs.Fail, Times: fakeverbs.Always},
	} {
		t.Run(name, func(t *testing.T) {
			o := fakeverbs.Options{Latency: 30 * time.Millisecond, TimeoutScale: 100} // no path is lost by itself
			b := newBed(t, bedOptions{Options: Options{Deadline: 600 * time.Millisecond}, nic: o})
			x, taken := b.clients[0].taken(fabric.ForGet, n)
			if rule != nil {
				b.nic.Inject(*rule)
				x.listen()
			}
			all := b.buffers(n, 1<<20)
			writeErr := taken.Remote.Write(t.Context(), 0, all...)
			closeErr := taken.Remote.Close()
			mark := b.nic.Mark()
			if late := time.Since(taken.Deadline); late > 400*time.Millisecond {
				t.Errorf("closed %v after the deadline", late)
			}
			if b.nic.Owned(all[0].Bytes()) {
				t.Error("the adapter has the buffer")
			}
			release(all)
			if rule != nil {
				wantIs(t, "write", writeErr, fabric.ErrFenced, fabric.ErrOverdue)
			}
			wantIs(t, "close", closeErr, fabric.ErrFenced, fabric.ErrOverdue)
			if state, ok := b.nic.QP(x.made.QPN); ok && state.State != native.QPReset {
				t.Errorf("the queue pair is in state %d", state.State)
			}
			b.untouched("after close", x.c, mark)
			taken.Finish()
		})
	}
}

// TestCancel: a session that waits for its second message has ended when it returns.
func TestCancel(t *testing.T) {
	const n = 1 << 20
	b := newBed(t, bedOptions{})
	c := b.clients[0]
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		x := c.prepared("alice", d, n)
		if err := errors.Join(b.cancel(x, "alice"), b.cancel(x, "alice")); err != nil {
			t.Error(err)
		}
		if x.held.open.Load() {
			t.Error("what is held is open")
		}
		_, err := b.fabric.Take(x.made.ID, "alice", x.readiness())
		wantIs(t, "take", err, fabric.ErrNoSession)
	}
	if err := b.fabric.Cancel(t.Context(), [16]byte{9}, "alice"); err != nil {
		t.Errorf("unknown: %v", err)
	}
}

// canceling cancels while act runs on a transfer, and then finishes it.
func (x *exchange) canceling(taken *fabric.Taken, act func() error, begun func()) (acted, closed error) {
	b := x.c.b
	acting := async(act)
	begun()
	canceled := async(func() error { return b.cancel(x, "alice") })
	acted = result(b, "an operation", acting)
	select {
	case err := <-canceled:
		b.t.Errorf("canceled before it was finished: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	closed = taken.Remote.Close()
	taken.Finish()
	if err := result(b, "cancel", canceled); err != nil {
		b.t.Errorf("cancel: %v", err)
	}
	return acted, closed
}

// TestCancelTransfer: whatever it is at ends, and Cancel waits for Finish.
func TestCancelTransfer(t *testing.T) {
	const n = 1 << 20
	b := newBed(t, bedOptions{})
	c := b.clients[0]
	t.Run("writing", func(t *testing.T) {
		x, taken := c.taken(fabric.ForGet, n)
		all := b.buffers(n, n)
		defer release(all)
		fault := b.hold(x)
		acted, closed := x.canceling(taken, func() error { return taken.Remote.Write(t.Context(), 0, all...) },
			func() { fault.Await(1) })
		wantIs(t, "write", acted, fabric.ErrFenced, errCanceled)
		wantIs(t, "close", closed, fabric.ErrFenced)
	})
	t.Run("telling", func(t *testing.T) {
		x, taken := c.taken(fabric.ForGet, n)
		all := b.buffers(n, n)
		defer release(all)
		if err := taken.Remote.Write(t.Context(), 0, all...); err != nil {
			t.Fatal(err)
		}
		before := b.nic.Counters().NotReady
		acted, closed := x.canceling(taken, taken.Remote.Close,
			func() { b.soon("the client is not ready", func() bool { return b.nic.Counters().NotReady > before }) })
		wantIs(t, "close", acted, fabric.ErrFenced, errCanceled)
		wantIs(t, "closed again", closed, fabric.ErrTransfer)
	})
	t.Run("waiting for the client", func(t *testing.T) {
		x, taken := c.taken(fabric.ForPut, n)
		acted, closed := x.canceling(taken, func() error {
			_, err := b.readAll(taken)
			return err
		}, func() {})
		wantIs(t, "read", acted, fabric.ErrFenced, errCanceled)
		wantIs(t, "close", closed, fabric.ErrFenced)
	})
	t.Run("reading", func(t *testing.T) {
		x, taken := c.taken(fabric.ForPut, n)
		x.post(x.work(n))
		all := b.buffers(n, n)
		defer release(all)
		acted, closed := x.canceling(taken, func() error { return taken.Remote.Read(t.Context(), 0, all[0].Slice(0, 10)) },
			func() { <-time.After(20 * time.Millisecond) })
		if acted != nil {
			t.Errorf("read: %v", acted)
		}
		if closed != nil && !errors.Is(closed, fabric.ErrFenced) {
			t.Errorf("close: %v", closed)
		}
		x.die()
	})
	t.Run("committing", func(t *testing.T) {
		x, taken := c.taken(fabric.ForPut, n)
		copy(c.memory[guard:], pattern(4, 0, n))
		x.post(x.work(n))
		data, err := b.readAll(taken)
		if err := errors.Join(err, taken.Remote.Close()); err != nil || !bytes.Equal(data, pattern(4, 0, n)) {
			t.Errorf("%v, or other bytes", err)
		}
		canceled := async(func() error { return b.cancel(x, "alice") })
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer stop()
		wantIs(t, "cancel that does not wait", b.fabric.Cancel(ctx, x.made.ID, "alice"), context.DeadlineExceeded)
		taken.Finish()
		if err := result(b, "cancel", canceled); err != nil {
			t.Error(err)
		}
		x.die()
	})
}

// TestRevoke: the principal's sessions end, those of others go on; and a running transfer is fenced when it returns.
func TestRevoke(t *testing.T) {
	const n = 1 << 20
	b := newBed(t, bedOptions{})
	waits := b.clients[0].prepared("alice", fabric.ForPut, n)
	x, get := b.clients[0].taken(fabric.ForGet, n)
	y, put := b.clients[0].taken(fabric.ForPut, n)
	other := b.clients[1].prepared("bob", fabric.ForPut, n)
	all := b.buffers(n, n)
	defer release(all)
	fault := b.hold(x)
	written := async(func() error { return get.Remote.Write(t.Context(), 0, all...) })
	fault.Await(1)
	b.fabric.RevokePrincipal("alice")
	for _, qpn := range []uint32{x.made.QPN, y.made.QPN, waits.made.QPN} {
		if state, ok := b.nic.QP(qpn); ok && state.State != native.QPReset {
			t.Errorf("queue pair %d is in state %d", qpn, state.State)
		}
	}
	wantIs(t, "write", result(b, "write", written), fabric.ErrFenced, fabric.ErrRevoked)
	_, err := b.readAll(put)
	wantIs(t, "read", err, fabric.ErrFenced, fabric.ErrRevoked)
	wantIs(t, "close", get.Remote.Close(), fabric.ErrFenced)
	wantIs(t, "close", put.Remote.Close(), fabric.ErrFenced)
	get.Finish()
	put.Finish()
	if waits.held.open.Load() || !other.held.open.Load() {
		t.Error("what is held is open or closed wrongly")
	}
	taken := other.take()
	other.post(other.work(n))
	_, err = b.readAll(taken)
	if err := errors.Join(err, taken.Remote.Close()); err != nil {
		t.Errorf("another's: %v", err)
	}
	taken.Finish()
}

// TestClose ends what is prepared, fences what is taken, and says so while a request does not finish.
func TestClose(t *testing.T) {
	b := newBed(t, bedOptions{})
	b.fabric.closing = shortly
	waits := b.clients[0].prepared("alice", fabric.ForPut, 1000)
	_, taken := b.clients[0].taken(fabric.ForPut, 1000)
	if err := b.fabric.Close(); err == nil {
		t.Error("closed while a session is taken")
	}
	if waits.held.open.Load() {
		t.Error("what is held is open")
	}
	buffer := b.buffers(1000, 1000)
	defer release(buffer)
	wantIs(t, "read", taken.Remote.Read(t.Context(), 0, buffer...), fabric.ErrFenced)
	wantIs(t, "prepare", b.clients[0].preparation("alice", fabric.ForGet, 1).prepare(), fabric.ErrNoFabric)
	closed := async(b.fabric.Close)
	taken.Finish()
	if err := errors.Join(result(b, "close", closed), b.fabric.Close()); err != nil {
		t.Error(err)
	}
}

// TestRailGoesDown: a session that is prepared ends with an error, not by waiting.
func TestRailGoesDown(t *testing.T) {
	b := newBed(t, bedOptions{})
	get, put := b.clients[0].prepared("alice", fabric.ForGet, 1000), b.clients[0].prepared("alice", fabric.ForPut, 1000)
	b.nic.PortDown("rail")
	b.soon("the rail is down", func() bool { return !b.fabric.Rails()[0].Up })
	buffer := b.buffers(1000, 1000)
	defer release(buffer)
	taken := get.take()
	wantIs(t, "write", taken.Remote.Write(t.Context(), 0, buffer...), fabric.ErrTransfer)
	wantIs(t, "close", taken.Remote.Close(), fabric.ErrTransfer)
	taken.Finish()
	taken = put.take()
	wantIs(t, "read", taken.Remote.Read(t.Context(), 0, buffer...), fabric.ErrTransfer)
	wantIs(t, "close", taken.Remote.Close(), fabric.ErrTransfer)
	taken.Finish()
}

// TestStubbornAdapter: where no reset comes, a GET has no answer, a PUT is not read, and its memory stays out.
func TestStubbornAdapter(t *testing.T) {
	const n = 1 << 20
	t.Run("get", func(t *testing.T) {
		b := newBed(t, bedOptions{Options: Options{Deadline: shortly}, nic: fakeverbs.Options{Lenient: true}, stubborn: true})
		b.fabric.settle, b.fabric.closing = shortly, shortly
		x, taken := b.clients[0].taken(fabric.ForGet, n)
		all := b.buffers(n, n)
		defer release(all)
		b.hold(x)
		hang := b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReset, Do: fakeverbs.Hold, QPN: x.made.QPN})
		written := async(func() error { return taken.Remote.Write(t.Context(), 0, all...) })
		hang.Await(1)
		canceled := async(func() error { return b.cancel(x, "alice") })
		wantIs(t, "close", taken.Remote.Close(), fabric.ErrLingering, fabric.ErrFenced)
		taken.Finish()
		wantIs(t, "cancel", result(b, "cancel", canceled), fabric.ErrLingering)
		if x.held.open.Load() || !strings.Contains(b.log.String(), "level=ERROR") {
			t.Error("what is held is open, or the log is silent")
		}
		hang.Release()
		wantIs(t, "write", result(b, "write", written), fabric.ErrFenced)
	})
	t.Run("put", func(t *testing.T) {
		b := newBed(t, bedOptions{Options: Options{Staging: 2 * n}, nic: fakeverbs.Options{Lenient: true}, stubborn: true})
		b.fabric.settle, b.fabric.closing = shortly, shortly
		x, taken := b.clients[0].taken(fabric.ForPut, n)
		for _, at := range []fakeverbs.Point{fakeverbs.AtReset, fakeverbs.AtDestroyQP} {
			b.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, QPN: x.made.QPN, Errno: syscall.EIO})
		}
		copy(x.c.memory[guard:], pattern(4, 0, n))
		x.post(x.work(n))
		_, err := b.readAll(taken)
		wantIs(t, "read", err, fabric.ErrTransfer)
		wantIs(t, "close", taken.Remote.Close(), fabric.ErrTransfer)
		taken.Finish()
		if x.held.open.Load() || !strings.Contains(b.log.String(), "level=ERROR") {
			t.Error("what is held is open, or the log is silent")
		}
		again := b.clients[0].prepared("bob", fabric.ForPut, n)
		if again.made.Addr == x.made.Addr {
			t.Error("memory that the client may write was handed out again")
		}
		wantIs(t, "one more", b.clients[0].preparation("carol", fabric.ForPut, n).prepare(), fabric.ErrLimit)
		if b.fabric.Stats().MappedBytes != 2*n {
			t.Errorf("counters %+v", b.fabric.Stats())
		}
		if err := b.fabric.Close(); err == nil {
			t.Error("closed while memory is out")
		}
	})
}

// TestStorm takes, cancels, revokes and finishes at once, from many sides: each session ends once, and nothing is left.
func TestStorm(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	b := newBed(t, bedOptions{Options: Options{Prepared: 20 * time.Millisecond, Deadline: 400 * time.Millisecond}})
	for round := range rounds {
		r := rand.New(rand.NewPCG(uint64(round), 2))
		var tasks sync.WaitGroup
		for i := range 4 {
			n := 1 + r.Int64N(200_000)
			d := fabric.Direction(1 + r.IntN(2))
			who := fmt.Sprintf("user%d", i)
			x := b.clients[i%2].prepared(who, d, n)
			speaks := r.IntN(4) > 0
			if speaks && d == fabric.ForGet {
				x.listen()
			}
			if speaks && d == fabric.ForPut {
				x.post(x.work(n))
			}
			begin := make(chan struct{})
			var takers sync.Map
			for range 2 {
				tasks.Go(func() {
					<-begin
					taken, err := b.fabric.Take(x.made.ID, who, x.readiness())
					if err != nil {
						if !errors.Is(err, fabric.ErrNoSession) {
							t.Errorf("take: %v", err)
						}
						return
					}
					if _, twice := takers.LoadOrStore("taken", true); twice {
						t.Error("taken twice")
					}
					b.transfer(taken, d)
				})
			}
			wait := time.Duration(r.IntN(3000)) * time.Microsecond
			end := r.IntN(3)
			tasks.Go(func() {
				<-begin
				<-time.After(wait)
				switch end {
				case 0:
					if err := b.cancel(x, who); err != nil {
						t.Errorf("cancel: %v", err)
					}
					if x.held.open.Load() {
						t.Error("canceled, and what is held is open")
					}
				case 1:
					b.fabric.RevokePrincipal(who)
				}
			})
			close(begin)
		}
		tasks.Wait()
		b.idle()
		for _, c := range b.clients {
			for _, q := range c.qps {
				_ = q.Reset()
			}
			drain(c.cq)
		}
	}
	if s := b.fabric.Stats(); s.Gets == 0 || s.Puts == 0 || s.Fenced == 0 || s.Lapsed+s.Offers == 0 {
		t.Logf("not everything came: %+v", s)
	}
}

func drain(cq *native.CQ) {
	var some [16]native.Completion
	for {
		if n, err := cq.Poll(some[:]); n == 0 || err != nil {
			return
		}
	}
}

// transfer moves all bytes one way or the other, as far as it may, and finishes.
func (b *bed) transfer(taken *fabric.Taken, d fabric.Direction) {
	defer taken.Finish()
	buffer, err := b.share.Alloc(b.t.Context())
	if err != nil {
		b.t.Errorf("buffer: %v", err)
		return
	}
	defer buffer.Release()
	view := buffer.Slice(0, int(taken.Bytes))
	if d == fabric.ForGet {
		err = taken.Remote.Write(b.t.Context(), 0, view)
	} else {
		err = taken.Remote.Read(b.t.Context(), 0, view)
	}
	if closeErr := taken.Remote.Close(); err == nil {
		err = closeErr
	}
	if err != nil && !errors.Is(err, fabric.ErrFenced) && !errors.Is(err, fabric.ErrTransfer) {
		b.t.Errorf("transfer: %v", err)
	}
}
