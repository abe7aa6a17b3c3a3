package target

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/frame"
)

// attachTries bounds the questions of one attachMemory: another session of this process may take the
// permission to trace away between the grant and the server's opening.
const attachTries = 3

// attachment is a session's state of foreign memory.
type attachment struct {
	turn chan struct{} // holds one while an attachMemory is under way
	done bool          // guarded by turn
	sign [8]byte       // what the server reads to know that it opened this address space
}

// attachMemory lets the server open this process's memory, once per session. Errors: ErrRefused (with
// the status), ErrClosed, ctx's error.
func (c *Conn) attachMemory(ctx context.Context) error {
	a := &c.attach
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for try := 1; !a.done; try++ {
		err := c.tryAttach(ctx)
		refused := new(frame.RefusedError)
		switch {
		case err == nil:
			a.done = true
		case try == attachTries, !errors.As(err, &refused), refused.Status != frame.StatusDenied:
			return err
		}
	}
	return nil
}

func (c *Conn) tryAttach(ctx context.Context) error {
	takeBack := allowTracing(c.links[0].conn)
	defer takeBack()
	reply, err := c.ask(ctx, frame.Header{Type: frame.Attach}, extra{})
	if err != nil {
		return err
	}
	if reply.Type == frame.Ask {
		binary.LittleEndian.PutUint64(c.attach.sign[:], reply.ID)
		sign := frame.Header{Type: frame.Present, ID: reply.ID, Offset: address(c.attach.sign[:])}
		if reply, err = c.ask(ctx, sign, extra{}); err != nil {
			return err
		}
	}
	if reply.Type != frame.Attached || reply.Status != frame.StatusOK {
		return refusal("foreign memory", reply.Status)
	}
	return nil
}

// yamaScope is where the kernel says who may trace whom; it is missing where Yama is.
const yamaScope = "/proc/sys/kernel/yama/ptrace_scope"

// allowTracing lets the process at the other end open this process's memory where Yama asks for that
// (scope 1), and returns what takes the permission back: it is needed for the opening only. The kernel
// keeps one permission per process, so one that the application gave to a debugger is lost.
func allowTracing(conn net.Conn) (takeBack func()) {
	scope, err := os.ReadFile(yamaScope)
	unixConn, ok := conn.(*net.UnixConn)
	if err != nil || !ok || string(bytes.TrimSpace(scope)) != "1" {
		return func() {}
	}
	pid, err := serverPID(unixConn)
	if err != nil {
		return func() {} // the server will be denied, and says so
	}
	allow := func(pid int32) { _ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(pid), 0, 0, 0) } // as above
	allow(pid)
	return func() { allow(0) }
}

// serverPID is the process that listens on the socket, as the kernel says.
func serverPID(conn *net.UnixConn) (int32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(controlErr, err); err != nil {
		return 0, fmt.Errorf("target: server process: %w", err)
	}
	if cred.Pid <= 0 {
		return 0, fmt.Errorf("target: server process is not visible: %w", unix.ESRCH)
	}
	return cred.Pid, nil
}
