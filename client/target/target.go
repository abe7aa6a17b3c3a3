// Package target is the client's end of the shm, tcp, rc and dc fabrics: it holds the memory that a server
// may write or read, and the data connections on which it grants that. On dc there are none: a DC makes tokens that say
// all by themselves. It was not yet run on hardware.
//
// Called by: client (Session, Region), fabrictest, benchmarks.
//
// Invariants:
//  1. A server touches only windows that Expect granted and End has not taken back (tcp), or regions
//     that are announced (shm and rc, where kernel and adapter cannot tell windows apart), or registered (dc).
//  2. Memory whose session ended without a fence is abandoned: it is never announced again, and memory
//     of Go's heap among it is never collected. On rc that takes an adapter that lets go of nothing.
//  3. The client proves its secret and demands the server's proof before it announces memory.
//  4. A receiver never waits for anything but its own connection and, on rc, the adapter of this machine, so the
//     server's writes always progress while the client lives.
//  5. FENCED is sent only when the path's queue pair is destroyed, or at least in its error state. When a session has
//     ended, all its queue pairs are, and then its memory is deregistered, once.
//  6. No call of an adapter is made under Devices.mu, paths.mu or DC.mu: drivers may take long.
//  7. Memory of a DC has keys that no other registration has. When they are revoked, or the DC's targets are closed, no
//     adapter of this machine takes a packet for the memory, whoever sends it.
//
// Lock order: link.writeMu, then Conn.mu, then Memory.mu; Devices.mu, then the eventMu of paths or DC. paths.mu and
// DC.mu are taken under none of them, and none of them under these.
//
// What it does not do: HTTP, retries, choosing a fabric.
package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
)

var (
	// ErrClosed says that the session has ended.
	ErrClosed = errors.New("target: session ended")
	// ErrRefused says that the server refused the connection or the region.
	ErrRefused = errors.New("target: refused by the server")
	// ErrSpent says that the session has numbered as many tokens as it can: open another one.
	ErrSpent = errors.New("target: no numbers for tokens left")
	// ErrNotFenced says that the server did not confirm a fence: the memory is abandoned.
	ErrNotFenced = errors.New("target: memory not fenced")
	// ErrPinned says that an adapter of this machine did not take the memory: too much locked memory (ENOMEM; ulimit
	// -l), or a kind that it cannot pin.
	ErrPinned = errors.New("target: memory not pinned")
	// ErrMemory says that the memory does not fit: wrong kind for the fabric, bounds, freed,
	// abandoned, still announced.
	ErrMemory = errors.New("target: memory refused")
)

// Options tune a Conn.
type Options struct {
	Conns   int      // tcp data connections; 0 means DefaultConns, capped by the server's limit
	Devices *Devices // of rc; it may serve many sessions and outlives them
}

// DefaultConns is the number of tcp data connections of a session: each transfer uses one stream, and
// four fill a link or two cores.
const DefaultConns = 4

// handshakeWait bounds the opening of a data connection when the context has no deadline.
const handshakeWait = 5 * time.Second

// Dial opens the data connections of an offered session, and on rc its paths, of which it waits for the first. The
// context bounds that only. Errors: ErrRefused (with the reason why there is no path), network errors.
func Dial(ctx context.Context, offer frame.SessionReply, o Options) (*Conn, error) {
	if offer.Secret.IsZero() {
		return nil, fmt.Errorf("%w: offer without a secret", ErrRefused)
	}
	want := 1
	switch {
	case offer.Fabric == "shm" && offer.Network == "unix":
	case offer.Fabric == "tcp" && offer.Network == "tcp":
		want = o.Conns
		if want <= 0 {
			want = DefaultConns
		}
	case offer.Fabric == "rc" && offer.Network == "tcp" && o.Devices != nil:
	default:
		return nil, fmt.Errorf("%w: fabric %q over %q", ErrRefused, offer.Fabric, offer.Network)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeWait)
	defer cancel()
	c := newConn(offer)
	if offer.Fabric == "rc" {
		c.paths = newPaths(c, o.Devices)
	}
	for index := 0; index < want; index++ {
		ready, err := c.join(ctx, offer, uint32(index))
		if err != nil {
			c.end(err)
			return nil, err
		}
		c.limits = ready
		want = min(want, int(ready.Conns))
	}
	c.start()
	if c.paths != nil {
		if err := c.paths.open(ctx); err != nil {
			_ = c.Close() // the first error is what counts
			return nil, err
		}
	}
	return c, nil
}

// join opens and proves one data connection.
func (c *Conn) join(ctx context.Context, offer frame.SessionReply, index uint32) (frame.ReadyBody, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, offer.Network, offer.Address)
	if err != nil {
		return frame.ReadyBody{}, fmt.Errorf("target: dial %s: %w", offer.Fabric, err)
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	ready, err := frame.Connect(conn, offer.Session, offer.Secret.Reveal(), index)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close() // it carried nothing; the first error is what counts
		if refused := new(frame.RefusedError); errors.As(err, &refused) {
			return ready, fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return ready, err
	}
	_ = conn.SetDeadline(time.Time{})
	if stream, ok := conn.(*net.TCPConn); ok {
		_ = stream.SetWriteBuffer(frame.SendBufferBytes)
	}
	c.links = append(c.links, newLink(c, conn))
	return ready, nil
}
