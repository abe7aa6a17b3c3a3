package rdma

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
)

// period is a prime, so that no power of two of a displacement looks right.
const period = 65521

// pattern is endless contents that a seed names: random bytes, repeated, with the number of the repetition in front
// of each. It costs a copy, which an emulated machine needs for hundreds of megabytes.
type pattern struct{ base []byte }

func newPattern(seed uint64) *pattern {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	base := make([]byte, period)
	_, _ = rand.NewChaCha8(key).Read(base) // never returns an error
	return &pattern{base}
}

// each calls f with pieces of n bytes from off on, until it says false.
func (p *pattern) each(off, n int64, f func(at int64, piece []byte) bool) bool {
	for at := int64(0); at < n; {
		k, in := (off+at)/period, (off+at)%period
		binary.LittleEndian.PutUint64(p.base, uint64(k))
		piece := p.base[in:min(period, in+n-at)]
		if !f(at, piece) {
			return false
		}
		at += int64(len(piece))
	}
	return true
}

// fill makes mem the bytes from off on.
func (p *pattern) fill(mem []byte, off int64) {
	p.each(off, int64(len(mem)), func(at int64, piece []byte) bool {
		copy(mem[at:], piece)
		return true
	})
}

// is tells whether mem holds the bytes from off on.
func (p *pattern) is(mem []byte, off int64) bool {
	return p.each(off, int64(len(mem)), func(at int64, piece []byte) bool {
		return bytes.Equal(mem[at:at+int64(len(piece))], piece)
	})
}

// paint fills memory with one byte; painted tells whether it holds nothing else.
func paint(mem []byte, v byte) {
	if len(mem) > 0 {
		mem[0] = v
		for n := 1; n < len(mem); n *= 2 {
			copy(mem[n:], mem[:n])
		}
	}
}

func painted(mem []byte, v byte) bool {
	return len(mem) == 0 || (mem[0] == v && bytes.Equal(mem[1:], mem[:len(mem)-1]))
}
