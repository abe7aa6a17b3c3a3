package kvtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

func testLimits(t *testing.T, e kv.Engine) {
	ctx := within(t)
	l := e.Limits()
	if l.KeyBytes < kv.MaxKeyBytes || l.ValueBytes < kv.MaxValueBytes || l.TxnBytes < kv.MaxTxnBytes {
		t.Fatalf("limits %+v are below those of the contract", l)
	}
	big := filled('v', l.ValueBytes)
	must(t, e, func(tx kv.Tx) error { return tx.Put(filled('k', l.KeyBytes), big) })
	if v, err := snapshot(t, e).Get(ctx, filled('k', l.KeyBytes)); err != nil || !slices.Equal(v, big) {
		t.Errorf("largest value came back with %d bytes, %v", len(v), err)
	}
	for name, write := range map[string]func(kv.Tx) error{
		"key":        func(tx kv.Tx) error { return tx.Put(filled('k', l.KeyBytes+1), nil) },
		"delete key": func(tx kv.Tx) error { return tx.Delete(filled('k', l.KeyBytes+1)) },
		"lock key":   func(tx kv.Tx) error { return tx.Lock(ctx, filled('k', l.KeyBytes+1), kv.Shared) },
		"value":      func(tx kv.Tx) error { return tx.Put([]byte("x"), filled('v', l.ValueBytes+1)) },
		"txn":        func(tx kv.Tx) error { return fillTxn(tx, l.TxnBytes+1) },
	} {
		for _, swallow := range []bool{false, true} {
			err := e.Txn(ctx, func(tx kv.Tx) error {
				err := errors.Join(tx.Put([]byte("small"), nil), write(tx))
				if swallow {
					return nil
				}
				return err
			})
			if !errors.Is(err, kv.ErrTooLarge) {
				t.Errorf("%s over the limit, error swallowed by fn %v: %v", name, swallow, err)
			}
		}
	}
	if v, err := snapshot(t, e).Get(ctx, []byte("small")); !errors.Is(err, kv.ErrNotFound) {
		t.Errorf("a refused transaction wrote %q, %v", v, err)
	}
	must(t, e, func(tx kv.Tx) error { return fillTxn(tx, l.TxnBytes) })
	// Writing a key again counts once.
	must(t, e, func(tx kv.Tx) error {
		for range l.TxnBytes/len(big) + 2 {
			if err := tx.Put([]byte("again"), big); err != nil {
				return err
			}
		}
		return nil
	})
}

// fillTxn writes keys and values of n bytes in all.
func fillTxn(tx kv.Tx, n int) error {
	const keyBytes = 8
	for i := 0; n > 0; i++ {
		size := min(n, 32<<10)
		if rest := n - size; rest > 0 && rest < keyBytes {
			size -= keyBytes
		}
		if err := tx.Put(fmt.Appendf(nil, "%08d", i), filled('f', size-keyBytes)); err != nil {
			return err
		}
		n -= size
	}
	return nil
}

// testConflict makes a transaction lose in every try.
func testConflict(t *testing.T, e kv.Engine) {
	ctx := within(t)
	put(t, e, "k", "0")
	runs := 0
	err := e.Txn(ctx, func(tx kv.Tx) error {
		runs++
		if _, err := number(ctx, tx, "k"); err != nil {
			return err
		}
		if err := retried(ctx, e, func(other kv.Tx) error { return putNumber(other, "k", runs) }); err != nil {
			return err
		}
		return tx.Put([]byte("lost"), nil)
	})
	if !errors.Is(err, kv.ErrConflict) || runs < 2 {
		t.Errorf("after %d tries: %v", runs, err)
	}
	s := snapshot(t, e)
	if n, err := number(ctx, s, "k"); err != nil || n != runs {
		t.Errorf("the winner wrote %d, %v; want %d", n, err, runs)
	}
	if _, err := s.Get(ctx, []byte("lost")); !errors.Is(err, kv.ErrNotFound) {
		t.Errorf("the loser's write is there: %v", err)
	}
	<-locking(t, e, "k", kv.Exclusive)
}

func testContext(t *testing.T, e kv.Engine) {
	ctx := within(t)
	put(t, e, "k", "1")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	err := e.Txn(ended, func(tx kv.Tx) error { return tx.Put([]byte("k"), []byte("2")) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("txn with an ended context: %v", err)
	}
	if s, err := e.Snapshot(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("snapshot with an ended context: %v, %v", s, err)
	}
	each(t, e, func(t *testing.T, r kv.Reader) {
		if _, err := r.Get(ended, []byte("k")); !errors.Is(err, context.Canceled) {
			t.Errorf("get with an ended context: %v", err)
		}
	})
	each(t, e, func(t *testing.T, r kv.Reader) {
		if _, err := collect(ended, r, nil, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("scan with an ended context: %v", err)
		}
	})
	during, cancel := context.WithCancel(ctx)
	err = e.Txn(during, func(tx kv.Tx) error {
		defer cancel()
		return tx.Put([]byte("k"), []byte("3"))
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("txn whose context ended before the commit: %v", err)
	}
	if v, err := get(ctx, snapshot(t, e), "k"); err != nil || v != "1" {
		t.Errorf("k is %q, %v; want what was there before", v, err)
	}
}

// testPanic: a panic of fn passes through and leaves nothing behind.
func testPanic(t *testing.T, e kv.Engine) {
	ctx := within(t)
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = e.Txn(ctx, func(tx kv.Tx) error {
			if err := errors.Join(tx.Lock(ctx, []byte("k"), kv.Exclusive), tx.Put([]byte("k"), nil)); err != nil {
				return err
			}
			panic("boom")
		})
	}()
	<-locking(t, e, "k", kv.Exclusive)
	if all, err := collect(ctx, snapshot(t, e), nil, nil); err != nil || len(all) > 0 {
		t.Errorf("found %v, %v", all, err)
	}
}

func testClose(t *testing.T, e kv.Engine) {
	ctx := within(t)
	put(t, e, "k", "1")
	s := snapshot(t, e)
	var wg sync.WaitGroup
	for range 4 { // calls that race with Close succeed or say ErrClosed
		wg.Go(func() {
			for {
				err := e.Txn(ctx, func(tx kv.Tx) error { return tx.Put([]byte("k"), []byte("2")) })
				if errors.Is(err, kv.ErrConflict) || err == nil {
					continue
				}
				if !errors.Is(err, kv.ErrClosed) {
					t.Errorf("txn beside close: %v", err)
				}
				return
			}
		})
	}
	if err := e.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	wg.Wait()
	if err := e.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	if err := e.Txn(ctx, func(kv.Tx) error { return nil }); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("txn after close: %v", err)
	}
	if _, err := e.Snapshot(ctx); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("snapshot after close: %v", err)
	}
	if _, err := s.Get(ctx, []byte("k")); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("get after close: %v", err)
	}
	if _, err := collect(ctx, s, nil, nil); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("scan after close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close snapshot: %v", err)
	}
}

// testCloseWhileLocked: Close ends those who wait for a lock and waits for the one who holds it.
func testCloseWhileLocked(t *testing.T, e kv.Engine) {
	ctx := within(t)
	release := holding(t, e, "k", kv.Exclusive)
	waiter, started := make(chan error, 1), make(chan struct{})
	go func() {
		waiter <- e.Txn(ctx, func(tx kv.Tx) error {
			close(started)
			return tx.Lock(ctx, []byte("k"), kv.Exclusive)
		})
	}()
	<-started
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	if err := <-waiter; !errors.Is(err, kv.ErrClosed) {
		t.Errorf("waiter: %v", err)
	}
	if !neverWithin(closed) {
		t.Error("close did not wait for the holder")
	}
	release()
	<-closed
}
