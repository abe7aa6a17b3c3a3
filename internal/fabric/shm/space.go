package shm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/frame"
)

// Words for fabric.Rail.ForeignReason.
const (
	reasonOff     = "off"            // switched off
	reasonCapable = "ptrace-capable" // the kernel would let this process open everybody's memory
	reasonProc    = "no-proc"        // /proc is missing or shows another pid namespace
)

// foreignReason tells why this process takes no foreign memory; empty when it does.
func foreignReason() string {
	if ptraceCapable() {
		return reasonCapable
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return reasonProc
	}
	return ""
}

// ptraceCapable tells whether CAP_SYS_PTRACE is effective or could be made so. Who cannot tell counts
// as capable.
func ptraceCapable() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return true
	}
	const bit = 1 << unix.CAP_SYS_PTRACE
	return (data[0].Effective|data[0].Permitted)&bit != 0
}

// space is the address space of a client process, opened for reading and writing. The descriptors stay
// with it when the process execs or exits, and then reach nothing.
type space struct {
	pid   int32 // of the process that connected
	mem   *os.File
	maps  *os.File // for the receiver's goroutine only
	pidfd *os.File // until the client has proved to be the process

	grace    sync.Once
	patience time.Time   // set by grace: when Sever stops waiting
	lingers  atomic.Bool // an operation did not return by then
}

// openSpace opens the memory of the process that connected. The pidfd is looked at after the opening: a
// process that lives then had its pid all the time, so that what was opened is its memory.
func openSpace(conn *net.UnixConn) (*space, frame.Status) {
	cred, pidfd, err := peer(conn)
	if err != nil {
		return nil, frame.StatusProcess
	}
	s := &space{pid: cred.Pid, pidfd: pidfd}
	status := s.open(cred)
	if status != frame.StatusOK {
		s.close()
		return nil, status
	}
	return s, frame.StatusOK
}

func (s *space) open(cred *unix.Ucred) frame.Status {
	if cred.Uid != uint32(os.Geteuid()) {
		return frame.StatusUser
	}
	dir := "/proc/" + strconv.Itoa(int(cred.Pid))
	var err error
	if s.mem, err = os.OpenFile(dir+"/mem", os.O_RDWR, 0); err != nil {
		return openStatus(err)
	}
	if s.maps, err = os.Open(dir + "/maps"); err != nil {
		return openStatus(err)
	}
	if !s.alive() {
		return frame.StatusProcess
	}
	return frame.StatusOK
}

func openStatus(err error) frame.Status {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return frame.StatusProcess
	}
	return frame.StatusDenied
}

// peer is the process that connected, as the kernel says: pid 0 is one that cannot be seen from here.
func peer(conn *net.UnixConn) (cred *unix.Ucred, pidfd *os.File, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	fd := -1
	controlErr := raw.Control(func(socket uintptr) {
		if cred, err = unix.GetsockoptUcred(int(socket), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		if cred.Pid <= 0 {
			err = fmt.Errorf("shm: peer is not visible: %w", unix.ESRCH)
			return
		}
		fd, err = unix.GetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if errors.Is(err, unix.ENOPROTOOPT) {
			fd, err = unix.PidfdOpen(int(cred.Pid), 0) // before Linux 6.5; who sends PRESENT settles the rest
		}
		if err == nil {
			err = unix.SetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
		}
	})
	if fd >= 0 {
		pidfd = os.NewFile(uintptr(fd), "pidfd")
	}
	if err = errors.Join(controlErr, err); err != nil && pidfd != nil {
		_ = pidfd.Close() // nothing was done with it
	}
	return cred, pidfd, err
}

// alive tells whether the process has not exited.
func (s *space) alive() bool {
	raw, err := s.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	n := -1
	controlErr := raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			n, err = unix.Poll(poll, 0)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	return controlErr == nil && err == nil && n == 0
}

// proves tells whether the address space is that of the process that sent the frame: the kernel names
// the sender, the process lives, and its memory holds the number. The number lies where a region may: a
// page of a file might never come.
func (s *space) proves(m message, number uint64) bool {
	var held [8]byte
	if m.h.ID != number || !s.sent(m) || !s.alive() || !s.covers(m.h.Offset, uint64(len(held))) {
		return false
	}
	if _, err := s.mem.ReadAt(held[:], int64(m.h.Offset)); err != nil {
		return false
	}
	_ = s.pidfd.Close() // it has told what it can
	s.pidfd = nil
	return binary.LittleEndian.Uint64(held[:]) == number
}

// sent tells whether the process itself sent the frame.
func (s *space) sent(m message) bool {
	return m.sender.Pid == s.pid && m.sender.Uid == uint32(os.Geteuid())
}

// close gives the descriptors up. An operation under way keeps its own until it returns.
func (s *space) close() {
	for _, f := range []*os.File{s.mem, s.maps, s.pidfd} {
		if f != nil {
			_ = f.Close() // nothing is buffered in it
		}
	}
}

// Bounds of foreign memory: below the first lies nothing that a process may map by default, and the
// second is the end of user addresses on all machines of today.
const (
	lowestAddress = 64 << 10
	addressEnd    = 1 << 56
)

// covers tells whether the whole range is mapped now, readable and writable, by memory whose pages need
// no file system: the kernel ignores the protection of pages on this path, and a page of a file may
// never come.
func (s *space) covers(address, size uint64) bool {
	if address < lowestAddress || address >= addressEnd || size > addressEnd-address {
		return false
	}
	if _, err := s.maps.Seek(0, io.SeekStart); err != nil {
		return false
	}
	next, end := address, address+size
	for lines := bufio.NewScanner(s.maps); lines.Scan(); {
		a, ok := parseArea(lines.Text())
		switch {
		case !ok || a.start > next:
			return false
		case a.end <= next:
			continue
		case !a.fits:
			return false
		case a.end >= end:
			return true
		}
		next = a.end
	}
	return false
}

// area is one line of /proc/<pid>/maps.
type area struct {
	start, end uint64
	fits       bool // readable, writable, and anonymous or shared memory
}

func parseArea(line string) (area, bool) {
	fields := strings.Fields(line) // addresses, protection, offset, device, inode, path
	if len(fields) < 5 || len(fields[1]) < 2 {
		return area{}, false
	}
	from, to, _ := strings.Cut(fields[0], "-")
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	if err1 != nil || err2 != nil {
		return area{}, false
	}
	path := ""
	if len(fields) > 5 {
		path = fields[5]
	}
	return area{start, end, fields[1][:2] == "rw" && noFile(fields[4], path)}, true
}

// noFile tells whether an area is anonymous or shared memory.
func noFile(inode, path string) bool {
	if inode == "0" {
		return path == "" || path == "[heap]" || path == "[stack]" || strings.HasPrefix(path, "[anon")
	}
	for _, prefix := range []string{"/memfd:", "/dev/shm/", "/dev/hugepages/", "/dev/zero", "/SYSV", "/anon_hugepage"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}
