package local

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/drive"
)

const (
	// DefaultStuckAfter is how long a device operation may take after its request has ended before the
	// call returns without it. A busy disk answers in less; a deadline of 8 s leaves 2 s between
	// the last post and the fence (docs/wire.md), of which this is a small part.
	DefaultStuckAfter = 250 * time.Millisecond

	// maxStuck bounds calls that were given up while the device hangs: each keeps a goroutine, an OS
	// thread or more, and buffers. A device with that many is not coming back by being asked again.
	maxStuck = 64

	// pieceBytes is read by one system call and verified at once, while it is in the second-level cache
	// of a core (1 MiB here). Measured against 64 and 256 KiB: fewer system calls than the one, less
	// CPU per GB than the other.
	pieceBytes = 128 << 10

	// readDepth bounds the goroutines of one read. More than four pieces at a time do not
	// make a disk faster for one stream, and the next request has its own.
	readDepth = 4

	// slowPiece is the time above which a piece did not come from memory: below 0.25 GB/s.
	slowPiece = 500 * time.Microsecond

	// writeDepth bounds the writes of one chunk that are with the device. It equals the buffers of
	// a fabric reservation; 2 MiB in flight already keep the disks at hand busy.
	writeDepth = 4
)

var (
	_ chunk.Engine = (*Engine)(nil)
	_ chunk.Pinner = (*Engine)(nil)
	_ chunk.Walker = (*Engine)(nil)
)

// Options of an Engine.
type Options struct {
	Drive      *drive.Drive  // stays the caller's; it is closed after the Engine
	StuckAfter time.Duration // 0 means DefaultStuckAfter
}

// Engine is a chunk engine over one drive. It is safe for concurrent use.
type Engine struct {
	drive      *drive.Drive
	stuckAfter time.Duration
	cores      int64

	reads     atomic.Int64 // reads that run now
	stuck     atomic.Int64 // calls given up whose goroutine still runs
	counters  counters
	mu        sync.Mutex
	closed    bool          // guarded by mu
	running   int           // goroutines of calls, guarded by mu
	quiescent chan struct{} // closed when running falls to 0 after Close, guarded by mu
}

type counters struct {
	givenUp, corrupt, deviceErrors, interference atomic.Int64
}

// Stats are counts for metrics.
type Stats struct {
	Drive drive.Stats
	State drive.State

	Stuck        int64 // calls that were given up and whose device operation hangs now
	GivenUp      int64 // calls that were ever given up
	Corrupt      int64 // reads that found bad bytes on the drive
	DeviceErrors int64 // reads and writes that the device failed
	Interference int64 // pieces that were bad in client memory and good on the drive
}

// New returns an engine over an open drive.
func New(o Options) *Engine {
	if o.StuckAfter == 0 {
		o.StuckAfter = DefaultStuckAfter
	}
	return &Engine{drive: o.Drive, stuckAfter: o.StuckAfter, cores: int64(runtime.GOMAXPROCS(0))}
}

// Stats counts.
func (e *Engine) Stats() (Stats, error) {
	d, err := e.drive.Stats()
	if err != nil {
		return Stats{}, fmt.Errorf("chunk: stats of drive %v: %w", e.drive.ID(), err)
	}
	return Stats{
		Drive:        d,
		State:        e.drive.State(),
		Stuck:        e.stuck.Load(),
		GivenUp:      e.counters.givenUp.Load(),
		Corrupt:      e.counters.corrupt.Load(),
		DeviceErrors: e.counters.deviceErrors.Load(),
		Interference: e.counters.interference.Load(),
	}, nil
}

// Close refuses further calls and waits until those under way have ended, stuck ones included. When ctx
// ends first it says how many are left; the drive must not be closed then.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	if e.quiescent == nil {
		e.quiescent = make(chan struct{})
		if e.running == 0 {
			close(e.quiescent)
		}
	}
	quiescent := e.quiescent
	e.mu.Unlock()
	select {
	case <-quiescent:
		return nil
	case <-ctx.Done():
		e.mu.Lock()
		defer e.mu.Unlock()
		return fmt.Errorf("chunk: close engine: %d calls still run: %w", e.running, context.Cause(ctx))
	}
}

func key(id chunk.ID) drive.Key { return drive.Key{Chunk: id} }

// translate gives errors of the drive the classes of package chunk. An error that is the context's
// stays what it is.
func translate(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case err == nil, cause != nil && errors.Is(err, cause):
		return err
	case errors.Is(err, drive.ErrNotFound):
		return fmt.Errorf("%w: %w", chunk.ErrNotFound, err)
	case errors.Is(err, drive.ErrCorrupt):
		return fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
	case errors.Is(err, drive.ErrNoSpace):
		return fmt.Errorf("%w: %w", chunk.ErrNoSpace, err)
	default: // read-only, closed, or the device's own error
		return fmt.Errorf("%w: %w", chunk.ErrUnavailable, err)
	}
}

// Delete implements chunk.Engine.
func (e *Engine) Delete(ctx context.Context, ref chunk.Ref) error {
	if err := e.drive.Delete(key(ref.ID)); err != nil {
		return fmt.Errorf("chunk %v: delete: %w", ref.ID, translate(ctx, err))
	}
	return nil
}

// Pin implements chunk.Pinner.
func (e *Engine) Pin(ctx context.Context, refs ...chunk.Ref) (unpin func(), err error) {
	unpins := make([]func(), 0, len(refs))
	all := func() {
		for _, u := range unpins {
			u()
		}
	}
	for _, ref := range refs {
		u, err := e.drive.Pin(key(ref.ID))
		if err != nil {
			all()
			return nil, fmt.Errorf("chunk %v: pin: %w", ref.ID, translate(ctx, err))
		}
		unpins = append(unpins, u)
	}
	return all, nil
}

// Walk implements chunk.Walker.
func (e *Engine) Walk(ctx context.Context, fn func(chunk.Ref, chunk.Owner) error) error {
	var own error // fn's errors are not the drive's
	err := e.drive.Walk(ctx, func(r drive.Record) error {
		own = fn(refOf(r), chunk.Owner{ID: r.Owner, Epoch: r.Epoch})
		return own
	})
	switch {
	case own != nil:
		return own
	case err != nil:
		return fmt.Errorf("chunk: walk: %w", translate(ctx, err))
	}
	return nil
}

func refOf(r drive.Record) chunk.Ref {
	return chunk.Ref{
		ID:        r.Chunk,
		Scheme:    chunk.Scheme{Data: r.Data, Parity: r.Parity},
		Length:    r.ChunkLength,
		CRC64NVME: r.ChunkCRC,
	}
}
