package local_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/chunk/chunktest"
	"github.com/penstock-store/penstock/internal/drive"
)

func TestEngine(t *testing.T) {
	for name, change := range map[string]func(c *drive.Config){
		"default":         nil,
		"buffered writes": func(c *drive.Config) { c.BufferedWrites = true },
		"direct reads":    func(c *drive.Config) { c.DirectReads = true },
	} {
		t.Run(name, func(t *testing.T) {
			if name != "default" && testing.Short() {
				t.Skip("only the default in short tests")
			}
			chunktest.Run(t, func(t *testing.T) chunktest.Subject {
				n := newNode(t, change)
				return chunktest.Subject{Engine: n.engine, Corrupt: n.corrupt, Close: n.close}
			})
		})
	}
}

func TestChunksSurviveARestart(t *testing.T) {
	n := newNode(t, nil)
	a := newArena(t, 4)
	p := payload(3<<20 + 5)
	ref := n.put(a, p)
	n.restart(time.Minute)
	dst := &heapSink{from: a.Share("test")}
	if err := n.engine.Read(context.Background(), ref, chunk.Range{Len: ref.Length}, dst); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dst.got, p) {
		t.Fatal("other bytes after a restart")
	}
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

// hang returns a hook's body that blocks each call until release is called, and counts them.
func hang() (enter func(), entered *atomic.Int64, release func()) {
	gate := make(chan struct{})
	entered = new(atomic.Int64)
	return func() { entered.Add(1); <-gate }, entered, sync.OnceFunc(func() { close(gate) })
}

func TestAHangingReadDoesNotHoldTheCaller(t *testing.T) {
	n := newNode(t, nil)
	a := newArena(t, 4)
	p := payload(3 << 20)
	ref := n.put(a, p)
	n.restart(time.Millisecond)
	for _, mapped := range []bool{false, true} {
		memory := make([]byte, len(p))
		direct := &mapSink{from: a.Share("test"), memory: memory}
		var dst arena.Sink = direct
		if !mapped {
			dst = &heapSink{from: a.Share("test")}
		}
		enter, entered, release := hang()
		n.fs.hook(func(h *hookFS) {
			h.read = func(p []byte, off int64, call func() (int, error)) (int, error) {
				if len(p) >= 64<<10 { // payload, not footers
					enter()
				}
				return call()
			}
		})
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			err := n.engine.Read(ctx, ref, chunk.Range{Len: ref.Length}, dst)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want the context's error", err)
			}
		})
		until(t, "a read hangs", func() bool { return entered.Load() > 0 })
		cancel()
		wg.Wait() // although the device hangs
		if s := n.stats(); s.Stuck != 1 {
			t.Errorf("stuck %d, want 1", s.Stuck)
		}
		if open, _ := direct.counts(); mapped && open == 0 || !mapped && a.InUse() == 0 {
			t.Error("the memory that the device still writes was given back")
		}
		short, stop := context.WithTimeout(context.Background(), time.Millisecond)
		if err := n.engine.Close(short); !mapped && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close while a call is stuck: got %v, want the context's error", err)
		}
		stop()
		release()
		until(t, "the call ends", func() bool { return n.stats().Stuck == 0 })
		n.fs.hook(func(h *hookFS) { h.read = nil })
		n.restart(time.Millisecond)
		if open, verified := direct.counts(); open != 0 || verified != 0 {
			t.Errorf("mapped: %d ranges open, %d bytes count as delivered after the call", open, verified)
		}
		if a.InUse() != 0 {
			t.Errorf("%d buffers did not come back", a.InUse())
		}
	}
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestAHangingWriteLeavesNothing(t *testing.T) {
	p := payload(3<<20 + 1)
	for _, where := range []string{"write", "sync"} {
		t.Run(where, func(t *testing.T) {
			n := newNode(t, nil)
			n.restart(time.Millisecond)
			a := newArena(t, 2)
			first := n.put(a, payload(10)) // so that there is a segment
			enter, entered, release := hang()
			n.fs.hook(func(h *hookFS) {
				h.write = func(p []byte, _ int64, call func() (int, error)) (int, error) {
					if where == "write" && len(p) >= 64<<10 { // payload
						enter()
					}
					return call()
				}
				h.sync = func(call func() error) error {
					if where == "sync" && entered.Load() == 0 {
						// Only the one of the commit: what the drive does beside goes on.
						enter()
					}
					return call()
				}
			})
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := n.write(ctx, a, p)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want the context's error", err)
				}
			})
			until(t, "a write hangs", func() bool { return entered.Load() > 0 })
			cancel()
			wg.Wait()
			if where == "write" && a.InUse() == 0 {
				t.Error("the memory that the device still reads was given back")
			}
			release()
			until(t, "the call ends", func() bool { return n.stats().Stuck == 0 })
			if a.InUse() != 0 {
				t.Errorf("%d buffers did not come back", a.InUse())
			}
			err := n.engine.Walk(context.Background(), func(r chunk.Ref, _ chunk.Owner) error {
				if r != first {
					t.Errorf("chunk %v is stored, although its write was given up", r.ID)
				}
				return nil
			})
			if err := errors.Join(err, n.close(), a.Close()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestADeadDeviceIsNotAskedForEver(t *testing.T) {
	const limit = 64 // maxStuck
	n := newNode(t, nil)
	a := newArena(t, limit+1)
	ref := n.put(a, payload(100))
	n.restart(time.Millisecond)
	enter, _, release := hang()
	n.fs.hook(func(h *hookFS) {
		h.read = func(_ []byte, _ int64, call func() (int, error)) (int, error) { enter(); return call() }
	})
	ended, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for range limit {
		wg.Go(func() {
			err := n.engine.Read(ended, ref, chunk.Range{Len: 100}, &heapSink{from: a.Share("test")})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the context's error", err)
			}
		})
	}
	wg.Wait()
	err := n.engine.Read(context.Background(), ref, chunk.Range{Len: 100}, &heapSink{from: a.Share("test")})
	if !errors.Is(err, chunk.ErrUnavailable) {
		t.Errorf("one more: got %v, want ErrUnavailable", err)
	}
	release()
	until(t, "the calls end", func() bool { return n.stats().Stuck == 0 })
	if s := n.stats(); s.GivenUp != limit {
		t.Errorf("%d calls were given up, want %d", s.GivenUp, limit)
	}
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestDeviceErrors(t *testing.T) {
	n := newNode(t, nil)
	a := newArena(t, 4)
	p := payload(3<<20 + 1)
	ref := n.put(a, p)
	ctx := context.Background()

	n.fs.hook(func(h *hookFS) {
		h.read = func(p []byte, off int64, call func() (int, error)) (int, error) {
			if len(p) >= 64<<10 {
				return 0, syscall.EIO
			}
			return call()
		}
	})
	for _, dst := range []arena.Sink{
		&heapSink{from: a.Share("test")}, &mapSink{from: a.Share("test"), memory: make([]byte, len(p))},
	} {
		err := n.engine.Read(ctx, ref, chunk.Range{Len: ref.Length}, dst)
		if !errors.Is(err, chunk.ErrUnavailable) || !errors.Is(err, syscall.EIO) {
			t.Errorf("%T: got %v, want ErrUnavailable for EIO", dst, err)
		}
	}
	if h, err := n.engine.Verify(ctx, ref); err != nil || h.Readable != 0 {
		t.Errorf("verify: %+v, %v", h, err)
	}
	n.fs.hook(func(h *hookFS) {
		h.read = nil
		h.write = func(p []byte, _ int64, call func() (int, error)) (int, error) {
			if len(p) >= 1<<20 {
				return 0, syscall.EIO
			}
			return call()
		}
	})
	_, err := n.write(ctx, a, p)
	if !errors.Is(err, chunk.ErrUnavailable) || !errors.Is(err, syscall.EIO) {
		t.Errorf("write: got %v, want ErrUnavailable for EIO", err)
	}
	n.fs.hook(func(h *hookFS) {
		h.write = nil
		h.sync = func(func() error) error { return syscall.EIO }
	})
	_, err = n.write(ctx, a, p)
	if !errors.Is(err, chunk.ErrUnavailable) {
		t.Errorf("failed sync: got %v, want ErrUnavailable", err)
	}
	n.fs.hook(func(h *hookFS) { h.sync = nil })
	if s := n.stats(); s.State.Mode != drive.ReadOnly || s.DeviceErrors == 0 {
		t.Errorf("after a failed sync: %+v", s)
	}
	_, err = n.write(ctx, a, p)
	if !errors.Is(err, chunk.ErrUnavailable) {
		t.Errorf("write to a read-only drive: got %v, want ErrUnavailable", err)
	}
	dst := &heapSink{from: a.Share("test")}
	if err := n.engine.Read(ctx, ref, chunk.Range{Len: ref.Length}, dst); err != nil || !bytes.Equal(dst.got, p) {
		t.Errorf("read from a read-only drive: %v", err)
	}
	if a.InUse() != 0 {
		t.Errorf("%d buffers did not come back", a.InUse())
	}
	_ = n.close() // the drive may say that it cannot seal
}

// TestInterference changes bytes between the device's read and the engine's check, which a client can
// do in its own memory and a drive everywhere.
func TestInterference(t *testing.T) {
	n := newNode(t, nil)
	a := newArena(t, 4)
	p := payload(3<<20 + 1)
	ref := n.put(a, p)
	ctx := context.Background()
	for _, always := range []bool{false, true} {
		var once sync.Once
		n.fs.hook(func(h *hookFS) {
			h.read = func(p []byte, off int64, call func() (int, error)) (int, error) {
				got, err := call()
				if len(p) >= 64<<10 {
					change := func() { p[len(p)/2] ^= 1 }
					if always {
						change()
					} else {
						once.Do(change)
					}
				}
				return got, err
			}
		})
		dst := &mapSink{from: a.Share("test"), memory: make([]byte, len(p))}
		before := n.stats()
		err := n.engine.Read(ctx, ref, chunk.Range{Len: ref.Length}, dst)
		after := n.stats()
		switch {
		case always && (!errors.Is(err, chunk.ErrCorrupt) || after.Corrupt != before.Corrupt+1):
			t.Errorf("bad wherever it is read: got %v, want ErrCorrupt; %+v", err, after)
		case !always && (err != nil || !bytes.Equal(dst.memory, p)):
			t.Errorf("bad in client memory only: got %v", err)
		case !always && (after.Interference != before.Interference+1 || after.Corrupt != before.Corrupt):
			t.Errorf("bad in client memory only: %+v", after)
		}
	}
	n.fs.hook(func(h *hookFS) { h.read = nil })
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestMemoryVanishesBeforeTheCheck truncates client memory after the device has read into it, so that
// the engine's own pass over it faults.
func TestMemoryVanishesBeforeTheCheck(t *testing.T) {
	fd, err := unix.MemfdCreate("local", unix.MFD_CLOEXEC)
	if err != nil {
		t.Skipf("no memfd here: %v", err)
	}
	defer unix.Close(fd)
	p := payload(3<<20 + 1)
	if err := unix.Ftruncate(fd, int64(len(p))); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(fd, 0, len(p), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	n := newNode(t, nil)
	a := newArena(t, 4)
	ref := n.put(a, p)
	n.fs.hook(func(h *hookFS) {
		h.read = func(p []byte, off int64, call func() (int, error)) (int, error) {
			got, err := call()
			if len(p) >= 64<<10 {
				_ = unix.Ftruncate(fd, int64(os.Getpagesize()))
			}
			return got, err
		}
	})
	dst := &mapSink{from: a.Share("test"), memory: memory}
	err = n.engine.Read(context.Background(), ref, chunk.Range{Len: ref.Length}, dst)
	if !errors.Is(err, arena.ErrMapped) {
		t.Errorf("got %v, want ErrMapped", err)
	}
	if open, _ := dst.counts(); open != 0 || a.InUse() != 0 {
		t.Errorf("%d ranges are mapped, %d buffers are out", open, a.InUse())
	}
	if s := n.stats(); s.Corrupt != 0 || s.DeviceErrors != 0 {
		t.Errorf("the drive was blamed: %+v", s)
	}
	n.fs.hook(func(h *hookFS) { h.read = nil })
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestASlowDeviceIsAskedInParallel counts reads of one request that overlap.
func TestASlowDeviceIsAskedInParallel(t *testing.T) {
	const limit = 4 // readDepth
	n := newNode(t, nil)
	a := newArena(t, 4)
	p := payload(16 << 20)
	ref := n.put(a, p)
	var now, most atomic.Int64
	n.fs.hook(func(h *hookFS) {
		h.read = func(_ []byte, _ int64, call func() (int, error)) (int, error) {
			parallel := now.Add(1)
			defer now.Add(-1)
			for old := most.Load(); parallel > old && !most.CompareAndSwap(old, parallel); old = most.Load() {
			}
			<-time.After(2 * time.Millisecond) // the device's time
			return call()
		}
	})
	for _, dst := range []arena.Sink{
		&mapSink{from: a.Share("test"), memory: make([]byte, len(p))}, &heapSink{from: a.Share("test")},
	} {
		most.Store(0)
		if err := n.engine.Read(context.Background(), ref, chunk.Range{Len: ref.Length}, dst); err != nil {
			t.Fatal(err)
		}
		if got := most.Load(); got < 2 || got > limit {
			t.Errorf("%T: %d reads at a time, want 2 to %d", dst, got, limit)
		}
	}
	n.fs.hook(func(h *hookFS) { h.read = nil })
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestWritesWithOtherSchemesAreRefused(t *testing.T) {
	n := newNode(t, nil)
	a := newArena(t, 1)
	for _, s := range []chunk.Scheme{{Data: 2}, {Data: 2, Parity: 1}, {Parity: 1}} {
		src := arena.NewBytesSource(a.Share("test"), payload(10))
		_, err := n.engine.Write(context.Background(), chunk.Owner{}, s, src)
		if !errors.Is(err, chunk.ErrUnavailable) {
			t.Errorf("%+v: got %v, want ErrUnavailable", s, err)
		}
	}
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestAFullDriveStoresNothing(t *testing.T) {
	n := newNode(t, func(c *drive.Config) { c.NoReserve, c.ReserveBytes = false, 1<<60 })
	a := newArena(t, 1)
	if _, err := n.write(context.Background(), a, payload(10)); !errors.Is(err, chunk.ErrNoSpace) {
		t.Errorf("got %v, want ErrNoSpace", err)
	}
	if err := n.engine.Delete(context.Background(), chunk.Ref{}); err != nil {
		t.Errorf("delete on a full drive: %v", err)
	}
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestABadFooterIsCorruption(t *testing.T) {
	n := newNode(t, nil)
	a := newArena(t, 2)
	p := payload(300 << 10) // a multiple of 4 KiB: the footer follows
	ref := n.put(a, p)
	n.restart(time.Minute)
	if err := n.corrupt(ref, ref.Length+80); err != nil {
		t.Fatal(err)
	}
	dst := &heapSink{from: a.Share("test")}
	err := n.engine.Read(context.Background(), ref, chunk.Range{Off: 5, Len: 10}, dst)
	if !errors.Is(err, chunk.ErrCorrupt) || len(dst.got) != 0 {
		t.Errorf("got %v with %d bytes, want ErrCorrupt with none", err, len(dst.got))
	}
	if h, err := n.engine.Verify(context.Background(), ref); err != nil || h.Readable != 0 || h.Shards != 1 {
		t.Errorf("verify: %+v, %v", h, err)
	}
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestAClosedDriveIsUnavailable(t *testing.T) {
	n := newNode(t, nil)
	a := newArena(t, 1)
	ref := n.put(a, payload(10))
	if err := n.drive.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	dst := &heapSink{from: a.Share("test")}
	_, errPin := n.engine.Pin(ctx, ref)
	_, errVerify := n.engine.Verify(ctx, ref)
	_, errWrite := n.write(ctx, a, payload(10))
	for what, err := range map[string]error{
		"read":   n.engine.Read(ctx, ref, chunk.Range{Len: 10}, dst),
		"delete": n.engine.Delete(ctx, ref),
		"pin":    errPin,
		"verify": errVerify,
		"write":  errWrite,
		"walk":   n.engine.Walk(ctx, func(chunk.Ref, chunk.Owner) error { return nil }),
	} {
		if !errors.Is(err, chunk.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", what, err)
		}
	}
	if err := errors.Join(n.engine.Close(ctx), a.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestAClosedEngineRefuses(t *testing.T) {
	n := newNode(t, nil)
	a := newArena(t, 1)
	p := payload(10)
	ref := n.put(a, p)
	if err := n.close(); err != nil {
		t.Fatal(err)
	}
	err := n.engine.Read(context.Background(), ref, chunk.Range{Len: 10}, &heapSink{from: a.Share("test")})
	if !errors.Is(err, chunk.ErrUnavailable) {
		t.Errorf("read: got %v, want ErrUnavailable", err)
	}
	_, err = n.write(context.Background(), a, p)
	if !errors.Is(err, chunk.ErrUnavailable) {
		t.Errorf("write: got %v, want ErrUnavailable", err)
	}
	if err := n.engine.Close(context.Background()); err != nil {
		t.Errorf("a second close: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestChunkSumIsThatOfThePayload(t *testing.T) {
	n := newNode(t, nil)
	a := newArena(t, 2)
	for _, size := range []int{1, 64 << 10, 64<<10 + 1, 2<<20 - 1, 2<<20 + 12345} {
		p := payload(size)
		if ref := n.put(a, p); ref.CRC64NVME != checksum.Sum(p) {
			t.Errorf("%d bytes: the combined sum differs from that of the payload", size)
		}
	}
	if err := errors.Join(n.close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}
