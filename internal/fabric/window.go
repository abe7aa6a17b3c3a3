package fabric

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Window is the part of a Remote that all fabrics with sessions share: bounds, the count of
// operations under way, the deadline and the end. A fabric brackets every touch of client memory by
// Enter and Leave.
type Window struct {
	Session   *Session
	Region    *Region
	Backing   Backing
	Field     uint64 // region field of the token: number of the region, and of the token
	Base      int64  // offset of the window in its region
	Span      int64  // length of the window
	Bytes     int64  // part of it that the request may touch
	Direction Direction
	Deadline  time.Time

	moved atomic.Int64
	timer *time.Timer

	// guarded by the session's mu
	ops     int
	paused  int // of ops
	closing bool
	expired bool
	failure error // first error of an operation
}

// Size is the part of the window that the request may touch.
func (w *Window) Size() int64 { return w.Bytes }

// Check tells whether an operation of direction d may touch n bytes at off. Errors: ErrTransfer.
func (w *Window) Check(d Direction, off, n int64) error {
	if w.Direction != d {
		return fmt.Errorf("%w: wrong direction for this window", ErrTransfer)
	}
	if off < 0 || n < 0 || off > w.Bytes || n > w.Bytes-off {
		return fmt.Errorf("%w: [%d, %d+%d) is outside the window of %d bytes", ErrTransfer, off, off, n, w.Bytes)
	}
	return nil
}

// Enter begins an operation. Errors: ErrFenced, the first error of an earlier operation.
func (w *Window) Enter() error {
	s := w.Session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cause != nil:
		return s.cause
	case w.closing:
		return fmt.Errorf("%w: window is closed", ErrTransfer)
	case w.overdue():
		return fenced(ErrOverdue)
	case w.failure != nil:
		return w.failure
	}
	w.ops++
	return nil
}

// Leave ends an operation that moved n bytes. It returns err, or ErrFenced when the session was cut
// meanwhile, since the bytes may then have met other memory.
func (w *Window) Leave(n int64, err error) error {
	w.Session.mu.Lock()
	defer w.Session.mu.Unlock()
	return w.leave(n, err)
}

// LeavePaused ends an operation that has paused and moved nothing. It returns err, or ErrFenced as Resume does.
func (w *Window) LeavePaused(err error) error {
	w.Session.mu.Lock()
	defer w.Session.mu.Unlock()
	w.paused--
	if w.overdue() {
		err = fenced(ErrOverdue)
	}
	return w.leave(0, err)
}

// overdue is called with the session's mu held.
func (w *Window) overdue() bool { return w.expired || !time.Now().Before(w.Deadline) }

// leave is called with the session's mu held.
func (w *Window) leave(n int64, err error) error {
	s := w.Session
	w.ops--
	if w.ops < 0 {
		panic("fabric: operation ended twice")
	}
	if w.ops == 0 {
		s.changed.Broadcast()
	}
	if s.cause != nil {
		err = s.cause
	}
	if err == nil {
		w.moved.Add(n)
	} else if w.failure == nil {
		w.failure = err
	}
	return err
}

// Pause says that an operation between its Enter and its Leave touches nothing until it calls Resume, or LeavePaused to
// end: a deadline that passes meanwhile costs the request, and not the session.
func (w *Window) Pause() {
	w.Session.mu.Lock()
	defer w.Session.mu.Unlock()
	w.paused++
}

// Resume ends a Pause. After an error the operation is paused still, and LeavePaused ends it. Errors: ErrFenced, when
// the session has ended or the deadline has passed.
func (w *Window) Resume() error {
	s := w.Session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return s.cause
	}
	if w.overdue() {
		return fenced(ErrOverdue)
	}
	w.paused--
	return nil
}

// Fail makes the window's Close return err, and operations that begin later too.
func (w *Window) Fail(err error) {
	w.Session.mu.Lock()
	defer w.Session.mu.Unlock()
	if w.failure == nil {
		w.failure = err
	}
}

// Moved is the number of bytes that operations have moved.
func (w *Window) Moved() int64 { return w.moved.Load() }

// expire is the timer's: no operation begins any more, and one under way costs the session.
func (w *Window) expire() {
	w.Session.mu.Lock()
	w.expired = true
	busy := w.ops > w.paused
	w.Session.mu.Unlock()
	if busy {
		w.Session.Cut(ErrOverdue)
	}
}

// Close stops new operations, waits for those under way (the deadline bounds that) and unpins. final,
// if not nil, runs before the window is unpinned, unless the session has ended; it gets the first
// error so far and bounds itself. Errors: ErrFenced, the first error of an operation, final's.
func (w *Window) Close(final func(failure error) error) error {
	s := w.Session
	s.mu.Lock()
	if w.closing {
		s.mu.Unlock()
		return fmt.Errorf("%w: window is closed", ErrTransfer)
	}
	w.closing = true
	for w.ops > 0 && s.cause == nil {
		s.changed.Wait()
	}
	if w.failure == nil && w.overdue() {
		w.failure = fenced(ErrOverdue)
	}
	alive, failure := s.cause == nil, w.failure
	s.mu.Unlock()
	w.timer.Stop()
	if final != nil && alive {
		if err := final(failure); err != nil {
			w.Fail(err)
		}
	}
	return w.unpin()
}

func (w *Window) unpin() error {
	s := w.Session
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.cause != nil && !s.severed {
		s.changed.Wait()
	}
	delete(s.windows, w)
	s.used = time.Now()
	w.Region.pins--
	s.changed.Broadcast()
	err := s.cause
	if err == nil || (w.failure != nil && !errors.Is(w.failure, ErrFenced)) {
		err = w.failure
	}
	if l, ok := w.Backing.(Lingerer); ok && w.ops > w.paused && l.Lingers() {
		err = fmt.Errorf("%w: %w", ErrLingering, err)
	}
	w.count(err)
	return err
}

func (w *Window) count(err error) {
	c := &w.Session.roster.Counters
	c.Open.Add(-1)
	switch {
	case err != nil:
		c.Failed.Add(1)
	case w.Direction == ForGet:
		c.Gets.Add(1)
		c.GetBytes.Add(w.Bytes)
	default:
		c.Puts.Add(1)
		c.PutBytes.Add(w.Bytes)
	}
}
