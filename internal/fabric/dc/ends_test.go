package dc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
)

// linger is what a pool of these tests takes to let go.
const linger = 100 * time.Millisecond

// hang has a pool hang until the context of a move ends, and counts what it has under way by window.
func (b *bed) hang(under *sync.Map) {
	for _, p := range b.pools {
		p.do = func(ctx context.Context, m initiator.DCMove) error {
			n, _ := under.LoadOrStore(m.Owner, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			defer n.(*atomic.Int64).Add(-1)
			<-ctx.Done()
			time.Sleep(linger) // fake time
			return fmt.Errorf("%w: %w", initiator.ErrLost, context.Cause(ctx))
		}
	}
}

func underWay(under *sync.Map, owner string) int64 {
	if n, ok := under.Load(owner); ok {
		return n.(*atomic.Int64).Load()
	}
	return 0
}

// transfer is a window with operations under way.
type transfer struct {
	remote fabric.Remote
	owner  string
	ended  []chan error
}

func (b *bed) begin(ctx context.Context, owner string, operations int) *transfer {
	b.t.Helper()
	x := &transfer{owner: owner, remote: b.opened(func(g *fabric.Grant) { g.Principal = owner })}
	for range operations {
		ended := make(chan error, 1)
		x.ended = append(x.ended, ended)
		go func() { ended <- x.remote.Write(ctx, 0, b.buffer.Slice(0, 1)) }()
	}
	return x
}

// gone checks that a transfer was cut off for a cause: its operations, what comes later, and its end.
func (b *bed) gone(x *transfer, cause error) {
	b.t.Helper()
	for _, ended := range x.ended {
		wantIs(b.t, "an operation", <-ended, fabric.ErrFenced, cause)
	}
	before := 0
	for _, p := range b.pools {
		before += len(p.got())
	}
	wantIs(b.t, "a later one", x.remote.Write(b.t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrFenced, cause)
	for _, p := range b.pools {
		before -= len(p.got())
	}
	if before != 0 {
		b.t.Error("something began after the end")
	}
	wantIs(b.t, "close", x.remote.Close(), fabric.ErrFenced, cause)
}

// TestRevokedTransfersEnd: when RevokePrincipal has returned, no transfer of the principal is under way, whatever it
// was doing, and nobody else's has ended.
func TestRevokedTransfersEnd(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 6))
			b := newBed(t, 2)
			var under sync.Map
			b.hang(&under)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var all []*transfer
			for range 1 + rng.IntN(8) {
				all = append(all, b.begin(ctx, []string{"alice", "bob"}[rng.IntN(2)], rng.IntN(3)))
			}
			synctest.Wait()
			others := underWay(&under, "bob")
			began := time.Now()
			b.fabric.RevokePrincipal("alice")
			if n := underWay(&under, "alice"); n != 0 || underWay(&under, "bob") != others {
				t.Errorf("seed %d: %d are under way, and %d of %d of another", seed, n, underWay(&under, "bob"), others)
			}
			if took := time.Since(began); took > linger {
				t.Errorf("it took %v", took)
			}
			for _, x := range all {
				if x.owner == "alice" {
					b.gone(x, fabric.ErrRevoked)
				}
			}
			cancel()
			for _, x := range all {
				if x.owner == "alice" {
					continue
				}
				for _, ended := range x.ended {
					if err := <-ended; errors.Is(err, fabric.ErrFenced) || !errors.Is(err, context.Canceled) {
						t.Errorf("another's: %v", err)
					}
				}
				if err := x.remote.Close(); len(x.ended) == 0 && err != nil || errors.Is(err, fabric.ErrFenced) {
					t.Errorf("another's close: %v", err)
				}
			}
			if r, err := b.open(descriptor(), nil); err != nil { // with another key of the same user
				t.Error(err)
			} else if err := r.Close(); err != nil {
				t.Error(err)
			}
			if len(b.fabric.open) != 0 || b.fabric.Stats().OpenWindows != 0 {
				t.Errorf("%d windows are left, %+v", len(b.fabric.open), b.fabric.Stats())
			}
		})
	}
}

// TestCloseEndsTransfers: so does Close, with everybody's, and no window opens any more.
func TestCloseEndsTransfers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 1)
		var under sync.Map
		b.hang(&under)
		all := []*transfer{b.begin(t.Context(), "alice", 2), b.begin(t.Context(), "bob", 1), b.begin(t.Context(), "eve", 0)}
		synctest.Wait()
		for range 2 {
			if err := b.fabric.Close(); err != nil {
				t.Error(err)
			}
		}
		if underWay(&under, "alice")+underWay(&under, "bob") != 0 {
			t.Error("something is under way")
		}
		for _, x := range all {
			b.gone(x, fabric.ErrShutdown)
		}
		_, err := b.open(descriptor(), nil)
		wantIs(t, "open", err, fabric.ErrNoFabric, fabric.ErrShutdown)
	})
}

// TestStuckEnds: an adapter that does not let go holds up neither a revocation nor the fabric's end for long; both the
// fabric and the transfer say so, and the fabric has closed when it has let go.
func TestStuckEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 1)
		release := make(chan struct{})
		b.pools[0].do = func(context.Context, initiator.DCMove) error {
			<-release
			return initiator.ErrLost
		}
		x := b.begin(t.Context(), "alice", 1)
		synctest.Wait()
		began := time.Now()
		b.fabric.RevokePrincipal("alice")
		if took := time.Since(began); took != stuckWait {
			t.Errorf("it took %v", took)
		}
		wantIs(t, "close of the fabric", b.fabric.Close(), fabric.ErrLingering)
		wantIs(t, "close", x.remote.Close(), fabric.ErrLingering, fabric.ErrFenced)
		wantIs(t, "close of the fabric", b.fabric.Close(), fabric.ErrLingering)
		close(release)
		wantIs(t, "operation", <-x.ended[0], fabric.ErrFenced, fabric.ErrRevoked)
		if err := b.fabric.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestReachKnowsTheConnection: a rail is asked with the address that the client connected to.
func TestReachKnowsTheConnection(t *testing.T) {
	b := newBed(t, 1)
	here, asked := netip.MustParseAddr("fe80::1%eth3"), netip.Addr{}
	b.fabric.o.Rails[0].Reach = func(_ [16]byte, local netip.Addr) bool {
		asked = local
		return false
	}
	_, err := b.open(descriptor(), func(g *fabric.Grant) { g.Local = here })
	wantIs(t, "open", err, fabric.ErrNoFabric)
	if asked != here {
		t.Errorf("asked with %v", asked)
	}
}
