package verbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/dataconn"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/requestid"
)

// maxPaths is how many paths of a session may live: eight rails and eight devices do not all need each other, and a
// path that was lost lives until it is fenced.
const maxPaths = 16

// session serves the data connection of one client and holds its paths.
type session struct {
	fabric  *Fabric
	net     *net.TCPConn
	peer    netip.Addr
	local   netip.Addr      // where its connection came in
	core    *fabric.Session // set by Admit
	regions dataconn.Regions
	replies chan reply
	rails   chan struct{} // capacity 1: RAILS is to be sent
	tasks   sync.WaitGroup
	making  []chan struct{} // by rail; held while a path connects: one at a time on each

	last uint64 // number of the newest path; the reader's

	mu       sync.Mutex
	gone     bool          // the session ends: its paths fail
	settleBy time.Time     // set with gone
	changed  chan struct{} // closed, and replaced, when a path may have become usable or its wait hopeless
	paths    map[uint64]*path
	lost     time.Time // when a path was lost last
}

// reply is a control frame that waits for the writer.
type reply struct {
	header frame.Header
	body   []byte
}

var (
	_ fabric.Carrier   = (*session)(nil)
	_ frame.Gatekeeper = (*session)(nil)
	_ fabric.Lingerer  = (*backing)(nil)
	_ fabric.Backing   = (*backing)(nil)
	_ fabric.Remote    = (*remote)(nil)
)

func newSession(f *Fabric, nc *net.TCPConn) *session {
	s := &session{
		fabric: f, net: nc,
		replies: make(chan reply, dataconn.Replies),
		rails:   make(chan struct{}, 1),
		changed: make(chan struct{}),
		paths:   make(map[uint64]*path),
	}
	for range f.rails.List() {
		s.making = append(s.making, make(chan struct{}, 1))
	}
	if at, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		s.peer = at.AddrPort().Addr()
	}
	if at, ok := nc.LocalAddr().(*net.TCPAddr); ok {
		s.local = at.AddrPort().Addr()
	}
	return s
}

// Secret is the secret of an offer.
func (s *session) Secret(h frame.HelloBody) ([32]byte, bool) {
	secret, ok := s.fabric.roster.OfferSecret(h.Session)
	return secret.Reveal(), ok && h.Index == 0
}

// Admit makes the offer a session, once.
func (s *session) Admit(h frame.HelloBody) frame.Status {
	core, err := s.fabric.roster.Admit(h.Session, s)
	if err != nil {
		return frame.StatusProof
	}
	s.core = core
	s.regions.Core, s.regions.Queue = core, func(h frame.Header) error { return s.queue(h, nil) }
	s.regions.Rejected = &s.fabric.roster.Counters.Rejected
	return frame.StatusOK
}

// Hangup closes the connection, which ends its reader, and fails all paths.
func (s *session) Hangup() {
	s.mu.Lock()
	if !s.gone {
		s.gone = true
		s.settleBy = time.Now().Add(settleWait)
		s.wake()
	}
	paths := s.all()
	s.mu.Unlock()
	for _, p := range paths {
		p.fail(whySession)
	}
	_ = s.net.Close() // ends its reader
}

// all lists the paths that live. mu is held.
func (s *session) all() []*path {
	paths := make([]*path, 0, len(s.paths))
	for _, p := range s.paths {
		paths = append(paths, p)
	}
	return paths
}

// connected lists those that have a queue pair which could move bytes. mu is held.
func (s *session) connected() []*path {
	return slices.DeleteFunc(s.all(), func(p *path) bool { return p.lane == nil })
}

// wake lets those look again who wait for a path. mu is held.
func (s *session) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// settle waits until the queue pairs of a session that has ended are reset, at most until settleBy. False: one is not.
func (s *session) settle() bool {
	s.mu.Lock()
	gone, paths, wait := s.gone, s.connected(), time.Until(s.settleBy)
	s.mu.Unlock()
	if !gone {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for _, p := range paths {
		select {
		case <-p.settled:
			continue
		default:
		}
		select {
		case <-p.settled:
		case <-timer.C:
			return false
		}
	}
	return true
}

// lingers tells whether a queue pair of the session may still move bytes.
func (s *session) lingers() bool {
	s.mu.Lock()
	paths := s.connected()
	s.mu.Unlock()
	for _, p := range paths {
		select {
		case <-p.settled:
		default:
			return true
		}
	}
	return false
}

// run serves the session after its handshake, whose error is err.
func (s *session) run(err error) {
	f := s.fabric
	f.mu.Lock()
	f.sessions[s] = struct{}{}
	f.mu.Unlock()
	if err == nil {
		f.logger.Debug("data connection open", "fabric", Name, "principal", s.core.Principal,
			requestid.Attr, s.core.RequestID, "peer", s.peer.String())
		s.tasks.Go(s.write)
		err = s.receive()
	} else {
		err = fmt.Errorf("%w: %w", fabric.ErrPeerGone, err)
	}
	f.logger.Debug("data connection closed", "fabric", Name, requestid.Attr, s.core.RequestID, "cause", err)
	s.core.Cut(err)
	f.mu.Lock()
	delete(f.sessions, s)
	f.mu.Unlock()
	s.regions.Wait()
	s.tasks.Wait()
}

// queue leaves a frame for the writer; nobody but the writer waits for the client to read.
func (s *session) queue(h frame.Header, body []byte) error {
	select {
	case s.replies <- reply{h, body}:
		return nil
	default:
		return fmt.Errorf("%w: replies are not read", fabric.ErrProtocol)
	}
}

// tell queues a frame on behalf of a path, which is one of tasks; a client that does not read loses its session. The
// path does not wait for that, since the end of the session waits for paths.
func (s *session) tell(h frame.Header, body []byte) {
	if err := s.queue(h, body); err != nil {
		s.tasks.Go(func() { s.core.Cut(err) })
	}
}

// railsChanged makes the writer send RAILS.
func (s *session) railsChanged() {
	select {
	case s.rails <- struct{}{}:
	default: // it is going to be sent as things are then
	}
}

// railsBody is the body of a RAILS frame.
func (f *Fabric) railsBody() []byte {
	ports := f.rails.Ports()
	all := make([]frame.Rail, 0, len(ports))
	for i, p := range ports {
		all = append(all, frame.Rail{Index: uint8(i), Up: p.Up, MTU: frame.MTUNumber(p.MTU), LID: p.LID, GID: p.GID})
	}
	return frame.EncodeRails(all)
}

// write sends RAILS and then what comes until the session ends.
func (s *session) write() {
	next := reply{frame.Header{Type: frame.Rails}, s.fabric.railsBody()}
	for {
		_ = s.net.SetWriteDeadline(time.Now().Add(s.fabric.stall))
		if err := frame.WriteFrame(s.net, next.header, next.body); err != nil {
			cause := fabric.ErrPeerGone
			if errors.Is(err, os.ErrDeadlineExceeded) {
				cause = fabric.ErrStalled
			}
			s.core.Cut(fmt.Errorf("%w: %w", cause, err))
			return
		}
		select {
		case next = <-s.replies:
		case <-s.rails:
			next = reply{frame.Header{Type: frame.Rails}, s.fabric.railsBody()}
		case <-s.core.Ended():
			return
		}
	}
}

// receive takes the client's frames until the connection ends, and returns why.
func (s *session) receive() error {
	headers := dataconn.Reader{Conn: s.net, Core: s.core, Idle: s.fabric.roster.Limits().IdleWait}
	for {
		h, err := headers.Next()
		if err != nil {
			return err
		}
		if err := s.answer(h); err != nil {
			return err
		}
	}
}

// answer acts on a frame of the client. An error ends the session.
func (s *session) answer(h frame.Header) error {
	switch h.Type {
	case frame.Ping:
		return s.queue(frame.Header{Type: frame.Pong}, nil)
	case frame.Keyed:
		return s.announce(h)
	case frame.Forget:
		return s.regions.Forget(h)
	case frame.Path:
		return s.request(h)
	case frame.PathUp:
		return s.pathUp(h)
	case frame.Fenced:
		return s.pathFenced(h)
	case frame.Close:
		return fabric.ErrPeerGone
	}
	return fmt.Errorf("%w: frame of type %d", fabric.ErrProtocol, h.Type)
}

// announce takes a region. A refused one does not end the session.
func (s *session) announce(h frame.Header) error {
	body, err := dataconn.Body(s.net, h)
	if err != nil {
		return err
	}
	keys, err := frame.DecodeKeys(body)
	if err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrProtocol, err)
	}
	b := &backing{session: s, address: h.Offset, keys: keysOf(keys)}
	return s.regions.Announce(h, b) // address and size are below 2^62: their sum does not wrap
}

// backing is a region of the client's memory.
type backing struct {
	session *session
	address uint64
	keys    remoteKeys
}

// remoteKeys are a region's keys by the client's devices, and secrets: they sit behind two pointers, since fmt follows
// one, even inside an unexported field, where it cannot call methods.
type remoteKeys struct{ inner **[]uint32 }

func keysOf(keys []uint32) remoteKeys {
	at := &keys
	return remoteKeys{&at}
}

// of is the key for a device; false: there is none.
func (k remoteKeys) of(device uint8) (key uint32, known bool) {
	all := **k.inner
	if int(device) >= len(all) {
		return 0, false
	}
	return all[device], true
}

// Sever returns when the queue pairs of a session that has ended are reset; see Lingers. With a session that lives, no
// window of the region is open, and nothing is under way.
func (b *backing) Sever() { b.session.settle() }

// Lingers tells whether an adapter did not reset a queue pair in time.
func (b *backing) Lingers() bool { return b.session.lingers() }
