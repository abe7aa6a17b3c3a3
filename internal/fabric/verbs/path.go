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
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
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
	whyRails       // its rail is down, or it leads to a queue pair that is not the client's
	whyFenced      // the client said so
	whyLate        // the client never was ready
)

// path is a pair of queue pairs, from its PATH to its end.
type path struct {
	id      uint64
	session *session
	rail    *rails.Rail
	use     *rails.Use // of the rail
	device  uint8      // of the client

	load atomic.Int64 // bytes of the open transfers that chose it

	settled chan struct{} // closed when this end is reset, or was never connected
	fenced  chan struct{} // closed when the client's end is
	done    chan struct{} // closed when both are

	// guarded by session.mu
	lane     *initiator.Path // nil: not made yet
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
		id: h.ID, session: s, rail: s.fabric.rails.Find(h.Region), device: body.Device,
		settled: make(chan struct{}), fenced: make(chan struct{}), done: make(chan struct{}),
	}
	p.use = &rails.Use{
		Rail: p.rail, Owner: s.core.Principal, Session: s.core.ID, Far: rails.End{GID: body.GID, QPN: body.QPN},
		Fail: func() { p.fail(whyRails) },
	}
	switch {
	case p.rail == nil:
		return s.refuse(h.ID, frame.StatusRail)
	case !s.fabric.rule.Permits(body.GID, s.peer), !p.rail.Links(body.GID, s.local):
		return s.refuse(h.ID, frame.StatusGID)
	case !s.keep(p):
		return s.refuse(h.ID, frame.StatusLimit)
	}
	if err := p.use.Join(); err != nil {
		s.drop(p)
		return s.refuse(h.ID, statusOf(err))
	}
	s.tasks.Go(func() { p.live(body) })
	return nil
}

// statusOf says why a rail takes no path.
func statusOf(err error) frame.Status {
	switch {
	case errors.Is(err, rails.ErrTaken):
		return frame.StatusDuplicate
	case errors.Is(err, rails.ErrShare), errors.Is(err, initiator.ErrLimit):
		return frame.StatusLimit
	case errors.Is(err, rails.ErrDown):
		return frame.StatusRail
	}
	return frame.StatusDevice
}

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
		p.use.Leave()
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
func (p *path) make(body frame.PathBody) (*initiator.Path, frame.Status) {
	s := p.session
	making := s.making[p.rail.Index()]
	select {
	case making <- struct{}{}:
	case <-s.core.Ended():
		return nil, frame.StatusAborted
	}
	defer func() { <-making }()
	leave := p.use.Turn(s.core.Ended())
	if leave == nil {
		return nil, frame.StatusAborted
	}
	defer leave()
	made, err := p.use.NewPath()
	if err != nil {
		return nil, statusOf(err)
	}
	err = made.Connect(initiator.Endpoint{
		QPN: body.QPN, PSN: body.PSN, GID: body.GID, LID: body.LID, MTU: frame.MTUBytes(body.MTU), Reads: int(body.Reads),
	})
	status := frame.StatusOK
	if err != nil {
		p.use.Refused()
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
func (p *path) answer(made *initiator.Path, body frame.PathBody) []byte {
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
func (p *path) dispose(made *initiator.Path) {
	if err := made.Close(); err != nil {
		p.use.Stuck(err)
	}
}

// watch waits for the end of a path, tells the client, and waits for its fence.
func (p *path) watch(made *initiator.Path) {
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
func (p *path) reset(made *initiator.Path) {
	began := time.Now()
	hung := time.AfterFunc(p.session.fabric.hung, func() { p.use.Failed(began) }) // not for its client
	defer hung.Stop()
	timer := time.NewTimer(settleWait)
	defer timer.Stop()
	select {
	case <-made.Settled():
		return
	case <-timer.C:
	}
	p.use.Stuck(errNotReset)
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
		p.use.Failed(fell)
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
		p.use.Moved()
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.fellAt(began)
	p.denied = p.denied || errors.Is(err, initiator.ErrDenied)
	return err
}
