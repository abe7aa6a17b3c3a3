package hip

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
)

type state int

const (
	preparing state = iota // its queue pair is being made
	prepared               // waits for the second message
	taken                  // until Finish
	ending
)

// session is one transfer. What is not guarded is set before it is prepared, and does not change.
type session struct {
	fabric *Fabric
	id     [16]byte
	p      fabric.Preparation
	ctx    context.Context // ends when the session is fenced
	end    context.CancelCauseFunc
	link   *rails.Link  // of a GET
	stage  *rails.Stage // of a PUT
	run    run          // its memory
	offer  fabric.Prepared
	gone   chan struct{}

	stuck error // the adapter did not let go; set before gone is closed

	// guarded by Fabric.mu
	state    state
	lapse    *time.Timer
	deadline time.Time
}

// connect makes the queue pair, which is failed when the session is fenced.
func (s *session) connect() (err error) {
	set, d := s.fabric.o.Rails, s.p.Token
	o := rails.LinkOptions{
		Owner: s.p.Principal, Session: s.id, Local: s.p.Local, RNRRetries: rnrForEver,
		Peer: initiator.Endpoint{QPN: d.QPN, PSN: s.p.PSN, GID: d.GID, LID: d.LID, MTU: maxMTU, Reads: 1},
	}
	if s.p.Direction == fabric.ForGet {
		if s.link, err = set.Link(o, s.ctx.Done()); err == nil {
			context.AfterFunc(s.ctx, s.link.Fail)
		}
		return err
	}
	memory := s.fabric.staging.bytes(s.run, int(s.p.Bytes))
	if s.stage, err = set.Stage(rails.StageOptions{LinkOptions: o, Memory: memory}, s.ctx.Done()); err == nil {
		context.AfterFunc(s.ctx, s.stage.Fail)
	} else if errors.Is(err, initiator.ErrStuck) {
		s.run = run{} // it stays out
	}
	return err
}

// refusal is what the caller of Prepare is told.
func (s *session) refusal(err error) error {
	cause := context.Cause(s.ctx)
	switch {
	case cause == nil:
		return refusal(err)
	case errors.Is(cause, fabric.ErrRevoked), errors.Is(cause, errClosing), errors.Is(cause, errCanceled):
		return fmt.Errorf("%w: %w", fabric.ErrNoFabric, cause)
	}
	return cause // of the caller's context
}

// prepared is what the client is told.
func (s *session) prepared() fabric.Prepared {
	var local initiator.Endpoint
	p := fabric.Prepared{ID: s.id}
	if s.stage != nil {
		local, p.Port = s.stage.Local(), uint8(s.stage.Port())
		p.Addr, p.RKey = s.stage.Region()
	} else {
		local, p.Port = s.link.Local(), uint8(s.link.Port())
	}
	p.QPN, p.PSN, p.GID, p.LID = local.QPN, local.PSN, local.GID, local.LID
	return p
}

// admits tells whether the second message is of the first one's client. Fabric.mu is held.
func (s *session) admits(principal string, r fabric.Readiness) error {
	d := s.p.Token
	switch {
	case s.p.Principal != principal:
		return fabric.ErrNotGranted
	case r.Cookie != s.p.Cookie:
		return fmt.Errorf("%w: another cookie", fabric.ErrNotGranted)
	case r.QPN != d.QPN:
		return fmt.Errorf("%w: another queue pair", fabric.ErrNotGranted)
	case s.p.Direction == fabric.ForPut: // the client's adapter reads its memory, not this node's
		return nil
	case r.Addr+uint64(s.p.Bytes) < r.Addr:
		return fmt.Errorf("%w: the window wraps around", fabric.ErrNotGranted)
	case d.Size > 0 && (r.RKey != d.RKey || r.Addr < d.Addr || r.Addr-d.Addr > uint64(d.Size-s.p.Bytes)):
		return fmt.Errorf("%w: outside the token's window", fabric.ErrNotGranted)
	}
	return nil
}

// take makes the transfer. Fabric.mu is held.
func (s *session) take(r fabric.Readiness) *fabric.Taken {
	var w window
	fence := s.deadline
	if s.p.Direction == fabric.ForGet {
		w = newGet(s, r)
		fence = fence.Add(-s.fabric.margin)
	} else {
		w = newPut(s)
	}
	over := time.AfterFunc(time.Until(fence), func() { s.fence(fabric.ErrOverdue) })
	var once sync.Once
	return &fabric.Taken{
		Remote: w, Held: s.p.Held, Direction: s.p.Direction, Bytes: s.p.Bytes, Deadline: s.deadline, Cookie: s.p.Cookie,
		Finish: func() {
			once.Do(func() {
				w.shut()
				over.Stop()
				s.finish(errFinished)
			})
		},
	}
}

// endsNow tells whether the caller is the one who must finish the session, which is prepared. Fabric.mu is held.
func (s *session) endsNow() bool {
	if s.state != prepared {
		return false
	}
	s.state = ending
	return true
}

// expire ends a session that nobody took.
func (s *session) expire() {
	s.fabric.mu.Lock()
	mine := s.endsNow()
	s.fabric.mu.Unlock()
	if mine {
		s.fabric.stat.Lapsed.Add(1)
		s.finish(fabric.ErrOverdue)
	}
}

// fence begins the end of the queue pair, without waiting.
func (s *session) fence(cause error) { s.end(cause) }

// settle waits until the queue pair of a fenced session is reset: nothing touches memory of either end by it any more.
// Errors: ErrLingering.
func (s *session) settle() (err error) {
	switch {
	case s.link != nil:
		err = s.link.Cut(s.fabric.settle)
	case s.stage != nil:
		err = s.stage.Cut(s.fabric.settle)
	}
	if err != nil {
		s.fabric.o.Logger.ErrorContext(s.ctx, "hipobj session is not let go by the adapter", "bytes", s.p.Bytes, "error", err)
		err = fmt.Errorf("%w: %w", fabric.ErrLingering, err)
	}
	return err
}

// finish ends the session. It is called once.
func (s *session) finish(cause error) {
	s.fence(cause)
	s.stuck = s.settle()
	s.giveBack()
	if s.p.Held != nil {
		if err := s.p.Held.Close(); err != nil {
			s.fabric.o.Logger.WarnContext(s.ctx, "hipobj session did not end well", "error", err)
		}
	}
	s.fabric.leave(s)
	close(s.gone)
}

// giveBack gives the run back when nothing can write there any more, which may take longer than the session.
func (s *session) giveBack() {
	if s.run.length == 0 {
		return
	}
	if s.stage == nil {
		s.freeRun()
		return
	}
	go func() {
		<-s.stage.Done()
		s.freeRun()
	}()
}

func (s *session) freeRun() {
	s.fabric.staging.give(s.p.Principal, s.run)
	s.fabric.countRun(-1)
}
