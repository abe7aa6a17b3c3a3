package pebble

import (
	"context"
	"time"
)

const (
	// maxTries bounds the tries of a transaction. Half of them run by ordinary competition, which
	// settles all but pathological cases; in the other half the transaction has a turn.
	maxTries = 16
	turnFrom = maxTries / 2

	// turnFor is how long others hold back their commits for a transaction that has the turn: a
	// thousand times what an ordinary one needs, and short beside any deadline of a request.
	turnFor = 50 * time.Millisecond

	// hotStripes is the number of queues for transactions that lost over the same key, and hotWait
	// how long to stand in one: a queue is a hint, not a promise.
	hotStripes = 256
	hotWait    = 10 * time.Millisecond
)

// enterQueue puts a token into a queue, waiting up to the limit; it reports whether it did.
func enterQueue(ctx context.Context, q chan struct{}, limit time.Duration) bool {
	select {
	case q <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case q <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// compete prepares a try that follows lost ones: behind others that lost over the same key, and
// late ones with a turn.
func (t *tx) compete(ctx context.Context, try int) {
	e := t.e
	if q := e.hot[t.run.hotSlot%hotStripes]; enterQueue(ctx, q, hotWait) {
		t.hot = q
	}
	if try < turnFrom || !enterQueue(ctx, e.turn, turnFor) {
		return
	}
	t.turnDone = make(chan struct{})
	e.commits.mu.Lock()
	e.commits.owner = t
	e.commits.ownerEnd = time.Now().Add(turnFor)
	e.commits.mu.Unlock()
}

// yield gives up what compete got, before t waits for a lock and when it ends.
func (t *tx) yield() {
	e := t.e
	if t.hot != nil {
		<-t.hot
		t.hot = nil
	}
	if t.turnDone == nil {
		return
	}
	e.commits.mu.Lock()
	if e.commits.owner == t {
		e.commits.owner = nil
	}
	e.commits.mu.Unlock()
	close(t.turnDone)
	t.turnDone = nil
	<-e.turn
}

// awaitTurn waits, with commits.mu held on entry and return, while another transaction has the turn.
func (e *Engine) awaitTurn(ctx context.Context, t *tx) error {
	c := &e.commits
	for c.owner != nil && c.owner != t {
		left := time.Until(c.ownerEnd)
		if left <= 0 {
			c.owner = nil
			return nil
		}
		done := c.owner.turnDone
		c.mu.Unlock()
		timer := time.NewTimer(left)
		select {
		case <-done:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		c.mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
