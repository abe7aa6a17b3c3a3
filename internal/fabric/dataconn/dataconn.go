// Package dataconn is what the fabrics whose data connections are TCP have in common: the listener, the bounds of a
// handshake, the reading of headers, and the answers to frames about regions.
//
// Called by: fabric/tcp, fabric/verbs.
//
// Invariants:
//  1. A handshake takes handshakeWait at most, and the rest of a header after its first byte headerWait.
//  2. A refused region does not end its session.
//
// What it does not do: writing, payload, what the frames of one fabric alone mean.
package dataconn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
)

const (
	// handshakeWait bounds a handshake: three round trips and a proof.
	handshakeWait = 5 * time.Second
	// headerWait bounds the rest of a header after its first byte, which come together.
	headerWait = 10 * time.Second
	// keepAlive finds clients whose machine is gone while nothing is sent.
	keepAlive = 15 * time.Second
)

// Replies bounds control replies that wait for a connection: a client waits for the reply of each question, so
// more means that it floods.
const Replies = 1024

// Listen listens on address, and tells what clients dial: advertise, or else the address listened on.
func Listen(address, advertise string) (net.Listener, string, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, "", fmt.Errorf("listen %s: %w", address, err)
	}
	if advertise == "" {
		advertise = l.Addr().String()
	}
	return l, advertise, nil
}

// Greet runs the server's side of the handshake of a session with at most conns connections. Afterwards the
// connection has no deadline. Errors: those of frame.Accept.
func Greet(nc *net.TCPConn, g frame.Gatekeeper, limits fabric.Limits, conns uint32) error {
	_ = nc.SetDeadline(time.Now().Add(handshakeWait))
	_ = nc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: 4})
	_, err := frame.Accept(nc, g, frame.ReadyBody{
		RegionBytes: frame.MaxRegionBytes, // nothing is mapped
		Regions:     uint32(limits.RegionsPerSession),
		Conns:       conns,
		Payload:     frame.MaxPayload,
		IdleMillis:  uint32(limits.IdleWait.Milliseconds()),
	})
	_ = nc.SetDeadline(time.Time{})
	return err
}

// Reader reads the headers of one connection, one at a time.
type Reader struct {
	Conn *net.TCPConn
	Core *fabric.Session
	Idle time.Duration // above zero: silence for so long ends the session, unless a transfer was under way

	b [frame.HeaderBytes]byte // here, so that a frame allocates nothing
}

// Next reads the next header. Errors: fabric.ErrPeerGone, fabric.ErrIdle, fabric.ErrProtocol.
func (r *Reader) Next() (frame.Header, error) {
	nc, b := r.Conn, &r.b
	if err := r.await(); err != nil {
		return frame.Header{}, err
	}
	_ = nc.SetReadDeadline(time.Now().Add(headerWait))
	if _, err := io.ReadFull(nc, b[1:]); err != nil {
		return frame.Header{}, fmt.Errorf("%w: %w", fabric.ErrPeerGone, err)
	}
	_ = nc.SetReadDeadline(time.Time{})
	h, err := frame.Decode(b[:])
	if err != nil {
		return frame.Header{}, fmt.Errorf("%w: %w", fabric.ErrProtocol, err)
	}
	return h, nil
}

// await reads the first byte of a frame.
func (r *Reader) await() error {
	for {
		if r.Idle > 0 {
			_ = r.Conn.SetReadDeadline(time.Now().Add(r.Idle))
		}
		_, err := io.ReadFull(r.Conn, r.b[:1])
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("%w: %w", fabric.ErrPeerGone, err)
		case r.Core.Idle(r.Idle):
			return fabric.ErrIdle
		}
	}
}

// Body reads the short body of a control frame, which comes with its header. Errors: fabric.ErrPeerGone.
func Body(nc *net.TCPConn, h frame.Header) ([]byte, error) {
	b := make([]byte, h.Length)
	_ = nc.SetReadDeadline(time.Now().Add(headerWait))
	if _, err := io.ReadFull(nc, b); err != nil {
		return nil, fmt.Errorf("%w: %w", fabric.ErrPeerGone, err)
	}
	_ = nc.SetReadDeadline(time.Time{})
	return b, nil
}

// Regions answers the frames about regions of one session. Its fields are set before its first use.
type Regions struct {
	Core     *fabric.Session
	Rejected *atomic.Int64
	Queue    func(frame.Header) error // leaves a reply for the writer; an error ends the session

	forgets sync.WaitGroup
}

// Announce takes a region of the number and size in the header, backed by b, and answers. An error ends the session.
func (r *Regions) Announce(h frame.Header, b fabric.Backing) error {
	if h.Size == 0 || h.Size > frame.MaxRegionBytes || h.Region > 1<<32-1 {
		return r.Refuse(h, frame.StatusSize)
	}
	g, err := r.Core.Reserve(uint32(h.Region), int64(h.Size), 0)
	switch {
	case errors.Is(err, fabric.ErrLimit):
		return r.Refuse(h, frame.StatusLimit)
	case err != nil:
		return r.Refuse(h, frame.StatusDuplicate)
	}
	if err := r.Core.Publish(g, b); err != nil {
		return err
	}
	return r.Queue(frame.Header{Type: frame.RegionOK, Region: h.Region})
}

// Refuse answers that a region was not taken. An error ends the session.
func (r *Regions) Refuse(h frame.Header, status frame.Status) error {
	r.Rejected.Add(1)
	return r.Queue(frame.Header{Type: frame.RegionRefused, Region: h.Region, Status: status})
}

// Forget stops new windows of a region, and answers when the open ones are closed. An error ends the session.
func (r *Regions) Forget(h frame.Header) error {
	var finish func() bool
	if h.Region <= 1<<32-1 {
		finish = r.Core.Forget(uint32(h.Region))
	}
	if finish == nil {
		return r.Queue(frame.Header{Type: frame.Forgotten, Region: h.Region, Status: frame.StatusUnknown})
	}
	r.forgets.Go(func() {
		if !finish() {
			return
		}
		if err := r.Queue(frame.Header{Type: frame.Forgotten, Region: h.Region}); err != nil {
			r.Core.Cut(err)
		}
	})
	return nil
}

// Wait waits, after the session's end, for what Forget began.
func (r *Regions) Wait() { r.forgets.Wait() }
