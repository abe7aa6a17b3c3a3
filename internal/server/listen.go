package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/accesslog"
	"github.com/penstock-store/penstock/internal/certs"
	"github.com/penstock-store/penstock/internal/front"
	"github.com/penstock-store/penstock/internal/gateway"
	"github.com/penstock-store/penstock/internal/requestid"
)

// adminConnections bounds those of monitoring, which needs a handful; at the limit the oldest ends.
const adminConnections = 64

// connectionLimit is the configured number of connections, but at most half of the descriptors that this
// process may have: files, data connections and regions need theirs, and without any nothing is accepted.
func (s *Server) connectionLimit() int {
	limit := s.config.Limits.Connections
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || uint64(limit) <= files.Cur/2 {
		return limit
	}
	s.log.Warn("limits.connections is more than half of the file descriptors", "configured", limit,
		"descriptors", files.Cur, "limit", files.Cur/2)
	return int(files.Cur / 2)
}

func (s *Server) listen(context.Context) error {
	inner, err := net.Listen("tcp", s.config.HTTP.Listen)
	if err != nil {
		return fmt.Errorf("http.listen: %w", err)
	}
	l := s.config.Limits
	s.listener = gateway.NewListener(inner, s.connectionLimit(), l.StallTimeout)
	s.onClose("S3 listener", quietly(s.listener.Close))
	o := front.Options{Handshake: l.ReadHeaderTimeout, Refuse: s.gateway.Refuse, Log: s.log}
	if s.certs != nil {
		o.TLS = s.certs.Config
		o.Failed = func() { s.handshakes.Add(1) }
	}
	s.front = front.NewListener(s.listener, o)
	var one http.Protocols
	one.SetHTTP1(true) // what S3 clients speak; streams of HTTP/2 would share one connection's window
	s.http = &http.Server{
		Handler: s.gateway, ConnContext: gateway.ConnContext, ConnState: gateway.ConnState,
		Protocols: &one, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: l.ReadHeaderTimeout, IdleTimeout: l.IdleTimeout,
		MaxHeaderBytes: int(l.HeaderBytes), ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.open = append(s.open, front.Attach(s.http))
	return s.listenAdmin()
}

// openCerts reads the certificates, where the S3 endpoint speaks TLS.
func (s *Server) openCerts(context.Context) (err error) {
	h := s.config.HTTP
	o := certs.Options{ClientCA: h.ClientCA, ClientAuth: h.ClientAuth, Log: s.log}
	for _, p := range h.TLSPairs() {
		o.Pairs = append(o.Pairs, certs.Pair{Cert: p[0], Key: p[1]})
	}
	if len(o.Pairs) == 0 {
		return nil
	}
	if s.certs, err = certs.Open(o); err == nil {
		s.onClose("certificates", s.certs.Close)
	}
	return err
}

// openAccessLog opens the access log, where there is to be one.
func (s *Server) openAccessLog(context.Context) (err error) {
	o := accesslog.Options{Path: s.config.HTTP.AccessLog, Log: s.log}
	switch o.Path {
	case "":
		return nil
	case "-":
		o.To = os.Stdout
	}
	if s.access, err = accesslog.Open(o); err == nil {
		s.onClose("access log", func() error {
			end, cancel := context.WithTimeout(context.Background(), closeWait)
			defer cancel()
			return s.access.Close(end)
		})
	}
	return err
}

// Reload reads the certificates again, and goes on in a new file of the access log, as after SIGHUP. What
// goes wrong is logged, and stays as it was.
func (s *Server) Reload(ctx context.Context) {
	if s.certs != nil {
		_ = s.certs.Reload() // it has logged and counted
	}
	if s.access != nil {
		ctx, cancel := context.WithTimeout(ctx, closeWait)
		defer cancel()
		if err := s.access.Reopen(ctx); err != nil {
			s.log.Error("access log stays as it was", "error", err)
		}
	}
}

// listenAdmin opens the listener of /metrics, /livez and /readyz, which speaks plain HTTP.
func (s *Server) listenAdmin() error {
	if s.config.HTTP.AdminListen == "" {
		return nil
	}
	inner, err := net.Listen("tcp", s.config.HTTP.AdminListen)
	if err != nil {
		return fmt.Errorf("http.admin_listen: %w", err)
	}
	l := s.config.Limits
	s.admin = front.NewListener(gateway.NewListener(inner, adminConnections, l.StallTimeout), front.Options{
		Refuse: func(r front.Refusal) []byte { return front.Plain(r, s.ids.Next()) }, Log: s.log,
	})
	s.onClose("admin listener", quietly(s.admin.Close))
	s.adminWeb = &http.Server{
		Handler: s.identified(s.adminHandler()), ReadHeaderTimeout: l.ReadHeaderTimeout, IdleTimeout: l.IdleTimeout,
		WriteTimeout: l.StallTimeout, ErrorLog: s.http.ErrorLog,
	}
	s.open = append(s.open, front.Attach(s.adminWeb))
	return nil
}

// identified gives the requests of a handler ids.
func (s *Server) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := s.ids.Next()
		w.Header().Set("X-Amz-Request-Id", id)
		next.ServeHTTP(w, r.WithContext(requestid.NewContext(r.Context(), id)))
	})
}
