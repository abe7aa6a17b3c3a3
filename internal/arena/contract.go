package arena

import (
	"context"
	"errors"
)

// ErrBusy says that no buffer came free within the bounded wait. The request is declined with
// reason arena-busy or answered 503 SlowDown; nothing is wrong with the data.
var ErrBusy = errors.New("arena: no buffer free within the wait limit")

// Sink is the destination of one answer's payload: positions 0..L of exactly the bytes asked for.
//
// One goroutine calls a Sink at a time. Positions are delivered in ascending order without gaps,
// unless the Sink is also a Mapper.
type Sink interface {
	// Alloc returns an arena buffer of this sink's reservation. It blocks while all of them are
	// in use by earlier deliveries. Errors: ctx's error, or the first error of a delivery.
	Alloc(ctx context.Context) (Buffer, error)

	// Deliver moves the verified bytes b.Bytes() to position off of the answer and takes
	// ownership of b (also when it returns an error). It may return before the bytes have moved.
	// Unverified bytes must never be passed. An error is final for the answer.
	Deliver(ctx context.Context, off int64, b Buffer) error

	// Done waits until every operation on the destination has completed and returns the first
	// error. It is called exactly once, also after errors; afterwards the destination is never
	// touched again.
	Done(ctx context.Context) error
}

// Mapper is an optional ability of a Sink: the destination is mapped memory, into which an engine
// may read directly. Map returns the n bytes at position off of the answer. The memory is client
// memory: it may change, or fault (SIGBUS), at any time; passes over it run under
// debug.SetPanicOnFault and bytes that fail verification there are re-read into the arena before
// a drive is blamed. Written reports that [off, off+n) now holds verified bytes; bytes mapped but
// not reported count as not delivered.
type Mapper interface {
	Map(off int64, n int) ([]byte, error)
	Written(off int64, n int)
}

// Source is the origin of a payload of known size.
//
// One goroutine calls a Source at a time. Each byte of the origin is read exactly once.
type Source interface {
	// Size is the number of payload bytes that Next yields in total until io.EOF.
	Size() int64

	// Next returns the next bytes in order; the caller owns the buffer and releases it. Every
	// buffer but the last is full (b.Cap() bytes). After the last byte it returns io.EOF. A
	// source that ends early or carries more than Size returns an error other than io.EOF.
	Next(ctx context.Context) (Buffer, error)
}

// SectionSink returns a view of s that starts at position base. Its Done does nothing: the owner
// of s calls s.Done. The view is a Mapper exactly when s is one.
func SectionSink(s Sink, base int64) Sink {
	if m, ok := s.(Mapper); ok {
		return mappedSection{section{s, base}, m}
	}
	return section{s, base}
}

type section struct {
	sink Sink
	base int64
}

func (s section) Alloc(ctx context.Context) (Buffer, error) { return s.sink.Alloc(ctx) }

func (s section) Deliver(ctx context.Context, off int64, b Buffer) error {
	return s.sink.Deliver(ctx, s.base+off, b)
}

func (section) Done(context.Context) error { return nil }

type mappedSection struct {
	section
	mapper Mapper
}

func (s mappedSection) Map(off int64, n int) ([]byte, error) { return s.mapper.Map(s.base+off, n) }
func (s mappedSection) Written(off int64, n int)             { s.mapper.Written(s.base+off, n) }
