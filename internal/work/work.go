// Package work does what must happen in the background: garbage collection and, at start, the
// orphan check.
//
// Called by: server.
//
// Invariants:
//  1. A queue entry is dropped only after every chunk it names was deleted durably. Deleting is
//     idempotent, so an entry that was half worked off when the process died is worked off again.
//  2. An orphan is queued in the transaction that found neither a live epoch nor a live owner for it;
//     an owner's id is never used again and a dead epoch commits nothing, so this cannot change.
//  3. Nothing here holds more than a batch in memory or in one transaction.
//  4. When any chunk is newer than the metadata (its epoch was not given out yet), the metadata are
//     not the ones that the drives belong to, and nothing is taken for an orphan.
//
// Lock order: none; a Collector runs one collection at a time, under running.
//
// What it does not do: wait for readers or graces (the chunk engine does), choose what is garbage
// (store does).
package work

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta/kv"
)

const (
	// DefaultInterval is between runs that nobody asked for.
	DefaultInterval = 30 * time.Second
	// entryBatch is how many queue entries are read at a time.
	entryBatch = 64
	// partBatch is how many parts or uploads are worked off in one transaction: some 10 KiB of keys.
	partBatch = 100
	// orphanBatch is how many chunks are judged in one transaction: 40 bytes each as garbage.
	orphanBatch = 256
	// deleteParallel is how many chunk deletions are under way: they share syncs.
	deleteParallel = 8
)

// ErrForeignMetadata says that chunks carry epochs that the metadata have not reached: old or empty
// metadata were started on newer drives.
var ErrForeignMetadata = errors.New("work: chunks are newer than the metadata")

// Options of a Collector. The engines stay the caller's.
type Options struct {
	KV     kv.Engine
	Chunks chunk.Engine
	Epoch  uint64 // the epoch of the running store

	Interval time.Duration    // between runs without a Wake; 0 means DefaultInterval
	Now      func() time.Time // nil means time.Now
	Log      *slog.Logger     // nil discards
}

// Collector deletes chunks and records that no object refers to any more.
type Collector struct {
	o    Options
	wake chan struct{}

	running sync.Mutex // held by the collection under way
}

// New returns a Collector that does nothing yet.
func New(o Options) *Collector {
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Collector{o: o, wake: make(chan struct{}, 1)}
}

// Run does the orphan check until it succeeded once, and collects at start, on every Wake and every
// Interval, until ctx ends. It returns ctx's error.
func (c *Collector) Run(ctx context.Context) error {
	ticker := time.NewTicker(c.o.Interval)
	defer ticker.Stop()
	checked := false
	for {
		if !checked {
			stats, err := c.CheckOrphans(ctx)
			checked = err == nil || errors.Is(err, ErrForeignMetadata)
			c.report(ctx, "orphan check", stats, err)
		}
		stats, err := c.RunOnce(ctx)
		c.report(ctx, "garbage collection", stats, err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.wake:
		case <-ticker.C:
		}
	}
}

func (c *Collector) report(ctx context.Context, what string, s Stats, err error) {
	switch {
	case err != nil && ctx.Err() == nil:
		c.o.Log.ErrorContext(ctx, "background work is not complete", "work", what, "error", err)
	case s.Orphans > 0:
		c.o.Log.InfoContext(ctx, "orphans found", "chunks", s.Orphans)
	}
}

// Wake asks a running Run for a collection soon. It never blocks. store.Options.OnGarbage takes it.
func (c *Collector) Wake() {
	select {
	case c.wake <- struct{}{}:
	default: // one is asked for already
	}
}

// Stats of one run.
type Stats struct {
	Entries int   // queue entries worked off
	Chunks  int   // chunks deleted
	Bytes   int64 // their payload
	Orphans int   // chunks and chunk pages found without an owner
}
