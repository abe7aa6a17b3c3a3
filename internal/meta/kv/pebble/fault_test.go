package pebble

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
)

var errBroken = errors.New("test: disk is broken")

const testPatience = 30 * time.Second

func withPatience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	t.Cleanup(cancel)
	return ctx
}

func writeOne(ctx context.Context, e *Engine, n int) error {
	return e.Txn(ctx, func(tx kv.Tx) error {
		return errors.Join(tx.Put([]byte("head"), fmt.Append(nil, n)),
			tx.Put(fmt.Appendf(nil, "e/%06d", n), make([]byte, 3000)))
	})
}

func head(ctx context.Context, e *Engine) (n int, err error) {
	s, err := e.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	v, err := s.Get(ctx, []byte("head"))
	if errors.Is(err, kv.ErrNotFound) {
		return 0, nil
	}
	_, _ = fmt.Sscan(string(v), &n)
	return n, err
}

// TestLogSyncFails: the transaction whose sync fails, and all later ones, get ErrClosed; the sync is
// not tried again; what was durable before stays readable, and is there after a power failure.
func TestLogSyncFails(t *testing.T) {
	ctx := withPatience(t)
	fatal := make(chan error, 10)
	d := newDisk(crashfs.New(crashfs.Options{}), Config{OnFatal: func(err error) { fatal <- err }})
	e, err := Open(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 3; n++ {
		if err := writeOne(ctx, e, n); err != nil {
			t.Fatal(err)
		}
	}
	var changes atomic.Int32
	failed := atomic.Bool{}
	d.on.tap(func(op, name string) error {
		if failed.Load() {
			changes.Add(1)
		}
		if op == "sync" && isLog(name) {
			failed.Store(true)
			return errBroken
		}
		return nil
	})
	for n := 4; n <= 6; n++ {
		if err := writeOne(ctx, e, n); !errors.Is(err, kv.ErrClosed) || !errors.Is(err, errBroken) {
			t.Errorf("txn: %v", err)
		}
	}
	err = e.Txn(ctx, func(tx kv.Tx) error { _, err := tx.Get(ctx, []byte("head")); return err })
	if !errors.Is(err, kv.ErrClosed) {
		t.Errorf("transaction that read what is not durable: %v", err)
	}
	if n, err := head(ctx, e); n != 3 || err != nil {
		t.Errorf("snapshot after the failure shows %d, %v", n, err)
	}
	if err := e.Close(); !errors.Is(err, errBroken) {
		t.Errorf("close: %v", err)
	}
	if n := changes.Load(); n != 0 {
		t.Errorf("%d changes reached the disk after the failure", n)
	}
	if err := <-fatal; !errors.Is(err, errBroken) || len(fatal) > 0 {
		t.Errorf("OnFatal was told %v, and %d times more", err, len(fatal))
	}
	d.on.tap(nil)
	again, err := Open(newDisk(d.fs.Image(crashfs.LoseAll, 0), Config{}).cfg)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := head(ctx, again); n != 3 || err != nil {
		t.Errorf("after a power failure: %d, %v", n, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestEveryFault lets each change of the disk fail once, and for good from there, while the engine
// opens, works on small files and closes. Whatever happens, the process lives, calls return, and
// everything acknowledged is there after a power failure.
func TestEveryFault(t *testing.T) {
	everyFault(t, crashfs.New(crashfs.Options{}), 0)
}

// TestEveryFaultOfRecovery does the same with an engine that finds a log to recover.
func TestEveryFaultOfRecovery(t *testing.T) {
	ctx := withPatience(t)
	d := newDisk(crashfs.New(crashfs.Options{}), Config{tune: smallFiles})
	e, err := Open(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 30; n++ {
		if err := writeOne(ctx, e, n); err != nil {
			t.Fatal(err)
		}
	}
	image := d.fs.Image(crashfs.LoseAll, 0)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	everyFault(t, image, 30)
}

func everyFault(t *testing.T, start *crashfs.FS, held int) {
	count := faultRun(t, start, held, fault{at: -1})
	step := 1
	if testing.Short() || raceEnabled {
		step = 13
	}
	for at := 0; at < count; at += step {
		faultRun(t, start, held, fault{at: at})
		faultRun(t, start, held, fault{at: at, forGood: true})
		if t.Failed() {
			t.Fatalf("fault at change %d of %d", at, count)
		}
	}
	t.Logf("%d changes of the disk", count)
}

// fault fails the change number at, and those after it if forGood.
type fault struct {
	at      int
	forGood bool
}

// faultRun works on a copy of start, which holds that many writes, with a fault. It returns the number
// of changes.
func faultRun(t *testing.T, start *crashfs.FS, held int, f fault) int {
	at := f.at
	ctx := withPatience(t)
	var fatal atomic.Int32
	d := newDisk(start.Image(crashfs.LoseAll, 0), Config{
		tune: smallFiles, pause: time.Millisecond, OnFatal: func(error) { fatal.Add(1) },
	})
	var n atomic.Int64
	d.on.tap(func(op, name string) error {
		i := int(n.Add(1)) - 1
		if at >= 0 && (i == at || (f.forGood && i > at)) {
			return fmt.Errorf("%s %s: %w", op, name, errBroken)
		}
		return nil
	})
	acknowledged := held
	e, err := Open(d.cfg)
	if err == nil {
		for i := held + 1; i <= held+40; i++ {
			err := writeOne(ctx, e, i)
			switch {
			case err == nil:
				acknowledged = i
			case errors.Is(err, kv.ErrClosed), errors.Is(err, kv.ErrUnavailable):
			default:
				t.Errorf("fault %d: txn: %v", at, err)
			}
			if h, err := head(ctx, e); err != nil || h != acknowledged {
				t.Errorf("fault %d: snapshot shows %d, %v; acknowledged are %d", at, h, err, acknowledged)
			}
		}
		if err := e.Close(); err != nil && at < 0 {
			t.Errorf("close: %v", err)
		}
	} else if !errors.Is(err, errBroken) {
		t.Errorf("fault %d: open: %v", at, err)
	}
	if fatal.Load() > 1 {
		t.Errorf("fault %d: OnFatal was called %d times", at, fatal.Load())
	}
	d.on.tap(nil)
	for _, mode := range []crashfs.Mode{crashfs.LoseAll, crashfs.KeepAll, crashfs.KeepSome} {
		again, err := Open(newDisk(d.fs.Image(mode, uint64(at)), Config{}).cfg)
		if err != nil {
			t.Errorf("fault %d: open after a power failure that %v: %v", at, mode, err)
			continue
		}
		if h, err := head(ctx, again); err != nil || h < acknowledged {
			t.Errorf("fault %d: after a power failure: %d, %v; acknowledged were %d", at, h, err, acknowledged)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	return int(n.Load())
}

// TestNoSpaceForTables: when tables cannot be written, commits are refused before Pebble would stop
// them for ever, reads go on, and writing goes on when there is space again.
func TestNoSpaceForTables(t *testing.T) {
	ctx := withPatience(t)
	d := newDisk(crashfs.New(crashfs.Options{}), Config{tune: smallFiles})
	e, err := Open(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	d.on.tap(func(op, name string) error {
		if rebuildable(name) && op != "remove" {
			return vfs.ErrNoSpace
		}
		return nil
	})
	n := 0
	untilTxn(t, func() bool {
		err := writeOne(ctx, e, n+1)
		if err == nil {
			n++
		}
		return errors.Is(err, kv.ErrUnavailable) && errors.Is(err, vfs.ErrNoSpace)
	})
	if h, err := head(ctx, e); err != nil || h != n {
		t.Errorf("snapshot shows %d, %v; want %d", h, err, n)
	}
	d.on.tap(nil)
	untilTxn(t, func() bool { return writeOne(ctx, e, n+1) == nil })
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// untilTxn calls fn every few milliseconds until it is content.
func untilTxn(t *testing.T, fn func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.Now().Add(testPatience)
	for !fn() {
		if time.Now().After(deadline) {
			t.Fatal("the engine does not come round")
		}
		<-ticker.C
	}
}

// TestFailWhileStalled: Pebble holds a committer until it has flushed; then the log fails, and the
// flush with it. The committer must come back, and Close must end.
func TestFailWhileStalled(t *testing.T) {
	ctx := withPatience(t)
	d := newDisk(crashfs.New(crashfs.Options{}), Config{tune: smallFiles})
	e, err := Open(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	let := make(chan struct{})
	d.on.tap(func(op, name string) error {
		if rebuildable(name) {
			<-let
			return errBroken
		}
		return nil
	})
	stalled := writeUntilStalled(ctx, t, e)
	e.failure.set(errBroken, failWrites)
	close(let)
	if err := <-stalled; !errors.Is(err, kv.ErrClosed) {
		t.Errorf("committer that was held: %v", err)
	}
	if err := e.Close(); !errors.Is(err, errBroken) {
		t.Errorf("close: %v", err)
	}
}

// TestCloseWhileFull: Pebble holds a committer because tables cannot be written. Close must end, and
// nothing acknowledged may be lost.
func TestCloseWhileFull(t *testing.T) {
	ctx := withPatience(t)
	d := newDisk(crashfs.New(crashfs.Options{}), Config{tune: smallFiles, pause: testPatience})
	e, err := Open(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	d.on.tap(func(op, name string) error {
		if rebuildable(name) && op != "remove" {
			return vfs.ErrNoSpace
		}
		return nil
	})
	stalled := writeUntilStalled(ctx, t, e)
	acknowledged, err := head(ctx, e)
	if err != nil {
		t.Error(err)
	}
	if err := e.Close(); !errors.Is(err, vfs.ErrNoSpace) {
		t.Errorf("close: %v", err)
	}
	if err := <-stalled; !errors.Is(err, kv.ErrClosed) {
		t.Errorf("committer that was held: %v", err)
	}
	d.on.tap(nil)
	again, err := Open(newDisk(d.fs.Image(crashfs.LoseAll, 0), Config{}).cfg)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := head(ctx, again); err != nil || n < acknowledged {
		t.Errorf("found %d, %v; acknowledged were %d", n, err, acknowledged)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// writeUntilStalled writes until Pebble holds the writer. The channel gets the writer's error.
func writeUntilStalled(ctx context.Context, t *testing.T, e *Engine) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		for n := 1; ; n++ {
			if err := writeOne(ctx, e, n); err != nil {
				ended <- err
				return
			}
		}
	}()
	untilTxn(t, func() bool { return e.guard.stalled.Load() || len(ended) > 0 })
	return ended
}
