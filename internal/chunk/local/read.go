package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/drive"
)

// Read implements chunk.Engine.
func (e *Engine) Read(ctx context.Context, ref chunk.Ref, r chunk.Range, dst arena.Sink) error {
	if err := r.Check(ref.Length); err != nil {
		return fmt.Errorf("chunk %v: %w", ref.ID, err)
	}
	return e.run(ctx, "read", func(c *call) error {
		e.reads.Add(1)
		defer e.reads.Add(-1)
		job, err := e.open(ctx, c, ref, r)
		if err != nil {
			return err
		}
		defer job.at.Release()
		job.dst = dst
		if m, ok := dst.(arena.Mapper); ok {
			err = job.mapped(ctx, m)
		} else {
			err = job.buffered(ctx, r)
		}
		if errors.Is(err, chunk.ErrCorrupt) {
			e.counters.corrupt.Add(1)
		}
		return err
	})
}

// reading is one range of a chunk on its way to a sink.
type reading struct {
	engine *Engine
	call   *call
	ref    chunk.Ref
	rng    chunk.Range
	at     *drive.Location
	first  int64    // first block that the range touches
	blocks []uint64 // sums of the blocks from first on
	dst    arena.Sink
}

// open finds the record and the sums of the blocks that the range touches.
func (e *Engine) open(ctx context.Context, c *call, ref chunk.Ref, r chunk.Range) (*reading, error) {
	at, err := e.drive.Lookup(key(ref.ID))
	if err != nil {
		return nil, fmt.Errorf("chunk %v: %w", ref.ID, translate(ctx, err))
	}
	job := &reading{engine: e, call: c, ref: ref, rng: r, at: at, first: r.Off / arena.BlockSize}
	if got := at.Record(); refOf(got) != ref || got.Length != ref.Length {
		err = fmt.Errorf("%w: the record is another one than the reference says", chunk.ErrCorrupt)
	} else if r.Len > 0 {
		last := (r.Off + r.Len - 1) / arena.BlockSize
		job.blocks, err = at.BlockCRCs(int(job.first), int(last-job.first)+1)
		err = translate(ctx, err)
	}
	if err != nil {
		at.Release()
		return nil, fmt.Errorf("chunk %v: %w", ref.ID, err)
	}
	return job, nil
}

// end is the end of the block that covers the byte before position p.
func (r *reading) end(p int64) int64 {
	return min((p+arena.BlockSize-1)/arena.BlockSize*arena.BlockSize, r.ref.Length)
}

// check verifies whole blocks of the chunk in memory, from byte off on. Errors: chunk.ErrCorrupt.
func (r *reading) check(p []byte, off int64) error {
	for block := off/arena.BlockSize - r.first; len(p) > 0; block++ {
		n := min(arena.BlockSize, len(p))
		if got, want := checksum.Sum(p[:n]), r.blocks[block]; got != want {
			return fmt.Errorf("chunk %v: block %d on drive %v has %#x, want %#x: %w",
				r.ref.ID, r.first+block, r.engine.drive.ID(), got, want, chunk.ErrCorrupt)
		}
		p = p[n:]
	}
	return nil
}

// buffered delivers part, which lies inside the range, through buffers of the sink.
func (r *reading) buffered(ctx context.Context, part chunk.Range) error {
	for off, stop := part.Off, part.Off+part.Len; off < stop; {
		b, err := r.alloc(ctx)
		if err != nil {
			return err
		}
		b = b.Whole()
		lo := off / arena.BlockSize * arena.BlockSize
		hi := min(lo+int64(b.Cap()), r.end(stop))
		if err := r.fill(ctx, b.Bytes()[:hi-lo], lo); err != nil {
			b.Release()
			return err
		}
		next := min(hi, stop)
		if err := r.deliver(ctx, off-r.rng.Off, b.Slice(int(off-lo), int(next-lo))); err != nil {
			return err
		}
		off = next
	}
	return nil
}

func (r *reading) alloc(ctx context.Context) (arena.Buffer, error) {
	if err := r.call.enter(); err != nil {
		return arena.Buffer{}, err
	}
	defer r.call.leave()
	if err := context.Cause(ctx); err != nil {
		return arena.Buffer{}, err
	}
	return r.dst.Alloc(ctx)
}

func (r *reading) deliver(ctx context.Context, off int64, b arena.Buffer) error {
	if err := r.call.enter(); err != nil {
		b.Release()
		return err
	}
	defer r.call.leave()
	return r.dst.Deliver(ctx, off, b)
}

// fill reads and verifies whole blocks into memory of this process.
func (r *reading) fill(ctx context.Context, p []byte, off int64) error {
	return r.spread(ctx, chunk.Range{Off: off, Len: int64(len(p))}, func(at chunk.Range) error {
		piece := p[at.Off-off : at.Off-off+at.Len]
		if _, err := r.at.ReadAt(piece, at.Off); err != nil {
			r.engine.counters.deviceErrors.Add(1)
			return fmt.Errorf("chunk %v: read drive %v: %w", r.ref.ID, r.engine.drive.ID(), translate(ctx, err))
		}
		return r.check(piece, at.Off)
	})
}

// mapped reads the range into mapped client memory.
func (r *reading) mapped(ctx context.Context, m arena.Mapper) error {
	lo, hi := r.rng.Off, r.rng.Off+r.rng.Len
	inner := chunk.Range{Off: (lo + arena.BlockSize - 1) / arena.BlockSize * arena.BlockSize}
	if r.end(hi) != hi {
		inner.Len = hi/arena.BlockSize*arena.BlockSize - inner.Off
	} else {
		inner.Len = hi - inner.Off
	}
	if inner.Len <= 0 { // inside one block, or two in part
		return r.buffered(ctx, r.rng)
	}
	bad, err := r.direct(ctx, m, inner)
	if err != nil {
		return err
	}
	for _, part := range bad {
		if err := r.buffered(ctx, part); err != nil {
			return err
		}
		r.engine.counters.interference.Add(1)
	}
	if err := r.buffered(ctx, chunk.Range{Off: lo, Len: inner.Off - lo}); err != nil {
		return err
	}
	after := inner.Off + inner.Len
	return r.buffered(ctx, chunk.Range{Off: after, Len: hi - after})
}

// direct reads whole blocks straight into client memory and returns the pieces that did not verify there.
func (r *reading) direct(ctx context.Context, m arena.Mapper, inner chunk.Range) ([]chunk.Range, error) {
	var mu sync.Mutex
	var bad []chunk.Range
	err := r.spread(ctx, inner, func(at chunk.Range) error {
		verified, err := r.one(m, at)
		if !verified && err == nil {
			mu.Lock()
			defer mu.Unlock()
			bad = append(bad, at)
		}
		return err
	})
	slices.SortFunc(bad, func(a, b chunk.Range) int { return cmp.Compare(a.Off, b.Off) })
	return bad, err
}

// one reads one piece into client memory. An error ends the whole read; false asks for a second one
// through the arena, since neither a failed read (the kernel may have faulted) nor a wrong sum (the
// client may be writing) says here whose fault it is.
func (r *reading) one(m arena.Mapper, at chunk.Range) (verified bool, err error) {
	if err := r.call.enter(); err != nil {
		return false, err
	}
	memory, err := m.Map(at.Off-r.rng.Off, int(at.Len))
	r.call.leave()
	if err != nil {
		return false, err
	}
	if _, err := r.at.ReadAt(memory, at.Off); err == nil && !r.call.gone() {
		var wrong error
		fault := arena.Guard(func() { wrong = r.check(memory, at.Off) })
		verified = fault == nil && wrong == nil
	}
	m.Unmap(at.Off-r.rng.Off, int(at.Len), arena.Verdict{Verified: verified, CRC64NVME: r.sum(at)})
	return verified, nil
}

// sum is the checksum of whole blocks, from the sums beside the payload.
func (r *reading) sum(at chunk.Range) uint64 {
	first := at.Off/arena.BlockSize - r.first
	count := (at.Len + arena.BlockSize - 1) / arena.BlockSize
	return checksum.CombineBlocks(r.blocks[first:first+count], arena.BlockSize, at.Len)
}

// spread calls piece for each pieceBytes of whole, in several goroutines when that helps, and returns the
// first error. No call starts after an error or the end of ctx.
func (r *reading) spread(ctx context.Context, whole chunk.Range, piece func(at chunk.Range) error) error {
	s := spreading{ctx: ctx, whole: whole, piece: piece}
	s.next.Store(whole.Off)
	if whole.Len > pieceBytes {
		// As many as there are cores without a read of their own.
		s.help(r.engine.cores/max(r.engine.reads.Load(), 1) - 1)
	}
	s.work()
	s.wg.Wait()
	return s.err
}

type spreading struct {
	ctx   context.Context
	whole chunk.Range
	piece func(at chunk.Range) error
	next  atomic.Int64 // first byte that no goroutine has taken
	wg    sync.WaitGroup

	mu    sync.Mutex
	extra int64 // goroutines beside the first one, guarded by mu
	err   error // guarded by mu
}

// help starts up to n goroutines more, within readDepth and the pieces that are left.
func (s *spreading) help(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := (s.whole.Off + s.whole.Len - s.next.Load()) / pieceBytes
	for range min(n, readDepth-1-s.extra, left) {
		s.extra++
		s.wg.Go(s.work)
	}
}

func (s *spreading) work() {
	stop := s.whole.Off + s.whole.Len
	for slow := 0; ; {
		off := s.next.Add(pieceBytes) - pieceBytes
		if off >= stop {
			return
		}
		if err := context.Cause(s.ctx); err != nil {
			s.fail(err)
			return
		}
		started := time.Now()
		if err := s.piece(chunk.Range{Off: off, Len: min(pieceBytes, stop-off)}); err != nil {
			s.fail(err)
			return
		}
		// One slow piece may be the scheduler's doing; two in a row are the device's.
		if slow++; time.Since(started) < slowPiece {
			slow = 0
		}
		if slow == 2 {
			s.help(1)
			slow = 0
		}
	}
}

func (s *spreading) fail(err error) {
	s.next.Store(s.whole.Off + s.whole.Len)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}
