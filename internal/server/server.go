// Package server is the composition root of a node: it opens everything from the configuration,
// listens, and closes everything in the right order.
//
// Called by: cmd/penstock, bench, tests.
//
// Start: lock on the data directory → root's key → metadata → drive → binding of the two → store (new
// epoch) → fabrics → certificates → access log → gateway → listeners → background work. Stop: not ready →
// no new connections → requests in flight finish, up to a limit → fabrics fence what is left → background
// work ends → access log, chunk engine, drive, metadata and lock close.
//
// Invariants:
//  1. One process has a data directory; a second one gets ErrLocked.
//  2. New leaves nothing open when it fails.
//  3. Every goroutine started here has ended when Serve or Close has returned.
//  4. A drive is formatted and metadata are created only at a node's first start; later, a missing one
//     of them is an error, since an unmounted disk must not become an empty store. So is a drive that
//     the metadata do not know, or that is newer than they are: see meta.Bind.
//
// What it does not do: flags and files of the configuration (config), signals (cmd), log output (cli).
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-store/penstock/internal/accesslog"
	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/certs"
	"github.com/penstock-store/penstock/internal/chunk/local"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/drive"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/gateway"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/meta/kv/pebble"
	"github.com/penstock-store/penstock/internal/requestid"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
	"github.com/penstock-store/penstock/internal/work"
	"github.com/penstock-store/penstock/native"
)

// ErrLocked says that another process has the data directory.
var ErrLocked = errors.New("server: the data directory is in use by another process")

// ErrNoMetadata says that a node which had metadata has none. Starting without would make an empty
// store, and every chunk of the drive an orphan.
var ErrNoMetadata = errors.New("server: the node's metadata are missing")

// errNotReady says why /readyz says no.
var errNotReady = errors.New("server: not ready")

// closeWait bounds the wait for device operations that hang, at the end.
const closeWait = 10 * time.Second

// Server is a node.
type Server struct {
	config config.Config
	log    *slog.Logger
	fs     vfs.FS

	credentials string // path of the credentials file, "" when the environment gave them
	identity    identity
	root        iam.Key
	arena       *arena.Arena
	kv          *pebble.Engine
	drive       *drive.Drive
	chunks      *local.Engine
	store       *store.Store
	collector   *work.Collector
	fabrics     *fabric.Manager
	further     []fabric.Fabric  // of the ground
	library     *native.Library  // of verbs; nil: not opened yet
	rails       *rails.Set       // nil: no rail
	closeRails  func() error     // once
	connector   fabric.Connector // nil: no rail, or switched off
	exchange    fabric.Exchange  // the same
	keys        *iam.Keys
	gateway     *gateway.Gateway
	registry    *prometheus.Registry

	listener *gateway.Listener
	front    net.Listener      // listener, in TLS where configured
	ids      *requestid.Source // of the admin listener
	admin    net.Listener      // nil: none
	http     *http.Server
	adminWeb *http.Server

	certs      *certs.Store    // nil: plain HTTP
	access     *accesslog.Log  // nil: none
	open       []*atomic.Int64 // connections of each HTTP server
	handshakes atomic.Int64    // of TLS, that failed

	closers []closer // in the order of opening
	once    sync.Once
	closed  error
	ready   atomic.Bool
	broken  atomic.Pointer[error] // why metadata takes no more writes
}

// closer undoes one step of the start.
type closer struct {
	name  string
	close func() error
}

// New opens a node and listens; requests are answered once Serve runs. A nil log discards.
func New(ctx context.Context, c config.Config, log *slog.Logger) (*Server, error) {
	return NewOn(ctx, Ground{}, c, log)
}

// Ground is what a node stands on; what is missing is the machine's.
type Ground struct {
	// FS lies below metadata and drives; the files that say who the node is and who root is stay on the real one.
	FS vfs.FS
	// Verbs stays open until the node is closed.
	Verbs *native.Library
	// Fabrics are further ones, which the node closes. One that is a fabric.Exchange is offered as such.
	Fabrics []fabric.Fabric
}

// NewOn is New on other ground.
func NewOn(ctx context.Context, g Ground, c config.Config, log *slog.Logger) (*Server, error) {
	if g.FS == nil {
		g.FS = osfs.FS{}
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	log = slog.New(requestid.NewHandler(log.Handler()))
	s := &Server{config: c, log: log, fs: g.FS, library: g.Verbs, further: g.Fabrics, registry: prometheus.NewRegistry(),
		ids: requestid.NewSource()}
	steps := []struct {
		name string
		open func(context.Context) error
	}{
		{"data directory", s.openData}, {"root's key", s.openRoot}, {"buffers", s.openArena},
		{"metadata", s.openMeta},
		{"drive", s.openDrive}, {"metadata for the drive", s.bindDrive}, {"store", s.openStore},
		{"fabrics", s.openFabrics}, {"access keys", s.openKeys},
		{"certificates", s.openCerts}, {"access log", s.openAccessLog}, {"gateway", s.openGateway},
		{"listeners", s.listen},
	}
	for _, step := range steps {
		if err := step.open(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("server: open %s: %w", step.name, err), s.Close())
		}
	}
	return s, nil
}

func (s *Server) onClose(name string, f func() error) {
	s.closers = append(s.closers, closer{name, f})
}

// Addr is the address of the S3 endpoint.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// AdminAddr is the address of /metrics, /livez and /readyz, or nil.
func (s *Server) AdminAddr() net.Addr {
	if s.admin == nil {
		return nil
	}
	return s.admin.Addr()
}

// CredentialsFile is the path of root's credentials, or "" when the environment gave them.
func (s *Server) CredentialsFile() string { return s.credentials }

// Root is root's key, for programs that run a node inside themselves.
func (s *Server) Root() iam.Key { return s.root }

// Serve answers requests until ctx ends or a listener fails, then drains and closes everything. nil
// after a clean end.
func (s *Server) Serve(ctx context.Context) error {
	background, stop := context.WithCancel(context.Background())
	defer stop()
	var tasks sync.WaitGroup
	failed := make(chan error, 2)
	serve := func(srv *http.Server, l net.Listener) {
		tasks.Go(func() {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("server: serve %v: %w", l.Addr(), err)
			}
		})
	}
	tasks.Go(func() { _ = s.collector.Run(background) }) // its error is background's end
	serve(s.http, s.front)
	if s.admin != nil {
		serve(s.adminWeb, s.admin)
	}
	s.ready.Store(true)
	s.log.Info("node is up", "s3", s.Addr().String(), "admin", addrText(s.AdminAddr()), "data", s.config.Data,
		"credentials", s.credentials, "node", s.identity.Node)

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.drain()
	stop()
	tasks.Wait()
	if err = errors.Join(err, s.Close()); err == nil {
		s.log.Info("node is down")
	}
	return err
}

func addrText(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// drain ends the service: what is in flight may finish, up to the limit.
func (s *Server) drain() {
	s.ready.Store(false)
	s.log.Info("draining", "requests", s.gateway.InFlight(), "limit", s.config.Limits.ShutdownTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), s.config.Limits.ShutdownTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		s.log.Warn("requests are cut off", "requests", s.gateway.InFlight())
		s.gateway.Drain()
		_ = s.http.Close() // the listeners are closed already
		// Transfers into client memory do not end with their connection: fence them. Closing them again,
		// in the order of all, finds nothing left to do.
		if err := s.closeFabrics(); err != nil {
			s.log.Warn("fabrics did not close well", "error", err)
		}
	}
	s.awaitNone("requests", s.gateway.InFlight) // what they use is closed next
	if s.adminWeb != nil {
		_ = s.adminWeb.Close() // nothing there is worth waiting for
	}
	s.awaitNone("connections", s.connections)
}

// awaitNone waits until nothing is left, up to a limit.
func (s *Server) awaitNone(what string, left func() int64) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(closeWait); left() > 0; <-ticker.C {
		if time.Now().After(end) {
			s.log.Error("the end does not come", "of", what, "left", left())
			return
		}
	}
}

// connections is how many connections net/http has, those after whose answer it lingers included.
func (s *Server) connections() (n int64) {
	for _, open := range s.open {
		n += open.Load()
	}
	return n
}

// Close closes everything. Serve does it at its end; further calls do nothing.
func (s *Server) Close() error {
	s.once.Do(func() {
		var errs []error
		for _, c := range slices.Backward(s.closers) {
			if err := c.close(); err != nil {
				errs = append(errs, fmt.Errorf("server: close %s: %w", c.name, err))
			}
		}
		s.closed = errors.Join(errs...)
	})
	return s.closed
}

// checkReady says why requests should go elsewhere.
func (s *Server) checkReady() error {
	if !s.ready.Load() {
		return fmt.Errorf("%w: starting or draining", errNotReady)
	}
	if cause := s.broken.Load(); cause != nil {
		return fmt.Errorf("%w: metadata takes no writes: %w", errNotReady, *cause)
	}
	if state := s.drive.State(); state.Mode != drive.ReadWrite {
		return fmt.Errorf("%w: drive is %v", errNotReady, state.Mode)
	}
	return nil
}

// quietly closes what the HTTP server may have closed before.
func quietly(f func() error) func() error {
	return func() error {
		if err := f(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}
