package dc

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
)

// pool is a Mover that notes what it gets, and does as told.
type pool struct {
	mu    sync.Mutex
	moves []initiator.DCMove
	do    func(ctx context.Context, m initiator.DCMove) error
}

func (p *pool) Move(ctx context.Context, m initiator.DCMove) error {
	p.mu.Lock()
	p.moves = append(p.moves, m)
	do := p.do
	p.mu.Unlock()
	if do == nil {
		return nil
	}
	return do(ctx, m)
}

func (p *pool) got() []initiator.DCMove {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moves
}

const key = 0x1122334455667788

var (
	client = netip.MustParseAddr("10.0.1.2")
	gid    = client.As16()
)

type bed struct {
	t      *testing.T
	fabric *Fabric
	pools  []*pool
	up     []bool
	buffer arena.Buffer
}

func newBed(t *testing.T, rails int) *bed {
	t.Helper()
	b := &bed{t: t, up: make([]bool, rails)}
	o := Options{Key: key, Permits: func(gid [16]byte, peer netip.Addr) bool {
		return netip.AddrFrom16(gid).Unmap() == peer
	}}
	for i := range rails {
		b.up[i] = true
		p := &pool{}
		b.pools = append(b.pools, p)
		o.Rails = append(o.Rails, Rail{Name: string(rune('a' + i)), Up: func() bool { return b.up[i] },
			Reach: func(gid [16]byte, _ netip.Addr) bool { return netip.AddrFrom16(gid).Is4In6() }, Pool: p})
	}
	b.fabric = New(o)
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 1,
		BufferBytes: max(arena.BlockSize, os.Getpagesize())}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Share("fabric").Reserve(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if b.buffer, err = r.Alloc(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.buffer.Release()
		r.Close()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func descriptor() token.Descriptor {
	return token.Descriptor{Kind: token.DC, Addr: 0x7f7c80000000, Size: 1000, RKey: 7, QPN: 0x7a03, HasGID: true, GID: gid}
}

func (b *bed) open(d token.Descriptor, change func(*fabric.Grant)) (fabric.Remote, error) {
	b.t.Helper()
	g := fabric.Grant{Principal: "alice", Peer: netip.AddrPortFrom(client, 4711), Direction: fabric.ForGet, Bytes: 600,
		Deadline: time.Now().Add(8 * time.Second)}
	if change != nil {
		change(&g)
	}
	return b.fabric.Open(b.t.Context(), d, g)
}

func (b *bed) opened(change func(*fabric.Grant)) fabric.Remote {
	b.t.Helper()
	r, err := b.open(descriptor(), change)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func wantIs(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: got %v, want %v", what, err, w)
		}
	}
}

// TestMoves: what the pool is asked for is what the token and the grant say, and not a byte more.
func TestMoves(t *testing.T) {
	b := newBed(t, 1)
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		r := b.opened(func(g *fabric.Grant) { g.Direction = d })
		act, other, op := r.Write, r.Read, native.OpWrite
		if d == fabric.ForPut {
			act, other, op = r.Read, r.Write, native.OpRead
		}
		before := time.Now()
		if err := act(t.Context(), 100, b.buffer.Slice(0, 200), b.buffer.Slice(300, 600)); err != nil {
			t.Error(err)
		}
		moves := b.pools[0].got()
		m := moves[len(moves)-1]
		if m.Op != op || m.Remote != 0x7f7c80000064 || m.RKey != 7 || len(m.Local) != 2 || len(m.Local[1]) != 300 ||
			m.Window != (initiator.Window{Addr: 0x7f7c80000000, Size: 600}) || m.Target.Key != key ||
			m.Target.DCT != 0x7a03 || m.Owner != "alice" || m.Target.Port != (native.PeerPort{GID: gid, HasGID: true}) {
			t.Errorf("asked for %+v to %+v", m, m.Target.Port)
		}
		if m.Expire.Sub(m.Stop) != Stop-Margin || m.Expire.Sub(before) > 8*time.Second-Margin {
			t.Errorf("stop %v, expire %v", m.Stop.Sub(before), m.Expire.Sub(before))
		}
		wantIs(t, "other direction", other(t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrTransfer)
		for _, off := range []int64{-1, 591, 601, 1 << 62} {
			wantIs(t, "outside", act(t.Context(), off, b.buffer.Slice(0, 10)), fabric.ErrTransfer)
		}
		if err := act(t.Context(), 600); err != nil {
			t.Errorf("nothing: %v", err)
		}
		if n := len(b.pools[0].got()); n != len(moves) {
			t.Errorf("%d moves, want %d", n, len(moves))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		wantIs(t, "after close", act(t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrTransfer)
		wantIs(t, "closed twice", r.Close(), fabric.ErrTransfer)
	}
	if s := b.fabric.Stats(); s.Gets != 1 || s.Puts != 1 || s.GetBytes != 600 || s.OpenWindows != 0 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}

// TestRefusedTokens: each kind of token and grant that is not taken.
func TestRefusedTokens(t *testing.T) {
	b := newBed(t, 2)
	cases := []struct {
		what   string
		change func(*token.Descriptor, *fabric.Grant)
		want   error
	}{
		{"other kind", func(d *token.Descriptor, _ *fabric.Grant) { d.Kind = token.HipObj }, fabric.ErrUnsupportedToken},
		{"too large", func(_ *token.Descriptor, g *fabric.Grant) { g.Bytes = 1001 }, fabric.ErrTooLarge},
		{"foreign", func(d *token.Descriptor, _ *fabric.Grant) { d.GID[15]++ }, fabric.ErrNotGranted},
		{"LID only", func(d *token.Descriptor, _ *fabric.Grant) {
			d.HasGID, d.GID = false, [16]byte{}
		}, fabric.ErrNotGranted},
		{"other family", func(d *token.Descriptor, g *fabric.Grant) {
			at := netip.MustParseAddr("2001:db8::1")
			d.GID, g.Peer = at.As16(), netip.AddrPortFrom(at, 1)
		}, fabric.ErrNoFabric},
		{"no rail", func(*token.Descriptor, *fabric.Grant) { b.up[0], b.up[1] = false, false }, fabric.ErrNoFabric},
	}
	for _, c := range cases {
		d := descriptor()
		_, err := b.open(d, nil)
		if err != nil {
			t.Fatalf("before %s: %v", c.what, err)
		}
		g := fabric.Grant{Principal: "alice", Peer: netip.AddrPortFrom(client, 1), Direction: fabric.ForGet, Bytes: 600,
			Deadline: time.Now().Add(8 * time.Second)}
		c.change(&d, &g)
		_, err = b.fabric.Open(t.Context(), d, g)
		wantIs(t, c.what, err, c.want)
	}
	if got := b.fabric.Rails(); len(got) != 2 || got[0].Up || got[0].Reason != "down" || got[1].Name != "b" {
		t.Errorf("%+v", got)
	}
}

// TestRailsTakeTurns, and one that is down is passed over.
func TestRailsTakeTurns(t *testing.T) {
	b := newBed(t, 3)
	b.up[1] = false
	for range 6 {
		r := b.opened(nil)
		if err := r.Write(t.Context(), 0, b.buffer.Slice(0, 1)); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if a, c := len(b.pools[0].got()), len(b.pools[2].got()); a == 0 || c == 0 || a+c != 6 || len(b.pools[1].got()) != 0 {
		t.Errorf("%d, %d, %d", a, len(b.pools[1].got()), c)
	}
}

// TestSuspension: three refusals in a minute suspend the principal at that address for half a minute, and nobody else;
// refusals that are far apart do not.
func TestSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 1)
		b.pools[0].do = func(context.Context, initiator.DCMove) error { return initiator.ErrDenied }
		refused := func() {
			t.Helper()
			r := b.opened(nil)
			wantIs(t, "write", r.Write(t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrTransfer, initiator.ErrDenied)
			wantIs(t, "close", r.Close(), fabric.ErrTransfer)
		}
		for range 4 {
			refused()
			refused()
			time.Sleep(refusalSpan + time.Second)
		}
		refused()
		refused()
		refused()
		_, err := b.open(descriptor(), nil)
		wantIs(t, "suspended", err, fabric.ErrNoFabric)
		bob := func(g *fabric.Grant) { g.Principal = "bob" }
		if _, err := b.open(descriptor(), bob); err != nil {
			t.Errorf("another principal: %v", err)
		}
		time.Sleep(suspension + time.Second)
		refused()
		for i := range 3 * maxStrangers {
			b.fabric.refused(stranger{lid: uint16(i), principal: "many"})
		}
		if n := len(b.fabric.strangers); n > maxStrangers {
			t.Errorf("%d are remembered", n)
		}
	})
}

// TestStuck: where an adapter does not let go, Close says so after a while, and the request gets no answer.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 1)
		release := make(chan struct{})
		b.pools[0].do = func(context.Context, initiator.DCMove) error {
			<-release
			return initiator.ErrLost
		}
		r := b.opened(nil)
		deadline := time.Now().Add(8 * time.Second)
		ended := make(chan error, 1)
		go func() { ended <- r.Write(t.Context(), 0, b.buffer.Slice(0, 1)) }()
		synctest.Wait()
		wantIs(t, "close", r.Close(), fabric.ErrLingering, fabric.ErrFenced)
		if late := time.Since(deadline); late != stuckWait {
			t.Errorf("closed %v after the deadline", late)
		}
		close(release)
		wantIs(t, "write", <-ended, fabric.ErrTransfer)
	})
}

// TestDeadline: nothing begins late; what hangs ends at its time, and Close waits for it.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 1)
		b.pools[0].do = func(_ context.Context, m initiator.DCMove) error {
			time.Sleep(time.Until(m.Expire))
			return initiator.ErrExpired
		}
		r := b.opened(nil)
		deadline := time.Now().Add(8 * time.Second)
		ended := make(chan error, 1)
		go func() { ended <- r.Write(t.Context(), 0, b.buffer.Slice(0, 1)) }()
		synctest.Wait()
		err := r.Close()
		wantIs(t, "close", err, fabric.ErrFenced, fabric.ErrOverdue)
		wantIs(t, "write", <-ended, fabric.ErrFenced, fabric.ErrOverdue)
		if left := time.Until(deadline); left != Margin {
			t.Errorf("closed %v before the deadline", left)
		}
		r = b.opened(nil)
		time.Sleep(8*time.Second - Stop)
		wantIs(t, "late", r.Write(t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrFenced)
		wantIs(t, "close", r.Close(), fabric.ErrFenced)
		r = b.opened(nil)
		time.Sleep(8 * time.Second)
		wantIs(t, "close after the deadline", r.Close(), fabric.ErrFenced)
		if n := len(b.pools[0].got()); n != 1 {
			t.Errorf("%d moves", n)
		}
	})
}
