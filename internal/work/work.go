// Package work does what must happen in the background: garbage collection and, at start, the
// orphan check.
//
// Called by: server.
package work

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta/kv"
)

// Options of a Collector. The engines stay the caller's.
type Options struct {
	KV     kv.Engine
	Chunks chunk.Engine

	Interval time.Duration    // between runs without a Wake; 0 means DefaultInterval
	Now      func() time.Time // nil means time.Now
	Log      *slog.Logger     // nil discards
}

// DefaultInterval is between runs that nobody asked for.
const DefaultInterval = 30 * time.Second

// Collector deletes chunks and records that no object refers to any more.
type Collector struct{ options Options }

// New returns a Collector that does nothing yet.
func New(o Options) *Collector { return &Collector{options: o} }

// Run does the orphan check once, then collects at start, on every Wake and every Interval, until
// ctx ends. It returns ctx's error.
func (c *Collector) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Wake asks a running Run for a collection soon. It never blocks. store.Options.OnGarbage takes it.
func (c *Collector) Wake() {}

// Stats of one run.
type Stats struct {
	Entries, Chunks, Orphans int
	Bytes                    int64
}

// RunOnce collects all that is due now.
func (c *Collector) RunOnce(ctx context.Context) (Stats, error) {
	return Stats{}, errors.ErrUnsupported
}

// CheckOrphans removes chunks and records that a dead epoch left behind.
func (c *Collector) CheckOrphans(ctx context.Context) (Stats, error) {
	return Stats{}, errors.ErrUnsupported
}
