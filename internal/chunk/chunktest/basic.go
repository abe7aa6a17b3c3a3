package chunktest

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
)

const block = arena.BlockSize

// ranges lists ranges around every kind of border of a payload of n bytes.
func ranges(n int64) []chunk.Range {
	var borders []int64
	for _, at := range []int64{0, 4096, block, 2 * block, 4 * block, n / 2 / block * block, n / block * block, n} {
		for _, d := range []int64{-1, 0, 1} {
			borders = append(borders, at+d)
		}
	}
	slices.Sort(borders)
	borders = slices.Compact(borders)
	var all []chunk.Range
	for _, off := range borders {
		for _, length := range []int64{0, 1, 4096, block - 1, block, block + 1, 4*block + 5} {
			if r := (chunk.Range{Off: off, Len: length}); r.Check(n) == nil {
				all = append(all, r)
			}
		}
		if rest := n - off; off >= 0 && rest > 0 && rest < 20*block {
			all = append(all, chunk.Range{Off: off, Len: rest})
		}
	}
	return append(all, chunk.Range{Len: n})
}

func (s *suite) testSizes() {
	for _, n := range []int{
		1, 4095, 4096, 4097, block - 1, block, block + 1, 2 * block, 3*block + 17,
		1<<20 - 1, 1 << 20, 1<<20 + 1, chunk.MaxBytes,
	} {
		p := payload(n)
		ref := s.put(p, 3)
		for i, r := range ranges(int64(n)) {
			for _, kind := range []sinkKind{buffered, delayed, mapped} {
				s.mustGet(ref, p, r, kind, 1+i%3)
			}
		}
		ctx, cancel := s.context()
		h, err := s.engine.Verify(ctx, ref)
		cancel()
		if err != nil || h.Shards < 1 || h.Readable != h.Shards {
			s.t.Fatalf("verify a sound chunk: %+v, %v", h, err)
		}
		if err := s.engine.Delete(context.Background(), ref); err != nil {
			s.t.Fatal(err)
		}
		s.checkNothingStored("after delete")
	}
}

func (s *suite) testOneBuffer() {
	p := payload(5*bufferBytes + 1234)
	ref := s.put(p, 1)
	for _, kind := range []sinkKind{buffered, delayed, mapped} {
		s.mustGet(ref, p, whole(ref), kind, 1)
		s.mustGet(ref, p, chunk.Range{Off: 1, Len: ref.Length - 2}, kind, 1)
	}
}

func (s *suite) testBadSizes() {
	for _, size := range []int64{-1, 0, chunk.MaxBytes + 1} {
		src := s.source(nil, 1)
		src.size = size
		_, err := s.engine.Write(context.Background(), owner(1), chunk.Scheme{}, src)
		if !errors.Is(err, chunk.ErrSize) {
			s.t.Errorf("source of %d bytes: got %v, want ErrSize", size, err)
		}
		src.reservation.Close()
		s.checkBuffers("after refused size")
		s.checkNothingStored("after refused size")
	}
}

func (s *suite) testBadRanges() {
	p := payload(2*block + 100)
	ref := s.put(p, 2)
	for _, r := range []chunk.Range{
		{Off: -1, Len: 1}, {Off: 0, Len: -1}, {Off: ref.Length, Len: 1}, {Off: ref.Length + 1},
		{Off: 1, Len: ref.Length}, {Off: 1, Len: 1<<63 - 1}, {Off: 1<<63 - 1, Len: 1<<63 - 1},
	} {
		dst := s.sink(buffered, nil, 1)
		if err := s.get(ref, r, dst); !errors.Is(err, chunk.ErrSize) {
			s.t.Errorf("range %+v: got %v, want ErrSize", r, err)
		}
	}
}

func (s *suite) testBadSources() {
	p := payload(7*bufferBytes + 5)
	for _, c := range []struct {
		name   string
		change func(m *modelSource)
		want   error
	}{
		{"error at once", func(m *modelSource) { m.onNext = failAt(0) }, errModel},
		{"error in the middle", func(m *modelSource) { m.onNext = failAt(4) }, errModel},
		{"error at the last buffer", func(m *modelSource) { m.onNext = failAt(7) }, errModel},
		{"error instead of the end", func(m *modelSource) { m.onNext = failAt(8) }, errModel},
		{"end with unexpected EOF", func(m *modelSource) {
			m.onNext = func(step int) error {
				if step == 3 {
					return io.ErrUnexpectedEOF
				}
				return nil
			}
		}, io.ErrUnexpectedEOF},
		// These break the contract of Source. An engine still must not store them.
		{"ends early", func(m *modelSource) { m.left = m.left[:4*bufferBytes] }, nil},
		{"ends a byte early", func(m *modelSource) { m.left = m.left[:len(m.left)-1] }, nil},
		{"ends at once", func(m *modelSource) { m.left = nil }, nil},
		{"a byte too long", func(m *modelSource) { m.size-- }, nil},
		{"a buffer too long", func(m *modelSource) { m.size -= bufferBytes }, nil},
		{"much too long", func(m *modelSource) { m.size = 1 }, nil},
	} {
		for _, buffers := range []int{1, 4} {
			src := s.source(p, buffers)
			c.change(src)
			ctx, cancel := s.context()
			ref, err := s.engine.Write(ctx, owner(1), chunk.Scheme{}, src)
			cancel()
			if err == nil {
				s.t.Fatalf("%s: stored as %v", c.name, ref)
			}
			if c.want != nil && !errors.Is(err, c.want) {
				s.t.Errorf("%s: got %v, want %v", c.name, err, c.want)
			}
			src.reservation.Close()
			s.checkBuffers(c.name)
			s.checkNothingStored(c.name)
		}
	}
}

func failAt(at int) func(step int) error {
	return func(step int) error {
		if step == at {
			return errModel
		}
		return nil
	}
}

func (s *suite) testNotFound() {
	ctx := context.Background()
	p := payload(3 * block)
	ref := s.put(p, 2)
	gone := s.put(p, 2)
	if gone.ID == ref.ID {
		s.t.Fatal("two chunks have one id")
	}
	for range 2 { // deleting what does not exist is no error
		if err := s.engine.Delete(ctx, gone); err != nil {
			s.t.Fatal(err)
		}
	}
	never := ref
	never.ID[5] ^= 1
	for _, missing := range []chunk.Ref{gone, never} {
		for _, kind := range []sinkKind{buffered, mapped} {
			dst := s.sink(kind, p, 2)
			if err := s.get(missing, whole(missing), dst); !errors.Is(err, chunk.ErrNotFound) {
				s.t.Errorf("read: got %v, want ErrNotFound", err)
			}
			if n := dst.landed(); n != 0 {
				s.t.Errorf("%d bytes of a missing chunk", n)
			}
		}
		if _, err := s.engine.Verify(ctx, missing); !errors.Is(err, chunk.ErrNotFound) {
			s.t.Errorf("verify: got %v, want ErrNotFound", err)
		}
		if err := s.engine.Delete(ctx, missing); err != nil {
			s.t.Errorf("delete: %v", err)
		}
	}
	s.mustGet(ref, p, whole(ref), buffered, 2)
}

func (s *suite) testForgedReference() {
	p := payload(3*block + 7)
	ref := s.put(p, 2)
	for _, change := range []func(r *chunk.Ref){
		func(r *chunk.Ref) { r.Length-- },
		func(r *chunk.Ref) { r.Length++ },
		func(r *chunk.Ref) { r.Length = chunk.MaxBytes },
		func(r *chunk.Ref) { r.CRC64NVME ^= 1 << 17 },
	} {
		forged := ref
		change(&forged)
		dst := s.sink(buffered, p, 2)
		err := s.get(forged, chunk.Range{Len: 10}, dst)
		if !errors.Is(err, chunk.ErrCorrupt) && !errors.Is(err, chunk.ErrNotFound) {
			s.t.Errorf("%+v for %+v: got %v, want ErrCorrupt or ErrNotFound", forged, ref, err)
		}
		if n := dst.landed(); n != 0 {
			s.t.Errorf("%d bytes were delivered", n)
		}
	}
}

func (s *suite) testWalk() {
	if _, ok := s.engine.(chunk.Walker); !ok {
		s.t.Skip("engine is no Walker")
	}
	want := map[chunk.Ref]chunk.Owner{}
	for i := range 5 {
		ctx, cancel := s.context()
		p := payload(1000 * (i + 1) * (i + 1))
		ref, err := s.engine.Write(ctx, owner(byte(i)), chunk.Scheme{}, s.source(p, 2))
		cancel()
		if err != nil {
			s.t.Fatal(err)
		}
		want[ref] = owner(byte(i))
	}
	got, _ := s.stored()
	if len(got) != len(want) {
		s.t.Fatalf("walk shows %d chunks, want %d", len(got), len(want))
	}
	for ref, o := range want {
		if got[ref] != o {
			s.t.Errorf("owner of %+v: got %+v, want %+v", ref, got[ref], o)
		}
	}
	err := s.engine.(chunk.Walker).Walk(context.Background(), func(chunk.Ref, chunk.Owner) error { return errModel })
	if !errors.Is(err, errModel) {
		s.t.Errorf("walk: got %v, want the callback's error", err)
	}
}
