package target

import (
	"fmt"
	"io"
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
	p.rails = rails
	p.change(recentLook)
	p.mu.Unlock()
	p.look()
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
	t, doomed, err := p.connect(id, peer)
	if t == nil {
		return err
	}
	if doomed {
		return p.retire(t)
	}
	defer p.look()
	return p.conn.links[0].send(frame.Header{Type: frame.PathUp, ID: id})
}

// connect takes the path's queue pair to its peer. doomed: that failed, or an adapter's event came before; the path is
// the caller's then, with a call begun.
func (p *paths) connect(id uint64, peer frame.PathBody) (t *path, doomed bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, err = p.answered(id); t == nil {
		return nil, false, err
	}
	if peer.Device != t.on.number || peer.Reads > t.reads {
		return nil, false, broke("a path that was not offered so")
	}
	if !t.doomed {
		err = t.qp.Receive(t.own, native.Peer{
			QPN: peer.QPN, PSN: peer.PSN, GID: peer.GID, LID: peer.LID, Reads: int(peer.Reads),
			MTU: min(frame.MTUBytes(peer.MTU), t.port.MTU),
		})
		if err == nil {
			t.up = true
			return t, false, nil
		}
		p.refusal = fmt.Errorf("target: connect queue pair on %s: %w", t.pair.port, err)
	}
	delete(p.live, id)
	p.failed(t.pair, time.Time{})
	p.calls.Add(1)
	p.retiring++
	return t, true, nil
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
		p.strange[t.pair.port] = true
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
