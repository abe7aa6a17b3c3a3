package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	pdb "github.com/cockroachdb/pebble/v2"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// maxLocks bounds the keys that one transaction locks: a handful is usual, a batch delete of 1,000
// keys may lock each.
const maxLocks = 2048

var (
	// errConflict says that a try lost and the transaction runs again.
	errConflict = errors.New("pebble: commit transaction: conflict")
	// errEnded says that fn kept its Tx beyond its return.
	errEnded = errors.New("pebble: use transaction: it has ended")
)

// run is what the tries of one transaction share.
type run struct {
	age     uint64
	lost    bool                   // a try has lost over a key
	hotSlot uint32                 // its slot, of the last such try
	wanted  map[string]kv.LockMode // locks of tries that were ended to break a deadlock
}

// lose notes the slot of the key that a try lost over.
func (r *run) lose(slot uint32) { r.lost, r.hotSlot = true, slot }

// tx is one try.
type tx struct {
	e        *Engine
	run      *run
	err      error // once set, the try cannot commit
	snap     *pdb.Snapshot
	low      uint64 // the snapshot holds all up to this number
	high     uint64 // and nothing after this one
	reads    readSet
	writes   writes
	scanning int
	owner    lockOwner
	hot      chan struct{} // the queue that it heads, or nil
	turnDone chan struct{} // closed when its turn ends; nil without a turn. Set before it is owner
}

var _ kv.Tx = (*tx)(nil)

// Txn implements kv.Engine.
func (e *Engine) Txn(ctx context.Context, fn func(kv.Tx) error) error {
	if !e.gate.enter() {
		return kv.ErrClosed
	}
	defer e.gate.leave()
	r := &run{age: e.ages.Add(1)}
	for try := range maxTries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := e.attempt(ctx, fn, r, try); err != errConflict { //nolint:errorlint // never wrapped
			return err
		}
	}
	return fmt.Errorf("pebble: commit transaction: lost %d times: %w", maxTries, kv.ErrConflict)
}

// attempt is one try. It returns errConflict when the transaction has to run again.
func (e *Engine) attempt(ctx context.Context, fn func(kv.Tx) error, r *run, try int) error {
	t := &tx{e: e, run: r, owner: lockOwner{age: r.age}, writes: writes{pool: &e.values}}
	defer t.end() // also when fn panics
	if len(r.wanted) > 0 {
		if err := t.relock(ctx); err != nil {
			return err
		}
	}
	if r.lost {
		t.compete(ctx, try)
	}
	err := fn(t)
	if t.err == errConflict { //nolint:errorlint // never wrapped
		return errConflict
	}
	if err == nil {
		err = t.err
	}
	if err == nil && len(t.writes.sorted) > 0 {
		return e.commit(ctx, t)
	}
	high := t.high
	t.end()
	if serr := e.settle(ctx, high); serr != nil {
		return serr
	}
	return err
}

// end gives back everything that the try holds. Calling it again has no effect.
func (t *tx) end() {
	t.err = errEnded
	t.yield()
	t.e.locks.release(&t.owner)
	if t.snap != nil {
		if !t.e.commitPanicked.Load() {
			_ = t.snap.Close() // only unregisters it
		}
		t.snap = nil
	}
	t.writes.free()
}

// begin takes the snapshot that the try reads from. A batch in the snapshot had its number assigned
// before, and a batch whose number counts as applied before is in it.
func (t *tx) begin() error {
	if t.snap != nil {
		return nil
	}
	if err := t.e.failure.reads(); err != nil {
		return err
	}
	t.low = t.e.commits.applied.Load()
	t.snap = t.e.db.NewSnapshot()
	t.high = t.e.commits.assigned.Load()
	return nil
}

// extend moves the snapshot to now if nothing that was read has changed, which waiting for a lock
// makes likely to pay.
func (t *tx) extend() error {
	c := &t.e.commits
	if t.snap == nil || t.scanning > 0 || c.applied.Load() == t.low {
		return nil
	}
	c.mu.Lock()
	slot, changed := c.tracker.changed(&t.reads, t.low, t.e.seed)
	if changed {
		c.mu.Unlock()
		t.run.lose(slot)
		t.err = errConflict
		return t.err
	}
	old := t.snap
	t.low, t.high = c.applied.Load(), c.assigned.Load()
	t.snap = t.e.db.NewSnapshot()
	c.mu.Unlock()
	_ = old.Close() // only unregisters it
	return nil
}

// Get implements kv.Reader.
func (t *tx) Get(ctx context.Context, key []byte) ([]byte, error) {
	if t.err != nil {
		return nil, t.err
	}
	if i, found := t.writes.find(key); found {
		if t.writes.sorted[i].deleted {
			return nil, kv.ErrNotFound
		}
		return append([]byte{}, t.writes.sorted[i].value...), nil
	}
	if err := t.begin(); err != nil {
		return nil, err
	}
	t.reads.addSlot(slotOf(t.e.seed, key))
	return get(ctx, t.snap, key)
}

// Scan implements kv.Reader.
func (t *tx) Scan(ctx context.Context, from, to []byte, fn func(k, v []byte) (kv.Next, error)) error {
	if t.err != nil {
		return t.err
	}
	if err := t.begin(); err != nil {
		return err
	}
	t.scanning++
	defer func() { t.scanning-- }()
	return scan(ctx, t.snap, scanRange{from: from, to: to, own: &t.writes, seen: t.reads.addRange}, fn)
}

// Put implements kv.Tx.
func (t *tx) Put(key, value []byte) error { return t.set(write{key: key, value: value}) }

// Delete implements kv.Tx.
func (t *tx) Delete(key []byte) error { return t.set(write{key: key, deleted: true}) }

func (t *tx) set(w write) error {
	if t.err == nil {
		t.err = t.writes.set(w)
	}
	return t.err
}

// Lock implements kv.Tx.
func (t *tx) Lock(ctx context.Context, key []byte, mode kv.LockMode) error {
	if t.err != nil {
		return t.err
	}
	if len(key) > kv.MaxKeyBytes || len(t.owner.held) >= maxLocks {
		t.err = fmt.Errorf("pebble: lock key: %w", kv.ErrTooLarge)
		return t.err
	}
	if err := t.lock(ctx, key, mode); err != nil {
		return err
	}
	return t.extend()
}

func (t *tx) lock(ctx context.Context, key []byte, mode kv.LockMode) error {
	if err := ctx.Err(); err != nil {
		t.err = err
		return err
	}
	w, err := t.e.locks.try(&t.owner, key, mode)
	if w != nil {
		t.yield() // the holder may have to commit before it lets go
		err = t.e.locks.wait(ctx, w, t.e.gate.closing)
	}
	if errors.Is(err, errDeadlock) {
		t.remember(key, mode)
		err = errConflict
	}
	t.err = err
	return err
}

// remember notes the locks that this try took or asked for, so that the next one takes them in order.
func (t *tx) remember(key []byte, mode kv.LockMode) {
	if t.run.wanted == nil {
		t.run.wanted = make(map[string]kv.LockMode)
	}
	t.run.wanted[string(key)] = max(mode, t.run.wanted[string(key)])
	for k, m := range t.e.locks.heldBy(&t.owner) {
		t.run.wanted[k] = max(m, t.run.wanted[k])
	}
}

// relock takes the locks of a try that ended in a deadlock, in the order of their keys.
func (t *tx) relock(ctx context.Context) error {
	keys := make([]string, 0, len(t.run.wanted))
	for k := range t.run.wanted {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if err := t.lock(ctx, []byte(k), t.run.wanted[k]); err != nil {
			return err
		}
	}
	return nil
}

// successor returns the first key after key.
func successor(key []byte) []byte { return append(bytes.Clone(key), 0) }
