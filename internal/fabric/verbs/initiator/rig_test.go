//go:build cgo

package initiator

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a rail, and a peer on another adapter of the same network.
type rig struct {
	t     testing.TB
	nic   *fakeverbs.NIC // nil on this machine's adapters
	rail  *Rail
	arena []byte
	peer  *peer
}

type rigOptions struct {
	Options       // all but Library, Rail, Arena
	nic           fakeverbs.Options
	arena, remote int  // bytes
	fake          bool // only the fake adapter can do what the test needs
	broken        bool // the rail is not expected to close
}

// newRig opens a rail and a peer on a fake adapter, or on those of this machine, where the test does well with them.
func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	g := &rig{t: t, arena: mapped(t, o.arena)}
	var library *native.Library
	switch {
	case !onDevice():
		if len(o.nic.Devices) == 0 {
			o.nic.Devices = []fakeverbs.Device{{}, {}}
		}
		o.nic.Poison = true
		g.nic = fakeverbs.New(t, o.nic)
		library = g.nic.Library()
	case o.fake:
		t.Skip("for the fake adapter only")
	default:
		var err error
		if library, err = native.Open(native.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = library.Close() })
	}
	rails, skipped, err := rail.Discover(library, rail.Options{})
	if err != nil || len(rails) == 0 || !rails[0].Up {
		t.Fatalf("rails %v, none of them %v: %v", rails, skipped, err)
	}
	to := rails[0]
	if !onDevice() {
		to = rails[1]
	}
	g.peer = newPeer(t, library, to, o.remote)
	opts := o.Options
	opts.Library, opts.Rail, opts.Arena = library, rails[0], g.arena
	if g.rail, err = Open(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.rail.Close(); err != nil && !o.broken {
			t.Errorf("close: %v", err)
		}
		g.peer.close()
	})
	return g
}

// path makes a path to the peer.
func (g *rig) path() *Path {
	g.t.Helper()
	p, _ := g.pathTo()
	return p
}

// pathTo makes a path to the peer, and gives the peer's queue pair too.
func (g *rig) pathTo() (*Path, *native.QP) {
	g.t.Helper()
	p, err := g.rail.NewPath(PathOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	qp, err := g.peer.join(p)
	if err != nil {
		g.t.Fatal(err)
	}
	return p, qp
}

// write is a Move of the arena's first n bytes into the peer's first; read the other way.
func (g *rig) write(n int) Move {
	return Move{Op: native.OpWrite, Remote: g.peer.at(0), RKey: g.peer.mr.RKey(), Local: []Segment{g.arena[:n]}}
}

func (g *rig) read(n int) Move {
	m := g.write(n)
	m.Op = native.OpRead
	return m
}

func wantIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}
