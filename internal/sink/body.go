package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/penstock-store/penstock/internal/arena"
)

var _ arena.Source = (*Body)(nil)

// Body is the payload of an HTTP request: the reader has already taken off the aws-chunked framing
// and sums what passes.
type Body struct {
	r    io.Reader
	from arena.Allocator
	size int64
	left int64
	err  error // final
	read atomic.Int64
}

// NewBody returns a source of exactly size bytes of r. The io.EOF comes only after r's own, so a
// reader that checks a trailer or a signature at its end can still fail the payload. A client
// that does not send is the gateway's to bound: r's Read must end with an error at a read deadline.
func NewBody(r io.Reader, from arena.Allocator, size int64) *Body {
	return &Body{r: r, from: from, size: size, left: size}
}

// Size implements arena.Source.
func (s *Body) Size() int64 { return s.size }

// Next implements arena.Source. Errors: ErrShort, ErrLong, the reader's, ctx's.
func (s *Body) Next(ctx context.Context) (arena.Buffer, error) {
	if s.err != nil {
		return arena.Buffer{}, s.err
	}
	b, err := s.fill(ctx)
	if err != nil {
		s.err = err
	}
	return b, err
}

func (s *Body) fill(ctx context.Context) (arena.Buffer, error) {
	if err := context.Cause(ctx); err != nil {
		return arena.Buffer{}, err
	}
	if s.left == 0 {
		return arena.Buffer{}, s.end()
	}
	b, err := s.from.Alloc(ctx)
	if err != nil {
		return arena.Buffer{}, err
	}
	b = b.Slice(0, int(min(int64(b.Cap()), s.left)))
	n, err := io.ReadFull(s.r, b.Bytes())
	s.read.Add(int64(n))
	s.left -= int64(n)
	if err == nil {
		return b, nil
	}
	b.Release()
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return arena.Buffer{}, fmt.Errorf("%d of %d bytes came: %w: %w", s.size-s.left, s.size, ErrShort, err)
	}
	return arena.Buffer{}, fmt.Errorf("sink: read payload: %w", err)
}

// end checks that the reader ends where it should.
func (s *Body) end() error {
	var probe [1]byte
	switch _, err := io.ReadFull(s.r, probe[:]); {
	case err == nil:
		return fmt.Errorf("more than %d bytes came: %w", s.size, ErrLong)
	case err == io.EOF:
		return io.EOF
	default:
		return fmt.Errorf("sink: read payload: %w", err)
	}
}

// Bytes is the number of payload bytes read so far.
func (s *Body) Bytes() int64 { return s.read.Load() }
