// Package verbs is the server's end of the rc fabric: payload moves by RDMA WRITE and READ over reliable connections
// between this node's rails and the client's adapters. docs/wire.md §10 has the protocol.
//
// Called by: fabric.Manager; built by server.
//
// Words: a rail is a port of this node's adapters, a path joins one rail and one of the client's devices by a pair of
// queue pairs, and a lane is this node's end of a path as the initiator gives it.
//
// Invariants:
//  1. A remote address is that of an announced region plus a checked window; its key is the one that the region's
//     client announced for the path's device. Queue pairs of this node have no remote rights.
//  2. A path leads only to a GID that is known to belong to the client, and never to a queue pair of this node or to
//     one that has answered to another principal.
//  3. A path that failed carries nothing any more. No request with an operation that the failure caught is answered
//     before the client fenced its end, or the session was cut; and a cut has reset the session's queue pairs before
//     anything is answered.
//  4. What a client sends is answered, refused, or ends its session: it costs nobody else more than its share of paths.
//  5. A failure is held against a rail only where the client lives and says FENCED, or the adapter does not reset.
//  6. A deadline costs a session when an operation is under way, and nobody but its request when that waits for a path.
//
// Lock order: fabric.Session, then session.mu; remote.mu, then session.mu; session.mu is never held over a call of
// rails that takes a lock, nor of a lane or an adapter that waits; Fabric.mu is held over nothing of another package.
//
// What it does not do: rails and their health (rails); queue pairs, posting and polling (initiator); verification of
// payload.
package verbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/dataconn"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/fabric/verbs/reach"
	"github.com/penstock-store/penstock/internal/token"
)

// Name is the fabric's name in tokens and in the control plane.
const Name = "rc"

const (
	// DefaultStallWait bounds how long a client may owe a frame: its transfers hold the server's buffers.
	DefaultStallWait = 15 * time.Second
	// pathWait bounds how long a transfer waits for a path: a client makes one in milliseconds.
	pathWait = 5 * time.Second
	// upWait bounds the time between PATH_OK and PATH_UP: one round trip and a change of state.
	upWait = 10 * time.Second
	// settleWait bounds the wait for the reset of a cut session's queue pairs, which takes an adapter microseconds.
	settleWait = 2 * time.Second
	// hungWait is how long a queue pair may take to be reset before it counts as its rail's failure: longer than an
	// adapter needs that is asked to reset thousands, when a job's clients all end at once.
	hungWait = 30 * time.Second
)

// Options configure the fabric.
type Options struct {
	Ledger    *fabric.Ledger
	Address   string // "host:port" of the data connections; port 0 draws one
	Advertise string // what clients are told to dial; empty means the address listened on

	Rails     *rails.Set     // stays open until the fabric is closed
	Networks  []netip.Prefix // where GIDs of clients may lie besides their own addresses
	StallWait time.Duration  // 0 means DefaultStallWait
	Logger    *slog.Logger
}

// Fabric listens for data connections and opens windows.
type Fabric struct {
	fabric.Sessions
	address string
	stall   time.Duration
	hung    time.Duration // hungWait, or a test's
	rule    reach.Rule
	rails   *rails.Set
	unwatch func() // the rails
	roster  *fabric.Roster
	logger  *slog.Logger
	door    *fabric.Door
	closing sync.Mutex // one Close at a time

	mu       sync.Mutex
	sessions map[*session]struct{}
}

var (
	_ fabric.Fabric        = (*Fabric)(nil)
	_ fabric.SessionOpener = (*Fabric)(nil)
	_ fabric.Revoker       = (*Fabric)(nil)
	_ fabric.StatsReporter = (*Fabric)(nil)
	_ fabric.Claimer       = (*Fabric)(nil)
)

// New starts to listen.
func New(o Options) (*Fabric, error) {
	f := &Fabric{
		stall:    o.StallWait,
		hung:     hungWait,
		rule:     reach.Rule{Networks: o.Networks, Own: o.Rails.Owns},
		rails:    o.Rails,
		roster:   fabric.NewRoster(Name, o.Ledger),
		logger:   o.Logger,
		sessions: make(map[*session]struct{}),
	}
	if f.stall == 0 {
		f.stall = DefaultStallWait
	}
	if f.logger == nil {
		f.logger = slog.New(slog.DiscardHandler)
	}
	listener, address, err := dataconn.Listen(o.Address, o.Advertise)
	if err != nil {
		return nil, fmt.Errorf("rc: %w", err)
	}
	f.address, f.Sessions = address, f.roster.Sessions("tcp", address)
	f.door = fabric.NewDoor(listener, f.serve, &f.roster.Counters.Refused, f.logger)
	f.unwatch = f.rails.Watch(f.announce)
	f.door.Open()
	return f, nil
}

// Name is "rc".
func (f *Fabric) Name() string { return Name }

// Rails has one entry, the listener, which is up while a rail is.
func (f *Fabric) Rails() []fabric.Rail {
	r := fabric.Rail{Fabric: Name, Name: f.address, Network: "tcp", Address: f.address}
	r.Up, r.Reason = f.rails.State()
	return []fabric.Rail{r}
}

// errNoPath declines a request whose session has no path, and none to come.
var errNoPath = fmt.Errorf("%w: session has no path", fabric.ErrNoFabric)

// Open pins the window that the descriptor names. Errors: also ErrNoFabric, when no path of the session works.
func (f *Fabric) Open(_ context.Context, d token.Descriptor, g fabric.Grant) (fabric.Remote, error) {
	w, err := f.roster.Open(d, g)
	if err != nil {
		return nil, err
	}
	r := &remote{
		window: w, session: w.Session.Carrier.(*session), memory: w.Backing.(*backing),
		near: f.rails.Near(g.Local.Unmap()), refused: make(chan struct{}),
	}
	if !r.session.reachable(r.memory) {
		w.Fail(errNoPath)
		return nil, w.Close(nil)
	}
	return r, nil
}

// Close cuts all sessions and waits for their goroutines. After an error an adapter may still use the arena, which must
// stay mapped; Close may be called again then, once the rails are closed. Errors: fabric.ErrStuck, when the goroutines
// of a session have not ended.
func (f *Fabric) Close() error {
	f.closing.Lock()
	defer f.closing.Unlock()
	err := f.door.Shut()
	f.roster.Close()
	f.unwatch()
	return errors.Join(err, f.door.Wait())
}

// announce tells all sessions that a rail changed.
func (f *Fabric) announce() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.sessions {
		s.railsChanged()
	}
}

func (f *Fabric) serve(accepted net.Conn) {
	nc := accepted.(*net.TCPConn) // the listener's kind
	defer func() { _ = nc.Close() }()
	s := newSession(f, nc)
	err := dataconn.Greet(nc, s, f.roster.Limits(), 1)
	f.door.Proved(accepted)
	if s.core == nil {
		f.roster.Counters.Refused.Add(1)
		f.logger.Debug("data connection refused", "fabric", Name, "error", err)
		return
	}
	s.run(err)
}

// Off is the fabric of a node that has no rail: it says why, and takes nothing.
type Off struct{ reason string }

var _ fabric.Fabric = (*Off)(nil)

// NewOff makes a fabric that is down for a reason, which is one word.
func NewOff(reason string) *Off { return &Off{reason} }

// Name is "rc".
func (*Off) Name() string { return Name }

// Open takes no token.
func (*Off) Open(context.Context, token.Descriptor, fabric.Grant) (fabric.Remote, error) {
	return nil, fabric.ErrNoFabric
}

// Rails says that the fabric is down, and why.
func (o *Off) Rails() []fabric.Rail {
	return []fabric.Rail{{Fabric: Name, Name: Name, Network: "tcp", Reason: o.reason}}
}

// Close does nothing.
func (*Off) Close() error { return nil }
