package initiator

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-store/penstock/internal/rail"
)

// Probe connects two queue pairs of this rail to each other and moves bytes both ways: the rail works as far as this
// machine goes. It uses memory and a protection domain of its own. It may return later than after limit, since it waits
// until the adapter has let go of that memory. Errors: *rail.LoopbackError, ErrClosed.
func (r *Rail) Probe(limit time.Duration) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return ErrClosed
	}
	r.making.Add(1)
	now := r.now
	r.mu.Unlock()
	defer r.making.Done()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	o := rail.LoopbackOptions{
		Timeout: r.opts.Timeout, Retries: r.opts.Retries,
		HopLimit: r.opts.HopLimit, TrafficClass: r.opts.TrafficClass,
	}
	if _, err := rail.Loopback(ctx, r.dev, now, o); err != nil {
		return fmt.Errorf("initiator: probe: %w", err)
	}
	return nil
}
