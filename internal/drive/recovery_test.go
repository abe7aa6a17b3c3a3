package drive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/vfs/errfs"
)

// uncleanDrive returns an image of a drive that lost power with two unsealed segments in use, and
// what is known of it.
func uncleanDrive(t *testing.T) (*history, *crashfs.FS) {
	t.Helper()
	fs := crashfs.New(crashfs.Options{})
	o := &ordeal{h: &history{fs: fs, fates: map[int]fate{}, sizes: map[int]int{}}, cfg: config(fs, "/drive")}
	_, err := Format(o.cfg)
	must(t, err)
	o.session(1, 4)
	d, err := Open(context.Background(), o.cfg)
	must(t, err)
	for n := 30; n < 36; n++ {
		o.put(d, n, 70_000)
	}
	o.remove(d, 31)
	w, err := d.Append(context.Background(), record(90, 20_000))
	must(t, err)
	_, err = w.WriteAt(payload(90, 20_000), 0)
	must(t, err)
	o.put(d, 36, 3000)
	img := fs.Image(crashfs.LoseAll, 0)
	w.Abort()
	must(t, d.Close())
	if len(o.errs) > 0 {
		t.Fatal(errors.Join(o.errs...))
	}
	return o.h, img
}

// TestCrashDuringRecovery loses power again at every operation of a recovery, with and without a
// rebuild of the index.
func TestCrashDuringRecovery(t *testing.T) {
	for _, rebuild := range []bool{false, true} {
		t.Run(fmt.Sprintf("rebuild=%v", rebuild), func(t *testing.T) {
			h, img := uncleanDrive(t)
			if rebuild {
				for n, f := range h.fates {
					if f == never {
						h.fates[n] = maybe // comes back with a rebuilt index
					}
				}
			}
			h.fs = img
			cfg := config(img, "/drive")
			images := 0
			img.Hook(func(p crashfs.Point) {
				for i, mode := range []crashfs.Mode{crashfs.LoseAll, crashfs.KeepAll, crashfs.KeepSome, crashfs.KeepSome} {
					if t.Failed() || testing.Short() && (p.N+uint64(i))%5 != 0 {
						continue
					}
					images++
					at := fmt.Sprintf("op %d, %s %s, %s", p.N, p.Op, p.Name, mode)
					s := shot{p.Image(mode, p.N*7+uint64(i)), h.fates, at}
					if err := h.check(cfg, s, images%8 == 0); err != nil {
						t.Errorf("%s: %v", s.at, err)
					}
				}
			})
			opening := cfg
			opening.RebuildIndex = rebuild
			d := openDrive(t, opening)
			must(t, h.compare(d, h.fates))
			must(t, d.Close())
			t.Logf("%d images", images)
		})
	}
}

// TestFormatFaults lets every operation of Format fail, then loses power: the directory is a drive,
// or can be made one.
func TestFormatFaults(t *testing.T) {
	for nth := 1; ; nth++ {
		base := crashfs.New(crashfs.Options{})
		fs := errfs.New(base)
		rule := fs.Add(errfs.Rule{Ops: errfs.Any, Nth: nth, Times: 1})
		cfg := config(fs, "/drive")
		_, err := Format(cfg)
		if rule.Hits() == 0 {
			must(t, err)
			if nth < 12 {
				t.Fatalf("Format does only %d operations", nth)
			}
			return
		}
		for _, mode := range []crashfs.Mode{crashfs.LoseAll, crashfs.KeepAll, crashfs.KeepSome, crashfs.Scatter} {
			cfg := config(base.Image(mode, uint64(nth)), "/drive")
			if _, err := Format(cfg); err != nil && !errors.Is(err, ErrExist) {
				t.Fatalf("operation %d failed, %s: Format again: %v", nth, mode, err)
			}
			d := openDrive(t, cfg)
			must(t, store(d, record(1, 5000), payload(1, 5000)))
			must(t, d.Close())
		}
	}
}

// TestUnreadableWhileScanning: what a scan could not read is neither freed nor forgotten.
func TestUnreadableWhileScanning(t *testing.T) {
	for _, at := range []int{1, 2, 3, 4, 5, 6, 8} {
		h, img := uncleanDrive(t)
		fs := errfs.New(img)
		rule := fs.Add(errfs.Rule{Ops: errfs.Read, Path: "*.seg", Nth: at, Times: 3})
		cfg := config(fs, "/drive")
		var log bytes.Buffer
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		d, err := Open(context.Background(), cfg)
		if err == nil {
			fs.Clear()
			must(t, store(d, record(500, 100), payload(500, 100)))
			must(t, d.Reclaim(context.Background()))
			must(t, d.Close())
			if !strings.Contains(log.String(), "while scanning") {
				t.Errorf("read %d: nothing was logged", at)
			}
		}
		if rule.Hits() == 0 {
			t.Fatalf("read %d never happened", at)
		}
		h.sizes[500] = 100
		h.fates[500] = maybe
		s := shot{fs: img.Image(crashfs.LoseAll, 0), fates: h.fates, at: "/drive"}
		if err := h.check(config(s.fs, "/drive"), s, true); err != nil {
			t.Errorf("read %d: %v", at, err)
		}
	}
}

// damage overwrites bytes of a file.
func damage(t *testing.T, fs vfs.FS, name string, p []byte, off int64) {
	t.Helper()
	f, err := fs.Open(name, vfs.Write)
	must(t, err)
	_, err = f.WriteAt(p, off)
	must(t, errors.Join(err, f.Sync(), f.Close()))
}

// TestSegmentHeaders: one copy is enough; without both the index helps; without that, too, a
// segment with records is put aside and one without is removed.
func TestSegmentHeaders(t *testing.T) {
	junk := bytes.Repeat([]byte{0xaa}, unit)
	open := func(t *testing.T, hurt func(fs *crashfs.FS, newest string), rebuild bool) (*history, *Drive, *crashfs.FS) {
		h, img := uncleanDrive(t)
		names, err := img.List("/drive/segments")
		must(t, err)
		hurt(img, "/drive/segments/"+names[len(names)-1])
		cfg := config(img, "/drive")
		cfg.RebuildIndex = rebuild
		return h, openDrive(t, cfg), img
	}
	t.Run("first copy", func(t *testing.T) {
		h, d, _ := open(t, func(fs *crashfs.FS, s string) { damage(t, fs, s, junk, 0) }, false)
		must(t, h.compare(d, h.fates))
		must(t, d.Close())
	})
	t.Run("second copy", func(t *testing.T) {
		h, d, _ := open(t, func(fs *crashfs.FS, s string) { damage(t, fs, s, junk, unit) }, false)
		must(t, h.compare(d, h.fates))
		must(t, d.Close())
	})
	both := func(fs *crashfs.FS, s string) { damage(t, fs, s, append(bytes.Clone(junk), junk...), 0) }
	t.Run("both, no index", func(t *testing.T) {
		_, d, fs := open(t, both, true)
		names, err := fs.List("/drive/segments")
		must(t, err)
		if last := names[len(names)-1]; !strings.HasSuffix(last, asideSuffix) {
			t.Fatalf("segments: %v", names)
		}
		_, err = load(d, key(36))
		wantErr(t, err, ErrNotFound)
		must(t, store(d, record(600, 9000), payload(600, 9000)))
		must(t, d.Close())
		d = openDrive(t, config(fs, "/drive"))
		checkStored(t, d, 600, 9000)
		must(t, d.Close())
	})
	t.Run("another drive's segment", func(t *testing.T) {
		_, other := uncleanDrive(t)
		h, d, fs := open(t, func(fs *crashfs.FS, s string) {
			p := make([]byte, 2*unit)
			names, err := other.List("/drive/segments")
			must(t, err)
			f, err := other.Open("/drive/segments/"+names[len(names)-1], 0)
			must(t, err)
			_, err = f.ReadAt(p, 0)
			must(t, err)
			must(t, writeFile(fs, segmentName("/drive", 0xfff0), p))
		}, false)
		must(t, h.compare(d, h.fates))
		if _, err := fs.Stat(segmentName("/drive", 0xfff0)); !errors.Is(err, vfs.ErrNotExist) {
			t.Fatalf("an empty foreign segment is left: %v", err)
		}
		must(t, d.Close())
	})
}

// TestContexts: an Open and an Append that must wait end with their context.
func TestContexts(t *testing.T) {
	_, img := uncleanDrive(t)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Open(gone, config(img, "/drive"))
	wantErr(t, err, context.Canceled)

	fs := errfs.New(img)
	d := openDrive(t, config(fs, "/drive"))
	release := make(chan struct{})
	stuck := fs.Add(errfs.Rule{Ops: errfs.Preallocate, Path: "*.seg", Fault: errfs.Stick, Release: release, Times: 1})
	first := make(chan error, 1)
	go func() { first <- store(d, record(700, 9000), payload(700, 9000)) }()
	<-stuck.Struck()
	_, err = d.Append(gone, record(701, 9000))
	wantErr(t, err, context.Canceled)
	second := make(chan error, 1)
	go func() { second <- store(d, record(701, 9000), payload(701, 9000)) }()
	close(release)
	must(t, <-first)
	must(t, <-second)
	wantErr(t, d.Walk(gone, func(Record) error { return nil }), context.Canceled)
	stop := errors.New("enough")
	wantErr(t, d.Walk(context.Background(), func(Record) error { return stop }), stop)
	must(t, d.Close())
}

// TestFewOpenFiles reads many segments with few files open.
func TestFewOpenFiles(t *testing.T) {
	eachFS(t, func(t *testing.T, cfg Config) {
		cfg.openReads = 2
		d := newDrive(t, cfg)
		const length = 120_000
		for n := range 20 {
			must(t, store(d, record(n, length), payload(n, length)))
		}
		for n := range 20 {
			checkStored(t, d, n, length)
		}
		if n := d.openReads.Load(); n > 3 {
			t.Fatalf("%d segments are open for reading", n)
		}
		must(t, d.Close())
	})
}

// TestLackingFileSystems: neither O_DIRECT nor fallocate nor statfs is needed.
func TestLackingFileSystems(t *testing.T) {
	fs := errfs.New(crashfs.New(crashfs.Options{RefuseDirect: true, RefusePunch: true}),
		errfs.Rule{Ops: errfs.Preallocate, Path: "*.seg", Err: vfs.ErrNotSupported})
	cfg := config(noSpaceReport{fs}, "/drive")
	cfg.DirectReads = true
	d := newDrive(t, cfg)
	for n := range 8 {
		must(t, store(d, record(n, 64<<10), payload(n, 64<<10)))
	}
	l, err := d.Lookup(key(3))
	must(t, err)
	p := vfs.AlignedBytes(64 << 10)
	_, err = l.ReadAt(p, 0)
	must(t, err)
	if !bytes.Equal(p, payload(3, 64<<10)) {
		t.Fatal("wrong bytes")
	}
	l.Release()
	must(t, d.Delete(key(1), key(2)))
	must(t, d.Reclaim(context.Background()))
	must(t, d.Close())
	cfg.RebuildIndex = true // finds no deleted record, although nothing could be punched
	d = openDrive(t, cfg)
	if s, err := d.Stats(); err != nil || s.Records != 6 {
		t.Fatalf("%+v, %v", s, err)
	}
	must(t, d.Close())
}

// noSpaceReport hides the optional abilities of an FS.
type noSpaceReport struct{ vfs.FS }

// TestFailedWriteSpoilsTheRecord: after a WriteAt that failed the record cannot be committed, the
// drive goes on, and the space returns.
func TestFailedWriteSpoilsTheRecord(t *testing.T) {
	for _, length := range []int{300_000, 300_001} {
		base := crashfs.New(crashfs.Options{})
		fs := errfs.New(base)
		cfg := config(fs, "/drive")
		cfg.SegmentBytes = 4 << 20
		d := newDrive(t, cfg)
		must(t, store(d, record(1, 100), payload(1, 100)))
		for _, memory := range [][]byte{payload(2, length), append([]byte{0}, payload(2, length)...)[1:]} {
			w, err := d.Append(context.Background(), record(2, length))
			must(t, err)
			fs.Add(errfs.Rule{Ops: errfs.Write, Path: "*.seg", Fault: errfs.TornWrite, Keep: 777, Times: 1})
			_, err = w.WriteAt(memory, 0)
			wantErr(t, err, errfs.ErrInjected)
			wantErr(t, w.Commit(context.Background(), sums(memory)), errWriteFailed)
			fs.Clear()
		}
		if s := d.State(); s.Mode != ReadWrite {
			t.Fatalf("state is %+v", s)
		}
		must(t, store(d, record(2, length), payload(2, length)))
		must(t, d.Reclaim(context.Background()))
		must(t, d.Close())
		used, err := segmentSpace(d)
		must(t, err)
		if most := recordsOffset + recordSpace(100) + recordSpace(int64(length)); used > most {
			t.Fatalf("%d bytes are in use, at most %d expected", used, most)
		}
	}
}

// TestCommitAgainstFailure: a commit whose sync succeeded is kept although another sync fails while
// its entry is on the way.
func TestCommitAgainstFailure(t *testing.T) {
	base := crashfs.New(crashfs.Options{})
	d := newDrive(t, config(base, "/drive"))
	must(t, store(d, record(1, 100), payload(1, 100)))
	w, err := d.Append(context.Background(), record(2, 50_000))
	must(t, err)
	_, err = w.WriteAt(payload(2, 50_000), 0)
	must(t, err)
	seg := w.seg
	inner := seg.sync.sync
	seg.sync.sync = func() error {
		err := inner()
		_ = d.fail(seg, errors.New("the sync after this one")) // as if it had been quicker
		return err
	}
	must(t, w.Commit(context.Background(), sums(payload(2, 50_000))))
	img := base.Image(crashfs.LoseAll, 0)
	again := openDrive(t, config(img, "/drive"))
	checkStored(t, again, 1, 100)
	checkStored(t, again, 2, 50_000)
	must(t, again.Close())
	must(t, d.Close())
}
