//go:build cgo

package hip

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 30 * time.Second       // what takes longer hangs
	shortly  = 150 * time.Millisecond // what is meant to pass

	memoryBytes = 4 << 20 // of a client
	guard       = 4096    // of its memory, around a window
	cookie      = 0xc0ffee01
)

// bed is the fabric on a fake rail, and adapters for clients; on this machine's, where the test does with them.
type bed struct {
	t       *testing.T
	library *native.Library
	nic     *fakeverbs.NIC // nil on this machine's adapters
	set     *rails.Set
	fabric  *Fabric
	arena   *arena.Arena
	share   *arena.Share
	log     *syncBuffer
	clients []*client
	held    atomic.Int64 // Helds that are open
}

type bedOptions struct {
	Options
	nic    fakeverbs.Options
	device bool // this machine's adapters will do
	// stubborn: an adapter does not let go, and the end of it all is the test's.
	stubborn bool
}

func newBed(t *testing.T, o bedOptions) *bed {
	t.Helper()
	b := &bed{t: t, log: &syncBuffer{}}
	devices := []string{"rail"}
	if onDevice() {
		devices = nil
	}
	b.open(o)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	shares := []arena.ShareOption{{Name: "fabric", Buffers: 8, BufferBytes: 1 << 20}}
	b.arena, err = arena.New(arena.Options{Shares: shares})
	must(err)
	b.share = b.arena.Share("fabric")
	logger := slog.New(slog.NewTextHandler(b.log, nil))
	opened, err := rails.Open(rails.Options{Library: b.library, Devices: devices, Memory: b.arena.Memory()})
	must(err)
	b.set, err = rails.New(opened, logger)
	must(err)
	o.Rails, o.Logger = b.set, logger
	o.Permits = func(gid [16]byte, peer netip.Addr) bool { return netip.AddrFrom16(gid).Unmap() == peer }
	if o.Sessions == 0 {
		o.Sessions = 64
	}
	if o.Staging == 0 {
		o.Staging = 8 << 20
	}
	b.fabric, err = New(o.Options)
	must(err)
	t.Cleanup(func() { b.end(o.stubborn) })
	if onDevice() {
		b.client(b.set.Ports()[0].Device, b.set.Ports()[0].GIDIndex)
		return b
	}
	b.client("one", 1)
	b.client("two", 1)
	return b
}

// onDevice tells whether these tests must use the adapters of this machine.
func onDevice() bool { return os.Getenv("PENSTOCK_TEST_VERBS") == "device" }

// open opens the library of the adapters.
func (b *bed) open(o bedOptions) {
	b.t.Helper()
	if !onDevice() {
		o.nic.Poison = true
		o.nic.Devices = []fakeverbs.Device{{Name: "rail"}, {Name: "one"}, {Name: "two"}}
		b.nic = fakeverbs.New(b.t, o.nic)
		b.library = b.nic.Library()
		return
	}
	if !o.device {
		b.t.Skip("for the fake adapter only")
	}
	var err error
	if b.library, err = native.Open(native.Options{}); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = b.library.Close() })
}

// end closes all, in the order of server, and looks for what is left.
func (b *bed) end(stubborn bool) {
	b.t.Helper()
	err := b.fabric.Close()
	if err != nil && !stubborn {
		b.t.Errorf("close fabric: %v", err)
	}
	for _, c := range b.clients {
		c.close()
	}
	if err := b.set.Close(); err != nil {
		b.t.Errorf("close rails: %v", err)
	}
	if err := errors.Join(b.fabric.Close(), b.arena.Close()); err != nil {
		b.t.Errorf("close: %v", err)
	}
	if s := b.fabric.Stats(); s.Sessions != 0 || s.MappedBytes != 0 || s.OpenWindows != 0 {
		b.t.Errorf("left: %+v", s)
	}
	if n := b.held.Load(); n != 0 {
		b.t.Errorf("%d held things are open", n)
	}
}

// client is a client's end: memory, and the queue pair of its current session.
type client struct {
	b      *bed
	dev    *native.Device
	pd     *native.PD
	cq     *native.CQ
	mr     *native.MR
	memory []byte
	gid    [16]byte
	mtu    int
	own    native.Path

	mu  sync.Mutex
	qps []*native.QP
}

func (b *bed) client(device string, gid int) *client {
	b.t.Helper()
	c := &client{b: b}
	var err error
	must := func() {
		b.t.Helper()
		if err != nil {
			b.t.Fatal(err)
		}
	}
	c.memory, err = unix.Mmap(-1, 0, memoryBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must()
	c.dev, err = b.library.OpenDevice(device)
	must()
	c.pd, err = c.dev.NewPD()
	must()
	c.cq, err = c.dev.NewCQ(512)
	must()
	c.mr, err = c.pd.Register(c.memory, native.LocalWrite|native.RemoteWrite|native.RemoteRead)
	must()
	port, err := c.dev.Port(1)
	must()
	for _, g := range port.GIDs {
		if g.Index == gid {
			c.gid = g.Raw
		}
	}
	c.mtu = port.MTU
	c.own = native.Path{
		Port: 1, GIDIndex: gid, HopLimit: 64, Access: native.RemoteRead | native.RemoteWrite, PSN: 1,
		Timeout: 14, Retries: 7, RNRRetries: 7, MinRNRTimer: 12,
	}
	b.clients = append(b.clients, c)
	return c
}

func (c *client) close() {
	var errs []error
	for _, q := range c.qps {
		errs = append(errs, q.Close())
	}
	errs = append(errs, c.mr.Close(), c.cq.Close(), c.pd.Close(), c.dev.Close(), unix.Munmap(c.memory))
	if err := errors.Join(errs...); err != nil {
		c.b.t.Errorf("client: %v", err)
	}
}

// holding is a Held.
type holding struct {
	b    *bed
	open atomic.Bool
}

func (h *holding) Close() error {
	if !h.open.CompareAndSwap(true, false) {
		h.b.t.Error("a held thing was closed twice")
	}
	h.b.held.Add(-1)
	return nil
}

// exchange is a session from the client's side.
type exchange struct {
	c    *client
	who  string
	qp   *native.QP
	p    fabric.Preparation
	made fabric.Prepared
	held *holding
}

// preparation makes a queue pair and what the first message says of it.
func (c *client) preparation(who string, d fabric.Direction, n int64) *exchange {
	c.b.t.Helper()
	qp, err := c.pd.NewQP(c.cq, native.PairOptions{Depth: 8, Receives: 2})
	if err == nil {
		err = qp.Init(c.own)
	}
	if err != nil {
		c.b.t.Fatal(err)
	}
	c.mu.Lock()
	c.qps = append(c.qps, qp)
	c.mu.Unlock()
	x := &exchange{c: c, who: who, qp: qp, held: &holding{b: c.b}}
	x.held.open.Store(true)
	c.b.held.Add(1)
	x.p = fabric.Preparation{
		Principal: who, Peer: netip.AddrPortFrom(netip.AddrFrom16(c.gid).Unmap(), 4711), PSN: 1, Cookie: cookie,
		Token:     token.Descriptor{Kind: token.HipObj, HipRC: true, QPN: qp.Number(), GID: c.gid, Port: 1},
		Direction: d, Bytes: n, Held: x.held,
	}
	return x
}

// prepare sends the first message, and connects.
func (x *exchange) prepare() error {
	var err error
	if x.made, err = x.c.b.fabric.Prepare(x.c.b.t.Context(), x.p); err != nil {
		return err
	}
	peer := native.Peer{QPN: x.made.QPN, PSN: x.made.PSN, GID: x.made.GID, LID: x.made.LID, MTU: x.c.mtu, Reads: 1}
	return errors.Join(x.qp.Receive(x.c.own, peer), x.qp.Send(x.c.own, peer))
}

func (c *client) prepared(who string, d fabric.Direction, n int64) *exchange {
	c.b.t.Helper()
	x := c.preparation(who, d, n)
	if err := x.prepare(); err != nil {
		c.b.t.Fatalf("prepare: %v", err)
	}
	return x
}

// readiness is what the second message says.
func (x *exchange) readiness() fabric.Readiness {
	return fabric.Readiness{Cookie: x.p.Cookie, QPN: x.qp.Number(), Addr: x.c.mr.Addr() + guard, RKey: x.c.mr.RKey()}
}

func (x *exchange) take() *fabric.Taken {
	x.c.b.t.Helper()
	t, err := x.c.b.fabric.Take(x.made.ID, x.who, x.readiness())
	if err != nil {
		x.c.b.t.Fatalf("take: %v", err)
	}
	return t
}

// taken makes a session and takes it.
func (c *client) taken(d fabric.Direction, n int64) (*exchange, *fabric.Taken) {
	c.b.t.Helper()
	x := c.prepared("alice", d, n)
	return x, x.take()
}

func (x *exchange) listen() {
	x.c.b.t.Helper()
	if err := x.qp.PostReceive(1); err != nil {
		x.c.b.t.Fatal(err)
	}
}

// completion waits for one of this exchange's queue pair; only one exchange of a client may wait.
func (x *exchange) completion() native.Completion {
	x.c.b.t.Helper()
	var one [1]native.Completion
	x.c.b.soon("a completion of the client", func() bool {
		for {
			n, err := x.c.cq.Poll(one[:])
			if err != nil {
				x.c.b.t.Fatal(err)
			}
			if n == 0 {
				return false
			}
			if one[0].QPN == x.qp.Number() {
				return true
			}
		}
	})
	return one[0]
}

// work is a WRITE of the client's window to the staging memory.
func (x *exchange) work(n int64) native.Work {
	return native.Work{
		Op: native.OpWriteImm, Local: x.c.mr.Addr() + guard, LKey: x.c.mr.LKey(), Remote: x.made.Addr, RKey: x.made.RKey,
		Length: uint32(n), Imm: x.p.Cookie, Signal: true,
	}
}

func (x *exchange) post(w ...native.Work) {
	x.c.b.t.Helper()
	if _, err := x.qp.Post(w); err != nil {
		x.c.b.t.Fatal(err)
	}
}

// die ends the client's queue pair without a word.
func (x *exchange) die() {
	if err := x.qp.Reset(); err != nil {
		x.c.b.t.Error(err)
	}
}

// buffers are arena buffers of n bytes in all, with views of at most size, released at the test's end.
func (b *bed) buffers(n int64, size int64) []arena.Buffer {
	b.t.Helper()
	var all []arena.Buffer
	for n > 0 {
		buffer, err := b.share.Alloc(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		part := min(n, size)
		all = append(all, buffer.Slice(0, int(part)))
		n -= part
	}
	return all
}

func release(all []arena.Buffer) {
	for _, buffer := range all {
		buffer.Release()
	}
}

func pattern(seed, off, n int64) []byte {
	p := make([]byte, n)
	for i := range p {
		at := off + int64(i)
		p[i] = byte(at*31 ^ at>>8 ^ seed*101)
	}
	return p
}

func (b *bed) soon(what string, ok func() bool) {
	b.t.Helper()
	end := time.NewTimer(patience)
	defer end.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end.C:
			b.t.Fatalf("not soon: %s; %+v", what, b.fabric.Stats())
		case <-tick.C:
		}
	}
}

// idle waits until no session is left and no run is out.
func (b *bed) idle() {
	b.t.Helper()
	b.soon("nothing is left", func() bool {
		s := b.fabric.Stats()
		return s.Sessions == 0 && s.MappedBytes == 0
	})
}

func wantIs(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: got %v, want %v", what, err, w)
		}
	}
}

func result[T any](b *bed, what string, c <-chan T) T {
	b.t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		b.t.Fatalf("%s does not return", what)
		panic("unreachable")
	}
}

func async(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

func (b *bed) cancel(x *exchange, who string) error {
	ctx, stop := context.WithTimeout(b.t.Context(), patience)
	defer stop()
	return b.fabric.Cancel(ctx, x.made.ID, who)
}

// syncBuffer is a buffer for several writers.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

var page = int64(os.Getpagesize())
