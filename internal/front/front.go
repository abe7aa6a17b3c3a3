// Package front stands between net/http and the connections of a listener: it speaks TLS, and it replaces
// the answers that net/http gives by itself, in plain text, to requests that it cannot read.
//
// Called by: server; gateway writes the answers.
//
// Invariants:
//  1. A write is looked at only while no handler's answer is under way, so that nothing a handler sends is
//     ever taken for an answer of net/http, whatever the bytes are.
//  2. An answer of net/http is replaced as a whole, and the connection ends with it.
//  3. The handshake runs in the goroutine of the connection, within its timeout, never in Accept.
//  4. Request.TLS is set for requests over TLS, and nil for others.
//
// How it works: net/http writes to a connection outside of a handler only to refuse a request: the header
// was too large or malformed, the transfer encoding or the version is not known, Expect wants something
// unknown. A handler's answer lasts from the call of the handler to the change of the connection's state
// to idle, or to its end.
//
// Locks: none.
//
// What it does not do: limits on connections (gateway.Listener), certificates (certs), HTTP/2.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Lingering after a refusal: the client may still be sending, and a reset would take the answer away from
// it. Bounded in time and bytes, since it is a stranger.
const (
	lingerWait  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// Refusal is a request that net/http could not read.
type Refusal struct {
	Status int    // that net/http would answer
	Reason string // why, in words of net/http's or this package's own; may be empty
	Remote string
	TLS    *tls.ConnectionState // nil: plain
}

// Options of a Listener.
type Options struct {
	TLS       func() *tls.Config // for one more connection; nil: plain
	Handshake time.Duration      // limit of the TLS handshake
	// Refuse makes a whole answer, from the status line on, that says Connection: close.
	Refuse func(Refusal) []byte
	// Failed is called for each TLS handshake that failed; may be nil.
	Failed func()
	Log    *slog.Logger
}

// Listener wraps the connections of another one.
type Listener struct {
	net.Listener
	o Options
}

// NewListener returns the listener to give to an http.Server that was given to Attach.
func NewListener(inner net.Listener, o Options) *Listener { return &Listener{inner, o} }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if l.o.TLS == nil {
		return &conn{Conn: raw, raw: raw, o: &l.o}, nil
	}
	t := tls.Server(raw, l.o.TLS())
	return &tlsConn{conn: conn{Conn: t, raw: raw, o: &l.o}, tls: t}, nil
}

// Attach makes a server tell the connections of a Listener when an answer is its handler's. Call it after
// Handler, ConnContext and ConnState were set. The result is the number of connections that the server still
// has: after some answers net/http lingers, Close or not.
func Attach(srv *http.Server) (open *atomic.Int64) {
	open = new(atomic.Int64)
	handler, connContext, connState := srv.Handler, srv.ConnContext, srv.ConnState
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.serving.Store(true)
		}
		handler.ServeHTTP(w, r)
	})
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if own := ownOf(c); own != nil {
			ctx = context.WithValue(ctx, connKey{}, own)
		}
		if connContext != nil {
			ctx = connContext(ctx, c)
		}
		return ctx
	}
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		case http.StateIdle:
			if own := ownOf(c); own != nil {
				own.serving.Store(false)
			}
		}
		if connState != nil {
			connState(c, state)
		}
	}
	return open
}

// connKey is the key of the connection in the context of its requests.
type connKey struct{}

func ownOf(c net.Conn) *conn {
	switch c := c.(type) {
	case *conn:
		return c
	case *tlsConn:
		return &c.conn
	}
	return nil
}

// conn watches what is written.
type conn struct {
	net.Conn // what HTTP is spoken on
	raw      net.Conn
	o        *Options

	serving atomic.Bool // a handler's answer is under way
	refused atomic.Bool // an answer of net/http was replaced
	ended   sync.Once
	state   func() *tls.ConnectionState // nil: plain
}

// NetConn is the connection that the inner listener accepted.
func (c *conn) NetConn() net.Conn { return c.raw }

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	if c.serving.Load() {
		return c.Conn.Write(p)
	}
	if c.refused.Load() {
		return len(p), nil // the rest of what was replaced
	}
	status, reason, ok := statusLine(p)
	if !ok {
		return c.Conn.Write(p)
	}
	r := Refusal{Status: status, Reason: reason, Remote: c.raw.RemoteAddr().String()}
	if c.state != nil {
		r.TLS = c.state()
	}
	if err := c.refuse(c.Conn, r); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *conn) refuse(to io.Writer, r Refusal) error {
	c.refused.Store(true)
	_, err := to.Write(c.o.Refuse(r))
	_ = c.raw.SetReadDeadline(time.Now().Add(lingerWait)) // net/http may wait for a body that never comes
	return err
}

// statusLine reads the beginning of an answer. The reason is what follows a colon in the first line.
func statusLine(p []byte) (status int, reason string, ok bool) {
	line, _, found := strings.Cut(string(p[:min(len(p), 512)]), "\r\n")
	if !found || len(line) < len("HTTP/1.1 400") || !strings.HasPrefix(line, "HTTP/1.") {
		return 0, "", false
	}
	for _, digit := range line[9:12] {
		if digit < '0' || digit > '9' {
			return 0, "", false
		}
		status = status*10 + int(digit-'0')
	}
	_, reason, _ = strings.Cut(line, ": ")
	return status, reason, status >= http.StatusBadRequest
}

// CloseWrite lets net/http end an answer before it closes a connection with unread bytes.
func (c *conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *conn) Close() error {
	if c.refused.Load() {
		c.ended.Do(c.linger)
	}
	return c.Conn.Close()
}

// linger ends our side and reads on for a moment. Its errors mean that the client is gone.
func (c *conn) linger() {
	_ = c.CloseWrite()
	if h, ok := c.raw.(interface{ CloseWrite() error }); ok && c.raw != c.Conn {
		_ = h.CloseWrite()
	}
	_ = c.raw.SetReadDeadline(time.Now().Add(lingerWait))
	_, _ = io.CopyN(io.Discard, c.raw, lingerBytes)
}

// tlsConn adds what net/http asks of a connection that is not a *tls.Conn and still speaks TLS.
type tlsConn struct {
	conn
	tls    *tls.Conn
	once   sync.Once
	failed error // of the handshake
}

// ConnectionState runs the handshake: net/http calls it first of all, in the goroutine of the connection.
func (c *tlsConn) ConnectionState() tls.ConnectionState {
	c.once.Do(c.handshake)
	return c.tls.ConnectionState()
}

func (c *tlsConn) handshake() {
	_ = c.raw.SetDeadline(time.Now().Add(c.o.Handshake)) // its error comes again with the first read
	c.failed = c.tls.Handshake()
	if c.failed == nil {
		_ = c.raw.SetDeadline(time.Time{}) // as above
		c.state = func() *tls.ConnectionState {
			state := c.tls.ConnectionState()
			return &state
		}
		return
	}
	remote := c.raw.RemoteAddr().String()
	var header tls.RecordHeaderError
	if errors.As(c.failed, &header) && header.Conn != nil && looksLikeHTTP(header.RecordHeader) {
		c.failed = fmt.Errorf("plain HTTP on a TLS port: %w", c.failed)
		r := Refusal{Status: http.StatusBadRequest, Reason: "plain HTTP was sent to an HTTPS port", Remote: remote}
		_ = c.refuse(c.raw, r) // a client that is gone needs no answer
	}
	c.o.Log.Debug("tls handshake failed", "remote", remote, "error", c.failed)
	if c.o.Failed != nil {
		c.o.Failed()
	}
}

// looksLikeHTTP tells the first bytes of a request line from those of a TLS record, which begin with a
// byte below 32.
func looksLikeHTTP(header [5]byte) bool {
	for _, b := range header {
		if (b < 'A' || b > 'Z') && b != ' ' && b != '/' {
			return false
		}
	}
	return true
}

// Read implements net.Conn. After a failed handshake the connection has ended: net/http answers nothing.
func (c *tlsConn) Read(p []byte) (int, error) {
	c.once.Do(c.handshake)
	if c.failed != nil {
		return 0, io.EOF
	}
	return c.tls.Read(p)
}

// Plain is the answer to a refusal where no S3 client is expected.
func Plain(r Refusal, id string) []byte {
	text := http.StatusText(r.Status)
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	body := text + " (request " + id + ")\n"
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nX-Amz-Request-Id: %s\r\nContent-Type: text/plain; charset=utf-8\r\n"+
		"Content-Length: %d\r\nConnection: close\r\n\r\n%s", r.Status, http.StatusText(r.Status), id, len(body), body)
}
