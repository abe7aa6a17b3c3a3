package shm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

// roleVariable makes the test binary a process that plays a part of a test; argumentVariable goes with it.
const (
	roleVariable     = "PENSTOCK_SHM_ROLE"
	argumentVariable = "PENSTOCK_SHM_ARGUMENT"
)

// PlayRole runs the role of this process, if it has one, and tells whether it had.
func PlayRole() bool {
	roles := map[string]func(argument string) error{
		"send": sendAsOther, "connect": connectAndDie, "exec": announceAndExec, "after-exec": watchMemory,
		"serve": serveOneOffer,
	}
	role := roles[os.Getenv(roleVariable)]
	if role == nil {
		return false
	}
	if err := role(os.Getenv(argumentVariable)); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "role:", err)
		os.Exit(1)
	}
	return true
}

// process is a running role.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func start(t *testing.T, cmd *exec.Cmd, role, argument string, files ...*os.File) *process {
	t.Helper()
	if cmd == nil {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd = exec.CommandContext(t.Context(), self)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, roleVariable+"="+role, argumentVariable+"="+argument)
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, in: in, lines: bufio.NewScanner(out)}
	t.Cleanup(func() {
		_ = in.Close() // ends it
		_ = cmd.Wait()
	})
	return p
}

func (p *process) line() string {
	p.t.Helper()
	if !p.lines.Scan() {
		p.t.Fatalf("process ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

func (p *process) tell() {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, "go on"); err != nil {
		p.t.Fatal(err)
	}
}

// end waits for a process that ends by itself.
func (p *process) end() {
	p.t.Helper()
	if err := p.cmd.Wait(); err != nil {
		p.t.Error(err)
	}
}

// TestForeignOtherSender lets a child that inherited the socket announce memory, and answer the server's
// question: the kernel names it as the sender, and the server refuses.
func TestForeignOtherSender(t *testing.T) {
	NeedForeign(t)
	f := newFabric(t, fabric.Limits{}, "")
	b := anonymous(t, 4096)
	c := attached(t, f)
	asChild := func(c *rawClient, h frame.Header) frame.Header {
		socket, err := c.conn.File()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = socket.Close() }()
		var header [frame.HeaderBytes]byte
		h.Encode(header[:])
		start(t, nil, "send", hex.EncodeToString(header[:]), socket).end()
		return c.receive()
	}
	if h := asChild(c, foreignRegion(1, addressOf(b), 4096)); h.Status != frame.StatusProcess {
		t.Errorf("region announced by a child: type %d, %s", h.Type, h.Status)
	}
	if h := c.announce(1, b); h.Type != frame.RegionOK {
		t.Errorf("region announced by the process itself: %s", h.Status)
	}
	c = connect(t, f)
	c.send(frame.Header{Type: frame.Attach})
	ask := c.receive()
	sign := anonymous(t, 4096)
	for i := range 8 {
		sign[i] = byte(ask.ID >> (8 * i))
	}
	shown := frame.Header{Type: frame.Present, ID: ask.ID, Offset: addressOf(sign)}
	if h := asChild(c, shown); h.Status != frame.StatusProcess {
		t.Errorf("presented by a child: type %d, %s", h.Type, h.Status)
	}
}

// sendAsOther writes the bytes of the argument to the inherited socket.
func sendAsOther(argument string) error {
	b, err := hex.DecodeString(argument)
	if err != nil {
		return err
	}
	_, err = os.NewFile(3, "socket").Write(b)
	return err
}

// TestForeignConnectorGone connects in a child that exits, and attaches afterwards in this process: the pid
// that the kernel names is nobody's, or may be anybody's soon.
func TestForeignConnectorGone(t *testing.T) {
	NeedForeign(t)
	f := newFabric(t, fabric.Limits{}, "")
	offer, err := f.NewSession(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "socket")
	defer func() { _ = socket.Close() }()
	start(t, nil, "connect", f.address+" "+describe(t, offer), socket).end()
	conn, err := net.FileConn(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	c := &rawClient{t: t, offer: offer, conn: conn.(*net.UnixConn)}
	c.alive("after its process has ended")
	if h := c.attach(); h.Type != frame.Attached || h.Status != frame.StatusProcess {
		t.Errorf("attach: type %d, %s", h.Type, h.Status)
	}
	if h := c.announce(1, anonymous(t, 4096)); h.Status != frame.StatusProcess {
		t.Errorf("region: %s", h.Status)
	}
	c.alive("after refusals")
}

func describe(t *testing.T, o fabric.SessionOffer) string {
	t.Helper()
	secret := o.Secret.Reveal()
	return hex.EncodeToString(o.ID[:]) + hex.EncodeToString(secret[:])
}

// connectAndDie connects the inherited socket and proves the offer on it.
func connectAndDie(argument string) error {
	address, offer, _ := strings.Cut(argument, " ")
	if err := unix.Connect(3, &unix.SockaddrUnix{Name: address}); err != nil {
		return err
	}
	return prove(os.NewFile(3, "socket"), offer)
}

// prove runs the client's handshake for an offer of describe.
func prove(rw io.ReadWriter, offer string) error {
	b, err := hex.DecodeString(offer)
	if err != nil || len(b) != 48 {
		return fmt.Errorf("offer of %d bytes: %w", len(b), err)
	}
	_, err = frame.Connect(rw, [16]byte(b), [32]byte(b[16:]), 0)
	return err
}

// TestForeignExec lets a client become another program after its session is open, with the socket and new
// memory at the same address: the server must never write there.
func TestForeignExec(t *testing.T) {
	NeedForeign(t)
	f := newFabric(t, fabric.Limits{}, "")
	offer, err := f.NewSession(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "exec", f.address+" "+describe(t, offer))
	if got := p.line(); got != "announced" {
		t.Fatal(got)
	}
	open := func(d fabric.Direction, number uint32) fabric.Remote {
		r, err := f.Open(t.Context(), token.Descriptor{
			Kind: token.Session, Fabric: Name, SessionID: offer.ID, Region: frame.JoinRegion(1, number), Size: execBytes,
		}, fabric.Grant{Principal: "p", Direction: d, Bytes: execBytes, Deadline: time.Now().Add(patience)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	get, put := open(fabric.ForGet, 1), open(fabric.ForPut, 2)
	b := filled(newBuffer(t), 0xee).Slice(0, execBytes)
	if err := put.Read(t.Context(), 0, b); err != nil || b.Bytes()[0] != firstImage {
		t.Fatalf("read of the first program: %d, %v", b.Bytes()[0], err)
	}
	if err := get.Write(t.Context(), 0, b); err != nil {
		t.Fatal(err)
	}
	p.tell()
	if got := p.line(); got != "another program" {
		t.Fatal(got)
	}
	if err := get.Write(t.Context(), 0, filled(b, 0xee)); !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("write after exec: %v", err)
	}
	if err := put.Read(t.Context(), 0, b); err == nil {
		t.Error("read after exec succeeded")
	}
	if bytes.IndexByte(b.Bytes(), secondImage) >= 0 {
		t.Error("memory of the second program was read")
	}
	for _, r := range []fabric.Remote{get, put} {
		if err := r.Close(); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("close: %v", err)
		}
	}
	p.tell()
	if got := p.line(); got != "unchanged" {
		t.Error(got)
	}
	p.end()
}

const (
	execAddress = 0x6f0000000000 // far from where the kernel puts things
	execBytes   = 256 << 10
	firstImage  = 0x11
	secondImage = 0x22
)

// execMemory maps memory at execAddress and fills it.
func execMemory(v byte) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, pointer(execAddress), execBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		return nil, err
	}
	b := slice(p, execBytes)
	for i := range b {
		b[i] = v
	}
	return b, nil
}

func announceAndExec(argument string) error {
	address, offer, _ := strings.Cut(argument, " ")
	if _, err := execMemory(firstImage); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0) // survives exec
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: address}); err != nil {
		return err
	}
	socket := os.NewFile(uintptr(fd), "socket")
	if err := prove(socket, offer); err != nil {
		return err
	}
	if err := attachRaw(socket); err != nil {
		return err
	}
	h, err := askRaw(socket, foreignRegion(1, execAddress, execBytes))
	if err != nil || h.Type != frame.RegionOK {
		return fmt.Errorf("region: %s: %w", h.Status, err)
	}
	fmt.Println("announced")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.Setenv(roleVariable, "after-exec"); err != nil {
		return err
	}
	return syscall.Exec(self, []string{self}, os.Environ())
}

func attachRaw(socket io.ReadWriter) error {
	ask, err := askRaw(socket, frame.Header{Type: frame.Attach})
	if err != nil || ask.Type != frame.Ask {
		return fmt.Errorf("attach: %s: %w", ask.Status, err)
	}
	sign := make([]byte, 8)
	for i := range sign {
		sign[i] = byte(ask.ID >> (8 * i))
	}
	h, err := askRaw(socket, frame.Header{Type: frame.Present, ID: ask.ID, Offset: addressOf(sign)})
	if err != nil || h.Status != frame.StatusOK {
		return fmt.Errorf("present: %s: %w", h.Status, err)
	}
	return nil
}

func askRaw(socket io.ReadWriter, h frame.Header) (frame.Header, error) {
	if err := frame.WriteFrame(socket, h, nil); err != nil {
		return h, err
	}
	var b [frame.HeaderBytes]byte
	return frame.ReadHeader(socket, &b)
}

// watchMemory is the second program.
func watchMemory(string) error {
	b, err := execMemory(secondImage)
	if err != nil {
		return err
	}
	fmt.Println("another program")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	for i, v := range b {
		if v != secondImage {
			fmt.Printf("byte %d changed to %#x\n", i, v)
			return nil
		}
	}
	fmt.Println("unchanged")
	return nil
}

// TestOtherUserIsRefused attaches as root to a server of another user.
func TestOtherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to have two users: ", fabric.ErrNotSupported)
	}
	server := start(t, userCommand(t, nobody), "serve", "")
	address, offer, _ := strings.Cut(server.line(), " ")
	conn, err := net.Dial("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := prove(conn, offer); err != nil {
		t.Fatal(err)
	}
	if h, err := askRaw(conn, frame.Header{Type: frame.Attach}); err != nil || h.Type != frame.Attached ||
		h.Status != frame.StatusUser {
		t.Errorf("attach as another user: %+v, %v", h, err)
	}
}

// serveOneOffer runs a server with one offer until its input ends.
func serveOneOffer(string) error {
	f, err := New(Options{Ledger: fabric.NewLedger(fabric.Limits{})})
	if err != nil {
		return err
	}
	offer, err := f.NewSession(context.Background(), "p")
	if err != nil {
		return err
	}
	secret := offer.Secret.Reveal()
	fmt.Println(f.address + " " + hex.EncodeToString(offer.ID[:]) + hex.EncodeToString(secret[:]))
	_, _ = io.Copy(io.Discard, os.Stdin)
	return f.Close()
}

// TestCapableServerRefuses: with CAP_SYS_PTRACE the kernel would refuse nothing, so the server does.
func TestCapableServerRefuses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_PTRACE: ", fabric.ErrNotSupported)
	}
	f := newFabric(t, fabric.Limits{}, "")
	if rail := f.Rails()[0]; rail.Foreign || rail.ForeignReason != reasonCapable {
		t.Errorf("rail: %+v", rail)
	}
	c := connect(t, f)
	if h := c.attach(); h.Type != frame.Attached || h.Status != frame.StatusOff {
		t.Errorf("attach: type %d, %s", h.Type, h.Status)
	}
	if h := c.announce(1, anonymous(t, 4096)); h.Status != frame.StatusProcess {
		t.Errorf("region: %s", h.Status)
	}
}
