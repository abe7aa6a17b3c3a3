package fabric

import (
	"context"
	"io"
	"net/netip"
	"time"

	"github.com/penstock-store/penstock/internal/token"
)

// Exchange is hipobj-rc-v2: two messages around one transfer, in which each end knows the other's queue pair. A session
// is one transfer: it is prepared, perhaps taken, and ends.
type Exchange interface {
	// Prepare makes a session, which ends by itself when nobody takes it in time. It waits for the adapter, which may
	// resolve an address, until ctx ends. Errors: ErrNotGranted (the GID is not the peer's, or the queue pair cannot be
	// the client's), ErrNoFabric, ErrLimit (sessions, staging memory), ErrTooLarge, ctx's.
	Prepare(ctx context.Context, p Preparation) (Prepared, error)
	// Take begins the transfer; the session is the caller's, who calls Finish exactly once. Errors: ErrNoSession
	// (unknown, ended, taken before), ErrNotGranted (another principal, cookie or queue pair, or a window that the token
	// cannot mean; the session stays as it is).
	Take(id [16]byte, principal string, r Readiness) (*Taken, error)
	// Cancel ends a session of the principal and waits until nothing touches memory of either end for it, and, where it
	// is taken, until Finish. Unknown sessions and those of others are left alone. Errors: ErrLingering, when an adapter
	// does not let go: there must be no answer; ctx's.
	Cancel(ctx context.Context, id [16]byte, principal string) error
}

// Preparation is what the first message says, and who says it.
type Preparation struct {
	Principal string
	Peer      netip.AddrPort   // HTTP peer
	Local     netip.Addr       // where it connected to
	Token     token.Descriptor // of kind HipObj: the client's queue pair, and where it has a size, a window
	PSN       uint32           // the first that the client's queue pair sends
	Cookie    uint32           // the client's choice; the immediate of the transfer
	Direction Direction
	Bytes     int64 // that are moved, neither more nor less
	// Held is closed once, when the session has ended, however it does; when Prepare fails, too. Nil: nothing is held.
	Held io.Closer
}

// Prepared is what the client must know to connect its queue pair.
type Prepared struct {
	ID       [16]byte
	QPN, PSN uint32 // of this node's queue pair; the PSN is never 0
	GID      [16]byte
	Port     uint8
	LID      uint16
	Addr     uint64 // of the staging memory, which the client writes; 0 for a GET
	RKey     uint32 // a secret between the two
}

// Readiness is what the second message says.
type Readiness struct {
	Cookie, QPN uint32
	Addr        uint64 // of the client's memory
	RKey        uint32
}

// Taken is a transfer. The Remote of a GET tells the client by an immediate, at Close, that all bytes are there. That
// of a PUT waits in Read for the client's immediate; what it reads then can no longer be changed by anybody.
type Taken struct {
	Remote    Remote
	Held      io.Closer // Preparation's; Finish closes it
	Direction Direction
	Bytes     int64
	Deadline  time.Time // nothing touches the client's memory later
	Cookie    uint32
	// Finish ends the session, after Remote.Close and what was done with the bytes. Where Close was not called, it
	// does so.
	Finish func()
}
