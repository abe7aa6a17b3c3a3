package pebble

import (
	"sync"
	"sync/atomic"
)

// gateClosed is a bit above any count of calls under way.
const gateClosed = int64(1) << 62

// gate counts the calls under way, so that Close can wait for them. It costs two atomic additions.
type gate struct {
	n       atomic.Int64
	once    sync.Once
	closing chan struct{} // closed when Close begins
	drained chan struct{} // closed when it has begun and no call is under way
}

func newGate() *gate {
	return &gate{closing: make(chan struct{}), drained: make(chan struct{})}
}

// enter reports whether the call may go on; then leave must follow.
func (g *gate) enter() bool {
	if g.n.Add(1)&gateClosed == 0 {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.n.Add(-1) == gateClosed {
		g.once.Do(func() { close(g.drained) })
	}
}

// close shuts the gate, calls then, waits until the gate is empty and reports whether this call shut it.
func (g *gate) close(then func()) bool {
	old := g.n.Or(gateClosed)
	if old == 0 {
		g.once.Do(func() { close(g.drained) })
	}
	first := old&gateClosed == 0
	if first {
		close(g.closing)
		then()
	}
	<-g.drained
	return first
}
