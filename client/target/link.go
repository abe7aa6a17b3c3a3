package target

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/frame"
)

// maxTransfers bounds the transfers that a server may have begun on one connection and not ended.
const maxTransfers = 1024

// link is one data connection and its receiver.
type link struct {
	owner     *Conn
	conn      net.Conn
	transfers map[uint64]*transfer // the receiver's

	writeMu sync.Mutex // of whole frames
	header  [frame.HeaderBytes]byte
	parts   [2][]byte
	vector  net.Buffers
}

// transfer is what the server began on a link. Without a grant its bytes are thrown away.
type transfer struct {
	grant  *Grant
	window []byte // what the server may touch
	placed uint64 // bytes received into it
}

func newLink(c *Conn, conn net.Conn) *link {
	return &link{owner: c, conn: conn, transfers: make(map[uint64]*transfer)}
}

var errServer = errors.New("target: server broke the protocol")

func broke(what string) error { return fmt.Errorf("%w: %s", errServer, what) }

// receive takes the server's frames until the connection ends, and returns why.
func (l *link) receive() error {
	var b [frame.HeaderBytes]byte
	for {
		h, err := frame.ReadHeader(l.conn, &b)
		if err == nil {
			err = l.take(h)
		}
		if err != nil {
			return err
		}
	}
}

func (l *link) take(h frame.Header) error {
	switch h.Type {
	case frame.RegionOK, frame.RegionRefused:
		return l.owner.reply(frame.Region, h)
	case frame.Forgotten:
		return l.owner.reply(frame.Forget, h)
	case frame.Ask, frame.Attached:
		return l.owner.reply(frame.Attach, h)
	case frame.Closed:
		return l.owner.confirm()
	case frame.Pong:
		return nil
	}
	if l.owner.paths != nil {
		return l.owner.paths.take(l, h)
	}
	if l.owner.fabric != "tcp" {
		return broke("transfer frame on shm")
	}
	switch h.Type {
	case frame.Start:
		return l.begin(h)
	case frame.Data:
		return l.place(h)
	case frame.Read:
		return l.serve(h)
	case frame.Done:
		return l.finish(h)
	}
	return broke("frame of a client")
}

func (c *Conn) reply(question frame.Type, h frame.Header) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wait := c.waits[waitKey{question: question, number: uint32(h.Region)}]; wait != nil {
		select {
		case wait <- h:
		default:
			return broke("two replies to one question")
		}
	}
	return nil // the one who asked has given up
}

func (c *Conn) confirm() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fencing || c.confirmed {
		return broke("closed without a close")
	}
	c.confirmed = true
	close(c.closed)
	return nil
}

// begin checks a Start against the grants.
func (l *link) begin(h frame.Header) error {
	if l.transfers[h.ID] != nil || len(l.transfers) >= maxTransfers {
		return broke("transfer number in use, or too many")
	}
	t := &transfer{}
	l.transfers[h.ID] = t
	c := l.owner
	_, number := frame.SplitRegion(h.Region)
	c.mu.Lock()
	g := c.grants[number]
	if g != nil && !g.begun && g.covers(h) {
		g.begun = true
		t.grant = g
		first := h.Offset - g.descriptor.Addr
		t.window = g.window[first : first+h.Size : first+h.Size]
	}
	c.mu.Unlock()
	if t.grant == nil {
		return l.send(frame.Header{Type: frame.Deny, ID: h.ID})
	}
	return nil
}

// covers tells whether a Start stays within the grant.
func (g *Grant) covers(h frame.Header) bool {
	want := frame.StatusGet
	if g.direction == ForPut {
		want = frame.StatusPut
	}
	d := g.descriptor
	return h.Status == want && h.Region == d.Region && h.Offset >= d.Addr &&
		h.Size <= uint64(d.Size) && h.Offset-d.Addr <= uint64(d.Size)-h.Size
}

// enter returns the part of the transfer's window for an access, or nil when it is not granted (any
// more). A part outside the window is the server's fault.
func (l *link) enter(h frame.Header, n uint64, d Direction) (*transfer, []byte, error) {
	t := l.transfers[h.ID]
	if t == nil {
		return nil, nil, broke("unknown transfer")
	}
	if t.grant == nil {
		return t, nil, nil
	}
	size := uint64(len(t.window))
	if t.grant.direction != d || n > size || h.Offset > size-n {
		return nil, nil, broke("outside the window, or wrong direction")
	}
	c := l.owner
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, nil, c.err
	}
	t.grant.touching++
	return t, t.window[h.Offset : h.Offset+n], nil
}

func (l *link) leave(t *transfer) {
	c := l.owner
	c.mu.Lock()
	defer c.mu.Unlock()
	t.grant.touching--
	c.idle.Broadcast()
}

// place receives a Data frame's body into the window.
func (l *link) place(h frame.Header) error {
	t, part, err := l.enter(h, uint64(h.Length), ForGet)
	if err != nil {
		return err
	}
	if part == nil {
		_, err := io.CopyN(io.Discard, l.conn, int64(h.Length))
		return err
	}
	defer l.leave(t)
	if _, err := io.ReadFull(l.conn, part); err != nil {
		return err
	}
	t.placed += uint64(len(part))
	return nil
}

// serve answers a Read frame from the window.
func (l *link) serve(h frame.Header) error {
	if h.Size == 0 || h.Size > frame.MaxPayload {
		return broke("read of this size")
	}
	t, part, err := l.enter(h, h.Size, ForPut)
	if err != nil || part == nil {
		return err
	}
	defer l.leave(t)
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	frame.Header{Type: frame.Payload, ID: h.ID, Offset: h.Offset, Length: uint32(len(part))}.Encode(l.header[:])
	l.parts = [2][]byte{l.header[:], part}
	l.vector = l.parts[:]
	_, err = l.vector.WriteTo(l.conn)
	return err
}

// finish ends a transfer; from now on the server does not touch the window.
func (l *link) finish(h frame.Header) error {
	t := l.transfers[h.ID]
	if t == nil {
		return broke("unknown transfer")
	}
	delete(l.transfers, h.ID)
	if t.grant != nil {
		c := l.owner
		c.mu.Lock()
		t.grant.finished = true
		c.idle.Broadcast()
		c.mu.Unlock()
	}
	return l.send(frame.Header{Type: frame.Ack, ID: h.ID, Size: t.placed})
}

// extra goes with a control frame.
type extra struct {
	memory *Memory // on shm, by its descriptor
	body   []byte
}

func (l *link) send(h frame.Header) error { return l.sendWith(h, extra{}) }

func (l *link) sendWith(h frame.Header, with extra) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	unixConn, ok := l.conn.(*net.UnixConn)
	if !ok || with.memory == nil {
		return frame.WriteFrame(l.conn, h, with.body)
	}
	h.Encode(l.header[:])
	_, _, err := unixConn.WriteMsgUnix(l.header[:], unix.UnixRights(with.memory.file), nil)
	return err
}
