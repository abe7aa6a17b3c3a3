package shm

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

const patience = 30 * time.Second

// rawClient speaks the protocol frame by frame, so that it can break it.
type rawClient struct {
	t      *testing.T
	conn   *net.UnixConn
	offer  fabric.SessionOffer
	tokens uint32 // numbers given out
}

func newFabric(t *testing.T, limits fabric.Limits, address string) *Fabric {
	t.Helper()
	f, err := New(Options{Ledger: fabric.NewLedger(limits), Address: address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if s := f.Stats(); s.Sessions != 0 || s.MappedBytes != 0 {
			t.Errorf("left over: %+v", s)
		}
	})
	return f
}

func connect(t *testing.T, f *Fabric) *rawClient {
	t.Helper()
	offer, err := f.NewSession(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t: t, offer: offer, conn: dialRaw(t, f)}
	if _, err := frame.Connect(c.conn, offer.ID, offer.Secret.Reveal(), 0); err != nil {
		t.Fatal(err)
	}
	return c
}

func dialRaw(t *testing.T, f *Fabric) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.address, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// send writes a header with descriptors.
func (c *rawClient) send(h frame.Header, files ...int) {
	c.t.Helper()
	var b [frame.HeaderBytes]byte
	h.Encode(b[:])
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	if _, _, err := c.conn.WriteMsgUnix(b[:], rights, nil); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawClient) receive() frame.Header {
	c.t.Helper()
	var b [frame.HeaderBytes]byte
	h, err := frame.ReadHeader(c.conn, &b)
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	return h
}

// ended fails unless the server closes the connection.
func (c *rawClient) ended(what string) {
	c.t.Helper()
	_, err := io.Copy(io.Discard, c.conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Errorf("%s: the session lives", what)
	}
}

// alive fails unless the session answers.
func (c *rawClient) alive(what string) {
	c.t.Helper()
	c.send(frame.Header{Type: frame.Ping})
	if h := c.receive(); h.Type != frame.Pong {
		c.t.Errorf("%s: %+v instead of a pong", what, h)
	}
}

// memory makes a memfd of that size and seals it; populate gives it pages.
func memory(t *testing.T, size int64, seals int, populate bool) int {
	t.Helper()
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if populate {
		if err := unix.Fallocate(fd, 0, 0, size); err != nil {
			t.Fatal(err)
		}
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

func TestRegionsRefused(t *testing.T) {
	f := newFabric(t, fabric.Limits{MappedBytes: 1 << 20}, "")
	c := connect(t, f)
	const size = 64 << 10
	good := memory(t, size, unix.F_SEAL_SHRINK, true)
	readOnly, err := unix.Open("/proc/self/fd/"+strconv.Itoa(good), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(readOnly) }()
	plain, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	if _, err := plain.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
	half := memory(t, size, 0, false)
	if err := unix.Fallocate(half, 0, 0, size/2); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(half), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	truncated := memory(t, size, 0, true)
	if err := unix.Ftruncate(truncated, size/2); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(truncated), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name string
		h    frame.Header
		file int
		want frame.Status
	}{
		{"unsealed", frame.Header{Size: size}, memory(t, size, 0, true), frame.StatusSeals},
		{"sealed against growth only", frame.Header{Size: size},
			memory(t, size, unix.F_SEAL_GROW, true), frame.StatusSeals},
		{"sealed against writes", frame.Header{Size: size},
			memory(t, size, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE, true), frame.StatusKind},
		{"sealed against future writes", frame.Header{Size: size},
			memory(t, size, unix.F_SEAL_SHRINK|unix.F_SEAL_FUTURE_WRITE, true), frame.StatusKind},
		{"sparse", frame.Header{Size: size}, memory(t, size, unix.F_SEAL_SHRINK, false), frame.StatusSparse},
		{"half sparse", frame.Header{Size: size}, half, frame.StatusSparse},
		{"truncated", frame.Header{Size: size}, truncated, frame.StatusSize},
		{"smaller than said", frame.Header{Size: size + 1}, good, frame.StatusSize},
		{"larger than said", frame.Header{Size: size - 4096}, good, frame.StatusSize},
		{"zero", frame.Header{}, good, frame.StatusSize},
		{"absurd size", frame.Header{Size: frame.MaxNumber}, good, frame.StatusSize},
		{"number too large", frame.Header{Region: 1 << 32, Size: size}, good, frame.StatusSize},
		{"read only", frame.Header{Size: size}, readOnly, frame.StatusKind},
		{"plain file", frame.Header{Size: size}, int(plain.Fd()), frame.StatusKind},
		{"pipe", frame.Header{Size: size}, pipe[0], frame.StatusKind},
		{"no descriptor", frame.Header{Size: size}, -1, frame.StatusKind},
		{"over the limit", frame.Header{Size: 2 << 20}, memory(t, 2<<20, unix.F_SEAL_SHRINK, true), frame.StatusLimit},
	}
	for _, tc := range cases {
		tc.h.Type = frame.Region
		if tc.file < 0 {
			c.send(tc.h)
		} else {
			c.send(tc.h, tc.file)
		}
		if h := c.receive(); h.Type != frame.RegionRefused || h.Status != tc.want || h.Region != tc.h.Region {
			t.Errorf("%s: type %d, %s; want %s", tc.name, h.Type, h.Status, tc.want)
		}
	}
	c.send(frame.Header{Type: frame.Region, Region: 1, Size: size}, good)
	if h := c.receive(); h.Type != frame.RegionOK {
		t.Fatalf("good region: %+v", h)
	}
	c.send(frame.Header{Type: frame.Region, Region: 1, Size: size}, good)
	if h := c.receive(); h.Status != frame.StatusDuplicate {
		t.Errorf("number used twice: %+v", h)
	}
	c.send(frame.Header{Type: frame.Forget, Region: 2})
	if h := c.receive(); h.Type != frame.Forgotten || h.Status != frame.StatusUnknown {
		t.Errorf("forget of an unknown region: %+v", h)
	}
	c.alive("after refusals")
	if s := f.Stats(); s.Regions != 1 || s.MappedBytes != size || s.RejectedRegions != int64(len(cases))+1 {
		t.Errorf("counters: %+v", s)
	}
}

// TestProtocolBroken sends frames that end a session; the server and other sessions live.
func TestProtocolBroken(t *testing.T) {
	f := newFabric(t, fabric.Limits{}, "")
	other := connect(t, f)
	fd := memory(t, 4096, unix.F_SEAL_SHRINK, true)
	cases := map[string]func(c *rawClient){
		"two descriptors": func(c *rawClient) { c.send(frame.Header{Type: frame.Region, Size: 4096}, fd, fd) },
		"many descriptors": func(c *rawClient) {
			c.send(frame.Header{Type: frame.Region, Size: 4096}, fd, fd, fd, fd, fd)
		},
		"descriptor with a ping": func(c *rawClient) { c.send(frame.Header{Type: frame.Ping}, fd) },
		"frame of a server":      func(c *rawClient) { c.send(frame.Header{Type: frame.RegionOK}) },
		"frame of tcp":           func(c *rawClient) { c.send(frame.Header{Type: frame.Ack}) },
		"handshake again": func(c *rawClient) {
			c.send(frame.Header{Type: frame.Proof, Length: frame.ProofBytes})
		},
		"garbage": func(c *rawClient) {
			if _, err := c.conn.Write([]byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n......")); err != nil {
				c.t.Fatal(err)
			}
		},
		"half a header": func(c *rawClient) {
			if _, err := c.conn.Write(make([]byte, frame.HeaderBytes/2)); err != nil {
				c.t.Fatal(err)
			}
			if err := c.conn.CloseWrite(); err != nil {
				c.t.Fatal(err)
			}
		},
	}
	before := openFiles(t)
	for name, attack := range cases {
		c := connect(t, f)
		attack(c)
		c.ended(name)
		_ = c.conn.Close()
	}
	other.alive("other session")
	soon(t, "only the other session is left", func() bool { return f.Stats().Sessions == 1 })
	soon(t, "descriptors are closed", func() bool { return openFiles(t) <= before })
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// TestHandshakeBroken sends handshakes that must be refused.
func TestHandshakeBroken(t *testing.T) {
	f := newFabric(t, fabric.Limits{}, "")
	offer, err := f.NewSession(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	conn := dialRaw(t, f)
	if _, err := frame.Connect(conn, offer.ID, offer.Secret.Reveal(), 1); err == nil {
		t.Error("second connection of a shm session accepted")
	}
	for _, bytes := range []string{"GET / HTTP/1.1\r\n\r\n" + string(make([]byte, 100)), "", "\x01"} {
		conn := dialRaw(t, f)
		if _, err := conn.Write([]byte(bytes)); err != nil {
			t.Fatal(err)
		}
		_ = conn.CloseWrite()
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%q: %v", bytes, err)
		}
	}
	soon(t, "refusals are counted", func() bool { return f.Stats().Refused == 4 })
	dialRaw(t, f) // Close of the fabric must not wait for it
}

// soon polls.
var soon = fabrictest.Soon

// window announces the memfd as region 1 and opens all of it.
func (c *rawClient) window(f *Fabric, fd int, size int64, d fabric.Direction, deadline time.Time) fabric.Remote {
	c.t.Helper()
	c.send(frame.Header{Type: frame.Region, Region: 1, Size: uint64(size)}, fd)
	if h := c.receive(); h.Type != frame.RegionOK {
		c.t.Fatalf("region: %+v", h)
	}
	r, err := f.Open(context.Background(), c.descriptor(size), fabric.Grant{
		Principal: "p", Direction: d, Bytes: size, Deadline: deadline,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *rawClient) descriptor(size int64) token.Descriptor {
	c.tokens++
	return token.Descriptor{
		Kind: token.Session, Fabric: Name, SessionID: c.offer.ID, Region: frame.JoinRegion(1, c.tokens), Size: size,
	}
}

func newBuffer(t *testing.T) arena.Buffer {
	t.Helper()
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 1, BufferBytes: 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := a.Share("fabric").Alloc(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Release()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// TestHolePunched punches all pages away while the region is mapped: the shrink seal does not forbid
// it. The server reads zeros and writes into new pages.
func TestHolePunched(t *testing.T) {
	f := newFabric(t, fabric.Limits{}, "")
	const size = 1 << 20
	fd := memory(t, size, unix.F_SEAL_SHRINK, true)
	if _, err := unix.Pwrite(fd, []byte("before"), 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 4096); !errors.Is(err, unix.EPERM) {
		t.Fatalf("truncate of a sealed memfd: %v", err)
	}
	c := connect(t, f)
	put := c.window(f, fd, size, fabric.ForPut, time.Now().Add(patience))
	get, err := f.Open(t.Context(), c.descriptor(size), fabric.Grant{
		Principal: "p", Direction: fabric.ForGet, Bytes: size, Deadline: time.Now().Add(patience),
	})
	if err != nil {
		t.Fatal(err)
	}
	punch := func() {
		if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
			t.Fatal(err)
		}
	}
	punch()
	b := newBuffer(t)
	for i := range b.Bytes() {
		b.Bytes()[i] = 0xff
	}
	if err := put.Read(t.Context(), 0, b); err != nil {
		t.Fatal(err)
	}
	for i, v := range b.Bytes() {
		if v != 0 {
			t.Fatalf("byte %d of a hole: %#x", i, v)
		}
	}
	punch()
	copy(b.Bytes(), "after")
	if err := get.Write(t.Context(), 0, b); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(put.Close(), get.Close()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := unix.Pread(fd, got, 0); err != nil || string(got) != "after" {
		t.Errorf("memory after the write: %q, %v", got, err)
	}
}

// TestFault takes the pages away under a mapping (an unsealed memfd, which announce would refuse):
// SIGBUS becomes an error of the transfer, both ways, and the session lives.
func TestFault(t *testing.T) {
	f := newFabric(t, fabric.Limits{}, "")
	c := connect(t, f)
	const size = 1 << 20
	fd := memory(t, size, 0, true)
	core, err := f.roster.Find(c.offer.ID)
	if err != nil {
		t.Fatal(err)
	}
	g, err := core.Reserve(1, size, size)
	if err != nil {
		t.Fatal(err)
	}
	m, err := mapFile(fd, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := core.Publish(g, m); err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size/2); err != nil {
		t.Fatal(err)
	}
	b := newBuffer(t)
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		r, err := f.Open(t.Context(), c.descriptor(size), fabric.Grant{
			Principal: "p", Direction: d, Bytes: size, Deadline: time.Now().Add(patience),
		})
		if err != nil {
			t.Fatal(err)
		}
		move := r.Write
		if d == fabric.ForPut {
			move = r.Read
		}
		if err := move(t.Context(), 0, b); !errors.Is(err, fabric.ErrTransfer) {
			t.Errorf("direction %d: %v", d, err)
		}
		if err := move(t.Context(), 0, b.Slice(0, 10)); !errors.Is(err, fabric.ErrTransfer) {
			t.Errorf("direction %d, after the fault: %v", d, err)
		}
		if err := r.Close(); !errors.Is(err, fabric.ErrTransfer) {
			t.Errorf("direction %d, close: %v", d, err)
		}
	}
	if n := f.Stats().Faults; n != 2 {
		t.Errorf("%d faults counted", n)
	}
	c.alive("after faults")
}

// TestLateKernelRead is the device read that hangs: a read of an empty pipe into the mapped window.
// The deadline cuts it off; what it brings later lands in private memory.
func TestLateKernelRead(t *testing.T) {
	f := newFabric(t, fabric.Limits{}, "")
	const size = 256 << 10
	fd := memory(t, size, unix.F_SEAL_SHRINK, true)
	client, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(client) }()
	for i := range client {
		client[i] = byte(i*7 + 1)
	}
	c := connect(t, f)
	deadline := time.Now().Add(100 * time.Millisecond)
	r := c.window(f, fd, size, fabric.ForGet, deadline)
	mapper := r.(fabric.Mapper)
	view, err := mapper.Map(0, size)
	if err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
	read := make(chan int, 1)
	go func() {
		n, err := unix.Read(pipe[0], view) // blocks in the kernel, with the address of the window
		if err != nil {
			n = -1
		}
		read <- n
	}()
	if err := r.Close(); !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("close: %v", err)
	}
	if late := time.Since(deadline); late > 10*time.Second {
		t.Errorf("close came %v after the deadline", late)
	}
	c.ended("deadline with an operation under way")
	if _, err := unix.Write(pipe[1], []byte("late bytes of the device")); err != nil {
		t.Fatal(err)
	}
	if n := <-read; n != len("late bytes of the device") {
		t.Errorf("late read: %d", n)
	}
	for i := range client {
		if client[i] != byte(i*7+1) {
			t.Fatalf("client memory changed at %d", i)
		}
	}
	mapper.Unmap(0, size)
}

// TestScribble lets the client write into the window while the server reads and writes it.
func TestScribble(t *testing.T) {
	f := newFabric(t, fabric.Limits{}, "")
	const size = 1 << 20
	fd := memory(t, size, unix.F_SEAL_SHRINK, true)
	c := connect(t, f)
	r := c.window(f, fd, size, fabric.ForPut, time.Now().Add(patience))
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		for i := byte(0); ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := unix.Pwrite(fd, []byte{i}, int64(i)*4096); err != nil {
				done <- err
				return
			}
		}
	}()
	b := newBuffer(t)
	for range 50 {
		if err := r.Read(t.Context(), 0, b); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if err := errors.Join(<-done, r.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestSilentClient does not read the replies: it loses its session, and nobody else notices.
func TestSilentClient(t *testing.T) {
	f := newFabric(t, fabric.Limits{}, "")
	c := connect(t, f)
	go func() {
		var b [frame.HeaderBytes]byte
		frame.Header{Type: frame.Ping}.Encode(b[:])
		for {
			if _, err := c.conn.Write(b[:]); err != nil {
				return
			}
		}
	}()
	soon(t, "session ends", func() bool { return f.Stats().Sessions == 0 })
}

func TestIdle(t *testing.T) {
	f := newFabric(t, fabric.Limits{IdleWait: 50 * time.Millisecond}, "")
	c := connect(t, f)
	c.ended("no pings")
}

// TestSocketPath checks mode and take-over of a socket file.
func TestSocketPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	f := newFabric(t, fabric.Limits{}, path)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := New(Options{Ledger: fabric.NewLedger(fabric.Limits{}), Address: path}); err == nil {
		t.Error("second server took the address of a live one")
	}
	connect(t, f).alive("after the second server")
	stale := filepath.Join(t.TempDir(), "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	connect(t, newFabric(t, fabric.Limits{}, stale)).alive("stale socket file")
}

// FuzzFrames sends anything after an honest handshake, with a descriptor on its first byte: the
// session ends, and the server lives.
func FuzzFrames(f *testing.F) {
	frames := func(headers ...frame.Header) (out []byte) {
		for _, h := range headers {
			var b [frame.HeaderBytes]byte
			h.Encode(b[:])
			out = append(out, b[:]...)
		}
		return out
	}
	f.Add(frames(frame.Header{Type: frame.Region, Region: 1, Size: 4096}, frame.Header{Type: frame.Forget, Region: 1},
		frame.Header{Type: frame.Ping}))
	f.Add(frames(frame.Header{Type: frame.Region, Region: 1, Size: 4096}, frame.Header{Type: frame.Close}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		fab := newFabric(t, fabric.Limits{}, "")
		c := connect(t, fab)
		fd := memory(t, 4096, unix.F_SEAL_SHRINK, true)
		if _, _, err := c.conn.WriteMsgUnix(b, unix.UnixRights(fd), nil); err == nil {
			_ = c.conn.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, c.conn)
		soon(t, "session ends", func() bool { return fab.Stats().Sessions == 0 })
	})
}

// TestHandshakeFlood opens more connections than may be in their handshake, again and again: an honest
// client of the same user gets in all the same.
func TestHandshakeFlood(t *testing.T) {
	f := newFabric(t, fabric.Limits{}, "")
	for range 3 {
		for range fabric.MaxHandshakes + 10 {
			dialRaw(t, f)
		}
		soon(t, "places are taken", func() bool { return f.door.Waiting() == fabric.MaxHandshakes })
		connect(t, f).alive("during the flood")
	}
}
