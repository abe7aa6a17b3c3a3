package drive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

func TestMain(m *testing.M) {
	flag.Bool(fixtureFlag, false, "write the fixtures of the current version")
	goleak.VerifyTestMain(m)
}

const testSegment = 256 << 10

var testSet = UUID{1, 2, 3}

// config of a small drive without background work.
func config(fs vfs.FS, dir string) Config {
	return Config{
		FS: fs, Dir: dir, Set: testSet, SegmentBytes: testSegment, NoReserve: true, Grace: -1, manualTurns: true,
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got error %v, want %v", got, want)
	}
}

// key number n.
func key(n int) Key {
	var k Key
	binary.BigEndian.PutUint64(k.Chunk[:], uint64(n)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint32(k.Chunk[12:], uint32(n))
	return k
}

func record(n int, length int) Record {
	r := Record{Key: key(n), Data: 1, Epoch: uint64(n), Length: int64(length), ChunkLength: int64(length)}
	binary.BigEndian.PutUint64(r.Owner[:], uint64(n))
	return r
}

// payload of record n: the oracle of every test. It is aligned.
func payload(n, length int) []byte {
	p := vfs.AlignedBytes(length)
	rng := rand.New(rand.NewPCG(uint64(n), 99))
	i := 0
	for ; i+8 <= length; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], rng.Uint64())
	}
	for ; i < length; i++ {
		p[i] = byte(rng.Uint32())
	}
	return p
}

func sums(p []byte) Sums {
	s := Sums{Chunk: checksum.Sum(p)}
	for len(p) > 0 {
		n := min(len(p), BlockBytes)
		s.Blocks = append(s.Blocks, checksum.Sum(p[:n]))
		p = p[n:]
	}
	return s
}

// store writes a record in pieces and commits it.
func store(d *Drive, r Record, p []byte) error {
	w, err := d.Append(context.Background(), r)
	if err != nil {
		return err
	}
	defer w.Abort()
	const piece = 128 << 10
	for off := 0; off < len(p); off += piece {
		if _, err := w.WriteAt(p[off:min(off+piece, len(p))], int64(off)); err != nil {
			return err
		}
	}
	return w.Commit(context.Background(), sums(p))
}

// load reads a record whole and verifies it as a reader does.
func load(d *Drive, k Key) ([]byte, error) {
	l, err := d.Lookup(k)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	p := make([]byte, l.Record().Length)
	if _, err := l.ReadAt(p, 0); err != nil {
		return nil, err
	}
	blocks, err := l.BlockCRCs(0, blockCount(int64(len(p))))
	if err != nil {
		return nil, err
	}
	for i, crc := range blocks {
		if checksum.Sum(p[i*BlockBytes:min((i+1)*BlockBytes, len(p))]) != crc {
			return nil, fmt.Errorf("block %d: %w", i, ErrCorrupt)
		}
	}
	return p, nil
}

func checkStored(t testing.TB, d *Drive, n, length int) {
	t.Helper()
	got, err := load(d, key(n))
	if err != nil {
		t.Fatalf("record %d: %v", n, err)
	}
	if !bytes.Equal(got, payload(n, length)) {
		t.Fatalf("record %d: wrong bytes", n)
	}
}

// eachFS runs a test on simulated and on real files.
func eachFS(t *testing.T, run func(t *testing.T, cfg Config)) {
	for _, c := range []struct {
		name string
		cfg  func(t *testing.T) Config
	}{
		{"crashfs", func(*testing.T) Config { return config(crashfs.New(crashfs.Options{}), "/drive") }},
		{"crashfs-plain", func(*testing.T) Config {
			return config(crashfs.New(crashfs.Options{RefuseDirect: true, RefusePunch: true}), "/drive")
		}},
		{"osfs", func(t *testing.T) Config { return config(osfs.FS{}, t.TempDir()) }},
		{"osfs-direct-reads", func(t *testing.T) Config {
			cfg := config(osfs.FS{}, t.TempDir())
			cfg.DirectReads = true
			return cfg
		}},
	} {
		t.Run(c.name, func(t *testing.T) { run(t, c.cfg(t)) })
	}
}

func newDrive(t testing.TB, cfg Config) *Drive {
	t.Helper()
	_, err := Format(cfg)
	must(t, err)
	return openDrive(t, cfg)
}

func openDrive(t testing.TB, cfg Config) *Drive {
	t.Helper()
	d, err := Open(context.Background(), cfg)
	must(t, err)
	t.Cleanup(func() { _ = d.Close() }) // most tests close it themselves
	return d
}

var testLengths = []int{
	1, 4095, 4096, 4097, 65535, 65536, 65537, 100_000, 131_072, 131_073, 200_000, 1 << 20, 3<<20 + 5,
}

func TestRoundTrip(t *testing.T) {
	eachFS(t, func(t *testing.T, cfg Config) {
		d := newDrive(t, cfg)
		for n, length := range testLengths {
			must(t, store(d, record(n, length), payload(n, length)))
			checkStored(t, d, n, length)
		}
		must(t, d.Reclaim(context.Background()))
		for range 2 {
			for n, length := range testLengths {
				checkStored(t, d, n, length)
			}
			must(t, d.Close())
			d = openDrive(t, cfg)
			if s := d.State(); s.Mode != ReadWrite {
				t.Fatalf("state is %+v", s)
			}
		}
		seen := 0
		must(t, d.Walk(context.Background(), func(r Record) error {
			n := int(r.Epoch)
			want := record(n, testLengths[n])
			want.ChunkCRC = checksum.Sum(payload(n, testLengths[n]))
			if r != want {
				t.Errorf("walk: got %+v, want %+v", r, want)
			}
			seen++
			return nil
		}))
		if seen != len(testLengths) {
			t.Fatalf("walk saw %d of %d records", seen, len(testLengths))
		}
		must(t, d.Close())
	})
}

func TestPiecesAndUnalignedMemory(t *testing.T) {
	eachFS(t, func(t *testing.T, cfg Config) {
		d := newDrive(t, cfg)
		const length = 1<<20 + 777
		p := payload(1, length)
		odd := make([]byte, length+1)[1:]
		copy(odd, p)
		w, err := d.Append(context.Background(), record(1, length))
		must(t, err)
		var wg sync.WaitGroup
		const piece = 64 << 10
		for off := 0; off < length; off += piece { // all at once, in any order
			wg.Go(func() {
				src := p
				if off/piece%2 == 1 {
					src = odd
				}
				if _, err := w.WriteAt(src[off:min(off+piece, length)], int64(off)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		_, err = d.Lookup(key(1))
		wantErr(t, err, ErrNotFound)
		must(t, w.Commit(context.Background(), sums(p)))
		w.Abort()
		checkStored(t, d, 1, length)
		l, err := d.Lookup(key(1))
		must(t, err)
		got := make([]byte, 5000)
		_, err = l.ReadAt(got, 123_457)
		must(t, err)
		if !bytes.Equal(got, p[123_457:123_457+5000]) {
			t.Fatal("wrong bytes in the middle")
		}
		l.Release()
		must(t, d.Close())
	})
}

func TestArguments(t *testing.T) {
	fs := crashfs.New(crashfs.Options{})
	d := newDrive(t, config(fs, "/drive"))
	ctx := context.Background()
	for _, length := range []int64{0, -1, MaxPayloadBytes + 1} {
		_, err := d.Append(ctx, Record{Length: length, ChunkLength: 1})
		wantErr(t, err, ErrInvalid)
	}
	w, err := d.Append(ctx, record(1, 10_000))
	must(t, err)
	_, err = d.Append(ctx, record(1, 10))
	wantErr(t, err, ErrExist)
	p := payload(1, 16384)
	for _, bad := range []struct {
		n   int
		off int64
	}{{100, 0}, {4096, 100}, {16384, 0}, {4096, -4096}, {4096, 8192}, {4096, 1 << 40}} {
		_, err := w.WriteAt(p[:bad.n], bad.off)
		wantErr(t, err, ErrInvalid)
	}
	_, err = w.WriteAt(p[:4096], 0)
	must(t, err)
	wantErr(t, w.Commit(ctx, sums(p[:10_000])), ErrInvalid) // bytes are missing
	wantErr(t, w.Commit(ctx, sums(p[:10_000])), ErrClosed)
	_, err = w.WriteAt(p[:4096], 4096)
	wantErr(t, err, ErrClosed)

	w, err = d.Append(ctx, record(1, 10_000))
	must(t, err)
	_, err = w.WriteAt(p[:10_000], 0)
	must(t, err)
	wantErr(t, w.Commit(ctx, Sums{}), ErrInvalid)

	w, err = d.Append(ctx, record(1, 10_000))
	must(t, err)
	_, err = w.WriteAt(p[:10_000], 0)
	must(t, err)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	wantErr(t, w.Commit(gone, sums(p[:10_000])), context.Canceled)
	_, err = d.Lookup(key(1))
	wantErr(t, err, ErrNotFound)

	must(t, store(d, record(1, 10_000), p[:10_000]))
	_, err = d.Append(ctx, record(1, 10))
	wantErr(t, err, ErrExist)
	l, err := d.Lookup(key(1))
	must(t, err)
	for _, bad := range []struct {
		n   int
		off int64
	}{{1, 10_000}, {10_001, 0}, {1, -1}} {
		_, err := l.ReadAt(make([]byte, bad.n), bad.off)
		wantErr(t, err, ErrInvalid)
	}
	_, err = l.BlockCRCs(0, 2)
	wantErr(t, err, ErrInvalid)
	_, err = l.BlockCRCs(-1, 1)
	wantErr(t, err, ErrInvalid)
	l.Release()
	must(t, d.Close())

	wantErr(t, d.Close(), ErrClosed)
	_, err = d.Append(ctx, record(2, 1))
	wantErr(t, err, ErrClosed)
	_, err = d.Lookup(key(1))
	wantErr(t, err, ErrClosed)
	wantErr(t, d.Delete(key(1)), ErrClosed)
	wantErr(t, d.Walk(ctx, nil), ErrClosed)
	wantErr(t, d.Reclaim(ctx), ErrClosed)
	if d.State().Mode != Closed {
		t.Fatalf("state after Close: %v", d.State().Mode)
	}
}

func TestFormatAndOpenRefuse(t *testing.T) {
	fs := crashfs.New(crashfs.Options{})
	cfg := config(fs, "/drive")
	ctx := context.Background()
	_, err := Open(ctx, cfg)
	wantErr(t, err, ErrForeign)
	id, err := Format(cfg)
	must(t, err)
	_, err = Format(cfg)
	wantErr(t, err, ErrExist)
	d := openDrive(t, cfg)
	if d.ID() != id {
		t.Fatalf("id is %s, Format said %s", d.ID(), id)
	}
	_, err = Open(ctx, cfg)
	wantErr(t, err, vfs.ErrLocked)
	must(t, d.Close())

	other := cfg
	other.Set = UUID{9}
	_, err = Open(ctx, other)
	wantErr(t, err, ErrForeign)

	must(t, fs.MkdirAll("/photos"))
	must(t, writeFile(fs, "/photos/cat.jpg", []byte("meow")))
	foreign := cfg
	foreign.Dir = "/photos"
	_, err = Format(foreign)
	wantErr(t, err, ErrForeign)
	bad := cfg
	bad.SegmentBytes = 5000
	_, err = Format(bad)
	wantErr(t, err, ErrInvalid)
	_, err = Open(ctx, bad)
	wantErr(t, err, ErrInvalid)

	f, err := fs.Open("/drive/superblock", vfs.Write)
	must(t, err)
	good := make([]byte, superblockBytes)
	_, err = f.ReadAt(good, 0)
	must(t, err)
	change := func(edit func(p []byte)) error {
		p := bytes.Clone(good)
		edit(p)
		must(t, f.Truncate(0))
		_, err := f.WriteAt(p, 0)
		must(t, err)
		d, err := Open(ctx, cfg)
		if err == nil {
			must(t, d.Close())
		}
		return err
	}
	must(t, change(func(p []byte) { p[40] ^= 1 }))      // the first copy is broken
	must(t, change(func(p []byte) { p[unit+40] ^= 1 })) // the second one is
	wantErr(t, change(func(p []byte) { p[40] ^= 1; p[unit+50] ^= 1 }), ErrCorrupt)
	wantErr(t, change(func(p []byte) { clear(p) }), ErrForeign)
	wantErr(t, change(func(p []byte) {
		for _, c := range [][]byte{p[:unit], p[unit:]} {
			putU32(c[8:], formatVersion+1)
			putU64(c[superblockCRCAt:], checksum.Sum(c[:superblockCRCAt]))
		}
	}), ErrNewer)
	must(t, change(func([]byte) {}))
}

func TestDeletePinsAndGrace(t *testing.T) {
	eachFS(t, func(t *testing.T, cfg Config) {
		ctx := context.Background()
		now := time.Unix(1_700_000_000, 0)
		var mu sync.Mutex
		cfg.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
		pass := func(by time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(by) }
		cfg.Grace = time.Minute
		d := newDrive(t, cfg)
		const length = 100_000
		for n := range 6 {
			must(t, store(d, record(n, length), payload(n, length)))
		}
		full, err := d.Stats()
		must(t, err)
		unpin, err := d.Pin(key(1))
		must(t, err)
		reader, err := d.Lookup(key(2))
		must(t, err)
		must(t, d.Delete(key(0), key(1), key(2), key(0), key(77)))
		must(t, d.Delete(key(0)))
		_, err = d.Lookup(key(0))
		wantErr(t, err, ErrNotFound)
		_, err = d.Append(ctx, record(1, 1))
		wantErr(t, err, ErrExist) // somebody still reads the old one
		check := func(pending int64) {
			t.Helper()
			must(t, d.Reclaim(ctx))
			s, err := d.Stats()
			must(t, err)
			if s.Pending != pending || s.PendingBytes != pending*recordSpace(length) || s.Records != 3 ||
				s.RecordBytes != full.RecordBytes/2 {
				t.Fatalf("%d pending wanted: %+v", pending, s)
			}
		}
		check(3) // within the grace
		pass(2 * time.Minute)
		check(2)
		checkStored(t, d, 1, length) // pinned
		got := make([]byte, length)
		_, err = reader.ReadAt(got, 0)
		must(t, err)
		if !bytes.Equal(got, payload(2, length)) {
			t.Fatal("a pinned record changed")
		}
		unpin()
		check(1)
		_, err = d.Lookup(key(1))
		wantErr(t, err, ErrNotFound)
		reader.Release()
		check(0)
		must(t, d.Delete(key(3), key(4), key(5)))
		must(t, d.Close())
		d = openDrive(t, cfg)
		if s, err := d.Stats(); err != nil || s.Pending != 3 || s.Records != 0 {
			t.Fatalf("after reopening: %+v, %v", s, err)
		}
		pass(2 * time.Minute)
		must(t, d.Reclaim(ctx))
		s, err := d.Stats()
		must(t, err)
		if s.Pending != 0 || s.PendingBytes != 0 || s.Segments != 0 || s.SegmentBytes != 0 {
			t.Fatalf("after all is gone: %+v", s)
		}
		names, err := cfg.FS.List(cfg.Dir + "/" + segmentsDir)
		must(t, err)
		if len(names) != 0 {
			t.Fatalf("segments left: %v", names)
		}
		must(t, d.Close())
	})
}

// TestSpaceReturns fills segments, deletes most records and looks at the space that files take.
func TestSpaceReturns(t *testing.T) {
	fs := crashfs.New(crashfs.Options{})
	d := newDrive(t, config(fs, "/drive"))
	const length = 40_000
	free := func() int64 {
		s, err := fs.Space("/")
		must(t, err)
		return s.Free
	}
	before := free()
	for n := range 40 {
		must(t, store(d, record(n, length), payload(n, length)))
	}
	for n := range 40 {
		if n%7 != 0 {
			must(t, d.Delete(key(n)))
		}
	}
	must(t, d.Reclaim(context.Background()))
	must(t, d.Close())
	const kept = 6
	if used, most := before-free(), int64(kept*recordSpace(length)+kept*recordsOffset+64<<10); used > most {
		t.Fatalf("%d bytes are in use, at most %d expected", used, most)
	}
	d = openDrive(t, config(fs, "/drive"))
	for n := 0; n < 40; n += 7 {
		checkStored(t, d, n, length)
	}
	must(t, d.Close())
}

// TestReserve: what is configured is what is kept free; only the default looks at the size of the disk.
func TestReserve(t *testing.T) {
	fs := crashfs.New(crashfs.Options{})
	space, err := fs.Space("/")
	must(t, err)
	for name, tt := range map[string]struct {
		bytes   int64
		percent int
		want    int64
	}{
		"default": {0, 0, max(1<<30, space.Total/100*2)},
		"bytes":   {5 << 20, 0, 5 << 20},
		"percent": {0, 3, space.Total / 100 * 3},
		"both":    {1, 1, max(1, space.Total/100)},
	} {
		cfg := config(fs, "/"+name)
		cfg.NoReserve, cfg.ReserveBytes, cfg.ReservePercent = false, tt.bytes, tt.percent
		s, err := newDrive(t, cfg).Stats()
		if err != nil || s.Reserve != tt.want {
			t.Errorf("%s: %d bytes are reserved, want %d (%v)", name, s.Reserve, tt.want, err)
		}
	}
}
