package arena_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
)

func newArena(t *testing.T, buffers int) *arena.Arena {
	t.Helper()
	a, err := arena.New(arena.Options{
		Shares: []arena.ShareOption{
			{Name: "fabric", Buffers: buffers, BufferBytes: arena.BlockSize},
			{Name: "http", Buffers: 1, BufferBytes: 2 * arena.BlockSize},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestBuffersAreDisjointAndAligned(t *testing.T) {
	a := newArena(t, 4)
	seen := map[*byte]bool{}
	var out []arena.Buffer
	for range 4 {
		b, err := a.Share("fabric").Alloc(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		p := &b.Bytes()[0]
		if seen[p] {
			t.Fatal("the same memory was handed out twice")
		}
		seen[p] = true
		if b.Len() != arena.BlockSize {
			t.Fatalf("buffer at %p of %d bytes", p, b.Len())
		}
		out = append(out, b)
	}
	if a.InUse() != 4 {
		t.Fatalf("in use %d, want 4", a.InUse())
	}
	if err := a.Close(); err == nil {
		t.Fatal("closed while buffers are out")
	}
	for _, b := range out {
		b.Slice(3, 9).Release()
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestWaitIsBoundedPerShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, 1)
		held, err := a.Share("fabric").Alloc(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := a.Share("fabric").Alloc(context.Background()); !errors.Is(err, arena.ErrBusy) {
			t.Fatalf("got %v, want ErrBusy", err)
		}
		if waited := time.Since(start); waited != arena.DefaultWait {
			t.Fatalf("waited %v, want %v", waited, arena.DefaultWait)
		}
		other, err := a.Share("http").Alloc(context.Background())
		if err != nil {
			t.Fatalf("the other share was starved: %v", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := a.Share("fabric").Alloc(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want the context's error", err)
		}
		held.Release()
		other.Release()
	})
}

func TestDoubleReleasePanics(t *testing.T) {
	a := newArena(t, 2)
	b, err := a.Share("fabric").Alloc(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	defer func() {
		if recover() == nil {
			t.Fatal("a second release did not panic")
		}
	}()
	b.Release()
}

func TestConcurrentUse(t *testing.T) {
	a := newArena(t, 3)
	var wg sync.WaitGroup
	for id := range byte(8) {
		wg.Go(func() {
			for range 500 {
				b, err := a.Share("fabric").Alloc(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				b.Bytes()[0] = id
				if got := b.Bytes()[0]; got != id {
					t.Errorf("another owner wrote %d", got)
				}
				b.Release()
			}
		})
	}
	wg.Wait()
	if a.InUse() != 0 {
		t.Fatalf("%d buffers leaked", a.InUse())
	}
}

func TestReservationKeepsItsBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, 3)
		share := a.Share("fabric")
		r, err := share.Reserve(context.Background(), 2)
		if err != nil {
			t.Fatal(err)
		}
		second, err := share.Reserve(context.Background(), 2)
		if err != nil {
			t.Fatalf("one free buffer is enough for a reservation: %v", err)
		}
		if _, err := share.Reserve(context.Background(), 2); !errors.Is(err, arena.ErrBusy) {
			t.Fatalf("got %v, want ErrBusy", err)
		}
		one, _ := r.Alloc(context.Background())
		two, err := r.Alloc(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		one.Release()
		again, err := r.Alloc(context.Background())
		if err != nil {
			t.Fatalf("a released buffer did not return to its reservation: %v", err)
		}
		second.Close()
		r.Close()
		r.Close()
		if n := share.InUse(); n != 2 {
			t.Fatalf("in use %d, want the 2 that operations still hold", n)
		}
		again.Release()
		two.Release()
		if n := share.InUse(); n != 0 {
			t.Fatalf("%d buffers did not come home", n)
		}
	})
}
