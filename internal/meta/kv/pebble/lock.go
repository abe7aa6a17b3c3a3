package pebble

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// errDeadlock says that a transaction was chosen to break a cycle of waiting ones.
var errDeadlock = errors.New("pebble: lock: deadlock broken")

// lockOwner is the lock side of one try of a transaction.
type lockOwner struct {
	age   uint64 // lower is older; the same in every try
	held  []*keyLock
	waits *lockWaiter
}

// keyLock is one locked key. It exists while somebody holds or awaits it.
type keyLock struct {
	key     string
	holders []lockHolder
	queue   []*lockWaiter // first come, first served; upgrades in front
}

type lockHolder struct {
	owner *lockOwner
	mode  kv.LockMode
}

type lockWaiter struct {
	owner *lockOwner
	lock  *keyLock
	mode  kv.LockMode
	ready chan error // gets one value: nil when granted
}

// lockTable holds the locks of an engine.
type lockTable struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

func newLockTable() *lockTable { return &lockTable{locks: make(map[string]*keyLock)} }

func (l *keyLock) holder(o *lockOwner) int {
	return slices.IndexFunc(l.holders, func(h lockHolder) bool { return h.owner == o })
}

// compatible reports whether o may hold the lock in the mode beside its other holders.
func (l *keyLock) compatible(o *lockOwner, mode kv.LockMode) bool {
	for _, h := range l.holders {
		if h.owner != o && (mode == kv.Exclusive || h.mode == kv.Exclusive) {
			return false
		}
	}
	return true
}

func (l *keyLock) grant(o *lockOwner, mode kv.LockMode) {
	if i := l.holder(o); i >= 0 {
		l.holders[i].mode = mode
		return
	}
	l.holders = append(l.holders, lockHolder{owner: o, mode: mode})
	o.held = append(o.held, l)
}

// try takes the lock if that needs no waiting; otherwise it returns a queued waiter, or
// errDeadlock.
func (t *lockTable) try(o *lockOwner, key []byte, mode kv.LockMode) (*lockWaiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.locks[string(key)]
	if l == nil {
		l = &keyLock{key: string(key)}
		t.locks[l.key] = l
	}
	at := l.holder(o)
	if at >= 0 && (l.holders[at].mode == kv.Exclusive || mode == kv.Shared) {
		return nil, nil
	}
	upgrade := at >= 0
	if l.compatible(o, mode) && (upgrade || len(l.queue) == 0) {
		l.grant(o, mode)
		return nil, nil
	}
	w := &lockWaiter{owner: o, lock: l, mode: mode, ready: make(chan error, 1)}
	o.waits = w
	if upgrade {
		l.queue = slices.Insert(l.queue, 0, w)
	} else {
		l.queue = append(l.queue, w)
	}
	for {
		cycle := t.cycle(o)
		if cycle == nil {
			return w, nil
		}
		victim := slices.MaxFunc(cycle, func(a, b *lockOwner) int { return cmpAge(a, b) })
		t.refuse(victim.waits, errDeadlock)
		if victim == o {
			return nil, errDeadlock
		}
		if o.waits == nil { // the victim's place in the queue was all that stood before us
			return w, nil
		}
	}
}

func cmpAge(a, b *lockOwner) int {
	switch {
	case a.age < b.age:
		return -1
	case a.age > b.age:
		return 1
	}
	return 0
}

// wait waits for a waiter that try returned, until ctx ends or stop is closed.
func (t *lockTable) wait(ctx context.Context, w *lockWaiter, stop <-chan struct{}) error {
	var err error
	select {
	case err := <-w.ready:
		return err
	case <-ctx.Done():
		err = ctx.Err()
	case <-stop:
		err = kv.ErrClosed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.owner.waits == w {
		t.refuse(w, err)
	}
	return err // a lock granted meanwhile is released with the others of the owner
}

// refuse takes a waiter out of its queue with an error, which may let others through.
func (t *lockTable) refuse(w *lockWaiter, err error) {
	w.owner.waits = nil
	w.ready <- err
	w.lock.queue = slices.DeleteFunc(w.lock.queue, func(q *lockWaiter) bool { return q == w })
	t.promote(w.lock)
}

// promote grants the lock to as many at the head of its queue as can hold it together.
func (t *lockTable) promote(l *keyLock) {
	for len(l.queue) > 0 {
		w := l.queue[0]
		if !l.compatible(w.owner, w.mode) {
			return
		}
		l.queue = slices.Delete(l.queue, 0, 1)
		l.grant(w.owner, w.mode)
		w.owner.waits = nil
		w.ready <- nil
	}
	if len(l.holders) == 0 {
		delete(t.locks, l.key)
	}
}

// release gives back all locks of an owner that waits for none.
func (t *lockTable) release(o *lockOwner) {
	if len(o.held) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range o.held {
		l.holders = slices.DeleteFunc(l.holders, func(h lockHolder) bool { return h.owner == o })
		t.promote(l)
	}
	o.held = nil
}

// blockers calls fn for the owners that a waiter waits for: conflicting holders, and whoever stands
// before it in the queue.
func (w *lockWaiter) blockers(fn func(*lockOwner)) {
	for _, h := range w.lock.holders {
		if h.owner != w.owner && (w.mode == kv.Exclusive || h.mode == kv.Exclusive) {
			fn(h.owner)
		}
	}
	for _, q := range w.lock.queue {
		if q == w {
			return
		}
		fn(q.owner)
	}
}

// cycle returns the owners of a cycle of waiting through o, or nil. Before o began to wait there was
// no cycle, so any that exists now runs through it.
func (t *lockTable) cycle(o *lockOwner) []*lockOwner {
	if o.waits == nil {
		return nil
	}
	cameFrom := map[*lockOwner]*lockOwner{}
	todo := []*lockOwner{o}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if at.waits == nil {
			continue
		}
		closed := false
		at.waits.blockers(func(b *lockOwner) {
			if b == o {
				closed = true
			} else if _, seen := cameFrom[b]; !seen {
				cameFrom[b] = at
				todo = append(todo, b)
			}
		})
		if closed {
			path := []*lockOwner{o}
			for ; at != o; at = cameFrom[at] {
				path = append(path, at)
			}
			return path
		}
	}
	return nil
}

// heldBy returns the locks of an owner.
func (t *lockTable) heldBy(o *lockOwner) map[string]kv.LockMode {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := make(map[string]kv.LockMode, len(o.held))
	for _, l := range o.held {
		held[l.key] = l.holders[l.holder(o)].mode
	}
	return held
}
