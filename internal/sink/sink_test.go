package sink_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/sink"
)

var sizes = []int{1, 100, full - 1, full, full + 1, 5*full + 17}

func TestSinksMoveEveryByte(t *testing.T) {
	for _, n := range sizes {
		for _, piece := range []int{full, full - 5, 1000} {
			if n/piece > 50 && testing.Short() {
				continue
			}
			for buffers := 1; buffers <= 4; buffers += 3 {
				p := randomBytes(n)
				for name, made := range map[string]func(r *arena.Reservation) (sink.Sink, func() []byte){
					"http": func(r *arena.Reservation) (sink.Sink, func() []byte) {
						w := &slowWriter{failAfter: -1}
						return sink.NewHTTP(w, r, int64(n), false), w.Bytes
					},
					"http overlapped": func(r *arena.Reservation) (sink.Sink, func() []byte) {
						w := &slowWriter{failAfter: -1}
						return sink.NewHTTP(w, r, int64(n), true), w.Bytes
					},
					"remote": func(r *arena.Reservation) (sink.Sink, func() []byte) {
						w := newWindow(n)
						return sink.ForRemote(w, r, int64(n)), func() []byte { return w.memory }
					},
					"mapped": func(r *arena.Reservation) (sink.Sink, func() []byte) {
						w := &mappedWindow{window: newWindow(n)}
						return sink.ForRemote(w, r, int64(n)), func() []byte { return w.memory }
					},
				} {
					t.Run(name, func(t *testing.T) {
						ctx := newContext(t)
						dst, got := made(newReservation(t, buffers))
						if err := errors.Join(deliver(ctx, dst, p, piece), dst.Done(ctx)); err != nil {
							t.Fatal(err)
						}
						if !bytes.Equal(got(), p) || dst.Bytes() != int64(n) {
							t.Fatalf("%d bytes in pieces of %d: %d moved, or wrong ones", n, piece, dst.Bytes())
						}
					})
				}
			}
		}
	}
}

func TestForRemoteMapsWhatItCan(t *testing.T) {
	r := newReservation(t, 1)
	if _, ok := sink.ForRemote(newWindow(1), r, 1).(arena.Mapper); ok {
		t.Error("a plain window became a Mapper")
	}
	if _, ok := sink.ForRemote(&mappedWindow{window: newWindow(1)}, r, 1).(arena.Mapper); !ok {
		t.Error("a mapped window became no Mapper")
	}
}

func TestHTTPClientFailsAnywhere(t *testing.T) {
	p := randomBytes(4*full + 10)
	for _, after := range []int{0, 1, full - 1, full, 2*full + 5, 4 * full, 4*full + 9} {
		for buffers := 1; buffers <= 2; buffers++ {
			t.Run("", func(t *testing.T) {
				ctx := newContext(t)
				w := &slowWriter{failAfter: after}
				dst := sink.NewHTTP(w, newReservation(t, buffers), int64(len(p)), buffers == 2)
				_ = deliver(ctx, dst, p, full) // may end early or not: deliveries complete later
				if err := dst.Done(ctx); !errors.Is(err, errModel) {
					t.Errorf("failing after %d bytes: got %v, want the writer's error", after, err)
				}
				if !bytes.Equal(w.Bytes(), p[:after]) {
					t.Error("the client got other bytes than the first ones")
				}
			})
		}
	}
}

func TestRemoteFailsAnywhere(t *testing.T) {
	p := randomBytes(4*full + 10)
	for at := range 5 {
		for buffers := 1; buffers <= 4; buffers++ {
			t.Run("", func(t *testing.T) {
				ctx := newContext(t)
				w := newWindow(len(p))
				w.failAt = at
				dst := sink.NewRemote(w, newReservation(t, buffers), int64(len(p)))
				_ = deliver(ctx, dst, p, full)
				if err := dst.Done(ctx); !errors.Is(err, errModel) {
					t.Errorf("failing at call %d: got %v, want the fabric's error", at, err)
				}
			})
		}
	}
}

func TestRemoteWritesOverlap(t *testing.T) {
	const buffers = 3
	ctx := newContext(t)
	w := newWindow(buffers * full)
	w.gate, w.started = make(chan struct{}), make(chan struct{}, buffers)
	p := randomBytes(buffers * full)
	dst := sink.NewRemote(w, newReservation(t, buffers), int64(len(p)))
	if err := deliver(ctx, dst, p, full); err != nil {
		t.Fatal(err)
	}
	for range buffers { // all of them are under way before the first one ends
		select {
		case <-w.started:
		case <-ctx.Done():
			t.Fatal("writes do not overlap")
		}
	}
	close(w.gate)
	if err := dst.Done(ctx); err != nil || !bytes.Equal(w.memory, p) {
		t.Fatalf("done: %v", err)
	}
}

func TestAHangingRemoteWriteDoesNotHoldDone(t *testing.T) {
	w := newWindow(2 * full)
	w.gate = make(chan struct{})
	r := newReservation(t, 2)
	ctx, cancel := context.WithCancel(newContext(t))
	dst := sink.NewRemote(w, r, 2*full)
	if err := deliver(ctx, dst, randomBytes(2*full), full); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := dst.Done(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the context's error", err)
	}
	close(w.gate) // as fabric.Remote.Close does
	back := newContext(t)
	for range 2 {
		b, err := r.Alloc(back)
		if err != nil {
			t.Fatal("a buffer did not come back: ", err)
		}
		defer b.Release()
	}
}

func TestABlockedHTTPClient(t *testing.T) {
	w := &slowWriter{failAfter: -1, block: make(chan struct{}), blocked: make(chan struct{})}
	ctx, cancel := context.WithCancel(newContext(t))
	dst := sink.NewHTTP(w, newReservation(t, 1), 3*full, true)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := deliver(ctx, dst, randomBytes(3*full), full); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's error", err)
		}
	})
	<-w.blocked
	cancel() // the engine's Alloc ends with it
	wg.Wait()
	wg.Go(func() { close(w.block) }) // as a write deadline does
	if err := dst.Done(ctx); err == nil {
		t.Error("an answer that lacks bytes is done without an error")
	}
	wg.Wait()
}

func TestDoneMissesBytes(t *testing.T) {
	ctx := newContext(t)
	r := newReservation(t, 1)
	w := newWindow(10)
	m := &mappedWindow{window: w}
	for _, dst := range []sink.Sink{
		sink.NewHTTP(&slowWriter{failAfter: -1}, r, 10, true), sink.NewRemote(w, r, 10), sink.NewMapped(m, r, 10),
	} {
		if err := deliver(ctx, dst, randomBytes(9), 9); err != nil {
			t.Fatal(err)
		}
		if err := dst.Done(ctx); !errors.Is(err, sink.ErrShort) {
			t.Errorf("%T: got %v, want ErrShort", dst, err)
		}
	}
	dst := sink.NewRemote(w, r, 10)
	if err := deliver(ctx, dst, randomBytes(11), 11); err == nil {
		t.Error("bytes beyond the answer were taken")
	}
	if err := dst.Done(ctx); err == nil {
		t.Error("bytes beyond the answer are forgotten")
	}
}

func TestMappedCountsWhatWasVerified(t *testing.T) {
	ctx := newContext(t)
	w := &mappedWindow{window: newWindow(100)}
	dst := sink.NewMapped(w, newReservation(t, 1), 100)
	for _, bad := range []struct {
		off int64
		n   int
	}{{-1, 1}, {0, 0}, {0, 101}, {100, 1}, {1 << 62, 1}} {
		if _, err := dst.Map(bad.off, bad.n); err == nil {
			t.Errorf("mapped [%d, +%d) of 100 bytes", bad.off, bad.n)
		}
	}
	want := randomBytes(100)
	for _, c := range []struct {
		off      int64
		n        int
		verified bool
	}{{0, 40, true}, {40, 60, false}} {
		memory, err := dst.Map(c.off, c.n)
		if err != nil {
			t.Fatal(err)
		}
		copy(memory, want[c.off:])
		dst.Unmap(c.off, c.n, arena.Verdict{Verified: c.verified})
	}
	if n := dst.Bytes(); n != 40 {
		t.Fatalf("%d bytes count, want the 40 verified ones", n)
	}
	b, err := dst.Alloc(ctx)
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes(), want[40:])
	if err := dst.Deliver(ctx, 40, b.Slice(0, 60)); err != nil {
		t.Fatal(err)
	}
	if err := dst.Done(ctx); err != nil || !bytes.Equal(w.memory, want) || w.open != 0 {
		t.Fatalf("done: %v, open %d", err, w.open)
	}
}

func TestAHangingReadDoesNotHoldMappedDone(t *testing.T) {
	w := &mappedWindow{window: newWindow(100)}
	dst := sink.NewMapped(w, newReservation(t, 1), 100)
	if _, err := dst.Map(0, 100); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := dst.Done(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the context's error", err)
	}
	dst.Unmap(0, 100, arena.Verdict{}) // the late end of the read
	if w.open != 0 {
		t.Fatal("the fabric was not told")
	}

	dst = sink.NewMapped(w, newReservation(t, 1), 100)
	if _, err := dst.Map(0, 100); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { dst.Unmap(0, 100, arena.Verdict{Verified: true}) })
	if err := dst.Done(newContext(t)); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

func TestMappedMemoryFaults(t *testing.T) {
	fd, err := unix.MemfdCreate("sink", unix.MFD_CLOEXEC)
	if err != nil {
		t.Skipf("no memfd here: %v", err)
	}
	defer unix.Close(fd)
	n := 2 * os.Getpagesize()
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	if err := unix.Ftruncate(fd, int64(n/2)); err != nil {
		t.Fatal(err)
	}
	ctx := newContext(t)
	w := &mappedWindow{window: &window{memory: memory, failAt: -1}}
	dst := sink.NewMapped(w, newReservation(t, 1), int64(n))
	if err := deliver(ctx, dst, randomBytes(n), full); !errors.Is(err, arena.ErrMapped) {
		t.Errorf("deliver: got %v, want ErrMapped", err)
	}
	if err := dst.Done(ctx); !errors.Is(err, arena.ErrMapped) || dst.Bytes() != 0 || w.open != 0 {
		t.Errorf("done: got %v, want ErrMapped; %d bytes, %d open", err, dst.Bytes(), w.open)
	}
}
