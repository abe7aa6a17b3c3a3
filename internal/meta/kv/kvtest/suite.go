package kvtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// patience ends a test whose engine hangs. Nothing here takes a hundredth of it.
const patience = 60 * time.Second

// Open opens a new, empty engine. The suite closes it.
type Open func(t testing.TB) kv.Engine

// Run runs the suite against engines that open makes.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, kv.Engine){
		"Order":            testOrder,
		"ScanNext":         testScanNext,
		"Model":            testModel,
		"Copies":           testCopies,
		"FailedWrites":     testFailedWrites,
		"OwnWrites":        testOwnWrites,
		"SnapshotRepeats":  testSnapshotRepeats,
		"SnapshotIsFresh":  testSnapshotIsFresh,
		"SnapshotShared":   testSnapshotShared,
		"ScanDuringWrites": testScanDuringWrites,
		"Counter":          testCounter,
		"WriteSkew":        testWriteSkew,
		"Phantom":          testPhantom,
		"PhantomAtStart":   testPhantomAtStart,
		"SeekSkips":        testSeekSkips,
		"Bank":             testBank,
		"Histories":        testHistories,
		"Conflict":         testConflict,
		"LockModes":        testLockModes,
		"LockAgain":        testLockAgain,
		"LockUpgrade":      testLockUpgrade,
		"LockOrder":        testLockOrder,
		"LockCycle":        testLockCycle,
		"LockStale":        testLockStale,
		"LockFair":         testLockFair,
		"LockEnds":         testLockEnds,
		"LockSeal":         testLockSeal,
		"Limits":           testLimits,
		"Context":          testContext,
		"Panic":            testPanic,
	} {
		t.Run(name, func(t *testing.T) {
			e := open(t)
			defer func() {
				if err := e.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			test(t, e)
		})
	}
	t.Run("Close", func(t *testing.T) { testClose(t, open(t)) })
	t.Run("CloseWhileLocked", func(t *testing.T) { testCloseWhileLocked(t, open(t)) })
}

// within returns a context that ends a hanging test.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// must runs a transaction that has to succeed, again when it lost.
func must(t testing.TB, e kv.Engine, fn func(kv.Tx) error) {
	t.Helper()
	if err := retried(within(t), e, fn); err != nil {
		t.Fatalf("txn: %v", err)
	}
}

// retried runs a transaction again as long as it loses.
func retried(ctx context.Context, e kv.Engine, fn func(kv.Tx) error) error {
	for {
		err := e.Txn(ctx, fn)
		if !errors.Is(err, kv.ErrConflict) {
			return err
		}
	}
}

// put writes one key.
func put(t testing.TB, e kv.Engine, key, value string) {
	t.Helper()
	must(t, e, func(tx kv.Tx) error { return tx.Put([]byte(key), []byte(value)) })
}

// get reads a key; "" is what it returns for a missing one.
func get(ctx context.Context, r kv.Reader, key string) (string, error) {
	v, err := r.Get(ctx, []byte(key))
	if errors.Is(err, kv.ErrNotFound) {
		return "", nil
	}
	return string(v), err
}

// number reads a key that holds a decimal number; a missing one is 0.
func number(ctx context.Context, r kv.Reader, key string) (int, error) {
	v, err := get(ctx, r, key)
	if err != nil || v == "" {
		return 0, err
	}
	var n int
	_, err = fmt.Sscan(v, &n)
	return n, err
}

func putNumber(tx kv.Tx, key string, n int) error {
	return tx.Put([]byte(key), fmt.Append(nil, n))
}

// pair is a key and its value.
type pair struct{ key, value string }

// collect scans [from, to) wholly; nil as `to` means no bound.
func collect(ctx context.Context, r kv.Reader, from, to []byte) ([]pair, error) {
	var all []pair
	err := r.Scan(ctx, from, to, func(k, v []byte) (kv.Next, error) {
		all = append(all, pair{string(k), string(v)})
		return kv.Next{}, nil
	})
	return all, err
}

// snapshot opens a snapshot that ends with the test.
func snapshot(t testing.TB, e kv.Engine) kv.Snap {
	t.Helper()
	s, err := e.Snapshot(within(t))
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// each runs test with a transaction that is rolled back and with a snapshot.
func each(t *testing.T, e kv.Engine, test func(t *testing.T, r kv.Reader)) {
	t.Run("tx", func(t *testing.T) {
		stop := errors.New("roll back")
		err := e.Txn(within(t), func(tx kv.Tx) error { test(t, tx); return stop })
		if !errors.Is(err, stop) {
			t.Errorf("txn returned %v, want the error of fn", err)
		}
	})
	t.Run("snapshot", func(t *testing.T) { test(t, snapshot(t, e)) })
}

// filled returns n bytes of c.
func filled(c byte, n int) []byte { return bytes.Repeat([]byte{c}, n) }
