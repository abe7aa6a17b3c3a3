package pebble

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pdb "github.com/cockroachdb/pebble/v2"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// maxFlushFailures is how many writes of table files in a row may fail before commits are refused.
// The pauses between them add up to well under the time that fills the memtables, after which
// Pebble would stop every committer without end.
const maxFlushFailures = 3

// commits orders the commits and their syncs.
type commits struct {
	assigned atomic.Uint64 // last number given; its batch may be under application
	applied  atomic.Uint64 // last number whose batch, with all before, is visible to new snapshots
	durable  atomic.Uint64 // last number covered by a finished sync

	mu       sync.Mutex // held to validate and to apply, never during a sync
	tracker  *tracker
	open     *group // whom the next sync covers
	flying   *group // whom the sync under way covers, or nil
	leading  bool   // somebody leads or has been told to
	owner    *tx    // commits of others wait for it
	ownerEnd time.Time
}

// group is the transactions that one sync covers.
type group struct {
	members int
	seq     uint64        // last number in it, once its sync has begun
	lead    chan struct{} // tells one member to lead
	done    chan struct{} // closed when err is set
	err     error
}

func newGroup() *group {
	return &group{lead: make(chan struct{}, 1), done: make(chan struct{})}
}

// commit validates, applies and makes durable what t wrote. errConflict says that it must run again.
func (e *Engine) commit(ctx context.Context, t *tx) error {
	b := e.db.NewBatchWithSize(t.writes.bytes + 16*len(t.writes.sorted) + 64)
	defer func() { _ = b.Close() }() // gives memory back; an applied batch needs nothing of it
	for _, w := range t.writes.sorted {
		w.slot = slotOf(e.seed, w.key)
		var err error
		if w.deleted {
			err = b.Delete(w.key, nil)
		} else {
			err = b.Set(w.key, w.value, nil)
		}
		if err != nil {
			return fmt.Errorf("pebble: fill batch: %w", err)
		}
	}
	g, lead, err := e.apply(ctx, t, b)
	if err != nil {
		return err
	}
	t.end() // locks, turn and snapshot are not needed during the sync
	if lead {
		e.sync(g)
		return g.err
	}
	select {
	case <-g.done:
	case <-g.lead:
		e.sync(g)
	}
	return g.err
}

// apply does the part of a commit under the mutex and joins the group of the next sync.
func (e *Engine) apply(ctx context.Context, t *tx, b *pdb.Batch) (g *group, lead bool, err error) {
	c := &e.commits
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := e.awaitTurn(ctx, t); err != nil {
		return nil, false, err
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if err := e.writable(); err != nil {
		return nil, false, err
	}
	if t.snap != nil {
		if slot, changed := c.tracker.changed(&t.reads, t.low, e.seed); changed {
			t.run.lose(slot)
			return nil, false, errConflict
		}
	}
	seq := c.assigned.Load() + 1
	c.assigned.Store(seq) // before the batch is visible: see tx.begin
	if err := e.guarded(func() error { return e.db.Apply(b, pdb.NoSync) }); err != nil {
		return nil, false, err
	}
	c.applied.Store(seq)
	for _, w := range t.writes.sorted {
		c.tracker.record(seq, w.slot, w.key)
	}
	g, lead = c.join()
	return g, lead, nil
}

// writable says why nothing can be written, if so.
func (e *Engine) writable() error {
	if err := e.failure.writes(); err != nil {
		return err
	}
	if n, cause := e.guard.tableFailures(); n >= maxFlushFailures {
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, cause)
	}
	return nil
}

// guarded calls into Pebble's commit path. Pebble panics there on errors of the log; it is left with
// its locks taken, so after that nobody may enter it again.
func (e *Engine) guarded(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			e.failure.set(fmt.Errorf("pebble: commit: %w", panicked(p)), failAll)
			err = e.failure.writes()
			e.commitPanicked.Store(true)
		}
	}()
	if err := fn(); err != nil {
		e.failure.set(fmt.Errorf("pebble: commit: %w", err), failWrites)
	}
	return e.failure.writes()
}

// join enters the open group; lead says that the caller has to call sync with it.
func (c *commits) join() (g *group, lead bool) {
	g = c.open
	g.members++
	lead = !c.leading
	c.leading = true
	return g, lead
}

// sync makes the group durable that the caller is a member of, publishes its version and hands on.
func (e *Engine) sync(g *group) {
	c := &e.commits
	c.mu.Lock()
	c.open = newGroup()
	c.flying = g
	g.seq = c.applied.Load()
	v := &version{snap: e.db.NewSnapshot()}
	c.mu.Unlock()

	err := e.guarded(func() error {
		b := e.db.NewBatch()
		if err := b.LogData(nil, nil); err != nil {
			return err
		}
		if err := e.db.ApplyNoSyncWait(b, pdb.Sync); err != nil {
			return err
		}
		if err := b.SyncWait(); err != nil {
			return err
		}
		return b.Close()
	})

	if err == nil {
		c.durable.Store(g.seq)
		e.versions.publish(v)
	} else if !e.commitPanicked.Load() {
		_ = v.snap.Close() // only unregisters it
	}
	c.mu.Lock()
	g.err = err
	c.flying = nil
	if c.open.members > 0 {
		c.open.lead <- struct{}{}
	} else {
		c.leading = false
	}
	c.mu.Unlock()
	close(g.done)
}

// settle waits until everything up to the number is durable, which a transaction that committed
// nothing has seen.
func (e *Engine) settle(ctx context.Context, seq uint64) error {
	c := &e.commits
	if c.durable.Load() >= seq {
		return nil
	}
	c.mu.Lock()
	if err := e.failure.writes(); err != nil {
		c.mu.Unlock()
		return err
	}
	g, lead := c.flying, false
	joined := g == nil || g.seq < seq
	if joined {
		g, lead = c.join()
	}
	c.mu.Unlock()
	if lead {
		e.sync(g)
		return g.err
	}
	var told chan struct{}
	if joined {
		told = g.lead
	}
	select {
	case <-g.done:
		return g.err
	case <-told:
		e.sync(g)
		return g.err
	case <-ctx.Done():
		if joined {
			c.leave(g)
		}
		return ctx.Err()
	}
}

// leave takes back a membership. When the last member goes, nobody is left who could lead.
func (c *commits) leave(g *group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.members--
	if g.members > 0 {
		return
	}
	select {
	case <-g.lead:
		c.leading = false
	default:
	}
}
