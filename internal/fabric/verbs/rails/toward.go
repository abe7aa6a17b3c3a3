package rails

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
)

// Compare orders rails for a transfer: first by the bytes that they have to carry, then near, the one that the client's
// HTTP connection uses, where that is known, then the rails of its NUMA node. It takes no lock.
func Compare(a, b, near *Rail) int {
	if c := cmp.Compare(a.load.Load(), b.load.Load()); c != 0 || near == nil || a == b {
		return c
	}
	last := func(holds bool) int { // what holds comes before what does not
		if holds {
			return 0
		}
		return 1
	}
	if a == near || b == near {
		return cmp.Compare(last(a == near), last(b == near))
	}
	return cmp.Compare(last(a.beside(near)), last(b.beside(near)))
}

// Toward is the rail for a queue pair to a peer's GID, and where in its port's table that begins: the best one of those
// that are up and reach it. Errors: ErrDown, when none is up; initiator.ErrUnreached; native.ErrVerbs.
func (set *Set) Toward(peer [16]byte, near *Rail) (*Rail, initiator.Source, error) {
	up := slices.DeleteFunc(slices.Clone(set.list), func(k *Rail) bool { return !k.Up() })
	slices.SortStableFunc(up, func(a, b *Rail) int { return Compare(a, b, near) })
	err := fmt.Errorf("%w: all of them", ErrDown)
	for _, k := range up {
		var from initiator.Source
		if from, err = k.engine.From(peer); err == nil {
			return k, from, nil
		}
	}
	return nil, initiator.Source{}, err
}
