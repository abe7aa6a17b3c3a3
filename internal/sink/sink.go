// Package sink binds the arena's Sink and Source contracts to HTTP and to fabrics.
//
// Called by: gateway, which makes one sink or source per request, hands it to the store, calls Done (or
// Close of a RemoteSource) and then closes the fabric.Remote and the reservation.
//
//	HTTP          arena buffers → io.Writer, in order
//	Remote        arena buffers → fabric.Remote.Write, several at a time
//	Mapped        a mapped fabric.Remote: the engine reads into client memory; edges are copied
//	Body          io.Reader (decoded and hashed by the gateway) → arena buffers
//	RemoteSource  fabric.Remote.Read → arena buffers, with look-ahead
//
// Copies of payload bytes made here: HTTP one (the socket's), Remote one (the fabric's), Mapped none but
// the edge blocks, Body one (from the socket), RemoteSource one (the fabric's).
//
// Invariants:
//  1. One buffer is enough: nothing waits for a second one while an operation that would release
//     the first is not under way.
//  2. A buffer is released exactly once, also after errors, and only when its operation has ended.
//  3. The first error of a delivery is final. Done never returns nil unless exactly size bytes moved.
//  4. Each byte of a source's origin is read exactly once.
//  5. After Done of an HTTP sink the writer is not used. Operations of Remote and Mapped that hang
//     in client memory may outlive a Done that returned an error, until fabric.Remote.Close.
//
// Lock order: the mutexes here are leaves.
//
// What it does not do: verification, deadlines of sockets (the gateway's), choice of the path.
package sink

import (
	"errors"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
)

var (
	// ErrShort says that a payload ended before its size: an answer that lacks bytes, or a body or
	// window that gave fewer than announced.
	ErrShort = errors.New("sink: payload is shorter than its size")
	// ErrLong says that a body carries more than its size.
	ErrLong = errors.New("sink: payload is longer than its size")
)

// Sink is an arena.Sink that counts.
type Sink interface {
	arena.Sink
	// Bytes is the number of payload bytes that have arrived at the destination so far.
	Bytes() int64
}

// ForRemote returns the sink for a window that is to receive size bytes: a Mapped one where the
// window is mapped into this process.
func ForRemote(r fabric.Remote, from *arena.Reservation, size int64) Sink {
	if m, ok := r.(fabric.Mapper); ok {
		return NewMapped(m, from, size)
	}
	return NewRemote(r, from, size)
}
