package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-store/penstock/native"
)

// Stage is memory of this node that one peer writes once, and the queue pair by which it does. Both are in a protection
// domain of their own: the peer's key reaches this memory only, and only by this queue pair. It must be closed before
// its rail is.
type Stage struct {
	rail   *Rail
	memory []byte
	local  Endpoint
	from   Source

	pd *native.PD
	cq *native.CQ
	qp *native.QP
	mr *native.MR

	mu     sync.Mutex
	sealed bool // the queue pair is reset or destroyed
}

// stageDepth is the room of a stage's completion queue: its one receive, and one that the driver may want.
const stageDepth = 2

// NewStage makes a stage, with the receive that its peer's immediate uses up. Errors: ErrClosed, native.ErrVerbs;
// ErrStuck, when the adapter kept a part of what it refused: the memory must stay mapped, and unused.
func (r *Rail) NewStage(memory []byte, from Source) (*Stage, error) {
	psn, err := randomPSN()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	if r.closed || r.broken {
		r.mu.Unlock()
		return nil, ErrClosed
	}
	r.making.Add(1)
	now := r.now
	r.mu.Unlock()
	defer r.making.Done()
	s := &Stage{rail: r, memory: memory, from: from}
	if err := s.open(); err != nil {
		err = fmt.Errorf("initiator: stage on %s: %w", r.name, err)
		if closeErr := s.Close(); closeErr != nil {
			return nil, fmt.Errorf("%w: %w", ErrStuck, errors.Join(err, closeErr))
		}
		return nil, err
	}
	s.local = Endpoint{QPN: s.qp.Number(), PSN: psn, GID: now.GID, LID: now.LID, MTU: now.MTU, Reads: 1}
	if from != (Source{}) {
		s.local.GID = from.GID
	}
	return s, nil
}

func (s *Stage) open() (err error) {
	if s.pd, err = s.rail.dev.NewPD(); err != nil {
		return err
	}
	if s.mr, err = s.pd.Register(s.memory, native.LocalWrite|native.RemoteWrite); err != nil {
		return err
	}
	if s.cq, err = s.rail.dev.NewCQ(stageDepth); err != nil {
		return err
	}
	s.qp, err = s.pd.NewQP(s.cq, native.PairOptions{Depth: 1, Receives: 1})
	return err
}

// Local is what the peer must know of the queue pair.
func (s *Stage) Local() Endpoint { return s.local }

// Region is where the peer writes, and its key, which is a secret between the two.
func (s *Stage) Region() (address uint64, key uint32) { return s.mr.Addr(), s.mr.RKey() }

// Connect makes the queue pair ready for its peer's, which may write from now on; Seal waits for it. Errors:
// native.ErrVerbs; ErrLocal, when the peer's data cannot be meant; ErrLost, when the stage is sealed.
func (s *Stage) Connect(peer Endpoint) error {
	if peer.MTU < 256 || peer.QPN >= 1<<24 || peer.PSN >= 1<<24 {
		return fmt.Errorf("%w: peer's queue pair %d, MTU %d", ErrLocal, peer.QPN, peer.MTU)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return fmt.Errorf("%w: stage of %s is sealed", ErrLost, s.rail.name)
	}
	o, now := &s.rail.opts, s.rail.Rail()
	path := native.Path{
		Port: now.Port, GIDIndex: now.GIDIndex, HopLimit: o.HopLimit, TrafficClass: o.TrafficClass,
		Access: native.RemoteWrite, PSN: s.local.PSN, MinRNRTimer: minRNRTimer,
	}
	if s.from != (Source{}) {
		path.GIDIndex = s.from.Index
	}
	to := native.Peer{
		QPN: peer.QPN, PSN: peer.PSN, GID: peer.GID, LID: peer.LID, MTU: min(s.local.MTU, peer.MTU), Reads: 1,
	}
	err := s.qp.Init(path)
	if err == nil {
		err = s.qp.PostReceive(0)
	}
	if err == nil {
		err = s.qp.Receive(path, to)
	}
	if err != nil {
		return fmt.Errorf("initiator: connect a stage of %s: %w", s.rail.name, err)
	}
	return nil
}

// Wait waits until the peer has said that it has written, and returns what it said. The peer may write until Seal.
// Errors: ErrLost, when the queue pair failed; ctx's.
func (s *Stage) Wait(ctx context.Context) (imm uint32, bytes int, err error) {
	for {
		if imm, bytes, done, err := s.take(); done {
			return imm, bytes, err
		}
		if err := s.cq.Arm(); err != nil {
			return 0, 0, fmt.Errorf("%w: stage of %s: %w", ErrLost, s.rail.name, err)
		}
		if imm, bytes, done, err := s.take(); done { // it came before arming
			return imm, bytes, err
		}
		if err := s.cq.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				return 0, 0, context.Cause(ctx)
			}
			return 0, 0, fmt.Errorf("%w: stage of %s: %w", ErrLost, s.rail.name, err)
		}
	}
}

// take looks for the completion of the receive.
func (s *Stage) take() (imm uint32, bytes int, done bool, err error) {
	var one [1]native.Completion
	n, err := s.cq.Poll(one[:])
	switch c := one[0]; {
	case err != nil:
		return 0, 0, true, fmt.Errorf("%w: stage of %s: %w", ErrLost, s.rail.name, err)
	case n == 0:
		return 0, 0, false, nil
	case c.Status != native.StatusOK || !c.HasImm:
		return 0, 0, true, fmt.Errorf("%w: stage of %s: status %d", ErrLost, s.rail.name, c.Status)
	default:
		return c.Imm, int(c.Bytes), true, nil
	}
}

// Seal takes the queue pair from the adapter: nothing changes the memory any more. It may be called again, also after
// an error. Errors: ErrStuck.
func (s *Stage) Seal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed || s.qp == nil {
		return nil
	}
	_ = s.qp.Fail() // the reset is the proof
	if err := s.qp.Reset(); err != nil {
		if destroyErr := s.qp.Close(); destroyErr != nil {
			return fmt.Errorf("%w: stage of %s: %w", ErrStuck, s.rail.name, errors.Join(err, destroyErr))
		}
	}
	s.sealed = true
	return nil
}

// Close seals and gives everything back; the memory is the caller's again. After an error it is not, and Close may be
// called again. Errors: ErrStuck, native.ErrVerbs.
func (s *Stage) Close() error {
	if err := s.Seal(); err != nil {
		return err
	}
	if s.qp != nil {
		if err := s.rail.ended("queue pair", s.qp.Close()); err != nil {
			return err
		}
	}
	if s.cq != nil {
		if err := s.rail.ended("completion queue", s.cq.Close()); err != nil {
			return err
		}
	}
	if s.mr != nil {
		if err := s.rail.ended("memory region", s.mr.Close()); err != nil {
			return err
		}
	}
	if s.pd != nil {
		return s.rail.ended("protection domain", s.pd.Close())
	}
	return nil
}
