//go:build cgo

package initiator

import (
	"fmt"
	"testing"
)

// TestMovesAllocateNothing: neither the caller nor the rail's poller, once a path has had a Move.
func TestMovesAllocateNothing(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 20, remote: 1 << 20, Options: Options{Piece: 4096}})
	p := g.path()
	for _, m := range []Move{g.write(1), g.read(1), g.write(1 << 20), g.read(1 << 20)} {
		mustMove(t, p, m)
		if n := testing.AllocsPerRun(50, func() { mustMove(t, p, m) }); n >= 1 {
			t.Errorf("opcode %d, %d bytes: %v allocations", m.Op, len(m.Local[0]), n)
		}
	}
}

// BenchmarkMove is a Move on one path, over the fake adapter: what the copies of memory leave is what this package
// and the calls into C cost.
func BenchmarkMove(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 8 << 20} {
		g := newRig(b, rigOptions{arena: 8 << 20, remote: 8 << 20})
		p := g.path()
		for name, m := range map[string]Move{"write": g.write(size), "read": g.read(size)} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					mustMove(b, p, m)
				}
			})
		}
	}
}
