package hip

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/native"
)

// window is the Remote of a transfer. shut closes it where that was not done.
type window interface {
	fabric.Remote
	shut()
}

var (
	_ fabric.Aborter = (*get)(nil)
	_ window         = (*get)(nil)
	_ window         = (*put)(nil)
)

// errClosed says that an operation comes after Close.
var errClosed = fmt.Errorf("%w: window is closed", fabric.ErrTransfer)

// remote is the part that both directions share: bounds, what is under way, and the end.
type remote struct {
	s         *session
	direction fabric.Direction

	mu      sync.Mutex
	idle    *sync.Cond // ops is 0
	ops     int
	closed  bool
	aborted bool
	broken  bool  // an operation did not end well: packets of it may be left
	moved   int64 // bytes
	failure error // the first
}

func (r *remote) init(s *session, d fabric.Direction) {
	r.s, r.direction = s, d
	r.idle = sync.NewCond(&r.mu)
	s.fabric.stat.Open.Add(1)
}

// Size is what the transfer moves.
func (r *remote) Size() int64 { return r.s.p.Bytes }

// begin checks an operation and counts it in. False without an error: it has nothing to move.
func (r *remote) begin(ctx context.Context, d fabric.Direction, off, n int64) (bool, error) {
	size := r.s.p.Bytes
	switch {
	case r.direction != d:
		return false, fmt.Errorf("%w: wrong direction for this window", fabric.ErrTransfer)
	case off < 0 || off > size || n > size-off:
		return false, fmt.Errorf("%w: [%d, %d+%d) is outside the window of %d bytes", fabric.ErrTransfer, off, off, n, size)
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return false, errClosed
	case r.failure != nil:
		return false, r.failure
	case r.s.ctx.Err() != nil:
		r.failure = r.fenced()
		return false, r.failure
	case n == 0:
		return false, nil
	}
	r.ops++
	return true, nil
}

// done ends an operation that moved n bytes, or failed.
func (r *remote) done(n int64, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ops--; r.ops == 0 {
		r.idle.Broadcast()
	}
	if err == nil {
		r.moved += n
	} else if r.failure == nil {
		r.failure = err
	}
	return err
}

// fenced is what a fenced session's operations end with. Where this node gave the transfer up, that has a reason of its
// own, which is the caller's.
func (r *remote) fenced() error {
	cause := context.Cause(r.s.ctx)
	if errors.Is(cause, errAborted) {
		return fmt.Errorf("%w: %w", fabric.ErrTransfer, cause)
	}
	return fmt.Errorf("%w: %w", fabric.ErrFenced, cause)
}

// close ends the window: no operation begins any more. Errors: errClosed.
func (r *remote) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	r.closed = true
	return nil
}

// count counts the window, which has ended with err.
func (r *remote) count(err error) error {
	c := &r.s.fabric.stat
	c.Open.Add(-1)
	switch {
	case err != nil:
		c.Failed.Add(1)
		if errors.Is(err, fabric.ErrFenced) {
			c.Fenced.Add(1)
		}
	case r.direction == fabric.ForGet:
		c.Gets.Add(1)
		c.GetBytes.Add(r.s.p.Bytes)
	default:
		c.Puts.Add(1)
		c.PutBytes.Add(r.s.p.Bytes)
	}
	return err
}

// get writes into the client's memory.
type get struct {
	remote
	to fabric.Readiness
}

func newGet(s *session, r fabric.Readiness) *get {
	g := &get{to: r}
	g.init(s, fabric.ForGet)
	return g
}

// Read moves nothing: the window is for writing.
func (g *get) Read(ctx context.Context, off int64, _ ...arena.Buffer) error {
	_, err := g.begin(ctx, fabric.ForPut, off, 0)
	return err
}

// Write moves src into the client's memory.
func (g *get) Write(ctx context.Context, off int64, src ...arena.Buffer) error {
	n := int64(0)
	local := make([]initiator.Segment, 0, len(src))
	for _, b := range src {
		n += int64(b.Len())
		local = append(local, b.Bytes())
	}
	if busy, err := g.begin(ctx, fabric.ForGet, off, n); !busy {
		return err
	}
	stop := context.AfterFunc(ctx, g.s.link.Fail)
	err := g.s.link.Move(initiator.Move{
		Op: native.OpWrite, Remote: g.to.Addr + uint64(off), RKey: g.to.RKey, Local: local,
	})
	stop()
	return g.done(n, g.outcome(ctx, err))
}

// outcome is what a move ends with.
func (g *get) outcome(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	g.mu.Lock()
	g.broken = true
	g.mu.Unlock()
	switch {
	case g.s.ctx.Err() != nil:
		return g.fenced()
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", fabric.ErrTransfer, err)
}

// Abort has the client not be told that the bytes are there.
func (g *get) Abort() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.aborted = true
}

// Close tells the client that its bytes are there, when they are. Errors: the first of an operation; ErrTransfer, when
// not all bytes were written; ErrFenced; ErrLingering.
func (g *get) Close() error {
	if err := g.close(); err != nil {
		return err
	}
	over := g.over()
	g.mu.Lock()
	aborted := g.aborted
	g.mu.Unlock()
	if aborted {
		g.s.fence(errAborted)
	}
	err := g.await(over)
	if err == nil {
		err = g.tell(over)
	}
	if err == nil && !time.Now().Before(over.Add(-g.s.fabric.settle)) {
		err = fmt.Errorf("%w: %w", fabric.ErrFenced, fabric.ErrOverdue)
	}
	if err != nil {
		err = g.quiet(err)
	}
	return g.count(err)
}

// await waits until no operation is under way, at most until over.
func (g *get) await(over time.Time) error {
	timer := time.AfterFunc(time.Until(over), func() {
		g.mu.Lock()
		g.idle.Broadcast()
		g.mu.Unlock()
	})
	defer timer.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.ops > 0 && time.Now().Before(over) {
		g.idle.Wait()
	}
	if g.ops > 0 {
		return fmt.Errorf("%w: %w: the adapter does not let go", fabric.ErrLingering, fabric.ErrFenced)
	}
	return nil
}

// over is when an adapter is not waited for any more: its deadline, and what a reset may take.
func (g *get) over() time.Time {
	g.s.fabric.mu.Lock()
	defer g.s.fabric.mu.Unlock()
	return g.s.deadline.Add(g.s.fabric.settle)
}

// tell sends the immediate behind all bytes. No other operation is under way, nor begins.
func (g *get) tell(over time.Time) error {
	g.mu.Lock()
	err := g.failure
	switch {
	case err != nil:
	case g.s.ctx.Err() != nil:
		err = g.fenced()
	case g.moved != g.s.p.Bytes:
		err = fmt.Errorf("%w: %d of %d bytes were written", fabric.ErrTransfer, g.moved, g.s.p.Bytes)
	}
	if err != nil {
		g.mu.Unlock()
		return err
	}
	g.ops++
	g.mu.Unlock()
	go func() {
		cookie := g.s.p.Cookie
		err := g.s.link.Move(initiator.Move{Op: native.OpWrite, Remote: g.to.Addr, RKey: g.to.RKey, Imm: &cookie})
		_ = g.done(0, g.outcome(context.Background(), err)) // if it is an error, it is the first
	}()
	if err := g.await(over); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failure
}

// quiet resets the queue pair of a transfer that did not end well, and waits for what may be left in the network.
func (g *get) quiet(err error) error {
	g.s.fence(errAborted)
	if stuck := g.s.settle(); stuck != nil && !errors.Is(err, fabric.ErrLingering) {
		err = fmt.Errorf("%w: %w: %w", stuck, fabric.ErrFenced, err)
	}
	g.mu.Lock()
	broken := g.broken
	g.mu.Unlock()
	if broken {
		<-time.After(linger)
	}
	return err
}

func (g *get) shut() { _ = g.Close() }

// put reads what the client has written into the staging memory.
type put struct {
	remote
	stop    context.CancelFunc // ends the wait for the client
	arrived chan struct{}      // closed when the bytes are there and do not change, or err is set
	err     error
}

func newPut(s *session) *put {
	p := &put{arrived: make(chan struct{})}
	p.init(s, fabric.ForPut)
	ctx, stop := context.WithCancel(s.ctx)
	p.stop = stop
	go func() {
		defer close(p.arrived)
		p.err = p.receive(ctx)
	}()
	return p
}

// receive waits for the client's immediate, and has its queue pair reset.
func (p *put) receive(ctx context.Context) error {
	imm, n, err := p.s.stage.Wait(ctx)
	sealed := p.s.stage.Cut(p.s.fabric.settle)
	want := p.s.p
	switch {
	case p.s.ctx.Err() != nil:
		return p.fenced()
	case err != nil:
		return fmt.Errorf("%w: %w", fabric.ErrTransfer, err)
	case imm != want.Cookie:
		return fmt.Errorf("%w: the client's immediate is not its cookie", fabric.ErrTransfer)
	case int64(n) != want.Bytes:
		return fmt.Errorf("%w: the client wrote %d bytes of %d", fabric.ErrTransfer, n, want.Bytes)
	case sealed != nil:
		return fmt.Errorf("%w: %w", fabric.ErrTransfer, sealed)
	}
	return nil
}

// Write moves nothing: the window is for reading.
func (p *put) Write(ctx context.Context, off int64, _ ...arena.Buffer) error {
	_, err := p.begin(ctx, fabric.ForGet, off, 0)
	return err
}

// Read copies out of the staging memory, once the client's bytes are there.
func (p *put) Read(ctx context.Context, off int64, dst ...arena.Buffer) error {
	n := int64(0)
	for _, b := range dst {
		n += int64(b.Len())
	}
	if busy, err := p.begin(ctx, fabric.ForPut, off, n); !busy {
		return err
	}
	return p.done(n, p.copy(ctx, off, dst))
}

func (p *put) copy(ctx context.Context, off int64, dst []arena.Buffer) error {
	select {
	case <-p.arrived:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p.err != nil {
		return p.err
	}
	from := p.s.fabric.staging.bytes(p.s.run, int(p.s.p.Bytes))[off:]
	for _, b := range dst {
		from = from[copy(b.Bytes(), from):]
	}
	return nil
}

// Close ends the window: what was read stays good. Errors: the first of an operation; ErrTransfer, when the client's
// bytes did not come; ErrFenced.
func (p *put) Close() error {
	if err := p.close(); err != nil {
		return err
	}
	p.stop()
	<-p.arrived
	p.mu.Lock()
	for p.ops > 0 { // they copy, which nothing holds up
		p.idle.Wait()
	}
	err := p.failure
	p.mu.Unlock()
	if err == nil {
		err = p.err
	}
	return p.count(err)
}

func (p *put) shut() { _ = p.Close() }
