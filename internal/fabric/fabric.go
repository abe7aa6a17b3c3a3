// Package fabric is the contract for one-sided transfers into and out of client memory, and the
// manager that knows fabrics, sessions and rails.
//
// Called by: gateway (control plane, open a window per request), sink (move bytes).
// Implemented by fabric/shm and fabric/tcp; fabrictest is the conformance suite.
//
// Words: the server is the initiator. Write moves server bytes into client memory (GET); Read moves
// client bytes into the server (PUT).
//
// Invariants of every implementation:
//  1. Nothing outside [0, Size) of the window is ever touched, whatever the client claims.
//  2. After Remote.Close has returned, the server never touches the window again.
//  3. Close returns by the grant's deadline plus a small constant, also when the client stalls or a
//     device operation on client memory hangs: then the session is cut off and ErrFenced is returned. Where
//     such an operation can neither be waited for nor be led elsewhere, ErrLingering says so.
//  4. A client that dies, stalls, lies about sizes or unmaps its memory costs only its own session.
//  5. A session is bound to the principal that opened it; another principal's token is ErrNotGranted.
//  6. A token of a session is good for one request: its number is used up by the first that carries it.
//
// What it does not do: verification of payload, S3.
package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/token"
)

var (
	// ErrNoSession says that the session is unknown or closed: decline, reason no-session.
	ErrNoSession = errors.New("fabric: no such session")
	// ErrNoFabric says that no fabric of this node takes the token: decline, reason no-rail.
	ErrNoFabric = errors.New("fabric: no fabric for this token")
	// ErrNotGranted says that the session belongs to another principal: 403.
	ErrNotGranted = errors.New("fabric: session belongs to another principal")
	// ErrReplayed says that the token's number was used before, or is too old to tell: 403.
	ErrReplayed = errors.New("fabric: token was used before")
	// ErrWindow says that the window is not inside its region: 400 InvalidRDMAToken.
	ErrWindow = errors.New("fabric: window outside its region")
	// ErrLimit says that a limit of sessions, regions or mapped bytes is reached: 503.
	ErrLimit = errors.New("fabric: limit reached")
	// ErrBusy says that the token's connection carries another transfer, one at a time: 503, reason busy.
	ErrBusy = errors.New("fabric: connection carries another transfer")
	// ErrTransfer says that client memory could not be read or written: 500 RDMATransferFailed.
	ErrTransfer = errors.New("fabric: transfer failed")
	// ErrFenced says that the session was cut off before the transfer completed.
	ErrFenced = errors.New("fabric: session fenced")
	// ErrLingering says that an operation on client memory did not return in time and may still take
	// effect: the request must not be answered at all. It comes with ErrFenced.
	ErrLingering = errors.New("fabric: operation on client memory lingers")
	// ErrNotSupported says that this machine cannot run the fabric.
	ErrNotSupported = errors.New("fabric: not supported on this machine")
	// ErrRegion says that an announced region is refused (size, type, seals, sparse).
	ErrRegion = errors.New("fabric: region refused")
	// ErrUnsupportedToken is an ErrNoFabric: object requests never take tokens of this grammar.
	ErrUnsupportedToken = fmt.Errorf("%w: kind of token not supported", ErrNoFabric)
	// ErrTooLarge says that more bytes would be moved than the window has: decline, reason too-large.
	ErrTooLarge = errors.New("fabric: more bytes than the window has")
)

// Direction of a transfer, named by the S3 operation.
type Direction int

// Directions.
const (
	ForGet Direction = iota + 1 // the server writes client memory
	ForPut                      // the server reads client memory
)

// Grant binds one window to one authenticated request.
type Grant struct {
	Principal string         // the id that the session was opened with
	Peer      netip.AddrPort // HTTP peer
	Local     netip.Addr     // where it connected to
	Direction Direction
	Bytes     int64     // L: bytes that will be moved, ≤ window size; nothing beyond is touched
	Deadline  time.Time // no byte of client memory is touched later, whether Close was called or not
	Claim     *Claim    // of the token; nil: Open claims it
}

// Fabric is one way to reach client memory.
type Fabric interface {
	Name() string
	// Open checks the descriptor against the fabric's sessions and returns the window. The window
	// is pinned until Remote.Close, which must be called exactly once. Client memory is not touched
	// yet. A token of a session opens one window, ever. Errors: ErrNoSession, ErrNotGranted,
	// ErrReplayed, ErrWindow, ErrTooLarge, ErrLimit.
	Open(ctx context.Context, d token.Descriptor, g Grant) (Remote, error)
	Rails() []Rail
	Close() error
}

// Taker is an optional ability of a Fabric: it takes tokens of grammars that name no fabric. Without it a fabric takes
// tokens of its sessions only.
type Taker interface {
	// Takes tells whether Open may be given the token, as far as its text tells. It does not wait.
	Takes(d token.Descriptor) bool
}

// Remote is one window of client memory, bound to one request. Write and Read may be called from
// several goroutines for disjoint ranges; off is relative to the start of the window. They return
// when the operation is complete as far as the initiator sees (the buffers may then be reused);
// Close is what makes it complete for the client.
type Remote interface {
	// Size is Grant.Bytes: the part of the window that this request may touch.
	Size() int64
	// Write moves the bytes of src, one after another, to off. Errors: ErrTransfer (outside the
	// window, memory fault, peer), ErrFenced (deadline, revocation, peer gone), ctx's error.
	Write(ctx context.Context, off int64, src ...arena.Buffer) error
	// Read fills the views of dst, one after another, from off. Errors as Write's.
	Read(ctx context.Context, off int64, dst ...arena.Buffer) error
	// Close drains and unpins. An error means that the transfer must not be reported as done:
	// ErrFenced when the session was cut off before, ErrTransfer when the client disowned it.
	Close() error
}

// Aborter is an optional ability of a Remote: Abort tells the client, at Close, that the bytes are
// not complete, because the server gives the request up. Without it the answer alone says so.
type Aborter interface{ Abort() }

// Mapper is an optional ability of a Remote: the window is mapped into this process. The memory is
// the client's: see arena.Mapper. Both methods may be called by several goroutines.
//
// Only buffered device reads may target the range: O_DIRECT pins the client's pages themselves, and
// such a read could not be cut off.
type Mapper interface {
	// Map returns the n bytes at off of the window. Every Map that succeeded is balanced by exactly
	// one Unmap of the same range. After Close it returns an error.
	Map(off, n int64) ([]byte, error)
	// Unmap says that no operation on the range is under way any more. Close waits for the Unmaps
	// that are due until the deadline; then a device read hangs in the range: Close replaces the
	// range by other memory at the same address (so that a late copy lands there), fences the
	// session, and keeps that address range taken until the Unmap comes.
	Unmap(off, n int64)
}

// Rail is one way out of this node (a NIC port; the host itself for shm).
type Rail struct {
	Fabric  string
	Name    string // "host", or the listen address
	Network string // of the data connection: "unix", "tcp"
	Address string // where clients connect; "@name" is an abstract Unix socket
	Up      bool
	Reason  string // why it is not up

	Foreign       bool   // takes client memory that the client's end did not allocate for it
	ForeignReason string // why it does not; one word
}

// SessionOpener is what a fabric with sessions offers to the control plane.
type SessionOpener interface {
	// NewSession creates a session that waits for its data connection. It expires when that does
	// not come within a bounded time. The request id of ctx goes into the log lines about the session.
	// Errors: ErrLimit.
	NewSession(ctx context.Context, principal string) (SessionOffer, error)
}

// Revoker is an optional ability of a Fabric: it ends what a principal has under way. A fabric without it has nothing
// that outlives a call.
type Revoker interface {
	// RevokePrincipal ends all sessions and transfers of the principal: those that run are fenced when it returns. It does
	// not wait for ever: where an adapter or a client's memory holds an operation up, that transfer's Close says
	// ErrLingering.
	RevokePrincipal(principal string)
}

// SessionOffer goes to the client once, over the authenticated control plane.
type SessionOffer struct {
	Fabric  string
	ID      [16]byte
	Secret  token.Secret // proves the data connections
	Network string       // "unix" or "tcp"
	Address string
	Expires time.Time // when the offer lapses without a data connection
}

// Reason is the word for x-penstock-rdma-reason when err means that RDMA is declined (501); ok is
// false when err is not a decline but an S3 error of its own.
func Reason(err error) (reason string, ok bool) {
	switch {
	case errors.Is(err, ErrNoSession):
		return "no-session", true
	case errors.Is(err, ErrUnsupportedToken):
		return "unsupported-token", true
	case errors.Is(err, ErrNoFabric), errors.Is(err, ErrNotSupported):
		return "no-rail", true
	case errors.Is(err, ErrTooLarge):
		return "too-large", true
	}
	return "", false
}
