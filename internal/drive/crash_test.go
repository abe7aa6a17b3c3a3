package drive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/vfs/crashfs"
)

// fate is what a crash may leave of a record.
type fate int

const (
	never  fate = iota // never written, or aborted, or its delete was acknowledged
	maybe              // a commit or a delete is under way
	always             // acknowledged
)

// history is the oracle of the crash tests: what the workload was told so far. It changes only
// while the file system stands still.
type history struct {
	fs    *crashfs.FS
	fates map[int]fate
	sizes map[int]int
}

func (h *history) set(n int, f fate) { h.fs.Atomic(func() { h.fates[n] = f }) }

// shot is an image of one moment and what was known then.
type shot struct {
	fs    *crashfs.FS
	fates map[int]fate
	at    string
}

// script is a workload over several segments: appends of many sizes, two at a time, aborts,
// deletes, punches, seals, and a stop and start in the middle.
func (h *history) script(t *testing.T, cfg Config) {
	rng := rand.New(rand.NewPCG(7, 8))
	_, err := Format(cfg)
	must(t, err)
	d := openDrive(t, cfg)
	var held *Writer
	heldNumber := 0
	for n := 1; n <= 36; n++ {
		length := []int{1 + rng.IntN(5000), 20_000 + rng.IntN(50_000), 130_000 + rng.IntN(60_000)}[n%3]
		h.fs.Atomic(func() { h.sizes[n] = length })
		w, err := d.Append(context.Background(), record(n, length))
		must(t, err)
		p := payload(n, length)
		const piece = 64 << 10
		for off := 0; off < length; off += piece {
			_, err := w.WriteAt(p[off:min(off+piece, length)], int64(off))
			must(t, err)
		}
		switch {
		case n%9 == 4:
			w.Abort()
		case n%9 == 7 && held == nil: // ends after the next ones
			held, heldNumber = w, n
		default:
			h.set(n, maybe)
			must(t, w.Commit(context.Background(), sums(p)))
			h.set(n, always)
		}
		if held != nil && n == heldNumber+4 {
			h.set(heldNumber, maybe)
			must(t, held.Commit(context.Background(), sums(payload(heldNumber, h.sizes[heldNumber]))))
			h.set(heldNumber, always)
			held = nil
		}
		if n%4 == 0 {
			for _, gone := range []int{n - 3, n / 2} {
				if h.fates[gone] != always {
					continue
				}
				h.set(gone, maybe)
				must(t, d.Delete(key(gone)))
				h.set(gone, never)
			}
		}
		if n%5 == 0 {
			must(t, d.Reclaim(context.Background()))
		}
		if n == 18 {
			if held != nil {
				held.Abort()
				held = nil
			}
			must(t, d.Close())
			d = openDrive(t, cfg)
		}
	}
	if held != nil {
		held.Abort()
	}
	for n, f := range maps.Clone(h.fates) {
		if f == always && n%2 == 0 {
			h.set(n, maybe)
			must(t, d.Delete(key(n)))
			h.set(n, never)
		}
	}
	must(t, d.Close())
}

// TestCrashEverywhere takes images of the file system after every operation of the script, in
// every mode, and opens each.
func TestCrashEverywhere(t *testing.T) {
	every, seeds := uint64(1), 3
	switch {
	case testing.Short():
		every = 16
	case os.Getenv("PENSTOCK_TEST_LONG") != "":
		seeds = 40
	}
	modes := []crashfs.Mode{crashfs.LoseAll, crashfs.KeepAll}
	for range seeds {
		modes = append(modes, crashfs.KeepSome)
	}
	fs := crashfs.New(crashfs.Options{})
	h := &history{fs: fs, fates: map[int]fate{}, sizes: map[int]int{}}
	cfg := config(fs, "/drive")
	rng := rand.New(rand.NewPCG(1, 2))
	images := 0
	kinds := map[string]int{}
	fs.Hook(func(p crashfs.Point) {
		kinds[p.Op]++
		for i, mode := range modes {
			if (p.N+uint64(i))%every != 0 || t.Failed() {
				continue
			}
			seed := rng.Uint64()
			s := shot{p.Image(mode, seed), h.fates, fmt.Sprintf("op %d, %s %s, %s %d", p.N, p.Op, p.Name, mode, seed)}
			images++
			if err := h.check(cfg, s, images%8 == 0); err != nil {
				t.Errorf("%s: %v", s.at, err)
			}
		}
	})
	h.script(t, cfg)
	t.Logf("%d images of %d operations: %v", images, fs.Ops(), kinds)
	for _, op := range []string{
		"create", "write", "sync", "syncdir", "rename", "remove", "truncate", "preallocate", "punch", "mkdir",
	} {
		if kinds[op] == 0 {
			t.Errorf("the script never does %s", op)
		}
	}
}

// check opens an image and compares it with what was known.
func (h *history) check(cfg Config, s shot, again bool) error {
	cfg.FS = s.fs
	d, err := Open(context.Background(), cfg)
	if errors.Is(err, ErrForeign) && strings.Contains(s.at, "/drive") || err != nil && len(h.sizes) == 0 {
		if len(h.sizes) > 0 {
			return err
		}
		_, err = Format(cfg) // Format had not returned: it can be done again
		if errors.Is(err, ErrExist) {
			err = nil
		}
		return err
	}
	if err != nil {
		return err
	}
	if err := h.compare(d, s.fates); err != nil {
		return errors.Join(err, d.Close())
	}
	// It takes new records, and loses nothing when it is opened once more.
	if err := store(d, record(1000, 50_000), payload(1000, 50_000)); err != nil {
		return errors.Join(err, d.Close())
	}
	if err := d.Close(); err != nil || !again {
		return err
	}
	if d, err = Open(context.Background(), cfg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	p, err := load(d, key(1000))
	if err != nil || !bytes.Equal(p, payload(1000, 50_000)) {
		return fmt.Errorf("new record: %w", err)
	}
	if err := d.Delete(key(1000)); err != nil {
		return err
	}
	return h.compare(d, s.fates)
}

// compare checks every record, the walk and the accounting of space.
func (h *history) compare(d *Drive, fates map[int]fate) error {
	found := map[Key]bool{}
	var bytesWanted int64
	for n, size := range h.sizes {
		p, err := load(d, key(n))
		switch f := fates[n]; {
		case errors.Is(err, ErrNotFound) && f != always:
			continue
		case err != nil:
			return fmt.Errorf("record %d: %w", n, err)
		case f == never:
			return fmt.Errorf("record %d is there, although its delete was acknowledged or it was not committed", n)
		}
		if !bytes.Equal(p, payload(n, size)) {
			return fmt.Errorf("record %d has wrong bytes", n)
		}
		found[key(n)] = true
		bytesWanted += recordSpace(int64(size))
	}
	walked := 0
	err := d.Walk(context.Background(), func(r Record) error {
		walked++
		if !found[r.Key] {
			return fmt.Errorf("walk found the unknown record %s", r.Key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := d.Reclaim(context.Background()); err != nil {
		return err
	}
	s, err := d.Stats()
	if err != nil {
		return err
	}
	if walked != len(found) || s.Records != int64(len(found)) || s.RecordBytes != bytesWanted || s.Pending != 0 {
		return fmt.Errorf("%d records of %d bytes found, %d walked, but %+v", len(found), bytesWanted, walked, s)
	}
	used, err := segmentSpace(d)
	if err != nil {
		return err
	}
	if most := bytesWanted + int64(s.Segments)*recordsOffset; used > most {
		return fmt.Errorf("segments take %d bytes of the medium, %d at most expected: %+v", used, most, s)
	}
	return nil
}

// segmentSpace is what the sealed segments take on the medium.
func segmentSpace(d *Drive) (int64, error) {
	dir := path.Join(d.cfg.Dir, segmentsDir)
	names, err := d.cfg.FS.List(dir)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, name := range names {
		f, err := d.cfg.FS.Open(path.Join(dir, name), 0)
		if err != nil {
			return 0, err
		}
		n, err := f.(interface{ DiskBytes() (int64, error) }).DiskBytes()
		if err := errors.Join(err, f.Close()); err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
