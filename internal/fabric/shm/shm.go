// Package shm is the server's end of the shm fabric: client memory is a memfd that the client passes
// over a Unix socket, and that this process maps. Moving bytes is a copy, or the drive reads
// straight into the mapping (fabric.Mapper). Memory that is no memfd (foreign memory) is read and
// written through /proc/<pid>/mem.
//
// Called by: fabric.Manager; built by server. docs/wire.md has the protocol.
//
// Invariants:
//  1. Only a memfd that is sealed against shrinking, fully populated and of the announced size is
//     mapped, once, and only after its session has proved its secret.
//  2. Client memory is touched only between enter and leave of its mapping, under a fault guard (or
//     by a kernel read through Map); a fault is an error of that transfer.
//  3. When a session has been cut, no mapping of its memory exists; late copies meet private memory.
//  4. Foreign memory is opened only where this process has no CAP_SYS_PTRACE and the client is of the same
//     user, and only its process, as the kernel names the sender, may announce it. The descriptor belongs
//     to the address space: after an exec or exit of the client it reaches nothing.
//  5. An operation on foreign memory that does not return in time is never answered: the client is left
//     without an answer and without CLOSED, so that it gives the memory up.
//  6. A client costs at most: its sockets, its regions within the ledger's limits, two goroutines per
//     session and one per region that is being forgotten.
//  7. A descriptor that a client passed is closed by its session's own goroutine only, and nobody waits for
//     that: a close may hang for as long as the client likes. A session that hangs so counts as one.
//
// The socket is abstract unless a path is given. An abstract socket has no permissions, and a path
// gets mode 0666: any local user may connect, and only the proof of a session's secret counts.
//
// Lock order: fabric.Session, then mapping.mu; session.writeMu and foreign.mu are leaves.
//
// What it does not do: HTTP, verification.
package shm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
)

// Name is the fabric's name in tokens and in the control plane.
const Name = "shm"

const (
	// handshakeWait bounds a handshake: a living client on this host needs no seconds.
	handshakeWait = 5 * time.Second
	// writeWait bounds the write of a control frame to a client that does not read.
	writeWait = 5 * time.Second
)

// Options configure the fabric.
type Options struct {
	Ledger  *fabric.Ledger
	Address string // socket path, or "@name" for an abstract one; empty draws an abstract name
	Logger  *slog.Logger

	NoForeign bool // take no foreign memory, whatever the kernel allows
}

// Fabric listens for data connections and opens windows.
type Fabric struct {
	fabric.Sessions
	address   string
	noForeign bool
	ledger    *fabric.Ledger
	roster    *fabric.Roster
	logger    *slog.Logger
	door      *fabric.Door
}

var (
	_ fabric.Fabric        = (*Fabric)(nil)
	_ fabric.SessionOpener = (*Fabric)(nil)
	_ fabric.Revoker       = (*Fabric)(nil)
	_ fabric.StatsReporter = (*Fabric)(nil)
	_ fabric.Claimer       = (*Fabric)(nil)
)

// New starts to listen.
func New(o Options) (*Fabric, error) {
	address := o.Address
	if address == "" {
		var name [16]byte
		_, _ = rand.Read(name[:]) // documented to never fail
		address = "@penstock-shm-" + hex.EncodeToString(name[:])
	}
	listener, err := listen(address)
	if err != nil {
		return nil, fmt.Errorf("shm: listen %s: %w", address, err)
	}
	setPassRights(listener, false)
	roster := fabric.NewRoster(Name, o.Ledger)
	f := &Fabric{
		Sessions:  roster.Sessions("unix", address),
		address:   address,
		noForeign: o.NoForeign,
		ledger:    o.Ledger,
		roster:    roster,
		logger:    o.Logger,
	}
	if f.logger == nil {
		f.logger = slog.New(slog.DiscardHandler)
	}
	f.door = fabric.NewDoor(listener, f.serve, &f.roster.Counters.Refused, f.logger)
	f.door.Open()
	return f, nil
}

func listen(address string) (*net.UnixListener, error) {
	at := &net.UnixAddr{Name: address, Net: "unix"}
	l, err := net.ListenUnix("unix", at)
	if address[0] == '@' {
		return l, err
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		// A socket file outlives a process that was killed. Nobody listens: take its place.
		if c, dialErr := net.DialUnix("unix", nil, at); dialErr == nil {
			_ = c.Close() // it only showed that somebody listens
			return nil, err
		}
		if err := os.Remove(address); err != nil {
			return nil, err
		}
		l, err = net.ListenUnix("unix", at)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(address, 0o666); err != nil {
		_ = l.Close() // nobody has connected; the first error is what counts
		return nil, err
	}
	return l, nil
}

// setPassRights lets clients pass descriptors, or not: their send then fails. Connections take the listener's
// setting. Whoever has not proved a session's secret must not leave descriptors here, whose close may hang.
// Before Linux 6.16 there is no such setting, and what is passed early is dropped.
func setPassRights(socket syscall.Conn, allow bool) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return // closed: nobody passes anything
	}
	value := 0
	if allow {
		value = 1
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, value) // as above
	})
}

// Name is "shm".
func (f *Fabric) Name() string { return Name }

// Rails has one rail, the host itself.
func (f *Fabric) Rails() []fabric.Rail {
	reason := f.foreignReason()
	return []fabric.Rail{{
		Fabric: Name, Name: "host", Network: "unix", Address: f.address, Up: true,
		Foreign: reason == "", ForeignReason: reason,
	}}
}

// foreignReason tells why no foreign memory is taken; empty when it is.
func (f *Fabric) foreignReason() string {
	if f.noForeign {
		return reasonOff
	}
	return foreignReason()
}

// Open pins the window that the descriptor names.
func (f *Fabric) Open(_ context.Context, d token.Descriptor, g fabric.Grant) (fabric.Remote, error) {
	w, err := f.roster.Open(d, g)
	if err != nil {
		return nil, err
	}
	if memory, ok := w.Backing.(*foreign); ok {
		return &foreignRemote{window: w, memory: memory, faults: &f.roster.Counters.Faults}, nil
	}
	return &remote{window: w, mapping: w.Backing.(*mapping), faults: &f.roster.Counters.Faults}, nil
}

// Close cuts all sessions and waits for their goroutines.
func (f *Fabric) Close() error {
	err := f.door.Shut()
	f.roster.Close()
	return errors.Join(err, f.door.Wait())
}
