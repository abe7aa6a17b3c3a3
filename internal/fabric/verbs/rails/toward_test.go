package rails

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/rail"
)

// farEngine is a rail that reaches a peer, or not.
type farEngine struct {
	fakeEngine
	index   int
	reaches bool
}

func (e *farEngine) From([16]byte) (initiator.Source, error) {
	if !e.reaches {
		return initiator.Source{}, initiator.ErrUnreached
	}
	return initiator.Source{Index: e.index}, nil
}

// TestToward: of the rails that are up and reach the peer it is the one of docs/operations.md. Oracle: that rule, step
// by step, each keeping the best of what is left.
func TestToward(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 1))
	for range 5000 {
		var all []Opened
		loads := make([]int64, 1+random.IntN(4))
		for i := range loads {
			loads[i] = int64(random.IntN(3))
			all = append(all, Opened{
				Rail:   rail.Rail{Port: i, NUMANode: random.IntN(3) - 1, Up: random.IntN(4) > 0},
				Engine: &farEngine{index: i, reaches: random.IntN(4) > 0},
			})
		}
		set := newSet(all, slog.New(slog.DiscardHandler))
		var left []int
		anyUp := false
		for i, k := range set.list {
			k.Carry(loads[i])
			anyUp = anyUp || all[i].Rail.Up
			if all[i].Rail.Up && all[i].Engine.(*farEngine).reaches {
				left = append(left, i)
			}
		}
		keep := func(wanted func(int) bool) {
			if some := slices.DeleteFunc(slices.Clone(left), func(i int) bool { return !wanted(i) }); len(some) > 0 {
				left = some
			}
		}
		for load := range int64(3) {
			if slices.ContainsFunc(left, func(i int) bool { return loads[i] == load }) {
				keep(func(i int) bool { return loads[i] == load })
				break
			}
		}
		var near *Rail
		if at := random.IntN(len(loads)+1) - 1; at >= 0 {
			near = set.list[at]
			keep(func(i int) bool { return i == at })
			if node := all[at].Rail.NUMANode; node >= 0 {
				keep(func(i int) bool { return all[i].Rail.NUMANode == node })
			}
		}
		got, from, err := set.Toward([16]byte{1}, near)
		switch {
		case len(left) == 0 && !anyUp && !errors.Is(err, ErrDown):
			t.Fatalf("none is up: %v", err)
		case len(left) == 0 && anyUp && !errors.Is(err, initiator.ErrUnreached):
			t.Fatalf("none reaches it: %v", err)
		case len(left) > 0 && (err != nil || got != set.list[left[0]] || from.Index != left[0]):
			t.Fatalf("rails %+v, loads %v: %+v %v, want %d", all, loads, from, err, left[0])
		}
	}
}
