package server

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"

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
	if s.config.HTTP.TLSCert != "" {
		certificate, err := tls.LoadX509KeyPair(s.config.HTTP.TLSCert, s.config.HTTP.TLSKey)
		if err != nil {
			return err
		}
		o.TLS = &tls.Config{
			Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
			NextProtos: []string{"http/1.1"},
		}
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
