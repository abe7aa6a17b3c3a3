//go:build cgo

package initiator

import (
	"bytes"
	"testing"

	"github.com/penstock-store/penstock/native"
)

// TestProofStaysInTheWindow: nothing but the bytes of the move is asked of the peer's memory, the proof included. The
// peer's key opens those alone; its adapter is the oracle, and refuses whatever lies before or behind them.
func TestProofStaysInTheWindow(t *testing.T) {
	g := newPoolRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16}, PoolOptions{Lanes: 1})
	path := g.path()
	for _, n := range []int{1, 2, 100, 4096, 20_000} {
		for _, at := range []int{0, 777, len(g.peer.memory) - n} {
			mr, err := g.peer.pd.Register(g.peer.memory[at:at+n], native.LocalWrite|native.RemoteWrite|native.RemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			m := Move{Op: native.OpWrite, Remote: g.peer.at(at), RKey: mr.RKey(), Local: cut(g.arena[:n], 1)}
			for by, move := range map[string]func() error{
				"path": func() error { return path.Move(m) },
				"pool": func() error {
					d := g.dc(m)
					d.Window = Window{Addr: m.Remote, Size: uint64(len(g.arena))} // wider than the key
					return g.pool.Move(t.Context(), d)
				},
			} {
				for _, m.Op = range []native.Opcode{native.OpWrite, native.OpRead} {
					fillRandom(g.arena[:n])
					if err := move(); err != nil {
						t.Fatalf("%s, opcode %d: %d bytes at %d: %v", by, m.Op, n, at, err)
					}
					if !bytes.Equal(g.arena[:n], g.peer.memory[at:at+n]) {
						t.Errorf("%s, opcode %d: %d bytes at %d differ", by, m.Op, n, at)
					}
				}
			}
			if err := mr.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
