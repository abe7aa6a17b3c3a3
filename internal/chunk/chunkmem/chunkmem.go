// Package chunkmem is a chunk engine that keeps everything in memory.
//
// Called by: unit tests of the packages above chunk. It passes chunktest like every engine, so a
// test that holds on it holds for the contract; it is not an engine that a node can run.
//
// Invariants:
//  1. A stored payload is never changed in place, so a reader needs no lock while it copies.
//  2. A deleted chunk stays readable while it is pinned, and cannot be pinned again.
//
// Lock order: Engine.mu is a leaf.
//
// What it does not do: durability, limits, overlap of reads and deliveries.
package chunkmem

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/chunk"
)

var (
	_ chunk.Engine = (*Engine)(nil)
	_ chunk.Pinner = (*Engine)(nil)
	_ chunk.Walker = (*Engine)(nil)
)

// Engine stores chunks in memory. It is safe for concurrent use.
type Engine struct {
	mu     sync.Mutex
	stored map[chunk.ID]*stored
}

type stored struct {
	ref     chunk.Ref
	owner   chunk.Owner
	payload []byte   // replaced, never changed
	blocks  []uint64 // CRC64NVME per arena.BlockSize
	pins    int
	deleted bool
}

// New returns an empty engine.
func New() *Engine { return &Engine{stored: make(map[chunk.ID]*stored)} }

// Write implements chunk.Engine.
func (e *Engine) Write(ctx context.Context, o chunk.Owner, s chunk.Scheme, src arena.Source) (chunk.Ref, error) {
	if n := src.Size(); n <= 0 || n > chunk.MaxBytes {
		return chunk.Ref{}, fmt.Errorf("chunk: size %d: %w", n, chunk.ErrSize)
	}
	payload := make([]byte, 0, src.Size())
	for {
		if err := context.Cause(ctx); err != nil {
			return chunk.Ref{}, err
		}
		b, err := src.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return chunk.Ref{}, err
		}
		payload = append(payload, b.Bytes()...)
		b.Release()
	}
	if int64(len(payload)) != src.Size() {
		return chunk.Ref{}, fmt.Errorf("chunk: source gave %d of %d bytes: %w", len(payload), src.Size(), chunk.ErrSize)
	}
	if err := context.Cause(ctx); err != nil {
		return chunk.Ref{}, err
	}
	c := &stored{owner: o, payload: payload}
	for off := 0; off < len(payload); off += arena.BlockSize {
		c.blocks = append(c.blocks, checksum.Sum(payload[off:min(off+arena.BlockSize, len(payload))]))
	}
	c.ref = chunk.Ref{Scheme: s, Length: int64(len(payload)), CRC64NVME: checksum.Sum(payload)}
	_, _ = rand.Read(c.ref.ID[:]) // never fails (crypto/rand)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stored[c.ref.ID] = c
	return c.ref, nil
}

// Read implements chunk.Engine.
func (e *Engine) Read(ctx context.Context, ref chunk.Ref, r chunk.Range, dst arena.Sink) error {
	payload, blocks, err := e.look(ref)
	if err != nil {
		return err
	}
	if err := r.Check(ref.Length); err != nil {
		return err
	}
	for off := r.Off; off < r.Off+r.Len; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := min(arena.BlockSize-off%arena.BlockSize, r.Off+r.Len-off)
		if err := verify(payload, blocks, off/arena.BlockSize); err != nil {
			return fmt.Errorf("chunk %v: %w", ref.ID, err)
		}
		if err := move(ctx, payload[off:off+n], off-r.Off, dst); err != nil {
			return err
		}
		off += n
	}
	return nil
}

// move brings verified bytes to position off of the sink: straight into mapped memory where there
// is some, and through an arena buffer when that faults or does not hold what was written.
func move(ctx context.Context, p []byte, off int64, dst arena.Sink) error {
	if m, ok := dst.(arena.Mapper); ok {
		memory, err := m.Map(off, len(p))
		if err != nil {
			return err
		}
		same := false
		fault := arena.Guard(func() {
			copy(memory, p)
			same = bytes.Equal(memory, p)
		})
		m.Unmap(off, len(p), arena.Verdict{Verified: fault == nil && same, CRC64NVME: checksum.Sum(p)})
		if fault == nil && same {
			return nil
		}
	}
	return arena.DeliverBytes(ctx, dst, off, p)
}

func (e *Engine) look(ref chunk.Ref) (payload []byte, blocks []uint64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, ok := e.stored[ref.ID]
	if !ok {
		return nil, nil, fmt.Errorf("chunk %v: %w", ref.ID, chunk.ErrNotFound)
	}
	if c.ref != ref {
		return nil, nil, fmt.Errorf("chunk %v: reference does not fit what is stored: %w", ref.ID, chunk.ErrCorrupt)
	}
	return c.payload, c.blocks, nil
}

func verify(payload []byte, blocks []uint64, block int64) error {
	off := block * arena.BlockSize
	if checksum.Sum(payload[off:min(off+arena.BlockSize, int64(len(payload)))]) != blocks[block] {
		return fmt.Errorf("block %d: %w", block, chunk.ErrCorrupt)
	}
	return nil
}

// Delete implements chunk.Engine.
func (e *Engine) Delete(_ context.Context, ref chunk.Ref) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, ok := e.stored[ref.ID]
	if !ok {
		return nil
	}
	c.deleted = true
	if c.pins == 0 {
		delete(e.stored, ref.ID)
	}
	return nil
}

// Verify implements chunk.Engine.
func (e *Engine) Verify(ctx context.Context, ref chunk.Ref) (chunk.Health, error) {
	payload, blocks, err := e.look(ref)
	if errors.Is(err, chunk.ErrCorrupt) {
		return chunk.Health{Shards: 1}, nil
	}
	if err != nil {
		return chunk.Health{}, err
	}
	for i := range blocks {
		if err := context.Cause(ctx); err != nil {
			return chunk.Health{}, err
		}
		if verify(payload, blocks, int64(i)) != nil {
			return chunk.Health{Shards: 1}, nil
		}
	}
	return chunk.Health{Shards: 1, Readable: 1}, nil
}

// Pin implements chunk.Pinner.
func (e *Engine) Pin(_ context.Context, refs ...chunk.Ref) (unpin func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pinned := make([]*stored, 0, len(refs))
	for _, ref := range refs {
		c, ok := e.stored[ref.ID]
		if !ok || c.deleted {
			return nil, fmt.Errorf("chunk %v: %w", ref.ID, chunk.ErrNotFound)
		}
		pinned = append(pinned, c)
	}
	for _, c := range pinned {
		c.pins++
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, c := range pinned {
			c.pins--
			if c.pins == 0 && c.deleted {
				delete(e.stored, c.ref.ID)
			}
		}
	}, nil
}

// Walk implements chunk.Walker.
func (e *Engine) Walk(ctx context.Context, fn func(chunk.Ref, chunk.Owner) error) error {
	e.mu.Lock()
	var all []*stored
	for _, c := range e.stored {
		if !c.deleted {
			all = append(all, c)
		}
	}
	e.mu.Unlock()
	for _, c := range all {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := fn(c.ref, c.owner); err != nil {
			return err
		}
	}
	return nil
}

// Len is the number of chunks that are stored and not deleted.
func (e *Engine) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, c := range e.stored {
		if !c.deleted {
			n++
		}
	}
	return n
}

// Corrupt flips a bit of the stored byte at off, as a bad drive would.
func (e *Engine) Corrupt(id chunk.ID, off int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.stored[id]
	c.payload = bytes.Clone(c.payload)
	c.payload[off] ^= 1
}
