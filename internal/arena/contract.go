package arena

import (
	"context"
	"errors"
)

// ErrBusy says that no buffer came free within the bounded wait. The request is declined with
// reason arena-busy or answered 503 SlowDown; nothing is wrong with the data.
var ErrBusy = errors.New("arena: no buffer free within the wait limit")

// ErrMapped says that mapped client memory could not be written: it faulted, or is gone. It is the
// client's doing, and no drive is to blame.
var ErrMapped = errors.New("arena: mapped client memory faulted")

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
// may read directly. The memory is client memory: it may change, or fault (SIGBUS, EFAULT), at any
// time; passes over it run under debug.SetPanicOnFault and bytes that fail verification there are
// re-read into the arena, and delivered from there, before a drive is blamed.
//
// Both methods may be called by several goroutines at once, for disjoint ranges.
type Mapper interface {
	// Map returns the n bytes at position off of the answer. Every Map that succeeded is balanced by
	// exactly one Unmap of the same range.
	Map(off int64, n int) ([]byte, error)

	// Unmap says that no operation on the range is under way any more and none will follow. If the
	// verdict is that the range holds verified bytes, it carries their sum; otherwise its bytes
	// count as not delivered (yet). It may come after the engine's Read has returned, when a device
	// read hung: until then the memory must stay mapped, or be replaced by other memory at the same
	// address.
	Unmap(off int64, n int, v Verdict)
}

// Verdict is what an engine says of a range of mapped memory. The sum is of the stored bytes that the
// range was compared with: client memory is not read again for it.
type Verdict struct {
	Verified  bool
	CRC64NVME uint64 // meaningful only when Verified
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
