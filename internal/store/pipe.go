package store

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/penstock-store/penstock/internal/arena"
)

// pipeBuffers is how many buffers each end of a pipe asks for: one is filled while one is written.
const pipeBuffers = 2

// pipe is a Sink whose bytes come out of a Source, for copies on the server. A Source's buffers are
// full but for the last, what a Sink is given need not be (it ends at chunks and parts), so bytes are
// moved to a buffer of the second reservation where they do not line up. The two ends do not share
// buffers: neither can hold the one that the other waits for.
type pipe struct {
	size    int64
	hash    io.Writer // sees every byte in order; may be nil
	in, out *arena.Reservation

	full chan arena.Buffer
	stop chan struct{} // closed when the reading end is done with

	at      int64        // bytes delivered
	partial arena.Buffer // the view holds what is filled so far

	once sync.Once
	err  error // of the writing end, set before full is closed
}

var (
	_ arena.Sink   = (*pipe)(nil)
	_ arena.Source = (*pipe)(nil)
)

// newPipe takes its buffers before anything moves. arena.ErrBusy when there are none in time.
func newPipe(ctx context.Context, share *arena.Share, size int64, hash io.Writer) (*pipe, error) {
	if share == nil {
		return nil, fmt.Errorf("copy without buffers: %w", ErrUnavailable)
	}
	in, err := share.Reserve(ctx, pipeBuffers)
	if err != nil {
		return nil, err
	}
	out, err := share.Reserve(ctx, pipeBuffers)
	if err != nil {
		in.Close()
		return nil, err
	}
	return &pipe{
		size: size, hash: hash, in: in, out: out,
		full: make(chan arena.Buffer), stop: make(chan struct{}),
	}, nil
}

// Alloc implements arena.Sink.
func (p *pipe) Alloc(ctx context.Context) (arena.Buffer, error) { return p.in.Alloc(ctx) }

// Deliver implements arena.Sink.
func (p *pipe) Deliver(ctx context.Context, off int64, b arena.Buffer) error {
	if off != p.at || int64(b.Len()) > p.size-p.at {
		b.Release()
		return fmt.Errorf("store: pipe got [%d, +%d) at %d of %d", off, b.Len(), p.at, p.size)
	}
	if p.hash != nil {
		if _, err := p.hash.Write(b.Bytes()); err != nil {
			b.Release()
			return fmt.Errorf("store: hash: %w", err)
		}
	}
	p.at += int64(b.Len())
	if p.partial.IsZero() && (b.Len() == b.Cap() || p.at == p.size) {
		return p.send(ctx, b)
	}
	err := p.repack(ctx, b.Bytes())
	b.Release()
	return err
}

func (p *pipe) repack(ctx context.Context, rest []byte) error {
	for len(rest) > 0 {
		if p.partial.IsZero() {
			b, err := p.out.Alloc(ctx)
			if err != nil {
				return err
			}
			p.partial = b.Slice(0, 0)
		}
		filled := p.partial.Len()
		n := copy(p.partial.Whole().Bytes()[filled:], rest)
		rest = rest[n:]
		p.partial = p.partial.Whole().Slice(0, filled+n)
		if p.partial.Len() == p.partial.Cap() || (len(rest) == 0 && p.at == p.size) {
			b := p.partial
			p.partial = arena.Buffer{}
			if err := p.send(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pipe) send(ctx context.Context, b arena.Buffer) error {
	select {
	case p.full <- b:
		return nil
	case <-p.stop:
		b.Release()
		return fmt.Errorf("store: copy was given up: %w", io.ErrClosedPipe)
	case <-ctx.Done():
		b.Release()
		return context.Cause(ctx)
	}
}

// Done implements arena.Sink; finish does the work.
func (p *pipe) Done(context.Context) error { return nil }

// finish ends the writing end; err is nil after the last byte.
func (p *pipe) finish(err error) {
	if err == nil && p.at != p.size {
		err = fmt.Errorf("store: pipe ends at %d of %d: %w", p.at, p.size, io.ErrUnexpectedEOF)
	}
	p.err = err
	p.partial.Release()
	close(p.full)
}

// Size implements arena.Source.
func (p *pipe) Size() int64 { return p.size }

// Next implements arena.Source.
func (p *pipe) Next(ctx context.Context) (arena.Buffer, error) {
	select {
	case b, ok := <-p.full:
		switch {
		case ok:
			return b, nil
		case p.err != nil:
			return arena.Buffer{}, p.err
		}
		return arena.Buffer{}, io.EOF
	case <-ctx.Done():
		return arena.Buffer{}, context.Cause(ctx)
	}
}

// giveUp ends the reading end; the writing end fails at its next delivery.
func (p *pipe) giveUp() { p.once.Do(func() { close(p.stop) }) }

// close gives the buffers back, after both ends have ended.
func (p *pipe) close() {
	p.in.Close()
	p.out.Close()
}
