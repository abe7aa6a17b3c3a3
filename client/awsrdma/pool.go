package awsrdma

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/penstock-store/penstock/client"
)

// minRegion is the least length of a region: announcing one is a round trip, so they are not made for
// every length that comes along.
const minRegion = 1 << 20

// errPoolBusy says that no memory came free in time; errPoolClosed that none will.
var (
	errPoolBusy   = errors.New("awsrdma: pool of regions exhausted")
	errPoolClosed = errors.New("awsrdma: session closed")
)

// pool lends regions of a client, within a bound of bytes.
type pool struct {
	client *client.Client
	limit  int64
	wait   time.Duration

	mu      sync.Mutex
	closed  bool
	total   int64            // of all regions, those being allocated included
	used    int64            // of those that are lent
	idle    []*client.Region // most recently used last
	changed chan struct{}    // closed and replaced whenever memory may have come free
	closing sync.WaitGroup   // regions on their way out
}

func newPool(c *client.Client, limit int64, wait time.Duration) *pool {
	return &pool{client: c, limit: limit, wait: wait, changed: make(chan struct{})}
}

// classOf rounds a length up, so that regions fit again: to a quarter of a power of two.
func classOf(n int64) int64 {
	if n <= minRegion {
		return minRegion
	}
	step := int64(1) << (bits.Len64(uint64(n-1)) - 1) / 4
	return (n + step - 1) / step * step
}

// get lends a region of at least n bytes, which is no more than the pool's bound. Errors: errPoolBusy, also
// when the machine has no memory, errPoolClosed, ctx's.
func (p *pool) get(ctx context.Context, n int64) (*lent, error) {
	size := min(classOf(n), p.limit)
	var timeout <-chan time.Time
	if p.wait > 0 {
		timer := time.NewTimer(p.wait)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		r, changed, err := p.take(size)
		if err != nil {
			return nil, err
		}
		if r != nil {
			return &lent{pool: p, region: r}, nil
		}
		if timeout == nil {
			return nil, errPoolBusy
		}
		select {
		case <-changed:
		case <-timeout:
			return nil, errPoolBusy
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take returns an idle region, a new one, or a channel to wait on.
func (p *pool) take(size int64) (*client.Region, <-chan struct{}, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, nil, errPoolClosed
	}
	p.idle = slices.DeleteFunc(p.idle, func(r *client.Region) bool {
		gone := r.Abandoned() // while it was idle: its session has ended without a fence
		if gone {
			p.total -= int64(len(r.Bytes()))
			p.discard(r)
		}
		return gone
	})
	if i := p.fit(size); i >= 0 {
		r := p.idle[i]
		p.idle = slices.Delete(p.idle, i, i+1)
		p.used += int64(len(r.Bytes()))
		p.mu.Unlock()
		return r, nil, nil
	}
	for p.total+size > p.limit && len(p.idle) > 0 { // too short, or far too long, and not used lately
		old := p.idle[0]
		p.idle = slices.Delete(p.idle, 0, 1)
		p.total -= int64(len(old.Bytes()))
		p.discard(old)
	}
	if p.total+size > p.limit {
		changed := p.changed
		p.mu.Unlock()
		return nil, changed, nil
	}
	p.total += size
	p.used += size
	p.mu.Unlock()
	r, err := p.client.Alloc(size)
	if err != nil {
		p.mu.Lock()
		p.total -= size
		p.used -= size
		p.wake()
		p.mu.Unlock()
		return nil, nil, fmt.Errorf("%w: %w", errPoolBusy, err)
	}
	return r, nil, nil
}

// fit finds the shortest idle region that is long enough, the last used of those. A region four times as
// long is left for whoever needs it, unless the bound forbids a new one.
func (p *pool) fit(size int64) int {
	const tooLong = 4
	best := -1
	for i := len(p.idle) - 1; i >= 0; i-- {
		n := int64(len(p.idle[i].Bytes()))
		if n < size || (n > tooLong*size && p.total+size <= p.limit) {
			continue
		}
		if best < 0 || n < int64(len(p.idle[best].Bytes())) {
			best = i
		}
	}
	return best
}

// put takes a region back. An abandoned one is let go, and after close every one, at once.
func (p *pool) put(r *client.Region) {
	n := int64(len(r.Bytes()))
	abandoned := r.Abandoned()
	p.mu.Lock()
	closed := p.closed
	p.used -= n
	switch {
	case closed:
		p.total -= n
	case abandoned:
		p.total -= n
		p.discard(r)
	default:
		p.idle = append(p.idle, r)
	}
	p.wake()
	p.mu.Unlock()
	if closed {
		_ = r.Close() // an error leaves its memory to the end of the process
	}
}

func (p *pool) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// discard closes a region, which asks the node to forget it first: nobody waits for that but close. The
// pool is locked and not closed.
func (p *pool) discard(r *client.Region) {
	p.closing.Go(func() { _ = r.Close() }) // an error leaves its memory to the end of the process
}

// close lets idle regions go and waits until they are gone; later ones follow when they come back.
func (p *pool) close() error {
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle = nil
	for _, r := range idle {
		p.total -= int64(len(r.Bytes()))
	}
	p.wake()
	p.mu.Unlock()
	var errs []error
	for _, r := range idle {
		errs = append(errs, r.Close())
	}
	p.closing.Wait()
	return errors.Join(errs...)
}

func (p *pool) usage() (total, used int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total, p.used
}

// lent is one region out of the pool.
type lent struct {
	pool   *pool
	region *client.Region
	once   sync.Once
}

// giveBack may be called several times.
func (l *lent) giveBack() { l.once.Do(func() { l.pool.put(l.region) }) }
