package fabric

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// MaxHandshakes bounds the connections of one fabric that have not proved a secret yet. A handshake
// takes milliseconds, so more of them are an attack. When all places are taken, a newcomer gets that of
// the connection that has waited longest among those of the origin with the most of them: whoever floods
// the door pushes out its own, and an honest client keeps its place for as long as MaxHandshakes others
// need to arrive.
const MaxHandshakes = 128

// acceptPause lets descriptors come free after a failed accept.
const acceptPause = 50 * time.Millisecond

// Door accepts a fabric's data connections and runs serve for each, in a goroutine of its own.
type Door struct {
	listener net.Listener
	serve    func(net.Conn)
	refused  *atomic.Int64
	logger   *slog.Logger
	tasks    sync.WaitGroup
	shut     chan struct{}

	mu      sync.Mutex
	closed  bool
	failure error              // of closing the listener
	arrived uint64             // connections so far
	waiting map[net.Conn]guest // in their handshake
	origins map[string]int     // of those, by where they come from
}

// guest is a connection in its handshake.
type guest struct {
	origin string
	turn   uint64 // its place in the order of arrival
}

// NewDoor takes ownership of the listener. serve closes its connection, and calls Proved when the
// handshake is over. Open starts to accept.
func NewDoor(l net.Listener, serve func(net.Conn), refused *atomic.Int64, logger *slog.Logger) *Door {
	return &Door{
		listener: l,
		serve:    serve,
		refused:  refused,
		logger:   logger,
		shut:     make(chan struct{}),
		waiting:  make(map[net.Conn]guest),
		origins:  make(map[string]int),
	}
}

// Open starts to accept, once.
func (d *Door) Open() { d.tasks.Go(d.accept) }

func (d *Door) accept() {
	for {
		conn, err := d.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			d.logger.Warn("data connection not accepted", "address", d.listener.Addr().String(), "error", err)
			timer := time.NewTimer(acceptPause)
			select {
			case <-timer.C:
			case <-d.shut:
				timer.Stop()
				return
			}
			continue
		}
		if !d.admit(conn, originOf(conn)) {
			d.refused.Add(1)
			_ = conn.Close() // a refusal: there is nobody to tell
			continue
		}
		d.tasks.Go(func() { d.serve(conn) })
	}
}

// admit gives the connection a place, if need be that of another one, whose handshake ends.
func (d *Door) admit(conn net.Conn, origin string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	if len(d.waiting) >= MaxHandshakes {
		out := d.longest()
		d.leave(out)
		HangUp(out) // ends its handshake, which counts the refusal
	}
	d.arrived++
	d.waiting[conn] = guest{origin, d.arrived}
	d.origins[origin]++
	return true
}

// longest is the connection that has waited longest of the origin that has the most.
func (d *Door) longest() (out net.Conn) {
	most := 0
	for _, n := range d.origins {
		most = max(most, n)
	}
	first := d.arrived + 1
	for conn, g := range d.waiting {
		if d.origins[g.origin] == most && g.turn < first {
			out, first = conn, g.turn
		}
	}
	return out
}

func (d *Door) leave(conn net.Conn) {
	g, ok := d.waiting[conn]
	if !ok {
		return
	}
	delete(d.waiting, conn)
	if d.origins[g.origin]--; d.origins[g.origin] == 0 {
		delete(d.origins, g.origin)
	}
}

// Proved says that a connection's handshake is over, well or not.
func (d *Door) Proved(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leave(conn)
}

// Waiting is the number of connections in their handshake.
func (d *Door) Waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting)
}

// Shut closes the listener and the connections in their handshake. Shutting again does nothing, and returns what the
// first time did: a fabric whose Close is asked again, since something else was held up, must not lose it.
func (d *Door) Shut() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.failure
	}
	d.closed = true
	close(d.shut)
	for conn := range d.waiting {
		HangUp(conn) // ends its handshake
	}
	d.failure = d.listener.Close()
	return d.failure
}

// ErrStuck says that a data connection did not end when it was told to.
var ErrStuck = errors.New("fabric: data connection does not end")

// stuckWait bounds the wait for connections that were hung up; they need microseconds.
const stuckWait = 5 * time.Second

// Wait waits, after Shut, until every serve has returned. Errors: ErrStuck after a bounded time, when one hangs
// in the kernel.
func (d *Door) Wait() error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.tasks.Wait()
	}()
	timer := time.NewTimer(stuckWait)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return ErrStuck
	}
}

// HangUp ends a data connection for its reader and its writers, and does not block. Close would, on a Unix
// socket, while a reader hangs in the kernel: it may be closing a descriptor that the client passed.
func HangUp(conn net.Conn) {
	if c, ok := conn.(*net.UnixConn); ok {
		_ = errors.Join(c.CloseRead(), c.CloseWrite()) // an error means that it has ended
		return
	}
	_ = conn.Close() // ends its reader
}
