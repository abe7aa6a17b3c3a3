package drive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

// fixtureFlag makes `go test ./internal/drive -run TestMakeFixtures -args -make-fixtures` write the drives of the
// current version. A fixture of a released version is never written again.
const fixtureFlag = "make-fixtures"

// The drives under testdata, one clean and one that lost power. They belong to this set.
const (
	fixtureClean   = "drive-v1-clean.tar.gz"
	fixtureUnclean = "drive-v1-unclean.tar.gz"
)

func fixtureSet() UUID {
	return UUID{0xf1, 0xf1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
}

func fixtureConfig(fs vfs.FS, dir string) Config {
	cfg := config(fs, dir)
	cfg.Set = fixtureSet()
	cfg.Grace = time.Hour // what is pending in the fixture stays so
	cfg.Now = func() time.Time { return time.Unix(1_800_000_000, 0) }
	return cfg
}

// Lengths of the fixture's records by number, and those that were deleted.
func fixtureLengths() []int { return []int{1, 4096, 5000, 65_536, 65_537, 140_000, 200_001, 300} }

func fixtureDeleted(n int) bool { return n == 1 || n == 5 }

// fixturePayload must never change, and needs no random numbers of a library.
func fixturePayload(n int) []byte {
	p := make([]byte, fixtureLengths()[n])
	for i := range p {
		p[i] = byte(i*7 + i>>8*31 + n*101)
	}
	return p
}

func fixtureRecord(n int) Record {
	length := int64(fixtureLengths()[n])
	return Record{
		Key:   Key{Chunk: [16]byte{0xc0, 0xff, 0xee, byte(n)}, Shard: byte(n % 3)},
		Data:  4,
		Owner: [16]byte{0x0e, byte(n)}, Parity: 2, Epoch: uint64(1000 + n),
		Length: length, ChunkLength: length + int64(n),
	}
}

// TestMakeFixtures writes the fixtures of the current version when asked to.
func TestMakeFixtures(t *testing.T) {
	if flag.Lookup(fixtureFlag).Value.String() != "true" {
		t.Skipf("without -args -%s", fixtureFlag)
	}
	fs := crashfs.New(crashfs.Options{})
	cfg := fixtureConfig(fs, "/drive")
	cfg.SegmentBytes = 512 << 10
	d := newDrive(t, cfg)
	for n := range fixtureLengths() {
		p := fixturePayload(n)
		w, err := d.Append(context.Background(), fixtureRecord(n))
		must(t, err)
		_, err = w.WriteAt(p, 0)
		must(t, err)
		s := sums(p)
		s.Chunk ^= uint64(n) // a chunk of several shards has another checksum than this payload
		must(t, w.Commit(context.Background(), s))
		if n == 5 {
			w, err := d.Append(context.Background(), Record{Key: key(99), Length: 9000, ChunkLength: 9000})
			must(t, err)
			w.Abort()
		}
	}
	must(t, d.Delete(fixtureRecord(1).Key, fixtureRecord(5).Key))
	pack(t, fs.Image(crashfs.LoseAll, 0), fixtureUnclean)
	must(t, d.Close())
	pack(t, fs, fixtureClean)
}

// pack writes the files of a drive into an archive under testdata.
func pack(t *testing.T, fs vfs.FS, name string) {
	t.Helper()
	var buf bytes.Buffer
	zip, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	must(t, err)
	out := tar.NewWriter(zip)
	var add func(dir string)
	add = func(dir string) {
		names, err := fs.List(path.Join("/drive", dir))
		must(t, err)
		for _, n := range names {
			rel := path.Join(dir, n)
			st, err := fs.Stat(path.Join("/drive", rel))
			must(t, err)
			if st.Dir {
				must(t, out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: rel, Mode: 0o700}))
				add(rel)
				continue
			}
			f, err := fs.Open(path.Join("/drive", rel), 0)
			must(t, err)
			must(t, out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o600, Size: st.SizeBytes}))
			_, err = io.Copy(out, io.NewSectionReader(f, 0, st.SizeBytes))
			must(t, errors.Join(err, f.Close()))
		}
	}
	add("")
	must(t, errors.Join(out.Close(), zip.Close()))
	must(t, os.MkdirAll("testdata", 0o755))
	must(t, os.WriteFile(filepath.Join("testdata", name), buf.Bytes(), 0o644))
}

// unpack makes a drive of an archive.
func unpack(t *testing.T, fs vfs.FS, dir, name string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	must(t, err)
	zip, err := gzip.NewReader(bytes.NewReader(raw))
	must(t, err)
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		to := path.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			must(t, fs.MkdirAll(to))
			continue
		}
		must(t, fs.MkdirAll(path.Dir(to)))
		data, err := io.ReadAll(in)
		must(t, err)
		must(t, writeFile(fs, to, data))
	}
}

// TestFixtures reads drives that were written by the first build of their version, with and
// without their index, and compares them with what was written then.
func TestFixtures(t *testing.T) {
	archives, err := filepath.Glob("testdata/drive-v*.tar.gz")
	must(t, err)
	if len(archives) < 2 {
		t.Fatalf("fixtures found: %v", archives)
	}
	for _, a := range archives {
		name := filepath.Base(a)
		for _, rebuild := range []bool{false, true} {
			t.Run(strings.TrimSuffix(name, ".tar.gz")+map[bool]string{true: "-rebuild"}[rebuild], func(t *testing.T) {
				dir := t.TempDir()
				unpack(t, osfs.FS{}, dir, name)
				cfg := fixtureConfig(osfs.FS{}, dir)
				cfg.RebuildIndex = rebuild
				for range 2 {
					d := openDrive(t, cfg)
					checkFixture(t, d, cfg.RebuildIndex || rebuild)
					must(t, d.Close())
					cfg.RebuildIndex = false
				}
			})
		}
	}
}

func checkFixture(t *testing.T, d *Drive, rebuilt bool) {
	t.Helper()
	walked := 0
	for n := range fixtureLengths() {
		r := fixtureRecord(n)
		got, err := load(d, r.Key)
		if fixtureDeleted(n) && !rebuilt { // a rebuilt index brings deleted records back
			wantErr(t, err, ErrNotFound)
			continue
		}
		must(t, err)
		if !bytes.Equal(got, fixturePayload(n)) {
			t.Fatalf("record %d: wrong bytes", n)
		}
		walked++
	}
	must(t, d.Walk(context.Background(), func(r Record) error {
		walked--
		want := fixtureRecord(int(r.Epoch - 1000))
		want.ChunkCRC = checksum.Sum(fixturePayload(int(r.Epoch-1000))) ^ (r.Epoch - 1000)
		if r != want {
			t.Errorf("got %+v, want %+v", r, want)
		}
		return nil
	}))
	if walked != 0 {
		t.Fatalf("walk and look-ups differ by %d", walked)
	}
}
