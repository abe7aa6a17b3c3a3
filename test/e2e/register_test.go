package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// kind of an operation on one key.
type kind uint8

const (
	opWrite   kind = iota // writes value
	opRemove              // afterwards the key is absent
	opCreate              // writes value if the key is absent
	opReplace             // writes value if the key holds expect
	opRead                // saw value
)

// outcome of an operation.
type outcome uint8

const (
	done    outcome = iota // answered with success
	refused                // a condition did not hold: nothing was written
	missing                // a replace found no key: nothing was written
	unknown                // no answer: it took effect before end, or never
)

// operation on one key. Values are unique per write; 0 is absent. Times are of one monotonic clock.
type operation struct {
	kind          kind
	outcome       outcome
	value, expect uint64
	begin, end    int64
}

// apply is what the operation does to a key that holds state, if its answer is right there.
func (o operation) apply(state uint64) (next uint64, ok bool) {
	written := o.outcome == done || o.outcome == unknown
	switch o.kind {
	case opWrite:
		return o.value, true
	case opRemove:
		return 0, true
	case opRead:
		return state, state == o.value
	case opCreate:
		if written {
			return o.value, state == 0
		}
		return state, state != 0
	}
	switch {
	case written:
		return o.value, state == o.expect && state != 0
	case o.outcome == missing:
		return state, state == 0
	}
	return state, state != 0 && state != o.expect
}

// search looks for an order of the operations in which each takes effect at one moment between its
// begin and its end and every answer is right (Wing and Gong's search, remembering the situations
// that lead nowhere).
type search struct {
	ops  []operation // by begin
	used []bool
	seen map[string]bool
}

// explain returns nil when some order explains all answers.
func explain(initial uint64, ops []operation) error {
	s := search{ops: slices.Clone(ops), used: make([]bool, len(ops)), seen: map[string]bool{}}
	slices.SortStableFunc(s.ops, func(a, b operation) int { return cmp.Compare(a.begin, b.begin) })
	if s.from(initial, 0) {
		return nil
	}
	var b strings.Builder
	for _, o := range s.ops {
		fmt.Fprintf(&b, "\n  %+v", o)
	}
	return fmt.Errorf("no order of these operations on a key that held %d explains the answers:%s", initial, b.String())
}

// from continues with the key holding state and the clock at now.
func (s *search) from(state uint64, now int64) bool {
	limit, left := int64(1<<63-1), false
	for i, o := range s.ops {
		if !s.used[i] && o.outcome != unknown {
			limit, left = min(limit, o.end), true
		}
	}
	if !left {
		return true
	}
	key := s.situation(state)
	if limit < now || s.seen[key] {
		return false
	}
	s.seen[key] = true
	for i, o := range s.ops {
		if o.begin > limit {
			break // something that is still due ended before this began
		}
		if s.used[i] || o.end < now {
			continue
		}
		next, ok := o.apply(state)
		if !ok {
			continue
		}
		s.used[i] = true
		if s.from(next, max(now, o.begin)) {
			return true
		}
		s.used[i] = false
	}
	return false
}

// situation is what the rest of the search depends on: the clock follows from what was used.
func (s *search) situation(state uint64) string {
	b := make([]byte, 0, len(s.used)/8+16)
	b = fmt.Appendf(b, "%d:", state)
	for i := 0; i < len(s.used); i += 8 {
		var bits byte
		for j, u := range s.used[i:min(i+8, len(s.used))] {
			if u {
				bits |= 1 << j
			}
		}
		b = append(b, bits)
	}
	return string(b)
}

// TestExplain shows that the checker accepts what is right and finds what is not.
func TestExplain(t *testing.T) {
	write := func(v uint64, begin, end int64) operation { return operation{opWrite, done, v, 0, begin, end} }
	read := func(v uint64, begin, end int64) operation { return operation{opRead, done, v, 0, begin, end} }
	for _, c := range []struct {
		name string
		ops  []operation
		ok   bool
	}{
		{"nothing", nil, true},
		{"initial", []operation{read(9, 0, 1)}, true},
		{"other initial", []operation{read(1, 0, 1)}, false},
		{"read after write", []operation{write(1, 0, 1), read(1, 2, 3)}, true},
		{"stale read", []operation{write(1, 0, 1), read(9, 2, 3)}, false},
		{"concurrent read of either", []operation{write(1, 0, 5), read(9, 1, 2), read(1, 3, 4)}, true},
		{"back and forth", []operation{write(1, 0, 9), read(1, 1, 2), read(9, 3, 4)}, false},
		{"two writes, both orders seen", []operation{write(1, 0, 9), write(2, 0, 9), read(1, 1, 9), read(2, 1, 9)}, true},
		{"lost write", []operation{write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)}, false},
		{"from the future", []operation{read(1, 0, 1), write(1, 2, 3)}, false},
		{"removed", []operation{{opRemove, done, 0, 0, 0, 1}, read(0, 2, 3)}, true},
		{"come back", []operation{{opRemove, done, 0, 0, 0, 1}, read(9, 2, 3)}, false},
		{"create over something", []operation{{opCreate, done, 1, 0, 0, 1}}, false},
		{"create refused", []operation{{opCreate, refused, 1, 0, 0, 1}, read(9, 2, 3)}, true},
		{"two creates win", []operation{
			{opRemove, done, 0, 0, 0, 1}, {opCreate, done, 1, 0, 2, 9}, {opCreate, done, 2, 0, 2, 9},
		}, false},
		{"create refused on nothing", []operation{{opRemove, done, 0, 0, 0, 1}, {opCreate, refused, 1, 0, 2, 3}}, false},
		{"replace", []operation{{opReplace, done, 1, 9, 0, 1}, read(1, 2, 3)}, true},
		{"lost update", []operation{{opReplace, done, 1, 9, 0, 5}, {opReplace, done, 2, 9, 0, 5}}, false},
		{"replace refused", []operation{{opReplace, refused, 1, 9, 0, 1}}, false},
		{"replace missing", []operation{{opReplace, missing, 1, 9, 0, 1}}, false},
		{"no answer, done", []operation{{opWrite, unknown, 1, 0, 0, 5}, read(1, 6, 7)}, true},
		{"no answer, not done", []operation{{opWrite, unknown, 1, 0, 0, 5}, read(9, 6, 7)}, true},
		{"no answer, done too late", []operation{
			{opWrite, unknown, 1, 0, 0, 5}, read(9, 6, 7), read(1, 8, 9),
		}, false},
	} {
		if err := explain(9, c.ops); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
