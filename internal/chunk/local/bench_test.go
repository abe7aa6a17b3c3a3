package local_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/drive"
	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

// inFlight is the number of requests at a time, as in `make bench`.
const inFlight = 4

// cpuSeconds is the CPU time of this process, user and system.
func cpuSeconds(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// parallel runs one from inFlight goroutines and reports CPU seconds per GB.
func parallel(b *testing.B, size int, one func(worker int) error) {
	b.SetBytes(int64(size))
	before := cpuSeconds(b)
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for worker := range inFlight {
		wg.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := one(worker); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric((cpuSeconds(b)-before)/(float64(size)*float64(b.N)/1e9), "CPU-s/GB")
}

// BenchmarkMappedRead compares the engine with a bare loop: pread of 64 KiB into mapped memory and
// CRC64NVME, from the page cache.
func BenchmarkMappedRead(b *testing.B) {
	const size = chunk.MaxBytes
	p := payload(size)
	n := newNode(b, nil)
	a := newArena(b, 4*inFlight)
	ref := n.put(a, p)
	bare := filepath.Join(b.TempDir(), "bare")
	if err := os.WriteFile(bare, p, 0o600); err != nil {
		b.Fatal(err)
	}
	file, err := (osfs.FS{}).Open(bare, vfs.Write)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	if err := file.Sync(); err != nil {
		b.Fatal(err)
	}
	regions := make([][]byte, inFlight)
	for i := range regions {
		regions[i] = region(b, size)
	}
	b.Run("bare", func(b *testing.B) {
		parallel(b, size, func(worker int) error {
			for off := 0; off < size; off += arena.BlockSize {
				block := regions[worker][off : off+arena.BlockSize]
				if _, err := file.ReadAt(block, int64(off)); err != nil {
					return err
				}
				checksum.Sum(block)
			}
			return nil
		})
	})
	b.Run("engine", func(b *testing.B) {
		parallel(b, size, func(worker int) error {
			dst := &mapSink{from: a.Share("test"), memory: regions[worker]}
			return n.engine.Read(context.Background(), ref, chunk.Range{Len: size}, dst)
		})
	})
	b.Run("engine buffered", func(b *testing.B) {
		parallel(b, size, func(int) error {
			return n.engine.Read(context.Background(), ref, chunk.Range{Len: size}, discard{a.Share("test")})
		})
	})
	if err := n.close(); err != nil {
		b.Fatal(err)
	}
}

// discard is a sink without a destination.
type discard struct{ from *arena.Share }

func (d discard) Alloc(ctx context.Context) (arena.Buffer, error) { return d.from.Alloc(ctx) }

func (discard) Deliver(_ context.Context, _ int64, b arena.Buffer) error {
	b.Release()
	return nil
}

func (discard) Done(context.Context) error { return nil }

// region is populated shared memory, as a client announces it.
func region(b *testing.B, size int) []byte {
	fd, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
	if err != nil {
		b.Skipf("no memfd here: %v", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		b.Fatal(err)
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Munmap(memory) })
	return memory
}

// BenchmarkDurableWrite compares the engine with bare O_DIRECT writes of 4 MiB from the region and one
// fdatasync per 64 MiB. The engine copies and sums besides, as a PUT does.
func BenchmarkDurableWrite(b *testing.B) {
	const size, step = chunk.MaxBytes, 4 << 20
	p := region(b, size)
	copy(p, payload(size))
	b.Run("bare", func(b *testing.B) {
		dir := b.TempDir()
		var files [inFlight]vfs.File
		for i := range files {
			f, err := (osfs.FS{}).Open(filepath.Join(dir, string(rune('a'+i))), vfs.Write|vfs.Create|vfs.Direct)
			if err != nil {
				b.Skipf("no O_DIRECT here: %v", err)
			}
			defer f.Close()
			files[i] = f
		}
		var next [inFlight]int64
		parallel(b, size, func(worker int) error {
			base := next[worker] * size
			next[worker]++
			if err := files[worker].Preallocate(base, size); err != nil {
				return err
			}
			for off := 0; off < size; off += step {
				if _, err := files[worker].WriteAt(p[off:off+step], base+int64(off)); err != nil {
					return err
				}
			}
			return files[worker].Sync()
		})
	})
	b.Run("engine", func(b *testing.B) {
		n := newNode(b, func(c *drive.Config) { c.SegmentBytes = drive.DefaultSegmentBytes })
		a := newArena(b, 4*inFlight)
		parallel(b, size, func(int) error {
			r, err := a.Share("test").Reserve(context.Background(), 4)
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = n.engine.Write(context.Background(), chunk.Owner{}, chunk.Scheme{}, arena.NewBytesSource(r, p))
			return err
		})
		if err := n.close(); err != nil {
			b.Fatal(err)
		}
	})
}
