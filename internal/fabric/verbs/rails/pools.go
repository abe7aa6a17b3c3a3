package rails

import (
	"errors"

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

// Up tells whether the rail is.
func (p *Pool) Up() bool { return p.rail.Up() }

// Reaches tells whether the rail has an address of the kind of a peer's GID.
func (p *Pool) Reaches(gid [16]byte) bool {
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
		pool, err := engine.NewPool(o)
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
