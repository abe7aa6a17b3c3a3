// Package server is the composition root of a node: it opens everything from the configuration,
// listens, and closes everything in the right order.
//
// Called by: cmd/penstock, bench, tests.
//
// Start: lock on the data directory → root's key → metadata → drive → store (new epoch) → fabrics →
// gateway → listeners → background work. Stop: not ready → no new connections → requests in flight
// finish, up to a limit → fabrics fence what is left → background work ends → store, drive,
// metadata and lock close.
//
// Invariants:
//  1. One process has a data directory; a second one gets ErrLocked.
//  2. New leaves nothing open when it fails.
//  3. Every goroutine started here has ended when Serve or Close has returned.
//
// What it does not do: flags and files of the configuration (config), signals (cmd).
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"github.com/penstock-store/penstock/internal/config"
)

// ErrLocked says that another process has the data directory.
var ErrLocked = errors.New("server: the data directory is in use by another process")

// Server is a running node.
type Server struct{}

// New opens a node and listens; requests are answered once Serve runs. A nil log discards.
func New(ctx context.Context, c config.Config, log *slog.Logger) (*Server, error) {
	return nil, errors.ErrUnsupported
}

// Addr is the address of the S3 endpoint.
func (s *Server) Addr() net.Addr { return nil }

// AdminAddr is the address of /metrics, /livez and /readyz, or nil.
func (s *Server) AdminAddr() net.Addr { return nil }

// CredentialsFile is the path of root's credentials, or "" when the environment gave them.
func (s *Server) CredentialsFile() string { return "" }

// Serve answers requests until ctx ends, then drains and closes everything. nil after a clean end.
func (s *Server) Serve(ctx context.Context) error { return errors.ErrUnsupported }

// Close closes a Server that Serve was not called on.
func (s *Server) Close() error { return nil }

// NewLogger makes the logger that the configuration asks for.
func NewLogger(c config.Log, to interface{ Write([]byte) (int, error) }) *slog.Logger { return nil }
