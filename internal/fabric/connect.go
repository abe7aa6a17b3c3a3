package fabric

import (
	"context"
	"net/netip"

	"github.com/penstock-store/penstock/internal/token"
)

// Connector makes and ends the connections that `rc:` tokens name. Whoever knows a connection's id may use or end it.
type Connector interface {
	// Connect makes one, unused yet. Errors: ErrLimit, ErrNoFabric, ErrNotGranted (the GID is not the peer's, or the
	// queue pair is somebody else's), ctx's.
	Connect(ctx context.Context, r ConnectRequest) (Connection, error)
	// Disconnect ends one, unknown ones too; when it returns nil nothing of this node touches the client's memory by it
	// any more. Errors: ErrLingering.
	Disconnect(ctx context.Context, id [16]byte) error
}

// ConnectRequest is what a client says of its queue pair.
type ConnectRequest struct {
	Principal string         // whose it is from the beginning; "": the request was not signed
	Peer      netip.AddrPort // HTTP peer
	Local     netip.Addr     // where it connected to
	Token     token.Descriptor
	PSN       uint32 // of the client's first packet
}

// Connection is what a client must know of this node's queue pair.
type Connection struct {
	ID       [16]byte // a secret, as good as a key
	QPN, PSN uint32
	GID      [16]byte
	Port     uint8
	LID      uint16
}
