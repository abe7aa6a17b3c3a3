package tcp

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
)

// remote is an open window and its transfer on one connection.
type remote struct {
	window  *fabric.Window
	conn    *conn
	id      uint64
	aborted atomic.Bool
	acked   chan frame.Header // capacity 1

	begun bool // Start was sent; guarded by conn.writing

	// guarded by conn.mu
	denied   bool
	doneSent bool
}

var (
	_ fabric.Remote  = (*remote)(nil)
	_ fabric.Aborter = (*remote)(nil)
)

func newRemote(w *fabric.Window, c *conn) *remote {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	return &remote{window: w, conn: c, id: c.lastID, acked: make(chan frame.Header, 1)}
}

// start is the frame that begins the transfer.
func (r *remote) start() frame.Header {
	w := r.window
	status := frame.StatusGet
	if w.Direction == fabric.ForPut {
		status = frame.StatusPut
	}
	return frame.Header{
		Type: frame.Start, Status: status, ID: r.id, Region: w.Field,
		Offset: uint64(w.Base), Size: uint64(w.Bytes),
	}
}

// Size is the part of the window that the request may touch.
func (r *remote) Size() int64 { return r.window.Size() }

// Abort makes Close tell the client that the bytes are not complete.
func (r *remote) Abort() { r.aborted.Store(true) }

// Write sends src. When it returns, the bytes have left the buffers; Close waits for the client.
func (r *remote) Write(ctx context.Context, off int64, src ...arena.Buffer) error {
	if err := r.window.Check(fabric.ForGet, off, total(src)); err != nil {
		return err
	}
	for _, b := range src {
		for rest := b.Bytes(); len(rest) > 0; {
			n := min(len(rest), frame.MaxPayload)
			if err := r.send(ctx, off, rest[:n]); err != nil {
				return err
			}
			off += int64(n)
			rest = rest[n:]
		}
	}
	return nil
}

func total(buffers []arena.Buffer) (n int64) {
	for _, b := range buffers {
		n += int64(b.Len())
	}
	return n
}

func (r *remote) send(ctx context.Context, off int64, body []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := r.window.Enter(); err != nil {
		return err
	}
	err := error(nil)
	if r.isDenied() {
		err = errDenied
	} else {
		err = r.conn.write(ctx, frame.Header{Type: frame.Data, ID: r.id, Offset: uint64(off)}, body, r)
	}
	return r.window.Leave(int64(len(body)), err)
}

func (r *remote) isDenied() bool {
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	return r.denied
}

// Read asks the client for the bytes and waits until they are in dst. Once asked for, they are waited
// for regardless of ctx, since they come straight into the buffers; the deadline bounds that.
func (r *remote) Read(ctx context.Context, off int64, dst ...arena.Buffer) error {
	n := total(dst)
	if err := r.window.Check(fabric.ForPut, off, n); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	if err := r.window.Enter(); err != nil {
		return err
	}
	var posted [8]*readOp
	ops, err := r.post(ctx, off, dst, posted[:0])
	for _, op := range ops {
		if opErr := r.conn.wait(op); opErr != nil && err == nil {
			err = opErr
		}
	}
	return r.window.Leave(n, err)
}

func (r *remote) post(ctx context.Context, off int64, dst []arena.Buffer, ops []*readOp) ([]*readOp, error) {
	for _, b := range dst {
		for rest := b.Bytes(); len(rest) > 0; {
			if ctx.Err() != nil {
				return ops, context.Cause(ctx)
			}
			n := min(len(rest), frame.MaxPayload)
			op := &readOp{remote: r, off: off, dst: rest[:n], done: make(chan error, 1)}
			if err := r.conn.post(ctx, op); err != nil {
				return ops, err
			}
			ops = append(ops, op)
			off += int64(n)
			rest = rest[n:]
		}
	}
	return ops, nil
}

// Close ends the transfer: the client acknowledges that the memory holds all bytes. A client that
// does not answer in time loses its session.
func (r *remote) Close() error {
	defer r.conn.load.Add(-1)
	return r.window.Close(r.finish)
}

func (r *remote) finish(failure error) error {
	c := r.conn
	c.mu.Lock()
	begun := c.transfers[r.id] == r
	r.doneSent = begun
	c.mu.Unlock()
	if !begun {
		return nil
	}
	wait, cause := max(time.Until(r.window.Deadline), 0)+closeGrace, fabric.ErrOverdue
	if stall := c.session.fabric.stall; stall < wait {
		wait, cause = stall, fabric.ErrStalled
	}
	timer := time.AfterFunc(wait, func() { c.core.Cut(cause) })
	defer timer.Stop()
	h := frame.Header{Type: frame.Done, ID: r.id}
	if failure != nil || r.aborted.Load() {
		h.Status = frame.StatusAborted
	}
	if err := c.write(context.Background(), h, nil, nil); err != nil {
		return err
	}
	select {
	case ack := <-r.acked:
		return r.judge(ack)
	case <-c.core.Ended():
		return c.core.Err()
	}
}

func (r *remote) judge(ack frame.Header) error {
	if r.isDenied() {
		return errDenied
	}
	if moved := r.window.Moved(); r.window.Direction == fabric.ForGet && ack.Size != uint64(moved) {
		return fmt.Errorf("%w: client placed %d of %d bytes", fabric.ErrTransfer, ack.Size, moved)
	}
	return nil
}
