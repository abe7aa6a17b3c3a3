package initiator

import (
	"fmt"
	"math"

	"github.com/penstock-store/penstock/native"
)

// op is a Move under way. Its path's lock guards it.
type op struct {
	Move
	pieces int    // work requests that are still to be posted, the proof among them
	seg    int    // where posting goes on: segment,
	off    int    // offset in it,
	remote uint64 // and the peer's address
	left   int    // work requests that were posted, or are about to be, and have not completed
	done   bool
	err    error
	wake   chan struct{} // capacity 1: something changed, look again
	next   *op           // in the path's queue, or among its spare ones
}

// opQueue is the Moves of a path that have something to post, in the order of their coming.
type opQueue struct{ first, last *op }

func (q *opQueue) push(o *op) {
	if q.last != nil {
		q.last.next = o
	} else {
		q.first = o
	}
	q.last = o
}

// remove takes o out; it is first, but where a path has failed.
func (q *opQueue) remove(o *op) {
	var prev *op
	for at := q.first; at != nil; prev, at = at, at.next {
		if at != o {
			continue
		}
		if prev != nil {
			prev.next = o.next
		} else {
			q.first = o.next
		}
		if q.last == o {
			q.last = prev
		}
		o.next = nil
		return
	}
}

// check counts the work requests of a Move. Errors: ErrLocal, when it names memory that is not registered, or cannot be
// meant.
func (r *Rail) check(m *Move) (pieces int, err error) {
	if m.Op != native.OpWrite && m.Op != native.OpRead {
		return 0, fmt.Errorf("%w: opcode %d", ErrLocal, m.Op)
	}
	bytes := uint64(0)
	for _, s := range m.Local {
		n := len(s)
		if n == 0 {
			continue
		}
		if !r.arena.has(address(s), uint64(n)) {
			return 0, fmt.Errorf("%w: segment of %d bytes is not registered", ErrLocal, n)
		}
		bytes += uint64(n)
		pieces += (n + r.piece - 1) / r.piece
	}
	if m.Imm != nil && m.Op != native.OpWrite {
		return 0, fmt.Errorf("%w: immediate of opcode %d", ErrLocal, m.Op)
	}
	if m.Imm != nil && bytes == 0 {
		pieces = 1
	}
	if bytes > 0 && m.Remote > math.MaxUint64-bytes {
		return 0, fmt.Errorf("%w: remote address and %d bytes overflow", ErrLocal, bytes)
	}
	return pieces, nil
}

// cut makes the next work request of o: at most a piece, and never across segments. The last one is the proof.
func (p *Path) cut(o *op, w *native.Work) {
	r := p.rail
	if o.pieces--; o.pieces == 0 {
		// Work requests under way at once have different bytes of the scratch, as long as the depth lets them.
		*w = native.Work{
			Local: address(p.scratch[p.tail%scratchBytes:]), Remote: o.Remote, Length: 1,
			LKey: r.scratch.lkey, RKey: o.RKey, Op: native.OpRead,
		}
		return
	}
	for o.seg < len(o.Local) && o.off == len(o.Local[o.seg]) {
		o.seg, o.off = o.seg+1, 0
	}
	var s Segment // of an immediate alone
	if o.seg < len(o.Local) {
		s = o.Local[o.seg]
	}
	n := min(len(s)-o.off, r.piece)
	*w = native.Work{
		Local: address(s[o.off:]), Remote: o.remote, Length: uint32(n), LKey: r.arena.lkey, RKey: o.RKey, Op: o.Op,
	}
	if o.Imm != nil && o.pieces == 1 { // the last of the bytes
		w.Op, w.Imm = native.OpWriteImm, *o.Imm
	}
	o.off += n
	o.remote += uint64(n)
}

// spare takes an op for a Move: a used one where there is one, so that nothing is allocated. Called with mu held.
func (p *Path) spare(m Move, pieces int) *op {
	o := p.spares
	if o == nil {
		o = &op{wake: make(chan struct{}, 1)}
	} else {
		p.spares = o.next
	}
	*o = op{Move: m, pieces: pieces + 1, remote: m.Remote, wake: o.wake}
	return o
}

// keep puts an op that nothing refers to any more among the spare ones. Called with mu held.
func (p *Path) keep(o *op) {
	o.Move = Move{}
	o.next = p.spares
	p.spares = o
}
