package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
)

// TestTracker compares the tracker, with a ring of few entries, with the whole list of writes: it may
// see a conflict too many, never one too few, and none when nothing was written since.
func TestTracker(t *testing.T) {
	seed := maphash.MakeSeed()
	key := rapid.SliceOfN(rapid.SampledFrom([]byte("abc\x00\xff")), 1, 3)
	rapid.Check(t, func(t *rapid.T) {
		tr := newTracker()
		tr.ring = make([]recentWrite, rapid.IntRange(1, 8).Draw(t, "ring"))
		var all []recentWrite
		for seq := range uint64(rapid.IntRange(0, 12).Draw(t, "transactions")) {
			for _, k := range rapid.SliceOfN(key, 1, 3).Draw(t, "keys") {
				tr.record(seq+1, slotOf(seed, k), k)
				all = append(all, recentWrite{seq + 1, k})
			}
		}
		var s readSet
		reads := rapid.SliceOfN(key, 0, 2).Draw(t, "reads")
		for _, k := range reads {
			s.addSlot(slotOf(seed, k))
		}
		for range rapid.IntRange(0, 2).Draw(t, "ranges") {
			r := keyRange{from: key.Draw(t, "from"), to: key.Draw(t, "to")}
			if rapid.Bool().Draw(t, "unbounded") {
				r.to = nil
			}
			s.addRange(r)
		}
		since := uint64(rapid.IntRange(0, 13).Draw(t, "since"))
		conflict, newer := false, false
		for _, w := range all {
			if w.seq <= since {
				continue
			}
			newer = true
			conflict = conflict || slices.ContainsFunc(s.ranges, func(r keyRange) bool { return r.holds(w.key) }) ||
				slices.ContainsFunc(reads, func(k []byte) bool { return bytes.Equal(k, w.key) })
		}
		_, got := tr.changed(&s, since, seed)
		if conflict && !got {
			t.Fatalf("a conflict went unseen")
		}
		if !newer && got {
			t.Fatalf("a conflict with nothing")
		}
		exact := len(tr.ring) > len(all) // then only two keys in one slot could make it differ
		if exact && got != conflict {
			t.Fatalf("conflict: got %v, want %v", got, conflict)
		}
	})
}

// TestTrackerBytes checks that long keys push old ones out of the ring.
func TestTrackerBytes(t *testing.T) {
	tr := newTracker()
	const n = recentBytes/kv.MaxKeyBytes + 10
	for i := range n {
		k := fmt.Appendf(make([]byte, kv.MaxKeyBytes-8), "%08d", i)
		tr.record(uint64(i+1), 0, k)
	}
	if tr.bytes > recentBytes || tr.floor != 10 || tr.used != n-10 {
		t.Errorf("ring has %d keys of %d bytes, floor %d", tr.used, tr.bytes, tr.floor)
	}
}

// TestReadSetBounds checks that a read set beyond its bounds still covers everything that was read.
func TestReadSetBounds(t *testing.T) {
	var s readSet
	for i := range 5 * maxReads {
		s.addSlot(uint32(i) % slotCount)
	}
	slices.Sort(s.slots)
	if len(s.slots) > maxReads || len(slices.Compact(s.slots)) != slotCount {
		t.Errorf("%d slots are left", len(s.slots))
	}
	for i := range 3*maxRanges + 1 {
		s.addRange(keyRange{from: fmt.Appendf(nil, "%06d", 7919*i%100000), to: fmt.Appendf(nil, "%06dx", 7919*i%100000)})
	}
	if len(s.ranges) > maxRanges {
		t.Errorf("%d ranges are left", len(s.ranges))
	}
	for i := range 3*maxRanges + 1 {
		k := fmt.Appendf(nil, "%06d", 7919*i%100000)
		if !slices.ContainsFunc(s.ranges, func(r keyRange) bool { return r.holds(k) }) {
			t.Fatalf("%s is not covered", k)
		}
	}
	s.addRange(keyRange{from: []byte("z")})
	for range 2 * maxRanges {
		s.addRange(keyRange{from: []byte("a"), to: []byte("b")})
	}
	if !slices.ContainsFunc(s.ranges, func(r keyRange) bool { return r.holds([]byte("zz")) }) {
		t.Error("the unbounded range is lost")
	}
}

// TestScanOlderThanRing: a transaction that scanned, and then slept while more was written than the
// ring holds, runs again, although nothing it looked at has changed.
func TestScanOlderThanRing(t *testing.T) {
	ctx := withPatience(t)
	e := openMem(t)
	e.commits.tracker.ring = make([]recentWrite, 4)
	runs := 0
	err := e.Txn(ctx, func(tx kv.Tx) error {
		runs++
		err := tx.Scan(ctx, []byte("a"), []byte("b"), func(_, _ []byte) (kv.Next, error) { return kv.Next{}, nil })
		for i := 0; i < 10 && runs == 1; i++ {
			err = errors.Join(err, writeOne(ctx, e, i))
		}
		return errors.Join(err, tx.Put([]byte("x"), nil))
	})
	if err != nil || runs != 2 {
		t.Errorf("ran %d times, %v", runs, err)
	}
}

// TestGiveUpBeforeSync: whoever waits for the sync of what it saw may give up, and the others are
// served all the same, also when it was the one who would have led the next sync.
func TestGiveUpBeforeSync(t *testing.T) {
	ctx := withPatience(t)
	d := newDisk(crashfs.New(crashfs.Options{}), Config{})
	e, err := Open(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	held, release := d.HoldSyncs()
	written := make(chan error, 2)
	go func() { written <- writeOne(ctx, e, 1) }()
	<-held
	go func() { written <- writeOne(ctx, e, 2) }() // applied, and waits for the next sync
	untilTxn(t, func() bool { return e.commits.applied.Load() == 2 })
	impatient, cancel := context.WithCancel(ctx)
	gaveUp := make(chan error, 2)
	for range cap(gaveUp) {
		go func() {
			gaveUp <- e.Txn(impatient, func(tx kv.Tx) error {
				_, err := tx.Get(impatient, []byte("head"))
				return err
			})
		}()
	}
	untilTxn(t, func() bool {
		e.commits.mu.Lock()
		defer e.commits.mu.Unlock()
		return e.commits.open.members == 1+cap(gaveUp)
	})
	cancel()
	for range cap(gaveUp) {
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("reader that gave up: %v", err)
		}
	}
	release()
	for range cap(written) {
		if err := <-written; err != nil {
			t.Error(err)
		}
	}
	if err := writeOne(ctx, e, 3); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestLeaderlessGroup: the last member of a group leaves after it was told to lead.
func TestLeaderlessGroup(t *testing.T) {
	c := &commits{open: newGroup(), leading: true}
	g, lead := c.join()
	if lead {
		t.Fatal("somebody leads already")
	}
	g.lead <- struct{}{}
	c.leave(g)
	if _, lead := c.join(); !lead {
		t.Error("nobody leads, and nobody is asked to")
	}
}

func TestUseAfterEnd(t *testing.T) {
	ctx := withPatience(t)
	e := openMem(t)
	var kept kv.Tx
	if err := e.Txn(ctx, func(tx kv.Tx) error { kept = tx; return nil }); err != nil {
		t.Fatal(err)
	}
	_, err := kept.Get(ctx, []byte("k"))
	for _, err := range []error{
		err, kept.Put([]byte("k"), nil), kept.Delete([]byte("k")), kept.Lock(ctx, []byte("k"), kv.Shared),
		kept.Scan(ctx, nil, nil, nil),
	} {
		if !errors.Is(err, errEnded) {
			t.Errorf("call after the end of the transaction: %v", err)
		}
	}
}

// TestLocksAreForgotten: a key that nobody locks takes no memory.
func TestLocksAreForgotten(t *testing.T) {
	ctx := withPatience(t)
	e := openMem(t)
	for i := range 100 {
		err := e.Txn(ctx, func(tx kv.Tx) error { return tx.Lock(ctx, fmt.Append(nil, i), kv.LockMode(i%2)) })
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(e.locks.locks); n > 0 {
		t.Errorf("%d locks are left", n)
	}
	err := e.Txn(ctx, func(tx kv.Tx) error {
		for i := range maxLocks + 1 {
			if err := tx.Lock(ctx, fmt.Append(nil, i), kv.Shared); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, kv.ErrTooLarge) || len(e.locks.locks) > 0 {
		t.Errorf("too many locks: %v, %d are left", err, len(e.locks.locks))
	}
}
