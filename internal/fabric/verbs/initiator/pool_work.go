package initiator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric/dc/lane"
	"github.com/penstock-store/penstock/internal/rail"
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
			p.linger(p.o.Linger, func() {
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
	n, err := p.dci(t.Lane).Post(to, works)
	return err == nil && n == len(works)
}

// reset takes a DCI from the adapter, and makes it usable again.
func (p *Pool) reset(at int) {
	returned := p.calling(at)
	p.rail.settlers <- struct{}{}
	dci := p.dci(at)
	// Flushing first lets the adapter end in its own order. Whether it did does not matter: the reset is the proof.
	_ = dci.Fail()
	fenced := dci.Reset() == nil
	usable := fenced && p.connect(dci) == nil
	<-p.rail.settlers
	returned()
	p.sweep()
	p.input(func(c *lane.Core) []lane.Action { return c.ResetDone(at, fenced, usable) })
}

// retire destroys a DCI, and makes another, now or later.
func (p *Pool) retire(at int) {
	returned := p.calling(at)
	p.rail.settlers <- struct{}{}
	err := p.dci(at).Close()
	destroyed := err == nil
	usable := false
	if destroyed && p.usable() {
		err = p.renew(at)
		usable = err == nil
	}
	<-p.rail.settlers
	returned()
	p.sweep()
	p.input(func(c *lane.Core) []lane.Action { return c.RetireDone(at, destroyed, usable) })
	switch {
	case !destroyed:
		p.lose(fmt.Errorf("%w: %s: %w", ErrStuck, p.rail.name, err))
	case err != nil:
		p.lose(err)
		p.renewIn(at, p.renewal)
	}
}

// renewIn makes a lane's DCI in a while, which is longer each time that the adapter refuses.
func (p *Pool) renewIn(at int, wait time.Duration) {
	time.AfterFunc(wait, func() {
		p.resets.Go(func() {
			if !p.usable() {
				return // and nobody waits for this goroutine any more
			}
			p.rail.settlers <- struct{}{}
			err := p.renew(at)
			<-p.rail.settlers
			if err != nil {
				p.renewIn(at, min(2*wait, lastRenewal))
				return
			}
			p.input(func(c *lane.Core) []lane.Action { return c.Made(at) })
		})
	})
}

// usable tells whether the pool will make anything any more.
func (p *Pool) usable() bool {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	return !closed && p.rail.usable()
}

// calling notes a call of the driver for a lane, which is to be told when it has returned.
func (p *Pool) calling(at int) (returned func()) {
	late := time.AfterFunc(p.lateIn, func() {
		p.input(func(c *lane.Core) []lane.Action { return c.Late(at) })
		p.lose(fmt.Errorf("%w: %s: a dci within %v", ErrStuck, p.rail.name, p.lateIn))
	})
	return func() { late.Stop() }
}

func (p *Pool) lose(err error) {
	if p.o.Lost != nil {
		p.o.Lost(err)
	}
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
	if !p.rail.usable() {
		return
	}
	p.input((*lane.Core).PortUp)
	if !p.rail.usable() { // since: what took the pool down may have come before
		p.down()
	}
}

func (p *Pool) lost(number uint32) {
	at := p.numbered(number)
	if at >= 0 {
		p.input(func(c *lane.Core) []lane.Action { return c.Failed(at) })
	}
}

// numbered is the lane of a DCI, or -1.
func (p *Pool) numbered(number uint32) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.IndexFunc(p.dcis, func(d *native.DCI) bool { return d != nil && d.Number() == number })
}

// heard tells the pool of an event of its port; one that is down is among all that fail.
func (p *Pool) heard(e native.EventType) {
	switch e {
	case native.EventPortUp:
		p.up()
	case native.EventGIDs:
		p.ports.forgetAll()
	}
}

// seen tells the pool how its port was found, also when an event of it was lost.
func (p *Pool) seen(was, now rail.Rail) {
	if was.GID != now.GID || was.GIDIndex != now.GIDIndex {
		p.ports.forgetAll()
	}
	if now.Up {
		p.up()
	} else {
		p.down()
	}
}

// close ends all moves and what the pool has. After an error the arena must stay mapped, and it may be called again.
// Errors: ErrStuck, native.ErrVerbs.
func (p *Pool) close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed, p.empty = true, make(chan struct{})
		close(p.stop)
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
	if n := p.counts().Stuck; n > 0 {
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
	p.rail.works.Add(p.counts().Works)
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

// counts reads the core's counters.
func (p *Pool) counts() lane.Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.Counts()
}

// destroy closes what open opened, in the reverse order.
func (p *Pool) destroy() error {
	for _, dci := range p.dcis {
		if dci == nil {
			continue
		}
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
