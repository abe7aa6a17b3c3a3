package crashfs

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/vfs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, fs *FS, name, data string, off int64) vfs.File {
	t.Helper()
	f, err := fs.Open(name, vfs.Write|vfs.Create)
	must(t, err)
	_, err = f.WriteAt([]byte(data), off)
	must(t, err)
	return f
}

// tree renders a file system as one line: names with contents, zero bytes as dots.
func tree(t *testing.T, fs *FS) string {
	t.Helper()
	var parts []string
	var walk func(dir string)
	walk = func(dir string) {
		names, err := fs.List(dir)
		must(t, err)
		for _, n := range names {
			name := strings.TrimSuffix(dir, "/") + "/" + n
			st, err := fs.Stat(name)
			must(t, err)
			if st.Dir {
				parts = append(parts, name+"/")
				walk(name)
				continue
			}
			f, err := fs.Open(name, 0)
			must(t, err)
			p := make([]byte, st.SizeBytes)
			if n, err := f.ReadAt(p, 0); n != len(p) {
				t.Fatal(err)
			}
			parts = append(parts, fmt.Sprintf("%s=%s", name, bytes.ReplaceAll(p, []byte{0}, []byte("."))))
		}
	}
	walk("/")
	return strings.Join(parts, " ")
}

func wantTree(t *testing.T, fs *FS, want string) {
	t.Helper()
	if got := tree(t, fs); got != want {
		t.Fatalf("image is %q, want %q", got, want)
	}
}

func TestUnsyncedIsLost(t *testing.T) {
	fs := New(Options{})
	f := write(t, fs, "/f", "aaaa", 0)
	wantTree(t, fs.Image(LoseAll, 0), "")
	must(t, f.Sync())
	wantTree(t, fs.Image(LoseAll, 0), "") // the name is not durable
	must(t, fs.SyncDir("/"))
	wantTree(t, fs.Image(LoseAll, 0), "/f=aaaa")
	write(t, fs, "/g", "gg", 0)
	must(t, fs.SyncDir("/"))
	wantTree(t, fs.Image(LoseAll, 0), "/f=aaaa /g=") // the bytes are not
	write(t, fs, "/f", "bb", 1)
	wantTree(t, fs.Image(LoseAll, 0), "/f=aaaa /g=")
	wantTree(t, fs.Image(KeepAll, 0), "/f=abba /g=gg")
	must(t, f.Truncate(2))
	must(t, f.Preallocate(0, 6))
	wantTree(t, fs.Image(LoseAll, 0), "/f=aaaa /g=")
	wantTree(t, fs.Image(KeepAll, 0), "/f=ab.... /g=gg")
	must(t, f.Sync())
	wantTree(t, fs.Image(LoseAll, 0), "/f=ab.... /g=")
	must(t, f.Punch(0, 1))
	wantTree(t, fs.Image(LoseAll, 0), "/f=ab.... /g=")
	must(t, fs.Rename("/f", "/g"))
	wantTree(t, fs.Image(LoseAll, 0), "/f=ab.... /g=")
	wantTree(t, fs.Image(KeepAll, 0), "/g=.b....")
	must(t, fs.SyncDir("/"))
	must(t, fs.Remove("/g"))
	wantTree(t, fs.Image(LoseAll, 0), "/g=ab....")
	wantTree(t, fs.Image(KeepAll, 0), "")
}

func TestDirectoriesAreDurableOneByOne(t *testing.T) {
	fs := New(Options{})
	must(t, fs.MkdirAll("/a/b"))
	f := write(t, fs, "/a/b/f", "x", 0)
	must(t, f.Sync())
	must(t, fs.SyncDir("/a/b"))
	must(t, fs.SyncDir("/a"))
	wantTree(t, fs.Image(LoseAll, 0), "")
	must(t, fs.SyncDir("/"))
	wantTree(t, fs.Image(LoseAll, 0), "/a/ /a/b/ /a/b/f=x")
	must(t, fs.MkdirAll("/c"))
	must(t, fs.SyncDir("/"))
	must(t, fs.Rename("/a/b/f", "/c/f"))
	must(t, fs.SyncDir("/c")) // a rename between directories is durable as a whole
	wantTree(t, fs.Image(LoseAll, 0), "/a/ /a/b/ /c/ /c/f=x")
}

// TestKeepSomeTriesEverything takes many seeds and wants every legal outcome and no other.
func TestKeepSomeTriesEverything(t *testing.T) {
	fs := New(Options{})
	const n = 8 * sectorBytes
	f := write(t, fs, "/f", strings.Repeat("o", n), 0)
	must(t, f.Sync())
	must(t, fs.SyncDir("/"))
	write(t, fs, "/f", strings.Repeat("1", n), 0)
	write(t, fs, "/f", strings.Repeat("2", n), n)
	must(t, fs.Rename("/f", "/g"))
	must(t, fs.MkdirAll("/d"))
	seen := map[string]int{}
	for seed := range uint64(600) {
		img := fs.Image(KeepSome, seed)
		if again := fs.Image(KeepSome, seed); tree(t, again) != tree(t, img) {
			t.Fatalf("seed %d gives two different images", seed)
		}
		name := "/f"
		if _, err := img.Stat(name); errors.Is(err, vfs.ErrNotExist) {
			name = "/g"
			seen["renamed"]++
		}
		if _, err := img.Stat("/d"); err == nil {
			if name == "/f" {
				t.Fatal("a later entry change survived an earlier one")
			}
			seen["directory"]++
		}
		st, err := img.Stat(name)
		must(t, err)
		r, err := img.Open(name, 0)
		must(t, err)
		p := make([]byte, st.SizeBytes)
		if got, err := r.ReadAt(p, 0); got != len(p) {
			t.Fatal(err)
		}
		first, second := p[:n], p[n:]
		for i := range n / sectorBytes { // the first write is not the last: whole sectors or a cut
			s := string(first[i*sectorBytes : (i+1)*sectorBytes])
			if strings.Trim(s, "o1") != "" || strings.Contains(s, "o1") {
				t.Fatalf("sector holds %q", s)
			}
		}
		seen["first "+shape(first, '1')]++
		if strings.Trim(strings.TrimRight(string(second), "\x00"), "2") != "" {
			t.Fatalf("the last write survived as %q", second)
		}
		seen["second "+shape(second, '2')]++
		if len(second)%sectorBytes != 0 {
			seen["torn inside a sector"]++
		}
	}
	for _, want := range []string{
		"renamed", "directory", "first none", "first all", "first part", "second none", "second part",
		"torn inside a sector",
	} {
		if seen[want] == 0 {
			t.Errorf("no image shows %q; seen: %v", want, seen)
		}
	}
	wantTree(t, fs.Image(LoseAll, 0), "/f="+strings.Repeat("o", n))
}

func shape(p []byte, c byte) string {
	switch bytes.Count(p, []byte{c}) {
	case 0:
		return "none"
	case 8 * sectorBytes:
		return "all"
	}
	return "part"
}

func TestScatterReordersEntries(t *testing.T) {
	fs := New(Options{})
	write(t, fs, "/a", "", 0)
	write(t, fs, "/b", "", 0)
	seen := map[string]bool{}
	for seed := range uint64(64) {
		seen[tree(t, fs.Image(Scatter, seed))] = true
	}
	if len(seen) != 4 {
		t.Fatalf("got the images %v, want all four subsets", seen)
	}
}

func TestImagesAreIndependent(t *testing.T) {
	fs := New(Options{})
	f := write(t, fs, "/f", "origin", 0)
	must(t, f.Sync())
	must(t, fs.SyncDir("/"))
	one, two := fs.Image(KeepAll, 0), fs.Image(KeepAll, 0)
	write(t, one, "/f", "ONE", 0)
	write(t, fs, "/f", "fs", 4)
	write(t, two, "/g", "new", 0)
	wantTree(t, one, "/f=ONEgin")
	wantTree(t, two, "/f=origin /g=new")
	wantTree(t, fs, "/f=origfs")
	wantTree(t, one.Image(LoseAll, 0), "/f=origin")
	l, err := fs.Lock("/f")
	must(t, err)
	again, err := fs.Image(KeepAll, 0).Lock("/f") // locks die with the machine
	must(t, err)
	must(t, again.Close())
	must(t, l.Close())
}

func TestDroppedBytesStayLost(t *testing.T) {
	fs := New(Options{})
	f := write(t, fs, "/f", strings.Repeat("a", 2*pageBytes), 0)
	must(t, f.Sync())
	must(t, fs.SyncDir("/"))
	write(t, fs, "/f", strings.Repeat("b", 2*pageBytes), 0)
	for seed := uint64(0); ; seed++ { // a seed by which nothing of it reached the medium
		if !strings.Contains(tree(t, fs.Image(KeepSome, seed)), "b") {
			break
		}
		if seed > 1000 {
			t.Fatal("no such seed")
		}
	}
	f.(vfs.UnsyncedDropper).DropUnsynced(5)
	lost := tree(t, fs.Image(LoseAll, 0))
	must(t, f.Sync())
	if got := tree(t, fs.Image(KeepAll, 0)); got != lost {
		t.Fatal("a sync after the failed one wrote what was lost")
	}
	if tree(t, fs) != "/f="+strings.Repeat("b", 2*pageBytes) {
		t.Fatal("the page cache forgot the bytes")
	}
	write(t, fs, "/f", "c", 0) // makes the first page dirty: it is written as it is in the cache
	must(t, f.Sync())
	img, err := fs.Image(LoseAll, 0).Open("/f", 0)
	must(t, err)
	p := make([]byte, pageBytes)
	_, err = img.ReadAt(p, 0)
	must(t, err)
	if string(p) != "c"+strings.Repeat("b", pageBytes-1) {
		t.Fatal("a page that was written again is not whole on the medium")
	}
}

func TestHookSeesEveryOperation(t *testing.T) {
	fs := New(Options{})
	var ops []string
	fs.Hook(func(p Point) {
		ops = append(ops, p.Op)
		if p.N != uint64(len(ops)) {
			t.Errorf("operation %d is numbered %d", len(ops), p.N)
		}
		if p.Op == "remove" {
			p.Halt()
		}
	})
	must(t, fs.MkdirAll("/a/b"))
	f := write(t, fs, "/f", "x", 0)
	must(t, f.Preallocate(0, 9))
	must(t, f.Punch(0, 1))
	must(t, f.Truncate(1))
	must(t, f.Sync())
	must(t, fs.SyncDir("/"))
	must(t, fs.Rename("/f", "/g"))
	must(t, fs.Remove("/g"))
	want := "mkdir mkdir create write preallocate punch truncate sync syncdir rename remove"
	if got := strings.Join(ops, " "); got != want {
		t.Fatalf("hook saw %q, want %q", got, want)
	}
	if err := f.Sync(); !errors.Is(err, ErrHalted) {
		t.Fatalf("Sync on a machine that is off = %v", err)
	}
	if _, err := fs.Stat("/a"); !errors.Is(err, ErrHalted) {
		t.Fatalf("Stat on a machine that is off = %v", err)
	}
	must(t, f.Close())
}

func TestCapacity(t *testing.T) {
	fs := New(Options{CapacityBytes: 4 * pageBytes})
	f := write(t, fs, "/f", "x", 0)
	must(t, f.Preallocate(0, 3*pageBytes))
	if err := f.Preallocate(0, 5*pageBytes); !errors.Is(err, vfs.ErrNoSpace) {
		t.Fatalf("Preallocate over the capacity = %v", err)
	}
	_, err := f.WriteAt(make([]byte, 2*pageBytes), pageBytes) // has its space already
	must(t, err)
	write(t, fs, "/g", "y", 0)
	if _, err := f.WriteAt([]byte("z"), 4*pageBytes); !errors.Is(err, vfs.ErrNoSpace) {
		t.Fatalf("write over the capacity = %v", err)
	}
	s, err := fs.Space("/")
	must(t, err)
	if s.Free != 0 {
		t.Fatalf("Space = %+v", s)
	}
	must(t, fs.Remove("/g"))
	_, err = f.WriteAt([]byte("z"), 3*pageBytes)
	must(t, err)
}
