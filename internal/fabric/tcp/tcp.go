// Package tcp is the server's end of the tcp fabric: payload moves as frames over data connections,
// and the client's receiver places it. docs/wire.md has the protocol.
//
// Called by: fabric.Manager; built by server.
//
// Invariants:
//  1. A session has at most frame.MaxConns connections, each proved by HMAC; a transfer uses one.
//  2. Payload is written from arena buffers and read into them without a copy or an allocation.
//  3. What the client sends is checked against what was asked: frames answer the oldest read exactly.
//  4. A connection's reader waits for nothing but its connection; so a client that sends always
//     progresses, and one that stalls costs only its own session.
//  5. Closing the connections is the fence. It happens when a deadline passes with operations under way.
//
// Lock order: session.mu, then the roster; fabric.Session, then conn.mu; conn.writing (a semaphore)
// before conn.mu. No lock but the connection's own write semaphore is held over a write.
//
// What it does not do: encryption, congestion control of its own, verification.
package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/dataconn"
	"github.com/penstock-store/penstock/internal/token"
)

// Name is the fabric's name in tokens and in the control plane.
const Name = "tcp"

const (
	// DefaultStallWait bounds how long a client may not take or send a frame that is due. A ps1 deadline
	// may be minutes away, and a stalled transfer holds arena buffers that others need.
	DefaultStallWait = 15 * time.Second
	// closeGrace bounds the last exchange of a transfer whose deadline is near or over.
	closeGrace = 500 * time.Millisecond
)

// Options configure the fabric.
type Options struct {
	Ledger  *fabric.Ledger
	Address string // "host:port"; port 0 draws one
	// Advertise is what clients are told to dial; empty means the address listened on.
	Advertise string
	StallWait time.Duration // 0 means DefaultStallWait
	Logger    *slog.Logger
}

// Fabric listens for data connections and opens windows.
type Fabric struct {
	fabric.Sessions
	address  string
	stall    time.Duration
	listener net.Listener
	roster   *fabric.Roster
	logger   *slog.Logger
	door     *fabric.Door
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
	listener, address, err := dataconn.Listen(o.Address, o.Advertise)
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	roster := fabric.NewRoster(Name, o.Ledger)
	f := &Fabric{
		Sessions: roster.Sessions("tcp", address),
		address:  address,
		listener: listener,
		roster:   roster,
		logger:   o.Logger,
	}
	if f.stall = o.StallWait; f.stall == 0 {
		f.stall = DefaultStallWait
	}
	if f.logger == nil {
		f.logger = slog.New(slog.DiscardHandler)
	}
	f.door = fabric.NewDoor(listener, f.serve, &f.roster.Counters.Refused, f.logger)
	f.door.Open()
	return f, nil
}

// Name is "tcp".
func (f *Fabric) Name() string { return Name }

// Rails has one rail, the listener.
func (f *Fabric) Rails() []fabric.Rail {
	return []fabric.Rail{{
		Fabric: Name, Name: f.listener.Addr().String(), Network: "tcp", Address: f.address, Up: true,
	}}
}

// Open pins the window that the descriptor names and picks the connection with the fewest transfers.
func (f *Fabric) Open(_ context.Context, d token.Descriptor, g fabric.Grant) (fabric.Remote, error) {
	w, err := f.roster.Open(d, g)
	if err != nil {
		return nil, err
	}
	return newRemote(w, w.Session.Carrier.(*session).pick()), nil
}

// Close cuts all sessions and waits for their goroutines.
func (f *Fabric) Close() error {
	err := f.door.Shut()
	f.roster.Close()
	return errors.Join(err, f.door.Wait())
}
