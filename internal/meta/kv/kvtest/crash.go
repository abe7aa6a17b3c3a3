package kvtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// Survival says what of the changes since the last sync is found after a power failure.
type Survival int

// What survives.
const (
	Nothing Survival = iota
	Everything
	Some // a seeded choice, with the last write torn
)

// survivals is how many there are.
const survivals = 3

// Disk holds one engine and can lose its power.
type Disk interface {
	// Open opens the engine on what the disk holds, or on an empty disk.
	Open() (kv.Engine, error)
	// Watch calls fn after every change of the disk, while the disk stands still; nil ends that.
	// fn may use only the Moment, and must not wait for the engine.
	Watch(fn func(Moment))
	// HoldSyncs makes every sync of the engine wait, before it has any effect, until release is
	// called. The channel gets a value when the first one waits.
	HoldSyncs() (held <-chan struct{}, release func())
	Moment
}

// Moment is a state of a disk.
type Moment interface {
	// Fail returns what the disk holds when the power returns after a failure now.
	Fail(s Survival, seed uint64) Disk
}

// RunCrash runs the crash suite; empty makes a new, empty disk.
func RunCrash(t *testing.T, empty func(t testing.TB) Disk) {
	t.Run("EveryBoundary", func(t *testing.T) { testEveryBoundary(t, empty) })
	t.Run("BeforeSync", func(t *testing.T) { testBeforeSync(t, empty(t)) })
	t.Run("TwoFailures", func(t *testing.T) { testTwoFailures(t, empty(t)) })
}

// The workload of the crash tests is one chain of transactions. Transaction number n reads n-1 from
// the key "head" and writes: n to "head", an entry "e/n" whose length and bytes follow from n, a
// window "w/n", from which it deletes n-windowKeys, and one more key that names n. So every state
// that a prefix of the transactions leaves is known from its number alone, and nothing else is right.
const windowKeys = 4

func entryKey(n int) []byte  { return fmt.Appendf(nil, "e/%08d", n) }
func windowKey(n int) []byte { return fmt.Appendf(nil, "w/%08d", n) }

// entry is the value of entry n: mostly small, now and then of the size of an inline payload.
func entry(n int) []byte {
	rng := rand.New(rand.NewPCG(uint64(n), 7))
	size := rng.IntN(200)
	if n%5 == 0 {
		size = 4<<10 + rng.IntN(12<<10)
	}
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

// link adds the next transaction to the chain and returns its number.
func link(ctx context.Context, tx kv.Tx) (int, error) {
	n, err := number(ctx, tx, "head")
	if err != nil {
		return 0, err
	}
	n++
	return n, errors.Join(
		putNumber(tx, "head", n),
		tx.Put(entryKey(n), entry(n)),
		tx.Put(windowKey(n), nil),
		tx.Delete(windowKey(n-windowKeys)),
		putNumber(tx, fmt.Sprint("last/", n%3), n),
	)
}

// chainLength checks that a state is one that a prefix of the chain leaves, and returns its length.
func chainLength(ctx context.Context, r kv.Reader) (int, error) {
	n, err := number(ctx, r, "head")
	if err != nil {
		return 0, err
	}
	want := 1
	err = r.Scan(ctx, []byte("e/"), []byte("e0"), func(k, v []byte) (kv.Next, error) {
		if !bytes.Equal(k, entryKey(want)) || !bytes.Equal(v, entry(want)) {
			return kv.Next{}, fmt.Errorf("head is %d: found entry %q of %d bytes in place of %d", n, k, len(v), want)
		}
		want++
		return kv.Next{}, nil
	})
	if err != nil || want != n+1 {
		return n, fmt.Errorf("head is %d: there are %d entries: %w", n, want-1, errors.Join(err, errChain))
	}
	window, err := collect(ctx, r, []byte("w/"), []byte("w0"))
	if err != nil || len(window) != min(n, windowKeys) {
		return n, fmt.Errorf("head is %d: the window has %d keys: %w", n, len(window), errors.Join(err, errChain))
	}
	for i, p := range window {
		if p.key != string(windowKey(n-len(window)+1+i)) {
			return n, fmt.Errorf("head is %d: the window holds %q: %w", n, p.key, errChain)
		}
	}
	for i := range min(n, 3) {
		if m, err := number(ctx, r, fmt.Sprint("last/", (n-i)%3)); err != nil || m != n-i {
			return n, fmt.Errorf("head is %d: last/%d is %d: %w", n, (n-i)%3, m, errors.Join(err, errChain))
		}
	}
	return n, nil
}

var errChain = errors.New("kvtest: state is none of the chain's")

// oracle is the longest chain that any caller has been told of.
type oracle struct{ told atomic.Int64 }

// tell notes that a call returned, having committed or seen the chain of length n.
func (o *oracle) tell(n int) {
	for {
		old := o.told.Load()
		if int64(n) <= old || o.told.CompareAndSwap(old, int64(n)) {
			return
		}
	}
}

// check opens the engine after a failure, expects a chain not shorter than told, and that what it
// shows survives another failure at once. It returns the length.
func check(ctx context.Context, d Disk, told int64) (int, error) {
	n, err := reopen(ctx, d, func(e kv.Engine) error { return nil })
	if err != nil {
		return n, err
	}
	if int64(n) < told {
		return n, fmt.Errorf("found %d transactions, but callers were told of %d", n, told)
	}
	return n, nil
}

// reopen opens the engine, measures the chain, and runs fn before it closes.
func reopen(ctx context.Context, d Disk, fn func(kv.Engine) error) (n int, err error) {
	e, err := d.Open()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	s, err := e.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	n, err = chainLength(ctx, s)
	return n, errors.Join(err, s.Close(), fn(e))
}

// chain runs writers and observers until the chain is about length long.
func chain(ctx context.Context, t *testing.T, e kv.Engine, o *oracle, length int) {
	var wg sync.WaitGroup
	worker := func(step func() (int, error)) {
		wg.Go(func() {
			for o.told.Load() < int64(length) {
				n, err := step()
				if errors.Is(err, kv.ErrConflict) {
					continue
				}
				if err != nil {
					t.Errorf("workload: %v", err)
					return
				}
				o.tell(n)
			}
		})
	}
	for range 3 {
		worker(func() (n int, err error) {
			err = e.Txn(ctx, func(tx kv.Tx) (err error) { n, err = link(ctx, tx); return err })
			return n, err
		})
	}
	for _, observe := range observers(e) {
		worker(func() (int, error) { return observe(ctx) })
	}
	wg.Wait()
}

// observers are the ways to see the length of the chain without adding to it.
func observers(e kv.Engine) map[string]func(context.Context) (int, error) {
	seen := errors.New("seen")
	return map[string]func(context.Context) (int, error){
		"snapshot": func(ctx context.Context) (int, error) {
			s, err := e.Snapshot(ctx)
			if err != nil {
				return 0, err
			}
			n, err := number(ctx, s, "head")
			return n, errors.Join(err, s.Close())
		},
		"reading transaction": func(ctx context.Context) (n int, err error) {
			err = e.Txn(ctx, func(tx kv.Tx) (err error) { n, err = number(ctx, tx, "head"); return err })
			return n, err
		},
		"refused transaction": func(ctx context.Context) (n int, err error) {
			err = e.Txn(ctx, func(tx kv.Tx) (err error) {
				if n, err = number(ctx, tx, "head"); err != nil {
					return err
				}
				return errors.Join(tx.Put([]byte("never"), nil), seen)
			})
			if errors.Is(err, seen) {
				err = nil
			}
			return n, err
		},
	}
}

// failure is a disk after a failure, and what had been told before it.
type failure struct {
	disk Disk
	told int64
	what string
}

// testEveryBoundary fails the power after every single change of the disk: while the engine is
// made, under load, and while it closes.
func testEveryBoundary(t *testing.T, empty func(testing.TB) Disk) {
	ctx := within(t)
	length := 100
	if testing.Short() {
		length = 30
	}
	d, o := empty(t), &oracle{}
	var failures []failure
	n := uint64(0)
	d.Watch(func(m Moment) {
		n++
		told := o.told.Load() // before the image: what is told later need not be in it
		for s := range Survival(survivals) {
			failures = append(failures, failure{m.Fail(s, n), told, fmt.Sprintf("change %d, survival %d", n, s)})
		}
	})
	e, err := d.Open()
	if err != nil {
		t.Fatal(err)
	}
	chain(ctx, t, e, o, length)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	d.Watch(nil)
	longest := 0
	for i, f := range failures {
		if i%checkEvery != 0 && i < len(failures)-survivals {
			continue
		}
		n, err := check(within(t), f.disk, f.told)
		if err != nil {
			t.Fatalf("%s: %v", f.what, err)
		}
		longest = max(longest, n)
	}
	if longest < length {
		t.Errorf("the longest chain found has %d transactions; want %d", longest, length)
	}
	t.Logf("%d changes of the disk, %d failures, one of %d looked at", n, len(failures), checkEvery)
}

// testBeforeSync fails the power between the moment when a transaction is applied and the sync that
// makes it durable. Who looks in between must see the old state, or wait.
func testBeforeSync(t *testing.T, d Disk) {
	ctx := within(t)
	e, err := d.Open()
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{}
	chain(ctx, t, e, o, 3)
	for round := range 10 {
		before, err := observers(e)["reading transaction"](ctx)
		if err != nil {
			t.Fatal(err)
		}
		o.tell(before)
		held, release := d.HoldSyncs()
		var wg sync.WaitGroup
		add := func(what string, call func(context.Context) (int, error)) {
			wg.Go(func() {
				n, err := call(ctx)
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				o.tell(n)
			})
		}
		add("writer", func(ctx context.Context) (n int, err error) {
			err = retried(ctx, e, func(tx kv.Tx) (err error) { n, err = link(ctx, tx); return err })
			return n, err
		})
		select {
		case <-held:
		case <-ctx.Done():
			t.Fatal("no sync began")
		}
		for what, observe := range observers(e) {
			add(what, observe)
		}
		// Nothing tells a call that waits from one that has not begun, so look for a while.
		ticker := time.NewTicker(time.Millisecond)
		for i := range 20 {
			<-ticker.C
			told := o.told.Load()
			if told > int64(before) {
				t.Errorf("round %d: somebody was told of transaction %d, which is not synced", round, told)
			}
			if _, err := check(ctx, d.Fail(Survival(i%survivals), uint64(i)), told); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
		ticker.Stop()
		release()
		wg.Wait()
		for what, observe := range observers(e) {
			if n, err := observe(ctx); err != nil || n != before+1 {
				t.Errorf("%s after the sync sees %d, %v; want %d", what, n, err, before+1)
			}
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// testTwoFailures: what an engine shows after a failure is durable, although the bytes it found may
// not have been. So the second failure, which keeps nothing unsynced, changes nothing. And the
// engine goes on from there.
func testTwoFailures(t *testing.T, d Disk) {
	ctx := within(t)
	for round := range uint64(30) {
		var images []Disk
		d.Watch(func(m Moment) { images = append(images, m.Fail(Some, round), m.Fail(Everything, round)) })
		e, err := d.Open()
		if err != nil {
			t.Fatal(err)
		}
		o := &oracle{}
		s, err := e.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		length, err := chainLength(ctx, s)
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		o.tell(length)
		chain(ctx, t, e, o, length+3)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		d.Watch(nil)
		first := images[rand.New(rand.NewPCG(round, 8)).IntN(len(images))]
		var second Disk
		found, err := reopen(ctx, first, func(kv.Engine) error {
			second = first.Fail(Nothing, round)
			return nil
		})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if n, err := check(ctx, second, int64(found)); err != nil || n != found {
			t.Fatalf("round %d: showed %d transactions after the first failure and %d after the second, %v",
				round, found, n, err)
		}
		d = second
	}
}
