package verbs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// laidOut is a path as the table of TestPathChoice has it.
type laidOut struct {
	rail, device int
	railLoad     int64 // of all paths of the rail; the same for each of them
	pathLoad     int64
	stage        stage
}

// idleEngine is a rail whose port does nothing.
type idleEngine struct{ rails.Engine }

func (idleEngine) Events() <-chan native.Event { return nil }
func (idleEngine) Close() error                { return nil }

// railsOf are rails on NUMA nodes.
func railsOf(t *testing.T, numa []int, up []bool) *rails.Set {
	var all []rails.Opened
	for i, node := range numa {
		all = append(all, rails.Opened{Rail: rail.Rail{Port: i, NUMANode: node, Up: up[i]}, Engine: idleEngine{}})
	}
	set, err := rails.New(all, nil)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// expected is the rule of docs/operations.md, step by step: each keeps the best of what is left.
func expected(paths map[uint64]laidOut, up []bool, keys int, near int, numa []int) uint64 {
	var left []uint64
	for id, p := range paths {
		if p.stage == ready && up[p.rail] && p.device < keys {
			left = append(left, id)
		}
	}
	slices.Sort(left)
	keep := func(wanted func(laidOut) bool) {
		if some := slices.DeleteFunc(slices.Clone(left), func(id uint64) bool { return !wanted(paths[id]) }); len(some) > 0 {
			left = some
		}
	}
	least := func(load func(laidOut) int64) {
		if len(left) == 0 {
			return
		}
		lowest := load(paths[left[0]])
		for _, id := range left {
			lowest = min(lowest, load(paths[id]))
		}
		keep(func(p laidOut) bool { return load(p) == lowest })
	}
	least(func(p laidOut) int64 { return p.railLoad })
	if near >= 0 {
		keep(func(p laidOut) bool { return p.rail == near })
		if numa[near] >= 0 {
			keep(func(p laidOut) bool { return numa[p.rail] == numa[near] })
		}
	}
	least(func(p laidOut) int64 { return p.pathLoad })
	if len(left) == 0 {
		return 0
	}
	return left[0]
}

// TestPathChoice compares the choice among paths with the rule, for many sets of paths. Oracle: the rule as it is
// written in docs/operations.md, carried out naively.
func TestPathChoice(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 14))
	won := map[string]int{}
	for range 20_000 {
		numa := make([]int, 1+random.IntN(4))
		loads := make([]int64, len(numa))
		up := make([]bool, len(numa))
		for i := range numa {
			numa[i], loads[i], up[i] = random.IntN(3)-1, int64(random.IntN(3)), random.IntN(5) > 0
		}
		set := railsOf(t, numa, up)
		for i, k := range set.List() {
			k.Carry(loads[i])
		}
		s := &session{paths: map[uint64]*path{}, changed: make(chan struct{})}
		laid := map[uint64]laidOut{}
		for range random.IntN(7) {
			id, at := uint64(1+random.IntN(1000)), random.IntN(len(numa))
			if laid[id] != (laidOut{}) {
				continue
			}
			l := laidOut{at, random.IntN(3), loads[at], int64(random.IntN(3)), stage(random.IntN(6))}
			if l.stage > dead {
				l.stage = ready
			}
			laid[id] = l
			p := &path{id: id, session: s, rail: set.List()[at], device: uint8(l.device), stage: l.stage}
			p.load.Store(l.pathLoad)
			s.paths[id] = p
		}
		near := random.IntN(len(numa)+1) - 1
		keys := 1 + random.IntN(3)
		r := &remote{window: &fabric.Window{Bytes: 10}, session: s, memory: &backing{keys: keysOf(make([]uint32, keys))}}
		if near >= 0 {
			r.near = set.List()[near]
		}
		want := expected(laid, up, keys, near, numa)
		got, changed := r.choose()
		switch {
		case got == nil && (want != 0 || changed == nil):
			t.Fatalf("none of %+v, near %d, numa %v; want %d", laid, near, numa, want)
		case got != nil && got.id != want:
			t.Fatalf("%d of %+v, near %d, numa %v; want %d", got.id, laid, near, numa, want)
		case got == nil:
			won["none"]++
			_ = set.Close()
			continue
		}
		if got.load.Load() != laid[want].pathLoad+10 || got.rail.Carry(0) != laid[want].railLoad+10 {
			t.Fatal("the transfer is not counted")
		}
		if again, _ := r.choose(); again != got {
			t.Fatal("the transfer left a path that works")
		}
		won[fmt.Sprint("near ", got.rail == r.near)]++
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(won) != 3 || won["near true"] < 1000 || won["near false"] < 1000 {
		t.Errorf("the table is lopsided: %v", won)
	}
}

// TestTransfersFollowTheAddress: what the rule says, with bytes: transfers go by the rail whose address the client's
// HTTP connection uses, in whatever form that comes, and beside a transfer on that rail by the other.
func TestTransfersFollowTheAddress(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	c := b.connect("p", device0)
	c.path(0)
	c.path(1)
	c.region(lateBytes)
	open := func(local string) fabric.Remote {
		t.Helper()
		c.tokens++
		r, err := b.fabric.Open(context.Background(), token.Descriptor{
			Kind: token.Session, Fabric: Name, SessionID: c.offer.ID, Region: frame.JoinRegion(1, c.tokens), Size: lateBytes,
		}, fabric.Grant{
			Principal: "p", Direction: fabric.ForGet, Bytes: lateBytes, Deadline: time.Now().Add(patience),
			Local: netip.MustParseAddr(local),
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	write := func(r fabric.Remote, want int, what string) {
		t.Helper()
		before := b.bytesOf(want)
		buf := b.buffer(lateBytes)
		defer buf.Release()
		if err := r.Write(context.Background(), 0, buf); err != nil {
			t.Error(err)
		}
		if b.bytesOf(want) != before+lateBytes {
			t.Errorf("%s: not by rail %d", what, want)
		}
	}
	for _, at := range []struct {
		local string
		rail  int
	}{{"10.99.0.1", 0}, {"10.99.0.2", 1}, {"::ffff:10.99.0.2", 1}, {"::ffff:10.99.0.1", 0}, {"192.0.2.1", 0}} {
		first, second := open(at.local), open(at.local)
		write(first, at.rail, at.local)
		write(second, 1-at.rail, "beside "+at.local)
		write(first, at.rail, at.local)
		if err := errors.Join(first.Close(), second.Close()); err != nil {
			t.Error(err)
		}
	}
}
