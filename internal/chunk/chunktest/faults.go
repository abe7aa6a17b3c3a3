package chunktest

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
)

// errCancel is the cause that cancelled calls are ended with.
var errCancel = errors.New("chunktest: cancelled")

func isCancel(err error) bool { return errors.Is(err, errCancel) || errors.Is(err, context.Canceled) }

func (s *suite) testWriteCancelled() {
	p := payload(6*bufferBytes + 77)
	const steps = 8 // 7 buffers and io.EOF
	for _, buffers := range []int{1, 4} {
		for at := -1; at < steps; at++ {
			ctx, cancel := context.WithCancelCause(context.Background())
			src := s.source(p, buffers)
			if at < 0 {
				cancel(errCancel)
			}
			src.onNext = func(step int) error {
				if step == at {
					cancel(errCancel)
				}
				return nil
			}
			_, err := s.engine.Write(ctx, owner(1), chunk.Scheme{}, src)
			if !isCancel(err) {
				s.t.Errorf("cancelled at step %d: got %v, want the context's error", at, err)
			}
			cancel(nil)
			src.reservation.Close()
			s.checkBuffers("after cancelled write")
			s.checkNothingStored("after cancelled write")
		}
	}
}

// callsOf counts how often a whole read calls a sink.
func (s *suite) callsOf(ref chunk.Ref, p []byte, kind sinkKind, buffers int) int {
	s.t.Helper()
	dst := s.sink(kind, p, buffers)
	var n atomic.Int64
	dst.hook(func(int) error { n.Add(1); return nil })
	if err := s.get(ref, whole(ref), dst); err != nil {
		s.t.Fatal(err)
	}
	return int(n.Load())
}

func (s *suite) testReadCancelled() {
	p := payload(6*bufferBytes + 77)
	ref := s.put(p, 4)
	for _, kind := range []sinkKind{buffered, delayed, mapped} {
		for _, buffers := range []int{1, 4} {
			calls := s.callsOf(ref, p, kind, buffers)
			for at := -1; at < calls; at++ {
				ctx, cancel := context.WithCancelCause(context.Background())
				dst := s.sink(kind, p, buffers)
				if at < 0 {
					cancel(errCancel)
				}
				dst.hook(func(step int) error {
					if step == at {
						cancel(errCancel)
					}
					return nil
				})
				err := s.getContext(ctx, ref, whole(ref), dst)
				cancel(nil)
				switch {
				case err == nil && at < 0:
					s.t.Errorf("%v sink: a cancelled read succeeded", kind)
				case err == nil: // it was complete before the end was seen
					err = dst.complete()
				case isCancel(err):
					err = dst.correct()
				}
				if err != nil {
					s.t.Errorf("%v sink, cancelled at call %d of %d: %v", kind, at, calls, err)
				}
			}
		}
	}
}

func (s *suite) testFailingSinks() {
	p := payload(6*bufferBytes + 77)
	ref := s.put(p, 4)
	for _, kind := range []sinkKind{buffered, delayed, mapped} {
		for _, buffers := range []int{1, 4} {
			for at := range s.callsOf(ref, p, kind, buffers) {
				dst := s.sink(kind, p, buffers)
				dst.hook(failAt(at))
				if err := s.get(ref, whole(ref), dst); !errors.Is(err, errModel) {
					s.t.Errorf("%v sink failing at call %d: got %v, want its error", kind, at, err)
				}
				if err := dst.correct(); err != nil {
					s.t.Errorf("%v sink failing at call %d: %v", kind, at, err)
				}
			}
		}
	}
	s.mustGet(ref, p, whole(ref), buffered, 2)
}

func (s *suite) testCorrupt() {
	if s.subject.Corrupt == nil {
		s.t.Skip("engine gives no hook to corrupt stored bytes")
	}
	p := payload(9*block + 333)
	for _, at := range []int64{0, block - 1, block, 4*block + 99, 9 * block, 9*block + 332} {
		ref := s.put(p, 3)
		if err := s.subject.Corrupt(ref, at); err != nil {
			s.t.Fatal(err)
		}
		lo := at / block * block
		hi := min(lo+block, ref.Length)
		for _, kind := range []sinkKind{buffered, delayed, mapped} {
			for _, r := range []chunk.Range{
				whole(ref), {Off: lo, Len: 1}, {Off: hi - 1, Len: 1}, {Off: lo, Len: hi - lo}, {Off: at, Len: 1},
			} {
				dst := s.sink(kind, p[r.Off:r.Off+r.Len], 2)
				if err := s.get(ref, r, dst); !errors.Is(err, chunk.ErrCorrupt) {
					s.t.Errorf("%v sink: byte %d is bad, read %+v: got %v, want ErrCorrupt", kind, at, r, err)
				}
				if err := dst.correct(); err != nil {
					s.t.Errorf("%v sink: byte %d is bad, read %+v: %v", kind, at, r, err)
				}
			}
			if lo > 0 {
				s.mustGet(ref, p, chunk.Range{Len: lo}, kind, 2)
			}
			if hi < ref.Length {
				s.mustGet(ref, p, chunk.Range{Off: hi, Len: ref.Length - hi}, kind, 2)
			}
		}
		h, err := s.engine.Verify(context.Background(), ref)
		if err != nil || h.Readable >= h.Shards {
			s.t.Errorf("verify with byte %d bad: %+v, %v", at, h, err)
		}
	}
}

// testScribble has a client that changes its memory all the time while the engine verifies it. That
// must cost nobody but the client: the read ends well, and no drive is blamed.
func (s *suite) testScribble() {
	p := payload(16 << 20)
	ref := s.put(p, 4)
	for range 4 {
		dst := s.sink(mapped, p, 2).(*mapSink)
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; !stop.Load(); i = (i + 4093) % len(p) {
				dst.memory[i] ^= 0x55
			}
		})
		err := s.get(ref, whole(ref), dst)
		stop.Store(true)
		wg.Wait()
		if err != nil {
			s.t.Fatalf("a client that scribbles on its memory: %v", err)
		}
		if err := dst.covered(); err != nil {
			s.t.Fatal(err)
		}
		if h, err := s.engine.Verify(context.Background(), ref); err != nil || h.Readable != h.Shards {
			s.t.Fatalf("the drive was blamed: %+v, %v", h, err)
		}
	}
	s.mustGet(ref, p, whole(ref), mapped, 2)
}

// testFault has a client whose memory is gone: each access faults.
func (s *suite) testFault() {
	p := payload(5*block + 4242)
	ref := s.put(p, 4)
	fd, err := unix.MemfdCreate("chunktest", unix.MFD_CLOEXEC)
	if err != nil {
		s.t.Skipf("no memfd here: %v", err)
	}
	defer unix.Close(fd)
	for _, kept := range []int{0, os.Getpagesize(), 2 * block, 3*block + os.Getpagesize()} {
		if err := unix.Ftruncate(fd, int64(len(p))); err != nil {
			s.t.Fatal(err)
		}
		memory, err := unix.Mmap(fd, 0, len(p), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, int64(kept)); err != nil {
			s.t.Fatal(err)
		}
		for _, r := range []chunk.Range{whole(ref), {Off: 3, Len: ref.Length - 5}} {
			dst := s.sink(mapped, p[r.Off:r.Off+r.Len], 2).(*mapSink)
			dst.memory = memory[:r.Len]
			dst.broken = true
			if err := s.get(ref, r, dst); !errors.Is(err, arena.ErrMapped) {
				s.t.Errorf("client memory cut to %d bytes: got %v, want ErrMapped", kept, err)
			}
		}
		if err := unix.Munmap(memory); err != nil {
			s.t.Fatal(err)
		}
	}
	if h, err := s.engine.Verify(context.Background(), ref); err != nil || h.Readable != h.Shards {
		s.t.Fatalf("the drive was blamed: %+v, %v", h, err)
	}
	s.mustGet(ref, p, whole(ref), mapped, 2)
}
