package shm

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/requestid"
)

const (
	// foreignPiece is the length of one read or write of foreign memory in bytes. It bounds what may land
	// after a deadline, and what a cut session waits for; shorter ones would be slower.
	foreignPiece = 256 << 10
	// lingerWait bounds the wait for an operation on foreign memory when a session is cut. A piece takes
	// well under a millisecond, and seconds when the client's pages come from swap.
	lingerWait = 2 * time.Second
)

// attachment is a session's way to its client's address space; the receiver's goroutine owns it.
type attachment struct {
	space  *space
	number uint64 // what the client has to show; 0 once it did
}

// attach answers Attach: it opens the client's memory and asks the client for a sign that lies in it.
func (s *session) attach() error {
	if s.foreign.space != nil && s.foreign.number == 0 {
		return s.send(frame.Header{Type: frame.Attached}) // the answer to an earlier one was not waited for
	}
	s.foreign.end()
	var opened *space
	status := frame.StatusOff
	if s.fabric.foreignReason() == "" {
		opened, status = openSpace(s.conn)
	}
	if status != frame.StatusOK {
		s.fabric.logger.Debug("foreign memory refused", "fabric", Name, "principal", s.core.Principal,
			requestid.Attr, s.core.RequestID, "reason", status.String())
		return s.send(frame.Header{Type: frame.Attached, Status: status})
	}
	var number [8]byte
	_, _ = rand.Read(number[:]) // documented to never fail
	s.foreign = attachment{space: opened, number: binary.LittleEndian.Uint64(number[:]) | 1}
	return s.send(frame.Header{Type: frame.Ask, ID: s.foreign.number})
}

// present answers Present.
func (s *session) present(m message) error {
	if s.foreign.number == 0 {
		return fmt.Errorf("%w: present without a question", fabric.ErrProtocol)
	}
	number := s.foreign.number
	s.foreign.number = 0
	if !s.foreign.space.proves(m, number) {
		s.foreign.end()
		return s.send(frame.Header{Type: frame.Attached, Status: frame.StatusProcess})
	}
	return s.send(frame.Header{Type: frame.Attached})
}

// end closes the client's memory, if it was opened.
func (a *attachment) end() {
	if a.space != nil {
		a.space.close()
	}
	*a = attachment{}
}

// lingers tells whether an operation is still under way after the session was cut.
func (a *attachment) lingers() bool { return a.space != nil && a.space.lingers.Load() }

// foreignRegion checks a region of the client's address space.
func (s *session) foreignRegion(m message) frame.Status {
	at := s.foreign.space
	switch {
	case m.file >= 0:
		return frame.StatusKind
	case at == nil || s.foreign.number != 0 || !at.sent(m):
		return frame.StatusProcess
	case !at.covers(m.h.Offset, m.h.Size):
		return frame.StatusAddress
	}
	g, status := s.reserve(m.h)
	if status != frame.StatusOK {
		return status
	}
	b := &foreign{space: at, base: int64(m.h.Offset), idle: make(chan struct{})}
	if err := s.core.Publish(g, b); err != nil {
		return frame.StatusMap // nobody reads it: the session has ended
	}
	return frame.StatusOK
}

// foreign is a region in the client's address space. Operations are bracketed by enter and leave.
type foreign struct {
	space   *space
	base    int64
	severed atomic.Bool

	mu   sync.Mutex
	uses int
	idle chan struct{} // closed when the last operation of a severed region has left
}

var (
	_ fabric.Backing  = (*foreign)(nil)
	_ fabric.Lingerer = (*foreign)(nil)
)

func (f *foreign) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.severed.Load() {
		return false
	}
	f.uses++
	return true
}

func (f *foreign) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uses--
	if f.uses == 0 && f.severed.Load() {
		close(f.idle)
	}
}

// Sever lets no further piece begin and waits for those under way, within the session's patience: the
// kernel gives no means to take memory away from them.
func (f *foreign) Sever() {
	f.mu.Lock()
	f.severed.Store(true)
	busy := f.uses > 0
	f.mu.Unlock()
	if !busy {
		return
	}
	f.space.grace.Do(func() { f.space.patience = time.Now().Add(lingerWait) })
	timer := time.NewTimer(time.Until(f.space.patience))
	defer timer.Stop()
	select {
	case <-f.idle:
	case <-timer.C:
		f.space.lingers.Store(true)
	}
}

// Lingers tells whether Sever gave up on an operation that has not returned since.
func (f *foreign) Lingers() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.severed.Load() && f.uses > 0
}

// foreignRemote is an open window of foreign memory. It is no fabric.Mapper.
type foreignRemote struct {
	window *fabric.Window
	memory *foreign
	faults *atomic.Int64
}

var _ fabric.Remote = (*foreignRemote)(nil)

// Size is the part of the window that the request may touch.
func (r *foreignRemote) Size() int64 { return r.window.Size() }

// Write copies src into client memory.
func (r *foreignRemote) Write(ctx context.Context, off int64, src ...arena.Buffer) error {
	return r.moveAll(ctx, fabric.ForGet, off, src)
}

// Read copies client memory into dst; each byte of client memory is read once.
func (r *foreignRemote) Read(ctx context.Context, off int64, dst ...arena.Buffer) error {
	return r.moveAll(ctx, fabric.ForPut, off, dst)
}

func (r *foreignRemote) moveAll(ctx context.Context, d fabric.Direction, off int64, buffers []arena.Buffer) error {
	if err := r.window.Check(d, off, total(buffers)); err != nil {
		return err
	}
	for _, b := range buffers {
		if err := r.move(ctx, off, b); err != nil {
			return err
		}
		off += int64(b.Len())
	}
	return nil
}

// move brings one buffer over, whose range was checked.
func (r *foreignRemote) move(ctx context.Context, off int64, b arena.Buffer) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := r.window.Enter(); err != nil {
		return err
	}
	if !r.memory.enter() {
		return r.window.Leave(0, errSevered)
	}
	err := r.pieces(ctx, r.memory.base+r.window.Base+off, b.Bytes())
	r.memory.leave()
	if errors.Is(err, errGone) {
		r.window.Session.Cut(fabric.ErrPeerGone) // the socket of a process that did an exec may live on
	}
	return r.window.Leave(int64(b.Len()), err)
}

// pieces moves b to or from the address. No piece begins after the deadline, the end of the request or
// that of the session.
func (r *foreignRemote) pieces(ctx context.Context, address int64, b []byte) error {
	for len(b) > 0 {
		switch {
		case r.memory.severed.Load():
			return errSevered
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !time.Now().Before(r.window.Deadline):
			return fmt.Errorf("%w: %w", fabric.ErrFenced, fabric.ErrOverdue)
		}
		piece := b[:min(len(b), foreignPiece)]
		move := r.memory.space.mem.WriteAt
		if r.window.Direction == fabric.ForPut {
			move = r.memory.space.mem.ReadAt
		}
		n, err := move(piece, address)
		switch {
		case n == len(piece):
		case n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)): // nothing moved, no error
			return errGone
		default:
			r.faults.Add(1)
			return fmt.Errorf("%w: %d of %d bytes of foreign memory: %w", fabric.ErrTransfer, n, len(piece), err)
		}
		address += int64(len(piece))
		b = b[len(piece):]
	}
	return nil
}

// errGone says that the address space is gone: the client exited or became another program.
var errGone = fmt.Errorf("%w: client's address space is gone", fabric.ErrTransfer)

// Close waits for operations under way and unpins.
func (r *foreignRemote) Close() error { return r.window.Close(nil) }
