package target

import (
	"fmt"
	"slices"

	"github.com/penstock-store/penstock/native"
)

// register makes the region's memory known to each device of the session, and returns the keys by the device's number.
// A device that is lost has no path and never gets one: its key is zero. Errors: ErrClosed, ErrPinned.
func (p *paths) register(r *Region) ([]uint32, error) {
	if !p.begin() {
		return nil, ErrClosed
	}
	defer p.pins.Done()
	const access = native.LocalWrite | native.RemoteWrite | native.RemoteRead
	var keys []uint32
	var made []*native.MR
	var failure error
	for _, l := range p.present() {
		if l == nil {
			keys = append(keys, 0)
			continue
		}
		mr, err := l.pd.Register(r.memory.bytes, access)
		if err != nil {
			failure = fmt.Errorf("%w: %d bytes on %s: %w", ErrPinned, len(r.memory.bytes), l.device.name, err)
			break
		}
		made, keys = append(made, mr), append(keys, mr.RKey())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[r] = made // of a failure too: whoever drops the region closes them
	return keys, failure
}

// present lists the session's devices by their number, nil in the place of one that is lost.
func (p *paths) present() []*local {
	p.mu.Lock()
	defer p.mu.Unlock()
	devices := slices.Clone(p.devices)
	for i, l := range devices {
		if l.lost {
			devices[i] = nil
		}
	}
	return devices
}

// unregister takes the region's keys back. When it returns true no adapter can reach the memory; false: one refuses,
// and the session must end.
func (p *paths) unregister(r *Region) bool {
	if !p.begin() {
		<-p.settled
		return p.reachesNot(r)
	}
	defer p.pins.Done()
	p.mu.Lock()
	made := p.keys[r]
	delete(p.keys, r)
	p.mu.Unlock()
	left := closeKeys(made)
	if len(left) == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[r] = left
	return false
}

// closeKeys returns those that the adapter does not give back.
func closeKeys(keys []*native.MR) (left []*native.MR) {
	for _, mr := range keys {
		if mr.Close() != nil {
			left = append(left, mr)
		}
	}
	return left
}

// leaky tells, after close, whether some memory can still be reached.
func (p *paths) leaky() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.exposed) > 0
}

func (p *paths) reachesNot(r *Region) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.exposed[r]
}

// close ends all queue pairs, then takes all keys back, and lets the devices go. It is called once.
func (p *paths) close() {
	p.mu.Lock()
	p.closed = true
	var live []*path
	for _, t := range p.live {
		if !t.joining {
			live = append(live, t)
		}
	}
	p.live = nil
	p.mu.Unlock()
	for _, t := range live { // all of them before the slower destruction of one
		t.down = t.qp.Fail()
	}
	for _, t := range live {
		_ = p.buried(t, t.down, t.qp.Close()) // counted in stuck
	}
	p.calls.Wait()
	stuck := p.stuck()
	if stuck == 0 {
		close(p.dead)
	}
	p.pins.Wait()
	p.mu.Lock()
	keys, devices := p.keys, p.devices
	p.keys = nil
	p.mu.Unlock()
	for r, made := range keys {
		if left := closeKeys(made); len(left) > 0 && stuck > 0 {
			p.mu.Lock()
			p.exposed[r] = true
			p.mu.Unlock()
		}
	}
	for _, l := range devices {
		l.close(p)
	}
	close(p.settled)
}

// stuck counts the queue pairs that can still be reached though the session has ended.
func (p *paths) stuck() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, l := range p.devices {
		n += l.stuck
	}
	return n
}

// ended tells whether, after the beginning of close, no queue pair can be reached any more.
func (p *paths) ended() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}
