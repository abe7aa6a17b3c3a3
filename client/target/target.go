// Package target is the client's end of the shm and tcp fabrics: it holds the memory that a server
// may write or read, and the data connections on which it grants that.
//
// Called by: client (Session, Region), fabrictest.
//
// Invariants:
//  1. A server touches only windows that Expect granted and End has not taken back (tcp), or regions
//     that are announced (shm, where the kernel cannot tell windows apart).
//  2. Memory whose session ended without a fence is abandoned: it is never given back or reused.
//  3. The client proves its secret and demands the server's proof before it announces memory.
//
// Lock order: Conn.mu is a leaf.
//
// What it does not do: HTTP, retries, choosing a fabric.
package target

import (
	"context"
	"errors"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

var (
	// ErrClosed says that the session has ended.
	ErrClosed = errors.New("target: session ended")
	// ErrRefused says that the server refused the connection or the region.
	ErrRefused = errors.New("target: refused by the server")
	// ErrNotFenced says that the server did not confirm a fence: the memory is abandoned.
	ErrNotFenced = errors.New("target: memory not fenced")
	// ErrMemory says that the memory does not fit: wrong kind for the fabric, bounds, freed.
	ErrMemory = errors.New("target: memory refused")
)

// Options tune a Conn.
type Options struct {
	Conns int // tcp data connections; 0 means DefaultConns, capped by the server's limit
}

// DefaultConns is the number of tcp data connections of a session: each transfer uses one stream, and
// four fill a link or two cores.
const DefaultConns = 4

// Dial opens the data connections of an offered session. The context bounds the handshake only.
// Errors: ErrRefused, network errors.
func Dial(ctx context.Context, offer frame.SessionReply, o Options) (*Conn, error) {
	return dial(ctx, offer, o)
}

// Direction of a granted window, named by the S3 operation.
type Direction int

// Directions.
const (
	ForGet Direction = iota + 1 // the server writes the window
	ForPut                      // the server reads it
)

// Grant allows one request's transfer into or out of a window, until End.
type Grant struct {
	conn       *Conn
	descriptor token.Descriptor
}

// Token is the secret text for x-amz-rdma-token.
func (g *Grant) Token() string { return g.descriptor.Encode() }
