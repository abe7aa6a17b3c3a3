package rails

import (
	"errors"
	"net/netip"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
)

// pooler is what an engine with dynamic connections can do besides.
type pooler interface {
	NewPool(initiator.PoolOptions) (*initiator.Pool, error)
}

// Pool is a rail with its pool of dynamic connections, which ends with the rail.
type Pool struct {
	*initiator.Pool
	rail *Rail
}

// Name is the rail's.
func (p *Pool) Name() string { return p.rail.name }

// Up tells whether the rail is, and the pool has queue pairs left.
func (p *Pool) Up() bool { return p.rail.Up() && p.Serves() }

// Reaches tells whether the rail has an address of the kind of a peer's GID, and is on its link: local is where the
// peer's HTTP connection came in.
func (p *Pool) Reaches(gid [16]byte, local netip.Addr) bool {
	if !p.rail.Links(gid, local) {
		return false
	}
	_, err := p.rail.engine.From(gid)
	return err == nil
}

// Pools makes a pool on each rail that can have one; a rail has one at most. Errors: why none can.
func (set *Set) Pools(o initiator.PoolOptions) ([]*Pool, error) {
	var pools []*Pool
	errs := []error{ErrNoRail}
	for _, k := range set.list {
		engine, ok := k.engine.(pooler)
		if !ok {
			continue
		}
		of := o
		of.Lost = func(err error) { set.logger.Error("rdma dci does not serve", "rail", k.name, "error", err) }
		of.Turn = k.connects.take
		pool, err := engine.NewPool(of)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		pools = append(pools, &Pool{Pool: pool, rail: k})
	}
	if len(pools) == 0 {
		return nil, errors.Join(errs...)
	}
	return pools, nil
}
