package rcdial

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/token"
)

// connection is one pair of queue pairs, from the client's request to the reset of this end. Its link does not change
// once Fabric.all has it.
type connection struct {
	fabric *Fabric
	id     [16]byte
	peer   netip.Addr // that it counts for
	link   link

	mu    sync.Mutex
	owner string  // "": nobody's yet
	busy  *remote // nil: idle
	cause error   // not nil: it ends. ErrFenced where this node ends it
	used  time.Time
	idle  *time.Timer
}

// errLost is the cause of a connection whose queue pair failed by itself, or whose rail went down.
var errLost = fmt.Errorf("%w: queue pair failed", fabric.ErrTransfer)

// begin takes a link into service.
func (c *connection) begin(made link) {
	f := c.fabric
	c.link = made
	c.used = time.Now()
	f.stat.Sessions.Add(1)
	f.mu.Lock()
	f.all[c.id] = c
	closed := f.closed
	f.mu.Unlock()
	c.mu.Lock()
	if c.cause == nil {
		c.idle = time.AfterFunc(f.idle, c.expire)
	}
	c.mu.Unlock()
	go c.live()
	if closed { // and has not seen it
		c.end(fabric.ErrShutdown)
	}
}

// live stays with the connection to its end. It is one of Fabric.tasks.
func (c *connection) live() {
	<-c.link.Failed()
	c.endBy(errLost)
	<-c.link.Done()
	c.mu.Lock()
	busy := c.busy
	c.mu.Unlock()
	if busy != nil { // a disconnect must find the connection until then
		busy.drain()
	}
	c.fabric.stat.Sessions.Add(-1)
	c.fabric.leave(c)
}

// expire is the idle timer's.
func (c *connection) expire() {
	c.mu.Lock()
	left := c.fabric.idle - time.Since(c.used)
	idle := c.busy == nil && c.cause == nil
	if idle && left > 0 { // it was used while the timer fired
		c.idle.Reset(left)
	}
	c.mu.Unlock()
	if idle && left <= 0 {
		c.end(fabric.ErrIdle)
	}
}

// end ends the connection without waiting: nothing is posted any more.
func (c *connection) end(cause error) { c.endBy(fmt.Errorf("%w: %w", fabric.ErrFenced, cause)) }

// endBy notes the first cause.
func (c *connection) endBy(cause error) {
	c.mu.Lock()
	first := c.cause == nil
	if first {
		c.cause = cause
	}
	if first && c.idle != nil {
		c.idle.Stop()
	}
	if first && c.busy != nil && errors.Is(cause, fabric.ErrFenced) {
		c.fabric.stat.Fenced.Add(1)
	}
	c.mu.Unlock()
	c.link.Fail()
}

// cut ends the connection and waits for the reset of its queue pair, and until nothing is under way. Errors:
// ErrLingering.
func (c *connection) cut(cause error) error {
	c.end(cause)
	err := c.link.Cut(settleWait)
	c.mu.Lock()
	busy := c.busy
	c.mu.Unlock()
	if err == nil && busy != nil && !busy.await(time.Now().Add(settleWait)) {
		err = initiator.ErrStuck
	}
	if err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrLingering, err)
	}
	return nil
}

// err is nil while the connection lives.
func (c *connection) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

func (c *connection) isOf(principal string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owner == principal
}

// bind makes the principal the owner of what is nobody's. Errors: ErrNoSession, ErrNotGranted.
func (c *connection) bind(principal string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bindLocked(principal)
}

func (c *connection) bindLocked(principal string) error {
	switch {
	case c.cause != nil:
		return fabric.ErrNoSession
	case principal == "":
		return fmt.Errorf("%w: a request of nobody", fabric.ErrNotGranted)
	case c.owner == "":
		c.owner = principal
	case c.owner != principal:
		return fabric.ErrNotGranted
	}
	return nil
}

// open begins a transfer.
func (c *connection) open(d token.Descriptor, g fabric.Grant) (*remote, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.bindLocked(g.Principal); err != nil {
		return nil, err
	}
	switch {
	case c.busy != nil:
		return nil, fabric.ErrBusy
	case !time.Now().Before(g.Deadline.Add(-Stop)):
		return nil, errOverdue
	}
	c.idle.Stop()
	c.fabric.stat.Open.Add(1)
	c.busy = newRemote(c, d, g)
	return c.busy, nil
}

// done ends a transfer.
func (c *connection) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy, c.used = nil, time.Now()
	if c.cause == nil {
		c.idle.Reset(c.fabric.idle)
	}
}
