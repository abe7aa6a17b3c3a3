package kvtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

func testSnapshotRepeats(t *testing.T, e kv.Engine) {
	ctx := within(t)
	put(t, e, "a", "1")
	put(t, e, "b", "1")
	s := snapshot(t, e)
	must(t, e, func(tx kv.Tx) error {
		return errors.Join(tx.Put([]byte("a"), []byte("2")), tx.Delete([]byte("b")), tx.Put([]byte("c"), nil))
	})
	for range 2 {
		got, err := collect(ctx, s, nil, nil)
		if err != nil || !slices.Equal(got, []pair{{"a", "1"}, {"b", "1"}}) {
			t.Fatalf("old snapshot: %v, %v", got, err)
		}
		if v, err := get(ctx, s, "a"); err != nil || v != "1" {
			t.Fatalf("old snapshot: a is %q, %v", v, err)
		}
	}
	got, err := collect(ctx, snapshot(t, e), nil, nil)
	if err != nil || !slices.Equal(got, []pair{{"a", "2"}, {"c", ""}}) {
		t.Fatalf("new snapshot: %v, %v", got, err)
	}
}

// testSnapshotIsFresh checks that every writer finds its own committed write in the next snapshot,
// and in the next transaction, while others write too.
func testSnapshotIsFresh(t *testing.T, e kv.Engine) {
	ctx := within(t)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			key := fmt.Sprint("w", w)
			for i := 1; i <= 30; i++ {
				if err := retried(ctx, e, func(tx kv.Tx) error { return putNumber(tx, key, i) }); err != nil {
					t.Errorf("txn: %v", err)
					return
				}
				s, err := e.Snapshot(ctx)
				if err != nil {
					t.Errorf("snapshot: %v", err)
					return
				}
				n, err := number(ctx, s, key)
				_ = s.Close()
				var m int
				err = errors.Join(err, retried(ctx, e, func(tx kv.Tx) (err error) {
					m, err = number(ctx, tx, key)
					return err
				}))
				if err != nil || n != i || m != i {
					t.Errorf("after writing %d: snapshot has %d, transaction %d, %v", i, n, m, err)
				}
			}
		})
	}
	wg.Wait()
}

func testSnapshotShared(t *testing.T, e kv.Engine) {
	ctx := within(t)
	put(t, e, "a", "1")
	s := snapshot(t, e)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				v, err := get(ctx, s, "a")
				all, serr := collect(ctx, s, nil, nil)
				if err != nil || serr != nil || v != "1" || len(all) != 1 {
					t.Errorf("got %q, %v and %v, %v", v, err, all, serr)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Errorf("close: %v", err)
	}
}

// testScanDuringWrites moves a token through many keys; every scan must meet it exactly once.
func testScanDuringWrites(t *testing.T, e kv.Engine) {
	ctx := within(t)
	const keys, perTxn = 8000, 1000
	name := func(i int) []byte { return fmt.Appendf(nil, "k%06d", i) }
	for i := 0; i < keys; i += perTxn {
		must(t, e, func(tx kv.Tx) error {
			for j := i; j < i+perTxn; j++ {
				if err := tx.Put(name(j), []byte("0")); err != nil {
					return err
				}
			}
			return nil
		})
	}
	put(t, e, string(name(0)), "1")
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		at, rng := 0, rand.New(rand.NewPCG(3, 4))
		for {
			select {
			case <-done:
				return
			default:
			}
			to := rng.IntN(keys)
			if to == at {
				continue
			}
			err := retried(ctx, e, func(tx kv.Tx) error {
				return errors.Join(tx.Put(name(at), []byte("0")), tx.Put(name(to), []byte("1")))
			})
			if err != nil {
				t.Errorf("move token: %v", err)
				return
			}
			at = to
		}
	})
	for range 10 {
		s := snapshot(t, e)
		n, tokens := 0, 0
		err := s.Scan(ctx, []byte("k"), []byte("l"), func(_, v []byte) (kv.Next, error) {
			n++
			if v[0] == '1' {
				tokens++
			}
			return kv.Next{}, nil
		})
		if err != nil || n != keys || tokens != 1 {
			t.Errorf("scan met %d keys and %d tokens, %v", n, tokens, err)
		}
		_ = s.Close()
	}
	close(done)
	wg.Wait()
}

func testCounter(t *testing.T, e kv.Engine) {
	ctx := within(t)
	const writers, each = 64, 10
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				err := retried(ctx, e, func(tx kv.Tx) error {
					n, err := number(ctx, tx, "n")
					if err != nil {
						return err
					}
					return putNumber(tx, "n", n+1)
				})
				if err != nil {
					t.Errorf("txn: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n, err := number(ctx, snapshot(t, e), "n"); err != nil || n != writers*each {
		t.Errorf("counter is %d, %v; want %d", n, err, writers*each)
	}
}

// meet lets transactions wait for each other in their first tries only, so that all have read before
// any commits.
type meet struct {
	wg   sync.WaitGroup
	once []sync.Once
}

func newMeet(n int) *meet {
	m := &meet{once: make([]sync.Once, n)}
	m.wg.Add(n)
	return m
}

func (m *meet) wait(side int) { m.once[side].Do(func() { m.wg.Done(); m.wg.Wait() }) }

// testWriteSkew: of two on call at least one must stay, but each looks only whether the other does.
func testWriteSkew(t *testing.T, e kv.Engine) {
	ctx := within(t)
	for round := range 20 {
		names := [2]string{fmt.Sprint("x", round), fmt.Sprint("y", round)}
		put(t, e, names[0], "1")
		put(t, e, names[1], "1")
		m := newMeet(2)
		var wg sync.WaitGroup
		for side := range 2 {
			wg.Go(func() {
				err := retried(ctx, e, func(tx kv.Tx) error {
					a, err := number(ctx, tx, names[0])
					if err != nil {
						return err
					}
					b, err := number(ctx, tx, names[1])
					if err != nil {
						return err
					}
					m.wait(side)
					if a+b < 2 {
						return nil
					}
					return putNumber(tx, names[side], 0)
				})
				if err != nil {
					t.Errorf("txn: %v", err)
				}
			})
		}
		wg.Wait()
		s := snapshot(t, e)
		a, aerr := number(ctx, s, names[0])
		b, berr := number(ctx, s, names[1])
		if aerr != nil || berr != nil || a+b != 1 {
			t.Fatalf("on call: %d and %d, %v, %v; want one", a, b, aerr, berr)
		}
	}
}

// testPhantom: two transactions find a range empty and put different keys into it.
func testPhantom(t *testing.T, e kv.Engine) {
	rangeRace(t, e, func(ctx context.Context, tx kv.Tx, prefix string, side int, m *meet) error {
		all, err := collect(ctx, tx, []byte(prefix+"/"), []byte(prefix+"0"))
		if err != nil {
			return err
		}
		m.wait(side)
		if len(all) > 0 {
			return nil
		}
		return tx.Put(fmt.Appendf(nil, "%s/%d", prefix, side), nil)
	})
}

// testPhantomAtStart: as testPhantom, with the phantom at the very start of the range.
func testPhantomAtStart(t *testing.T, e kv.Engine) {
	rangeRace(t, e, func(ctx context.Context, tx kv.Tx, prefix string, side int, m *meet) error {
		all, err := collect(ctx, tx, []byte(prefix+"+"), []byte(prefix+"-"))
		if err != nil {
			return err
		}
		m.wait(side)
		if len(all) > 0 {
			return nil
		}
		return errors.Join(tx.Put([]byte(prefix+"+"), nil), tx.Put(fmt.Appendf(nil, "%s/%d", prefix, side), nil))
	})
}

// rangeRace runs two transactions of which only one may put a key below prefix.
func rangeRace(t *testing.T, e kv.Engine, fn func(context.Context, kv.Tx, string, int, *meet) error) {
	ctx := within(t)
	for round := range 20 {
		prefix := fmt.Sprint("p", round)
		m := newMeet(2)
		var wg sync.WaitGroup
		for side := range 2 {
			wg.Go(func() {
				err := retried(ctx, e, func(tx kv.Tx) error { return fn(ctx, tx, prefix, side, m) })
				if err != nil {
					t.Errorf("txn: %v", err)
				}
			})
		}
		wg.Wait()
		all, err := collect(ctx, snapshot(t, e), []byte(prefix+"/"), []byte(prefix+"0"))
		if err != nil || len(all) != 1 {
			t.Fatalf("round %d: %v, %v; want one key", round, all, err)
		}
	}
}

// testSeekSkips checks both sides of a Seek: what a scan has skipped may change, what it has looked
// at may not.
func testSeekSkips(t *testing.T, e kv.Engine) {
	ctx := within(t)
	for _, k := range []string{"a", "b", "y", "z"} {
		put(t, e, k, "1")
	}
	for _, c := range []struct {
		key    string
		before bool // a commit of that key by another makes the first try lose
	}{{"a", true}, {"aa", true}, {"b", true}, {"y", true}, {"z", true}, {"w", true}, {"zz", false}} {
		runs := 0
		must(t, e, func(tx kv.Tx) error {
			runs++
			var got []string
			err := tx.Scan(ctx, []byte("a"), nil, func(k, _ []byte) (kv.Next, error) {
				got = append(got, string(k))
				switch string(k) {
				case "b":
					return kv.Next{Seek: []byte("w")}, nil
				case "z":
					return kv.Next{Stop: true}, nil
				}
				return kv.Next{}, nil
			})
			if err != nil {
				return err
			}
			if runs == 1 {
				put(t, e, c.key, "2")
			}
			return tx.Put([]byte("0"), []byte(fmt.Sprint(got)))
		})
		if c.before && runs < 2 {
			t.Errorf("a commit of %q, which the scan had looked at, went unnoticed", c.key)
		}
		if c.key == "w" || c.key == "aa" || c.key == "zz" {
			must(t, e, func(tx kv.Tx) error { return tx.Delete([]byte(c.key)) })
		}
	}
}

func testBank(t *testing.T, e kv.Engine) {
	ctx := within(t)
	const accounts, start = 8, 100
	name := func(i int) string { return fmt.Sprintf("account%d", i) }
	for i := range accounts {
		put(t, e, name(i), fmt.Sprint(start))
	}
	audit := func(r kv.Reader) error {
		all, err := collect(ctx, r, []byte("account"), []byte("accounu"))
		sum := 0
		for _, p := range all {
			var n int
			if _, err := fmt.Sscan(p.value, &n); err != nil || n < 0 {
				return fmt.Errorf("balance is %q, %v", p.value, err)
			}
			sum += n
		}
		if err != nil || sum != accounts*start {
			return fmt.Errorf("sum is %d, %v", sum, err)
		}
		return nil
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 5))
			for i := range 40 {
				from, to, amount := rng.IntN(accounts), rng.IntN(accounts), rng.IntN(50)
				err := retried(ctx, e, func(tx kv.Tx) error { return transfer(ctx, tx, name(from), name(to), amount) })
				if err != nil {
					t.Errorf("transfer: %v", err)
				}
				if i%8 > 0 {
					continue
				}
				if err := retried(ctx, e, func(tx kv.Tx) error { return audit(tx) }); err != nil {
					t.Errorf("audit in a transaction: %v", err)
				}
				s, err := e.Snapshot(ctx)
				if err != nil {
					t.Errorf("snapshot: %v", err)
					return
				}
				if err := audit(s); err != nil {
					t.Errorf("audit of a snapshot: %v", err)
				}
				_ = s.Close()
			}
		})
	}
	wg.Wait()
	if err := audit(snapshot(t, e)); err != nil {
		t.Error(err)
	}
}

func transfer(ctx context.Context, tx kv.Tx, from, to string, amount int) error {
	a, err := number(ctx, tx, from)
	if err != nil || a < amount {
		return err
	}
	if err := putNumber(tx, from, a-amount); err != nil {
		return err
	}
	b, err := number(ctx, tx, to) // reads the write above when from and to are one
	if err != nil {
		return err
	}
	return putNumber(tx, to, b+amount)
}
