package arena

import (
	"context"
	"io"
)

// Allocator gives out buffers: a Share or a Reservation.
type Allocator interface {
	Alloc(ctx context.Context) (Buffer, error)
}

// BytesSource is a Source over bytes in memory.
type BytesSource struct {
	from Allocator
	size int64
	left []byte
}

var _ Source = (*BytesSource)(nil)

// NewBytesSource yields p in buffers of from. p must not change until io.EOF.
func NewBytesSource(from Allocator, p []byte) *BytesSource {
	return &BytesSource{from: from, size: int64(len(p)), left: p}
}

// Size implements Source.
func (s *BytesSource) Size() int64 { return s.size }

// Next implements Source.
func (s *BytesSource) Next(ctx context.Context) (Buffer, error) {
	if len(s.left) == 0 {
		return Buffer{}, io.EOF
	}
	b, err := s.from.Alloc(ctx)
	if err != nil {
		return Buffer{}, err
	}
	n := copy(b.Bytes(), s.left)
	s.left = s.left[n:]
	return b.Slice(0, n), nil
}

// DeliverBytes moves verified bytes in memory to position off of the answer, through buffers of dst.
func DeliverBytes(ctx context.Context, dst Sink, off int64, p []byte) error {
	for len(p) > 0 {
		b, err := dst.Alloc(ctx)
		if err != nil {
			return err
		}
		n := copy(b.Bytes(), p)
		if err := dst.Deliver(ctx, off, b.Slice(0, n)); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}
