package initiator

import (
	"errors"
	"fmt"
)

var errOwner = errors.New("ended by its owner")

// Fail ends the path without waiting: nothing is posted any more, what is under way ends with ErrLost.
func (p *Path) Fail() { p.failBy(errOwner) }

func (p *Path) failBy(why error) {
	p.mu.Lock()
	p.fail(why)
	p.mu.Unlock()
}

// Failed is closed when the path has failed, for whatever reason.
func (p *Path) Failed() <-chan struct{} { return p.failed }

// Settled is closed when the queue pair of a failed path is reset: the adapter uses no buffer for it any more, and
// sends nothing. It stays open while the driver does not do it.
func (p *Path) Settled() <-chan struct{} { return p.settled }

// fail ends the path: from now on nothing is posted, and a goroutine resets the queue pair. Called with mu held.
func (p *Path) fail(why error) {
	if p.state >= pathFailed {
		return
	}
	p.state = pathFailed
	p.cause = fmt.Errorf("%w: %s: %v", ErrLost, p.rail.name, why) // of its kinds of error only ErrLost
	close(p.failed)
	p.rail.credits.cancel(&p.ticket)
	// What has nothing with the adapter need not wait for it.
	for o := p.queue.first; o != nil; {
		next := o.next
		if o.left == 0 && !o.done {
			p.queue.remove(o)
			p.finish(o, p.cause)
		}
		o = next
	}
	p.rail.settling.Add(1)
	go p.settle()
}

// settle takes the queue pair from the adapter, and ends what was under way only then.
func (p *Path) settle() {
	defer p.rail.settling.Done()
	p.quiet()
	if err := p.takeBack(); err != nil {
		p.rail.stuck.Add(1)
		close(p.stuck)
		return
	}
	p.settleNow()
}

// quiet waits until no call on the queue pair is under way. No other one begins: the path has failed.
func (p *Path) quiet() {
	p.mu.Lock()
	unused := make(chan struct{})
	if p.using {
		p.unused = unused
	} else {
		close(unused)
	}
	p.mu.Unlock()
	<-unused
}

// takeBack proves that the adapter has let go: by reset, or else by destroying the queue pair.
func (p *Path) takeBack() error {
	p.rail.settlers <- struct{}{}
	defer func() { <-p.rail.settlers }()
	// Flushing first lets the adapter end in its own order. Whether it did does not matter: the reset is the proof.
	_ = p.qp.Fail()
	err := p.qp.Reset()
	if err == nil {
		p.reset = true
		return nil
	}
	if destroyErr := p.qp.Close(); destroyErr != nil {
		return errors.Join(err, destroyErr)
	}
	return nil
}

// settleNow ends what was under way. The adapter adds no completion of this queue pair any more; those that it
// added are taken before their places in the completion queue are given to others.
func (p *Path) settleNow() {
	p.rail.sweep()
	p.mu.Lock()
	p.rail.credits.give(int(p.tail - p.head))
	for ; p.head < p.tail; p.head++ {
		e := &p.ring[p.head%uint64(len(p.ring))]
		o := e.op
		*e = entry{}
		if o.left--; o.left == 0 {
			p.queue.remove(o)
			p.finish(o, p.cause)
		}
	}
	p.state = pathSettled
	close(p.settled)
	p.mu.Unlock()
}

// Close fails the path, waits until it has settled, and gives its queue pair back. Errors: ErrStuck; native.ErrVerbs,
// when a queue pair that is not used any more could not be destroyed.
func (p *Path) Close() error {
	p.Fail()
	select {
	case <-p.settled:
	case <-p.stuck:
		select {
		case <-p.settled: // by a later attempt
		default:
			return fmt.Errorf("%w: %s, queue pair %d", ErrStuck, p.rail.name, p.qp.Number())
		}
	}
	return p.rail.leave(p)
}
