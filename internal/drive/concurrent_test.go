package drive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/vfs/errfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

// crowd is what the goroutines of TestConcurrentUse share.
type crowd struct {
	t *testing.T
	d *Drive
}

func (crowd) sizeOf(n int) int { return []int{900, 30_000, 200_000}[n%3] + n%7 }

func (c crowd) check(n int, when string) {
	p, err := load(c.d, key(n))
	if err != nil || !bytes.Equal(p, payload(n, c.sizeOf(n))) {
		c.t.Errorf("load %d %s: %v", n, when, err)
	}
}

// write stores records and deletes some again while it has them pinned.
func (c crowd) write(worker, rounds int) {
	rng := rand.New(rand.NewPCG(uint64(worker), 1))
	var mine []int
	for i := range rounds {
		n := worker*10_000 + i
		if err := store(c.d, record(n, c.sizeOf(n)), payload(n, c.sizeOf(n))); err != nil {
			c.t.Errorf("store %d: %v", n, err)
			return
		}
		mine = append(mine, n)
		at := rng.IntN(len(mine))
		pick := mine[at]
		unpin, err := c.d.Pin(key(pick))
		if err != nil {
			c.t.Errorf("pin %d: %v", pick, err)
			return
		}
		if rng.IntN(2) == 0 {
			if err := c.d.Delete(key(pick)); err != nil {
				c.t.Errorf("delete %d: %v", pick, err)
			}
			mine = slices.Delete(mine, at, at+1)
			c.d.wake()
		}
		c.check(pick, "while it is pinned")
		unpin()
	}
	for _, n := range mine {
		c.check(n, "at the end")
	}
}

// roam walks, reads what it finds and reclaims, until stop is closed.
func (c crowd) roam(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		var some []Record
		err := c.d.Walk(context.Background(), func(r Record) error { some = append(some, r); return nil })
		if err != nil {
			c.t.Errorf("walk: %v", err)
			return
		}
		for _, r := range some[:min(len(some), 20)] {
			p, err := load(c.d, r.Key)
			if errors.Is(err, ErrNotFound) {
				continue
			}
			if n := int(r.Epoch); err != nil || !bytes.Equal(p, payload(n, c.sizeOf(n))) {
				c.t.Errorf("load %d: %v", n, err)
			}
		}
		if err := c.d.Reclaim(context.Background()); err != nil {
			c.t.Errorf("reclaim: %v", err)
		}
		if _, err := c.d.Stats(); err != nil {
			c.t.Errorf("stats: %v", err)
		}
	}
}

// TestConcurrentUse lets writers, readers, deleters, walkers and the background work run against
// each other on one drive. A record that a reader pinned must stay whole; one that was committed
// and not deleted must be there.
func TestConcurrentUse(t *testing.T) {
	cfg := config(osfs.FS{}, t.TempDir())
	cfg.manualTurns = false
	cfg.SegmentBytes = 1 << 20
	d := newDrive(t, cfg)
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	c := crowd{t, d}
	var wg, roamers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 6 {
		wg.Go(func() { c.write(w, rounds) })
	}
	for range 2 {
		roamers.Go(func() { c.roam(stop) })
	}
	wg.Wait()
	close(stop)
	roamers.Wait()
	must(t, d.Reclaim(context.Background()))
	s, err := d.Stats()
	must(t, err)
	if s.Pending != 0 {
		t.Fatalf("after all pins are gone: %+v", s)
	}
	must(t, d.Close())
	d = openDrive(t, cfg)
	again, err := d.Stats()
	must(t, err)
	if again.Records != s.Records || again.RecordBytes != s.RecordBytes {
		t.Fatalf("%+v before, %+v after reopening", s, again)
	}
	must(t, d.Close())
}

// TestSameKeyAtOnce: of many who write or delete one record at once, one does, and the accounts are
// right.
func TestSameKeyAtOnce(t *testing.T) {
	d := newDrive(t, config(crashfs.New(crashfs.Options{}), "/drive"))
	for round := range 20 {
		var stored atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				switch err := store(d, record(round, 5000), payload(round, 5000)); {
				case err == nil:
					stored.Add(1)
				case !errors.Is(err, ErrExist):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if stored.Load() != 1 {
			t.Fatalf("%d of 8 writers of one record succeeded", stored.Load())
		}
		for range 8 {
			wg.Go(func() {
				if err := d.Delete(key(round), key(round+1), key(round)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		s, err := d.Stats()
		must(t, err)
		if s.Records != 0 || s.RecordBytes != 0 || s.Pending != int64(round+1) {
			t.Fatalf("round %d: %+v", round, s)
		}
	}
	must(t, d.Close())
}

// TestCommitsShareSyncs: commits that wait for a slow fdatasync are served together by the next.
func TestCommitsShareSyncs(t *testing.T) {
	fs := errfs.New(crashfs.New(crashfs.Options{}))
	cfg := config(fs, "/drive")
	cfg.SegmentBytes = 4 << 20
	d := newDrive(t, cfg)
	must(t, store(d, record(0, 100), payload(0, 100)))
	release := make(chan struct{})
	stuck := fs.Add(errfs.Rule{Ops: errfs.Sync, Path: "*.seg", Fault: errfs.Stick, Release: release, Times: 1})
	const writers = 16
	var wg sync.WaitGroup
	put := func(n int) {
		wg.Go(func() {
			if err := store(d, record(n, 20_000), payload(n, 20_000)); err != nil {
				t.Error(err)
			}
		})
	}
	put(1)
	<-stuck.Struck()
	count := fs.Add(errfs.Rule{Ops: errfs.Sync, Path: "*.seg", Fault: errfs.Count})
	written := fs.Add(errfs.Rule{Ops: errfs.Write, Path: "*.seg", Fault: errfs.Count})
	for n := 2; n < 2+writers; n++ {
		put(n)
	}
	within(t, func() bool { return written.Seen() >= writers })
	within(t, func() bool { return waiters() == 1+writers }) // all but the first wait in the next round
	close(release)
	wg.Wait()
	// One that was about to take its place when the others got theirs makes a round of its own.
	if n := count.Seen(); n < 1 || n > writers/2 {
		t.Fatalf("%d commits made %d syncs", writers, n)
	}
	for n := range 2 + writers {
		checkStored(t, d, n, []int{100, 20_000}[min(n, 1)])
	}
	must(t, d.Close())
}

// waiters is how many goroutines wait for an fdatasync, or run one.
func waiters() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte("drive.(*syncer).wait("))
}

// TestSyncersShare: all who come while a sync runs are served by one more.
func TestSyncersShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		syncs := 0
		release := make(chan struct{})
		s := syncer{sync: func() error {
			syncs++ // one at a time
			<-release
			return nil
		}}
		var served atomic.Int32
		ask := func() {
			if err := s.wait(); err != nil {
				t.Error(err)
			}
			served.Add(1)
		}
		go ask()
		synctest.Wait()
		for range 100 {
			go ask()
		}
		synctest.Wait()
		for _, want := range []int32{1, 101} {
			release <- struct{}{}
			synctest.Wait()
			if got := served.Load(); got != want || syncs != 2 {
				t.Fatalf("%d of 101 served by %d syncs, want %d by 2", got, syncs, want)
			}
		}
	})
}

// within waits for a condition.
func within(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("condition does not become true")
		}
	}
}

// TestSyncer runs rounds in fake time: a sync serves all who asked before it began, and none who
// asked after; a failure is final.
func TestSyncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun []time.Time
		var failAt int
		fail := errors.New("broken")
		start := time.Now()
		s := &syncer{sync: func() error {
			begun = append(begun, time.Now())
			timer := time.NewTimer(10 * time.Millisecond)
			<-timer.C
			if len(begun) == failAt {
				return fail
			}
			return nil
		}}
		failAt = 4
		type result struct {
			asked, done time.Duration
			err         error
		}
		results := make(chan result, 100)
		for i := range 40 {
			go func() {
				timer := time.NewTimer(time.Duration(i) * time.Millisecond)
				<-timer.C
				asked := time.Since(start)
				err := s.wait()
				results <- result{asked, time.Since(start), err}
			}()
		}
		var all []result
		for range 40 {
			all = append(all, <-results)
		}
		for _, r := range all {
			if r.err != nil {
				if !errors.Is(r.err, fail) || r.asked < 20*time.Millisecond {
					t.Errorf("asked at %v: %v", r.asked, r.err)
				}
				continue
			}
			covered := false
			for _, b := range begun {
				began := b.Sub(start)
				covered = covered || began >= r.asked && began+10*time.Millisecond <= r.done
			}
			if !covered {
				t.Errorf("asked at %v, answered at %v without a sync between", r.asked, r.done)
			}
		}
		if len(begun) != failAt {
			t.Errorf("%d syncs, want none after the failed one", len(begun))
		}
		if err := s.wait(); !errors.Is(err, fail) {
			t.Errorf("after the failure: %v", err)
		}
	})
}

// TestStuckDisk: while reads, writes or syncs of one record hang, others go on as far as the device
// lets them, and nobody waits for a lock.
func TestStuckDisk(t *testing.T) {
	fs := errfs.New(crashfs.New(crashfs.Options{}))
	cfg := config(fs, "/drive")
	cfg.SegmentBytes = 4 << 20
	d := newDrive(t, cfg)
	for n := range 4 {
		must(t, store(d, record(n, 50_000), payload(n, 50_000)))
	}
	for _, op := range []errfs.Op{errfs.Read, errfs.Write, errfs.Sync} {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			release := make(chan struct{})
			stuck := fs.Add(errfs.Rule{Ops: op, Path: "*.seg", Fault: errfs.Stick, Release: release, Times: 1})
			n := 100 + int(op)
			done := make(chan error, 1)
			go func() {
				if op == errfs.Read {
					p, err := load(d, key(0))
					if err == nil && !bytes.Equal(p, payload(0, 50_000)) {
						err = ErrCorrupt
					}
					done <- err
					return
				}
				done <- store(d, record(n, 50_000), payload(n, 50_000))
			}()
			<-stuck.Struck()
			checkStored(t, d, 1, 50_000)
			unpin, err := d.Pin(key(0))
			must(t, err)
			unpin()
			w, err := d.Append(context.Background(), record(n+1, 50_000))
			must(t, err)
			_, err = w.WriteAt(payload(n+1, 50_000), 0)
			must(t, err)
			if op != errfs.Sync {
				must(t, w.Commit(context.Background(), sums(payload(n+1, 50_000))))
				checkStored(t, d, n+1, 50_000)
			}
			w.Abort()
			if op != errfs.Sync {
				must(t, store(d, record(n+2, 900), payload(n+2, 900)))
			}
			must(t, d.Delete(key(3)))
			if d.State().Mode != ReadWrite {
				t.Fatal("the drive gave up")
			}
			select {
			case err := <-done:
				t.Fatalf("the stuck call returned: %v", err)
			default:
			}
			close(release)
			must(t, <-done)
		})
	}
	must(t, d.Close())
}

// TestBackgroundWork: without being asked the drive seals full segments and frees what was deleted.
func TestBackgroundWork(t *testing.T) {
	fs := crashfs.New(crashfs.Options{})
	cfg := config(fs, "/drive")
	cfg.manualTurns = false
	d := newDrive(t, cfg)
	const length = 100_000
	for n := range 9 { // two in each segment
		must(t, store(d, record(n, length), payload(n, length)))
	}
	within(t, func() bool { // the first four are sealed and cut
		f, err := fs.Stat(segmentName(cfg.Dir, 3))
		must(t, err)
		return f.SizeBytes < testSegment
	})
	for n := range 8 {
		must(t, d.Delete(key(n)))
	}
	d.wake()
	within(t, func() bool {
		names, err := fs.List(path.Join(cfg.Dir, segmentsDir))
		must(t, err)
		return len(names) == 1
	})
	checkStored(t, d, 8, length)
	must(t, d.Close())
}
