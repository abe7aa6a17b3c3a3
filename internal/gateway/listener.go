package gateway

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// graceConnections are accepted beyond the limit when every connection runs a request, so that their
// clients get 503 SlowDown and not a reset. Beyond those, connections are closed at once.
const graceConnections = 256

// Listener bounds connections, and each write by a deadline, so that a client that stops reading
// cannot hold buffers for ever. At the limit a newcomer takes the place of a connection that runs no
// request: see crowd.
type Listener struct {
	net.Listener
	limit   int64
	stall   time.Duration
	open    atomic.Int64
	evicted atomic.Int64
	crowd   crowd
}

// NewListener wraps a listener: limit connections, each write done within stall.
func NewListener(inner net.Listener, limit int, stall time.Duration) *Listener {
	return &Listener{Listener: inner, limit: int64(limit), stall: stall}
}

// Connections is the number of open connections.
func (l *Listener) Connections() int64 { return l.open.Load() }

// Evicted is the number of connections that were closed for a newcomer.
func (l *Listener) Evicted() int64 { return l.evicted.Load() }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		n := l.open.Add(1)
		if n > l.limit && l.evict() {
			n--
		}
		if n > l.limit+graceConnections {
			l.open.Add(-1)
			_ = c.Close() // a refusal: there is nobody to tell
			continue
		}
		own := &conn{Conn: c, listener: l, over: n > l.limit}
		l.crowd.wait(&l.crowd.fresh, own)
		return own, nil
	}
}

// evict makes room for one connection, if there is one to lose.
func (l *Listener) evict() bool {
	c := l.crowd.take()
	if c == nil {
		return false
	}
	l.lose(c)
	return true
}

// lose closes a connection for the sake of others.
func (l *Listener) lose(c *conn) {
	l.evicted.Add(1)
	_ = c.Close() // net/http notices and ends what it has of it
}

// conn notes when bytes arrived and bounds writes.
type conn struct {
	net.Conn
	listener *Listener
	over     bool
	proved   atomic.Bool   // had a request with a valid signature
	place    *list.Element // in list; these five are the crowd's and under its mutex
	list     *list.List
	held     int64 // bytes read outside of handlers
	serving  bool  // a handler has it
	lost     bool  // was given up: about to be closed
	closed   atomic.Bool
	read     atomic.Int64 // unix nanoseconds of the last read that gave bytes
	written  atomic.Int64 // unix nanoseconds when the write deadline was last set
	subject  string       // of the client's certificate; belongs to the request under way
}

// Read notes the time: the header of a request arrived no later.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.read.Store(time.Now().UnixNano())
		if out := c.listener.crowd.hold(c, n); out != nil {
			c.listener.lose(out)
		}
	}
	return n, err
}

// Write bounds each write. The deadline is moved only once it is a quarter used up: setting it for
// every write would cost more than the write of a small answer.
func (c *conn) Write(p []byte) (int, error) {
	stall := c.listener.stall
	now := time.Now()
	if now.UnixNano()-c.written.Load() > int64(stall/4) {
		if err := c.Conn.SetWriteDeadline(now.Add(stall)); err != nil {
			return 0, err
		}
		c.written.Store(now.UnixNano())
	}
	return c.Conn.Write(p)
}

// SetWriteDeadline makes the next Write set its own when t is zero: net/http takes deadlines away between
// requests. Another one stands for a while: TLS bounds its handshake and its last words by it.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.noteDeadline(t)
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline is SetWriteDeadline for both directions.
func (c *conn) SetDeadline(t time.Time) error {
	c.noteDeadline(t)
	return c.Conn.SetDeadline(t)
}

func (c *conn) noteDeadline(t time.Time) {
	if t.IsZero() {
		c.written.Store(0)
	} else {
		c.written.Store(time.Now().UnixNano())
	}
}

// CloseWrite lets net/http end the answer before it closes a connection with unread bytes.
func (c *conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close gives the place back.
func (c *conn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.listener.open.Add(-1)
		c.listener.crowd.leave(c)
	}
	return c.Conn.Close()
}

// arrival is when the last bytes of the request's header reached this machine, as far as can be
// known: the kernel's note where there is one (it includes the time in the accept queue and in the
// socket buffer), and the time of our read otherwise.
func (c *conn) arrival(now time.Time) time.Time {
	at := now
	if ns := c.read.Load(); ns != 0 {
		at = time.Unix(0, ns)
	}
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return at
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return at
	}
	_ = raw.Control(func(fd uintptr) { // its error means a closed connection: at stands
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		if kernel := now.Add(-time.Duration(info.Last_data_recv) * time.Millisecond); kernel.Before(at) {
			at = kernel
		}
	})
	return at
}

// gone tells whether the client has closed its side. net/http notices that by itself only as long as the
// client sends nothing behind its request.
func (c *conn) gone() bool {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	const established = 1 // TCP_ESTABLISHED; a client that ended its side leaves CLOSE_WAIT
	state := uint8(0)
	err = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	})
	return err != nil || state != established
}

// errPeerGone ends a write whose client is gone: its retry may be acknowledged already.
var errPeerGone = fmt.Errorf("gateway: the client closed its connection: %w", context.Canceled)

// checkPeer is the last check before a commit. Errors: errPeerGone.
func (c *call) checkPeer() error {
	if own := connOf(c.r.Context()); own != nil && own.gone() {
		return errPeerGone
	}
	return nil
}

// connKey is the key of the connection in the context of its requests.
type connKey struct{}

// ConnContext goes into http.Server.ConnContext.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if own := ownConn(c); own != nil {
		return context.WithValue(ctx, connKey{}, own)
	}
	return ctx
}

func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}
