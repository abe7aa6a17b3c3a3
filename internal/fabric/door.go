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
// takes milliseconds, so more of them are an attack.
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
	waiting map[net.Conn]struct{} // in their handshake
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
		waiting:  make(map[net.Conn]struct{}),
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
		if !d.admit(conn) {
			d.refused.Add(1)
			_ = conn.Close() // a refusal: there is nobody to tell
			continue
		}
		d.tasks.Go(func() { d.serve(conn) })
	}
}

func (d *Door) admit(conn net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.waiting) >= MaxHandshakes {
		return false
	}
	d.waiting[conn] = struct{}{}
	return true
}

// Proved says that a connection's handshake is over, well or not.
func (d *Door) Proved(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiting, conn)
}

// Waiting is the number of connections in their handshake.
func (d *Door) Waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting)
}

// Shut closes the listener and the connections in their handshake. Shutting twice does nothing.
func (d *Door) Shut() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	close(d.shut)
	for conn := range d.waiting {
		_ = conn.Close() // ends its handshake
	}
	return d.listener.Close()
}

// Wait waits, after Shut, until every serve has returned.
func (d *Door) Wait() { d.tasks.Wait() }
