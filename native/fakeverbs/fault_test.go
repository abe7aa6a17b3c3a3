package fakeverbs_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestCallFaults: each call fails with the errno of its rule, the times of the rule, and works again.
func TestCallFaults(t *testing.T) {
	calls := []struct {
		at   fakeverbs.Point
		name string
		call func(e *end) error
	}{
		{fakeverbs.AtOpenDevice, "ibv_open_device", func(e *end) error {
			d, err := e.nic.Library().OpenDevice("fake0")
			return closed(d, err)
		}},
		{fakeverbs.AtQueryPort, "ibv_query_port", func(e *end) error { _, err := e.dev.Port(1); return err }},
		{fakeverbs.AtAllocPD, "ibv_alloc_pd", func(e *end) error { p, err := e.dev.NewPD(); return closed(p, err) }},
		{fakeverbs.AtRegMR, "ibv_reg_mr", func(e *end) error {
			m, err := e.pd.Register(e.mem, 0)
			return closed(m, err)
		}},
		{fakeverbs.AtCreateChannel, "ibv_create_comp_channel", func(e *end) error {
			q, err := e.dev.NewCQ(1)
			return closed(q, err)
		}},
		{fakeverbs.AtCreateCQ, "ibv_create_cq", func(e *end) error { q, err := e.dev.NewCQ(1); return closed(q, err) }},
		{fakeverbs.AtCreateQP, "ibv_create_qp", func(e *end) error {
			q, err := e.pd.NewQP(e.cq, native.PairOptions{Depth: 1})
			return closed(q, err)
		}},
		{fakeverbs.AtNotify, "ibv_req_notify_cq", func(e *end) error { return e.cq.Arm() }},
		{fakeverbs.AtInit, "ibv_modify_qp", func(e *end) error { return e.qp.Init(e.path) }},
		{fakeverbs.AtReceive, "ibv_modify_qp", func(e *end) error { return e.qp.Receive(e.path, e.peer) }},
		{fakeverbs.AtSend, "ibv_modify_qp", func(e *end) error { return e.qp.Send(e.path, e.peer) }},
		{fakeverbs.AtError, "ibv_modify_qp", func(e *end) error { return e.qp.Fail() }},
		{fakeverbs.AtReset, "ibv_modify_qp", func(e *end) error { return e.qp.Reset() }},
		{fakeverbs.AtDeregMR, "ibv_dereg_mr", func(e *end) error {
			m, err := e.pd.Register(e.mem, 0)
			if err != nil {
				e.t.Fatal(err)
			}
			if err = m.Close(); err != nil {
				e.t.Cleanup(func() { _ = m.Close() })
			}
			return err
		}},
	}
	nic := fakeverbs.New(t, lenient(fakeverbs.Options{}))
	e := newEnd(t, nic, endOptions{memAccess: all})
	e.meet(e)
	for _, c := range calls {
		fault := nic.Inject(fakeverbs.Rule{At: c.at, Errno: syscall.ENOSPC, Device: "fake0", Times: 2})
		for range 2 {
			err := c.call(e)
			wantErrno(t, c.name, err, syscall.ENOSPC)
			if !strings.Contains(fmt.Sprint(err), c.name) {
				t.Errorf("%s is not named: %v", c.name, err)
			}
		}
		if err := c.call(e); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if fault.Hits() != 2 {
			t.Errorf("%s: %d hits", c.name, fault.Hits())
		}
	}
}

func closed(o interface{ Close() error }, err error) error {
	if err != nil {
		return err
	}
	return o.Close()
}

// TestPostFault: the first of the chain are posted and work, the rest are not.
func TestPostFault(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	a, b := pair(t, nic)
	works := []native.Work{write(1, a, b, 8), write(2, a, b, 8), write(3, a, b, 8), write(4, a, b, 8)}
	for _, c := range []struct{ batch, posted int }{{0, 0}, {2, 2}, {9, 3}} {
		nic.Inject(fakeverbs.Rule{At: fakeverbs.AtPost, QPN: a.qp.Number(), Errno: syscall.EAGAIN, Batch: c.batch})
		n, err := a.qp.Post(works)
		wantErrno(t, "post", err, syscall.EAGAIN)
		if n != c.posted {
			t.Errorf("batch %d: %d posted", c.batch, n)
		}
		if n > 0 {
			a.wait(n)
		}
	}
	nic.Inject(fakeverbs.Rule{At: fakeverbs.AtPost, Errno: syscall.EAGAIN, Batch: fakeverbs.WholeBatch})
	n, err := a.qp.Post(works)
	wantErrno(t, "post", err, syscall.EAGAIN)
	if n != len(works) {
		t.Errorf("whole batch: %d posted", n)
	}
	a.expect(a.wait(4), ok(1), ok(2), ok(3), ok(4))
	nic.Inject(fakeverbs.Rule{At: fakeverbs.AtPoll, Errno: syscall.EIO})
	var list [1]native.Completion
	if _, err := a.cq.Poll(list[:]); err == nil {
		t.Error("poll did not fail")
	}
}

// TestWorkFaults: each status comes to the program as its class, after the bytes of the rule have moved; what is
// behind is flushed.
func TestWorkFaults(t *testing.T) {
	for status, want := range map[fakeverbs.Status]native.Status{
		fakeverbs.LocalLength: native.StatusLocal, fakeverbs.LocalOperation: native.StatusLocal,
		fakeverbs.LocalProtection: native.StatusLocal, fakeverbs.Flushed: native.StatusFlushed,
		fakeverbs.RemoteInvalid: native.StatusRemoteOther, fakeverbs.RemoteAccess: native.StatusRemoteAccess,
		fakeverbs.RemoteOperation: native.StatusRemoteOther, fakeverbs.BadResponse: native.StatusRemoteOther,
		fakeverbs.RemoteAborted: native.StatusRemoteOther, fakeverbs.RetryExceeded: native.StatusRetry,
		fakeverbs.RNRRetryExceeded: native.StatusRetry, fakeverbs.ResponseTimeout: native.StatusRetry,
		fakeverbs.FatalError: native.StatusOther, fakeverbs.GeneralError: native.StatusOther,
	} {
		for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
			for _, n := range []int{0, 1024, 1 << 15} {
				nic := fakeverbs.New(t, stepped())
				a, b := pair(t, nic)
				fill(a.mem, 1)
				fill(b.mem, 2)
				to, from := b.mem, bytes.Clone(a.mem)
				if op == native.OpRead {
					to, from = a.mem, bytes.Clone(b.mem)
				}
				expect := append(bytes.Clone(from[:n]), to[n:]...)
				nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Op: op, Skip: 1, Status: status, Vendor: 99, Bytes: n})
				first, second, third := write(1, a, b, 0), write(2, a, b, 1<<15), write(3, a, b, 100)
				first.Op, second.Op = op, op
				third.Remote += 1 << 15 // it may be executed while the READ is answered
				a.post(first, second, third)
				nic.Run()
				got := a.poll()
				a.expect(got, ok(1), ended(2, want), ended(3, native.StatusFlushed))
				if got[1].Vendor != 99 {
					t.Errorf("vendor %d", got[1].Vendor)
				}
				if !bytes.Equal(to, expect) {
					t.Errorf("status %d, op %d: other bytes moved than the first %d", status, op, n)
				}
				a.state(native.QPError)
			}
		}
	}
}

// TestCompletionFaults: short, lost, doubled, held, overtaken and late completions.
func TestCompletionFaults(t *testing.T) {
	three := func(a, b *end) []native.Work {
		return []native.Work{read(1, a, b, 5000), read(2, a, b, 5000), read(3, a, b, 5000)}
	}
	begin := func(t *testing.T, r fakeverbs.Rule) (*fakeverbs.NIC, *fakeverbs.Fault, *end, *end) {
		t.Helper()
		nic := fakeverbs.New(t, stepped())
		a, b := pair(t, nic)
		fill(b.mem, 1)
		r.At, r.Skip = fakeverbs.AtWork, 1
		fault := nic.Inject(r)
		a.post(three(a, b)...)
		nic.Run()
		return nic, fault, a, b
	}
	t.Run("short", func(t *testing.T) {
		_, _, a, b := begin(t, fakeverbs.Rule{Do: fakeverbs.Short, Bytes: 1500})
		got := a.poll()
		a.expect(got, ok(1), ok(2), ok(3))
		if got[0].Bytes != 5000 || got[1].Bytes != 1500 || got[2].Bytes != 5000 || !bytes.Equal(a.mem[:5000], b.mem[:5000]) {
			t.Errorf("completions %+v", got)
		}
		nic := a.nic
		nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Short, Bytes: 1500})
		clear(a.mem)
		a.post(read(4, a, b, 5000))
		nic.Run()
		a.expect(a.poll(), ok(4))
		if !bytes.Equal(a.mem[:5000], append(bytes.Clone(b.mem[:1500]), make([]byte, 3500)...)) {
			t.Error("more or less than the short READ's bytes moved")
		}
	})
	t.Run("lost", func(t *testing.T) {
		_, _, a, _ := begin(t, fakeverbs.Rule{Do: fakeverbs.Lose})
		a.expect(a.poll(), ok(1), ok(3))
	})
	t.Run("twice", func(t *testing.T) {
		_, _, a, _ := begin(t, fakeverbs.Rule{Do: fakeverbs.Twice})
		a.expect(a.poll(), ok(1), ok(2), ok(2), ok(3))
	})
	t.Run("held", func(t *testing.T) {
		nic, fault, a, _ := begin(t, fakeverbs.Rule{Do: fakeverbs.Hold})
		a.expect(a.poll(), ok(1))
		if !nic.Owned(a.mem) {
			t.Error("not owned")
		}
		fault.Release()
		a.expect(a.poll(), ok(2), ok(3))
	})
	t.Run("overtaken", func(t *testing.T) {
		_, fault, a, _ := begin(t, fakeverbs.Rule{Do: fakeverbs.Hold, Overtake: true})
		a.expect(a.poll(), ok(1), ok(3))
		fault.Release()
		a.expect(a.poll(), ok(2))
	})
	t.Run("held over a reset", func(t *testing.T) {
		_, fault, a, _ := begin(t, fakeverbs.Rule{Do: fakeverbs.Hold})
		if err := a.qp.Reset(); err != nil {
			t.Fatal(err)
		}
		fault.Release()
		a.expect(a.poll())
	})
	t.Run("late", func(t *testing.T) {
		nic, fault, a, b := begin(t, fakeverbs.Rule{Do: fakeverbs.Hold, Late: true})
		for _, e := range []*end{a, b} {
			if err := e.qp.Reset(); err != nil {
				t.Fatal(err)
			}
		}
		if nic.Owned(a.mem) {
			t.Error("owned after a reset")
		}
		connect(a, b)
		a.post(read(7, a, b, 100))
		nic.Run()
		fault.Release()
		a.expect(a.poll(), ok(7), ok(2))
		if nic.Owned(a.mem) {
			t.Error("owned")
		}
	})
}

// TestKeepCompletions: completions in the queue at a reset go, or stay where the option says so.
func TestKeepCompletions(t *testing.T) {
	for _, keep := range []bool{false, true} {
		o := stepped()
		o.KeepCompletions = keep
		nic := fakeverbs.New(t, o)
		a, b := pair(t, nic)
		a.post(write(1, a, b, 8))
		nic.Run()
		if err := a.qp.Reset(); err != nil {
			t.Fatal(err)
		}
		if err := b.qp.Reset(); err != nil {
			t.Fatal(err)
		}
		connect(a, b)
		a.post(write(2, a, b, 8))
		if keep {
			a.expect(a.poll(), ok(1))
		} else {
			a.expect(a.poll())
		}
		if !nic.Owned(a.mem[:8]) {
			t.Errorf("keep %v: a completion of before the reset freed a work request of after it", keep)
		}
	}
}

// TestHang: a call that hangs goes on when it is released, and nothing else waits for it.
func TestHang(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	a, b := pair(t, nic)
	c, d := pair(t, nic)
	fault := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReset, Do: fakeverbs.Hold, QPN: a.qp.Number()})
	done := make(chan error, 1)
	go func() { done <- a.qp.Reset() }()
	fault.Await(1)
	a.post(write(1, a, b, 8))
	a.expect(a.wait(1), ok(1))
	c.post(write(1, c, d, 8))
	c.expect(c.wait(1), ok(1))
	select {
	case err := <-done:
		t.Fatalf("did not hang: %v", err)
	default:
	}
	fault.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	a.state(native.QPReset)
}

// TestEvents: ports, addresses, devices and queue pairs tell what happens to them, on each open device of it.
func TestEvents(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: make([]fakeverbs.Device, 2)})
	a, _ := pair(t, nic)
	other := newEnd(t, nic, endOptions{device: "fake1"})
	next := func(want native.Event) {
		t.Helper()
		if e, err := a.dev.NextEvent(t.Context()); err != nil || e != want {
			t.Errorf("event %+v %v, want %+v", e, err, want)
		}
	}
	port := func(want native.PortState) {
		t.Helper()
		if p, err := a.dev.Port(1); err != nil || p.State != want {
			t.Errorf("port %+v %v", p, err)
		}
	}
	port(native.PortActive)
	nic.PortDown("fake0")
	nic.PortDown("fake0")
	port(native.PortDown)
	next(native.Event{Type: native.EventPortDown, Port: 1})
	nic.PortUp("fake0")
	port(native.PortActive)
	next(native.Event{Type: native.EventPortUp, Port: 1})
	nic.SetAddr("fake0", netip.MustParseAddr("192.0.2.9"))
	next(native.Event{Type: native.EventGIDs, Port: 1})
	if g := a.gid(); g != netip.MustParseAddr("192.0.2.9").As16() {
		t.Errorf("GID %x", g)
	}
	nic.FailQP(a.qp.Number())
	next(native.Event{Type: native.EventQPFatal, QPN: a.qp.Number()})
	a.state(native.QPError)
	nic.Kill("fake0")
	if e, err := a.dev.NextEvent(t.Context()); err != nil || e.Type != native.EventDeviceFatal {
		t.Errorf("event %+v %v", e, err)
	}
	wantErrno(t, "reset of a lost device", a.qp.Reset(), syscall.EIO)
	_, err := a.dev.NewPD()
	wantErrno(t, "domain of a lost device", err, syscall.EIO)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if e, err := other.dev.NextEvent(ctx); err == nil {
		t.Errorf("another device had %+v", e)
	}
}

// TestDevices: what devices say of themselves is what was asked for.
func TestDevices(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{
		{NUMA: 1, MTU: 4096, More: []netip.Addr{netip.MustParseAddr("2001:db8::1")}},
		{Name: "ib", InfiniBand: true, NUMA: -1}}})
	infos, err := nic.Library().Devices()
	if err != nil || len(infos) != 2 || infos[0].Name != "fake0" || infos[0].NUMANode != 1 || infos[1].Name != "ib" ||
		infos[1].NUMANode != -1 || infos[0].GUID == infos[1].GUID || infos[0].MaxReads != 16 || infos[0].Ports != 1 {
		t.Errorf("devices %+v %v", infos, err)
	}
	a := newEnd(t, nic, endOptions{})
	p, err := a.dev.Port(1)
	if err != nil || p.MTU != 4096 || p.Link != native.LinkEthernet || p.MaxMessage != 1<<30 {
		t.Errorf("port %+v %v", p, err)
	}
	local := [16]byte{0: 0xfe, 1: 0x80, 8: 2, 11: 0xff, 12: 0xfe, 15: 1}
	want := []native.GID{
		{Index: 0, Raw: local, Type: native.GIDRoCEv1, Network: "fk0"},
		{Index: 1, Raw: netip.MustParseAddr("10.99.0.1").As16(), Type: native.GIDRoCEv2, Network: "fk0"},
		{Index: 2, Raw: local, Type: native.GIDRoCEv2, Network: "fk0"},
		{Index: 3, Raw: netip.MustParseAddr("2001:db8::1").As16(), Type: native.GIDRoCEv2, Network: "fk0"},
	}
	if fmt.Sprint(p.GIDs) != fmt.Sprint(want) {
		t.Errorf("GIDs %+v, want %+v", p.GIDs, want)
	}
	c := newEnd(t, nic, endOptions{device: "ib", memAccess: native.LocalWrite})
	d := newEnd(t, nic, endOptions{device: "ib", memAccess: all, qpAccess: native.RemoteRead | native.RemoteWrite})
	for _, e := range []*end{c, d} {
		e.path.GIDIndex, e.peer.LID = 0, 2
	}
	connect(c, d)
	fill(c.mem, 1)
	c.post(write(1, c, d, 3000))
	c.expect(c.wait(1), ok(1))
	if !bytes.Equal(c.mem[:3000], d.mem[:3000]) {
		t.Error("memory differs")
	}
}

// TestKeys: a key that was revoked opens nothing, whatever is registered after it.
func TestKeys(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	e := newEnd(t, nic, endOptions{memAccess: all})
	seen := map[uint32]bool{}
	for range 20000 {
		m, err := e.pd.Register(e.mem, all)
		if err != nil {
			t.Fatal(err)
		}
		if m.LKey() == m.RKey() || seen[m.RKey()] || seen[m.LKey()] {
			t.Fatal("a key came twice")
		}
		seen[m.RKey()], seen[m.LKey()] = true, true
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReuseNumbers: the number of a destroyed queue pair is the next one's, if the option says so.
func TestReuseNumbers(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		nic := fakeverbs.New(t, fakeverbs.Options{ReuseNumbers: reuse})
		e := newEnd(t, nic, endOptions{})
		number := func() uint32 {
			q, err := e.pd.NewQP(e.cq, native.PairOptions{Depth: 1})
			if err != nil {
				t.Fatal(err)
			}
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			return q.Number()
		}
		if first, second := number(), number(); (first == second) != reuse {
			t.Errorf("reuse %v: %d, %d", reuse, first, second)
		}
	}
}

// TestDMABuf: a file stands for a dma-buf; peers know it by the addresses that were chosen for it.
func TestDMABuf(t *testing.T) {
	fd, err := unix.MemfdCreate("dmabuf", 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "dmabuf")
	defer file.Close()
	if err := file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	nic := fakeverbs.New(t, fakeverbs.Options{})
	a, b := pair(t, nic)
	const offset, iova, length = 5*4096 + 100, 1<<40 + 100, 9000
	m, err := b.pd.RegisterDMABuf(fd, offset, length, iova, all)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	if m.Addr() != iova {
		t.Errorf("address %x", m.Addr())
	}
	_, err = b.pd.RegisterDMABuf(fd, offset, length, iova+1, all)
	wantErrno(t, "other offset in the page", err, syscall.EINVAL)
	_, err = b.pd.RegisterDMABuf(fd, 1<<20-4096, 4097, 0, all)
	wantErrno(t, "beyond the end", err, syscall.EINVAL)
	fill(a.mem, 1)
	w := write(1, a, b, length)
	w.Remote, w.RKey = iova, m.RKey()
	a.post(w)
	a.expect(a.wait(1), ok(1))
	got := make([]byte, 1<<20)
	if _, err := file.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 1<<20)
	copy(want[offset:], a.mem[:length])
	if !bytes.Equal(got, want) {
		t.Error("memory differs")
	}
}

// recorder is a test that is told its failures.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	errors   []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Failed() bool     { return false }
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// TestStrict: objects left open, and regions closed while they are used, fail the test that does it.
func TestStrict(t *testing.T) {
	r := &recorder{TB: t}
	nic := fakeverbs.New(r, stepped())
	a, b := pair(t, nic)
	a.post(write(1, a, b, 9000))
	if err := a.mr.Close(); err != nil {
		t.Fatal(err)
	}
	nic.Run()
	a.expect(a.poll(), ended(1, native.StatusLocal))
	if v := nic.Violations(); len(v) != 1 {
		t.Errorf("violations %q", v)
	}
	r.cleanups[0]()
	if len(r.errors) != 2 {
		t.Errorf("errors %q", r.errors)
	}
}

// TestUnmapped: memory that is unmapped while it is registered is a violation, and not a crash.
func TestUnmapped(t *testing.T) {
	for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
		for _, here := range []bool{true, false} {
			nic := fakeverbs.New(t, lenient(stepped()))
			a, b := pair(t, nic)
			e, access := b, all
			if here {
				e, access = a, native.LocalWrite
			}
			mem, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE,
				syscall.MAP_ANON|syscall.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			m, err := e.pd.Register(mem, access)
			if err != nil {
				t.Fatal(err)
			}
			w := write(1, a, b, 100)
			w.Op = op
			if here {
				w.Local, w.LKey = m.Addr(), m.LKey()
			} else {
				w.Remote, w.RKey = m.Addr(), m.RKey()
			}
			a.post(w)
			if err := syscall.Munmap(mem); err != nil {
				t.Fatal(err)
			}
			nic.Run()
			a.poll()
			if len(nic.Violations()) != 1 {
				t.Errorf("op %d: violations %q", op, nic.Violations())
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestManyPairs: many threads on many queue pairs of two devices, with resets in between; the bytes are right and all
// work requests end.
func TestManyPairs(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: make([]fakeverbs.Device, 2), Seed: 3, Poison: true,
		Latency: 20 * time.Microsecond, Jitter: 50 * time.Microsecond})
	var all sync.WaitGroup
	for i := range 8 {
		a := newEnd(t, nic, endOptions{device: "fake0", memAccess: native.LocalWrite, psn: 5})
		b := newEnd(t, nic, endOptions{device: "fake1", memAccess: native.LocalWrite | native.RemoteWrite | native.RemoteRead,
			qpAccess: native.RemoteRead | native.RemoteWrite, psn: 6})
		connect(a, b)
		all.Go(func() { hammer(t, a, b, i) })
	}
	all.Wait()
}

func hammer(t *testing.T, a, b *end, seed int) {
	for round := range 30 {
		fill(a.mem, seed+round)
		clear(b.mem)
		const n = 30000
		back := read(2, a, b, n)
		back.Local += n
		if k, err := a.qp.Post([]native.Work{write(1, a, b, n), back}); k != 2 || err != nil {
			t.Errorf("post: %d %v", k, err)
			return
		}
		if round%5 == 4 {
			for _, e := range []*end{a, b} {
				if err := e.qp.Reset(); err != nil {
					t.Error(err)
				}
			}
			connect(a, b)
			continue
		}
		for got := 0; got < 2; {
			if err := a.cq.Arm(); err != nil {
				t.Error(err)
				return
			}
			list := a.poll()
			got += len(list)
			for _, c := range list {
				if c.Status != native.StatusOK {
					t.Errorf("completion %+v", c)
					return
				}
			}
			if len(list) == 0 {
				if err := a.cq.Wait(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		}
		if !bytes.Equal(a.mem[:n], b.mem[:n]) || !bytes.Equal(a.mem[:n], a.mem[n:2*n]) {
			t.Error("memory differs")
			return
		}
	}
}
