//go:build cgo

package initiator

import (
	"bytes"
	"errors"
	"testing"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// told makes a path to a queue pair of the peer that has so many receives.
func (g *rig) told(o PathOptions, receives int) (*Path, *native.QP) {
	g.t.Helper()
	p, err := g.rail.NewPath(o)
	if err != nil {
		g.t.Fatal(err)
	}
	qp, err := g.peer.join(p)
	if err != nil {
		g.t.Fatal(err)
	}
	for i := range receives {
		if err := qp.PostReceive(uint64(i)); err != nil {
			g.t.Fatal(err)
		}
	}
	return p, qp
}

// heard are the immediates that the peer has received, with their numbers of bytes.
func (g *rig) heard() (imms, sizes []uint32) {
	g.t.Helper()
	var all [16]native.Completion
	n, err := g.peer.cq.Poll(all[:])
	if err != nil {
		g.t.Fatal(err)
	}
	for _, c := range all[:n] {
		if c.Status == native.StatusOK && c.Received && c.HasImm {
			imms, sizes = append(imms, c.Imm), append(sizes, c.Bytes)
		}
	}
	return imms, sizes
}

// TestImmediateBehindAllBytes: the peer is told once, with the last piece of the last segment that has bytes, and
// everything is in its memory then.
func TestImmediateBehindAllBytes(t *testing.T) {
	const piece = 4096
	g := newRig(t, rigOptions{Options: Options{Piece: piece, Depth: 4}, arena: 1 << 16, remote: 1 << 16})
	for i, sizes := range [][]int{{1}, {piece}, {piece + 1}, {10 * piece}, {100, 0, 3 * piece}, {5, piece, 0}} {
		p, _ := g.told(PathOptions{}, 2)
		fillRandom(g.arena)
		m := g.write(0)
		total, imm := 0, 0xfffffff0+uint32(i)
		m.Local, m.Imm = nil, &imm
		for _, n := range sizes {
			m.Local = append(m.Local, g.arena[total:total+n])
			total += n
		}
		mustMove(t, p, m)
		imms, bytesOf := g.heard()
		last := sizes[len(sizes)-1]
		for j := len(sizes) - 1; last == 0; j-- {
			last = sizes[j]
		}
		if last = (last-1)%piece + 1; len(imms) != 1 || imms[0] != imm || bytesOf[0] != uint32(last) {
			t.Errorf("segments %v: heard %v with %v bytes, want %d with %d", sizes, imms, bytesOf, imm, last)
		}
		if !bytes.Equal(g.peer.memory[:total], g.arena[:total]) {
			t.Errorf("segments %v: the bytes differ", sizes)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestImmediateWithoutBytes is told too, behind what was moved before; there is none of a READ, nor where the peer's
// memory cannot be read for the proof.
func TestImmediateWithoutBytes(t *testing.T) {
	g := newRig(t, rigOptions{arena: 4096, remote: 4096})
	p, qp := g.told(PathOptions{}, 2)
	imm := uint32(7)
	wrong := g.read(100)
	wrong.Imm = &imm
	wantError(t, p.Move(wrong), ErrLocal)
	fillRandom(g.arena)
	mustMove(t, p, g.write(100))
	before := bytes.Clone(g.peer.memory)
	for _, local := range [][]Segment{nil, {g.arena[:0], g.arena[5:5]}} {
		m := g.write(0)
		m.Local, m.Imm = local, &imm
		mustMove(t, p, m)
		if imms, sizes := g.heard(); len(imms) != 1 || imms[0] != imm || sizes[0] != 0 {
			t.Errorf("heard %v with %v bytes", imms, sizes)
		}
	}
	if !bytes.Equal(g.peer.memory, before) || !bytes.Equal(before[:100], g.arena[:100]) {
		t.Error("the peer's memory is not what was written")
	}
	mustMove(t, p, g.write(100))
	if err := qp.PostReceive(9); err != nil {
		t.Fatal(err)
	}
	m := g.write(0)
	m.Imm, m.Remote = &imm, g.peer.at(4096)
	wantError(t, p.Move(m), ErrDenied)
}

// TestImmediateWaitsForTheReceive: with 7 retries for ever, until the receive comes or the path is failed, which takes
// the buffers back before Move returns; else for some milliseconds.
func TestImmediateWaitsForTheReceive(t *testing.T) {
	const size = 5000
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16, fake: true})
	imm := uint32(7)
	m := g.write(size)
	m.Imm = &imm
	for _, comes := range []bool{true, false} {
		p, qp := g.told(PathOptions{RNRRetries: 7}, 0)
		fillRandom(g.arena)
		before := g.nic.Counters().NotReady
		moved := moving(p, m)
		g.nic.Await("more than a bounded number of attempts", func() bool {
			return g.nic.Counters().NotReady > before+5*defaultRNRRetries
		})
		select {
		case err := <-moved:
			t.Fatalf("moved without a receive: %v", err)
		default:
		}
		if comes {
			if err := qp.PostReceive(1); err != nil {
				t.Fatal(err)
			}
			if err := result(t, moved); err != nil {
				t.Error(err)
			}
			if imms, _ := g.heard(); len(imms) != 1 || imms[0] != imm || !bytes.Equal(g.peer.memory[:size], g.arena[:size]) {
				t.Errorf("heard %v", imms)
			}
		} else {
			p.Fail()
			wantError(t, result(t, moved), ErrLost)
		}
		if g.nic.Owned(g.arena[:size]) {
			t.Error("returned while the adapter has the buffer")
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	p, _ := g.told(PathOptions{}, 0)
	wantError(t, p.Move(m), ErrLost)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestPathFromAnotherAddress: a path goes out from the entry of the port's table that it is given, which is what the
// peer sees; one from another entry does not reach a peer that expects that.
func TestPathFromAnotherAddress(t *testing.T) {
	g := newRig(t, rigOptions{arena: 4096, remote: 4096, fake: true, nic: fakeverbs.Options{TimeoutScale: 1e-3}})
	own := g.rail.Rail()
	dev, err := g.nic.Library().OpenDevice(own.Device)
	if err != nil {
		t.Fatal(err)
	}
	here, err := dev.Port(own.Port)
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := g.rail.From([16]byte{}); !errors.Is(err, ErrUnreached) {
		t.Errorf("no address at all: %v", err)
	}
	for _, gid := range here.GIDs {
		if gid.Type != native.GIDRoCEv2 {
			continue
		}
		from, err := g.rail.From(gid.Raw) // a peer of the same kind
		if err != nil || from != (Source{Index: gid.Index, GID: gid.Raw}) && (from != Source{} || gid.Index != own.GIDIndex) {
			t.Errorf("entry %d is not where one begins, but %+v: %v", gid.Index, from, err)
		}
		from = Source{Index: gid.Index, GID: gid.Raw}
		p, _ := g.told(PathOptions{From: from}, 0)
		if got := p.Local().GID; got != gid.Raw {
			t.Errorf("entry %d: the path says that it is %x", gid.Index, got)
		}
		mustMove(t, p, g.write(100))
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		lie, err := g.rail.NewPath(PathOptions{From: Source{Index: 1 + 2 - gid.Index, GID: gid.Raw}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.peer.join(lie); err != nil {
			t.Fatal(err)
		}
		wantError(t, lie.Move(g.write(100)), ErrLost)
		if err := lie.Close(); err != nil {
			t.Error(err)
		}
	}
}
