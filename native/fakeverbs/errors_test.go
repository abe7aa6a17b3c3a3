package fakeverbs_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// remoteCheck is a work request that the responder refuses.
type remoteCheck struct {
	name    string
	memory  native.Access
	pair    native.Access
	work    func(a, b *end) native.Work
	expects native.Status
}

const qpAll = native.RemoteRead | native.RemoteWrite

func remoteChecks() []remoteCheck {
	return []remoteCheck{
		{"forged key", all, qpAll, func(a, b *end) native.Work {
			w := write(1, a, b, 5000)
			w.RKey += 256
			return w
		}, native.StatusRemoteAccess},
		{"beyond the end", all, qpAll, func(a, b *end) native.Work {
			w := write(1, a, b, 5000)
			w.Remote += uint64(len(b.mem)) - 4999
			return w
		}, native.StatusRemoteAccess},
		{"read beyond the end", all, qpAll, func(a, b *end) native.Work {
			w := read(1, a, b, 5000)
			w.Remote += uint64(len(b.mem)) - 4999
			return w
		}, native.StatusRemoteAccess},
		{"before the beginning", all, qpAll, func(a, b *end) native.Work {
			w := write(1, a, b, 1)
			w.Remote--
			return w
		}, native.StatusRemoteAccess},
		{"address overflow", all, qpAll, func(a, b *end) native.Work {
			w := write(1, a, b, 5000)
			w.Remote = 1<<64 - 100
			return w
		}, native.StatusRemoteAccess},
		{"region without write", native.LocalWrite | native.RemoteRead, qpAll,
			func(a, b *end) native.Work { return write(1, a, b, 1) }, native.StatusRemoteAccess},
		{"region without read", native.LocalWrite | native.RemoteWrite, qpAll,
			func(a, b *end) native.Work { return read(1, a, b, 1) }, native.StatusRemoteAccess},
		{"queue pair without write", all, native.RemoteRead,
			func(a, b *end) native.Work { return write(1, a, b, 1) }, native.StatusRemoteOther},
		{"queue pair without read", all, native.RemoteWrite,
			func(a, b *end) native.Work { return read(1, a, b, 1) }, native.StatusRemoteOther},
		{"another domain's region", all, qpAll, func(a, b *end) native.Work {
			w := write(1, a, b, 1)
			other := a.another(endOptions{memAccess: all})
			w.Remote, w.RKey = other.mr.Addr(), other.mr.RKey()
			return w
		}, native.StatusRemoteAccess},
	}
}

// refused posts what is refused, and two behind it; both ends must fail, and no byte change.
func refused(t *testing.T, a, b *end, c remoteCheck) {
	t.Helper()
	fill(a.mem, 1)
	fill(b.mem, 2)
	here, there := bytes.Clone(a.mem), bytes.Clone(b.mem)
	bad, behind := c.work(a, b), write(2, a, b, 100)
	behind.Signal = false
	a.post(bad, behind, read(3, a, b, 100))
	a.expect(a.wait(3), ended(1, c.expects), ended(2, native.StatusFlushed), ended(3, native.StatusFlushed))
	a.state(native.QPError)
	if !bytes.Equal(a.mem, here) || !bytes.Equal(b.mem, there) {
		t.Error("memory changed")
	}
}

// TestRemoteChecks: what the responder's keys do not allow is refused, both ends fail, what was posted behind is
// flushed, and no byte changes.
func TestRemoteChecks(t *testing.T) {
	for _, c := range remoteChecks() {
		t.Run(c.name, func(t *testing.T) {
			nic := fakeverbs.New(t, fakeverbs.Options{})
			a := newEnd(t, nic, endOptions{memAccess: native.LocalWrite})
			b := newEnd(t, nic, endOptions{memAccess: c.memory, qpAccess: c.pair})
			connect(a, b)
			refused(t, a, b, c)
			b.state(native.QPError)
			if e, err := b.dev.NextEvent(t.Context()); err != nil || e.Type != native.EventQPFatal ||
				e.QPN != b.qp.Number() {
				t.Errorf("responder's event %+v %v", e, err)
			}
		})
	}
}

// TestLocalKey: the key for this end is none for peers. On some adapters both are the same.
func TestLocalKey(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	a, b := pair(t, nic)
	w := write(1, a, b, 5000)
	w.RKey = b.mr.LKey()
	a.post(w)
	a.expect(a.wait(1), ended(1, native.StatusRemoteAccess))
}

// TestZeroLength: no key is looked at when no byte moves (specification, 9.7.4.1).
func TestZeroLength(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	a, b := pair(t, nic)
	w, r := write(1, a, b, 0), read(2, a, b, 0)
	w.RKey, w.LKey, w.Remote = 1, 2, 3
	r.RKey, r.LKey, r.Remote = 1, 2, 3
	a.post(w, r)
	a.expect(a.wait(2), ok(1), ok(2))
}

// localCheck is a work request that the requester's own adapter refuses.
type localCheck struct {
	name   string
	memory native.Access
	work   func(a, b *end) native.Work
}

func localChecks() []localCheck {
	return []localCheck{
		{"no key", native.LocalWrite, func(a, b *end) native.Work {
			w := write(1, a, b, 1)
			w.LKey++
			return w
		}},
		{"remote key", native.LocalWrite, func(a, b *end) native.Work {
			w := write(1, a, b, 1)
			w.LKey = a.mr.RKey()
			return w
		}},
		{"beyond the end", native.LocalWrite, func(a, b *end) native.Work {
			w := write(1, a, b, 2000)
			w.Local += uint64(len(a.mem)) - 1999
			return w
		}},
		{"read into memory for reading", 0, func(a, b *end) native.Work { return read(1, a, b, 1) }},
	}
}

// TestLocalChecks: the requester's own key is checked before anything is sent.
func TestLocalChecks(t *testing.T) {
	tooLong := localCheck{"message too long", native.LocalWrite, func(a, b *end) native.Work {
		return write(1, a, b, 32769)
	}}
	for _, c := range append(localChecks(), tooLong) {
		t.Run(c.name, func(t *testing.T) {
			nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{{MaxMessage: 32768}}})
			a := newEnd(t, nic, endOptions{memAccess: c.memory})
			b := newEnd(t, nic, endOptions{memAccess: all, qpAccess: qpAll})
			connect(a, b)
			there := bytes.Clone(b.mem)
			a.post(c.work(a, b), write(2, a, b, 100))
			a.expect(a.wait(2), ended(1, native.StatusLocal), ended(2, native.StatusFlushed))
			if !bytes.Equal(b.mem, there) {
				t.Error("memory changed")
			}
			b.state(native.QPSend)
		})
	}
}

// TestNoAnswer: where no answer can come the work request ends after one attempt and the retries, each of 4.096 µs ×
// 2^exponent by the scale, and nothing was written.
func TestNoAnswer(t *testing.T) {
	for name, cut := range map[string]func(nic *fakeverbs.NIC, a, b *end){
		"own port down":  func(nic *fakeverbs.NIC, _, _ *end) { nic.PortDown("fake0") },
		"peer port down": func(nic *fakeverbs.NIC, _, _ *end) { nic.PortDown("fake1") },
		"peer failed": func(_ *fakeverbs.NIC, _, b *end) {
			if err := b.qp.Fail(); err != nil {
				b.t.Error(err)
			}
		},
		"peer reset": func(_ *fakeverbs.NIC, _, b *end) {
			if err := b.qp.Reset(); err != nil {
				b.t.Error(err)
			}
		},
		"peer killed":   func(nic *fakeverbs.NIC, _, _ *end) { nic.Kill("fake1") },
		"address moved": func(nic *fakeverbs.NIC, _, _ *end) { nic.SetAddr("fake1", [1]fakeverbs.Device{}[0].Addr) },
	} {
		t.Run(name, func(t *testing.T) {
			o := stepped()
			o.Devices = make([]fakeverbs.Device, 2)
			o.TimeoutScale = 0.5
			nic := fakeverbs.New(t, o)
			a := newEnd(t, nic, endOptions{memAccess: native.LocalWrite})
			b := newEnd(t, nic, endOptions{device: "fake1", memAccess: all, qpAccess: native.RemoteWrite})
			a.path.Retries = 3
			connect(a, b)
			fill(a.mem, 1)
			cut(nic, a, b)
			start := nic.Now()
			a.post(write(1, a, b, 5000), write(2, a, b, 1))
			nic.Run()
			a.expect(a.poll(), ended(1, native.StatusRetry), ended(2, native.StatusFlushed))
			if took, want := nic.Now()-start, 4*4096*time.Nanosecond<<14/2; took < want || took > want+time.Millisecond {
				t.Errorf("gave up after %v, want %v", took, want)
			}
			if !bytes.Equal(b.mem, make([]byte, len(b.mem))) {
				t.Error("memory changed")
			}
		})
	}
}

// TestNotMyPeer: a queue pair answers what comes from its peer's address with the PSN that it was told, and its
// answers go to its peer's number.
func TestNotMyPeer(t *testing.T) {
	for name, change := range map[string]func(a, b *end){
		"psn ahead":              func(a, _ *end) { a.path.PSN += 1000 },
		"psn behind":             func(a, _ *end) { a.path.PSN = (a.path.PSN - 1000) & 0xffffff },
		"peer told another psn":  func(_, b *end) { b.peer.PSN += 1000 },
		"peer has another GID":   func(_, b *end) { b.peer.GID[15]++ },
		"other type of GID":      func(a, _ *end) { a.path.GIDIndex = 0 },
		"number of nobody":       func(a, _ *end) { a.peer.QPN ^= 0x800000 },
		"peer has another queue": func(_, b *end) { b.peer.QPN ^= 0x800000 },
	} {
		t.Run(name, func(t *testing.T) {
			nic := fakeverbs.New(t, stepped())
			a := newEnd(t, nic, endOptions{memAccess: native.LocalWrite, psn: 100})
			b := newEnd(t, nic, endOptions{memAccess: all, qpAccess: native.RemoteWrite, psn: 200})
			a.meet(b)
			b.meet(a)
			change(a, b)
			a.ready()
			b.ready()
			for _, e := range []*end{a, b} {
				if err := e.qp.Send(e.path, e.peer); err != nil {
					t.Fatal(err)
				}
			}
			a.post(write(1, a, b, 5000))
			nic.Run()
			a.expect(a.poll(), ended(1, native.StatusRetry))
			a.state(native.QPError)
			b.state(native.QPSend)
		})
	}
}

// TestReadsAtOnce: no more READs are under way than the requester was told, and the responder refuses more than it
// was told.
func TestReadsAtOnce(t *testing.T) {
	nic := fakeverbs.New(t, stepped())
	a, b := pair(t, nic)
	held := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReadRequest, Do: fakeverbs.Hold, Times: fakeverbs.Always})
	var works []native.Work
	var want []native.Completion
	for i := range 20 {
		works = append(works, read(uint64(i), a, b, 3000))
		want = append(want, ok(uint64(i)))
	}
	a.post(works...)
	nic.Advance(100 * time.Microsecond)
	if held.Hits() != 4 {
		t.Errorf("%d READs under way, want 4", held.Hits())
	}
	held.Release()
	nic.Run()
	a.expect(a.poll(), want...)

	greedy := newEnd(t, nic, endOptions{memAccess: native.LocalWrite, reads: 5})
	meek := newEnd(t, nic, endOptions{memAccess: all, qpAccess: native.RemoteRead, reads: 4})
	connect(greedy, meek)
	for i := range 5 {
		greedy.post(read(uint64(i), greedy, meek, 1<<16))
	}
	nic.Run()
	greedy.expect(greedy.poll(), ok(0), ok(1), ok(2), ok(3), ended(4, native.StatusRemoteOther))
}

// TestGhost: a PSN just behind the expected one is that of a packet that came before. So the specification has it, and
// so it is acknowledged and thrown away: PSNs must be told right.
func TestGhost(t *testing.T) {
	nic := fakeverbs.New(t, stepped())
	a := newEnd(t, nic, endOptions{memAccess: native.LocalWrite, psn: 100})
	b := newEnd(t, nic, endOptions{memAccess: all, qpAccess: native.RemoteWrite, psn: 200})
	a.path.PSN--
	connect(a, b)
	fill(a.mem, 1)
	a.post(write(1, a, b, 1))
	nic.Run()
	a.expect(a.poll(), ok(1))
	if b.mem[0] != 0 {
		t.Error("executed")
	}
}
