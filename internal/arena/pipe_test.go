package arena_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
)

func randomBytes(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1, byte(n)}).Read(p)
	return p
}

// drain reads a source to its end and checks that every buffer but the last is full.
func drain(ctx context.Context, src arena.Source) ([]byte, error) {
	var got []byte
	short := false
	for {
		b, err := src.Next(ctx)
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if short {
			b.Release()
			return got, errors.New("a short buffer is not the last")
		}
		short = b.Len() < b.Cap()
		got = append(got, b.Bytes()...)
		b.Release()
	}
}

func reserve(t *testing.T, a *arena.Arena, n int) *arena.Reservation {
	t.Helper()
	r, err := a.Share("fabric").Reserve(context.Background(), n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPipe(t *testing.T) {
	const full = arena.BlockSize
	for _, pieces := range [][]int{
		{0}, {1}, {full}, {full, full, full}, {full, full, 5}, {full - 1, full}, {1, full}, {1, 1, full, full},
		{full - 1, full - 1, full - 1}, {full, 7, full, 9, full, full}, {3, full - 3, full}, {3, full - 2},
	} {
		for buffers := range 3 {
			a := newArena(t, 3)
			r := reserve(t, a, buffers+1)
			total := 0
			for _, n := range pieces {
				total += n
			}
			want := randomBytes(total)
			p := arena.NewPipe(r, int64(total))
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			var wg sync.WaitGroup
			wg.Go(func() {
				off := 0
				for _, n := range pieces {
					if n == 0 {
						continue
					}
					b, err := p.Alloc(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					lo := b.Cap() - n // a view that does not start at the start of its buffer
					copy(b.Bytes()[lo:], want[off:off+n])
					if err := p.Deliver(ctx, int64(off), b.Slice(lo, b.Cap())); err != nil {
						t.Error(err)
						return
					}
					off += n
				}
				if err := p.Done(ctx); err != nil {
					t.Error(err)
				}
			})
			got, err := drain(ctx, p)
			wg.Wait()
			cancel()
			p.Close(nil)
			r.Close()
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("pieces %v with %d buffers: %v, equal: %v", pieces, buffers+1, err, bytes.Equal(got, want))
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestPipeEndsBothSides(t *testing.T) {
	errSide := errors.New("one side ends")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	a := newArena(t, 2)
	r := reserve(t, a, 1)
	p := arena.NewPipe(r, 3*arena.BlockSize)
	var wg sync.WaitGroup
	wg.Go(func() { // the writing side blocks in Alloc, since the reading one keeps the only buffer
		for off := int64(0); ; off += arena.BlockSize {
			b, err := p.Alloc(ctx)
			if err == nil {
				err = p.Deliver(ctx, off, b)
			}
			if err != nil {
				if !errors.Is(err, errSide) {
					t.Errorf("writing side: got %v, want the reading side's error", err)
				}
				return
			}
		}
	})
	b, err := p.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.Close(errSide)
	wg.Wait()
	b.Release()

	p = arena.NewPipe(r, 10)
	p.Close(errSide)
	if _, err := p.Next(ctx); !errors.Is(err, errSide) {
		t.Errorf("reading side: got %v, want the writing side's error", err)
	}

	p = arena.NewPipe(r, 10)
	if err := p.Done(ctx); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("done too early: got %v", err)
	}
	if _, err := p.Next(ctx); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("next after an early end: got %v", err)
	}

	p = arena.NewPipe(r, 10)
	b, _ = p.Alloc(ctx)
	if err := p.Deliver(ctx, 1, b.Slice(0, 5)); err == nil {
		t.Error("a gap was accepted")
	}
	b, _ = p.Alloc(ctx)
	if err := p.Deliver(ctx, 0, b.Slice(0, 11)); err == nil {
		t.Error("more than the size was accepted")
	}
	b, _ = p.Alloc(ctx)
	if err := p.Deliver(ctx, 0, b.Slice(0, 10)); err != nil {
		t.Error(err)
	}
	p.Close(nil)
	r.Close()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestSections(t *testing.T) {
	const full = arena.BlockSize
	a := newArena(t, 2)
	r := reserve(t, a, 1)
	want := randomBytes(5*full + 100)
	ctx := context.Background()
	s := arena.NewSections(arena.NewBytesSource(r, want))
	var got []byte
	var sizes []int64
	for s.Left() > 0 {
		section := s.Section(2 * full)
		sizes = append(sizes, section.Size())
		p, err := drain(ctx, section)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(p)) != section.Size() {
			t.Fatalf("section of %d bytes gave %d", section.Size(), len(p))
		}
		if _, err := section.Next(ctx); err != io.EOF {
			t.Fatalf("after the end: got %v, want io.EOF", err)
		}
		got = append(got, p...)
	}
	if !bytes.Equal(got, want) || len(sizes) != 3 || sizes[2] != full+100 {
		t.Fatalf("sections of %v bytes, equal: %v", sizes, bytes.Equal(got, want))
	}

	s = arena.NewSections(arena.NewBytesSource(r, want))
	if _, err := s.Section(full + 1).Next(ctx); err != nil {
		t.Fatal("the first buffer fits")
	}
	r.Close()
	// The buffer above is still out: a section after an unread one is refused.
	if _, err := s.Section(full).Next(ctx); err == nil {
		t.Fatal("a section was taken before the one before it ended")
	}
}

// wrongSource says one size and yields another.
type wrongSource struct {
	arena.Source
	size int64
}

func (w wrongSource) Size() int64 { return w.size }

func TestSectionsOfAWrongSource(t *testing.T) {
	const full = arena.BlockSize
	a := newArena(t, 2)
	ctx := context.Background()
	for _, size := range []int64{full - 1, full + 1, 3 * full, 3*full - 1, 2*full + 1} {
		r := reserve(t, a, 1)
		s := arena.NewSections(wrongSource{arena.NewBytesSource(r, make([]byte, 2*full)), size})
		var err error
		for s.Left() > 0 && err == nil {
			_, err = drain(ctx, s.Section(full))
		}
		if err == nil {
			t.Errorf("%d bytes pass as %d", 2*full, size)
		}
		r.Close()
	}
	if a.InUse() != 0 {
		t.Errorf("%d buffers are out", a.InUse())
	}
}
