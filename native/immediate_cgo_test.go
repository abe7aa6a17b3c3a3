//go:build cgo

package native_test

import (
	"testing"

	"github.com/penstock-store/penstock/native"
)

// TestWriteWithImmediate: the peer's receive ends with the immediate and the number of bytes, which are there then,
// also where the receive is posted only after the WRITE has been sent; the other end's completion says nothing of it.
func TestWriteWithImmediate(t *testing.T) {
	p := newPair(t, all)
	for i, size := range []int{0, 1, 4096, 70_001, memoryBytes} {
		fill(p.near.memory, byte(i+1))
		clear(p.far.memory)
		imm := 0x01020304 + uint32(i)
		if i%2 == 0 {
			p.far.change(native.QPSend, p.far.qp.PostReceive(uint64(i)))
		}
		w := p.work(77, native.OpWriteImm, 0, size)
		w.Imm = imm
		p.near.post(p.work(76, native.OpWrite, 0, size), w)
		p.near.want(76, native.StatusOK)
		if i%2 != 0 {
			p.far.change(native.QPSend, p.far.qp.PostReceive(uint64(i)))
		}
		got := p.far.want(uint64(i), native.StatusOK)
		if !got.Received || !got.HasImm || got.Imm != imm || int(got.Bytes) != size {
			t.Errorf("%d bytes: received %+v", size, got)
		}
		wantBytes(t, "far", p.far.memory[:size], p.near.memory[:size])
		if own := p.near.want(77, native.StatusOK); own.Received || own.HasImm || own.Imm != 0 {
			t.Errorf("%d bytes: the writer's completion is %+v", size, own)
		}
	}
}
