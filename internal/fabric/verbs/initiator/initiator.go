// Package initiator moves arena memory into and out of the memory of peers by RDMA WRITE and READ, over one rail
// of this machine: queue pairs, posting and polling in batches, message splitting, flow control, and the proof that
// the adapter has let go of a buffer.
//
// Called by: internal/fabric/verbs and its rails.
//
// Invariants:
//  1. Move returns only when every work request of it has completed, or its queue pair was reset or destroyed: the
//     buffers may then be used for anything else. No context, deadline or error makes it return earlier. Where the
//     adapter's driver does neither, Move does not return (Stats.Stuck).
//  2. A path that failed, or was failed, posts nothing any more; Settled tells when its queue pair is reset.
//  3. A rail has a bounded number of paths, work requests and completions under way; the completion queue cannot
//     overflow: a work request has its place in it from before it is posted until its completion was taken, or its
//     queue pair was reset and the queue was seen empty after that.
//  4. Paths take turns where the rail's work requests are short, so one client cannot starve the others.
//  5. Registered memory has no remote rights, and neither has a queue pair; but for a Stage, whose memory only its own
//     queue pair reaches, until it is sealed.
//  6. A work request's number is used once on a rail. A completion that is late or comes twice is counted
//     (Stats.Unexpected) and belongs to nothing.
//  7. Nothing waits for a driver's call on another path: each queue pair changes its state in a goroutine of its own.
//  8. A Pool moves by dynamic connections what a token alone describes. What it posts, and when it resets, is decided
//     by a lane.Core; a Move of it returns only when that has let go, and a DCI serves one Move at a time.
//
// Lock order: Rail.polling, then Path.mu, then credits.mu; Rail.mu is held with none of them. Pool.polling, then
// Pool.mu; ports.mu is held with neither; runs.mu comes last. Only the two polling are held during calls of native that
// are not Close: Poll, Arm and, of a Pool, Post, which do not wait; and Stage.mu, of that stage only.
//
// What it does not do: sessions, regions of clients and their bounds, retries, choosing a rail.
package initiator

import (
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

var (
	// ErrDenied says that the peer's adapter refused the address, length or key: the client's doing. The path is lost
	// with it.
	ErrDenied = errors.New("initiator: refused by the peer's adapter")
	// ErrLost says that the path failed before the operation completed: no acknowledgement, flushed, reset, rail down.
	// What moved is not known; on another path it may be tried again.
	ErrLost = errors.New("initiator: path lost")
	// ErrLocal says that this end posted something wrong, or its adapter failed.
	ErrLocal = errors.New("initiator: local error")
	// ErrLimit says that the rail has all the paths it may have.
	ErrLimit = errors.New("initiator: no path left on this rail")
	// ErrClosed says that the rail is closed.
	ErrClosed = errors.New("initiator: rail closed")
	// ErrUnreached says that the rail's port has no address from which it reaches the peer.
	ErrUnreached = errors.New("initiator: peer is not reached from this rail")
	// ErrStuck says that a queue pair could be neither reset nor destroyed: its buffers stay out.
	ErrStuck = errors.New("initiator: queue pair not reset")
)

// Options of Open.
type Options struct {
	Library *native.Library
	Rail    rail.Rail
	Arena   []byte // registered for local use; all Local segments lie in it

	Paths int // at most; 0 means DefaultPaths
	Depth int // work requests of one path under way; 0 means DefaultDepth
	Piece int // bytes of one work request; 0 means DefaultPiece, at most what the port takes
	// Timeout is the acknowledgement timeout's exponent (4.096 µs × 2^n); 0 means 14.
	Timeout uint8
	Retries uint8 // 0 means 6

	HopLimit     uint8 // 0 means 64
	TrafficClass uint8
}

// Limits and defaults.
const (
	DefaultPaths = 4096
	DefaultDepth = 64
	DefaultPiece = 1 << 20

	// maxPaths is how many the path number in a work request's number can tell apart.
	maxPaths = 1 << 15
	// maxWork bounds the work requests under way on a rail, and so the completion queue (1 MiB of 64-byte entries).
	// With the default piece it is 16 GiB: far more than any rail has under way.
	maxWork = 16384
	// maxPiece keeps a work request's length within what adapters take.
	maxPiece = 1 << 30
	// maxReads bounds the RDMA READs of one path under way; the field on the wire is a byte.
	maxReads = 255
	// batchWork is how many work requests are posted by one call, at most: its last one is signalled, so a quarter of
	// the default depth comes free at a time. It is also what a path gets in its turn when the rail's are short.
	batchWork = 16
	// pollBatch is how many completions are taken by one call.
	pollBatch = 64
	// scratchBytes is a path's own registered memory, where proofs land: a cache line, so that paths do not share one.
	scratchBytes = 64

	defaultTimeout = 14
	// defaultRetries is one less than the most: soft-RoCE takes 7 for "without end", and a dead peer would hold its
	// buffers until a deadline.
	defaultRetries  = 6
	defaultHopLimit = 64
	// defaultRNRRetries bounds how often a peer may answer that it is not ready; 7 would be for ever.
	defaultRNRRetries = 6
	// minRNRTimer is the code for 0.64 ms; nothing is received here, but the adapter wants a value.
	minRNRTimer = 12
)

// PathOptions are what a path has of its own. The zero value is a path from the rail's own GID.
type PathOptions struct {
	From Source
	// RNRRetries is how often the peer may answer that it has no receive for an immediate: 0 means 6, and 7 for ever,
	// so that only Fail ends a Move to a peer that never has one.
	RNRRetries uint8
}

// Source is an entry of the port's table of GIDs; the zero value is the rail's own.
type Source struct {
	Index int
	GID   [16]byte
}

// Endpoint is one end's queue pair.
type Endpoint struct {
	QPN, PSN uint32
	GID      [16]byte
	LID      uint16
	MTU      int // bytes
	Reads    int // Local: RDMA READs that this end has under way at once; of a peer: that it answers at once
}

// Stats are counters of a rail, and gauges where it says now.
type Stats struct {
	Paths      int64 // now
	Stuck      int64 // paths and DCIs now that could be neither reset nor destroyed
	WorkNow    int64 // work requests under way now
	Writes     int64 // bytes acknowledged
	Reads      int64
	Works      int64 // work requests completed well
	Denied     int64 // moves that ended so
	Lost       int64
	Local      int64
	Unexpected int64 // completions that nobody waited for
}

// Segment is a piece of arena memory.
type Segment = []byte

// Move is one direction's transfer: the segments, one after another, and the peer's memory from an address on.
type Move struct {
	Op     native.Opcode // OpWrite: into the peer's memory
	Remote uint64
	RKey   uint32
	Local  []Segment
	// Imm is told to the peer, which must have a receive for it, when all bytes of a WRITE are in its memory. Without
	// bytes it is told all the same, and Remote is where the proof is read.
	Imm *uint32
}

// Format prints the move without its key, whatever the verb.
func (m Move) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "move{op %d segments %d}", m.Op, len(m.Local))
}
