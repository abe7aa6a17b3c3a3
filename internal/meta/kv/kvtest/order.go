package kvtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// awkward are keys that tempt an engine to order by something else than bytes.
func awkward() []string {
	keys := []string{
		"\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x01", "a", "a\x00", "a\x00\x00", "a\x00b", "a\x01",
		"a/", "a/b", "a0", "aa", "A", "B", "b", "ab", "Z", "z", "~", "\x7f", "\x80", "\u00e9", "e\u0301", "日本",
		"\xfe\xff", "\xff", "\xff\x00", "\xff\xfe", "\xff\xff", "\xff\xff\xff", "10", "9", " ", "%", "_", "\\",
		strings.Repeat("k", 1024), strings.Repeat("k", 1024) + "\x00", strings.Repeat("\xff", 1024),
	}
	return keys
}

func testOrder(t *testing.T, e kv.Engine) {
	ctx := within(t)
	keys := awkward()
	shuffled := slices.Clone(keys)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(keys), func(i, j int) {
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	})
	must(t, e, func(tx kv.Tx) error {
		for _, k := range shuffled {
			if err := tx.Put([]byte(k), []byte("v"+k)); err != nil {
				return err
			}
		}
		return nil
	})
	slices.Sort(keys)
	each(t, e, func(t *testing.T, r kv.Reader) {
		for _, k := range keys {
			if v, err := get(ctx, r, k); err != nil || v != "v"+k {
				t.Errorf("get %q: %q, %v", k, v, err)
			}
		}
		if _, err := r.Get(ctx, []byte("a\x00\x01")); !errors.Is(err, kv.ErrNotFound) {
			t.Errorf("get missing key: %v", err)
		}
		bounds := slices.Concat(keys, []string{"a\x00\x00\x00", "c", "\xff\xff\xff\xff"})
		for _, from := range bounds {
			for _, to := range append(bounds, "none") {
				upper := []byte(to)
				if to == "none" {
					upper = nil
				}
				checkScan(t, r, keys, []byte(from), upper)
			}
		}
		checkScan(t, r, keys, nil, nil)
		checkScan(t, r, keys, []byte{}, nil)
	})
}

// checkScan compares a scan with the same selection from sorted keys.
func checkScan(t *testing.T, r kv.Reader, keys []string, from, to []byte) {
	t.Helper()
	var want []pair
	for _, k := range keys {
		if bytes.Compare([]byte(k), from) >= 0 && (to == nil || bytes.Compare([]byte(k), to) < 0) {
			want = append(want, pair{k, "v" + k})
		}
	}
	got, err := collect(within(t), r, from, to)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("scan [%.40q, %.40q): %d keys, %v; want %d", from, to, len(got), err, len(want))
	}
}

func testScanNext(t *testing.T, e kv.Engine) {
	ctx := within(t)
	must(t, e, func(tx kv.Tx) error {
		for _, k := range []string{"a", "b", "b1", "b2", "c", "d", "e"} {
			if err := tx.Put([]byte(k), nil); err != nil {
				return err
			}
		}
		return nil
	})
	stop := errors.New("stop")
	each(t, e, func(t *testing.T, r kv.Reader) {
		for _, c := range []struct {
			name, to string
			at       map[string]kv.Next
			want     string
		}{
			{"all", "", nil, "a b b1 b2 c d e"},
			{"stop", "", map[string]kv.Next{"b1": {Stop: true}}, "a b b1"},
			{"stop at once", "", map[string]kv.Next{"a": {Stop: true}}, "a"},
			{"seek to a key", "", map[string]kv.Next{"b": {Seek: []byte("d")}}, "a b d e"},
			{"seek to a gap", "", map[string]kv.Next{"b": {Seek: []byte("b3")}}, "a b c d e"},
			{"seek to the successor", "", map[string]kv.Next{"b": {Seek: []byte("b\x00")}}, "a b b1 b2 c d e"},
			{"seek to the bound", "d", map[string]kv.Next{"b": {Seek: []byte("d")}}, "a b"},
			{"seek beyond the bound", "d", map[string]kv.Next{"b": {Seek: []byte("e")}}, "a b"},
			{"seek beyond all", "", map[string]kv.Next{"b": {Seek: []byte("zz")}}, "a b"},
			{"seek twice", "", map[string]kv.Next{"a": {Seek: []byte("b1")}, "b1": {Seek: []byte("d")}}, "a b1 d e"},
			{"stop wins", "", map[string]kv.Next{"a": {Stop: true, Seek: []byte("d")}}, "a"},
		} {
			var to []byte
			if c.to != "" {
				to = []byte(c.to)
			}
			var got []string
			err := r.Scan(ctx, []byte("a"), to, func(k, _ []byte) (kv.Next, error) {
				got = append(got, string(k))
				return c.at[string(k)], nil
			})
			if s := strings.Join(got, " "); err != nil || s != c.want {
				t.Errorf("%s: got %q, %v; want %q", c.name, s, err, c.want)
			}
		}
		n := 0
		err := r.Scan(ctx, nil, nil, func(_, _ []byte) (kv.Next, error) { n++; return kv.Next{}, stop })
		if !errors.Is(err, stop) || n != 1 {
			t.Errorf("error in scan: %v after %d keys", err, n)
		}
	})
	for _, seek := range []string{"a", "b"} {
		err := snapshot(t, e).Scan(ctx, []byte("b"), nil, func(_, _ []byte) (kv.Next, error) {
			return kv.Next{Seek: []byte(seek)}, nil
		})
		if err == nil {
			t.Errorf("seek from b to %s: no error", seek)
		}
	}
}

// testModel runs random transactions, one after the other, against a map.
func testModel(t *testing.T, e kv.Engine) {
	ctx := within(t)
	key := rapid.StringOfN(rapid.SampledFrom([]rune("\x00ab/\x7f")), 1, 3, -1)
	rapid.Check(t, func(t *rapid.T) {
		err := retried(ctx, e, func(tx kv.Tx) error {
			return tx.Scan(ctx, nil, nil, func(k, _ []byte) (kv.Next, error) {
				return kv.Next{}, tx.Delete(k)
			})
		})
		if err != nil {
			t.Fatalf("empty engine: %v", err)
		}
		committed := map[string]string{}
		for range rapid.IntRange(1, 4).Draw(t, "transactions") {
			plan := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) modelStep {
				return modelStep{
					op:  rapid.SampledFrom([]string{"put", "put", "delete", "get", "scan"}).Draw(t, "op"),
					key: key.Draw(t, "key"), to: key.Draw(t, "to"), seek: rapid.IntRange(0, 3).Draw(t, "seek"),
				}
			}), 1, 12).Draw(t, "steps")
			abort := rapid.Bool().Draw(t, "abort")
			rolledBack := errors.New("roll back")
			var model map[string]string
			err := retried(ctx, e, func(tx kv.Tx) error {
				model = maps.Clone(committed)
				for i, s := range plan {
					if err := s.run(ctx, tx, model, fmt.Sprint(i)); err != nil {
						return err
					}
				}
				if abort {
					return rolledBack
				}
				return nil
			})
			switch {
			case err == nil && !abort:
				committed = model
			case !abort || !errors.Is(err, rolledBack):
				t.Fatalf("txn: %v", err)
			}
			s, err := e.Snapshot(ctx)
			if err != nil {
				t.Fatalf("snapshot: %v", err)
			}
			err = sameScan(ctx, s, committed, modelStep{})
			_ = s.Close()
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// modelStep is one call on a transaction.
type modelStep struct {
	op, key, to string
	seek        int // skip that many keys by Seek after each
}

func (s modelStep) run(ctx context.Context, tx kv.Tx, model map[string]string, value string) error {
	switch s.op {
	case "put":
		model[s.key] = value
		return tx.Put([]byte(s.key), []byte(value))
	case "delete":
		delete(model, s.key)
		return tx.Delete([]byte(s.key))
	case "get":
		v, err := tx.Get(ctx, []byte(s.key))
		want, ok := model[s.key]
		if ok != (err == nil) || (err != nil && !errors.Is(err, kv.ErrNotFound)) || string(v) != want {
			return fmt.Errorf("get %q: %q, %v; want %q, %v", s.key, v, err, want, ok)
		}
		return nil
	}
	return sameScan(ctx, tx, model, s)
}

// sameScan compares a scan of [s.key, s.to), or of everything when s is zero, with the map.
func sameScan(ctx context.Context, r kv.Reader, model map[string]string, s modelStep) error {
	var to []byte
	if s.to != "" {
		to = []byte(s.to)
	}
	keys := slices.Sorted(maps.Keys(model))
	at, _ := slices.BinarySearch(keys, s.key)
	err := r.Scan(ctx, []byte(s.key), to, func(k, v []byte) (kv.Next, error) {
		if at >= len(keys) || string(k) != keys[at] || string(v) != model[keys[at]] {
			return kv.Next{}, fmt.Errorf("scan of %+v gave %q=%q at %d of %q", s, k, v, at, keys)
		}
		at++
		if s.seek == 0 || at+s.seek > len(keys) {
			return kv.Next{}, nil
		}
		seek := keys[at-1] + "\x00"
		if at += s.seek - 1; s.seek > 1 {
			seek = keys[at]
		}
		return kv.Next{Seek: []byte(seek)}, nil
	})
	if err == nil && at < len(keys) && (to == nil || keys[at] < s.to) {
		err = fmt.Errorf("scan of %+v ended before %q", s, keys[at])
	}
	return err
}

// testCopies checks that slices given to the engine may be used again, and those it returns kept.
func testCopies(t *testing.T, e kv.Engine) {
	ctx := within(t)
	var kept []byte
	must(t, e, func(tx kv.Tx) error {
		key, value := []byte("k1"), []byte("v1")
		if err := tx.Put(key, value); err != nil {
			return err
		}
		key[1], value[1] = '2', '2'
		if err := tx.Put(key, value); err != nil {
			return err
		}
		key[1], value[1] = 'x', 'x'
		var err error
		kept, err = tx.Get(ctx, []byte("k1"))
		return err
	})
	for i := range 50 {
		put(t, e, "k1", fmt.Sprint("other", i))
	}
	if string(kept) != "v1" {
		t.Errorf("value kept from Get became %q", kept)
	}
	got, err := collect(ctx, snapshot(t, e), []byte("k"), nil)
	if want := []pair{{"k1", "other49"}, {"k2", "v2"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if v, err := snapshot(t, e).Get(ctx, []byte("k2")); err != nil || v == nil {
		t.Errorf("get: %q, %v", v, err)
	}
}

// testFailedWrites checks that nothing of a transaction stays when fn returns an error.
func testFailedWrites(t *testing.T, e kv.Engine) {
	ctx := within(t)
	put(t, e, "old", "1")
	cause := errors.New("no")
	runs := 0
	err := e.Txn(ctx, func(tx kv.Tx) error {
		runs++
		if err := errors.Join(tx.Put([]byte("new"), []byte("1")), tx.Delete([]byte("old"))); err != nil {
			return err
		}
		return fmt.Errorf("because: %w", cause)
	})
	if !errors.Is(err, cause) || runs != 1 {
		t.Errorf("txn ran fn %d times and returned %v", runs, err)
	}
	got, err := collect(ctx, snapshot(t, e), nil, nil)
	if err != nil || !slices.Equal(got, []pair{{"old", "1"}}) {
		t.Errorf("got %v, %v", got, err)
	}
}

func testOwnWrites(t *testing.T, e kv.Engine) {
	ctx := within(t)
	must(t, e, func(tx kv.Tx) error {
		return errors.Join(tx.Put([]byte("b"), []byte("1")), tx.Put([]byte("d"), []byte("1")))
	})
	must(t, e, func(tx kv.Tx) error {
		return errors.Join(
			tx.Put([]byte("a"), []byte("2")), tx.Put([]byte("b"), []byte("2")),
			tx.Put([]byte("c"), []byte("2")), tx.Delete([]byte("c")), tx.Delete([]byte("d")),
			tx.Put([]byte("e"), []byte("2")), tx.Delete([]byte("e")), tx.Put([]byte("e"), []byte("3")),
			tx.Put([]byte("f"), []byte{}),
			ownWritesVisible(ctx, tx),
		)
	})
	each(t, e, func(t *testing.T, r kv.Reader) {
		if err := ownWritesVisible(ctx, r); err != nil {
			t.Error(err)
		}
	})
}

func ownWritesVisible(ctx context.Context, r kv.Reader) error {
	got, err := collect(ctx, r, nil, nil)
	if want := []pair{{"a", "2"}, {"b", "2"}, {"e", "3"}, {"f", ""}}; err != nil || !slices.Equal(got, want) {
		return fmt.Errorf("scan: %v, %w; want %v", got, err, want)
	}
	for _, k := range []string{"c", "d", "g"} {
		if _, err := r.Get(ctx, []byte(k)); !errors.Is(err, kv.ErrNotFound) {
			return fmt.Errorf("get deleted %s: %w", k, err)
		}
	}
	if v, err := r.Get(ctx, []byte("f")); err != nil || len(v) != 0 {
		return fmt.Errorf("get empty value: %q, %w", v, err)
	}
	return nil
}
