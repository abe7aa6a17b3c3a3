package initiator

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/native"
)

var errClosing = errors.New("the rail is closed")

// Close fails and resets all paths, and closes the device. After an error the arena must stay mapped, and Close may be
// called again. Errors: ErrStuck, when something could not be reset; native.ErrVerbs, when something did not end.
func (r *Rail) Close() error {
	r.closing.Lock()
	defer r.closing.Unlock()
	if r.gone {
		return nil
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.failAll(errClosing) // the paths do not wait for the pool, nor does one that is stuck keep them
	var pooled error
	if pool := r.pool.Load(); pool != nil {
		pooled = pool.close()
	}
	if err := errors.Join(pooled, r.settleAll()); err != nil {
		return err
	}
	if err := r.destroyAll(); err != nil {
		return err
	}
	if err := r.closeDevice(); err != nil {
		return err
	}
	r.gone = true
	return nil
}

// settleAll fails all paths and waits for them, up to closeWait. Those whose queue pair was not reset get one more
// attempt.
func (r *Rail) settleAll() error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.making.Wait()
		r.failAll(errClosing)
		r.settling.Wait()
		for _, p := range r.list() {
			p.settleAgain()
		}
	}()
	limit := time.NewTimer(r.closeWait)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
		return fmt.Errorf("%w: %s: a call of the driver does not return", ErrStuck, r.name)
	}
	if n := r.stuck.Load(); n > 0 {
		return fmt.Errorf("%w: %s: %d of them", ErrStuck, r.name, n)
	}
	return nil
}

// settleAgain tries once more to take back the queue pair of a path whose own attempt has ended.
func (p *Path) settleAgain() {
	p.again.Lock()
	defer p.again.Unlock()
	select {
	case <-p.settled:
		return
	default:
	}
	if p.takeBack() == nil {
		p.rail.stuck.Add(-1)
		p.settleNow()
	}
}

// destroyAll ends all queue pairs. All paths have settled.
func (r *Rail) destroyAll() error {
	for _, p := range r.list() {
		_ = r.leave(p) // what is not destroyed is an orphan
	}
	limit := time.NewTimer(r.closeWait)
	defer limit.Stop()
	select {
	case <-r.leaving.ended(): // those that their owners give back
	case <-limit.C:
		return fmt.Errorf("%w: %s: a call of the driver does not return", ErrStuck, r.name)
	}
	r.mu.Lock()
	rest := r.orphans
	r.orphans = nil
	r.mu.Unlock()
	var errs []error
	for _, qp := range rest {
		errs = append(errs, r.destroy(qp))
	}
	return errors.Join(errs...)
}

// closeDevice ends the goroutines and closes what open opened, in the reverse order.
func (r *Rail) closeDevice() error {
	started := r.stop != nil
	if started {
		r.stop()
		<-r.watched
	}
	if r.cq != nil {
		if err := r.ended("completion queue", r.cq.Close()); err != nil {
			return err
		}
		if started {
			<-r.polled
		}
	}
	if started {
		r.endEvents.Do(func() { close(r.events) })
	}
	if mr := r.scratch.mr; mr != nil {
		if err := r.ended("memory region", mr.Close()); err != nil {
			return err
		}
		if err := unix.Munmap(r.scratch.memory); err != nil {
			return fmt.Errorf("initiator: unmap: %w", err)
		}
		r.scratch.mr = nil
	}
	if r.arena.mr != nil {
		if err := r.ended("memory region", r.arena.mr.Close()); err != nil {
			return err
		}
	}
	if r.pd != nil {
		if err := r.ended("protection domain", r.pd.Close()); err != nil {
			return err
		}
	}
	if r.dev != nil {
		return r.ended("device", r.dev.Close())
	}
	return nil
}

func (r *Rail) ended(what string, err error) error {
	if err == nil || errors.Is(err, native.ErrClosed) {
		return nil
	}
	return fmt.Errorf("initiator: close a %s of %s: %w", what, r.name, err)
}
