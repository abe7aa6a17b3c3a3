package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/requestid"
)

// session serves the data connection of one client.
type session struct {
	fabric  *Fabric
	conn    *net.UnixConn
	core    *fabric.Session // set by Admit
	orderly atomic.Bool     // the client sent Close: the connection lives until Closed was sent
	forgets sync.WaitGroup
	foreign attachment // the receiver's

	writeMu sync.Mutex // of whole frames

	endMu    sync.Mutex
	returned bool        // serve has
	stuck    bool        // serve had not, stuckWait after the session's end: the ledger counts it
	watch    *time.Timer // set by the session's end
}

var _ fabric.Carrier = (*session)(nil)

// stuckWait is when a session that has ended and still holds a goroutine counts as one again. The goroutine
// hangs in the kernel then, and a thread with it.
const stuckWait = time.Second

// Hangup ends the connection, and with it serve.
func (s *session) Hangup() {
	if !s.orderly.Load() {
		fabric.HangUp(s.conn) // serve has nothing else to learn from it
	}
	s.endMu.Lock()
	defer s.endMu.Unlock()
	if s.watch == nil && !s.returned {
		s.watch = time.AfterFunc(stuckWait, s.countStuck)
	}
}

func (s *session) countStuck() {
	s.endMu.Lock()
	defer s.endMu.Unlock()
	if s.returned {
		return
	}
	s.stuck = true
	s.fabric.ledger.KeepSession(s.core.Principal)
	s.fabric.logger.Warn("session does not end", "fabric", Name, "principal", s.core.Principal,
		requestid.Attr, s.core.RequestID)
}

// leave closes the connection, with what the client left in it, and then stops to count.
func (s *session) leave() {
	_ = s.conn.Close()
	s.endMu.Lock()
	defer s.endMu.Unlock()
	s.returned = true
	if s.watch != nil {
		s.watch.Stop()
	}
	if s.stuck {
		s.fabric.ledger.DropSession(s.core.Principal)
	}
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
	setPassRights(s.conn, true)
	return frame.StatusOK
}

func (f *Fabric) serve(accepted net.Conn) {
	conn := accepted.(*net.UnixConn) // the listener's kind
	s := &session{fabric: f, conn: conn}
	defer s.leave()
	defer func() { s.foreign.end() }()
	limits := f.roster.Limits()
	_ = conn.SetDeadline(time.Now().Add(handshakeWait))
	_, err := frame.Accept(conn, s, frame.ReadyBody{
		RegionBytes: uint64(limits.MappedBytes),
		Regions:     uint32(limits.RegionsPerSession),
		Conns:       1,
		Payload:     frame.MaxPayload,
		IdleMillis:  uint32(limits.IdleWait.Milliseconds()),
	})
	f.door.Proved(accepted)
	if s.core == nil {
		f.roster.Counters.Refused.Add(1)
		f.logger.Debug("data connection refused", "fabric", Name, "error", err)
		return
	}
	if err != nil {
		s.core.Cut(fabric.ErrPeerGone)
		return
	}
	_ = conn.SetDeadline(time.Time{})
	s.logPeer()
	err = s.receive()
	f.logger.Debug("session closed", "fabric", Name, requestid.Attr, s.core.RequestID, "orderly", s.orderly.Load(),
		"cause", err)
	if s.orderly.Load() {
		s.finish()
		return
	}
	s.core.Cut(err)
	s.forgets.Wait()
}

// logPeer records who is at the other end, as the kernel says.
func (s *session) logPeer() {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return
	}
	var cred *unix.Ucred
	_ = raw.Control(func(fd uintptr) { cred, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if cred != nil {
		s.fabric.logger.Debug("session open", "fabric", Name, "principal", s.core.Principal, requestid.Attr, s.core.RequestID,
			"peer_pid", cred.Pid, "peer_uid", cred.Uid)
	}
}

// receive takes frames until the connection ends, or until Close, and returns why.
func (s *session) receive() error {
	idle := s.fabric.roster.Limits().IdleWait
	for {
		_ = s.conn.SetReadDeadline(time.Now().Add(idle))
		m, err := s.readFrame()
		if err == nil {
			err = s.core.Err() // frames that came before the connection was hung up
		}
		if errors.Is(err, errNoFrame) && !s.core.Idle(idle) {
			continue
		}
		if err == nil {
			err = s.answer(m)
		}
		if m.file >= 0 {
			_ = unix.Close(m.file) // the mapping keeps the memory; no byte went through the descriptor
		}
		if err != nil || s.orderly.Load() {
			return err
		}
	}
}

// errNoFrame says that the idle wait passed without a byte.
var errNoFrame = fmt.Errorf("shm: no frame: %w", fabric.ErrIdle)

// message is a frame as it came over the socket.
type message struct {
	h      frame.Header
	file   int        // the descriptor that came with it, or -1
	sender unix.Ucred // who sent it, as the kernel says; zero before SO_PASSCRED is set
}

// readFrame reads one message. With an error, too, the file may be a descriptor to close.
func (s *session) readFrame() (message, error) {
	var b [frame.HeaderBytes]byte
	m := message{file: -1}
	for n := 0; n < len(b); {
		got, fds, sender, err := s.readSome(b[n:])
		for i, fd := range fds {
			if i == 0 && m.file < 0 {
				m.file = fd
				continue
			}
			_ = unix.Close(fd) // never looked at
			err = fmt.Errorf("%w: more than one descriptor", fabric.ErrProtocol)
		}
		if n > 0 && sender != m.sender {
			sender = unix.Ucred{} // of two senders, so of none
		}
		m.sender = sender
		switch {
		case err == nil && got == 0:
			return m, fabric.ErrPeerGone
		case errors.Is(err, os.ErrDeadlineExceeded) && n == 0:
			return m, errNoFrame
		case errors.Is(err, fabric.ErrProtocol):
			return m, err
		case err != nil:
			return m, fmt.Errorf("%w: %w", fabric.ErrPeerGone, err)
		}
		n += got
	}
	h, err := frame.Decode(b[:])
	if err != nil {
		return m, fmt.Errorf("%w: %w", fabric.ErrProtocol, err)
	}
	m.h = h
	return m, nil
}

// readSome reads bytes, their sender, and at most two descriptors: the second proves that there is one
// too many. What does not fit is closed by the kernel.
func (s *session) readSome(b []byte) (n int, fds []int, sender unix.Ucred, err error) {
	const fdBytes = 4
	oob := make([]byte, unix.CmsgSpace(2*fdBytes)+unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, flags, _, err := s.conn.ReadMsgUnix(b, oob)
	if errors.Is(err, io.EOF) {
		n, err = 0, nil
	}
	messages, parseErr := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		if got, rightsErr := unix.ParseUnixRights(&messages[i]); rightsErr == nil {
			fds = append(fds, got...)
		}
		if cred, credErr := unix.ParseUnixCredentials(&messages[i]); credErr == nil {
			sender = *cred
		}
	}
	if err == nil && (parseErr != nil || flags&unix.MSG_CTRUNC != 0) {
		err = fmt.Errorf("%w: control message", fabric.ErrProtocol)
	}
	return n, fds, sender, err
}

// answer acts on one frame. An error ends the session.
func (s *session) answer(m message) error {
	if m.file >= 0 && m.h.Type != frame.Region {
		return fmt.Errorf("%w: descriptor with a frame of type %d", fabric.ErrProtocol, m.h.Type)
	}
	switch m.h.Type {
	case frame.Region:
		return s.announce(m)
	case frame.Attach:
		return s.attach()
	case frame.Present:
		return s.present(m)
	case frame.Forget:
		return s.forget(m.h)
	case frame.Ping:
		return s.send(frame.Header{Type: frame.Pong})
	case frame.Close:
		s.orderly.Store(true)
		return nil
	}
	return fmt.Errorf("%w: frame of type %d", fabric.ErrProtocol, m.h.Type)
}

// announce takes the memory of a new region. A refused region does not end the session.
func (s *session) announce(m message) error {
	status := s.takeRegion(m)
	if status != frame.StatusOK {
		s.fabric.roster.Counters.Rejected.Add(1)
		return s.send(frame.Header{Type: frame.RegionRefused, Region: m.h.Region, Status: status})
	}
	return s.send(frame.Header{Type: frame.RegionOK, Region: m.h.Region})
}

func (s *session) takeRegion(m message) frame.Status {
	if m.h.Size == 0 || m.h.Size > frame.MaxRegionBytes || m.h.Region > 1<<32-1 {
		return frame.StatusSize
	}
	switch m.h.Status {
	case frame.StatusOK:
		return s.mapRegion(m.h, m.file)
	case frame.StatusForeign:
		return s.foreignRegion(m)
	}
	return frame.StatusKind
}

// reserve takes the number and the bytes of a region; Publish or Unreserve of the session follows.
func (s *session) reserve(h frame.Header) (*fabric.Region, frame.Status) {
	g, err := s.core.Reserve(uint32(h.Region), int64(h.Size), int64(h.Size))
	switch {
	case errors.Is(err, fabric.ErrLimit):
		return nil, frame.StatusLimit
	case err != nil:
		return nil, frame.StatusDuplicate
	}
	return g, frame.StatusOK
}

func (s *session) mapRegion(h frame.Header, file int) frame.Status {
	size := int64(h.Size)
	if status := checkFile(file, size); status != frame.StatusOK {
		return status
	}
	g, status := s.reserve(h)
	if status != frame.StatusOK {
		return status
	}
	m, err := mapFile(file, size)
	if err != nil {
		s.core.Unreserve(g)
		s.fabric.logger.Warn("region not mapped", "fabric", Name, requestid.Attr, s.core.RequestID, "error", err)
		return frame.StatusMap
	}
	if err := s.core.Publish(g, m); err != nil {
		m.Sever()
		return frame.StatusMap // nobody reads it: the session has ended
	}
	return frame.StatusOK
}

// checkFile tells whether the descriptor is memory that stays where it is: a regular file with
// seals (only a memfd has the shrink seal), of exactly this size, with a page behind every byte. The
// client can still punch holes later; a touch then allocates a zero page, which stays within what
// the ledger lets the principal map. A memfd of huge pages keeps the same rules: its size is a multiple of
// its page, and its blocks count what is allocated.
func checkFile(file int, size int64) frame.Status {
	if file < 0 {
		return frame.StatusKind
	}
	var st unix.Stat_t
	if unix.Fstat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return frame.StatusKind
	}
	seals, err := unix.FcntlInt(uintptr(file), unix.F_GET_SEALS, 0)
	if err != nil {
		return frame.StatusKind
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return frame.StatusSeals
	}
	flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDWR || seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return frame.StatusKind
	}
	if st.Size != size {
		return frame.StatusSize
	}
	const blockBytes = 512 // of st_blocks, whatever the file system
	if st.Blocks*blockBytes < size {
		return frame.StatusSparse
	}
	return frame.StatusOK
}

func (s *session) forget(h frame.Header) error {
	number := uint32(h.Region)
	var finish func() bool
	if h.Region <= 1<<32-1 {
		finish = s.core.Forget(number)
	}
	if finish == nil {
		return s.send(frame.Header{Type: frame.Forgotten, Region: h.Region, Status: frame.StatusUnknown})
	}
	s.forgets.Go(func() { // open windows may take a while; the end of the client is noticed meanwhile
		if !finish() {
			return
		}
		if err := s.send(frame.Header{Type: frame.Forgotten, Region: h.Region}); err != nil {
			s.core.Cut(err)
		}
	})
	return nil
}

// finish answers Close: running transfers get a grace, then no mapping and no descriptor of the client's
// memory is left, and the client is told so, unless an operation lingers.
func (s *session) finish() {
	s.core.Drain(s.fabric.roster.Limits().DrainWait)
	s.core.Cut(fabric.ErrPeerGone)
	s.forgets.Wait()
	if s.foreign.lingers() {
		return
	}
	s.foreign.end()
	_ = s.send(frame.Header{Type: frame.Closed}) // a client that is gone needs no answer
}

// send writes a control frame; a client that does not read loses its session.
func (s *session) send(h frame.Header) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeWait))
	if err := frame.WriteFrame(s.conn, h, nil); err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrPeerGone, err)
	}
	return nil
}
