package arena

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// errPipeClosed is what a side sees after the other one closed the pipe without an error.
var errPipeClosed = errors.New("arena: pipe is closed")

// pipeDepth bounds the buffers between the two sides. A reservation (fabric transfers have 4 buffers)
// is the tighter bound; this one keeps a pipe on a whole share from taking all of it.
const pipeDepth = 4

// Pipe is a Sink whose bytes come out of it as a Source, for copies inside the server: one goroutine
// reads chunks into it while another one writes chunks from it. One buffer is enough.
//
// Full buffers pass without a copy. Where the writing side delivers short ones in the middle (chunks
// whose length is no multiple of the buffer), the bytes are shifted into full buffers, since a
// Source yields only full ones; that costs up to three copies and two buffers of heap per pipe.
//
// The writing goroutine calls Alloc and Deliver, and then Done; the reading one calls Next. A side
// that ends with an error calls Close with it, so that the other one ends too. When both have ended
// the owner calls Close, which releases what was not read.
type Pipe struct {
	from   Allocator
	size   int64
	queue  chan Buffer
	ctx    context.Context // ends with Close; not a request's
	cancel context.CancelCauseFunc
	done   sync.Once

	// Of the writing side.
	next         int64  // position that comes next
	carry, spare []byte // heap; equal size
	carried      int    // bytes in carry; they come before those of the next delivery
}

var (
	_ Sink   = (*Pipe)(nil)
	_ Source = (*Pipe)(nil)
)

// NewPipe makes a pipe for exactly size bytes with buffers of from.
func NewPipe(from Allocator, size int64) *Pipe {
	p := &Pipe{from: from, size: size, queue: make(chan Buffer, pipeDepth)}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// Alloc implements Sink. It ends when the pipe is closed.
func (p *Pipe) Alloc(ctx context.Context) (Buffer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })
	defer stop()
	return p.from.Alloc(ctx)
}

// Deliver implements Sink. Errors: ctx's error, or the reading side's.
func (p *Pipe) Deliver(ctx context.Context, off int64, b Buffer) error {
	n := int64(b.Len())
	if off != p.next || n > p.size-off {
		b.Release()
		return fmt.Errorf("arena: pipe of %d bytes: [%d, +%d) delivered, want position %d", p.size, off, n, p.next)
	}
	p.next += n
	last := p.next == p.size
	b = p.join(b)
	if b.Len() < b.Cap() && !last {
		p.keep(b)
		return nil
	}
	if err := p.send(ctx, b); err != nil {
		return err
	}
	if !last || p.carried == 0 {
		return nil
	}
	b, err := p.Alloc(ctx)
	if err != nil {
		return err
	}
	return p.send(ctx, b.Slice(0, copy(b.Bytes(), p.carry[:p.carried])))
}

// join puts the carried bytes in front of b's. What does not fit is carried on.
func (p *Pipe) join(b Buffer) Buffer {
	if p.carried == 0 {
		return b
	}
	whole, view := b.Whole().Bytes(), b.Bytes()
	fit := min(len(view), len(whole)-p.carried)
	over := copy(p.spare, view[fit:])
	copy(whole[p.carried:], view[:fit])
	copy(whole, p.carry[:p.carried])
	b = b.Whole().Slice(0, p.carried+fit)
	p.carry, p.spare, p.carried = p.spare, p.carry, over
	return b
}

// keep carries all of b, which is shorter than a buffer.
func (p *Pipe) keep(b Buffer) {
	if len(p.carry) < b.Cap() {
		p.carry, p.spare = make([]byte, b.Cap()), make([]byte, b.Cap())
	}
	p.carried = copy(p.carry, b.Bytes())
	b.Release()
}

func (p *Pipe) send(ctx context.Context, b Buffer) error {
	select {
	case p.queue <- b:
		return nil
	case <-ctx.Done():
		b.Release()
		return context.Cause(ctx)
	case <-p.ctx.Done():
		b.Release()
		return context.Cause(p.ctx)
	}
}

// Done implements Sink: the reading side gets io.EOF after the last byte, or an error when bytes are
// missing. It does not wait for the reading side.
func (p *Pipe) Done(context.Context) error {
	if p.next != p.size {
		err := fmt.Errorf("arena: pipe got %d of %d bytes: %w", p.next, p.size, io.ErrUnexpectedEOF)
		p.cancel(err)
		return err
	}
	p.done.Do(func() { close(p.queue) })
	return nil
}

// Size implements Source.
func (p *Pipe) Size() int64 { return p.size }

// Next implements Source. Errors: ctx's error, or the writing side's.
func (p *Pipe) Next(ctx context.Context) (Buffer, error) {
	select {
	case b, ok := <-p.queue:
		if !ok {
			return Buffer{}, io.EOF
		}
		return b, nil
	case <-ctx.Done():
		return Buffer{}, context.Cause(ctx)
	case <-p.ctx.Done():
		return Buffer{}, context.Cause(p.ctx)
	}
}

// Close ends both sides with err (the first one counts; nil stands for a plain end) and releases what
// lies in the pipe. It may be called several times, by every goroutine.
func (p *Pipe) Close(err error) {
	if err == nil {
		err = errPipeClosed
	}
	p.cancel(err)
	for {
		select {
		case b, ok := <-p.queue:
			if !ok {
				return
			}
			b.Release()
		default:
			return
		}
	}
}
