package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
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

// differs describes where mem is not the bytes from off on: each range, and what is there instead.
func (p *pattern) differs(mem []byte, off int64, painted byte) string {
	const most, block = 6, 4096
	var b strings.Builder
	from, ranges := int64(-1), 0
	say := func(to int64) {
		if from < 0 {
			return
		}
		if ranges++; ranges <= most {
			fmt.Fprintf(&b, "[%d, %d): %s; ", from, to, p.origin(mem[from:to], painted))
		}
		from = -1
	}
	for at := int64(0); at < int64(len(mem)); at += block {
		end := min(at+block, int64(len(mem)))
		switch same := p.is(mem[at:end], off+at); {
		case same:
			say(at)
		case from < 0:
			from = at
		}
	}
	say(int64(len(mem)))
	return fmt.Sprintf("%d ranges of blocks differ: %s", ranges, b.String())
}

// origin says what a piece of memory holds.
func (p *pattern) origin(mem []byte, v byte) string {
	if painted(mem, v) {
		return "as painted before"
	}
	at := bytes.Index(mem, p.base[8:64])
	if at < 8 {
		return fmt.Sprintf("unknown bytes %x", mem[:min(16, len(mem))])
	}
	return fmt.Sprintf("the pattern of %d at %d", int64(binary.LittleEndian.Uint64(mem[at-8:]))*period, at-8)
}
