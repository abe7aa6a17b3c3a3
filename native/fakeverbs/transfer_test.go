package fakeverbs_test

import (
	"bytes"
	"testing"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestTransfers: the bytes asked for arrive, and no others change.
func TestTransfers(t *testing.T) {
	for _, o := range []fakeverbs.Options{{}, {Seed: 1, Poison: true}, {Seed: 2, Latency: 1000, Jitter: 3000}} {
		nic := fakeverbs.New(t, o)
		a, b := pair(t, nic)
		for _, n := range []int{0, 1, 1023, 1024, 1025, 4095, 65536} {
			fill(a.mem, n)
			fill(b.mem, n+100)
			want := append(bytes.Clone(a.mem[:n]), b.mem[n:]...)
			a.post(write(1, a, b, n))
			a.expect(a.wait(1), ok(1))
			if !bytes.Equal(b.mem, want) {
				t.Fatalf("WRITE of %d: memory differs", n)
			}
			fill(b.mem, n+200)
			want = append(bytes.Clone(b.mem[:n]), a.mem[n:]...)
			a.post(read(2, a, b, n))
			got := a.wait(1)
			a.expect(got, ok(2))
			if got[0].Bytes != uint32(n) {
				t.Errorf("READ of %d: completion of %d bytes", n, got[0].Bytes)
			}
			if !bytes.Equal(a.mem, want) {
				t.Fatalf("READ of %d: memory differs", n)
			}
		}
	}
}

// TestSignals: only signalled requests complete, and a completion frees those before it.
func TestSignals(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	a, b := pair(t, nic)
	for range 20 {
		var works []native.Work
		for i := range 64 {
			w := write(uint64(i), a, b, 100)
			w.Signal = i%16 == 15
			works = append(works, w)
		}
		a.post(works...)
		a.expect(a.wait(4), ok(15), ok(31), ok(47), ok(63))
	}
}
