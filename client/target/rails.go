package target

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native"
)

// take handles the server's frames about paths. It runs in the connection's receiver, and waits for local calls of the
// library only.
func (p *paths) take(l *link, h frame.Header) error {
	body := make([]byte, h.Length)
	if _, err := io.ReadFull(l.conn, body); err != nil {
		return err
	}
	switch h.Type {
	case frame.Rails:
		return p.listed(body)
	case frame.PathOK:
		return p.accepted(h.ID, body)
	case frame.PathRefused:
		return p.rejected(h)
	case frame.Lost:
		return p.lost(h.ID)
	}
	return broke("frame of a client, or of another fabric")
}

// listed takes the server's rails as they are now. Paths of rails that are down are the server's to end.
func (p *paths) listed(body []byte) error {
	rails, err := frame.DecodeRails(body)
	if err != nil {
		return err
	}
	seen := map[uint8]bool{}
	for _, r := range rails {
		if seen[r.Index] {
			return broke("a rail twice")
		}
		seen[r.Index] = true
	}
	p.mu.Lock()
	same := p.rails != nil && slices.Equal(p.rails, rails)
	if p.rails = rails; !same {
		p.change(recentLook)
	}
	p.mu.Unlock()
	if !same {
		p.look()
	}
	return nil
}

// answered returns the path that an answer is about; nil without an error when everything is being closed. The caller
// holds mu.
func (p *paths) answered(id uint64) (*path, error) {
	if p.closed {
		return nil, nil
	}
	t := p.live[id]
	if t == nil || t.up {
		return nil, broke("answer to no offered path")
	}
	return t, nil
}

// accepted connects our end.
func (p *paths) accepted(id uint64, body []byte) error {
	peer, err := frame.DecodePath(body)
	if err != nil {
		return err
	}
	t, err := p.join(id, peer)
	if t == nil {
		return err
	}
	connected := p.connect(t, peer)
	if connected {
		// Before the path counts as up: a FENCED would overtake it.
		err = p.conn.links[0].send(frame.Header{Type: frame.PathUp, ID: id})
	}
	return errors.Join(err, p.joined(t, connected))
}

// join takes the path that an answer accepts, with a call begun; joined ends both.
func (p *paths) join(id uint64, peer frame.PathBody) (*path, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, err := p.answered(id)
	if t == nil {
		return nil, err
	}
	if peer.Device != t.on.number || peer.Reads > t.reads {
		return nil, broke("a path that was not offered so")
	}
	t.joining = true
	p.calls.Add(1)
	return t, nil
}

// connect takes the queue pair to its peer, without mu: the kernel may have to find out how to reach it. False: the
// adapter refused, or the path has failed meanwhile.
func (p *paths) connect(t *path, peer frame.PathBody) bool {
	if p.fails(t) {
		return false
	}
	err := t.qp.Receive(t.own, native.Peer{
		QPN: peer.QPN, PSN: peer.PSN, GID: peer.GID, LID: peer.LID, Reads: int(peer.Reads),
		MTU: min(frame.MTUBytes(peer.MTU), t.port.MTU),
	})
	if err != nil {
		p.refused(fmt.Errorf("target: connect queue pair on %s: %w", t.pair.port, err))
		return false
	}
	return !p.fails(t)
}

// fails tells whether an event has ended a path that is not up, or everything is being closed.
func (p *paths) fails(t *path) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return t.doomed || p.closed
}

// joined makes the path one that is up, or ends it.
func (p *paths) joined(t *path, connected bool) error {
	p.mu.Lock()
	t.joining = false
	switch {
	case p.closed: // close has left it to us, and waits
		p.mu.Unlock()
		defer p.calls.Done()
		return p.bury(t)
	case connected && !t.doomed:
		t.up = true
		p.mu.Unlock()
		p.calls.Done()
		p.look()
		return nil
	}
	delete(p.live, t.id)
	p.failed(t.pair, time.Time{})
	p.retiring++
	p.mu.Unlock()
	return p.retire(t)
}

// rejected gives the queue pair back, and remembers what the server does not take.
func (p *paths) rejected(h frame.Header) error {
	p.mu.Lock()
	t, err := p.answered(h.ID)
	if t == nil {
		p.mu.Unlock()
		return err
	}
	delete(p.live, h.ID)
	p.refusal = refusal("path", h.Status)
	if h.Status == frame.StatusGID {
		p.strange[t.port.GID] = true
	}
	p.failed(t.pair, time.Time{})
	p.calls.Add(1)
	p.mu.Unlock()
	defer p.look()
	defer p.calls.Done()
	return p.bury(t)
}

// lost ends our end of a path whose other end is reset, and says when that is done.
func (p *paths) lost(id uint64) error {
	p.mu.Lock()
	t := p.live[id]
	switch {
	case p.closed:
		p.mu.Unlock()
		return nil
	case t == nil && id > 0 && id <= p.last:
		p.mu.Unlock()
		return nil // FENCED was on its way already
	case t == nil || !t.up:
		p.mu.Unlock()
		return broke("lost a path that was not up")
	}
	delete(p.live, id)
	p.failed(t.pair, t.since)
	p.calls.Add(1)
	p.retiring++
	p.mu.Unlock()
	return p.retire(t)
}
