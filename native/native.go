// Package native speaks to RDMA adapters through libibverbs, which it opens at run time. The work is
// done by the C11 files beside it, which know nothing of Go and are the core of the C library too.
//
// Called by: internal/rail, internal/fabric/verbs and below, internal/server, internal/cli, client and below;
// native/fakeverbs supplies a table of functions for tests.
//
// Words are those of the verbs: device, port, GID, protection domain (PD), memory region (MR), completion
// queue (CQ), queue pair (QP). Only reliable connections (RC), and the dynamic ones of mlx5 adapters (DC, by libmlx5),
// RDMA WRITE and RDMA READ are offered; on RC a WRITE may carry an immediate, which uses up a receive of the peer. A
// DCI sends to what each work request names, a DCT is such a target. DC was not run on hardware yet: a test compares
// what libmlx5 is called with to its documentation, and native/fakeverbs runs the rest.
//
// Invariants:
//  1. Nothing is linked: where libibverbs, the C compiler or its headers were missing, Open says so in an
//     *UnavailableError and everything else of the program works.
//  2. No pointer of Go's heap is kept by C. Memory that is registered, or named in a Work, stays mapped and
//     in place until its MR is closed, or the Work has completed, or its QP was reset or closed.
//  3. After Reset or Close of a QP or DCI has returned without an error, the adapter touches no local memory for
//     it and sends nothing on it.
//  4. Objects close after all that was made from them; closing too early is EBUSY and changes nothing.
//  5. Keys of memory and of DCTs are in no error and no log line, and no verb of fmt prints them.
//
// Every method may be called by several goroutines, but Poll, Arm and Wait of one CQ by one at a time each, and
// Post, PostReceive, and the changes of state of one QP or DCI, by one at a time each. Close waits for calls that are
// running.
//
// Lock order: each object has a lock, held to read in its calls and to write in Close; NewQP, NewDCI and NewDCT take
// the PD's, then the CQ's; DCI.Post the DCI's, then the Address's.
//
// What it does not do: choosing rails, retries, flow control, splitting.
package native

import (
	"errors"
	"fmt"
	"syscall"
)

var (
	// ErrNotSupported says that this program or machine cannot use verbs; an *UnavailableError says why.
	ErrNotSupported = errors.New("native: verbs are not available")
	// ErrVerbs says that a call of the library failed; a *CallError has the call and the errno.
	ErrVerbs = errors.New("native: verbs call failed")
	// ErrClosed says that the object was closed.
	ErrClosed = errors.New("native: closed")
)

// Reasons of an UnavailableError: one word each, for listings and answers.
const (
	ReasonNoCgo     = "no-cgo"     // the program was built without cgo
	ReasonNoHeaders = "no-headers" // it was built without infiniband/verbs.h
	ReasonNoLibrary = "no-library" // libibverbs.so.1 cannot be opened
	ReasonNoSymbol  = "no-symbol"  // it is too old: a function is missing
	ReasonNoDevice  = "no-device"  // it knows no device
)

// UnavailableError is an ErrNotSupported with its reason.
type UnavailableError struct {
	Reason string // one of the Reason words
	Detail string // of the dynamic linker; may be empty
}

// Error names the reason.
func (e *UnavailableError) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("%v: %s", ErrNotSupported, e.Reason)
	}
	return fmt.Sprintf("%v: %s: %s", ErrNotSupported, e.Reason, e.Detail)
}

// Unwrap makes it an ErrNotSupported.
func (e *UnavailableError) Unwrap() error { return ErrNotSupported }

// CallError is an ErrVerbs: which call of the library failed, and its errno.
type CallError struct {
	Call  string // "ibv_reg_mr"
	Errno int
}

// DeviceInfo describes an adapter.
type DeviceInfo struct {
	Name       string // "mlx5_0", "rxe0"
	GUID       uint64
	NUMANode   int // -1: not known
	Ports      int
	MaxQP      int
	MaxCQ      int
	MaxCQDepth int
	MaxQPDepth int   // work requests of one QP
	MaxMR      int   //
	MaxMRBytes int64 // of one MR
	MaxReads   int   // RDMA READs that one QP answers at once (max_qp_rd_atom)
	MaxIssued  int   // and sends at once (max_qp_init_rd_atom)
	Firmware   string
}

// PortState is the logical state of a port.
type PortState int

// States of a port; others of the library read as PortDown.
const (
	PortDown PortState = iota
	PortActive
)

// LinkLayer is what a port speaks.
type LinkLayer int

// Link layers.
const (
	LinkUnknown LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

// PortInfo describes a port of a device.
type PortInfo struct {
	Number     int
	State      PortState
	Link       LinkLayer
	LID        uint16
	MTU        int    // active, bytes
	MaxMessage uint32 // bytes of one work request
	GIDs       []GID
}

// GIDType tells what packets to a GID look like.
type GIDType int

// Types of GID.
const (
	GIDInfiniBand GIDType = iota
	GIDRoCEv1
	GIDRoCEv2
)

// GID is an entry of a port's table; zero entries are left out.
type GID struct {
	Index   int
	Raw     [16]byte // bytes in order; RoCEv2 over IPv4 is ::ffff:a.b.c.d
	Type    GIDType
	Network string // name of the network device; empty on InfiniBand
}

// Access is what may be done with an MR. Local reads always may.
type Access int

// Bits of Access.
const (
	LocalWrite Access = 1 << iota
	RemoteWrite
	RemoteRead
)

// QPState is a state of a QP.
type QPState int

// States of a QP in the order of its life.
const (
	QPReset QPState = iota
	QPInit
	QPReady // to receive (RTR)
	QPSend  // ready to send (RTS)
	QPError
)

// PairOptions size a QP of type RC. Its completions, all of them signalled or not as Work says, go to one CQ.
type PairOptions struct {
	Depth    int // work requests that may be posted and not completed
	Receives int // receives, likewise
}

// Peer is what a QP must know of the one it is connected to.
type Peer struct {
	QPN   uint32   // 24 bits
	PSN   uint32   // 24 bits: the first that the peer sends
	GID   [16]byte // where packets go
	LID   uint16   // on InfiniBand
	MTU   int      // bytes: 256, 512, 1024, 2048, 4096
	Reads int      // RDMA READs that we answer at once (to receive), or have under way at once (to send)
}

// Path is our end of a connection.
type Path struct {
	Port         int
	GIDIndex     int
	HopLimit     uint8
	TrafficClass uint8
	Access       Access // what the peer may do: RemoteWrite, RemoteRead, or 0
	PSN          uint32 // the first that we send
	Timeout      uint8  // exponent: 4.096 µs × 2^n
	Retries      uint8  // at most 7
	RNRRetries   uint8  // at most 7, which means for ever
	MinRNRTimer  uint8
}

// Opcode is what a Work does.
type Opcode uint32

// Opcodes, named from this end: Write puts local bytes into the peer's memory.
const (
	OpWrite Opcode = iota + 1
	OpRead
	OpWriteImm // and the peer, who must have posted a receive, is told Work.Imm once the bytes are there
)

// Work is one work request: one piece of local memory and where it comes from or goes to.
type Work struct {
	ID     uint64 // comes back in the Completion
	Local  uint64 // address
	Remote uint64 // address in the peer's region
	Length uint32
	LKey   uint32
	RKey   uint32
	Op     Opcode
	Signal bool // asks for a completion; errors complete in any case
	_      [3]byte
	Imm    uint32 // of OpWriteImm; its most significant byte goes first
}

// Format prints the work request without its keys, whatever the verb.
func (w Work) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "work{id %d op %d bytes %d signal %t}", w.ID, w.Op, w.Length, w.Signal)
}

// Status of a completion.
type Status uint32

// Statuses, as far as they differ in what follows from them; others of the library read as StatusOther.
const (
	StatusOK           Status = iota
	StatusLocal               // local length, protection or QP error: this program's fault
	StatusFlushed             // the QP was in its error state; whether the bytes moved is not known
	StatusRemoteAccess        // the peer's adapter refused the address, length or key
	StatusRemoteOther         // the peer's adapter refused the request, or failed
	StatusRetry               // no acknowledgement, or not ready, for as long as tried
	StatusOther               // see Vendor
)

// Completion is one entry of a CQ.
type Completion struct {
	ID     uint64
	Status Status
	Vendor uint32 // the adapter's own word on an error
	QPN    uint32
	Bytes  uint32 // moved, of a READ or of what was received; not meaningful for others, nor on an error

	Imm      uint32 // where HasImm
	Received bool   // a receive ended, and well
	HasImm   bool   // by the peer's OpWriteImm
	_        [2]byte
}

// EventType is what happened to a device.
type EventType int

// Types of events.
const (
	EventOther EventType = iota
	EventPortUp
	EventPortDown
	EventGIDs        // the table of GIDs changed
	EventDeviceFatal // the device is lost, or a CQ of it, and what was posted
	EventQPFatal     // a QP failed on its own
)

// Event is an asynchronous event of a device.
type Event struct {
	Type EventType
	Port int    // of port events
	QPN  uint32 // of QP events
}

// Error names call and errno.
func (e *CallError) Error() string {
	return fmt.Sprintf("native: %s: %v", e.Call, syscall.Errno(e.Errno))
}

// Unwrap makes it an ErrVerbs and its errno.
func (e *CallError) Unwrap() []error { return []error{ErrVerbs, syscall.Errno(e.Errno)} }
