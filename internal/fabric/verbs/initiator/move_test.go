//go:build cgo

package initiator

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestMovesAreTheBytes moves sizes around pieces and packets, unaligned and over many segments, in both directions.
// The oracle is the memory itself: what should be there is, and nothing beside it has changed.
func TestMovesAreTheBytes(t *testing.T) {
	g := newRig(t, rigOptions{arena: 10 << 20, remote: 10 << 20, Options: Options{Piece: 1 << 20, Depth: 8}})
	p := g.path()
	for _, size := range []int{1, 4095, 65537, 1 << 20, 4<<20 + 1} {
		for _, segments := range []int{1, 2, 7, 100} {
			if segments > size {
				continue
			}
			for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
				t.Run(fmt.Sprintf("%d/%d/%d", op, size, segments), func(t *testing.T) {
					const from, at = 4099, 3
					fillRandom(g.arena)
					fillRandom(g.peer.memory)
					before, there := bytes.Clone(g.arena), bytes.Clone(g.peer.memory)
					m := Move{Op: op, Remote: g.peer.at(at), RKey: g.peer.mr.RKey(), Local: cut(g.arena[from:from+size], segments)}
					mustMove(t, p, m)
					changed, was, want, place := g.peer.memory, there, before[from:from+size], at
					if op == native.OpRead {
						changed, was, want, place = g.arena, before, there[at:at+size], from
					}
					if !bytes.Equal(changed[place:place+size], want) {
						t.Error("bytes differ")
					}
					if err := sameOutside(changed, was, place, place+size); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
	s := g.rail.Stats()
	if s.Unexpected+s.Denied+s.Local+s.Lost != 0 || s.WorkNow != 0 {
		t.Errorf("after moves that went well: %+v", s)
	}
	if s.Writes == 0 || s.Writes != s.Reads {
		t.Errorf("counted %d bytes written and %d read; as many were moved both ways", s.Writes, s.Reads)
	}
}

// cut splits b into n segments that are not empty, with empty ones between them, of lengths that differ.
func cut(b []byte, n int) []Segment {
	out := []Segment{nil}
	for ; n > 1; n-- {
		k := max(1, len(b)/n-n%3)
		out = append(out, b[:k], b[k:k])
		b = b[k:]
	}
	return append(out, b)
}

// TestEmptyMovesDoNothing: not even on a path that cannot move anything.
func TestEmptyMovesDoNothing(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16})
	p := g.path()
	empty := []Move{{Op: native.OpWrite}, {Op: native.OpRead, Local: []Segment{nil, g.arena[:0]}, RKey: 99, Remote: 1}}
	for _, m := range empty {
		mustMove(t, p, m)
	}
	p.Fail()
	for _, m := range empty {
		mustMove(t, p, m)
	}
	if s := g.rail.Stats(); s.Works != 0 {
		t.Errorf("%d work requests were posted", s.Works)
	}
}

// TestMovesThatCannotBeMeant are refused before anything is posted, and cost no path.
func TestMovesThatCannotBeMeant(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16})
	p := g.path()
	other := mapped(t, 1<<16)
	good := Move{Op: native.OpWrite, Remote: g.peer.at(0), RKey: g.peer.mr.RKey(), Local: []Segment{g.arena[:100]}}
	for name, change := range map[string]func(*Move){
		"opcode":    func(m *Move) { m.Op = 7 },
		"not ours":  func(m *Move) { m.Local = []Segment{g.arena[:1], other[:1]} },
		"overflow":  func(m *Move) { m.Remote = ^uint64(0) - 98 },
		"go's heap": func(m *Move) { m.Local = []Segment{make([]byte, 8)} },
		"past it":   func(m *Move) { m.Local = []Segment{beyond(g.arena)} },
		"no opcode": func(m *Move) { m.Op = 0 },
		"half ours": func(m *Move) { m.Local = []Segment{beyond(g.arena[1:])} },
		"scratch":   func(m *Move) { m.Local = []Segment{p.scratch[:1]} },
	} {
		t.Run(name, func(t *testing.T) {
			m := good
			change(&m)
			wantError(t, p.Move(m), ErrLocal)
		})
	}
	mustMove(t, p, good)
	for end := time.Now().Add(10 * time.Second); g.rail.Stats().Works < 2 && time.Now().Before(end); {
		runtime.Gosched() // the poller counts after it has woken the Move
	}
	if s := g.rail.Stats(); s.Works != 2 {
		t.Errorf("%d work requests were done, want 1 and its proof", s.Works)
	}
	unconnected, err := g.rail.NewPath(PathOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, unconnected.Move(good), ErrLocal)
	if err := unconnected.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, unconnected.Move(good), ErrLost)
}

// TestAPathConnectsOnce, to a peer whose data can be meant.
func TestAPathConnectsOnce(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16})
	p := g.path()
	own, _, err := g.peer.answer(p.Local())
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, p.Connect(own), ErrLocal)
	mustMove(t, p, Move{Op: native.OpWrite, Remote: g.peer.at(0), RKey: g.peer.mr.RKey(), Local: []Segment{g.arena[:9]}})
	for name, change := range map[string]func(*Endpoint){
		"no MTU":   func(e *Endpoint) { e.MTU = 0 },
		"no reads": func(e *Endpoint) { e.Reads = 0 },
		"number":   func(e *Endpoint) { e.QPN = 1 << 24 },
		"psn":      func(e *Endpoint) { e.PSN = 1 << 24 },
	} {
		t.Run(name, func(t *testing.T) {
			q, err := g.rail.NewPath(PathOptions{})
			if err != nil {
				t.Fatal(err)
			}
			own, _, err := g.peer.answer(q.Local())
			if err != nil {
				t.Fatal(err)
			}
			change(&own)
			wantError(t, q.Connect(own), ErrLocal)
			ended(t, "a path that did not connect", q.Settled())
			wantError(t, q.Connect(own), ErrLost)
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPathsAreBounded, and each end gives back its place.
func TestPathsAreBounded(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16, Options: Options{Paths: 3}})
	for range 3 {
		var all []*Path
		for range 3 {
			p, err := g.rail.NewPath(PathOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
		if _, err := g.rail.NewPath(PathOptions{}); err == nil || g.rail.Stats().Paths != 3 {
			t.Fatalf("a fourth path: %v, %d now", err, g.rail.Stats().Paths)
		} else {
			wantIs(t, err, ErrLimit)
		}
		for _, p := range all {
			for range 2 { // closing again does nothing
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if n := g.rail.Stats().Paths; n != 0 {
		t.Errorf("%d paths at the end", n)
	}
}

// TestProbe finds a rail that works.
func TestProbe(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16})
	if err := g.rail.Probe(wait); err != nil {
		t.Fatal(err)
	}
	if err := g.rail.Close(); err != nil {
		t.Fatal(err)
	}
	wantIs(t, g.rail.Probe(wait), ErrClosed)
}

// TestRefreshAsksThePort.
func TestRefreshAsksThePort(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16})
	now, err := g.rail.Refresh()
	if err != nil || !now.Up || now.GID != g.rail.Rail().GID {
		t.Fatalf("%+v, %v", now, err)
	}
}

// TestRF_24_LesserMTU: ports with different MTUs move bytes by the lesser of both. Oracle: the adapters' settings.
func TestRF_24_LesserMTU(t *testing.T) {
	for _, mtu := range [][2]int{{4096, 1024}, {1024, 4096}, {256, 2048}} {
		g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16, fake: true,
			nic: fakeverbs.Options{Devices: []fakeverbs.Device{{MTU: mtu[0]}, {MTU: mtu[1]}}}})
		p := g.path()
		if got := p.Local().MTU; got != min(mtu[0], mtu[1]) {
			t.Errorf("ports of %v: %d", mtu, got)
		}
		m := Move{Op: native.OpWrite, Remote: g.peer.at(0), RKey: g.peer.mr.RKey(), Local: []Segment{g.arena[:50_000]}}
		mustMove(t, p, m)
		m.Op = native.OpRead
		mustMove(t, p, m)
	}
}
