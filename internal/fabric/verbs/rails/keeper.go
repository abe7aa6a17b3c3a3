package rails

import (
	"time"

	"github.com/penstock-store/penstock/native"
)

const (
	// pollWait is how often a rail's port is looked at, besides its events: an event may be lost.
	pollWait = 5 * time.Second
	// probeWait bounds a probe: a few transfers inside the adapter.
	probeWait = 3 * time.Second
	// firstProbe and lastProbe are the shortest and longest wait before a rail that does not work is probed again.
	firstProbe = time.Second
	lastProbe  = time.Minute
)

// keeper watches one rail. It belongs to one goroutine.
type keeper struct {
	rail    *Rail
	retry   *time.Timer
	armed   bool          // retry runs
	wait    time.Duration // before the next probe
	raised  time.Time     // when the rail came back last
	fatal   bool          // the device is lost
	pending bool          // the rail is to be probed before it comes back
	seen    int64         // ejections of the rail
}

// keep runs until the rails are closed.
func (k *Rail) keep() {
	w := &keeper{rail: k, retry: time.NewTimer(time.Hour), wait: firstProbe}
	w.retry.Stop()
	defer w.retry.Stop()
	poll := time.NewTicker(pollWait)
	defer poll.Stop()
	events := k.engine.Events()
	for {
		select {
		case <-k.set.stop:
			return
		case e, open := <-events:
			if !open {
				events = nil
				continue
			}
			w.event(e)
		case <-poll.C:
			w.look()
		case <-k.ejected:
			w.notice()
		case <-w.retry.C:
			w.armed = false
			w.look()
			w.probe()
		}
	}
}

func (w *keeper) event(e native.Event) {
	switch e.Type {
	case native.EventDeviceFatal:
		w.fatal = true
		w.rail.lower(reasonFatal, nil)
	case native.EventPortDown, native.EventPortUp, native.EventGIDs:
		w.look()
	}
}

// look asks for the port's state. A port that came up is probed at once.
func (w *keeper) look() {
	if w.fatal {
		return
	}
	k := w.rail
	info, err := k.engine.Refresh()
	out := !k.up.Load()
	w.notice() // before the next probe: if the rail is out for an ejection, that is known now
	switch {
	case err != nil:
		w.down(reasonRefresh, err)
	case !info.Up:
		k.learn(info)
		w.down(info.Reason, nil)
	default:
		if k.learn(info) {
			k.set.changed()
		}
		if out && !w.pending {
			w.pending = true
			w.probe()
		}
	}
}

// down takes the rail down until look finds its port up.
func (w *keeper) down(reason string, cause error) {
	w.pending = false
	w.rail.lower(reason, cause)
}

// notice looks whether the rail was ejected. It waits before the first probe then, longer when that was soon after the
// rail came back.
func (w *keeper) notice() {
	n := w.rail.ejections.Load()
	if n == w.seen {
		return
	}
	w.seen = n
	if time.Since(w.raised) > lastProbe {
		w.wait = firstProbe
	}
	w.pending = true
	w.arm()
}

func (w *keeper) arm() {
	w.retry.Reset(w.wait)
	w.armed = true
	w.wait = min(2*w.wait, lastProbe)
}

// probe brings the rail back if it works.
func (w *keeper) probe() {
	if !w.pending || w.armed || w.fatal {
		return
	}
	if err := w.rail.engine.Probe(probeWait); err != nil {
		w.rail.set.logger.Warn("rdma rail does not work", "rail", w.rail.name, "reason", reasonProbe, "error", err)
		w.arm()
		return
	}
	w.pending = false
	w.raised = time.Now()
	w.rail.raise()
}
