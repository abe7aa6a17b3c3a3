package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/native"
)

// maxAttempts bounds the paths that one operation tries: each costs up to two seconds of an adapter's retries.
const maxAttempts = 4

// hopeWait is how long after the loss of a path its session is thought to make another one.
const hopeWait = 2 * time.Second

// remote is an open window and the paths of its transfer.
type remote struct {
	window  *fabric.Window
	session *session
	memory  *backing
	near    *rails.Rail // the rail whose address the client's HTTP connection uses, or nil

	refused chan struct{} // closed when the client's adapter has refused an operation

	mu   sync.Mutex
	path *path // chosen
}

// Size is the part of the window that the request may touch.
func (r *remote) Size() int64 { return r.window.Size() }

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
	segments := make([]initiator.Segment, 0, len(buffers))
	for _, b := range buffers {
		n += int64(b.Len())
		if b.Len() > 0 {
			segments = append(segments, b.Bytes())
		}
	}
	if err := r.window.Check(d, off, n); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := r.window.Enter(); err != nil {
		return err
	}
	op := native.OpWrite
	if d == fabric.ForPut {
		op = native.OpRead
	}
	m := initiator.Move{Op: op, Remote: r.memory.address + uint64(r.window.Base+off), Local: segments}
	return r.carry(ctx, n, m)
}

// carry tries one path after another until the operation is complete, and leaves the window. What it leaves behind is
// fenced, or its session has ended.
func (r *remote) carry(ctx context.Context, n int64, m initiator.Move) error {
	err := errDead
	for range maxAttempts {
		p, noPath := r.take(ctx)
		if noPath != nil {
			return r.window.LeavePaused(noPath)
		}
		m.RKey, _ = r.memory.keys.of(p.device)
		if err = p.move(m); err == nil {
			return r.window.Leave(n, nil)
		}
		if errors.Is(err, initiator.ErrDenied) {
			r.refuse()
		}
		p.fail(whyNot) // it has, but for an error that costs no queue pair
		if ended := p.fenceLost(); ended != nil {
			return r.window.Leave(0, ended)
		}
		if errors.Is(err, initiator.ErrDenied) {
			break
		}
	}
	return r.window.Leave(0, fmt.Errorf("%w: %w", fabric.ErrTransfer, err))
}

// errRefused says that the client's adapter refused another operation of the transfer.
var errRefused = fmt.Errorf("%w: %w", fabric.ErrTransfer, initiator.ErrDenied)

// refuse dooms the transfer: what the refusal caught of it besides waits for no other path.
func (r *remote) refuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.refused:
	default:
		close(r.refused)
	}
}

// fenceLost waits until a path that failed is dead at both ends. The path's watcher bounds the wait by the stall
// wait, and the window by its deadline: the session then ends. Errors: that of the session, when it ended.
func (p *path) fenceLost() error {
	core := p.session.core
	select {
	case <-p.done:
		return nil
	case <-core.Ended():
		return core.Err()
	}
}

// errPathWait says that the client made no path in time.
var errPathWait = fmt.Errorf("%w: no path within %v", fabric.ErrTransfer, pathWait)

// take returns the transfer's path; a new one when the old one is dead. It waits for one to come up, and nothing is
// under way meanwhile. After an error the operation is paused: the deadline is near, often, and must not find it under
// way. Errors: errPathWait; errRefused; ErrFenced, when the session ends or the deadline passes; ctx's.
func (r *remote) take(ctx context.Context) (*path, error) {
	select {
	case <-r.refused:
		r.window.Pause()
		return nil, errRefused
	default:
	}
	p, changed := r.choose()
	if p != nil {
		return p, nil
	}
	r.window.Pause()
	p, err := r.await(ctx, changed)
	if err == nil {
		err = r.window.Resume()
	}
	return p, err
}

// await waits for a path, at most for pathWait and until the deadline.
func (r *remote) await(ctx context.Context, changed <-chan struct{}) (*path, error) {
	limit := time.NewTimer(min(pathWait, time.Until(r.window.Deadline)))
	defer limit.Stop()
	for {
		select {
		case <-changed:
		case <-r.refused:
			return nil, errRefused
		case <-limit.C:
			return nil, errPathWait
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-r.session.core.Ended():
			return nil, r.session.core.Err()
		}
		var p *path
		if p, changed = r.choose(); p != nil {
			return p, nil
		}
	}
}

// choose keeps the transfer's path while it works, and else takes the best one of the session.
func (r *remote) choose() (chosen *path, changed <-chan struct{}) {
	s := r.session
	r.mu.Lock()
	defer r.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.path != nil && r.path.usable(r.memory) {
		return r.path, nil
	}
	for _, p := range s.paths {
		if p.usable(r.memory) && (chosen == nil || better(p, chosen, r.near)) {
			chosen = p
		}
	}
	if chosen == nil {
		return nil, s.changed
	}
	r.count(-r.window.Bytes)
	r.path = chosen
	r.count(r.window.Bytes)
	return chosen, nil
}

// count adds n to what the chosen path has to carry. mu is held.
func (r *remote) count(n int64) {
	if r.path != nil {
		r.path.load.Add(n)
		r.path.rail.Carry(n)
	}
}

// usable tells whether the path carries transfers of a region. session.mu is held.
func (p *path) usable(b *backing) bool {
	_, known := b.keys.of(p.device)
	return known && p.stage == ready && p.rail.Up()
}

// better orders paths: first by their rails, then by the bytes that the path itself has to carry, then by age.
func better(a, b *path, near *rails.Rail) bool {
	if c := rails.Compare(a.rail, b.rail, near); c != 0 {
		return c < 0
	}
	if x, y := a.load.Load(), b.load.Load(); x != y {
		return x < y
	}
	return a.id < b.id
}

// reachable tells whether a transfer of the region may find a path: one that works, is being made, or was lost just
// now.
func (s *session) reachable(b *backing) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.paths {
		if p.usable(b) || p.rail.Up() && (p.stage == making || p.stage == offered) {
			return true
		}
	}
	return time.Since(s.lost) < hopeWait && s.fabric.rails.AnyUp()
}

// Close ends the transfer. Nothing of it is under way: each operation has ended with its proof, or its path is fenced.
func (r *remote) Close() error {
	err := r.window.Close(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(-r.window.Bytes)
	r.path = nil
	return err
}
