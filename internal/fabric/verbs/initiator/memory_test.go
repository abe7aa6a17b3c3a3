package initiator

import (
	"math"
	"testing"
)

// TestMemoryBounds: what begins or ends a byte outside the registered memory is not in it, nor what wraps.
func TestMemoryBounds(t *testing.T) {
	const from, size = 1 << 20, 4096
	l := local{memory: make([]byte, size), from: from}
	for _, c := range []struct {
		addr, n uint64
		in      bool
	}{
		{from, size, true}, {from, 1, true}, {from + size - 1, 1, true}, {from + 1, size - 1, true},
		{from - 1, 1, false}, {from - 1, size, false}, {from + 1, size, false}, {from, size + 1, false},
		{from + size, 1, false}, {from + size - 1, 2, false}, {0, 1, false},
		{math.MaxUint64, 2, false}, {from, math.MaxUint64, false}, {from + 1, math.MaxUint64 - from, false},
	} {
		if in := l.has(c.addr, c.n); in != c.in {
			t.Errorf("%d bytes at %#x: %v", c.n, c.addr, in)
		}
	}
}
