// Package initiator moves arena memory into and out of the memory of peers by RDMA WRITE and READ, over one rail
// of this machine: queue pairs, posting and polling in batches, message splitting, flow control, and the proof that
// the adapter has let go of a buffer.
//
// Called by: internal/fabric/verbs.
//
// Invariants:
//  1. Move returns only when every work request of it has completed, or its queue pair was reset or destroyed: the
//     buffers may then be used for anything else. No context, deadline or error makes it return earlier.
//  2. A path that failed, or was failed, posts nothing any more; Settled tells when its queue pair is reset.
//  3. A rail has a bounded number of paths, work requests and completions under way; the completion queue cannot
//     overflow.
//  4. Paths take turns where the rail's work requests are short, so one client cannot starve the others.
//  5. Registered memory has no remote rights, and neither has a queue pair.
//
// What it does not do: sessions, regions of clients and their bounds, retries, choosing a rail.
package initiator

import (
	"errors"
	"time"

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
	Retries uint8 // 0 means 7

	HopLimit     uint8 // 0 means 64
	TrafficClass uint8
}

// Limits and defaults.
const (
	DefaultPaths = 4096
	DefaultDepth = 64
	DefaultPiece = 1 << 20
)

// Rail is an open rail.
type Rail struct{}

// Open opens the device and registers the arena. Errors: native.ErrVerbs; a refused registration (locked memory) names
// the limit.
func Open(Options) (*Rail, error) { return nil, native.ErrNotSupported }

// Endpoint is one end's queue pair.
type Endpoint struct {
	QPN, PSN uint32
	GID      [16]byte
	LID      uint16
	MTU      int // bytes
	Reads    int
}

// NewPath makes a queue pair. Errors: ErrLimit, ErrClosed, native.ErrVerbs.
func (r *Rail) NewPath() (*Path, error) { return nil, ErrClosed }

// Rail is what was opened; its state may have changed since.
func (r *Rail) Rail() rail.Rail { return rail.Rail{} }

// Refresh asks for the port's state as it is now.
func (r *Rail) Refresh() (rail.Rail, error) { return rail.Rail{}, ErrClosed }

// Events delivers the port's and the device's events until Close.
func (r *Rail) Events() <-chan native.Event { return nil }

// Probe connects two queue pairs of this rail to each other and moves bytes both ways: the rail works as far as this
// machine goes.
func (r *Rail) Probe(time.Duration) error { return ErrClosed }

// Stats reads the counters.
func (r *Rail) Stats() Stats { return Stats{} }

// Close fails and resets all paths, and closes the device. Errors: when something could not be reset, and the arena
// must stay mapped.
func (r *Rail) Close() error { return nil }

// Stats are counters of a rail, and gauges where it says now.
type Stats struct {
	Paths      int64 // now
	WorkNow    int64 // work requests under way now
	Writes     int64 // bytes acknowledged
	Reads      int64
	Works      int64 // work requests completed well
	Denied     int64 // moves that ended so
	Lost       int64
	Local      int64
	Unexpected int64 // completions that nobody waited for
}

// Path is one queue pair, from its making to its reset.
type Path struct{}

// Local is what the peer must know.
func (p *Path) Local() Endpoint { return Endpoint{} }

// Connect takes the queue pair to its peer's: unit and reads are the lesser of both ends'. Errors: native.ErrVerbs.
func (p *Path) Connect(Endpoint) error { return ErrClosed }

// Segment is a piece of arena memory.
type Segment = []byte

// Move is one direction's transfer: the segments, one after another, and the peer's memory from an address on.
type Move struct {
	Op     native.Opcode // OpWrite: into the peer's memory
	Remote uint64
	RKey   uint32
	Local  []Segment
}

// Move moves the bytes and waits. Errors: ErrDenied, ErrLost, ErrLocal.
func (p *Path) Move(Move) error { return ErrLost }

// Busy is the number of bytes under way, for choosing among paths.
func (p *Path) Busy() int64 { return 0 }

// Fail ends the path without waiting: nothing is posted any more, what is under way ends with ErrLost.
func (p *Path) Fail() {}

// Failed is closed when the path has failed, for whatever reason.
func (p *Path) Failed() <-chan struct{} { return nil }

// Settled is closed when the queue pair of a failed path is reset: the adapter uses no buffer for it any more, and
// sends nothing.
func (p *Path) Settled() <-chan struct{} { return nil }

// Close fails the path, waits until it has settled, and gives its queue pair back.
func (p *Path) Close() error { return nil }
