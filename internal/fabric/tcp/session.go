package tcp

import (
	"fmt"
	"net"
	"sync"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/dataconn"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/requestid"
)

// session is the connections of one client. Connections are only added until the session ends.
type session struct {
	fabric *Fabric

	mu    sync.Mutex
	gone  bool
	conns []*conn
	used  [frame.MaxConns]bool // indices that were proved
}

var _ fabric.Carrier = (*session)(nil)

// Hangup closes all connections, which ends their readers.
func (s *session) Hangup() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	for _, c := range s.conns {
		_ = c.net.Close() // ends its reader
	}
}

// pick returns the connection with the fewest transfers.
func (s *session) pick() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := s.conns[0]
	for _, c := range s.conns[1:] {
		if c.load.Load() < best.load.Load() {
			best = c
		}
	}
	best.load.Add(1)
	return best
}

// gate is the server's side of one handshake.
type gate struct {
	fabric *Fabric
	net    *net.TCPConn
	conn   *conn // set by Admit
}

// Secret is that of an offer for the first connection, and of the live session for the others.
func (g *gate) Secret(h frame.HelloBody) ([32]byte, bool) {
	if h.Index == 0 {
		secret, ok := g.fabric.roster.OfferSecret(h.Session)
		return secret.Reveal(), ok
	}
	core, err := g.fabric.roster.Find(h.Session)
	if err != nil {
		return [32]byte{}, false
	}
	return core.Secret.Reveal(), true
}

// Admit adds the connection to its session. Each index counts once.
func (g *gate) Admit(h frame.HelloBody) frame.Status {
	if h.Index == 0 {
		s := &session{fabric: g.fabric}
		g.conn = newConn(s, g.net, 0)
		s.conns, s.used[0] = []*conn{g.conn}, true
		s.mu.Lock() // Admit shows the session to others, who pick this connection
		defer s.mu.Unlock()
		core, err := g.fabric.roster.Admit(h.Session, s)
		if err != nil {
			g.conn = nil
			return frame.StatusProof
		}
		g.conn.join(core)
		return frame.StatusOK
	}
	core, err := g.fabric.roster.Find(h.Session)
	if err != nil {
		return frame.StatusProof
	}
	s := core.Carrier.(*session)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.used[h.Index] {
		return frame.StatusProof
	}
	s.used[h.Index] = true
	g.conn = newConn(s, g.net, h.Index)
	g.conn.join(core)
	s.conns = append(s.conns, g.conn)
	return frame.StatusOK
}

func (f *Fabric) serve(accepted net.Conn) {
	nc := accepted.(*net.TCPConn) // the listener's kind
	defer func() { _ = nc.Close() }()
	g := &gate{fabric: f, net: nc}
	err := dataconn.Greet(nc, g, f.roster.Limits(), frame.MaxConns)
	f.door.Proved(accepted)
	if g.conn == nil {
		f.roster.Counters.Refused.Add(1)
		f.logger.Debug("data connection refused", "fabric", Name, "error", err)
		return
	}
	c := g.conn
	var replies sync.WaitGroup
	if err == nil {
		_ = nc.SetWriteBuffer(frame.SendBufferBytes)
		f.logger.Debug("data connection open", "fabric", Name, "principal", c.core.Principal,
			requestid.Attr, c.core.RequestID, "peer", nc.RemoteAddr().String())
		replies.Go(c.reply)
		err = c.receive()
	} else {
		err = fmt.Errorf("%w: %w", fabric.ErrPeerGone, err)
	}
	f.logger.Debug("data connection closed", "fabric", Name, requestid.Attr, c.core.RequestID, "cause", err)
	c.core.Cut(err)
	c.fail()
	replies.Wait()
	c.regions.Wait()
}

// answer acts on a control frame of the client. An error ends the session.
func (c *conn) answer(h frame.Header) error {
	switch h.Type {
	case frame.Ping:
		return c.queue(frame.Header{Type: frame.Pong})
	case frame.Region:
		return c.regions.Announce(h, nil)
	case frame.Forget:
		return c.regions.Forget(h)
	case frame.Close:
		return fabric.ErrPeerGone
	}
	return fmt.Errorf("%w: frame of type %d", fabric.ErrProtocol, h.Type)
}
