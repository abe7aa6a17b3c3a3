package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/chunk"
)

// errGivenUp ends the goroutine of a call that has returned without it. Nobody sees it.
var errGivenUp = errors.New("chunk: the call was given up")

// call is one Read, Write or Verify: a goroutine that works, and a caller that waits for it, but not
// for ever. Sinks and sources are used only inside enter and leave, so that they are free when the
// caller gives up.
type call struct {
	gate    sync.RWMutex
	givenUp bool // guarded by gate
	decided bool // guarded by gate; the result stands and cannot be given up
}

// enter admits a use of the sink or source; leave ends it. Uses that the contract allows side by side
// (Map) are not kept apart here.
func (c *call) enter() error {
	c.gate.RLock()
	if c.givenUp {
		c.gate.RUnlock()
		return errGivenUp
	}
	return nil
}

func (c *call) leave() { c.gate.RUnlock() }

// decide makes the result stand. It returns false when the caller is gone.
func (c *call) decide() bool {
	c.gate.Lock()
	defer c.gate.Unlock()
	c.decided = !c.givenUp
	return c.decided
}

// giveUp lets the caller go. It waits for uses of the sink or source, which end with the context, and
// returns false when the result already stands.
func (c *call) giveUp() bool {
	c.gate.Lock()
	defer c.gate.Unlock()
	if !c.decided {
		c.givenUp = true
	}
	return c.givenUp
}

// gone tells whether the caller has given up.
func (c *call) gone() bool {
	c.gate.RLock()
	defer c.gate.RUnlock()
	return c.givenUp
}

// run runs work in a goroutine of the Engine until it ends, or until the context and then
// stuckAfter have ended.
func (e *Engine) run(ctx context.Context, what string, work func(c *call) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := e.begin(); err != nil {
		return err
	}
	c := &call{}
	result := make(chan error, 1)
	go func() {
		defer e.end(c)
		err := work(c)
		c.decide()
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(e.stuckAfter)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C:
	}
	// Counted before the gate opens, so that end, which comes after it, counts down what is counted up.
	e.stuck.Add(1)
	if !c.giveUp() {
		e.stuck.Add(-1)
		return <-result
	}
	e.counters.givenUp.Add(1)
	return fmt.Errorf("chunk: %s: device hangs: %w", what, context.Cause(ctx))
}

func (e *Engine) begin() error {
	if n := e.stuck.Load(); n >= maxStuck {
		return fmt.Errorf("chunk: %d calls hang on drive %v: %w", n, e.drive.ID(), chunk.ErrUnavailable)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("chunk: engine is closed: %w", chunk.ErrUnavailable)
	}
	e.running++
	return nil
}

func (e *Engine) end(c *call) {
	if c.givenUp { // nobody changes it after decide
		e.stuck.Add(-1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running--
	if e.running == 0 && e.closed && e.quiescent != nil {
		close(e.quiescent)
	}
}
