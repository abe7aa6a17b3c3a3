// Package rcdial is the fabric of `rc:` tokens: a client connects a queue pair by an HTTP request and names the
// connection in its tokens, and this node moves bytes by RDMA WRITE and READ. docs/wire.md §10b has the protocol.
//
// Called by: gateway (connect and disconnect) and sink, by the fabric contract; opened by server.
//
// Words: a connection is a pair of queue pairs, of which this node's is a link of its rails; its owner is the principal
// of the request that made it, where that was signed, and else of the first object request that names it.
//
// Invariants:
//  1. A connection leads only to a GID that Options.Permits for the peer of the request that makes it. What a token
//     says of memory is the client's word: its adapter lets this node at what it has registered for that queue pair.
//  2. A connection serves its owner only, and one transfer at a time.
//  3. Nothing outside the first Grant.Bytes of the window is posted, nothing begins after Stop, and what is under way
//     Margin before the deadline costs the connection: its queue pair is reset.
//  4. A connection whose work request failed, or that was cut, is gone: no token opens a window of it any more. No
//     request of it, and no disconnect, is answered before its queue pair is reset and, where a WRITE was under way,
//     linger has passed. Where the adapter does not reset it, ErrLingering says so, and nothing is answered.
//  5. There are at most maxConnections and maxPerPeer of an address, counted from before the first call to an adapter
//     until nothing is left of the queue pair.
//
// Lock order: Fabric.mu, connection.mu and remote.mu are never held together, nor over a call of the rails.
//
// What it does not do: authentication and headers (gateway); rails and their health (rails).
package rcdial

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/token"
)

// Name of the fabric. No ps1 token has it.
const Name = "rc-tokens"

const (
	// Stop is how long before its deadline the last operation of a transfer begins: an adapter's retries of a work
	// request that meets a dead peer take less.
	Stop = 2 * time.Second
	// Margin is what a reset and the life of a packet may take at the end of a transfer.
	Margin = 500 * time.Millisecond
	// linger is how long after the reset of a queue pair a packet that it sent before may live in the network. The
	// client's queue pair would take it.
	linger = 100 * time.Millisecond

	// DefaultIdleWait is how long a connection may be unused: what its clients reckon with.
	DefaultIdleWait = 300 * time.Second
	// settleWait bounds the wait for the reset of a queue pair, which takes an adapter microseconds. It is also how long
	// after a deadline an adapter that hangs is waited for.
	settleWait = 2 * time.Second
	// closeWait bounds the wait for all of them, and for calls that connect, in which a kernel may resolve an address.
	closeWait = 5 * time.Second

	// maxConnections bounds all of them: a stranger may make them, where unsigned requests are let in.
	maxConnections = 1024
	// maxPerPeer is the part of one address, so that no single machine takes them all.
	maxPerPeer = 64
	// ip6Site is the part of an IPv6 address that one site is given; it may use all addresses behind it.
	ip6Site = 64

	// anyMTU is beyond every port's: this end's port has the path's, since the client does not tell its own.
	anyMTU = 1 << 16
	// peerReads is how many READs the clients' queue pairs answer at once.
	peerReads = 1
)

// Options of New.
type Options struct {
	Rails    *rails.Set // stays open until the fabric is closed
	Permits  func(gid [16]byte, peer netip.Addr) bool
	IdleWait time.Duration // 0 means DefaultIdleWait
	Logger   *slog.Logger
}

// Fabric takes tokens of kind RC.
type Fabric struct {
	permits func(gid [16]byte, peer netip.Addr) bool
	idle    time.Duration
	logger  *slog.Logger
	rails   *rails.Set // nil: a test's
	link    linker
	stat    fabric.Counters

	closing context.Context // ends when the fabric is closed
	close   context.CancelFunc
	tasks   sync.WaitGroup // connections, from before they are made; counted up under mu, until closed

	mu     sync.Mutex
	closed bool
	peers  map[netip.Addr]int // connections of each
	slots  int                // of all
	all    map[[16]byte]*connection
}

// link is a queue pair of this node: a rails.Link, or a test's.
type link interface {
	Local() initiator.Endpoint
	Port() int
	Move(m initiator.Move) error
	Fail()
	Failed() <-chan struct{}
	Done() <-chan struct{}
	Cut(wait time.Duration) error
}

// linker connects one to a client's.
type linker func(o rails.LinkOptions, stop <-chan struct{}) (link, error)

var (
	_ fabric.Fabric        = (*Fabric)(nil)
	_ fabric.Taker         = (*Fabric)(nil)
	_ fabric.Claimer       = (*Fabric)(nil)
	_ fabric.Revoker       = (*Fabric)(nil)
	_ fabric.Connector     = (*Fabric)(nil)
	_ fabric.StatsReporter = (*Fabric)(nil)
)

// New makes the fabric; the rails stay their owner's.
func New(o Options) *Fabric {
	return newFabric(o, func(l rails.LinkOptions, stop <-chan struct{}) (link, error) {
		made, err := o.Rails.Link(l, stop)
		if err != nil {
			return nil, err // else a link would hold nil, and not be nil
		}
		return made, nil
	})
}

func newFabric(o Options, l linker) *Fabric {
	f := &Fabric{
		permits: o.Permits, idle: o.IdleWait, logger: o.Logger, rails: o.Rails, link: l,
		peers: make(map[netip.Addr]int), all: make(map[[16]byte]*connection),
	}
	if f.idle == 0 {
		f.idle = DefaultIdleWait
	}
	if f.logger == nil {
		f.logger = slog.New(slog.DiscardHandler)
	}
	f.closing, f.close = context.WithCancel(context.Background())
	return f
}

// Name is "rc-tokens".
func (f *Fabric) Name() string { return Name }

// Takes tells whether the token names a connection.
func (f *Fabric) Takes(d token.Descriptor) bool { return d.Kind == token.RC }

// Rails are those of the node.
func (f *Fabric) Rails() []fabric.Rail {
	var list []fabric.Rail
	for _, p := range f.rails.Ports() {
		list = append(list, fabric.Rail{Fabric: Name, Name: p.Name(), Up: p.Up, Reason: p.Reason})
	}
	return list
}

// Stats reads the counters.
func (f *Fabric) Stats() fabric.Stats { return f.stat.Read(Name) }

// Connect makes a connection.
func (f *Fabric) Connect(ctx context.Context, r fabric.ConnectRequest) (fabric.Connection, error) {
	if !f.permits(r.Token.GID, r.Peer.Addr()) {
		return fabric.Connection{}, fmt.Errorf("%w: the queue pair's address is not the client's", fabric.ErrNotGranted)
	}
	c := &connection{fabric: f, peer: siteOf(r.Peer.Addr()), owner: r.Principal}
	if _, err := rand.Read(c.id[:]); err != nil {
		return fabric.Connection{}, fmt.Errorf("rc-tokens: random id: %w", err)
	}
	if err := f.enter(c); err != nil {
		f.stat.Refused.Add(1)
		return fabric.Connection{}, err
	}
	made, err := f.dial(ctx, c, r)
	if err != nil {
		f.leave(c)
		f.stat.Refused.Add(1)
		return fabric.Connection{}, refusal(err)
	}
	c.begin(made)
	if ctx.Err() != nil { // nobody hears of it
		c.end(fabric.ErrPeerGone)
		return fabric.Connection{}, context.Cause(ctx)
	}
	if err := c.err(); err != nil { // already
		return fabric.Connection{}, refusal(err)
	}
	at := made.Local()
	return fabric.Connection{
		ID: c.id, QPN: at.QPN, PSN: at.PSN, GID: at.GID, Port: uint8(made.Port()), LID: at.LID,
	}, nil
}

// dial connects a queue pair to the client's, until the client or the fabric ends.
func (f *Fabric) dial(ctx context.Context, c *connection, r fabric.ConnectRequest) (link, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.closing, cancel)()
	o := rails.LinkOptions{
		Owner: r.Principal, Session: c.id, Local: r.Local,
		Peer: initiator.Endpoint{
			QPN: r.Token.QPN, PSN: r.PSN, GID: r.Token.GID, LID: r.Token.LID, MTU: anyMTU, Reads: peerReads,
		},
	}
	if o.Owner == "" {
		o.Owner = "unsigned " + c.peer.String() // no principal has this name
	}
	return f.link(o, ctx.Done())
}

// refusal is what a client is told of a link that was not made.
func refusal(err error) error {
	kind := fabric.ErrNoFabric
	switch {
	case errors.Is(err, rails.ErrTaken):
		kind = fabric.ErrNotGranted
	case errors.Is(err, rails.ErrShare), errors.Is(err, initiator.ErrLimit):
		kind = fabric.ErrLimit
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// siteOf is what connections are counted by: an IPv4 address, an IPv6 site, or a neighbour on the link.
func siteOf(peer netip.Addr) netip.Addr {
	peer = peer.Unmap().WithZone("")
	if peer.Is4() || peer.IsLinkLocalUnicast() {
		return peer
	}
	site, err := peer.Prefix(ip6Site)
	if err != nil {
		return peer // no address at all
	}
	return site.Addr()
}

// enter takes the place of a connection, which leave gives back. Errors: ErrLimit, ErrNoFabric.
func (f *Fabric) enter(c *connection) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return fmt.Errorf("%w: closed", fabric.ErrNoFabric)
	case f.slots >= maxConnections:
		return fmt.Errorf("%w: %d connections", fabric.ErrLimit, f.slots)
	case f.peers[c.peer] >= maxPerPeer:
		return fmt.Errorf("%w: %d connections of one address", fabric.ErrLimit, f.peers[c.peer])
	}
	f.slots++
	f.peers[c.peer]++
	f.tasks.Add(1)
	return nil
}

func (f *Fabric) leave(c *connection) {
	f.mu.Lock()
	delete(f.all, c.id)
	f.slots--
	if f.peers[c.peer]--; f.peers[c.peer] == 0 {
		delete(f.peers, c.peer)
	}
	f.mu.Unlock()
	f.tasks.Done()
}

// find returns a connection that is not yet all gone, or nil.
func (f *Fabric) find(id [16]byte) *connection {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all[id]
}

// list returns the connections that fit.
func (f *Fabric) list(fits func(*connection) bool) []*connection {
	f.mu.Lock()
	all := make([]*connection, 0, len(f.all))
	for _, c := range f.all {
		all = append(all, c)
	}
	f.mu.Unlock()
	some := all[:0]
	for _, c := range all {
		if fits(c) {
			some = append(some, c)
		}
	}
	return some
}

// Disconnect ends a connection.
func (f *Fabric) Disconnect(_ context.Context, id [16]byte) error {
	c := f.find(id)
	if c == nil {
		return nil
	}
	return c.cut(fabric.ErrPeerGone)
}

// RevokePrincipal ends all connections of the principal. One that nobody owns yet is nobody's.
func (f *Fabric) RevokePrincipal(principal string) {
	_ = f.cutAll(f.list(func(c *connection) bool { return c.isOf(principal) }), fabric.ErrRevoked) // each transfer says so
}

// cutAll cuts connections at once.
func (f *Fabric) cutAll(list []*connection, cause error) error {
	errs := make([]error, len(list))
	var tasks sync.WaitGroup
	for i, c := range list {
		tasks.Go(func() { errs[i] = c.cut(cause) })
	}
	tasks.Wait()
	return errors.Join(errs...)
}

// Claim binds the connection to the principal of an authenticated request, if it is nobody's. Errors: ErrNoSession,
// ErrNotGranted. `rc:` tokens have no number that could be used up: the claim is nil.
func (f *Fabric) Claim(d token.Descriptor, principal string) (*fabric.Claim, error) {
	c := f.find(d.SessionID)
	if c == nil {
		return nil, fabric.ErrNoSession
	}
	return nil, c.bind(principal)
}

// Open opens the window of a token. Errors: ErrNoSession; ErrNotGranted, when the connection is another principal's;
// ErrBusy; ErrTooLarge; ErrFenced, when the deadline is too near.
func (f *Fabric) Open(_ context.Context, d token.Descriptor, g fabric.Grant) (fabric.Remote, error) {
	switch {
	case d.Kind != token.RC:
		return nil, fabric.ErrUnsupportedToken
	case g.Bytes < 0 || g.Bytes > d.Size:
		return nil, fmt.Errorf("%w: %d of %d", fabric.ErrTooLarge, g.Bytes, d.Size)
	}
	c := f.find(d.SessionID)
	if c == nil {
		return nil, fabric.ErrNoSession
	}
	return c.open(d, g)
}

// Close cuts all connections and waits until nothing is left of them. After an error an adapter may still use the
// arena, which must stay mapped; Close may be called again then, once the rails are closed. Errors: fabric.ErrStuck.
func (f *Fabric) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.close()
	_ = f.cutAll(f.list(func(*connection) bool { return true }), fabric.ErrShutdown) // what is stuck is waited for below
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.tasks.Wait()
	}()
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-ended:
		return nil
	case <-limit.C:
		return fmt.Errorf("%w: a queue pair is not reset", fabric.ErrStuck)
	}
}
