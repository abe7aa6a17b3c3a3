package rails

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
)

// stager is what an engine with stages can do besides.
type stager interface {
	NewStage(memory []byte, from initiator.Source) (*initiator.Stage, error)
}

var _ stager = (*initiator.Rail)(nil)

// ErrEnded says that its owner ended the stage.
var ErrEnded = errors.New("rails: stage ended")

// Stage is memory of this node that a client's queue pair writes once, as initiator.Stage, and a use of its rail: its
// queue pair is one of this node's own, to which no use leads. It ends by Cut, with its rail, and when the use fails.
// That bytes came says nothing about whose queue pair sent them: a packet names its target only.
type Stage struct {
	use  *Use
	ctx  context.Context // ends with the stage
	end  context.CancelCauseFunc
	made *initiator.Stage

	sealed chan struct{} // closed when nothing changes the memory any more
	done   chan struct{} // closed when nothing is left of it

	mu sync.Mutex // one at a time closes
}

// StageOptions of Set.Stage.
type StageOptions struct {
	LinkOptions        // RNRRetries say nothing here
	Memory      []byte // stays the stage's until Done
}

// Stage makes the memory's queue pair and connects it to a client's, by the rail that Toward says; the client may write
// from then on. It waits as Link does. Errors: Link's; initiator.ErrStuck: the memory must stay mapped, and unused.
func (set *Set) Stage(o StageOptions, stop <-chan struct{}) (*Stage, error) {
	if err := set.enter(); err != nil {
		return nil, err
	}
	s, err := set.stage(o, stop)
	if err != nil {
		set.links.Done()
		return nil, err
	}
	go func() {
		defer set.links.Done()
		s.live()
	}()
	return s, nil
}

// stage makes and connects a stage that is counted in.
func (set *Set) stage(o StageOptions, stop <-chan struct{}) (*Stage, error) {
	k, from, err := set.Toward(o.Peer.GID, o.Local)
	if err != nil {
		return nil, err
	}
	s := &Stage{sealed: make(chan struct{}), done: make(chan struct{})}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	s.use = &Use{
		Rail: k, Owner: o.Owner, Session: o.Session, Far: End{o.Peer.GID, o.Peer.QPN},
		Path: initiator.PathOptions{From: from}, Fail: func() { s.end(ErrDown) },
	}
	return s, s.open(o, stop)
}

// open makes and connects the queue pair. After an error nothing is left of it, but where that is initiator.ErrStuck.
func (s *Stage) open(o StageOptions, stop <-chan struct{}) error {
	if err := s.use.Join(); err != nil {
		return err
	}
	err := s.connect(o, stop)
	if err != nil && !errors.Is(err, initiator.ErrStuck) {
		s.use.Leave()
	}
	return err
}

func (s *Stage) connect(o StageOptions, stop <-chan struct{}) error {
	k := s.use.Rail
	engine, ok := k.engine.(stager)
	if !ok {
		return ErrNoRail
	}
	leave := s.use.Turn(stop)
	if leave == nil {
		return ErrGivenUp
	}
	defer leave()
	if !k.stageBegins() {
		return initiator.ErrClosed
	}
	defer k.staging.Done()
	made, err := engine.NewStage(o.Memory, s.use.Path.From)
	if err != nil {
		s.use.Refused()
		return err
	}
	s.made = made
	local := made.Local()
	k.set.ends.enter(s.use, End{local.GID, local.QPN})
	k.keepStage(s)
	if s.ctx.Err() != nil {
		err = ErrDown
	} else if err = made.Connect(o.Peer); err != nil {
		s.use.Refused()
	}
	if err == nil {
		return nil
	}
	if closeErr := made.Close(); closeErr != nil { // closing the rail tries again
		s.use.Stuck(closeErr)
		return errors.Join(err, initiator.ErrStuck, closeErr)
	}
	k.dropStage(s)
	return err
}

// live stays with the stage to its end, or to where the adapter does not let go: then its rail's end goes on.
func (s *Stage) live() {
	<-s.ctx.Done()
	began := time.Now()
	late := time.AfterFunc(settleWait, func() { s.use.Stuck(errNotReset) })
	hung := time.AfterFunc(hungWait, func() { s.use.Failed(began) })
	err := s.close()
	late.Stop()
	hung.Stop()
	if err != nil {
		s.use.Stuck(err)
	}
}

// close seals the stage and gives it back. It may be called again, also after an error. Errors: those of
// initiator.Stage.Close.
func (s *Stage) close() error {
	s.end(ErrDown)
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
		return nil
	default:
	}
	if err := s.made.Seal(); err != nil {
		return err
	}
	select {
	case <-s.sealed:
	default:
		close(s.sealed)
	}
	if err := s.made.Close(); err != nil {
		return err
	}
	s.use.Rail.dropStage(s)
	s.use.Leave()
	close(s.done)
	return nil
}

// Local is what the client must know of the queue pair.
func (s *Stage) Local() initiator.Endpoint { return s.made.Local() }

// Port is the port's number.
func (s *Stage) Port() int { return s.use.port() }

// Region is where the client writes, and its key, which is a secret between the two.
func (s *Stage) Region() (address uint64, key uint32) { return s.made.Region() }

// Wait waits until the client has said that it has written, and returns what it said. It may write until Cut. One Wait
// at a time. Errors: ErrDown, ErrEnded; initiator.ErrLost; ctx's.
func (s *Stage) Wait(ctx context.Context) (imm uint32, bytes int, err error) {
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.ctx, func() { stop(context.Cause(s.ctx)) })()
	imm, bytes, err = s.made.Wait(waiting)
	switch {
	case err == nil:
		s.use.heard()
	case s.ctx.Err() != nil: // what it met on the way says less
		err = context.Cause(s.ctx)
	}
	return imm, bytes, err
}

// Fail ends the stage without waiting.
func (s *Stage) Fail() { s.end(ErrEnded) }

// Cut ends the stage and waits, at most so long, until nothing changes the memory any more: it may be read from then
// on, and used for something else from Done on. Errors: initiator.ErrStuck: it may still be changed.
func (s *Stage) Cut(wait time.Duration) error {
	s.Fail()
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case <-s.sealed:
		return nil
	case <-limit.C:
	}
	return fmt.Errorf("%w within %v", initiator.ErrStuck, wait)
}

// Done is closed when nothing is left of the stage.
func (s *Stage) Done() <-chan struct{} { return s.done }

// stageBegins counts one in that is being made, whose end is staging.Done; false: the rail is closing.
func (k *Rail) stageBegins() bool {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	if !k.closing {
		k.staging.Add(1)
	}
	return !k.closing
}

// keepStage has the stage closed before its rail.
func (k *Rail) keepStage(s *Stage) {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	k.stages[s] = struct{}{}
}

func (k *Rail) dropStage(s *Stage) {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	delete(k.stages, s)
}

// closeStages ends the stages of the rail; none is made any more.
func (k *Rail) closeStages() error {
	k.set.mu.Lock()
	k.closing = true
	k.set.mu.Unlock()
	k.staging.Wait()
	k.set.mu.Lock()
	var all []*Stage
	for s := range k.stages {
		all = append(all, s)
	}
	k.set.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}
