package kvtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// settleTime is how long a test watches that something does not happen. It can only miss a fault.
const settleTime = 20 * time.Millisecond

// neverWithin reports whether c stays open for settleTime.
func neverWithin(c <-chan struct{}) bool {
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	select {
	case <-c:
		return false
	case <-timer.C:
		return true
	}
}

// holding runs a transaction that locks the key and holds it until release is called, which waits
// for its end. The first lock is held when holding returns.
func holding(t *testing.T, e kv.Engine, key string, mode kv.LockMode) (release func()) {
	t.Helper()
	ctx := within(t)
	held, let, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		err := e.Txn(ctx, func(tx kv.Tx) error {
			if err := tx.Lock(ctx, []byte(key), mode); err != nil {
				return err
			}
			once.Do(func() { close(held) })
			<-let
			return nil
		})
		if err != nil {
			t.Errorf("holder of %s: %v", key, err)
		}
	}()
	select {
	case <-held:
	case <-done: // with an error, which is reported
	}
	return sync.OnceFunc(func() { close(let); <-done })
}

// locking starts a transaction that locks the key; the channel closes when it has the lock.
func locking(t *testing.T, e kv.Engine, key string, mode kv.LockMode) <-chan struct{} {
	ctx := within(t)
	held, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		err := e.Txn(ctx, func(tx kv.Tx) error {
			if err := tx.Lock(ctx, []byte(key), mode); err != nil {
				return err
			}
			once.Do(func() { close(held) })
			return nil
		})
		if err != nil {
			t.Errorf("lock %s: %v", key, err)
		}
	}()
	t.Cleanup(func() { <-done })
	return held
}

func testLockModes(t *testing.T, e kv.Engine) {
	for _, c := range []struct {
		first, second kv.LockMode
		key           string
		together      bool
	}{
		{kv.Shared, kv.Shared, "k", true},
		{kv.Shared, kv.Exclusive, "k", false},
		{kv.Exclusive, kv.Shared, "k", false},
		{kv.Exclusive, kv.Exclusive, "k", false},
		{kv.Exclusive, kv.Exclusive, "other", true},
	} {
		release := holding(t, e, "k", c.first)
		second := locking(t, e, c.key, c.second)
		if c.together {
			<-second
		} else if !neverWithin(second) {
			t.Errorf("mode %d was granted beside mode %d", c.second, c.first)
		}
		release()
		<-second
	}
}

func testLockAgain(t *testing.T, e kv.Engine) {
	ctx := within(t)
	must(t, e, func(tx kv.Tx) error {
		for _, mode := range []kv.LockMode{
			kv.Shared, kv.Shared, kv.Exclusive, kv.Exclusive, kv.Shared, kv.Exclusive,
		} {
			if err := tx.Lock(ctx, []byte("k"), mode); err != nil {
				return err
			}
		}
		return tx.Put([]byte("k"), []byte("1"))
	})
	// A holder that asks again does not stand in line behind somebody who waits for it.
	var waiter <-chan struct{}
	var once sync.Once
	must(t, e, func(tx kv.Tx) error {
		if err := tx.Lock(ctx, []byte("k"), kv.Shared); err != nil {
			return err
		}
		once.Do(func() { waiter = locking(t, e, "k", kv.Exclusive) })
		neverWithin(waiter)
		return tx.Lock(ctx, []byte("k"), kv.Shared)
	})
	<-waiter
}

// testLockUpgrade: many hold a key shared and then want it exclusive; each must get it in the end.
func testLockUpgrade(t *testing.T, e kv.Engine) {
	ctx := within(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				err := retried(ctx, e, func(tx kv.Tx) error {
					if err := tx.Lock(ctx, []byte("k"), kv.Shared); err != nil {
						return err
					}
					n, err := number(ctx, tx, "k")
					if err != nil {
						return err
					}
					if err := tx.Lock(ctx, []byte("k"), kv.Exclusive); err != nil {
						return err
					}
					return putNumber(tx, "k", n+1)
				})
				if err != nil {
					t.Errorf("txn: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if n, err := number(ctx, snapshot(t, e), "k"); err != nil || n != 40 {
		t.Errorf("counter is %d, %v; want 40", n, err)
	}
}

// testLockOrder takes locks in all orders and modes: there must be no deadlock, and holders of an
// exclusive lock must be alone. A plain variable is what the locks protect.
func testLockOrder(t *testing.T, e kv.Engine) {
	ctx := within(t)
	const keys = 4
	var writers, readers [keys]atomic.Int32
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 6))
			for range 25 {
				order := rng.Perm(keys)[:1+rng.IntN(keys)]
				modes := rng.Uint32()
				err := retried(ctx, e, func(tx kv.Tx) error {
					var undo []func()
					defer func() {
						for _, fn := range undo {
							fn()
						}
					}()
					for _, k := range order {
						mode := kv.LockMode(modes >> k & 1)
						if err := tx.Lock(ctx, fmt.Append(nil, k), mode); err != nil {
							return err
						}
						mine := &readers[k]
						if mode == kv.Exclusive {
							mine = &writers[k]
						}
						mine.Add(1)
						undo = append(undo, func() { mine.Add(-1) })
						runtime.Gosched()
						if w := writers[k].Load(); w > 1 || (w == 1 && readers[k].Load() > 0) {
							t.Errorf("key %d has %d writers and %d readers", k, w, readers[k].Load())
						}
					}
					return nil
				})
				if err != nil {
					t.Errorf("txn: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

// testLockCycle closes cycles of 2 to 5 transactions, each of which holds one key and wants the next.
func testLockCycle(t *testing.T, e kv.Engine) {
	ctx := within(t)
	for n := 2; n <= 5; n++ {
		m := newMeet(n)
		name := func(i int) string { return fmt.Sprint("cycle", n, "-", i%n) }
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				err := retried(ctx, e, func(tx kv.Tx) error {
					if err := tx.Lock(ctx, []byte(name(i)), kv.Exclusive); err != nil {
						return err
					}
					m.wait(i)
					if err := tx.Lock(ctx, []byte(name(i+1)), kv.Exclusive); err != nil {
						return err
					}
					for _, key := range []string{name(i), name(i + 1)} {
						v, err := number(ctx, tx, key)
						if err != nil {
							return err
						}
						if err := putNumber(tx, key, v+1); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Errorf("txn: %v", err)
				}
			})
		}
		wg.Wait()
		for i := range n {
			if v, err := number(ctx, snapshot(t, e), name(i)); err != nil || v != 2 {
				t.Errorf("%s is %d, %v; want 2", name(i), v, err)
			}
		}
	}
}

// testLockStale: what a transaction read before it waited for a lock may be old when it gets it.
func testLockStale(t *testing.T, e kv.Engine) {
	ctx := within(t)
	for _, changed := range []bool{true, false} {
		put(t, e, "n", "1")
		runs := 0
		must(t, e, func(tx kv.Tx) error {
			runs++
			n, err := number(ctx, tx, "n")
			if err != nil {
				return err
			}
			if runs == 1 {
				other := "other"
				if changed {
					other = "n"
				}
				put(t, e, other, "10")
			}
			if err := tx.Lock(ctx, []byte("k"), kv.Exclusive); err != nil {
				return err
			}
			m, err := number(ctx, tx, "n")
			if err != nil {
				return err
			}
			if m != n {
				t.Errorf("read %d before the lock and %d after it", n, m)
			}
			return putNumber(tx, "n", n+1)
		})
		want := 2
		if changed {
			want = 11
		}
		if n, err := number(ctx, snapshot(t, e), "n"); err != nil || n != want {
			t.Errorf("n is %d, %v; want %d", n, err, want)
		}
	}
}

// testLockFair: holders relieve each other so that the key is never free; somebody who wants it in a
// mode that excludes them must get it all the same.
func testLockFair(t *testing.T, e kv.Engine) {
	for _, mode := range []kv.LockMode{kv.Shared, kv.Exclusive} {
		release := holding(t, e, "k", mode)
		wanted := locking(t, e, "k", kv.Exclusive)
		neverWithin(wanted) // by now it stands in line
		granted := false
		for range 10 {
			var next func()
			relieved := make(chan struct{})
			go func() { next = holding(t, e, "k", mode); close(relieved) }()
			neverWithin(relieved) // with a fair engine it waits, too
			release()
			<-relieved
			select {
			case <-wanted:
				granted = true
			default:
			}
			release = next
		}
		release()
		if !granted {
			t.Errorf("ten holders of mode %d that came later were served before", mode)
		}
	}
}

// testLockEnds: a lock ends with its transaction, however that ends, and a waiter can give up.
func testLockEnds(t *testing.T, e kv.Engine) {
	ctx := within(t)
	no := errors.New("no")
	err := e.Txn(ctx, func(tx kv.Tx) error {
		return errors.Join(tx.Lock(ctx, []byte("k"), kv.Exclusive), no)
	})
	if !errors.Is(err, no) {
		t.Errorf("txn: %v", err)
	}
	<-locking(t, e, "k", kv.Exclusive)

	release := holding(t, e, "k", kv.Shared)
	impatient, cancel := context.WithCancel(ctx)
	waiting := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		waiting <- e.Txn(impatient, func(tx kv.Tx) error {
			close(started)
			return tx.Lock(impatient, []byte("k"), kv.Exclusive)
		})
	}()
	<-started
	behind := locking(t, e, "k", kv.Shared)
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("waiter that gave up: %v", err)
	}
	<-behind // whoever gave up does not stand in the way
	release()
}

// testLockSeal is a multipart upload: parts hold the upload shared, the seal takes it exclusive.
// Every part that was acknowledged must be in the count of the seal.
func testLockSeal(t *testing.T, e kv.Engine) {
	ctx := within(t)
	for round := range 5 {
		upload := fmt.Sprint("upload", round)
		var acknowledged atomic.Int32
		var wg sync.WaitGroup
		first := make(chan struct{})
		var once sync.Once
		for part := range 16 {
			wg.Go(func() {
				refused := false
				err := retried(ctx, e, func(tx kv.Tx) error {
					if err := tx.Lock(ctx, []byte(upload), kv.Shared); err != nil {
						return err
					}
					sealed, err := get(ctx, tx, upload)
					if refused = sealed != ""; err != nil || refused {
						return err
					}
					return tx.Put(fmt.Appendf(nil, "%s/%02d", upload, part), nil)
				})
				if err != nil {
					t.Errorf("part: %v", err)
				} else if !refused {
					acknowledged.Add(1)
				}
				once.Do(func() { close(first) })
			})
		}
		<-first
		must(t, e, func(tx kv.Tx) error {
			if err := tx.Lock(ctx, []byte(upload), kv.Exclusive); err != nil {
				return err
			}
			parts, err := collect(ctx, tx, []byte(upload+"/"), []byte(upload+"0"))
			if err != nil {
				return err
			}
			return tx.Put([]byte(upload), fmt.Appendf(nil, "%d", len(parts)))
		})
		wg.Wait()
		s := snapshot(t, e)
		sealed, err := number(ctx, s, upload)
		parts, perr := collect(ctx, s, []byte(upload+"/"), []byte(upload+"0"))
		if n := int(acknowledged.Load()); err != nil || perr != nil || sealed != n || len(parts) != n {
			t.Errorf("sealed with %d of %d parts, %d acknowledged, %v, %v", sealed, len(parts), n, err, perr)
		}
	}
}
