package pebblefs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

func options(fs vfs.FS) *pebble.Options {
	o := &pebble.Options{
		FS: New(fs), MemTableSize: 32 << 10, Logger: silent{},
		L0CompactionThreshold: 2, MemTableStopWritesThreshold: 4,
	}
	return o
}

type silent struct{}

func (silent) Infof(string, ...any)           {}
func (silent) Errorf(string, ...any)          {}
func (silent) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

// shot is an image and the batches that were acknowledged when it was taken.
type shot struct {
	fs    *crashfs.FS
	acked int
	at    string
}

const keysPerBatch = 3

func key(batch, i int) []byte { return fmt.Appendf(nil, "k%d-%d", i, batch%50) }

func value(batch int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%06d", batch), 60)
}

// TestPebbleCrash writes numbered batches with sync, takes images at every operation of the file
// system and checks that each image opens, holds every acknowledged batch, and no batch in part.
func TestPebbleCrash(t *testing.T) {
	const batches = 400
	fs := crashfs.New(crashfs.Options{})
	rng := rand.New(rand.NewPCG(3, 4))
	var shots []shot
	acked := 0
	fs.Hook(func(p crashfs.Point) {
		for i, mode := range []crashfs.Mode{crashfs.LoseAll, crashfs.KeepAll, crashfs.KeepSome, crashfs.KeepSome} {
			if testing.Short() && (p.N+uint64(i))%16 != 0 {
				continue
			}
			at := fmt.Sprintf("op %d %s %s, %s", p.N, p.Op, p.Name, mode)
			shots = append(shots, shot{p.Image(mode, rng.Uint64()), acked, at})
		}
	})
	if err := fs.MkdirAll("db"); err != nil {
		t.Fatal(err)
	}
	if err := fs.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open("db", options(fs))
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= batches; n++ {
		b := db.NewBatch()
		for i := range keysPerBatch {
			if err := b.Set(key(n, i), value(n), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Set([]byte("last"), fmt.Appendf(nil, "%d", n), nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Commit(pebble.Sync); err != nil {
			t.Fatal(err)
		}
		fs.Atomic(func() { acked = n })
	}
	fs.Hook(nil)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if len(shots) < 1000 && !testing.Short() {
		t.Fatalf("only %d images taken", len(shots))
	}
	t.Logf("%d images of %d operations", len(shots), fs.Ops())
	for _, s := range shots {
		if err := check(s); err != nil {
			t.Fatalf("%s, %d acknowledged: %v", s.at, s.acked, err)
		}
	}
}

// check opens an image and compares it with the state after some batch ≥ s.acked.
func check(s shot) (err error) {
	if err := s.fs.MkdirAll("db"); err != nil {
		return err
	}
	db, err := pebble.Open("db", options(s.fs))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	last := 0
	v, closer, err := db.Get([]byte("last"))
	switch {
	case errors.Is(err, pebble.ErrNotFound):
	case err != nil:
		return err
	default:
		if _, err := fmt.Sscan(string(v), &last); err != nil {
			return err
		}
		if err := closer.Close(); err != nil {
			return err
		}
	}
	if last < s.acked {
		return fmt.Errorf("last batch is %d", last)
	}
	for n := max(1, last-49); n <= last; n++ {
		for i := range keysPerBatch {
			v, closer, err := db.Get(key(n, i))
			if err != nil {
				return fmt.Errorf("batch %d key %d: %w", n, i, err)
			}
			if !bytes.Equal(v, value(n)) {
				return fmt.Errorf("batch %d key %d: wrong value", n, i)
			}
			if err := closer.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestPebbleOnRealFiles fills, compacts and reopens a store on real files.
func TestPebbleOnRealFiles(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		db, err := pebble.Open(dir, options(osfs.FS{}))
		if err != nil {
			t.Fatal(err)
		}
		for n := range 300 {
			if err := db.Set(fmt.Appendf(nil, "%d-%d", round, n), value(n), pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Compact(t.Context(), []byte("0"), []byte("9"), false); err != nil {
			t.Fatal(err)
		}
		for r := range round + 1 {
			v, closer, err := db.Get(fmt.Appendf(nil, "%d-%d", r, 299))
			if err != nil || !bytes.Equal(v, value(299)) {
				t.Fatalf("round %d: %v", r, err)
			}
			if err := closer.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestErrorsAndNames(t *testing.T) {
	for name, inner := range map[string]vfs.FS{"osfs": osfs.FS{}, "crashfs": crashfs.New(crashfs.Options{})} {
		t.Run(name, func(t *testing.T) {
			fs, dir := New(inner), "/d"
			if name == "osfs" {
				dir = t.TempDir()
			}
			at := func(s string) string { return fs.PathJoin(dir, s) }
			if err := fs.MkdirAll(at("sub/deep"), 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := fs.Open(at("missing")); !errors.Is(err, os.ErrNotExist) || !errors.Is(err, vfs.ErrNotExist) {
				t.Fatalf("Open = %v", err)
			}
			first, err := fs.Create(at("sub/f"), pebblevfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := first.Write([]byte("first")); err != nil {
				t.Fatal(err)
			}
			second, err := fs.Create(at("sub/f"), pebblevfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			p := make([]byte, 5)
			if _, err := first.ReadAt(p, 0); err != nil || string(p) != "first" {
				t.Fatalf("Create reused the inode: %q, %v", p, err)
			}
			if err := second.Preallocate(0, 1<<20); err != nil {
				t.Fatal(err)
			}
			if st, err := second.Stat(); err != nil || st.Size() != 0 || st.Name() != "f" {
				t.Fatalf("Stat after Preallocate = %v, %v", st, err)
			}
			if err := errors.Join(first.Close(), second.Close()); err != nil {
				t.Fatal(err)
			}
			re, err := fs.ReuseForWrite(at("sub/f"), at("sub/g"), pebblevfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if err := re.Close(); err != nil {
				t.Fatal(err)
			}
			if err := fs.RemoveAll(at("sub")); err != nil {
				t.Fatal(err)
			}
			if _, err := fs.Stat(at("sub")); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("Stat after RemoveAll = %v", err)
			}
			if u, err := fs.GetDiskUsage(dir); err != nil || u.TotalBytes == 0 {
				t.Fatalf("GetDiskUsage = %+v, %v", u, err)
			}
		})
	}
}

func TestNoSpaceIsKnownToPebble(t *testing.T) {
	fs := crashfs.New(crashfs.Options{CapacityBytes: 8192})
	f, err := New(fs).Create("f", pebblevfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 10000)); !pebblevfs.IsNoSpaceError(err) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Write on a full file system = %v", err)
	}
}
