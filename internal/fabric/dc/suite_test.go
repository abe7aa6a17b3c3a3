package dc_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/dc"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const suiteKey = 0x8877665544332211

// The fake adapter's devices: fake0 and fake1 are the server's rails, fake2 and fake3 the client's.
var serverDevices, clientDevices = []string{"fake0", "fake1"}, []string{"fake2", "fake3"}

func suiteNIC(t testing.TB) (*fakeverbs.NIC, *target.Devices) {
	t.Helper()
	nic := fakeverbs.New(t, fakeverbs.Options{Poison: true, Devices: []fakeverbs.Device{{}, {}, {}, {}}})
	d, err := target.OpenDevices(nic.Library(), clientDevices)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return nic, d
}

// railed is a fabric with rails of its own.
type railed struct {
	*dc.Fabric
	rails *rails.Set
}

func open(nic *fakeverbs.NIC, memory []byte) (*railed, error) {
	opened, err := rails.Open(rails.Options{Library: nic.Library(), Devices: serverDevices, Memory: memory})
	if err != nil {
		return nil, err
	}
	set, err := rails.New(opened, nil)
	if err != nil {
		return nil, err
	}
	pools, err := set.Pools(initiator.PoolOptions{Lanes: 16, Linger: time.Millisecond})
	if err != nil {
		return nil, errors.Join(err, set.Close())
	}
	here := netip.MustParsePrefix("10.99.0.0/16")
	o := dc.Options{Key: suiteKey, Permits: func(gid [16]byte, _ netip.Addr) bool {
		return here.Contains(netip.AddrFrom16(gid).Unmap())
	}}
	for _, p := range pools {
		o.Rails = append(o.Rails, dc.Rail{Name: p.Name(), Up: p.Up, Reach: p.Reaches, Pool: p})
	}
	return &railed{dc.New(o), set}, nil
}

// Close closes the fabric and then the rails.
func (f *railed) Close() error { return errors.Join(f.Fabric.Close(), f.rails.Close()) }

func TestMain(m *testing.M) { fabrictest.Main(m, fabrictest.Bed{}) }

// TestConformance: a token says all that the server knows of a client.
func TestConformance(t *testing.T) {
	nic, devices := suiteNIC(t)
	const noSession = "the server knows of no session: "
	fabrictest.Run(t, fabrictest.Bed{
		Name: dc.Name, OneProcess: true, Stop: dc.Stop, Attach: fabrictest.AttachDC(devices, suiteKey),
		New: func(_ *fabric.Ledger, memory []byte) (fabrictest.Fabric, error) { return open(nic, memory) },
		Without: map[string]string{
			"ForgedTokens":     noSession + "it cannot tell a forged window, the client's adapter does (TestForgedWindows)",
			"RF_42_Principals": noSession + "whoever has the token at a permitted address may use it",
			"SingleUse":        "a token has no number",
			"Offers":           noSession + "nothing is offered",
			"Limits":           noSession + "nothing is announced",
			"Forget":           noSession + "what is forgotten ends by the client's keys (TestClientsEnds)",
			"Ends":             noSession + "what ends is the client's keys and targets (TestClientsEnds)",
			"IdleSession":      noSession + "none is idle",
		},
	})
}

// bench is a fabric with an arena, and a client.
type bench struct {
	t      *testing.T
	nic    *fakeverbs.NIC
	fabric *railed
	client *target.DC
	buffer arena.Buffer
}

const benchBytes = 1 << 20

func newBench(t *testing.T) *bench {
	t.Helper()
	nic, devices := suiteNIC(t)
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 2, BufferBytes: benchBytes}}})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, nic: nic}
	if b.fabric, err = open(nic, a.Memory()); err != nil {
		t.Fatal(err)
	}
	if b.buffer, err = a.Share("fabric").Alloc(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.client, err = target.OpenDC(devices, target.DCOptions{Key: suiteKey}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.buffer.Release()
		if err := errors.Join(b.client.Close(), b.fabric.Close(), a.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bench) register(n int) *target.DCRegion {
	b.t.Helper()
	r, err := b.client.Register(target.WrapMemory(make([]byte, n)))
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// move opens a token and moves all of its window, in one operation.
func (b *bench) move(d token.Descriptor, direction fabric.Direction, who string) error {
	b.t.Helper()
	g := fabric.Grant{Principal: who, Direction: direction, Bytes: d.Size, Deadline: time.Now().Add(30 * time.Second)}
	remote, err := b.fabric.Open(b.t.Context(), d, g)
	if err != nil {
		return err
	}
	part := b.buffer.Slice(0, int(d.Size))
	if direction == fabric.ForGet {
		err = remote.Write(b.t.Context(), 0, part)
	} else {
		err = remote.Read(b.t.Context(), 0, part)
	}
	return errors.Join(err, remote.Close())
}

// TestForgedWindows: what a token says and the client did not register fails the transfer, changes nothing, and costs
// others nothing; the client's own token goes on to work.
func TestForgedWindows(t *testing.T) {
	b := newBench(t)
	r, other := b.register(10_000), b.register(10_000)
	fill(b.buffer.Bytes(), 7)
	g, err := r.Grant(1000, 2000)
	if err != nil {
		t.Fatal(err)
	}
	defer g.End()
	g2, err := other.Grant(0, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer g2.End()
	for name, forge := range map[string]func(*token.Descriptor){
		"before the region":     func(d *token.Descriptor) { d.Addr -= 1001 },
		"over its end":          func(d *token.Descriptor) { d.Addr += 7001 },
		"behind it":             func(d *token.Descriptor) { d.Addr += 1 << 40 },
		"larger than all":       func(d *token.Descriptor) { d.Size = 9001 },
		"another's key":         func(d *token.Descriptor) { d.RKey = g2.Descriptor().RKey },
		"a key that is none":    func(d *token.Descriptor) { d.RKey ^= 0x00ff0000 },
		"a target that is none": func(d *token.Descriptor) { d.QPN ^= 0x7fffff },
		"another's address":     func(d *token.Descriptor) { d.Addr = g2.Descriptor().Addr },
	} {
		for _, direction := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
			d := g.Descriptor()
			forge(&d)
			// A principal of its own for each: three refusals suspend one.
			if err := b.move(d, direction, name); !errors.Is(err, fabric.ErrTransfer) {
				t.Errorf("%s, direction %d: %v", name, direction, err)
			}
			if !filled(r.Bytes(), 0) || !filled(other.Bytes(), 0) {
				t.Fatalf("%s: memory changed", name)
			}
		}
	}
	fill(b.buffer.Bytes(), 7)
	if err := b.move(g.Descriptor(), fabric.ForGet, "tester"); err != nil {
		t.Error(err)
	}
	mem := r.Bytes()
	if !filled(mem[:1000], 0) || !filled(mem[1000:3000], 7) || !filled(mem[3000:], 0) {
		t.Error("other bytes than the window's")
	}
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func filled(b []byte, v byte) bool {
	for _, x := range b {
		if x != v {
			return false
		}
	}
	return true
}

// TestClientsEnds: the client ends what a server may do, in each way, while a transfer is under way: from then on its
// memory does not change, and the transfer fails; but forgetting and a fence of the region wait for it. With other keys
// it goes on.
func TestClientsEnds(t *testing.T) {
	const size = 300_000
	ends := map[string]struct {
		end   func(context.Context, *target.DC, *target.DCRegion) error
		waits bool // for the grant
		all   bool // the client is at its end
	}{
		"forget": {func(ctx context.Context, _ *target.DC, r *target.DCRegion) error { return r.Forget(ctx) }, true, false},
		"fence":  {func(ctx context.Context, _ *target.DC, r *target.DCRegion) error { return r.Fence(ctx) }, true, false},
		"close":  {func(_ context.Context, c *target.DC, _ *target.DCRegion) error { return c.Close() }, false, true},
	}
	for name, e := range ends {
		for _, direction := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
			t.Run(fmt.Sprintf("%s, direction %d", name, direction), func(t *testing.T) {
				b := newBench(t)
				r := b.register(size)
				g, err := r.Grant(0, size)
				if err != nil {
					t.Fatal(err)
				}
				at := fakeverbs.AtWritePacket
				if direction == fabric.ForPut {
					at = fakeverbs.AtReadRequest
				}
				held := b.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Hold, Times: fakeverbs.Always})
				moved := make(chan error, 1)
				go func() { moved <- b.move(g.Descriptor(), direction, "tester") }()
				held.Await(1)
				ended := make(chan error, 1)
				go func() { ended <- e.end(t.Context(), b.client, r) }()
				if e.waits {
					b.nic.Await("no more grants", func() bool {
						late, err := r.Grant(0, 0)
						if err == nil {
							late.End()
						}
						return err != nil
					})
					select {
					case err := <-ended:
						t.Fatalf("ended before the grant: %v", err)
					default:
					}
					g.End() // given up, though the server is not done
				}
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
				fill(r.Bytes(), 3)
				mark := b.nic.Mark()
				held.Release()
				if err := <-moved; !errors.Is(err, fabric.ErrTransfer) {
					t.Errorf("the transfer: %v", err)
				}
				if touched := b.nic.Touched(r.Bytes(), mark); len(touched) > 0 || !filled(r.Bytes(), 3) {
					t.Errorf("memory was touched: %+v", touched)
				}
				if e.all {
					return
				}
				again, err := b.client.Register(r.Memory())
				if err != nil {
					t.Fatal(err)
				}
				g, err = again.Grant(0, size)
				if err != nil {
					t.Fatal(err)
				}
				defer g.End()
				if err := b.move(g.Descriptor(), direction, "tester"); err != nil {
					t.Errorf("with other keys: %v", err)
				}
			})
		}
	}
}

// TestRevokedTransferOfAClient: what the server ends is fenced when it says so, and the client's memory is at rest.
func TestRevokedTransferOfAClient(t *testing.T) {
	const size = 300_000
	b := newBench(t)
	r := b.register(size)
	g, err := r.Grant(0, size)
	if err != nil {
		t.Fatal(err)
	}
	defer g.End()
	held := b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtAck, Do: fakeverbs.Hold, Times: fakeverbs.Always})
	moved := make(chan error, 1)
	go func() { moved <- b.move(g.Descriptor(), fabric.ForGet, "tester") }()
	held.Await(1)
	b.fabric.RevokePrincipal("tester")
	fill(r.Bytes(), 3)
	held.Release()
	if err := <-moved; !errors.Is(err, fabric.ErrFenced) || !filled(r.Bytes(), 3) {
		t.Errorf("%v", err)
	}
	if err := b.move(g.Descriptor(), fabric.ForGet, "other"); err != nil {
		t.Errorf("the next: %v", err)
	}
}
