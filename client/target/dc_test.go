package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const dcTestKey = 0x1122334455667788

// dcBed is a DC on fake1 and fake2, and a server's DCI on fake0.
type dcBed struct {
	t       *testing.T
	nic     *fakeverbs.NIC
	devices *Devices
	device  *native.Device
	pd      *native.PD
	cq      *native.CQ
	local   []byte
	mr      *native.MR
}

func newDCBed(t *testing.T, o fakeverbs.Options) *dcBed {
	t.Helper()
	if o.Devices == nil {
		o.Devices = []fakeverbs.Device{{}, {}, {}}
	}
	b := &dcBed{t: t, nic: fakeverbs.New(t, o), local: make([]byte, 1<<16)}
	var err error
	must := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	b.devices, err = OpenDevices(b.nic.Library(), []string{"fake1", "fake2"})
	must()
	err = b.nic.Library().DC()
	must()
	b.device, err = b.nic.Library().OpenDevice("fake0")
	must()
	b.pd, err = b.device.NewPD()
	must()
	b.cq, err = b.device.NewCQ(64)
	must()
	b.mr, err = b.pd.Register(b.local, native.LocalWrite)
	must()
	t.Cleanup(func() {
		for _, close := range []func() error{b.mr.Close, b.cq.Close, b.pd.Close, b.device.Close, b.devices.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

func (b *dcBed) open(change ...func(*DCOptions)) *DC {
	b.t.Helper()
	o := DCOptions{Key: dcTestKey}
	for _, f := range change {
		f(&o)
	}
	c, err := OpenDC(b.devices, o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return c
}

func (b *dcBed) register(c *DC, n int) *DCRegion {
	b.t.Helper()
	r, err := c.Register(WrapMemory(make([]byte, n)))
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *dcBed) grant(r *DCRegion, off, n int64) *DCGrant {
	b.t.Helper()
	g, err := r.Grant(off, n)
	if err != nil {
		b.t.Fatal(err)
	}
	return g
}

// move is what a server does with a token: one work request by a DCI of its own, with a READ behind it, which tells how
// it ended.
func (b *dcBed) move(g *DCGrant, op native.Opcode, key uint64) native.Status {
	b.t.Helper()
	d := g.Descriptor()
	path := native.Path{Port: 1, GIDIndex: 1, HopLimit: 64, Timeout: 14, Retries: 7, RNRRetries: 7}
	dci, err := b.pd.NewDCI(b.cq, native.PairOptions{Depth: 4})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := dci.Connect(path, native.Peer{MTU: 1024, Reads: 1}); err != nil {
		b.t.Fatal(err)
	}
	ah, err := b.pd.NewAddress(path, native.PeerPort{GID: d.GID, HasGID: d.HasGID, LID: d.LID})
	if err != nil {
		b.t.Fatal(err)
	}
	to := native.Destination{Address: ah, DCT: d.QPN, Key: key}
	work := native.Work{ID: 1, Local: b.mr.Addr(), LKey: b.mr.LKey(), Remote: d.Addr, RKey: d.RKey, Length: uint32(d.Size),
		Op: op, Signal: true}
	if n, err := dci.Post(to, []native.Work{work}); n != 1 || err != nil {
		b.t.Fatal(n, err)
	}
	var done [1]native.Completion
	b.nic.Await("a completion", func() bool {
		n, err := b.cq.Poll(done[:])
		if err != nil {
			b.t.Error(err)
		}
		return n == 1
	})
	for _, close := range []func() error{dci.Close, ah.Close} {
		if err := close(); err != nil {
			b.t.Error(err)
		}
	}
	return done[0].Status
}

func (b *dcBed) moves(what string, g *DCGrant, want native.Status) {
	b.t.Helper()
	for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
		if got := b.move(g, op, dcTestKey); got != want {
			b.t.Errorf("%s: operation %d ended with status %d, want %d", what, op, got, want)
		}
	}
}

// TestDCTargets: a token is all that a server needs, for its bytes and no others, until the region is forgotten,
// fenced, or all is closed; then the adapter refuses what comes. Memory that is registered again has other keys.
func TestDCTargets(t *testing.T) {
	b := newDCBed(t, fakeverbs.Options{Poison: true})
	c := b.open()
	r := b.register(c, 10_000)
	copy(b.local, bytes.Repeat([]byte{7}, 5000))
	g := b.grant(r, 1001, 3003)
	if tok := g.Token(); len(tok) != 81 || strings.Count(tok, ":") != 6 {
		t.Errorf("a token of %d characters", len(tok))
	}
	text := fmt.Sprintf("%v %+v %x", g.Descriptor(), c, DCOptions{Key: dcTestKey})
	if strings.Contains(text, "1122334455667788") {
		t.Error("prints the key")
	}
	b.moves("granted", g, native.StatusOK)
	want := make([]byte, 10_000)
	copy(want[1001:4004], bytes.Repeat([]byte{7}, 3003))
	if !bytes.Equal(r.Bytes(), want) {
		t.Error("other bytes changed, or these did not")
	}
	if got := b.move(g, native.OpWrite, dcTestKey+1); got != native.StatusRetry {
		t.Errorf("with another access key: status %d", got)
	}
	for _, bad := range []struct{ off, n int64 }{
		{-1, 1}, {0, -1}, {10_001, 0}, {9_999, 2}, {1 << 62, 1 << 62}, {0, 1 << 32},
	} {
		if _, err := r.Grant(bad.off, bad.n); !errors.Is(err, ErrMemory) {
			t.Errorf("window %v: %v", bad, err)
		}
	}
	empty := b.grant(r, 10_000, 0)
	empty.End()
	g.End()
	g.End() // once is enough
	if err := r.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.moves("forgotten", g, native.StatusRemoteAccess)
	if _, err := r.Grant(0, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("grant of a forgotten region: %v", err)
	}
	again, err := c.Register(r.Memory())
	if err != nil {
		t.Fatal(err)
	}
	g2 := b.grant(again, 1001, 3003)
	if g2.Descriptor().RKey == g.Descriptor().RKey {
		t.Error("the same key again")
	}
	b.moves("registered again", g2, native.StatusOK)
	b.moves("the old key", g, native.StatusRemoteAccess)
	g2.End()
	if err := again.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.moves("fenced", g2, native.StatusRemoteAccess)
	third := b.register(c, 100)
	g3 := b.grant(third, 0, 100)
	b.moves("after a fence", g3, native.StatusOK)
	if err := c.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.move(g3, native.OpWrite, dcTestKey); got == native.StatusOK {
		t.Error("written after the end")
	}
	<-c.Done()
	if _, err := third.Grant(0, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("grant after the end: %v", err)
	}
	if _, err := c.Register(WrapMemory(make([]byte, 1))); !errors.Is(err, ErrClosed) || !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("registered after the end: %v", err)
	}
}

// TestDCForgetWaits: forgetting waits for the grants that have not ended, no longer than its context.
func TestDCForgetWaits(t *testing.T) {
	b := newDCBed(t, fakeverbs.Options{})
	c := b.open()
	r := b.register(c, 100)
	g := b.grant(r, 0, 100)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.Forget(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	b.moves("still granted", g, native.StatusOK)
	if _, err := r.Grant(0, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("a new grant: %v", err)
	}
	forgotten := make(chan error, 1)
	go func() { forgotten <- r.Forget(t.Context()) }()
	g.End()
	if err := <-forgotten; err != nil {
		t.Error(err)
	}
	b.moves("forgotten", g, native.StatusRemoteAccess)
}

// TestDCAdapterThatRefuses: an adapter that does not give memory back costs the DC, by which it is out of reach all the
// same; one that keeps a target too abandons the memory. Others' registrations are undone.
func TestDCAdapterThatRefuses(t *testing.T) {
	for _, targets := range []bool{false, true} {
		t.Run(fmt.Sprintf("targets too %v", targets), func(t *testing.T) {
			b := newDCBed(t, fakeverbs.Options{Lenient: true})
			c, err := OpenDC(b.devices, DCOptions{Key: dcTestKey})
			if err != nil {
				t.Fatal(err)
			}
			r, other := b.register(c, 100), b.register(c, 100)
			g := b.grant(r, 0, 100)
			g.End()
			refuses := fakeverbs.Rule{At: fakeverbs.AtDeregMR, Device: "fake1", Times: fakeverbs.Always, Errno: syscall.EIO}
			b.nic.Inject(refuses)
			if refuses.At = fakeverbs.AtDestroyQP; targets {
				b.nic.Inject(refuses)
			}
			err = r.Fence(t.Context())
			if targets != errors.Is(err, ErrNotFenced) || (err != nil) != targets {
				t.Errorf("fence of the region: %v", err)
			}
			<-c.Done()
			if err := c.Fence(t.Context()); (err != nil) != targets {
				t.Errorf("fence of all: %v", err)
			}
			if r.Memory().Abandoned() != targets || other.Memory().Abandoned() != targets {
				t.Errorf("abandoned %v and %v", r.Memory().Abandoned(), other.Memory().Abandoned())
			}
		})
	}
}

// TestDCDriverThatHangs: a fence does not wait for a driver for ever; closing the targets is enough where that goes.
func TestDCDriverThatHangs(t *testing.T) {
	b := newDCBed(t, fakeverbs.Options{})
	c, err := OpenDC(b.devices, DCOptions{Key: dcTestKey})
	if err != nil {
		t.Fatal(err)
	}
	r := b.register(c, 100)
	g := b.grant(r, 0, 100)
	g.End()
	held := b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtDeregMR, Do: fakeverbs.Hold})
	ctx, cancel := context.WithTimeout(t.Context(), 2*fenceGrace)
	defer cancel()
	if err := r.Fence(ctx); !errors.Is(err, ErrNotFenced) {
		t.Errorf("fence of the region: %v", err)
	}
	if err := c.Fence(ctx); err != nil {
		t.Errorf("fence of all: %v", err)
	}
	if got := b.move(g, native.OpWrite, dcTestKey); got == native.StatusOK {
		t.Error("written after the fence")
	}
	held.Release()
	<-c.Done()
	if r.Memory().Abandoned() {
		t.Error("abandoned")
	}
}

// TestDCPinFails: memory that one adapter does not take is registered on none.
func TestDCPinFails(t *testing.T) {
	b := newDCBed(t, fakeverbs.Options{})
	c := b.open()
	before := b.nic.Counters()
	b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtRegMR, Device: "fake2", Errno: syscall.ENOMEM})
	_, err := c.Register(WrapMemory(make([]byte, 100)))
	if !errors.Is(err, ErrPinned) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v", err)
	}
	if now := b.nic.Counters(); now.MRs != before.MRs {
		t.Errorf("%d registrations, before %d", now.MRs, before.MRs)
	}
	b.grant(b.register(c, 100), 0, 100).End()
}

// TestDCOpenFails: whatever the adapter refuses at the opening, nothing is left, and the error says what it was.
func TestDCOpenFails(t *testing.T) {
	b := newDCBed(t, fakeverbs.Options{})
	for _, at := range []fakeverbs.Point{
		fakeverbs.AtAllocPD, fakeverbs.AtCreateCQ, fakeverbs.AtCreateChannel, fakeverbs.AtCreateQP,
		fakeverbs.AtInit, fakeverbs.AtReceive,
	} {
		before := b.nic.Counters()
		rule := b.nic.Inject(fakeverbs.Rule{At: at, Times: fakeverbs.Always, Errno: syscall.EIO})
		c, err := OpenDC(b.devices, DCOptions{Key: dcTestKey})
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("point %d: %v %v", at, c, err)
		}
		rule.Release()
		if now := b.nic.Counters(); now.Open() > before.Open()+2 { // the devices stay open
			t.Errorf("point %d: %+v", at, now)
		}
	}
	none := newDCBed(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {NoDC: true}, {NoDC: true}}})
	var missing *native.UnavailableError
	if _, err := OpenDC(none.devices, DCOptions{}); !errors.As(err, &missing) || missing.Reason != native.ReasonNoDC {
		t.Errorf("%v", err)
	}
}

// TestDCEvents: an adapter or a target that fails ends the DC, a port that goes down only the tokens for it.
func TestDCEvents(t *testing.T) {
	b := newDCBed(t, fakeverbs.Options{Lenient: true})
	c := b.open()
	r := b.register(c, 100)
	named := func() map[uint32]bool {
		seen := map[uint32]bool{}
		for range 4 {
			g := b.grant(r, 0, 1)
			seen[g.Descriptor().QPN] = true
			g.End()
		}
		return seen
	}
	if len(named()) != 2 {
		t.Error("the ports do not take turns")
	}
	b.nic.PortDown("fake1")
	b.nic.Await("the other port alone", func() bool { return len(named()) == 1 })
	b.nic.PortUp("fake1")
	b.nic.Await("both ports", func() bool { return len(named()) == 2 })
	b.nic.Kill("fake2")
	<-c.Done()
	if !errors.Is(c.Err(), errTarget) {
		t.Errorf("%v", c.Err())
	}
}

// TestDCPortRank: the port that has the address of the requests is named, else those in the subnet of the server.
func TestDCPortRank(t *testing.T) {
	b := newDCBed(t, fakeverbs.Options{Devices: []fakeverbs.Device{
		{}, {Addr: netip.MustParseAddr("10.1.0.1")}, {Addr: netip.MustParseAddr("10.2.0.1")},
	}})
	for _, x := range []struct {
		from, to string
		want     []string
	}{
		{"10.1.0.1", "10.2.0.9", []string{"10.1.0.1"}},
		{"::ffff:10.2.0.1", "10.9.0.9", []string{"10.2.0.1"}},
		{"192.0.2.1", "10.2.0.9", []string{"10.2.0.1"}},
		{"192.0.2.1", "192.0.2.2", []string{"10.1.0.1", "10.2.0.1"}},
		{"", "", []string{"10.1.0.1", "10.2.0.1"}},
	} {
		c := b.open(func(o *DCOptions) {
			o.From, _ = netip.ParseAddr(x.from)
			o.To, _ = netip.ParseAddr(x.to)
		})
		r := b.register(c, 1)
		seen := map[string]bool{}
		for range 4 {
			g := b.grant(r, 0, 1)
			seen[netip.AddrFrom16(g.Descriptor().GID).Unmap().String()] = true
			g.End()
		}
		for _, w := range x.want {
			if !seen[w] || len(seen) != len(x.want) {
				t.Errorf("from %q to %q: %v, want %v", x.from, x.to, seen, x.want)
			}
		}
	}
}
