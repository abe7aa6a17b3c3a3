package shm

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
)

// stuckClose makes a descriptor whose last close does not return until release is called: a TCP socket with
// unsent bytes, which waits for its peer. A client can pass many kinds (a file whose file system hangs); this one
// needs no privilege.
func stuckClose(t *testing.T) (fd int, release func()) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	release = func() { _ = errors.Join(peer.SetLinger(0), peer.Close()) }
	t.Cleanup(release)
	_ = conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	for err == nil {
		_, err = conn.Write(make([]byte, 1<<20)) // until the peer takes no more
	}
	if err := conn.SetLinger(3600); err != nil {
		t.Fatal(err)
	}
	file, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	_ = conn.Close() // what is passed is the last one
	if fd, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	return fd, release
}

// read waits until the server has read everything.
func (c *rawClient) read() {
	c.t.Helper()
	raw, err := c.conn.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	soon(c.t, "frames are read", func() bool {
		left := -1
		_ = raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		return err != nil || left == 0
	})
}

// TestStuckDescriptor passes descriptors whose close hangs, in the place of a region, as one too many, and behind
// the end of the session. Only the sender's session may wait for that: the cut of its windows, a revocation,
// other sessions and the door may not. While it hangs, the session counts.
func TestStuckDescriptor(t *testing.T) {
	region := frame.Header{Type: frame.Region, Region: 2, Size: 4096}
	for name, send := range map[string]func(c *rawClient, fd int){
		"as a region": func(c *rawClient, fd int) { c.send(region, fd) },
		"one too many": func(c *rawClient, fd int) {
			files := make([]int, 20)
			for i := range files {
				files[i] = memory(t, 4096, 0, false)
			}
			c.send(region, append(files, fd)...)
		},
		"behind the end": func(c *rawClient, fd int) {
			c.send(frame.Header{Type: frame.Present}) // without a question
			c.send(region, fd)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := fabric.NewLedger(fabric.Limits{})
			f, err := New(Options{Ledger: ledger})
			if err != nil {
				t.Fatal(err)
			}
			c := connect(t, f)
			r := c.window(f, memory(t, 4096, unix.F_SEAL_SHRINK, true), 4096, fabric.ForGet, time.Now().Add(patience))
			fd, release := stuckClose(t)
			defer release()
			core, err := f.roster.Find(c.offer.ID)
			if err != nil {
				t.Fatal(err)
			}
			busy := &core.Carrier.(*session).writeMu
			busy.Lock() // the server takes nothing while it wants to answer this
			c.send(frame.Header{Type: frame.Ping})
			send(c, fd)
			_ = unix.Close(fd) // what is passed is the last one
			busy.Unlock()
			c.read()
			cut := make(chan error, 1)
			go func() {
				f.RevokePrincipal("p")
				cut <- r.Close()
			}()
			select {
			case err := <-cut:
				if !errors.Is(err, fabric.ErrFenced) {
					t.Errorf("close of the window: %v", err)
				}
			case <-time.After(patience):
				t.Fatal("a revocation waits for the close of a descriptor")
			}
			held := func() int { n, _ := ledger.Held("p"); return n }
			soon(t, "the stuck session counts", func() bool { return held() == 1 })
			connect(t, f).alive("another session")
			release()
			soon(t, "the stuck session ends", func() bool { return held() == 1 }) // the other one
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStuckDescriptorEarly passes such a descriptor with the first bytes of a connection, more often than the door
// has places. The kernel refuses that to the sender.
func TestStuckDescriptorEarly(t *testing.T) {
	f := newFabric(t, fabric.Limits{}, "")
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(listener) }()
	if _, err := unix.GetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_PASSRIGHTS); err != nil {
		t.Skip("needs SO_PASSRIGHTS (Linux 6.16): ", fabric.ErrNotSupported)
	}
	fd, release := stuckClose(t)
	defer func() {
		release()
		_ = unix.Close(fd)
	}()
	for range 2 * fabric.MaxHandshakes {
		conn := dialRaw(t, f)
		_, _, err := conn.WriteMsgUnix([]byte{byte(frame.Hello)}, unix.UnixRights(fd), nil)
		if !errors.Is(err, unix.EPERM) {
			t.Fatalf("a descriptor before the proof: %v", err)
		}
	}
	connect(t, f).alive("after early descriptors")
}
