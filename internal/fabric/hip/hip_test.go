//go:build cgo

package hip

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
)

// TestGet: what was written is in the client's memory, and nothing around it, when it is told so; it posts its receive
// when it likes, and is told once.
func TestGet(t *testing.T) {
	b := newBed(t, bedOptions{device: true})
	c := b.clients[0]
	sizes := []int64{1, 4096, 70_001, 3<<20 + 5}
	for i, n := range sizes {
		seed := int64(i + 1)
		copy(c.memory, pattern(99, 0, memoryBytes))
		x, taken := c.taken(fabric.ForGet, n)
		if taken.Bytes != n || taken.Direction != fabric.ForGet || taken.Cookie != cookie || taken.Held != x.held ||
			taken.Remote.Size() != n || time.Until(taken.Deadline) > MaxDeadline || x.made.Addr != 0 || x.made.RKey != 0 {
			t.Errorf("taken %+v of %+v", taken, x.made)
		}
		all := b.buffers(n, 1<<20)
		slices.Reverse(all) // a short one first
		var tasks sync.WaitGroup
		off := int64(0)
		for _, buffer := range all {
			at := off
			copy(buffer.Bytes(), pattern(seed, at, int64(buffer.Len())))
			tasks.Go(func() {
				if err := taken.Remote.Write(t.Context(), at, buffer); err != nil {
					t.Errorf("write: %v", err)
				}
			})
			off += int64(buffer.Len())
		}
		tasks.Wait()
		release(all)
		closed := b.refusing(taken.Remote.Close)
		x.listen()
		if err := result(b, "close", closed); err != nil {
			t.Fatalf("close of %d: %v", n, err)
		}
		if got := x.completion(); !got.HasImm || got.Imm != cookie || got.Status != native.StatusOK {
			t.Errorf("told %+v", got)
		}
		if !bytes.Equal(c.memory[guard:guard+n], pattern(seed, 0, n)) {
			t.Errorf("%d bytes differ", n)
		}
		if !bytes.Equal(c.memory[:guard], pattern(99, 0, guard)) ||
			!bytes.Equal(c.memory[guard+n:], pattern(99, guard+n, memoryBytes-guard-n)) {
			t.Error("memory around the window changed")
		}
		if !x.held.open.Load() {
			t.Error("what is held was closed before the end")
		}
		taken.Finish()
		if x.held.open.Load() {
			t.Error("what is held is open")
		}
		b.idle()
	}
	if s := b.fabric.Stats(); s.Gets != int64(len(sizes)) || s.Failed != 0 || s.Offers != s.Gets || s.GetBytes == 0 {
		t.Errorf("counters %+v", s)
	}
}

// refusing begins something that the client is told of by an immediate, and waits until it has refused that a while.
func (b *bed) refusing(act func() error) <-chan error {
	b.t.Helper()
	if b.nic == nil {
		acting := async(act)
		<-time.After(shortly)
		return acting
	}
	before := b.nic.Counters().NotReady
	acting := async(act)
	b.soon("the client is not ready", func() bool { return b.nic.Counters().NotReady > before+20 })
	return acting
}

// readAll reads a PUT by buffers of a MiB, several at once.
func (b *bed) readAll(taken *fabric.Taken) ([]byte, error) {
	all := b.buffers(taken.Bytes, 1<<20)
	defer release(all)
	errs := make([]error, len(all))
	var tasks sync.WaitGroup
	for i, buffer := range all {
		tasks.Go(func() { errs[i] = taken.Remote.Read(b.t.Context(), int64(i)<<20, buffer) })
	}
	tasks.Wait()
	var got []byte
	for _, buffer := range all {
		got = append(got, buffer.Bytes()...)
	}
	return got, errors.Join(errs...)
}

// TestPut: what the client wrote is read, whenever it comes.
func TestPut(t *testing.T) {
	b := newBed(t, bedOptions{device: true})
	c := b.clients[0]
	for i, n := range []int64{1, 4096, 70_001, 3<<20 + 5} {
		for _, early := range []bool{true, false} {
			copy(c.memory[guard:], pattern(int64(i+7), 0, n))
			x := c.prepared("alice", fabric.ForPut, n)
			if x.made.Addr == 0 || x.made.PSN == 0 || x.made.Port != 1 {
				t.Errorf("prepared %+v", x.made)
			}
			if early {
				x.post(x.work(n))
			}
			taken := x.take()
			got := make(chan []byte, 1)
			read := async(func() error {
				data, err := b.readAll(taken)
				got <- data
				return err
			})
			if !early {
				select {
				case err := <-read:
					t.Fatalf("read before anything was written: %v", err)
				case <-time.After(10 * time.Millisecond):
				}
				x.post(x.work(n))
			}
			if err := errors.Join(result(b, "read", read), taken.Remote.Close()); err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			if !bytes.Equal(<-got, pattern(int64(i+7), 0, n)) {
				t.Errorf("%d bytes differ", n)
			}
			if got := x.completion(); got.Status != native.StatusOK {
				t.Errorf("the client's work ended with %+v", got)
			}
			taken.Finish()
			b.idle()
		}
	}
	if s := b.fabric.Stats(); s.Puts != 8 || s.Failed != 0 || s.PutBytes == 0 {
		t.Errorf("counters %+v", s)
	}
}

// TestSealedPut: what the client writes after its immediate, or sends late, changes nothing that is read.
func TestSealedPut(t *testing.T) {
	const n = 300_000
	b := newBed(t, bedOptions{})
	c := b.clients[0]
	x := c.prepared("alice", fabric.ForPut, n)
	copy(c.memory[guard:], pattern(1, 0, n))
	x.post(x.work(n))
	taken := x.take()
	first := b.buffers(100_000, 1<<20)
	defer release(first)
	if err := taken.Remote.Read(t.Context(), 0, first...); err != nil {
		t.Fatal(err)
	}
	if state, ok := b.nic.QP(x.made.QPN); ok && state.State != native.QPReset && state.State != native.QPError {
		t.Errorf("bytes were read while the queue pair is in state %d", state.State)
	}
	if got := x.completion(); got.Status != native.StatusOK {
		t.Errorf("the write ended with %+v", got)
	}
	copy(c.memory[guard:], pattern(2, 0, n))
	second := x.work(n)
	second.Op = native.OpWrite
	x.post(second, x.work(n))
	rest := b.buffers(n-100_000, 1<<20)
	defer release(rest)
	if got := x.completion(); got.Status == native.StatusOK {
		t.Errorf("a write after the seal ended with %+v", got)
	}
	if err := errors.Join(taken.Remote.Read(t.Context(), 100_000, rest...), taken.Remote.Close()); err != nil {
		t.Fatal(err)
	}
	got := slices.Concat(first[0].Bytes(), rest[0].Bytes())
	if !bytes.Equal(got, pattern(1, 0, n)) {
		t.Error("the bytes changed")
	}
	taken.Finish()
}

// TestLyingPuts: a client that does anything else than what was agreed has nothing stored.
func TestLyingPuts(t *testing.T) {
	const n = 50_000
	b := newBed(t, bedOptions{Options: Options{Deadline: 2 * time.Second}, device: true})
	for name, lie := range map[string]struct {
		do   func(x *exchange)
		want error
	}{
		"another immediate": {func(x *exchange) {
			w := x.work(n)
			w.Imm++
			x.post(w)
		}, fabric.ErrTransfer},
		"too short": {func(x *exchange) { x.post(x.work(n - 1)) }, fabric.ErrTransfer},
		"nothing":   {func(x *exchange) { x.post(x.work(0)) }, fabric.ErrTransfer},
		"too long":  {func(x *exchange) { x.post(x.work(n + 1)) }, fabric.ErrTransfer},
		"a part, and then the rest": {func(x *exchange) {
			first, rest := x.work(1000), x.work(n-1000)
			first.Op = native.OpWrite
			rest.Local, rest.Remote = rest.Local+1000, rest.Remote+1000
			x.post(first, rest)
		}, fabric.ErrTransfer},
		"no immediate": {func(x *exchange) {
			w := x.work(n)
			w.Op = native.OpWrite
			x.post(w)
		}, fabric.ErrFenced},
		"it reads": {func(x *exchange) {
			w := x.work(n)
			w.Op = native.OpRead
			x.post(w)
		}, fabric.ErrTransfer},
		"it dies": {func(x *exchange) { x.die() }, fabric.ErrFenced},
		"never":   {func(*exchange) {}, fabric.ErrFenced},
	} {
		t.Run(name, func(t *testing.T) {
			x, taken := b.clients[0].taken(fabric.ForPut, n)
			lie.do(x)
			data, err := b.readAll(taken)
			wantIs(t, "read", err, lie.want)
			if lie.want == fabric.ErrFenced {
				wantIs(t, "read", err, fabric.ErrOverdue)
			}
			if slices.ContainsFunc(data[:16], func(c byte) bool { return c != 0 }) && bytes.Equal(data, x.c.memory[guard:][:n]) {
				t.Error("the bytes were handed out")
			}
			wantIs(t, "close", taken.Remote.Close(), lie.want)
			taken.Finish()
			x.die() // its work requests end
			b.idle()
		})
	}
}

// TestMismatchKeepsTheSession: who is not the one who prepared, or says something else, is refused, and the session can
// be taken still; but only once.
func TestMismatchKeepsTheSession(t *testing.T) {
	const n = 1000
	b := newBed(t, bedOptions{device: true})
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		x := b.clients[0].preparation("alice", d, n)
		x.p.Token.Addr, x.p.Token.Size, x.p.Token.RKey = x.c.mr.Addr()+guard, n+10, x.c.mr.RKey()
		if err := x.prepare(); err != nil {
			t.Fatal(err)
		}
		cases := map[string]func(who *string, r *fabric.Readiness){
			"principal":  func(who *string, _ *fabric.Readiness) { *who = "mallory" },
			"cookie":     func(_ *string, r *fabric.Readiness) { r.Cookie++ },
			"queue pair": func(_ *string, r *fabric.Readiness) { r.QPN++ },
		}
		if d == fabric.ForGet {
			cases["key"] = func(_ *string, r *fabric.Readiness) { r.RKey++ }
			cases["before the window"] = func(_ *string, r *fabric.Readiness) { r.Addr-- }
			cases["behind the window"] = func(_ *string, r *fabric.Readiness) { r.Addr += 11 }
			cases["it wraps"] = func(_ *string, r *fabric.Readiness) { r.Addr = 1<<64 - 10 }
		}
		for name, change := range cases {
			who, r := "alice", x.readiness()
			change(&who, &r)
			_, err := b.fabric.Take(x.made.ID, who, r)
			wantIs(t, name, err, fabric.ErrNotGranted)
		}
		if err := b.cancel(x, "mallory"); err != nil {
			t.Errorf("cancel of another's: %v", err)
		}
		taken := x.take()
		_, err := b.fabric.Take(x.made.ID, "alice", x.readiness())
		wantIs(t, "taken twice", err, fabric.ErrNoSession)
		_, err = b.fabric.Take(x.made.ID, "mallory", x.readiness())
		wantIs(t, "taken twice, by another", err, fabric.ErrNotGranted)
		taken.Finish()
		_, err = b.fabric.Take(x.made.ID, "alice", x.readiness())
		wantIs(t, "finished", err, fabric.ErrNoSession)
		if err := b.cancel(x, "alice"); err != nil {
			t.Errorf("cancel of what has ended: %v", err)
		}
	}
	_, err := b.fabric.Take([16]byte{1}, "alice", fabric.Readiness{})
	wantIs(t, "unknown", err, fabric.ErrNoSession)
}

// TestRefusedPreparations: each kind that is not taken, which leaves nothing behind.
func TestRefusedPreparations(t *testing.T) {
	b := newBed(t, bedOptions{Options: Options{Staging: 1 << 20}})
	stopped, stop := context.WithCancelCause(t.Context())
	why := errors.New("why")
	stop(why)
	for name, r := range map[string]struct {
		change func(x *exchange, ctx *context.Context)
		want   error
	}{
		"another kind": {func(x *exchange, _ *context.Context) { x.p.Token.Kind = token.DC }, fabric.ErrUnsupportedToken},
		"a DC token":   {func(x *exchange, _ *context.Context) { x.p.Token.HipRC = false }, fabric.ErrUnsupportedToken},
		"no bytes":     {func(x *exchange, _ *context.Context) { x.p.Bytes = 0 }, fabric.ErrWindow},
		"negative":     {func(x *exchange, _ *context.Context) { x.p.Bytes = -1 }, fabric.ErrWindow},
		"2 GiB":        {func(x *exchange, _ *context.Context) { x.p.Bytes = 1 << 31 }, fabric.ErrTooLarge},
		"the window":   {func(x *exchange, _ *context.Context) { x.p.Token.Size = 999 }, fabric.ErrTooLarge},
		"staging": {func(x *exchange, _ *context.Context) {
			x.p.Direction, x.p.Bytes = fabric.ForPut, 1<<20+1
		}, fabric.ErrTooLarge},
		"another's GID": {func(x *exchange, _ *context.Context) { x.p.Token.GID[15]++ }, fabric.ErrNotGranted},
		"no GID":        {func(x *exchange, _ *context.Context) { x.p.Token.GID = [16]byte{} }, fabric.ErrNotGranted},
		"a long number": {func(x *exchange, _ *context.Context) { x.p.Token.QPN = 1 << 24 }, fabric.ErrNotGranted},
		"a long PSN":    {func(x *exchange, _ *context.Context) { x.p.PSN = 1 << 24 }, fabric.ErrNotGranted},
		"a PUT's number": {func(x *exchange, _ *context.Context) {
			x.p.Direction, x.p.Token.QPN = fabric.ForPut, 1<<24
		}, fabric.ErrNotGranted},
		"a request's end": {func(_ *exchange, ctx *context.Context) { *ctx = stopped }, why},
	} {
		x := b.clients[0].preparation("alice", fabric.ForGet, 1000)
		ctx := t.Context()
		r.change(x, &ctx)
		_, err := b.fabric.Prepare(ctx, x.p)
		wantIs(t, name, err, r.want)
		if x.held.open.Load() {
			t.Errorf("%s: what is held is open", name)
		}
		b.idle()
	}
	_, err := b.fabric.Open(t.Context(), token.Descriptor{}, fabric.Grant{})
	wantIs(t, "open", err, fabric.ErrUnsupportedToken)
	b.nic.PortDown("rail")
	b.soon("the rail is down", func() bool { r := b.fabric.Rails(); return len(r) == 1 && !r[0].Up && r[0].Reason != "" })
	x := b.clients[0].preparation("alice", fabric.ForPut, 1000)
	wantIs(t, "no rail", x.prepare(), fabric.ErrNoFabric)
	b.idle()
}

// TestLimits: sessions and staging memory are refused beyond their limits, and come back.
func TestLimits(t *testing.T) {
	b := newBed(t, bedOptions{Options: Options{Sessions: 64, Staging: int(10 * page)}})
	var open []*exchange
	for _, who := range []string{"alice", "carol", "dave", "erin"} {
		for range 16 {
			open = append(open, b.clients[0].prepared(who, fabric.ForGet, 1000))
		}
		if who == "alice" {
			wantIs(t, "one more of alice", b.clients[1].preparation(who, fabric.ForGet, 1000).prepare(), fabric.ErrLimit)
		}
	}
	wantIs(t, "one more", b.clients[1].preparation("bob", fabric.ForGet, 1000).prepare(), fabric.ErrLimit)
	if err := b.cancel(open[3], "alice"); err != nil {
		t.Error(err)
	}
	open[3] = b.clients[1].prepared("bob", fabric.ForGet, 1000)
	for _, x := range open {
		if err := b.cancel(x, x.who); err != nil {
			t.Error(err)
		}
	}
	b.idle()
	puts := []*exchange{
		b.clients[0].prepared("alice", fabric.ForPut, 4*page), b.clients[0].prepared("carol", fabric.ForPut, 3*page-1),
		b.clients[0].prepared("dave", fabric.ForPut, 2*page+1),
	}
	wantIs(t, "a byte more", b.clients[0].preparation("erin", fabric.ForPut, 1).prepare(), fabric.ErrLimit)
	if err := b.cancel(puts[1], "carol"); err != nil {
		t.Error(err)
	}
	b.soon("a run is back", func() bool { return b.fabric.Stats().MappedBytes == 7*page })
	wantIs(t, "more than is free", b.clients[0].preparation("erin", fabric.ForPut, 3*page+1).prepare(), fabric.ErrLimit)
	again := b.clients[0].prepared("carol", fabric.ForPut, 3*page)
	if again.made.Addr != puts[1].made.Addr {
		t.Error("not the memory that was free")
	}
	if again.made.RKey == puts[1].made.RKey {
		t.Error("the key opens it still")
	}
}

// TestStagingOfOnePrincipal: one PUT may be as large as the memory, and several of a principal leave half of it to
// others.
func TestStagingOfOnePrincipal(t *testing.T) {
	b := newBed(t, bedOptions{Options: Options{Sessions: 64, Staging: int(10 * page)}})
	c := b.clients[0]
	all := c.prepared("alice", fabric.ForPut, 10*page)
	if err := b.cancel(all, "alice"); err != nil {
		t.Error(err)
	}
	b.idle()
	b.soon("the run is back", func() bool { return b.fabric.Stats().MappedBytes == 0 })
	first, second := c.prepared("alice", fabric.ForPut, 3*page), c.prepared("alice", fabric.ForPut, 2*page)
	wantIs(t, "a byte beyond half", c.preparation("alice", fabric.ForPut, 1).prepare(), fabric.ErrLimit)
	c.prepared("alice", fabric.ForGet, 1000)
	c.prepared("bob", fabric.ForPut, 5*page)
	for _, x := range []*exchange{first, second} {
		if err := b.cancel(x, "alice"); err != nil {
			t.Error(err)
		}
	}
	b.soon("runs are back", func() bool { return b.fabric.Stats().MappedBytes == 5*page })
	c.prepared("alice", fabric.ForPut, 5*page)
}

// TestExpiry: a session that nobody takes ends by itself.
func TestExpiry(t *testing.T) {
	b := newBed(t, bedOptions{Options: Options{Prepared: shortly}})
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		before := b.nic.Counters()
		x := b.clients[0].prepared("alice", d, 1000)
		b.idle()
		b.soon("its objects are gone", func() bool {
			now := b.nic.Counters()
			return now.QPs == before.QPs+1 && now.MRs == before.MRs && now.PDs == before.PDs // the client's own
		})
		if x.held.open.Load() {
			t.Error("what is held is open")
		}
		_, err := b.fabric.Take(x.made.ID, "alice", x.readiness())
		wantIs(t, "take", err, fabric.ErrNoSession)
	}
	if s := b.fabric.Stats(); s.Lapsed != 2 {
		t.Errorf("counters %+v", s)
	}
}

// TestTwoClients: sessions at once do not see each other's bytes, and the key of one opens nothing to another.
func TestTwoClients(t *testing.T) {
	const n = 100_000
	b := newBed(t, bedOptions{})
	one, two := b.clients[0].prepared("alice", fabric.ForPut, n), b.clients[1].prepared("bob", fabric.ForPut, n)
	copy(one.c.memory[guard:], pattern(1, 0, n))
	copy(two.c.memory[guard:], pattern(2, 0, n))
	thief := b.clients[1].prepared("bob", fabric.ForPut, n)
	stolen := thief.work(n)
	stolen.Remote, stolen.RKey = one.made.Addr, one.made.RKey
	thief.post(stolen)
	if got := thief.completion(); got.Status == native.StatusOK {
		t.Error("another's key was good")
	}
	t1, t2 := one.take(), two.take()
	two.post(two.work(n))
	one.post(one.work(n))
	for i, taken := range []*fabric.Taken{t1, t2} {
		data, err := b.readAll(taken)
		if err := errors.Join(err, taken.Remote.Close()); err != nil || !bytes.Equal(data, pattern(int64(i+1), 0, n)) {
			t.Errorf("client %d: %v, or other bytes", i+1, err)
		}
		taken.Finish()
	}
	again := b.clients[1].preparation("mallory", fabric.ForGet, n)
	again.p.Token.QPN, again.p.Token.GID = one.made.QPN, one.made.GID // this node's own, as it was
	wantIs(t, "this node's address", again.prepare(), fabric.ErrNotGranted)
}

// TestDeadClient: a GET to a queue pair that is gone ends, and well before for ever.
func TestDeadClient(t *testing.T) {
	b := newBed(t, bedOptions{device: true})
	x, taken := b.clients[0].taken(fabric.ForGet, 70_000)
	x.die()
	all := b.buffers(70_000, 1<<20)
	defer release(all)
	wantIs(t, "write", taken.Remote.Write(t.Context(), 0, all...), fabric.ErrTransfer)
	if b.nic != nil && b.nic.Owned(all[0].Bytes()) {
		t.Error("returned while the adapter has the buffer")
	}
	wantIs(t, "close", taken.Remote.Close(), fabric.ErrTransfer)
	taken.Finish()
}

// TestWindow: bounds, directions, vectors, and the end, which are those of every fabric.
func TestWindow(t *testing.T) {
	const n = 9000
	b := newBed(t, bedOptions{device: true})
	all := b.buffers(3*3000, 3000)
	defer release(all)
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		x := b.clients[0].prepared("alice", d, n)
		copy(x.c.memory, pattern(5, 0, memoryBytes))
		act, other := func(t *fabric.Taken) func(context.Context, int64, ...arena.Buffer) error { return t.Remote.Write },
			func(t *fabric.Taken) func(context.Context, int64, ...arena.Buffer) error { return t.Remote.Read }
		if d == fabric.ForPut {
			act, other = other, act
			x.post(x.work(n))
		} else {
			x.listen()
		}
		taken := x.take()
		for _, off := range []int64{-1, -4096, n - 2999, n, n + 1, 1 << 40, 1<<63 - 1, -1 << 63} {
			wantIs(t, "outside", act(taken)(t.Context(), off, all[0]), fabric.ErrTransfer)
		}
		wantIs(t, "wrong direction", other(taken)(t.Context(), 0, all[0]), fabric.ErrTransfer)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantIs(t, "canceled before", act(taken)(ctx, 0, all[0]), context.Canceled)
		if err := act(taken)(t.Context(), n); err != nil {
			t.Errorf("nothing: %v", err)
		}
		for i, buffer := range all {
			copy(buffer.Bytes(), pattern(8, int64(i)*3000, 3000))
		}
		if err := act(taken)(t.Context(), 0, all...); err != nil {
			t.Errorf("vector: %v", err)
		}
		if d == fabric.ForGet && !bytes.Equal(x.c.memory[guard:guard+n], pattern(8, 0, n)) {
			t.Error("the client's bytes differ")
		}
		for i, buffer := range all {
			if d == fabric.ForPut && !bytes.Equal(buffer.Bytes(), pattern(5, guard+int64(i)*3000, 3000)) {
				t.Errorf("bytes of buffer %d differ", i)
			}
		}
		if err := taken.Remote.Close(); err != nil {
			t.Error(err)
		}
		wantIs(t, "closed twice", taken.Remote.Close(), fabric.ErrTransfer)
		wantIs(t, "after close", act(taken)(t.Context(), 0, all[0]), fabric.ErrTransfer)
		taken.Finish()
		b.idle()
	}
}

// TestLinkLocal: a client whose queue pair has a link-local address is reached from the rail's, by the rail of its HTTP
// connection.
func TestLinkLocal(t *testing.T) {
	const n = 5000
	b := newBed(t, bedOptions{device: true})
	port := b.set.Ports()[0]
	device, index := "one", 2
	if onDevice() {
		device, index = port.Device, 0
	}
	c := b.client(device, index)
	if at := netip.AddrFrom16(c.gid); !at.IsLinkLocalUnicast() {
		t.Skipf("entry %d is %v", index, at)
	}
	copy(c.memory[guard:], pattern(3, 0, n))
	x := c.preparation("alice", fabric.ForPut, n)
	x.p.Local = port.Address()
	if err := x.prepare(); err != nil {
		t.Fatal(err)
	}
	taken := x.take()
	x.post(x.work(n))
	data, err := b.readAll(taken)
	if err := errors.Join(err, taken.Remote.Close()); err != nil || !bytes.Equal(data, pattern(3, 0, n)) {
		t.Errorf("%v, or other bytes", err)
	}
	taken.Finish()
	if !onDevice() {
		wantIs(t, "by no rail", c.preparation("alice", fabric.ForGet, n).prepare(), fabric.ErrNoFabric)
	}
}

// TestUnfinishedGets: the client is not told of bytes that are not all there, or that were given up.
func TestUnfinishedGets(t *testing.T) {
	const n = 200_000
	b := newBed(t, bedOptions{device: true})
	all := b.buffers(n, 1<<20)
	defer release(all)
	for name, do := range map[string]func(*fabric.Taken) error{
		"nothing": func(*fabric.Taken) error { return nil },
		"a part":  func(taken *fabric.Taken) error { return taken.Remote.Write(t.Context(), 0, all[0].Slice(0, 1000)) },
		"aborted": func(taken *fabric.Taken) error {
			err := taken.Remote.Write(t.Context(), 0, all...)
			taken.Remote.(fabric.Aborter).Abort()
			return err
		},
		"finished without an end": func(taken *fabric.Taken) error {
			err := taken.Remote.Write(t.Context(), 0, all[0].Slice(0, 1000))
			taken.Finish()
			return err
		},
	} {
		x, taken := b.clients[0].taken(fabric.ForGet, n)
		x.listen()
		if err := do(taken); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		err := taken.Remote.Close()
		wantIs(t, name, err, fabric.ErrTransfer)
		if errors.Is(err, fabric.ErrFenced) {
			t.Errorf("%s: nobody cut it off: %v", name, err)
		}
		taken.Finish()
		var any [4]native.Completion
		if n, err := x.c.cq.Poll(any[:]); err != nil || n != 0 {
			t.Errorf("%s: the client heard %+v: %v", name, any[:n], err)
		}
	}
}
