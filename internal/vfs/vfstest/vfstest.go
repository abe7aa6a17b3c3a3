// Package vfstest is the conformance suite of vfs.FS, run by every implementation.
//
// Called by: tests of osfs, crashfs and errfs.
//
// The oracle is the contract in package vfs, and for random operations on one file a plain byte
// slice.
//
// What it does not do: power loss (crashfs tests it itself).
package vfstest

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/internal/vfs"
)

// Run runs the suite in fresh directories: open returns the FS and an existing, empty directory.
func Run(t *testing.T, open func(t *testing.T) (fs vfs.FS, dir string)) {
	t.Helper()
	cases := []struct {
		name string
		run  func(t *testing.T, fs vfs.FS, dir string)
	}{
		{"Names", testNames},
		{"OpenFlags", testOpenFlags},
		{"Bytes", testBytes},
		{"Model", testModel},
		{"Punch", testPunch},
		{"NextData", testNextData},
		{"Direct", testDirect},
		{"Lock", testLock},
		{"RemovedButOpen", testRemovedButOpen},
		{"Concurrent", testConcurrent},
		{"Space", testSpace},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fs, dir := open(t)
			c.run(t, fs, dir)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got error %v, want %v", got, want)
	}
}

// create makes a file with the given bytes and returns it open for writing.
func create(t *testing.T, fs vfs.FS, name string, data []byte) vfs.File {
	t.Helper()
	f, err := fs.Open(name, vfs.Write|vfs.Create|vfs.Excl)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() }) // some tests close it themselves
	n, err := f.WriteAt(data, 0)
	must(t, err)
	if n != len(data) {
		t.Fatalf("wrote %d of %d bytes without an error", n, len(data))
	}
	return f
}

// content reads a whole file.
func content(t *testing.T, f vfs.File) []byte {
	t.Helper()
	size, err := f.Size()
	must(t, err)
	p := make([]byte, size)
	n, err := f.ReadAt(p, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if n != len(p) {
		t.Fatalf("read %d of %d bytes", n, len(p))
	}
	return p
}

func testNames(t *testing.T, fs vfs.FS, dir string) {
	must(t, fs.MkdirAll(path.Join(dir, "a/b/c")))
	must(t, fs.MkdirAll(path.Join(dir, "a/b/c")))
	for _, d := range []string{dir, path.Join(dir, "a"), path.Join(dir, "a/b")} {
		must(t, fs.SyncDir(d))
	}
	must(t, create(t, fs, path.Join(dir, "a/two"), []byte("22")).Close())
	must(t, create(t, fs, path.Join(dir, "a/one"), []byte("1")).Close())
	names, err := fs.List(path.Join(dir, "a"))
	must(t, err)
	if !slices.Equal(names, []string{"b", "one", "two"}) {
		t.Fatalf("List = %q", names)
	}
	must(t, fs.Rename(path.Join(dir, "a/two"), path.Join(dir, "a/one")))
	st, err := fs.Stat(path.Join(dir, "a/one"))
	must(t, err)
	if st.SizeBytes != 2 || st.Dir {
		t.Fatalf("after rename over a file: %+v", st)
	}
	_, err = fs.Stat(path.Join(dir, "a/two"))
	wantErr(t, err, vfs.ErrNotExist)
	if st, err = fs.Stat(path.Join(dir, "a")); err != nil || !st.Dir {
		t.Fatalf("Stat of a directory = %+v, %v", st, err)
	}
	if err := fs.Remove(path.Join(dir, "a")); err == nil {
		t.Fatal("removed a directory that is not empty")
	}
	must(t, fs.Remove(path.Join(dir, "a/b/c")))
	must(t, fs.Remove(path.Join(dir, "a/one")))
	missing := path.Join(dir, "missing")
	wantErr(t, fs.Remove(missing), vfs.ErrNotExist)
	wantErr(t, fs.Rename(missing, path.Join(dir, "x")), vfs.ErrNotExist)
	wantErr(t, fs.SyncDir(missing), vfs.ErrNotExist)
	_, err = fs.List(missing)
	wantErr(t, err, vfs.ErrNotExist)
}

func testOpenFlags(t *testing.T, fs vfs.FS, dir string) {
	name := path.Join(dir, "f")
	_, err := fs.Open(name, 0)
	wantErr(t, err, vfs.ErrNotExist)
	_, err = fs.Open(name, vfs.Write)
	wantErr(t, err, vfs.ErrNotExist)
	must(t, create(t, fs, name, []byte("hello")).Close())
	_, err = fs.Open(name, vfs.Write|vfs.Create|vfs.Excl)
	wantErr(t, err, vfs.ErrExist)

	r, err := fs.Open(name, 0)
	must(t, err)
	if _, err := r.WriteAt([]byte("x"), 0); err == nil {
		t.Fatal("wrote through a file opened for reading")
	}
	must(t, r.Close())
	w, err := fs.Open(name, vfs.Write|vfs.Create)
	must(t, err)
	if got := content(t, w); string(got) != "hello" {
		t.Fatalf("reopened file holds %q", got)
	}
	must(t, w.Close())
	w, err = fs.Open(name, vfs.Write|vfs.Truncate)
	must(t, err)
	if got := content(t, w); len(got) != 0 {
		t.Fatalf("truncated file holds %q", got)
	}
	must(t, w.Close())
}

func testBytes(t *testing.T, fs vfs.FS, dir string) {
	f := create(t, fs, path.Join(dir, "f"), []byte("0123456789"))
	must(t, f.Sync())
	p := make([]byte, 4)
	if n, err := f.ReadAt(p, 8); n != 2 || !errors.Is(err, io.EOF) {
		t.Fatalf("read over the end = %d, %v; want 2, EOF", n, err)
	}
	if n, err := f.ReadAt(p, 10); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("read at the end = %d, %v; want 0, EOF", n, err)
	}
	_, err := f.WriteAt([]byte("X"), 12)
	must(t, err)
	if got := content(t, f); !bytes.Equal(got, []byte("0123456789\x00\x00X")) {
		t.Fatalf("a gap reads as %q", got)
	}
	must(t, f.Truncate(3))
	must(t, f.Truncate(5))
	if got := content(t, f); !bytes.Equal(got, []byte("012\x00\x00")) {
		t.Fatalf("shrunk and grown file reads as %q", got)
	}
	must(t, f.Preallocate(2, 10000))
	size, err := f.Size()
	must(t, err)
	if size != 10002 {
		t.Fatalf("size after Preallocate = %d, want 10002", size)
	}
	if got := content(t, f); !bytes.Equal(got[:5], []byte("012\x00\x00")) || !bytes.Equal(got[5:], make([]byte, 9997)) {
		t.Fatal("Preallocate changed bytes")
	}
}

// testModel compares random operations on a file with the same on a slice.
func testModel(t *testing.T, fs vfs.FS, dir string) {
	rng := rand.New(rand.NewPCG(1, 2))
	f := create(t, fs, path.Join(dir, "f"), nil)
	var model []byte
	grow := func(n int) {
		if n > len(model) {
			model = append(model, make([]byte, n-len(model))...)
		}
	}
	const limit = 3 << 20 // over several leaves of crashfs
	for i := range 400 {
		off, n := rng.IntN(limit), rng.IntN(40000)
		switch op := rng.IntN(10); op {
		case 0:
			must(t, f.Truncate(int64(off)))
			grow(off)
			model = model[:off:off]
		case 1:
			must(t, f.Preallocate(int64(off), int64(n)))
			if n > 0 {
				grow(off + n)
			}
		case 2, 3:
			if err := f.Punch(int64(off), int64(n)); errors.Is(err, vfs.ErrNotSupported) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			clear(model[min(off, len(model)):min(off+n, len(model))])
		case 4:
			must(t, f.Sync())
		default:
			p := make([]byte, n)
			for j := range p {
				p[j] = byte(rng.Uint32())
			}
			_, err := f.WriteAt(p, int64(off))
			must(t, err)
			if n > 0 {
				grow(off + n)
				copy(model[off:], p)
			}
		}
		if i%20 == 0 && !bytes.Equal(content(t, f), model) {
			t.Fatalf("step %d: file and model differ", i)
		}
	}
	if !bytes.Equal(content(t, f), model) {
		t.Fatal("file and model differ at the end")
	}
}

func testPunch(t *testing.T, fs vfs.FS, dir string) {
	const n = 1 << 20
	f := create(t, fs, path.Join(dir, "f"), bytes.Repeat([]byte{7}, n))
	must(t, f.Sync())
	if err := f.Punch(4096, n/2); errors.Is(err, vfs.ErrNotSupported) {
		t.Skip("punch is not supported here")
	} else if err != nil {
		t.Fatal(err)
	}
	must(t, f.Sync())
	want := bytes.Repeat([]byte{7}, n)
	clear(want[4096 : 4096+n/2])
	if !bytes.Equal(content(t, f), want) {
		t.Fatal("wrong bytes after Punch")
	}
	if d, ok := f.(vfs.DiskBytes); ok {
		used, err := d.DiskBytes()
		must(t, err)
		if used > n/2+64<<10 {
			t.Fatalf("%d bytes are allocated after half of %d was punched", used, n)
		}
	}
}

// testNextData wants every byte that is not zero inside the ranges, and big holes outside.
func testNextData(t *testing.T, fs vfs.FS, dir string) {
	f := create(t, fs, path.Join(dir, "f"), nil)
	const size = 64 << 20
	must(t, f.Preallocate(0, size))
	for _, at := range []int64{0, 5 << 20, size - 1} {
		_, err := f.WriteAt([]byte{1}, at)
		must(t, err)
	}
	must(t, f.Sync())
	s, ok := f.(vfs.DataSeeker)
	if !ok {
		t.Skip("no DataSeeker")
	}
	var sum, off int64
	found := map[int64]bool{}
	for {
		from, to, err := s.NextData(off)
		if errors.Is(err, vfs.ErrNotSupported) {
			t.Skip("seeking data is not supported here")
		}
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if from < off || to <= from {
			t.Fatalf("range [%d, %d) after %d", from, to, off)
		}
		for _, at := range []int64{0, 5 << 20, size - 1} {
			found[at] = found[at] || from <= at && at < to
		}
		sum += to - from
		off = to
	}
	for _, at := range []int64{0, 5 << 20, size - 1} {
		if !found[at] {
			t.Errorf("no range holds %d", at)
		}
	}
	if sum > size {
		t.Errorf("ranges sum up to %d", sum)
	}
}

func testDirect(t *testing.T, fs vfs.FS, dir string) {
	f, err := fs.Open(path.Join(dir, "f"), vfs.Write|vfs.Create|vfs.Direct)
	if errors.Is(err, vfs.ErrNotSupported) {
		t.Skip("direct files are not supported here")
	}
	must(t, err)
	defer func() { must(t, f.Close()) }()
	p := vfs.AlignedBytes(3 * vfs.Alignment)
	for i := range p {
		p[i] = byte(i * 7)
	}
	n, err := f.WriteAt(p, vfs.Alignment)
	must(t, err)
	if n != len(p) {
		t.Fatalf("wrote %d of %d", n, len(p))
	}
	for _, bad := range []struct {
		p   []byte
		off int64
	}{{p[:100], 0}, {p[1 : 1+vfs.Alignment], 0}, {p, 512}} {
		if bad.off == 512 && vfs.Alignment == 512 {
			continue
		}
		if _, err := f.WriteAt(bad.p, bad.off); err == nil {
			t.Fatalf("unaligned direct write of %d bytes at %d passed", len(bad.p), bad.off)
		}
	}
	must(t, f.Sync())
	r, err := fs.Open(path.Join(dir, "f"), 0)
	must(t, err)
	defer func() { must(t, r.Close()) }()
	if got := content(t, r); !bytes.Equal(got, append(make([]byte, vfs.Alignment), p...)) {
		t.Fatal("direct write reads back differently")
	}
}

func testLock(t *testing.T, fs vfs.FS, dir string) {
	name := path.Join(dir, "lock")
	l, err := fs.Lock(name)
	must(t, err)
	_, err = fs.Lock(name)
	wantErr(t, err, vfs.ErrLocked)
	must(t, l.Close())
	l, err = fs.Lock(name)
	must(t, err)
	must(t, l.Close())
	_, err = fs.Lock(path.Join(dir, "missing/lock"))
	wantErr(t, err, vfs.ErrNotExist)
}

func testRemovedButOpen(t *testing.T, fs vfs.FS, dir string) {
	name := path.Join(dir, "f")
	f := create(t, fs, name, []byte("old"))
	must(t, fs.Remove(name))
	create(t, fs, name, []byte("new"))
	if got := content(t, f); string(got) != "old" {
		t.Fatalf("removed file reads as %q", got)
	}
	if _, err := f.WriteAt([]byte("OLD"), 0); err != nil {
		t.Fatal(err)
	}
	r, err := fs.Open(name, 0)
	must(t, err)
	defer func() { must(t, r.Close()) }()
	if got := content(t, r); string(got) != "new" {
		t.Fatalf("new file reads as %q", got)
	}
}

func testConcurrent(t *testing.T, fs vfs.FS, dir string) {
	f := create(t, fs, path.Join(dir, "f"), nil)
	const writers, piece = 8, 10000
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			p := bytes.Repeat([]byte{byte(w + 1)}, piece)
			for i := range 10 {
				off := int64((i*writers + w) * piece)
				if _, err := f.WriteAt(p, off); err != nil {
					t.Errorf("write: %v", err)
				}
				got := make([]byte, piece)
				if _, err := f.ReadAt(got, off); err != nil || !bytes.Equal(got, p) {
					t.Errorf("read back differs, error %v", err)
				}
				if err := f.Sync(); err != nil {
					t.Errorf("sync: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func testSpace(t *testing.T, fs vfs.FS, dir string) {
	r, ok := fs.(vfs.SpaceReporter)
	if !ok {
		t.Skip("no SpaceReporter")
	}
	s, err := r.Space(dir)
	must(t, err)
	if s.Total <= 0 || s.Free < 0 || s.Free > s.Total {
		t.Fatalf("Space = %+v", s)
	}
}
