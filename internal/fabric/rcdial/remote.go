package rcdial

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
)

var _ fabric.Remote = (*remote)(nil)

// errOverdue says that it is too late to begin.
var errOverdue = fmt.Errorf("%w: %w", fabric.ErrFenced, fabric.ErrOverdue)

// remote is the window of the transfer that a connection carries.
type remote struct {
	connection *connection
	token      token.Descriptor
	grant      fabric.Grant
	fence      *time.Timer // Margin before the deadline

	mu      sync.Mutex
	changed *sync.Cond // ops is 0, or the wait for that is over
	ops     int
	closed  bool
	failure error // the first
}

func newRemote(c *connection, d token.Descriptor, g fabric.Grant) *remote {
	r := &remote{connection: c, token: d, grant: g}
	r.changed = sync.NewCond(&r.mu)
	r.fence = time.AfterFunc(time.Until(g.Deadline.Add(-Margin)), r.expire)
	return r
}

// Size is the part of the window that the request may touch.
func (r *remote) Size() int64 { return r.grant.Bytes }

// Write moves src into client memory.
func (r *remote) Write(ctx context.Context, off int64, src ...arena.Buffer) error {
	return r.operate(ctx, fabric.ForGet, off, src)
}

// Read fills dst from client memory.
func (r *remote) Read(ctx context.Context, off int64, dst ...arena.Buffer) error {
	return r.operate(ctx, fabric.ForPut, off, dst)
}

// operate checks and carries out one operation. Once bytes may move it does not look at ctx: the adapter has the
// buffers.
func (r *remote) operate(ctx context.Context, d fabric.Direction, off int64, buffers []arena.Buffer) error {
	n := int64(0)
	m := initiator.Move{Op: native.OpWrite, RKey: r.token.RKey}
	for _, b := range buffers {
		n += int64(b.Len())
		if b.Len() > 0 {
			m.Local = append(m.Local, b.Bytes())
		}
	}
	if r.grant.Direction != d {
		return fmt.Errorf("%w: wrong direction for this window", fabric.ErrTransfer)
	}
	if off < 0 || off > r.grant.Bytes || n > r.grant.Bytes-off {
		return fmt.Errorf("%w: [%d, %d+%d) is outside the window of %d bytes", fabric.ErrTransfer, off, off, n,
			r.grant.Bytes)
	}
	if n == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d == fabric.ForPut {
		m.Op = native.OpRead
	}
	m.Remote = r.token.Addr + uint64(off)
	if err := r.enter(); err != nil {
		return err
	}
	return r.leave(r.connection.link.Move(m))
}

// enter begins an operation. Errors: ErrFenced, the first error of an earlier operation.
func (r *remote) enter() error {
	if err := r.connection.err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return fmt.Errorf("%w: window is closed", fabric.ErrTransfer)
	case r.failure != nil:
		return r.failure
	case !time.Now().Before(r.grant.Deadline.Add(-Stop)):
		r.failure = errOverdue
		return r.failure
	}
	r.ops++
	return nil
}

// leave ends an operation. The first error of one is the transfer's, and costs the connection: what else is under way
// on it fails too. One that succeeded while the connection was cut has failed.
func (r *remote) leave(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: %w", fabric.ErrTransfer, err)
		r.connection.endBy(err)
		if r.grant.Direction == fabric.ForGet {
			<-time.After(linger)
		}
	}
	if cause := r.connection.err(); errors.Is(cause, fabric.ErrFenced) {
		err = cause
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ops--; r.ops == 0 {
		r.changed.Broadcast()
	}
	if err != nil && r.failure == nil {
		r.failure = err
	}
	return err
}

// expire cuts the connection when something is under way so late.
func (r *remote) expire() {
	r.mu.Lock()
	late := r.ops > 0
	r.mu.Unlock()
	if late {
		r.connection.end(fabric.ErrOverdue)
	}
}

// Close waits for what is under way: the fence bounds that, but where an adapter does not reset its queue pair. Errors:
// the first of an operation; ErrFenced, when the connection was cut or the deadline has passed; ErrLingering.
func (r *remote) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return fmt.Errorf("%w: window is closed", fabric.ErrTransfer)
	}
	r.closed = true
	r.mu.Unlock()
	lingers := !r.await(r.grant.Deadline.Add(settleWait))
	r.fence.Stop()
	r.mu.Lock()
	err := r.failure
	r.mu.Unlock()
	if err == nil && !time.Now().Before(r.grant.Deadline) {
		err = errOverdue
	}
	if cause := r.connection.err(); errors.Is(cause, fabric.ErrFenced) {
		err = cause
	}
	if lingers {
		err = fmt.Errorf("%w: %w: the adapter resets no queue pair", fabric.ErrLingering, fabric.ErrFenced)
	}
	if !lingers { // else the connection, which has ended, stays with what is under way
		r.connection.done()
	}
	r.count(err)
	return err
}

// await waits until nothing is under way; false: something is, after that time.
func (r *remote) await(over time.Time) bool {
	timer := time.AfterFunc(time.Until(over), func() {
		r.mu.Lock()
		r.changed.Broadcast()
		r.mu.Unlock()
	})
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.ops > 0 && time.Now().Before(over) {
		r.changed.Wait()
	}
	return r.ops == 0
}

// drain waits until nothing is under way.
func (r *remote) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.ops > 0 {
		r.changed.Wait()
	}
}

func (r *remote) count(err error) {
	c := &r.connection.fabric.stat
	c.Open.Add(-1)
	switch {
	case err != nil:
		c.Failed.Add(1)
	case r.grant.Direction == fabric.ForGet:
		c.Gets.Add(1)
		c.GetBytes.Add(r.grant.Bytes)
	default:
		c.Puts.Add(1)
		c.PutBytes.Add(r.grant.Bytes)
	}
}
