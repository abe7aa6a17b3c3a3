package initiator

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/native"
)

var (
	errBroken   = errors.New("the adapter or its completion queue has failed")
	errPortDown = errors.New("the port is down")
	errQP       = errors.New("the adapter reported the queue pair as failed")
)

// tally is what a batch of a path's completions came to.
type tally struct{ works, writes, reads, unexpected int64 }

// poll takes completions until the queue is closed.
func (r *Rail) poll() {
	defer close(r.polled)
	for {
		n, err := r.take()
		if err == nil && n > 0 {
			continue
		}
		if err == nil {
			err = r.arm()
		}
		if err == nil {
			// What came before arming wakes nobody.
			if n, err = r.take(); err == nil && n > 0 {
				continue
			}
		}
		if err == nil {
			err = r.cq.Wait(context.Background())
		}
		if err != nil {
			if !errors.Is(err, native.ErrClosed) {
				r.breakDown(fmt.Errorf("completion queue: %w", err))
			}
			return
		}
	}
}

func (r *Rail) arm() error {
	r.polling.Lock()
	defer r.polling.Unlock()
	return r.cq.Arm()
}

// take takes one batch of completions to their paths.
func (r *Rail) take() (int, error) {
	r.polling.Lock()
	defer r.polling.Unlock()
	n, err := r.cq.Poll(r.batchOf[:])
	for rest := r.batchOf[:n]; len(rest) > 0; {
		same := 1
		for same < len(rest) && workSlot(rest[same].ID) == workSlot(rest[0].ID) {
			same++
		}
		if p := r.pathOf(rest[0].ID); p != nil {
			p.complete(rest[:same])
		} else {
			r.unexpected.Add(int64(same))
		}
		rest = rest[same:]
	}
	return n, err
}

// add counts what a batch came to.
func (r *Rail) add(t tally) {
	r.works.Add(t.works)
	r.writes.Add(t.writes)
	r.readBytes.Add(t.reads)
	r.unexpected.Add(t.unexpected)
}

func (r *Rail) pathOf(id uint64) *Path {
	if at := workSlot(id); at < len(r.slots) {
		return r.slots[at].path.Load()
	}
	return nil
}

// sweep takes every completion that was in the queue when it was called. Where the queue fails it is not known what it
// holds, so nothing is posted any more that could overflow it.
func (r *Rail) sweep() {
	for rest := r.credits.total; rest > 0; {
		n, err := r.take()
		if err != nil {
			r.breakDown(fmt.Errorf("completion queue: %w", err))
			return
		}
		if n == 0 {
			return
		}
		rest -= int64(n)
	}
}

// breakDown ends the use of a rail whose adapter has failed.
func (r *Rail) breakDown(why error) {
	r.mu.Lock()
	r.broken = true
	r.mu.Unlock()
	r.failAll(why)
	r.tell(native.Event{Type: native.EventDeviceFatal})
}

// Events delivers the port's and the device's events until Close.
func (r *Rail) Events() <-chan native.Event { return r.events }

// tell passes an event on. When the reader is that far behind, what it has not read yet will make it look at the port
// again, so the event may be left out.
func (r *Rail) tell(e native.Event) {
	select {
	case r.events <- e:
	default:
	}
}

// watch takes the events of the device until Close.
func (r *Rail) watch() {
	defer close(r.watched)
	for {
		e, err := r.dev.NextEvent(r.ctx)
		switch {
		case r.ctx.Err() != nil:
			return
		case err != nil:
			r.breakDown(fmt.Errorf("events: %w", err))
			return
		}
		switch e.Type {
		case native.EventDeviceFatal:
			r.breakDown(errBroken)
			continue
		case native.EventQPFatal:
			for _, p := range r.list() {
				if p.qp.Number() == e.QPN {
					p.failBy(errQP)
				}
			}
			if pool := r.pool.Load(); pool != nil {
				pool.lost(e.QPN)
			}
		case native.EventPortUp, native.EventPortDown, native.EventGIDs:
			if e.Port != r.opts.Rail.Port {
				continue
			}
			if e.Type == native.EventPortDown {
				r.failAll(errPortDown)
			}
			if pool := r.pool.Load(); pool != nil {
				pool.heard(e.Type)
			}
		}
		r.tell(e)
	}
}
