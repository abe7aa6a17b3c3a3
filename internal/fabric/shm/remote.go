package shm

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
)

// remote is an open window.
type remote struct {
	window  *fabric.Window
	mapping *mapping
	faults  *atomic.Int64
}

var (
	_ fabric.Remote = (*remote)(nil)
	_ fabric.Mapper = (*remote)(nil)
)

// Size is the part of the window that the request may touch.
func (r *remote) Size() int64 { return r.window.Size() }

// Write copies src into client memory.
func (r *remote) Write(ctx context.Context, off int64, src ...arena.Buffer) error {
	if err := r.window.Check(fabric.ForGet, off, total(src)); err != nil {
		return err
	}
	for _, b := range src {
		if err := r.move(ctx, off, b, true); err != nil {
			return err
		}
		off += int64(b.Len())
	}
	return nil
}

// Read copies client memory into dst; each byte of client memory is read once.
func (r *remote) Read(ctx context.Context, off int64, dst ...arena.Buffer) error {
	if err := r.window.Check(fabric.ForPut, off, total(dst)); err != nil {
		return err
	}
	for _, b := range dst {
		if err := r.move(ctx, off, b, false); err != nil {
			return err
		}
		off += int64(b.Len())
	}
	return nil
}

func total(buffers []arena.Buffer) (n int64) {
	for _, b := range buffers {
		n += int64(b.Len())
	}
	return n
}

func (r *remote) move(ctx context.Context, off int64, b arena.Buffer, toClient bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	view, err := r.enter(off, int64(b.Len()))
	if err != nil {
		return err
	}
	dst, src := b.Bytes(), view
	if toClient {
		dst, src = src, dst
	}
	err = arena.Guard(func() { copy(dst, src) })
	if err != nil {
		r.faults.Add(1)
		err = fmt.Errorf("%w: %w", fabric.ErrTransfer, err)
	}
	r.mapping.leave()
	return r.window.Leave(int64(b.Len()), err)
}

// enter begins an operation on [off, off+n) of the window, which was checked.
func (r *remote) enter(off, n int64) ([]byte, error) {
	if err := r.window.Enter(); err != nil {
		return nil, err
	}
	if !r.mapping.enter() {
		return nil, r.window.Leave(0, errSevered)
	}
	start := r.window.Base + off
	return r.mapping.bytes[start : start+n : start+n], nil
}

var errSevered = fmt.Errorf("%w: memory severed", fabric.ErrFenced)

// Map returns client memory; see fabric.Mapper.
func (r *remote) Map(off, n int64) ([]byte, error) {
	if err := r.window.Check(fabric.ForGet, off, n); err != nil {
		return nil, err
	}
	return r.enter(off, n)
}

// Unmap ends what Map began; see fabric.Mapper.
func (r *remote) Unmap(_, n int64) {
	r.mapping.leave()
	_ = r.window.Leave(n, nil) // an error sticks to the window and comes back from Close
}

// Close waits for operations under way and unpins.
func (r *remote) Close() error { return r.window.Close(nil) }
