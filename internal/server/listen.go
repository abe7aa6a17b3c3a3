package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/penstock-store/penstock/internal/accesslog"
	"github.com/penstock-store/penstock/internal/certs"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/front"
	"github.com/penstock-store/penstock/internal/gateway"
	"github.com/penstock-store/penstock/internal/requestid"
)

func (s *Server) listen(context.Context) error {
	inner, err := net.Listen("tcp", s.config.HTTP.Listen)
	if err != nil {
		return err
	}
	l := s.config.Limits
	s.listener = gateway.NewListener(inner, l.Connections, l.StallTimeout)
	s.onClose("S3 listener", quietly(s.listener.Close))
	o := front.Options{Handshake: l.ReadHeaderTimeout, Refuse: s.gateway.Refuse, Log: s.log}
	if s.certs != nil {
		o.TLS = s.certs.Config
		o.Failed = func(string, error) { s.handshakes.Add(1) }
	}
	s.front = front.NewListener(s.listener, o)
	var one http.Protocols
	one.SetHTTP1(true) // what S3 clients speak; streams of HTTP/2 would share one connection's window
	s.http = &http.Server{
		Handler: s.gateway, ConnContext: gateway.ConnContext, Protocols: &one, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: l.ReadHeaderTimeout, IdleTimeout: l.IdleTimeout,
		MaxHeaderBytes: int(config.MaxHeaderBytes), ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	front.Attach(s.http)
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
		return err
	}
	s.admin = front.NewListener(inner, front.Options{
		Refuse: func(r front.Refusal) []byte { return front.Plain(r, s.ids.Next()) }, Log: s.log,
	})
	s.onClose("admin listener", quietly(s.admin.Close))
	l := s.config.Limits
	s.adminWeb = &http.Server{
		Handler: s.identified(s.adminHandler()), ReadHeaderTimeout: l.ReadHeaderTimeout, IdleTimeout: l.IdleTimeout,
		WriteTimeout: l.StallTimeout, ErrorLog: s.http.ErrorLog,
	}
	front.Attach(s.adminWeb)
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
