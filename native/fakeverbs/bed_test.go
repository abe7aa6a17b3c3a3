package fakeverbs_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// end is one end of a connection, with everything that it needs.
type end struct {
	t    testing.TB
	nic  *fakeverbs.NIC // nil: a real adapter
	dev  *native.Device
	pd   *native.PD
	cq   *native.CQ
	qp   *native.QP
	mr   *native.MR
	mem  []byte
	psn  uint32
	path native.Path
	peer native.Peer
}

// endOptions shape an end.
type endOptions struct {
	device    string
	bytes     int
	qpAccess  native.Access
	memAccess native.Access
	cqDepth   int
	depth     int
	psn       uint32
	reads     int // 0 means 4
	receives  int
}

const all = native.LocalWrite | native.RemoteWrite | native.RemoteRead

// newEnd makes an end in the state QPReset; it is closed when the test ends.
func newEnd(t testing.TB, nic *fakeverbs.NIC, o endOptions) *end {
	t.Helper()
	return openEnd(t, nic, nic.Library(), o)
}

func openEnd(t testing.TB, nic *fakeverbs.NIC, library *native.Library, o endOptions) *end {
	t.Helper()
	if o.device == "" {
		o.device = "fake0"
	}
	if o.cqDepth == 0 {
		o.cqDepth = 256
	}
	if o.depth == 0 {
		o.depth = 64
	}
	if o.bytes == 0 {
		o.bytes = 1 << 16
	}
	if o.reads == 0 {
		o.reads = 4
	}
	e := &end{t: t, nic: nic, mem: make([]byte, o.bytes), psn: o.psn}
	var err error
	must := func(what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	e.dev, err = library.OpenDevice(o.device)
	must("open device")
	e.pd, err = e.dev.NewPD()
	must("new pd")
	e.cq, err = e.dev.NewCQ(o.cqDepth)
	must("new cq")
	e.qp, err = e.pd.NewQP(e.cq, native.PairOptions{Depth: o.depth, Receives: o.receives})
	must("new qp")
	e.mr, err = e.pd.Register(e.mem, o.memAccess)
	must("register")
	e.path = native.Path{Port: 1, GIDIndex: 1, HopLimit: 64, Access: o.qpAccess, PSN: o.psn, Timeout: 14, Retries: 7,
		RNRRetries: 7, MinRNRTimer: 12}
	e.peer = native.Peer{MTU: 1024, Reads: o.reads}
	t.Cleanup(e.close)
	return e
}

func (e *end) close() {
	for _, o := range []interface{ Close() error }{e.qp, e.cq, e.mr, e.pd, e.dev} {
		if err := o.Close(); err != nil {
			e.t.Errorf("close %T: %v", o, err)
		}
	}
}

func (e *end) gid() [16]byte {
	e.t.Helper()
	port, err := e.dev.Port(1)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, g := range port.GIDs {
		if g.Index == e.path.GIDIndex {
			return g.Raw
		}
	}
	e.t.Fatalf("no GID %d in %+v", e.path.GIDIndex, port.GIDs)
	return [16]byte{}
}

// connect takes two ends to QPSend, each with what the other says of itself.
func connect(a, b *end) {
	a.t.Helper()
	a.meet(b)
	b.meet(a)
	for _, e := range []*end{a, b} {
		e.ready()
		if err := e.qp.Send(e.path, e.peer); err != nil {
			e.t.Fatalf("to send: %v", err)
		}
	}
}

func (e *end) meet(o *end) {
	e.t.Helper()
	e.peer.QPN, e.peer.PSN, e.peer.GID = o.qp.Number(), o.psn, o.gid()
}

// ready takes an end to QPReady.
func (e *end) ready() {
	e.t.Helper()
	if err := e.qp.Init(e.path); err != nil {
		e.t.Fatalf("to init: %v", err)
	}
	if err := e.qp.Receive(e.path, e.peer); err != nil {
		e.t.Fatalf("to receive: %v", err)
	}
}

// pair makes two connected ends: a may do everything to b.
func pair(t testing.TB, nic *fakeverbs.NIC) (a, b *end) {
	t.Helper()
	a = newEnd(t, nic, endOptions{memAccess: native.LocalWrite, psn: 0xfffff0})
	b = newEnd(t, nic, endOptions{memAccess: all, qpAccess: native.RemoteRead | native.RemoteWrite, psn: 77})
	connect(a, b)
	return a, b
}

// write is a work request of n bytes from the beginning of the memory of a to that of b.
func write(id uint64, a, b *end, n int) native.Work {
	return native.Work{ID: id, Op: native.OpWrite, Local: a.mr.Addr(), Remote: b.mr.Addr(), Length: uint32(n),
		LKey: a.mr.LKey(), RKey: b.mr.RKey(), Signal: true}
}

func read(id uint64, a, b *end, n int) native.Work {
	w := write(id, a, b, n)
	w.Op = native.OpRead
	return w
}

func (e *end) post(work ...native.Work) {
	e.t.Helper()
	if n, err := e.qp.Post(work); err != nil || n != len(work) {
		e.t.Fatalf("post: %d of %d: %v", n, len(work), err)
	}
}

// poll takes what is there.
func (e *end) poll() []native.Completion {
	e.t.Helper()
	var list [512]native.Completion
	n, err := e.cq.Poll(list[:])
	if err != nil {
		e.t.Fatalf("poll: %v", err)
	}
	return list[:n]
}

// wait polls until n completions have come.
func (e *end) wait(n int) []native.Completion {
	e.t.Helper()
	var got []native.Completion
	more := func() bool {
		got = append(got, e.poll()...)
		return len(got) >= n
	}
	if e.nic != nil {
		e.nic.Await("completions", more)
		return got
	}
	for end := time.Now().Add(20 * time.Second); !more(); runtime.Gosched() {
		if time.Now().After(end) {
			e.t.Fatalf("waited for %d completions, got %+v", n, got)
		}
	}
	return got
}

// expect compares completions by ID and status.
func (e *end) expect(got []native.Completion, want ...native.Completion) {
	e.t.Helper()
	if len(got) != len(want) {
		e.t.Fatalf("completions %+v, want %+v", got, want)
	}
	for i, w := range want {
		if got[i].ID != w.ID || got[i].Status != w.Status || got[i].QPN != e.qp.Number() {
			e.t.Errorf("completion %d is %+v, want %+v of %d", i, got[i], w, e.qp.Number())
		}
	}
}

func ok(id uint64) native.Completion { return native.Completion{ID: id, Status: native.StatusOK} }

func ended(id uint64, s native.Status) native.Completion { return native.Completion{ID: id, Status: s} }

// fill makes bytes that differ at every place and for every seed.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}

func (e *end) state(want native.QPState) {
	e.t.Helper()
	if s, err := e.qp.State(); err != nil || s != want {
		e.t.Errorf("state %d %v, want %d", s, err, want)
	}
}

// stepped options: nothing moves by itself.
func stepped() fakeverbs.Options {
	return fakeverbs.Options{Stepped: true, Latency: 10 * time.Microsecond}
}
