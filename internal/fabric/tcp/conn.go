package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/dataconn"
	"github.com/penstock-store/penstock/internal/frame"
)

// conn is one data connection: a reader, a writer of control replies, and the transfers that write
// in turn.
type conn struct {
	session *session
	core    *fabric.Session
	net     *net.TCPConn
	load    atomic.Int64 // transfers that chose this connection
	index   uint32
	replies chan frame.Header
	regions dataconn.Regions

	// writing is held over each whole frame; it guards the fields below it.
	writing chan struct{}
	header  [2 * frame.HeaderBytes]byte
	parts   [2][]byte
	vector  net.Buffers

	slots chan struct{} // one per unanswered read
	fills atomic.Int64  // payloads received

	mu        sync.Mutex
	failed    bool
	reads     []*readOp // unanswered, oldest first
	lastID    uint64
	transfers map[uint64]*remote // begun, without the client's Ack
}

// readOp is one Read frame and the arena memory that its answer fills.
type readOp struct {
	remote *remote
	off    int64
	dst    []byte
	done   chan error // capacity 1
}

func newConn(s *session, nc *net.TCPConn, index uint32) *conn {
	return &conn{
		index:     index,
		session:   s,
		net:       nc,
		replies:   make(chan frame.Header, dataconn.Replies),
		writing:   make(chan struct{}, 1),
		slots:     make(chan struct{}, frame.MaxOutstandingReads),
		transfers: make(map[uint64]*remote),
	}
}

// join ties the connection to its session.
func (c *conn) join(core *fabric.Session) {
	c.core = core
	c.regions.Core, c.regions.Queue = core, c.queue
	c.regions.Rejected = &c.session.fabric.roster.Counters.Rejected
}

// errDenied fails a transfer that no running request of the client granted.
var errDenied = fmt.Errorf("%w: denied by the client", fabric.ErrTransfer)

// errBroken fails what is under way on a connection that has ended.
var errBroken = fmt.Errorf("%w: connection ended", fabric.ErrFenced)

// fail ends all operations of the connection, after its reader has left.
func (c *conn) fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = true
	for _, op := range c.reads {
		op.done <- errBroken
	}
	c.reads = nil
}

// queue leaves a control reply for the writer; the reader never writes itself, since the client may
// be waiting for it to read.
func (c *conn) queue(h frame.Header) error {
	select {
	case c.replies <- h:
		return nil
	default:
		return fmt.Errorf("%w: replies are not read", fabric.ErrProtocol)
	}
}

// reply writes control replies until the session ends.
func (c *conn) reply() {
	for {
		select {
		case h := <-c.replies:
			if err := c.write(context.Background(), h, nil, nil); err != nil {
				return // the session has ended
			}
		case <-c.core.Ended():
			return
		}
	}
}

// write sends one frame; the first of a transfer goes behind its Start. It waits for its turn until
// the session ends or ctx does; once begun it ends only with the frame or the session. An error of the
// socket cuts the session.
func (c *conn) write(ctx context.Context, h frame.Header, body []byte, r *remote) error {
	select {
	case c.writing <- struct{}{}:
	case <-c.core.Ended():
		return c.core.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := c.writeInTurn(h, body, r)
	<-c.writing
	if err == nil {
		return nil
	}
	c.broken(err)
	return c.core.Err()
}

// broken cuts the session after an error of a write.
func (c *conn) broken(err error) {
	cause := fabric.ErrPeerGone
	if errors.Is(err, os.ErrDeadlineExceeded) {
		cause = fabric.ErrStalled
	}
	c.core.Cut(fmt.Errorf("%w: %w", cause, err))
}

func (c *conn) writeInTurn(h frame.Header, body []byte, r *remote) error {
	_ = c.net.SetWriteDeadline(time.Now().Add(c.session.fabric.stall))
	n := 0
	if r != nil && !r.begun {
		c.begin(r)
		r.start().Encode(c.header[:])
		n = frame.HeaderBytes
	}
	h.Length = uint32(len(body))
	h.Encode(c.header[n:])
	n += frame.HeaderBytes
	if len(body) == 0 {
		_, err := c.net.Write(c.header[:n])
		return err
	}
	c.parts = [2][]byte{c.header[:n], body}
	c.vector = c.parts[:]
	_, err := c.vector.WriteTo(c.net)
	c.parts = [2][]byte{}
	return err
}

func (c *conn) begin(r *remote) {
	r.begun = true
	c.mu.Lock()
	defer c.mu.Unlock()
	c.transfers[r.id] = r
}

// receive takes the client's frames until the connection ends, and returns why.
func (c *conn) receive() error {
	idle := time.Duration(0)
	if c.index == 0 { // carries the client's pings, so only there silence ends the session
		idle = c.session.fabric.roster.Limits().IdleWait
	}
	headers := dataconn.Reader{Conn: c.net, Core: c.core, Idle: idle}
	for {
		h, err := headers.Next() // deadlines of transfers bound a body
		if err != nil {
			return err
		}
		switch h.Type {
		case frame.Payload:
			err = c.fill(h)
		case frame.Ack:
			err = c.acknowledge(h)
		case frame.Deny:
			err = c.deny(h)
		default:
			err = c.answer(h)
		}
		if err != nil {
			return err
		}
	}
}

// fill receives the answer to the oldest read into its arena memory.
func (c *conn) fill(h frame.Header) error {
	c.mu.Lock()
	if len(c.reads) == 0 {
		c.mu.Unlock()
		return fmt.Errorf("%w: payload without a read", fabric.ErrProtocol)
	}
	op := c.reads[0]
	if h.ID != op.remote.id || h.Offset != uint64(op.off) || int(h.Length) != len(op.dst) {
		c.mu.Unlock()
		return fmt.Errorf("%w: payload that answers no read", fabric.ErrProtocol)
	}
	c.reads = append(c.reads[:0], c.reads[1:]...) // short, and keeps its memory
	c.mu.Unlock()
	_ = c.net.SetReadDeadline(time.Now().Add(c.session.fabric.stall))
	_, err := io.ReadFull(c.net, op.dst)
	_ = c.net.SetReadDeadline(time.Time{})
	c.fills.Add(1)
	<-c.slots
	if err != nil {
		op.done <- errBroken
		return fmt.Errorf("%w: %w", fabric.ErrPeerGone, err)
	}
	op.done <- nil
	return nil
}

// acknowledge takes the client's answer to Done.
func (c *conn) acknowledge(h frame.Header) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.transfers[h.ID]
	if r == nil || !r.doneSent {
		return fmt.Errorf("%w: ack without a done", fabric.ErrProtocol)
	}
	delete(c.transfers, h.ID)
	r.acked <- h
	return nil
}

// deny fails a transfer that the client does not grant; its reads stay unanswered.
func (c *conn) deny(h frame.Header) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.transfers[h.ID]
	if r == nil || r.denied {
		return fmt.Errorf("%w: deny without a start", fabric.ErrProtocol)
	}
	r.denied = true
	rest := c.reads[:0]
	for _, op := range c.reads {
		if op.remote == r {
			<-c.slots
			op.done <- errDenied
			continue
		}
		rest = append(rest, op)
	}
	clear(c.reads[len(rest):])
	c.reads = rest
	return nil
}

// post puts a read into the line and asks the client for it. After an error nothing fills dst.
func (c *conn) post(ctx context.Context, op *readOp) error {
	select {
	case c.slots <- struct{}{}:
	case <-c.core.Ended():
		return c.core.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case c.writing <- struct{}{}:
	case <-c.core.Ended():
		<-c.slots
		return c.core.Err()
	case <-ctx.Done():
		<-c.slots
		return context.Cause(ctx)
	}
	if err := c.enqueue(op); err != nil {
		<-c.writing
		<-c.slots
		return err
	}
	h := frame.Header{Type: frame.Read, ID: op.remote.id, Offset: uint64(op.off), Size: uint64(len(op.dst))}
	err := c.writeInTurn(h, nil, op.remote)
	<-c.writing
	if err != nil { // the reader leaves and fails op
		c.broken(err)
	}
	return nil
}

// wait waits until op is answered. A client that answers no read of the connection for the stall wait
// loses its session; op then fails.
func (c *conn) wait(op *readOp) error {
	timer := time.NewTimer(c.session.fabric.stall)
	defer timer.Stop()
	for before := c.fills.Load(); ; {
		select {
		case err := <-op.done:
			return err
		case <-timer.C:
			now := c.fills.Load()
			if now == before {
				c.core.Cut(fabric.ErrStalled)
				return <-op.done
			}
			before = now
			timer.Reset(c.session.fabric.stall)
		}
	}
}

func (c *conn) enqueue(op *readOp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failed:
		return errBroken
	case op.remote.denied:
		return errDenied
	}
	c.reads = append(c.reads, op)
	return nil
}
