//go:build cgo

package native_test

import (
	"bytes"
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// enough is how long a test waits for what must come: guests are slow.
const enough = 30 * time.Second

// onDevice: the tests are to run on an adapter of this machine, and there must be one. Else they run on a faked one.
func onDevice() bool { return os.Getenv("PENSTOCK_TEST_VERBS") == "device" }

func open(t *testing.T) *native.Library {
	t.Helper()
	return openWith(t, fakeverbs.Options{Poison: true})
}

// openWith is for tests that need more of a faked adapter.
func openWith(t *testing.T, o fakeverbs.Options) *native.Library {
	t.Helper()
	if !onDevice() {
		return fakeverbs.New(t, o).Library()
	}
	library, err := native.Open(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, library.Close()) })
	return library
}

// device opens the first adapter with an active port.
func device(t *testing.T) (*native.Device, native.PortInfo, native.GID) {
	t.Helper()
	return deviceOf(t, open(t))
}

func deviceOf(t *testing.T, library *native.Library) (*native.Device, native.PortInfo, native.GID) {
	t.Helper()
	infos, err := library.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		d, err := library.OpenDevice(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		for number := 1; number <= d.Info().Ports; number++ {
			port, err := d.Port(number)
			if err != nil {
				t.Fatal(err)
			}
			if gid, ok := best(port); ok && port.State == native.PortActive {
				t.Cleanup(func() { closes(t, d.Close()) })
				return d, port, gid
			}
		}
		closes(t, d.Close())
	}
	t.Fatalf("no active port among %d devices", len(infos))
	return nil, native.PortInfo{}, native.GID{}
}

// best is a GID for a loopback: an IPv4 one where there is one, as any other needs a working neighbour discovery.
func best(port native.PortInfo) (native.GID, bool) {
	mapped := append(make([]byte, 10), 0xff, 0xff)
	for _, gid := range port.GIDs {
		if port.Link == native.LinkInfiniBand || gid.Type == native.GIDRoCEv2 && bytes.HasPrefix(gid.Raw[:], mapped) {
			return gid, true
		}
	}
	return native.GID{}, false
}

// closes reports an error of a close.
func closes(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("close: %v", err)
	}
}

// end is one of a pair: a queue pair with a CQ, and memory that the other may use as rights say.
type end struct {
	t       *testing.T
	cq      *native.CQ
	qp      *native.QP
	memory  []byte
	mr      *native.MR
	path    native.Path
	pending []native.Completion
}

// pair is two connected queue pairs of one device.
type pair struct {
	device    *native.Device
	pd        *native.PD
	near, far *end
	port      native.PortInfo
	gid       native.GID
}

const (
	memoryBytes = 1 << 20
	depth       = 64
	all         = native.LocalWrite | native.RemoteWrite | native.RemoteRead
)

// newPair makes a pair of which near acts on far's memory as the rights of far allow.
func newPair(t *testing.T, far native.Access) *pair {
	t.Helper()
	d, port, gid := device(t)
	return newPairOn(t, d, port, gid, far)
}

func newPairOn(t *testing.T, d *native.Device, port native.PortInfo, gid native.GID, far native.Access) *pair {
	t.Helper()
	pd, err := d.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, pd.Close()) })
	p := &pair{device: d, pd: pd, port: port, gid: gid}
	p.near = p.newEnd(t, native.LocalWrite, 0)
	p.far = p.newEnd(t, far, far&^native.LocalWrite)
	p.connect(t)
	return p
}

func mapMemory(t *testing.T, size int) []byte {
	t.Helper()
	memory, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, syscall.Munmap(memory)) })
	return memory
}

func (p *pair) newEnd(t *testing.T, memory, remote native.Access) *end {
	t.Helper()
	e := &end{t: t, memory: mapMemory(t, memoryBytes)}
	var err error
	if e.mr, err = p.pd.Register(e.memory, memory); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, e.mr.Close()) })
	if e.cq, err = p.device.NewCQ(4 * depth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, e.cq.Close()) })
	if e.qp, err = p.pd.NewQP(e.cq, native.PairOptions{Depth: depth, Receives: 2}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, e.qp.Close()) })
	e.path = native.Path{
		Port: p.port.Number, GIDIndex: p.gid.Index, HopLimit: 64, Access: remote, PSN: 0xfffff0, // it wraps
		Timeout: 18, Retries: 7, RNRRetries: 7, MinRNRTimer: 12, // 1 s
	}
	return e
}

// connect takes both ends from QPReset to QPSend.
func (p *pair) connect(t *testing.T) {
	t.Helper()
	for _, e := range []*end{p.near, p.far} {
		other := p.far
		if e == p.far {
			other = p.near
		}
		peer := native.Peer{
			QPN: other.qp.Number(), PSN: other.path.PSN, GID: p.gid.Raw, LID: p.port.LID, MTU: p.port.MTU, Reads: 1,
		}
		e.change(native.QPInit, e.qp.Init(e.path))
		e.change(native.QPReady, e.qp.Receive(e.path, peer))
		e.change(native.QPSend, e.qp.Send(e.path, peer))
	}
}

// change checks that a change of state went well, and that the adapter says so.
func (e *end) change(want native.QPState, err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatalf("to state %d: %v", want, err)
	}
	if state, err := e.qp.State(); err != nil || state != want {
		e.t.Fatalf("state %d %v, want %d", state, err, want)
	}
}

// work is one between the same offset of both ends' memory.
func (p *pair) work(id uint64, op native.Opcode, offset, length int) native.Work {
	return native.Work{
		ID: id, Op: op, Length: uint32(length), Signal: true,
		Local: p.near.mr.Addr() + uint64(offset), LKey: p.near.mr.LKey(),
		Remote: p.far.mr.Addr() + uint64(offset), RKey: p.far.mr.RKey(),
	}
}

func (e *end) post(work ...native.Work) {
	e.t.Helper()
	if n, err := e.qp.Post(work); n != len(work) || err != nil {
		e.t.Fatalf("post: %d of %d: %v", n, len(work), err)
	}
}

// completion is the next one; the end arms the CQ and waits where it has none.
func (e *end) completion() native.Completion {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), enough)
	defer cancel()
	for len(e.pending) == 0 {
		if e.take(); len(e.pending) > 0 {
			break
		}
		if err := e.cq.Arm(); err != nil {
			e.t.Fatal(err)
		}
		if e.take(); len(e.pending) > 0 {
			break
		}
		if err := e.cq.Wait(ctx); err != nil {
			e.t.Fatalf("wait: %v", err)
		}
	}
	c := e.pending[0]
	e.pending = e.pending[1:]
	return c
}

func (e *end) take() {
	e.t.Helper()
	var some [16]native.Completion
	n, err := e.cq.Poll(some[:])
	if err != nil {
		e.t.Fatal(err)
	}
	for _, c := range some[:n] {
		if c.QPN != e.qp.Number() {
			e.t.Errorf("completion %d of QP %#x, want %#x", c.ID, c.QPN, e.qp.Number())
		}
	}
	e.pending = append(e.pending, some[:n]...)
}

// want takes a completion and compares it.
func (e *end) want(id uint64, status native.Status) native.Completion {
	e.t.Helper()
	c := e.completion()
	if c.ID != id || c.Status != status {
		e.t.Fatalf("completion of %d with status %d (vendor %#x), want %d with %d", c.ID, c.Status, c.Vendor, id, status)
	}
	return c
}

// fill writes a pattern that differs at each offset.
func fill(memory []byte, seed byte) {
	for i := range memory {
		memory[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ seed
	}
}

// merged is a copy of base in which [offset, offset+n) is that of other.
func merged(base, other []byte, offset, n int) []byte {
	m := bytes.Clone(base)
	copy(m[offset:offset+n], other[offset:offset+n])
	return m
}

func wantBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d is %#x, want %#x", what, i, got[i], want[i])
		}
	}
}
