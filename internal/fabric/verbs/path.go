package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/dataconn"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/frame"
)

// stage of a path's life.
type stage int

const (
	making  stage = iota // its queue pair is being connected
	offered              // the client knows it
	ready                // the client is ready to receive: it carries transfers
	dead                 // it failed, and lives until it is fenced
)

// why a path failed, when it did not fail by itself.
type why int

const (
	whyNot     why = iota
	whySession     // its session ends
	whyRail        // its rail is down
	whyFenced      // the client said so
	whyLate        // the client never was ready
	whyTaken       // it leads to a queue pair that is not the client's
)

// path is a pair of queue pairs, from its PATH to its end.
type path struct {
	id      uint64
	session *session
	port    *port
	device  uint8    // of the client
	gid     [16]byte // of that device
	far     farEnd   // the client's queue pair
	near    farEnd   // this node's; guarded by ends.mu

	load atomic.Int64 // bytes of the open transfers that chose it
	good atomic.Int64 // when a move last succeeded, Unix nanoseconds

	settled chan struct{} // closed when this end is reset, or was never connected
	fenced  chan struct{} // closed when the client's end is
	done    chan struct{} // closed when both are

	// guarded by session.mu
	lane     lane // nil: not made yet
	stage    stage
	why      why
	isFenced bool
	denied   bool           // the client's adapter refused something
	fell     time.Time      // when it failed, or when the first operation began that failed with it
	moves    sync.WaitGroup // under way; counted up under session.mu, while ready
}

// request answers PATH.
func (s *session) request(h frame.Header) error {
	b, err := dataconn.Body(s.net, h)
	if err != nil {
		return err
	}
	body, err := frame.DecodePath(b)
	if err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrProtocol, err)
	}
	if h.ID <= s.last {
		return fmt.Errorf("%w: path number %d after %d", fabric.ErrProtocol, h.ID, s.last)
	}
	s.last = h.ID
	p := &path{
		id: h.ID, session: s, port: s.fabric.ports.find(h.Region), device: body.Device, gid: body.GID,
		far:     farEnd{body.GID, body.QPN},
		settled: make(chan struct{}), fenced: make(chan struct{}), done: make(chan struct{}),
	}
	switch {
	case p.port == nil:
		return s.refuse(h.ID, frame.StatusRail)
	case !s.fabric.permitted(body.GID, s.peer):
		return s.refuse(h.ID, frame.StatusGID)
	case !s.keep(p):
		return s.refuse(h.ID, frame.StatusLimit)
	}
	if status := s.enroll(p); status != frame.StatusOK {
		s.drop(p)
		return s.refuse(h.ID, status)
	}
	s.tasks.Go(func() { p.live(body) })
	return nil
}

// enroll counts the path in where others are counted too; disenroll undoes it.
func (s *session) enroll(p *path) frame.Status {
	if !s.fabric.ends.claim(p) {
		return frame.StatusDuplicate
	}
	status := p.port.join(p, p.owner())
	if status != frame.StatusOK {
		s.fabric.ends.drop(p)
	}
	return status
}

func (s *session) disenroll(p *path) {
	p.port.leave(p, p.owner())
	s.fabric.ends.drop(p)
}

// owner is the principal whose path it is.
func (p *path) owner() string { return p.session.core.Principal }

// keep takes the path among those that live. False: there is no room, or the session ends.
func (s *session) keep(p *path) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || len(s.paths) >= maxPaths {
		return false
	}
	s.paths[p.id] = p
	return true
}

// drop forgets a path whose end is done.
func (s *session) drop(p *path) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.paths, p.id)
	s.wake()
}

func (s *session) refuse(id uint64, status frame.Status) error {
	return s.queue(frame.Header{Type: frame.PathRefused, ID: id, Status: status}, nil)
}

// pathUp takes PATH_UP.
func (s *session) pathUp(h frame.Header) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.paths[h.ID]
	switch {
	case p == nil || p.stage == making || p.stage == ready || p.isFenced:
		return fmt.Errorf("%w: path %d cannot come up", fabric.ErrProtocol, h.ID)
	case p.stage == offered:
		p.stage = ready
		s.wake()
	} // else LOST is on its way
	return nil
}

// pathFenced takes FENCED. The answer to a LOST may cross one that needed none.
func (s *session) pathFenced(h frame.Header) error {
	if h.ID == 0 || h.ID > s.last {
		return fmt.Errorf("%w: no path %d", fabric.ErrProtocol, h.ID)
	}
	s.mu.Lock()
	p := s.paths[h.ID]
	first := p != nil && !p.isFenced
	if first {
		p.isFenced = true
		close(p.fenced)
	}
	s.mu.Unlock()
	if first {
		p.fail(whyFenced)
	}
	return nil
}

// fail ends the path without waiting; the first reason counts.
func (p *path) fail(reason why) {
	s := p.session
	s.mu.Lock()
	if p.why == whyNot && p.stage != dead {
		p.why = reason
	}
	p.stage = dead
	lane := p.lane
	s.wake()
	s.mu.Unlock()
	if lane != nil {
		lane.Fail()
	}
}

// live connects the path and stays with it to its end.
func (p *path) live(body frame.PathBody) {
	s := p.session
	defer close(p.done)
	defer func() {
		s.disenroll(p)
		s.drop(p)
	}()
	made, status := p.make(body)
	if status != frame.StatusOK {
		close(p.settled)
		s.tell(frame.Header{Type: frame.PathRefused, ID: p.id, Status: status}, nil)
		return
	}
	s.tell(frame.Header{Type: frame.PathOK, ID: p.id}, p.answer(made, body))
	p.watch(made)
}

// make connects a queue pair to the client's. With a status that is not OK nothing is left of it.
func (p *path) make(body frame.PathBody) (lane, frame.Status) {
	s := p.session
	if !enter(s.making[p.port.index], s.core.Ended()) {
		return nil, frame.StatusAborted
	}
	defer func() { <-s.making[p.port.index] }()
	leave := p.port.connects.take(p.owner(), s.core.Ended())
	if leave == nil {
		return nil, frame.StatusAborted
	}
	defer leave()
	made, err := p.port.engine.NewPath()
	switch {
	case errors.Is(err, initiator.ErrLimit):
		p.port.refused.Add(1)
		return nil, frame.StatusLimit
	case err != nil:
		p.port.refused.Add(1)
		return nil, frame.StatusDevice
	}
	local := made.Local()
	s.fabric.ends.enter(p, farEnd{local.GID, local.QPN})
	err = made.Connect(initiator.Endpoint{
		QPN: body.QPN, PSN: body.PSN, GID: body.GID, LID: body.LID, MTU: frame.MTUBytes(body.MTU), Reads: int(body.Reads),
	})
	status := frame.StatusOK
	if err != nil {
		p.port.refused.Add(1)
		status = frame.StatusDevice
	}
	s.mu.Lock()
	if status == frame.StatusOK && p.stage == dead { // meanwhile, for a reason that is not its own
		status = frame.StatusRail
	}
	if status == frame.StatusOK {
		p.lane, p.stage = made, offered
	}
	s.mu.Unlock()
	if status != frame.StatusOK {
		p.dispose(made)
		return nil, status
	}
	return made, status
}

// answer is the body of PATH_OK.
func (p *path) answer(made lane, body frame.PathBody) []byte {
	local := made.Local()
	reply := frame.PathBody{
		QPN: local.QPN, PSN: local.PSN, GID: local.GID, LID: local.LID, MTU: min(frame.MTUNumber(local.MTU), body.MTU),
		Device: body.Device, Reads: uint8(max(1, min(local.Reads, int(body.Reads)))),
	}
	b := make([]byte, frame.PathBytes)
	reply.Encode(b)
	return b
}

// dispose gives a queue pair back that nothing was posted on, or that is reset.
func (p *path) dispose(made lane) {
	if err := made.Close(); err != nil {
		p.port.stuck(err)
	}
}

// watch waits for the end of a path, tells the client, and waits for its fence.
func (p *path) watch(made lane) {
	s := p.session
	late := time.AfterFunc(min(upWait, s.fabric.stall), func() {
		if p.at() == offered {
			p.fail(whyLate)
		}
	})
	<-made.Failed()
	late.Stop()
	p.end()
	p.reset(made)
	close(p.settled)
	if !p.clientFenced() {
		s.tell(frame.Header{Type: frame.Lost, ID: p.id}, nil)
		stalled := time.AfterFunc(s.fabric.stall, func() { s.core.Cut(fabric.ErrStalled) })
		select {
		case <-p.fenced:
			p.judge()
		case <-s.core.Ended():
		}
		stalled.Stop()
	}
	p.dispose(made)
}

// errNotReset says that an adapter keeps a queue pair, and the buffers with it.
var errNotReset = fmt.Errorf("%w within %v", initiator.ErrStuck, settleWait)

// reset waits until this end is reset, and says loudly that an adapter does not do it.
func (p *path) reset(made lane) {
	began := time.Now()
	hung := time.AfterFunc(p.session.fabric.hung, func() { p.port.failed(p, began) }) // not for its client
	defer hung.Stop()
	timer := time.NewTimer(settleWait)
	defer timer.Stop()
	select {
	case <-made.Settled():
		return
	case <-timer.C:
	}
	p.port.stuck(errNotReset)
	<-made.Settled()
}

func (p *path) at() stage {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.stage
}

func (p *path) clientFenced() bool {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.isFenced || p.session.gone
}

// end notes that the path has failed.
func (p *path) end() {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	p.stage = dead
	s.lost = time.Now()
	p.fellAt(s.lost)
	s.wake()
}

// fellAt notes when what failed began. session.mu is held.
func (p *path) fellAt(at time.Time) {
	if p.fell.IsZero() || at.Before(p.fell) {
		p.fell = at
	}
}

// judge tells the rail that a path failed by itself while its client lived, and for no fault of the client.
func (p *path) judge() {
	p.moves.Wait() // they end with the reset, and say what failed
	p.session.mu.Lock()
	own, fell := p.why == whyNot && !p.denied, p.fell
	p.session.mu.Unlock()
	if own {
		p.port.failed(p, fell)
	}
}

// errDead says that a path failed before it was used.
var errDead = fmt.Errorf("%w: path is dead", initiator.ErrLost)

// move moves bytes on the path. Errors: those of initiator.Path.Move.
func (p *path) move(m initiator.Move) error {
	s := p.session
	s.mu.Lock()
	if p.stage != ready {
		s.mu.Unlock()
		return errDead
	}
	p.moves.Add(1)
	s.mu.Unlock()
	defer p.moves.Done()
	began := time.Now()
	err := p.lane.Move(m)
	if err == nil {
		now := time.Now().UnixNano()
		p.port.good.Store(now)
		if p.good.Swap(now) == 0 {
			s.fabric.ends.answered(p)
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.fellAt(began)
	p.denied = p.denied || errors.Is(err, initiator.ErrDenied)
	return err
}
