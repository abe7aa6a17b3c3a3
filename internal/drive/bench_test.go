package drive

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

// benchDir is a directory on a real disk when PENSTOCK_BENCH_DIR names one.
func benchDir(b testing.TB) string {
	base := os.Getenv("PENSTOCK_BENCH_DIR")
	if base == "" {
		return b.TempDir()
	}
	dir, err := os.MkdirTemp(base, "drive")
	must(b, err)
	b.Cleanup(func() { must(b, os.RemoveAll(dir)) })
	return dir
}

// inFlight runs n jobs, some at a time.
func inFlight(n, atOnce int, job func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				job(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

const benchPiece = 4 << 20

// BenchmarkBareWrite is the floor: O_DIRECT writes of 4 MiB into a preallocated file, 4 in flight,
// with the block checksums that a record needs, and one fdatasync per 64 MiB.
func BenchmarkBareWrite(b *testing.B) {
	f, err := osfs.FS{}.Open(filepath.Join(benchDir(b), "bare"), vfs.Write|vfs.Create|vfs.Direct)
	must(b, err)
	must(b, f.Preallocate(0, int64(b.N+8)*MaxPayloadBytes))
	p := payload(1, benchPiece)
	b.SetBytes(MaxPayloadBytes)
	b.ResetTimer()
	inFlight(b.N, 4, func(i int) {
		for off := int64(0); off < MaxPayloadBytes; off += benchPiece {
			_ = sums(p)
			if _, err := f.WriteAt(p, int64(i)*MaxPayloadBytes+off); err != nil {
				b.Error(err)
			}
		}
		if err := f.Sync(); err != nil {
			b.Error(err)
		}
	})
	b.StopTimer()
	must(b, f.Close())
}

// BenchmarkRecords writes records of some sizes, durable when each ends.
func BenchmarkRecords(b *testing.B) {
	for _, c := range []struct{ length, atOnce int }{
		{MaxPayloadBytes, 4}, {1 << 20, 4}, {64 << 10, 16}, {20 << 10, 16}, {20 << 10, 1},
	} {
		b.Run(fmt.Sprintf("%dKiB-%d", c.length>>10, c.atOnce), func(b *testing.B) {
			cfg := config(osfs.FS{}, benchDir(b))
			cfg.SegmentBytes = DefaultSegmentBytes
			d := newDrive(b, cfg)
			p := payload(1, min(c.length, benchPiece))
			b.SetBytes(int64(c.length))
			b.ResetTimer()
			inFlight(b.N, c.atOnce, func(i int) {
				if err := storeRepeating(d, record(i, c.length), p); err != nil {
					b.Error(err)
				}
			})
			b.StopTimer()
			must(b, d.Close())
		})
	}
}

// storeRepeating writes a record that consists of the piece p again and again.
func storeRepeating(d *Drive, r Record, p []byte) error {
	w, err := d.Append(context.Background(), r)
	if err != nil {
		return err
	}
	defer w.Abort()
	s := Sums{Blocks: make([]uint64, 0, blockCount(r.Length))}
	for off := int64(0); off < r.Length; off += int64(len(p)) {
		part := p[:min(int64(len(p)), r.Length-off)]
		s.Blocks = append(s.Blocks, sums(part).Blocks...)
		if _, err := w.WriteAt(part, off); err != nil {
			return err
		}
	}
	s.Chunk = checksum.CombineBlocks(s.Blocks, BlockBytes, r.Length)
	return w.Commit(context.Background(), s)
}

// BenchmarkLookup finds and reads 64 KiB of a record in the page cache.
func BenchmarkLookup(b *testing.B) {
	d := newDrive(b, config(osfs.FS{}, benchDir(b)))
	must(b, store(d, record(1, 1<<20), payload(1, 1<<20)))
	p := vfs.AlignedBytes(BlockBytes)
	b.ReportAllocs()
	for b.Loop() {
		l, err := d.Lookup(key(1))
		must(b, err)
		_, err = l.ReadAt(p, BlockBytes)
		must(b, err)
		crc, err := l.BlockCRCs(1, 1)
		must(b, err)
		if checksum.Sum(p) != crc[0] {
			b.Fatal("wrong bytes")
		}
		l.Release()
	}
	must(b, d.Close())
}

// TestScanOfSparseSegment: an unclean stop of a drive with the usual segment size costs no
// noticeable time when little was written.
func TestScanOfSparseSegment(t *testing.T) {
	dir := t.TempDir()
	cfg := config(osfs.FS{}, dir)
	cfg.SegmentBytes = DefaultSegmentBytes
	d := newDrive(t, cfg)
	for n := range 10 {
		must(t, store(d, record(n, 200_000), payload(n, 200_000)))
	}
	// Abandon the drive as a killed process does: nothing is sealed.
	must(t, d.index.write(&indexWrite{sync: true}))
	must(t, d.index.close())
	must(t, d.closeFiles())
	must(t, d.lock.Close())
	d.halt()
	cfg.RebuildIndex = true
	start := time.Now()
	again := openDrive(t, cfg)
	took := time.Since(start)
	t.Logf("opened in %v", took)
	if took > 3*time.Second { // it takes some ms; reading all of it takes longer than this on a busy machine
		t.Errorf("scanning took %v", took)
	}
	for n := range 10 {
		checkStored(t, again, n, 200_000)
	}
	must(t, again.Close())
	d.mu.Lock()
	d.closed = true // the first Drive is gone
	d.mu.Unlock()
}
