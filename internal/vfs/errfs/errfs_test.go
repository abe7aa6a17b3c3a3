package errfs

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
	"github.com/penstock-store/penstock/internal/vfs/vfstest"
)

func TestConformanceWithoutRules(t *testing.T) {
	t.Run("crashfs", func(t *testing.T) {
		vfstest.Run(t, func(*testing.T) (vfs.FS, string) { return New(crashfs.New(crashfs.Options{})), "/" })
	})
	t.Run("osfs", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return New(osfs.FS{}), t.TempDir() })
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, fs vfs.FS, name, data string) vfs.File {
	t.Helper()
	f, err := fs.Open(name, vfs.Write|vfs.Create)
	must(t, err)
	_, err = f.WriteAt([]byte(data), 0)
	must(t, err)
	return f
}

func read(t *testing.T, f vfs.File, n int) string {
	t.Helper()
	p := make([]byte, n)
	got, _ := f.ReadAt(p, 0) // io.EOF is fine here
	return string(p[:got])
}

func TestEveryOperationCanFail(t *testing.T) {
	fs := New(crashfs.New(crashfs.Options{}))
	f := create(t, fs, "/a", "data")
	ops := map[Op]func() error{
		Open:        func() error { _, err := fs.Open("/a", 0); return err },
		Create:      func() error { _, err := fs.Open("/b", vfs.Write|vfs.Create); return err },
		Remove:      func() error { return fs.Remove("/a") },
		Rename:      func() error { return fs.Rename("/a", "/b") },
		Mkdir:       func() error { return fs.MkdirAll("/d") },
		List:        func() error { _, err := fs.List("/"); return err },
		Stat:        func() error { _, err := fs.Stat("/a"); return err },
		SyncDir:     func() error { return fs.SyncDir("/") },
		Lock:        func() error { _, err := fs.Lock("/a"); return err },
		Space:       func() error { _, err := fs.Space("/"); return err },
		Read:        func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err },
		Write:       func() error { _, err := f.WriteAt([]byte("x"), 0); return err },
		Sync:        func() error { return f.Sync() },
		Truncate:    func() error { return f.Truncate(1) },
		Preallocate: func() error { return f.Preallocate(0, 10) },
		Punch:       func() error { return f.Punch(0, 10) },
		Size:        func() error { _, err := f.Size(); return err },
		Flush:       func() error { return f.(vfs.Flusher).Flush(0, 1) },
		NextData:    func() error { _, _, err := f.(vfs.DataSeeker).NextData(0); return err },
		Close:       func() error { return f.Close() },
	}
	for op := Op(1); op&Any != 0; op <<= 1 {
		if op == Close {
			continue // last: it ends the file
		}
		if ops[op] == nil {
			t.Fatalf("operation %b is not tested", op)
		}
		a := fs.Add(Rule{Ops: op, Err: vfs.ErrNoSpace})
		if err := ops[op](); !errors.Is(err, vfs.ErrNoSpace) {
			t.Errorf("operation %b: got %v", op, err)
		}
		if a.Hits() != 1 {
			t.Errorf("operation %b: %d hits", op, a.Hits())
		}
		fs.Clear()
	}
	if got := read(t, f, 10); got != "data" {
		t.Fatalf("a failing operation changed the file to %q", got)
	}
	fs.Add(Rule{Ops: Close})
	if err := f.Close(); !errors.Is(err, ErrInjected) {
		t.Fatalf("Close = %v", err)
	}
}

func TestNthTimesAndPath(t *testing.T) {
	fs := New(crashfs.New(crashfs.Options{}))
	a, b := create(t, fs, "/a.seg", ""), create(t, fs, "/b.log", "")
	rule := fs.Add(Rule{Ops: Write, Path: "*.seg", Nth: 2, Times: 2})
	var failed []int
	for i := 1; i <= 5; i++ {
		if _, err := b.WriteAt([]byte("x"), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := a.WriteAt([]byte("x"), 0); err != nil {
			failed = append(failed, i)
		}
	}
	if len(failed) != 2 || failed[0] != 2 || failed[1] != 3 || rule.Seen() != 5 {
		t.Fatalf("writes %v failed, %d seen", failed, rule.Seen())
	}
}

func TestDataFaults(t *testing.T) {
	base := crashfs.New(crashfs.Options{})
	fs := New(base)
	f := create(t, fs, "/f", "0123456789")
	must(t, f.Sync())
	must(t, fs.SyncDir("/"))

	fs.Add(Rule{Ops: Write, Fault: ShortWrite, Keep: 3, Times: 1})
	if n, err := f.WriteAt([]byte("abcdef"), 0); n != 3 || !errors.Is(err, ErrInjected) {
		t.Fatalf("short write = %d, %v", n, err)
	}
	fs.Add(Rule{Ops: Write, Fault: TornWrite, Keep: 2, Times: 1})
	if n, err := f.WriteAt([]byte("ABCDEF"), 4); n != 0 || !errors.Is(err, ErrInjected) {
		t.Fatalf("torn write = %d, %v", n, err)
	}
	if got := read(t, f, 10); got != "abc3AB6789" {
		t.Fatalf("file holds %q", got)
	}
	fs.Clear()
	fs.Add(Rule{Ops: Read, Fault: FlipBit, At: 1, Bit: 0})
	if got := read(t, f, 10); got != "acc3AB6789" {
		t.Fatalf("flipped bit reads as %q", got)
	}
	fs.Clear()

	// After a sync that lost data a later good sync must not bring it back.
	fs.Add(Rule{Ops: Sync, Fault: LoseSync, Times: 1, Seed: 1})
	if err := f.Sync(); !errors.Is(err, ErrInjected) {
		t.Fatalf("Sync = %v", err)
	}
	must(t, f.Sync())
	img := base.Image(crashfs.KeepAll, 0)
	after, err := img.Open("/f", 0)
	must(t, err)
	if got := read(t, after, 10); got == "abc3AB6789" {
		t.Fatal("lost bytes are on the medium")
	}
	if got := read(t, f, 10); got != "abc3AB6789" {
		t.Fatalf("the page cache holds %q", got)
	}
}

func TestStickAndDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := New(crashfs.New(crashfs.Options{}))
		f := create(t, fs, "/f", "x")
		release := make(chan struct{})
		stuck := fs.Add(Rule{Ops: Read, Fault: Stick, Release: release, Times: 1})
		done := make(chan string)
		go func() { done <- read(t, f, 1) }()
		<-stuck.Struck()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("a stuck read returned")
		default:
		}
		if got := read(t, f, 1); got != "x" { // others go on
			t.Fatalf("read %q", got)
		}
		close(release)
		if got := <-done; got != "x" {
			t.Fatalf("read %q after the release", got)
		}
		fs.Add(Rule{Ops: Read, Fault: Delay, Wait: time.Hour})
		start := time.Now()
		_ = read(t, f, 1)
		if time.Since(start) != time.Hour {
			t.Fatalf("delayed by %v", time.Since(start))
		}
	})
}

func TestFailAfter(t *testing.T) {
	fs := New(crashfs.New(crashfs.Options{}))
	f := create(t, fs, "/f", "x")
	fs.Add(Rule{Ops: Write | Rename, Fault: FailAfter})
	if _, err := f.WriteAt(bytes.Repeat([]byte("y"), 3), 0); err == nil {
		t.Fatal("no error")
	}
	if got := read(t, f, 5); got != "yyy" {
		t.Fatalf("file holds %q", got)
	}
	if err := fs.Rename("/f", "/g"); err == nil {
		t.Fatal("no error")
	}
	if _, err := fs.Stat("/g"); err != nil {
		t.Fatal(err)
	}
}
