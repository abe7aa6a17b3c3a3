package chunktest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-store/penstock/internal/chunk"
)

func (s *suite) testPins() {
	pinner, ok := s.engine.(chunk.Pinner)
	if !ok {
		s.t.Skip("engine is no Pinner")
	}
	ctx := context.Background()
	p := payload(4*block + 9)
	kept, gone := s.put(p, 2), s.put(p, 2)

	first, err := pinner.Pin(ctx, kept)
	if err != nil {
		s.t.Fatal(err)
	}
	second, err := pinner.Pin(ctx, kept, kept)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, ref := range []chunk.Ref{kept, gone} {
		if err := s.engine.Delete(ctx, ref); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, unpin := range []func(){first, second} {
		for _, kind := range []sinkKind{buffered, mapped} {
			s.mustGet(kept, p, whole(kept), kind, 2)
		}
		// A deleted chunk that others pin may be pinned or not.
		switch again, err := pinner.Pin(ctx, kept); {
		case err == nil:
			again()
		case !errors.Is(err, chunk.ErrNotFound):
			s.t.Errorf("pin a deleted chunk: got %v, want nil or ErrNotFound", err)
		}
		unpin()
	}
	if err := s.get(kept, whole(kept), s.sink(buffered, p, 2)); !errors.Is(err, chunk.ErrNotFound) {
		s.t.Errorf("read after the last unpin: got %v, want ErrNotFound", err)
	}

	if _, err := pinner.Pin(ctx, kept); !errors.Is(err, chunk.ErrNotFound) {
		s.t.Errorf("pin a chunk that is gone: got %v, want ErrNotFound", err)
	}

	// A failed Pin pins nothing.
	other := s.put(p, 2)
	if _, err := pinner.Pin(ctx, other, gone); !errors.Is(err, chunk.ErrNotFound) {
		s.t.Errorf("pin with one gone: got %v, want ErrNotFound", err)
	}
	if err := s.engine.Delete(ctx, other); err != nil {
		s.t.Fatal(err)
	}
	if err := s.get(other, whole(other), s.sink(buffered, p, 2)); !errors.Is(err, chunk.ErrNotFound) {
		s.t.Errorf("read after a failed pin and delete: got %v, want ErrNotFound", err)
	}
	if unpin, err := pinner.Pin(ctx); err != nil {
		s.t.Errorf("pin nothing: %v", err)
	} else {
		unpin()
	}
	s.checkNothingStored("after the last unpin")
}

// testConcurrent writes, reads and deletes from many goroutines, each on its own chunks and all on
// a shared one, without the per-call buffer check (buffers of others are out).
func (s *suite) testConcurrent() {
	shared := payload(11*block + 3)
	sharedRef := s.put(shared, 4)
	var wg sync.WaitGroup
	for id := range 6 {
		wg.Go(func() {
			for round := range 4 {
				if err := s.oneRound(id, round, sharedRef, shared); err != nil {
					s.t.Errorf("goroutine %d, round %d: %v", id, round, err)
					return
				}
			}
		})
	}
	wg.Wait()
	s.checkBuffers("after concurrent use")
	all, ok := s.stored()
	if ok && len(all) != 1 {
		s.t.Errorf("%d chunks are stored, want the shared one", len(all))
	}
}

func (s *suite) oneRound(id, round int, sharedRef chunk.Ref, shared []byte) error {
	ctx, cancel := s.context()
	defer cancel()
	own := payload(50_000*(id+1) + 7*round)
	ref, err := s.engine.Write(ctx, owner(byte(id)), chunk.Scheme{}, s.source(own, 1+round))
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	for _, kind := range []sinkKind{buffered, delayed, mapped} {
		for _, c := range []struct {
			ref chunk.Ref
			p   []byte
		}{{ref, own}, {sharedRef, shared}} {
			lo := int64(id * round * 100)
			dst := s.sink(kind, c.p[lo:], 1+id%3)
			err := s.engine.Read(ctx, c.ref, chunk.Range{Off: lo, Len: int64(len(c.p)) - lo}, dst)
			err = errors.Join(err, dst.Done(ctx))
			if err == nil {
				err = dst.complete()
			}
			if err != nil {
				return fmt.Errorf("%v sink: %w", kind, err)
			}
		}
	}
	if err := s.engine.Delete(ctx, ref); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	dst := s.sink(buffered, own, 1)
	err = errors.Join(s.engine.Read(ctx, ref, whole(ref), dst), dst.Done(ctx))
	if !errors.Is(err, chunk.ErrNotFound) {
		return fmt.Errorf("read after delete: got %w, want ErrNotFound", err)
	}
	return nil
}
