package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric/dc/lane"
	"github.com/penstock-store/penstock/native"
)

// task is an action of the core, with the move that it is about.
type task struct {
	lane.Action
	move *poolMove
}

// tasks copies actions, whose list is good until the core's next input. Called with mu held.
func (p *Pool) tasks(actions []lane.Action) []task {
	if len(actions) == 0 {
		return nil
	}
	list := make([]task, len(actions))
	for i, a := range actions {
		list[i] = task{a, p.moves[a.Transfer]}
		if a.Kind == lane.Finish {
			delete(p.moves, a.Transfer)
			if p.closed && len(p.moves) == 0 {
				close(p.empty)
			}
		}
	}
	return list
}

// input gives the core an input, and carries out what follows.
func (p *Pool) input(f func(*lane.Core) []lane.Action) { p.carry(p.apply(f)) }

func (p *Pool) apply(f func(*lane.Core) []lane.Action) []task {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tasks(f(p.core))
}

// carry carries out tasks, and those that follow from posting. None of it waits.
func (p *Pool) carry(list []task) {
	for i := 0; i < len(list); i++ {
		t := list[i]
		switch t.Kind {
		case lane.Post:
			well := p.post(&t)
			list = append(list, p.apply(func(c *lane.Core) []lane.Action { return c.Posted(t.Lane, well) })...)
		case lane.Reset:
			p.resets.Go(func() { p.reset(t.Lane) })
		case lane.Retire:
			p.resets.Go(func() { p.retire(t.Lane) })
		case lane.Linger:
			time.AfterFunc(p.o.Linger, func() {
				p.input(func(c *lane.Core) []lane.Action { return c.Lingered(t.Transfer) })
			})
		case lane.Finish:
			t.move.done <- t.Result
		}
	}
}

// post posts a batch. Its lane posts nothing else meanwhile, and is not reset.
func (p *Pool) post(t *task) bool {
	var room [poolBatch]native.Work
	m, works := t.move, room[:len(t.Works)]
	for i, w := range t.Works {
		n := native.Work{ID: w.ID, Remote: w.Remote, Length: uint32(w.Length), RKey: m.RKey, Signal: w.Signal,
			Op: native.OpWrite}
		if w.Read {
			n.Op = native.OpRead
		}
		if w.Segment < 0 { // proofs under way at once: a lane has one
			n.Local, n.LKey = address(p.scratch.memory[t.Lane*scratchBytes:]), p.scratch.lkey
		} else {
			n.Local, n.LKey = address(m.Local[w.Segment][w.Offset:]), p.rail.arena.lkey
		}
		works[i] = n
	}
	to := native.Destination{Address: m.address, DCT: m.Target.DCT, Key: m.Target.Key}
	n, err := p.dcis[t.Lane].Post(to, works)
	return err == nil && n == len(works)
}

// reset takes a DCI from the adapter, and makes it usable again.
func (p *Pool) reset(at int) {
	p.rail.settlers <- struct{}{}
	dci := p.dcis[at]
	// Flushing first lets the adapter end in its own order. Whether it did does not matter: the reset is the proof.
	_ = dci.Fail()
	fenced := dci.Reset() == nil
	usable := fenced && p.connect(dci) == nil
	<-p.rail.settlers
	p.sweep()
	p.input(func(c *lane.Core) []lane.Action { return c.ResetDone(at, fenced, usable) })
}

func (p *Pool) retire(at int) {
	p.rail.settlers <- struct{}{}
	destroyed := p.dcis[at].Close() == nil
	<-p.rail.settlers
	p.sweep()
	p.input(func(c *lane.Core) []lane.Action { return c.RetireDone(at, destroyed) })
}

// poll takes completions until the queue is closed.
func (p *Pool) poll() {
	defer close(p.polled)
	for {
		n, err := p.take()
		if err == nil && n > 0 {
			continue
		}
		if err == nil {
			err = p.cq.Arm()
		}
		if err == nil {
			// What came before arming wakes nobody.
			if n, err = p.take(); err == nil && n > 0 {
				continue
			}
		}
		if err == nil {
			err = p.cq.Wait(context.Background())
		}
		if err != nil {
			if !errors.Is(err, native.ErrClosed) {
				p.rail.breakDown(fmt.Errorf("completion queue: %w", err))
			}
			return
		}
	}
}

// take gives one batch of completions to the core.
func (p *Pool) take() (int, error) {
	p.polling.Lock()
	defer p.polling.Unlock()
	n, err := p.cq.Poll(p.batchOf[:])
	var list []task
	p.mu.Lock()
	before := p.core.Counts().Unexpected
	for _, c := range p.batchOf[:n] {
		list = append(list, p.tasks(p.core.Completed(c.ID, laneStatus(c.Status), int(c.Bytes)))...)
	}
	strange := p.core.Counts().Unexpected - before
	p.mu.Unlock()
	p.rail.unexpected.Add(int64(strange))
	p.carry(list)
	return n, err
}

func laneStatus(s native.Status) lane.Status {
	switch s {
	case native.StatusOK:
		return lane.StatusOK
	case native.StatusFlushed:
		return lane.StatusFlushed
	case native.StatusRemoteAccess, native.StatusRemoteOther:
		return lane.StatusDenied
	case native.StatusLocal:
		return lane.StatusLocal
	default:
		return lane.StatusLost
	}
}

// sweep takes every completion that was in the queue when it was called.
func (p *Pool) sweep() {
	for {
		n, err := p.take()
		if err != nil {
			p.rail.breakDown(fmt.Errorf("completion queue: %w", err))
			return
		}
		if n == 0 {
			return
		}
	}
}

// down ends all moves, up lets them begin again, lost ends that of a DCI which the adapter reports as failed.
func (p *Pool) down() { p.input((*lane.Core).PortDown) }

func (p *Pool) up() {
	p.rail.mu.Lock()
	usable := !p.rail.broken && !p.rail.closed
	p.rail.mu.Unlock()
	if usable {
		p.input((*lane.Core).PortUp)
	}
}

func (p *Pool) lost(number uint32) {
	for at, dci := range p.dcis {
		if dci.Number() == number {
			p.input(func(c *lane.Core) []lane.Action { return c.Failed(at) })
		}
	}
}

// close ends all moves and what the pool has. After an error the arena must stay mapped, and it may be called again.
// Errors: ErrStuck, native.ErrVerbs.
func (p *Pool) close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed, p.empty = true, make(chan struct{})
		if len(p.moves) == 0 {
			close(p.empty)
		}
	}
	p.mu.Unlock()
	p.ports.shut()
	p.down()
	limit := time.NewTimer(p.rail.closeWait)
	defer limit.Stop()
	if err := p.returned(limit); err != nil {
		return err
	}
	for at := range p.dcis { // those that were neither reset nor destroyed get one more attempt
		if p.stuckLane(at) {
			p.resets.Go(func() { p.retire(at) })
		}
	}
	if err := p.returned(limit); err != nil {
		return err
	}
	if n := p.stuck(); n > 0 {
		return fmt.Errorf("%w: %s: %d of its DCIs", ErrStuck, p.rail.name, n)
	}
	select {
	case <-p.empty:
	case <-limit.C:
		return fmt.Errorf("%w: %s: moves of dynamic connections", ErrStuck, p.rail.name)
	}
	if err := p.returned(limit); err != nil {
		return err
	}
	if err := p.destroy(); err != nil {
		return err
	}
	p.rail.pool.Store(nil)
	return nil
}

// returned waits, up to the limit, until no goroutine is in a call of the driver.
func (p *Pool) returned(limit *time.Timer) error {
	select {
	case <-p.resets.ended():
		return nil
	case <-limit.C:
		return fmt.Errorf("%w: %s: a call of the driver does not return", ErrStuck, p.rail.name)
	}
}

func (p *Pool) stuckLane(at int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.Stuck(at)
}

// stuck counts the DCIs that could be neither reset nor destroyed.
func (p *Pool) stuck() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.core.Counts().Stuck)
}

// destroy closes what open opened, in the reverse order.
func (p *Pool) destroy() error {
	for _, dci := range p.dcis {
		if err := p.rail.ended("dci", dci.Close()); err != nil {
			return err
		}
	}
	if err := p.ports.close(); err != nil {
		return err
	}
	if p.cq != nil {
		if err := p.rail.ended("completion queue", p.cq.Close()); err != nil {
			return err
		}
		if p.polled != nil {
			<-p.polled
		}
	}
	if mr := p.scratch.mr; mr != nil {
		if err := p.rail.ended("memory region", mr.Close()); err != nil {
			return err
		}
		if err := unix.Munmap(p.scratch.memory); err != nil {
			return fmt.Errorf("initiator: unmap: %w", err)
		}
		p.scratch.mr = nil
	}
	return nil
}
