package drive

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/vfs/errfs"
)

// ordeal is a workload that goes on after errors and keeps the oracle up to date.
type ordeal struct {
	h    *history
	cfg  Config
	errs []error
}

func (o *ordeal) note(err error) bool {
	if err != nil {
		o.errs = append(o.errs, err)
	}
	return err == nil
}

// put writes record n; an error of Commit leaves its fate open until the next crash.
func (o *ordeal) put(d *Drive, n, length int) {
	ctx := context.Background()
	o.h.sizes[n] = length
	w, err := d.Append(ctx, record(n, length))
	if !o.note(err) {
		return
	}
	defer w.Abort()
	p := payload(n, length)
	const piece = 64 << 10
	for off := 0; off < length; off += piece {
		if _, err := w.WriteAt(p[off:min(off+piece, length)], int64(off)); !o.note(err) {
			return
		}
	}
	o.h.set(n, maybe)
	if o.note(w.Commit(ctx, sums(p))) {
		o.h.set(n, always)
	} else if _, err := d.Lookup(key(n)); err == nil {
		o.errs = append(o.errs, fmt.Errorf("record %d is visible although its commit failed", n))
	}
}

func (o *ordeal) remove(d *Drive, n int) {
	before := o.h.fates[n]
	if before == never {
		return
	}
	o.h.set(n, maybe)
	if o.note(d.Delete(key(n))) {
		o.h.set(n, never)
	}
}

// read checks a record that must be there, if it can be read at all.
func (o *ordeal) read(d *Drive, n int) {
	p, err := load(d, key(n))
	if o.note(err) && string(p) != string(payload(n, o.h.sizes[n])) {
		o.errs = append(o.errs, fmt.Errorf("record %d has wrong bytes", n))
	}
}

// session opens the drive, works, and closes it.
func (o *ordeal) session(from, to int) {
	d, err := Open(context.Background(), o.cfg)
	if !o.note(err) {
		return
	}
	for n := from; n < to; n++ {
		o.put(d, n, []int{3000, 70_000, 150_001}[n%3])
		if n%3 == 0 {
			o.remove(d, n-2)
		}
		if n%4 == 0 {
			o.note(d.Reclaim(context.Background()))
		}
		if o.h.fates[n-1] == always {
			o.read(d, n-1)
		}
	}
	o.note(d.Walk(context.Background(), func(Record) error { return nil }))
	_, err = d.Stats()
	o.note(err)
	o.note(d.Close())
}

// runOrdeal works under rules on a drive that stopped uncleanly before: its first Open recovers.
func runOrdeal(t *testing.T, rebuild bool, rules ...errfs.Rule) (*ordeal, *crashfs.FS, []*errfs.Armed) {
	t.Helper()
	base := crashfs.New(crashfs.Options{})
	o := &ordeal{h: &history{fs: base, fates: map[int]fate{}, sizes: map[int]int{}}, cfg: config(base, "/drive")}
	_, err := Format(o.cfg)
	must(t, err)
	o.session(1, 4)
	base = o.stopUnclean(t)
	if len(o.errs) > 0 {
		t.Fatalf("without faults: %v", o.errs)
	}
	faulty := errfs.New(base)
	var armed []*errfs.Armed
	for _, r := range rules {
		armed = append(armed, faulty.Add(r))
	}
	o.h.fs, o.cfg.FS, o.cfg.RebuildIndex = base, faulty, rebuild
	for n, f := range o.h.fates {
		if rebuild && f == never { // what was deleted and not punched comes back, says the format
			o.h.fates[n] = maybe
		}
	}
	o.session(10, 17)
	o.cfg.RebuildIndex = false
	o.session(20, 24)
	return o, base, armed
}

// stopUnclean returns an image with an unsealed segment: committed records, a deleted one, an
// aborted one and an unfinished one.
func (o *ordeal) stopUnclean(t *testing.T) *crashfs.FS {
	t.Helper()
	base := o.cfg.FS.(*crashfs.FS)
	d, err := Open(context.Background(), o.cfg)
	must(t, err)
	o.put(d, 5, 40_000)
	w, err := d.Append(context.Background(), record(90, 20_000))
	must(t, err)
	_, err = w.WriteAt(payload(90, 20_000), 0)
	must(t, err)
	o.put(d, 6, 5000)
	o.put(d, 7, 9000)
	img := base.Image(crashfs.LoseAll, 0)
	w.Abort()
	must(t, d.Close())
	return img
}

// settle checks what is there after the faults: as the process finds it, and after a power loss.
func (o *ordeal) settle(base *crashfs.FS, seed uint64) error {
	images := map[string]*crashfs.FS{
		"restart":    base.Image(crashfs.KeepAll, 0),
		"power loss": base.Image(crashfs.LoseAll, 0),
		"some":       base.Image(crashfs.KeepSome, seed),
	}
	for name, img := range images {
		s := shot{fs: img, fates: o.h.fates, at: "/drive"}
		if err := o.h.check(config(img, "/drive"), s, true); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// TestEveryFault lets the nth operation of every kind fail in every way, for each n, and then
// compares what is there with what was acknowledged.
func TestEveryFault(t *testing.T) {
	kinds := map[string]errfs.Op{
		"open": errfs.Open, "create": errfs.Create, "remove": errfs.Remove, "rename": errfs.Rename,
		"mkdir": errfs.Mkdir, "list": errfs.List, "stat": errfs.Stat, "syncdir": errfs.SyncDir,
		"lock": errfs.Lock, "space": errfs.Space, "read": errfs.Read, "write": errfs.Write, "sync": errfs.Sync,
		"truncate": errfs.Truncate, "preallocate": errfs.Preallocate, "punch": errfs.Punch, "size": errfs.Size,
		"close": errfs.Close,
	}
	faults := map[string]errfs.Rule{
		"fail":     {Fault: errfs.Fail, Times: 1},
		"for-ever": {Fault: errfs.Fail},
		"no-space": {Fault: errfs.Fail, Times: 3, Err: vfs.ErrNoSpace},
		"after":    {Fault: errfs.FailAfter, Times: 1},
		"lose":     {Fault: errfs.LoseSync, Times: 1},
		"torn":     {Fault: errfs.TornWrite, Times: 1, Keep: 5000},
		"short":    {Fault: errfs.ShortWrite, Times: 1, Keep: 700},
		"flip":     {Fault: errfs.FlipBit, Times: 1, At: 13_000},
	}
	only := map[string]errfs.Op{"lose": errfs.Sync, "torn": errfs.Write, "short": errfs.Write, "flip": errfs.Read}
	step := 5
	switch {
	case testing.Short():
		step = 40
	case os.Getenv("PENSTOCK_TEST_LONG") != "":
		step = 1
	}
	for kind, op := range kinds {
		t.Run(kind, func(t *testing.T) {
			_, _, counted := runOrdeal(t, false, errfs.Rule{Ops: op, Fault: errfs.Count})
			total := counted[0].Seen()
			for fault, rule := range faults {
				if mask, ok := only[fault]; ok && mask != op {
					continue
				}
				rule.Ops = op
				rng := rand.New(rand.NewPCG(uint64(op), uint64(step)))
				for nth := 1 + rng.IntN(min(step, total+1)); nth <= total; nth += 1 + rng.IntN(2*step-1) {
					rule.Nth, rule.Seed = nth, rng.Uint64()
					o, base, _ := runOrdeal(t, nth%3 == 0, rule)
					if err := o.settle(base, rule.Seed); err != nil {
						t.Errorf("%s of %s %d of %d: %v\nerrors seen: %v", fault, kind, nth, total, err, errors.Join(o.errs...))
					}
				}
			}
		})
	}
}

// TestFailedSyncIsFinal: every commit that waits for a failing fdatasync fails, nothing is retried,
// and the drive says so until it is opened anew.
func TestFailedSyncIsFinal(t *testing.T) {
	base := crashfs.New(crashfs.Options{})
	fs := errfs.New(base)
	h := &history{fs: base, fates: map[int]fate{}, sizes: map[int]int{}}
	d := newDrive(t, config(fs, "/drive"))
	ctx := context.Background()
	for n := 1; n <= 3; n++ {
		h.sizes[n] = 50_000
		must(t, store(d, record(n, 50_000), payload(n, 50_000)))
		h.fates[n] = always
	}
	h.sizes[4], h.sizes[5] = 50_000, 50_000
	early, err := d.Append(ctx, record(5, 50_000)) // written before the failure, committed after it
	must(t, err)
	_, err = early.WriteAt(payload(5, 50_000), 0)
	must(t, err)
	rule := fs.Add(errfs.Rule{Ops: errfs.Sync, Path: "*.seg", Fault: errfs.LoseSync, Times: 1, Seed: 3})
	count := fs.Add(errfs.Rule{Ops: errfs.Sync, Path: "*.seg", Fault: errfs.Count})
	err = store(d, record(4, 50_000), payload(4, 50_000))
	wantErr(t, err, ErrReadOnly)
	wantErr(t, err, errfs.ErrInjected)
	h.fates[4] = maybe
	wantErr(t, early.Commit(ctx, sums(payload(5, 50_000))), ErrReadOnly)
	h.fates[5] = maybe
	if s := d.State(); s.Mode != ReadOnly || !errors.Is(s.Cause, errfs.ErrInjected) {
		t.Fatalf("state is %+v", s)
	}
	_, err = d.Append(ctx, record(6, 1))
	wantErr(t, err, ErrReadOnly)
	wantErr(t, d.Delete(key(1)), ErrReadOnly)
	wantErr(t, d.Reclaim(ctx), ErrReadOnly)
	for n := 1; n <= 3; n++ {
		checkStored(t, d, n, 50_000) // reads go on
	}
	must(t, d.Close())
	if rule.Hits() != 1 || count.Seen() != 0 {
		t.Fatalf("the segment was synced %d times after the failure", count.Seen())
	}
	o := &ordeal{h: h}
	must(t, o.settle(base, 11))
}

// TestFullDrive fills a drive to its reserve and beyond, and deletes.
func TestFullDrive(t *testing.T) {
	for _, reserve := range []bool{true, false} {
		t.Run(fmt.Sprintf("reserve=%v", reserve), func(t *testing.T) {
			base := crashfs.New(crashfs.Options{CapacityBytes: 4 << 20})
			cfg := config(base, "/drive")
			cfg.NoReserve = !reserve
			cfg.ReserveBytes, cfg.ReservePercent = 1<<20, 1
			h := &history{fs: base, fates: map[int]fate{}, sizes: map[int]int{}}
			d := newDrive(t, cfg)
			full := false
			for n := 1; n < 200 && !full; n++ {
				h.sizes[n] = 60_000
				h.set(n, maybe)
				err := store(d, record(n, 60_000), payload(n, 60_000))
				if full = errors.Is(err, ErrNoSpace) || errors.Is(err, ErrReadOnly); !full {
					must(t, err)
					h.set(n, always)
				}
			}
			if !full {
				t.Fatal("the drive never was full")
			}
			s, err := d.Stats()
			must(t, err)
			if reserve {
				if s.Space.Free < 1<<20 || d.State().Mode != ReadWrite {
					t.Fatalf("the reserve was used: %+v", s)
				}
				for n := range maps.Clone(h.fates) { // deletes work, and space returns
					if n%2 == 0 && h.fates[n] == always {
						h.set(n, maybe)
						must(t, d.Delete(key(n)))
						h.set(n, never)
					}
				}
				must(t, d.Reclaim(context.Background()))
				h.sizes[300] = 60_000
				must(t, store(d, record(300, 60_000), payload(300, 60_000)))
				h.set(300, always)
			}
			err = d.Close()
			if reserve {
				must(t, err)
			}
			base.SetCapacity(0)
			o := &ordeal{h: h}
			must(t, o.settle(base, 5))
		})
	}
}
