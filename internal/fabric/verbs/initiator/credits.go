package initiator

import (
	"sync"
	"sync/atomic"
)

// credits are the places in a rail's completion queue. Whoever posts takes some first. While there are enough, that is
// one atomic operation; when they run short, paths stand in line, and each gets at most a batch in its turn.
type credits struct {
	total   int64
	free    atomic.Int64
	waiting atomic.Int32 // tickets in line

	mu   sync.Mutex
	line ticketList // guarded by mu
}

// ticket is a path's place in the line. It belongs to one goroutine at a time, whose path's lock guards asked.
type ticket struct {
	asked bool // take has to be asked under credits.mu: it may stand in line, or hold what was granted

	// Guarded by credits.mu.
	inLine  bool
	want    int
	granted int
	wake    chan<- struct{}
	next    *ticket
	prev    *ticket
}

// ticketList is a list of tickets, in the order of their coming.
type ticketList struct{ first, last *ticket }

func (l *ticketList) push(t *ticket) {
	t.prev, t.next = l.last, nil
	if l.last != nil {
		l.last.next = t
	} else {
		l.first = t
	}
	l.last = t
}

func (l *ticketList) remove(t *ticket) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		l.last = t.prev
	}
	t.prev, t.next = nil, nil
}

func newCredits(total int) *credits {
	c := &credits{total: int64(total)}
	c.free.Store(int64(total))
	return c
}

// now is how many are taken.
func (c *credits) now() int64 { return c.total - c.free.Load() }

// grab takes up to want of the free ones.
func (c *credits) grab(want int) int {
	for {
		free := c.free.Load()
		n := min(int64(want), free)
		if n <= 0 {
			return 0
		}
		if c.free.CompareAndSwap(free, free-n) {
			return int(n)
		}
	}
}

// take takes 1 to want credits, or stands in line for them and returns 0: then wake is sent to when it is worth asking
// again.
func (c *credits) take(t *ticket, want int, wake chan<- struct{}) int {
	if !t.asked && c.waiting.Load() == 0 {
		if n := c.grab(want); n > 0 {
			return n
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := t.granted; n > 0 {
		t.granted, t.asked = 0, false
		return n
	}
	if t.inLine {
		return 0
	}
	// The order matters: first in line, then look again. give adds first and then looks for a line.
	c.waiting.Add(1)
	t.asked, t.inLine, t.want, t.wake = true, true, want, wake
	c.line.push(t)
	c.serve()
	if n := t.granted; n > 0 {
		t.granted, t.asked = 0, false
		return n
	}
	return 0
}

// give returns n credits.
func (c *credits) give(n int) {
	if n == 0 {
		return
	}
	c.free.Add(int64(n))
	if c.waiting.Load() == 0 {
		return
	}
	c.mu.Lock()
	c.serve()
	c.mu.Unlock()
}

// serve hands out what is free, in the order of the line. Called with mu held.
func (c *credits) serve() {
	for t := c.line.first; t != nil; t = c.line.first {
		n := c.grab(min(t.want, batchWork))
		if n == 0 {
			return
		}
		c.leave(t)
		t.granted = n
		poke(t.wake)
	}
}

// leave takes t out of the line. Called with mu held.
func (c *credits) leave(t *ticket) {
	c.line.remove(t)
	t.inLine = false
	c.waiting.Add(-1)
}

// cancel gives up a place in line and what was granted. Afterwards nothing is sent to wake.
func (c *credits) cancel(t *ticket) {
	if !t.asked {
		return
	}
	c.mu.Lock()
	if t.inLine {
		c.leave(t)
	}
	n := t.granted
	t.granted, t.asked, t.wake = 0, false, nil
	c.mu.Unlock()
	c.give(n)
}

// poke wakes the goroutine that waits on a channel of capacity 1, or makes its next wait short.
func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
