package rails

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/reach"
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

// Links tells whether a peer's GID means the same machine by this rail as to the connection that came in at the address
// local: each link has machines of its own at its link-local addresses, which lead to the peer by the near rail only,
// or are the rail's own, or, for a peer that came in by the loopback device, and so is on this machine, any of the
// rail's network device. It takes no lock.
func (k *Rail) Links(peer [16]byte, local netip.Addr) bool {
	place := k.place.Load()
	return !reach.LinkLocal(peer) || !place.at.IsValid() || place.at.WithZone("").As16() == peer ||
		k == k.set.Near(local) || local.Unmap().IsLoopback() && k.set.onDevice(peer, place.device)
}

// Toward is the rail for a queue pair to a peer's GID, and where in its port's table that begins: the best one of those
// that are up and reach it; local is where the peer's HTTP connection came in, if that is known. Errors: ErrDown, when
// none is up; initiator.ErrUnreached; native.ErrVerbs.
func (set *Set) Toward(peer [16]byte, local netip.Addr) (*Rail, initiator.Source, error) {
	near := set.Near(local)
	up := slices.DeleteFunc(slices.Clone(set.list), func(k *Rail) bool { return !k.Up() })
	slices.SortStableFunc(up, func(a, b *Rail) int { return Compare(a, b, near) })
	err := fmt.Errorf("%w: all of them", ErrDown)
	for _, k := range up {
		if !k.Links(peer, local) {
			err = fmt.Errorf("%w: %s is on another link", initiator.ErrUnreached, k.name)
			continue
		}
		var from initiator.Source
		if from, err = k.engine.From(peer); err == nil {
			return k, from, nil
		}
	}
	return nil, initiator.Source{}, err
}
