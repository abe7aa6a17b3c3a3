package local

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"sync"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/drive"
)

// Write implements chunk.Engine.
func (e *Engine) Write(ctx context.Context, o chunk.Owner, s chunk.Scheme, src arena.Source) (chunk.Ref, error) {
	if s.Data > 1 || s.Parity > 0 {
		return chunk.Ref{}, fmt.Errorf("chunk: scheme %d+%d on one drive: %w", s.Data, s.Parity, chunk.ErrUnavailable)
	}
	size := src.Size()
	if size <= 0 || size > chunk.MaxBytes {
		return chunk.Ref{}, fmt.Errorf("chunk: source of %d bytes: %w", size, chunk.ErrSize)
	}
	record := drive.Record{
		Data: s.Data, Parity: s.Parity, Owner: o.ID, Epoch: o.Epoch, Length: size, ChunkLength: size,
	}
	_, _ = rand.Read(record.Chunk[:]) // never fails (crypto/rand)
	var ref chunk.Ref
	err := e.run(ctx, "write", func(c *call) error {
		sums, err := e.store(ctx, c, record, src)
		if err != nil {
			return err
		}
		record.ChunkCRC = sums.Chunk
		if !c.decide() {
			// The caller was told that nothing is stored. An error leaves an orphan.
			_ = e.drive.Delete(record.Key)
			return errGivenUp
		}
		ref = refOf(record)
		return nil
	})
	if err != nil {
		return chunk.Ref{}, err
	}
	return ref, nil
}

// store writes the record and makes it durable.
func (e *Engine) store(ctx context.Context, c *call, r drive.Record, src arena.Source) (drive.Sums, error) {
	w, err := e.drive.Append(ctx, r)
	if err != nil {
		return drive.Sums{}, fmt.Errorf("chunk: append to drive %v: %w", e.drive.ID(), translate(ctx, err))
	}
	defer w.Abort()
	job := &writing{
		engine: e, call: c, record: w, src: src, size: r.Length,
		blocks: make([]uint64, 0, (r.Length+arena.BlockSize-1)/arena.BlockSize),
		slots:  make(chan struct{}, writeDepth),
	}
	err = job.writeAll(ctx)
	job.wg.Wait() // also after an error: the device reads the buffers until then
	if err == nil {
		err = job.failed()
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return drive.Sums{}, err
	}
	sums := drive.Sums{
		Blocks: job.blocks,
		Chunk:  checksum.CombineBlocks(job.blocks, arena.BlockSize, r.Length),
	}
	if err := w.Commit(ctx, sums); err != nil {
		return drive.Sums{}, fmt.Errorf("chunk: commit to drive %v: %w", e.drive.ID(), translate(ctx, err))
	}
	return sums, nil
}

// writing is one chunk on its way to the device.
type writing struct {
	engine *Engine
	call   *call
	record *drive.Writer
	src    arena.Source
	size   int64
	blocks []uint64      // sums of the blocks so far
	slots  chan struct{} // one token per write that is with the device
	wg     sync.WaitGroup

	mu  sync.Mutex
	err error // first error of the device, guarded by mu
}

// writeAll brings the source to its io.EOF and starts the writes.
func (w *writing) writeAll(ctx context.Context) error {
	for off := int64(0); ; {
		if err := w.failed(); err != nil {
			return err
		}
		b, err := w.next(ctx)
		if err == io.EOF {
			if off != w.size {
				return fmt.Errorf("chunk: source gave %d of %d bytes: %w", off, w.size, chunk.ErrSize)
			}
			return nil
		}
		if err != nil {
			return err
		}
		n := int64(b.Len())
		if n == 0 || n > w.size-off || n%arena.BlockSize != 0 && off+n != w.size {
			b.Release()
			return fmt.Errorf("chunk: source gave %d bytes at %d of %d: %w", n, off, w.size, chunk.ErrSize)
		}
		for p := b.Bytes(); len(p) > 0; p = p[min(arena.BlockSize, len(p)):] {
			w.blocks = append(w.blocks, checksum.Sum(p[:min(arena.BlockSize, len(p))]))
		}
		if n == w.size { // the only buffer: nothing to overlap with
			w.write(ctx, b, off)
		} else if err := w.writeBehind(ctx, b, off); err != nil {
			return err
		}
		off += n
	}
}

func (w *writing) next(ctx context.Context) (arena.Buffer, error) {
	if err := w.call.enter(); err != nil {
		return arena.Buffer{}, err
	}
	defer w.call.leave()
	return w.src.Next(ctx)
}

func (w *writing) writeBehind(ctx context.Context, b arena.Buffer, off int64) error {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		b.Release()
		return context.Cause(ctx)
	}
	w.wg.Go(func() {
		defer func() { <-w.slots }()
		w.write(ctx, b, off)
	})
	return nil
}

func (w *writing) write(ctx context.Context, b arena.Buffer, off int64) {
	defer b.Release()
	if _, err := w.record.WriteAt(b.Bytes(), off); err != nil {
		w.engine.counters.deviceErrors.Add(1)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err == nil {
			w.err = fmt.Errorf("chunk: write to drive %v: %w", w.engine.drive.ID(), translate(ctx, err))
		}
	}
}

func (w *writing) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
