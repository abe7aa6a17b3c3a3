package fakeverbs_test

import (
	"fmt"
	"testing"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// BenchmarkMove is what the fake itself costs: it bounds how much a test may move.
func BenchmarkMove(b *testing.B) {
	for _, mtu := range []int{1024, 4096} {
		for op, name := range map[native.Opcode]string{native.OpWrite: "write", native.OpRead: "read"} {
			b.Run(fmt.Sprint(name, mtu), func(b *testing.B) {
				nic := fakeverbs.New(b, fakeverbs.Options{Devices: []fakeverbs.Device{{MTU: mtu}}})
				x := newEnd(b, nic, endOptions{bytes: 1 << 20, memAccess: native.LocalWrite})
				y := newEnd(b, nic, endOptions{bytes: 1 << 20, memAccess: all,
					qpAccess: native.RemoteRead | native.RemoteWrite})
				x.peer.MTU, y.peer.MTU = mtu, mtu
				connect(x, y)
				w := write(1, x, y, 1<<20)
				w.Op = op
				b.SetBytes(8 << 20)
				for b.Loop() {
					x.post(w, w, w, w, w, w, w, w)
					x.expect(x.wait(8), ok(1), ok(1), ok(1), ok(1), ok(1), ok(1), ok(1), ok(1))
				}
			})
		}
	}
}
