package fakeverbs

// #cgo CFLAGS: -std=c11 -D_GNU_SOURCE -Wall -Wextra -O2 -I${SRCDIR}/..
// #include "fk.h"
import "C"

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock-store/penstock/native"
)

// NIC is a fake adapter: all of its devices, and the network between them.
type NIC struct {
	t       testing.TB
	o       Options
	nic     *C.struct_fk_nic
	devices map[string]C.int
	library *native.Library
	once    sync.Once
}

// awaitLimit bounds every wait: far beyond what a loaded machine needs.
const awaitLimit = 30 * time.Second

// Supported tells whether New makes one, instead of skipping the test.
func Supported() bool { return C.fk_supported() != 0 }

// New makes an adapter for a test, or skips it where that cannot be. At the end of the test it must have no
// violations and no open objects.
func New(t testing.TB, o Options) *NIC {
	t.Helper()
	if C.fk_supported() == 0 {
		t.Skip(&native.UnavailableError{Reason: native.ReasonNoHeaders})
	}
	n := &NIC{t: t, o: o, devices: map[string]C.int{}}
	n.nic = n.create()
	if len(o.Devices) == 0 {
		o.Devices = []Device{{}}
	}
	for i, d := range o.Devices {
		if err := n.add(i, d); err != nil {
			C.fk_close(n.nic)
			t.Fatal(err)
		}
	}
	library, err := native.OpenTable(C.fk_table(n.nic))
	if err != nil {
		C.fk_close(n.nic)
		t.Skip(err)
	}
	n.library = library
	t.Cleanup(n.end)
	return n
}

// Table is the address of the functions, for programs that take them as they are.
func (n *NIC) Table() uintptr { return uintptr(C.fk_table(n.nic)) }

func (n *NIC) create() *C.struct_fk_nic {
	o := n.o
	if o.TimeoutScale == 0 {
		o.TimeoutScale = 1.0 / 50
	}
	if o.Log == 0 {
		o.Log = DefaultLog
	}
	return C.fk_new(&C.struct_fk_options{
		seed:             C.uint64_t(o.Seed),
		latency:          C.uint64_t(o.Latency),
		jitter:           C.uint64_t(o.Jitter),
		packet_time:      C.uint64_t(o.PacketTime),
		flush_time:       C.uint64_t(o.FlushTime),
		timeout_scale:    C.double(o.TimeoutScale),
		stepped:          truth(o.Stepped),
		poison:           truth(o.Poison),
		keep_completions: truth(o.KeepCompletions),
		reuse_numbers:    truth(o.ReuseNumbers),
		shuffle:          truth(o.Seed != 0),
		log:              C.int(o.Log),
	})
}

func truth(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func or(value, otherwise int) C.int {
	if value == 0 {
		value = otherwise
	}
	return C.int(value)
}

func (n *NIC) add(i int, d Device) error {
	if d.Name == "" {
		d.Name = fmt.Sprintf("fake%d", i)
	}
	if !d.Addr.IsValid() {
		d.Addr = netip.AddrFrom4([4]byte{10, 99, 0, byte(i + 1)})
	}
	if d.NetDevice == "" {
		d.NetDevice = fmt.Sprintf("fk%d", i)
	}
	mtus := map[int]C.int{256: 1, 512: 2, 0: 3, 1024: 3, 2048: 4, 4096: 5}
	if mtus[d.MTU] == 0 || len(d.Name) >= C.FK_NAME || len(d.NetDevice) >= C.FK_NETDEV || 3+len(d.More) > C.FK_GIDS {
		return fmt.Errorf("%w: device %s", ErrOptions, d.Name)
	}
	c := C.struct_fk_device_options{
		guid:         C.uint64_t(0x0200_00ff_fe00_0000 + i),
		numa:         C.int(d.NUMA),
		mtu:          mtus[d.MTU],
		infiniband:   truth(d.InfiniBand),
		lid:          C.uint32_t(i + 1),
		max_qp:       or(d.MaxQP, 1<<16),
		max_cq:       1 << 16,
		max_cqe:      or(d.MaxCQDepth, 1<<22-1),
		max_wr:       or(d.MaxQPDepth, 1<<15),
		max_mr:       or(d.MaxMR, 1<<16),
		max_rd:       or(d.MaxReads, 16),
		max_mr_bytes: 1 << 62,
		max_message:  C.uint32_t(or(d.MaxMessage, 1<<30)),
		no_dc:        truth(d.NoDC),
	}
	put(c.name[:], d.Name)
	local := [16]byte{0: 0xfe, 1: 0x80, 15: byte(i + 1), 11: 0xff, 12: 0xfe, 8: 2}
	if d.InfiniBand {
		c.gids[0] = gid(local, native.GIDInfiniBand, "")
	} else {
		c.gids[0] = gid(local, native.GIDRoCEv1, d.NetDevice)
		c.gids[1] = gid(d.Addr.As16(), native.GIDRoCEv2, d.NetDevice)
		c.gids[2] = gid(local, native.GIDRoCEv2, d.NetDevice)
		for j, a := range d.More {
			c.gids[3+j] = gid(a.As16(), native.GIDRoCEv2, d.NetDevice)
		}
	}
	index := C.fk_add_device(n.nic, &c)
	if index < 0 {
		return fmt.Errorf("%w: too many devices", ErrOptions)
	}
	n.devices[d.Name] = index
	return nil
}

func put(to []C.char, text string) {
	for i := range len(text) {
		to[i] = C.char(text[i])
	}
}

func gid(raw [16]byte, kind native.GIDType, device string) C.struct_fk_gid {
	g := C.struct_fk_gid{_type: C.int(kind)}
	for i, b := range raw {
		g.raw[i] = C.uint8_t(b)
	}
	put(g.netdev[:], device)
	return g
}

// Library is the adapter as the program sees it.
func (n *NIC) Library() *native.Library { return n.library }

// end checks at the end of the test.
func (n *NIC) end() {
	n.t.Helper()
	if c := n.Counters(); c.Open() > 0 && !n.o.Lenient && !n.t.Failed() {
		n.t.Errorf("objects are open at the end: %+v", c)
	}
	for _, v := range n.Violations() {
		if !n.o.Lenient {
			n.t.Errorf("violation: %s", v)
		}
	}
	n.close()
}

// close stops the adapter. It stays in memory when objects are open, so calls that come late are harmless.
func (n *NIC) close() {
	n.once.Do(func() {
		_ = n.library.Close()
		C.fk_close(n.nic)
	})
}

// Step does the next thing that is due, and says whether there was one. Of stepped adapters only, as Run and Advance.
func (n *NIC) Step() bool { return C.fk_step(n.nic) != 0 }

// Run does everything until nothing is under way, timeouts included, and returns how many things that were.
func (n *NIC) Run() int {
	steps := 0
	for n.Step() {
		steps++
	}
	return steps
}

// Advance does what is due within d and moves the clock on by it.
func (n *NIC) Advance(d time.Duration) int { return int(C.fk_advance(n.nic, C.uint64_t(d))) }

// Now is the adapter's clock, from its making on.
func (n *NIC) Now() time.Duration { return time.Duration(C.fk_now(n.nic)) }

// Busy says whether something is under way.
func (n *NIC) Busy() bool { return C.fk_busy(n.nic) != 0 }

// Await waits until the condition holds, which it asks again whenever something has changed; the test fails when it
// takes too long. To be called on the test's goroutine.
func (n *NIC) Await(what string, holds func() bool) {
	n.t.Helper()
	for end := time.Now().Add(awaitLimit); ; {
		seen := C.fk_changes(n.nic)
		if holds() {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("waited %v for %s; %+v", awaitLimit, what, n.Counters())
		}
		// The condition may also depend on what the adapter does not see.
		C.fk_await(n.nic, seen, 2)
	}
}

// Fault is a Rule that was injected.
type Fault struct {
	n  *NIC
	id C.int
}

// Inject adds a rule.
func (n *NIC) Inject(r Rule) *Fault {
	device := C.int(-1)
	if r.Device != "" {
		device = n.device(r.Device)
	}
	if r.Times == 0 {
		r.Times = 1
	}
	return &Fault{n, C.fk_inject(n.nic, &C.struct_fk_rule_options{
		point:    C.int(r.At),
		effect:   C.int(r.Do),
		device:   device,
		qpn:      C.uint32_t(r.QPN),
		op:       C.int(r.Op),
		skip:     C.uint64_t(r.Skip),
		times:    C.int64_t(r.Times),
		err:      C.int(r.Errno),
		status:   C.uint32_t(r.Status),
		vendor:   C.uint32_t(r.Vendor),
		bytes:    C.uint64_t(r.Bytes),
		batch:    C.uint32_t(r.Batch),
		late:     truth(r.Late),
		overtake: truth(r.Overtake),
	})}
}

// Hits is how often it applied.
func (f *Fault) Hits() int { return int(C.fk_rule_hits(f.n.nic, f.id)) }

// Await waits until it has applied so often.
func (f *Fault) Await(hits int) {
	f.n.t.Helper()
	f.n.Await("a fault", func() bool { return f.Hits() >= hits })
}

// Release ends the rule and lets go of what it holds.
func (f *Fault) Release() { C.fk_rule_release(f.n.nic, f.id) }

// Remove ends the rule; what it holds stays held.
func (f *Fault) Remove() { C.fk_rule_remove(f.n.nic, f.id) }

func (n *NIC) device(name string) C.int {
	index, ok := n.devices[name]
	if !ok {
		n.t.Fatalf("no device %q", name)
	}
	return index
}

// PortDown takes a device's port down: it sends and receives nothing, and says so by an event.
func (n *NIC) PortDown(device string) { C.fk_set_port(n.nic, n.device(device), 0) }

// PortUp takes it up again.
func (n *NIC) PortUp(device string) { C.fk_set_port(n.nic, n.device(device), 1) }

// SetAddr changes the address of a device: GID 1, as RoCEv2. The zero Addr empties the entry.
func (n *NIC) SetAddr(device string, addr netip.Addr) {
	g := C.struct_fk_gid{}
	if addr.IsValid() {
		g = gid(addr.As16(), native.GIDRoCEv2, "fk")
	}
	C.fk_set_gid(n.nic, n.device(device), 1, &g)
}

// Kill loses a device: nothing moves or completes any more, and every call but those that destroy fails.
func (n *NIC) Kill(device string) { C.fk_set_fatal(n.nic, n.device(device)) }

// FailQP takes a queue pair to its error state on the adapter's own account, with its event.
func (n *NIC) FailQP(qpn uint32) { C.fk_fail_qp(n.nic, C.uint32_t(qpn)) }

func span(b []byte) (addr, length C.uint64_t) {
	return C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), C.uint64_t(len(b))
}

// Owned says whether the adapter owns any of these bytes for a work request.
func (n *NIC) Owned(b []byte) bool {
	addr, length := span(b)
	return C.fk_owned(n.nic, addr, length) != 0
}

// Mark is this moment, for Touched.
func (n *NIC) Mark() uint64 { return uint64(C.fk_mark(n.nic)) }

// Touched lists the accesses to these bytes since a Mark, in their order, at most 1024. The test fails when the log
// does not reach back so far.
func (n *NIC) Touched(b []byte, mark uint64) []Access {
	n.t.Helper()
	var list [1024]C.struct_fk_access
	addr, length := span(b)
	count := C.fk_accesses(n.nic, C.uint64_t(mark), addr, length, &list[0], C.int(len(list)))
	if count < 0 {
		n.t.Fatal("log of accesses too short: see Options.Log")
	}
	out := make([]Access, 0, int(count))
	for _, a := range list[:int(count)] {
		out = append(out, Access{Addr: uint64(a.addr), Len: uint64(a.len), Write: a.write != 0, Remote: a.remote != 0,
			QPN: uint32(a.qpn), Work: uint64(a.work)})
	}
	return out
}

// Violations lists what the program did that it must not, the first 256.
func (n *NIC) Violations() []string {
	var list []string
	for i := range int(C.fk_violations(n.nic)) {
		var text [C.FK_TEXT]C.char
		C.fk_violation(n.nic, C.int(i), &text[0])
		list = append(list, C.GoString(&text[0]))
	}
	return list
}

// Counters reads the counters.
func (n *NIC) Counters() Counters {
	var c C.struct_fk_counters
	C.fk_read_counters(n.nic, &c)
	return Counters{
		Posts: uint64(c.posts), Works: uint64(c.works), Polls: uint64(c.polls), Completions: uint64(c.completions),
		GIDs: uint64(c.gids), Packets: uint64(c.packets), Retries: uint64(c.retries), Duplicates: uint64(c.duplicates),
		NotReady: uint64(c.not_ready), Dropped: uint64(c.dropped),
		WriteBytes: uint64(c.write_bytes), ReadBytes: uint64(c.read_bytes),
		Contexts: uint64(c.contexts), PDs: uint64(c.pds), MRs: uint64(c.mrs), Channels: uint64(c.channels),
		CQs: uint64(c.cqs), QPs: uint64(c.qps), Addresses: uint64(c.ahs), SRQs: uint64(c.srqs),
	}
}

// QP reads the counters of a queue pair, also of a destroyed one.
func (n *NIC) QP(qpn uint32) (QPCounters, bool) {
	var c C.struct_fk_qp_counters
	if C.fk_read_qp_counters(n.nic, C.uint32_t(qpn), &c) == 0 {
		return QPCounters{}, false
	}
	states := map[C.int]native.QPState{0: native.QPReset, 1: native.QPInit, 2: native.QPReady, 3: native.QPSend}
	state, ok := states[c.state]
	if !ok {
		state = native.QPError
	}
	return QPCounters{Works: uint64(c.works), WriteBytes: uint64(c.write_bytes), ReadBytes: uint64(c.read_bytes),
		Owned: uint64(c.owned), State: state}, true
}
