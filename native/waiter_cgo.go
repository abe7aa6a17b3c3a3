package native

// #include "nv.h"
import "C"

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

// waiter waits for events of a file descriptor of the library in Go's poller, so that a goroutine waits and no thread.
type waiter struct {
	file *os.File // a dup: the library closes its own
	conn syscall.RawConn
	once sync.Once

	ready func(uintptr) bool // calls take; made once, since every completion queue waits all the time
	got   C.struct_nv_status // what take returned last; the one wait's
}

// newWaiter makes a waiter for a descriptor that does not block. take takes what made it readable, or fails with
// EAGAIN.
func newWaiter(fd int, name string, take func() C.struct_nv_status) (*waiter, error) {
	dup, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, &CallError{Call: "fcntl", Errno: int(errno)}
	}
	w := &waiter{file: os.NewFile(dup, name)}
	w.ready = func(uintptr) bool {
		w.got = take()
		return syscall.Errno(w.got.err) != syscall.EAGAIN
	}
	conn, err := w.file.SyscallConn()
	if err == nil {
		// A descriptor that the poller does not take has no deadlines: it could not be waited for.
		err = w.file.SetReadDeadline(time.Time{})
	}
	if err != nil {
		_ = w.file.Close()
		return nil, &CallError{Call: "epoll_ctl", Errno: int(syscall.EPERM)}
	}
	w.conn = conn
	return w, nil
}

// wait calls take until it returns something else than EAGAIN, and whenever the descriptor is readable.
// One wait at a time. Errors: of take; ErrClosed; ctx's.
func (w *waiter) wait(ctx context.Context) error {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := w.conn.Read(w.ready)
		switch {
		case err == nil:
			return failure(w.got)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return ErrClosed
		case ctx.Err() == nil:
			// It was set at the end of an earlier call. The context is looked at again after this.
			if w.file.SetReadDeadline(time.Time{}) != nil {
				return ErrClosed
			}
		}
	}
}

// close ends the wait, and returns when no call of take runs any more and none will.
func (w *waiter) close() { w.once.Do(func() { _ = w.file.Close() }) }
