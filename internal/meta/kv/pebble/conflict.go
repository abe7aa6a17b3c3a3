package pebble

import (
	"bytes"
	"hash/maphash"
	"slices"
)

const (
	// slotCount is the size of the table of last writers, 512 KiB. Two keys in one slot make a wrong
	// conflict: with 64 writers of two keys between snapshot and commit of a transaction that reads
	// four, in less than one of a hundred tries.
	slotCount = 1 << 16

	// recentKeys and recentBytes bound the recent writes that scanned ranges are compared with. At
	// 15,000 keys a second the ring reaches back 4 s; an older transaction that scanned starts again.
	recentKeys  = 1 << 16
	recentBytes = 16 << 20

	// maxRanges bounds the scanned pieces that a transaction remembers apart; beyond it they become
	// one that covers all, which is right and only conflicts more often.
	maxRanges = 256

	// maxReads is when the list of slots read is freed of duplicates, which leaves half at most.
	maxReads = 2 * slotCount
)

// keyRange is [from, to); nil as `to` means no upper bound.
type keyRange struct {
	from, to []byte
}

func (r keyRange) holds(key []byte) bool {
	return bytes.Compare(key, r.from) >= 0 && (r.to == nil || bytes.Compare(key, r.to) < 0)
}

// readSet is what a transaction has read of the state of others.
type readSet struct {
	slots  []uint32
	ranges []keyRange
}

func (s *readSet) addSlot(slot uint32) {
	if len(s.slots) >= maxReads {
		slices.Sort(s.slots)
		s.slots = slices.Compact(s.slots)
	}
	s.slots = append(s.slots, slot)
}

func (s *readSet) addRange(r keyRange) {
	if len(s.ranges) < maxRanges {
		s.ranges = append(s.ranges, r)
		return
	}
	cover := r
	for _, q := range s.ranges {
		if bytes.Compare(q.from, cover.from) < 0 {
			cover.from = q.from
		}
		if cover.to != nil && (q.to == nil || bytes.Compare(q.to, cover.to) > 0) {
			cover.to = q.to
		}
	}
	s.ranges = append(s.ranges[:0], cover)
}

// recentWrite is a key and the sequence number of the transaction that wrote it.
type recentWrite struct {
	seq uint64
	key []byte
}

// tracker knows which keys were written since a sequence number. It is guarded by commits.mu.
type tracker struct {
	slots []uint64 // by slot of the key: sequence number of the last writer

	ring  []recentWrite // the last len(ring) writes; next is the oldest when full
	next  int
	used  int
	bytes int
	floor uint64 // writes up to this number may be missing from the ring
}

func newTracker() *tracker {
	return &tracker{slots: make([]uint64, slotCount), ring: make([]recentWrite, recentKeys)}
}

// slotOf hashes a key; the seed is of the engine, so that nobody can choose keys that collide.
func slotOf(seed maphash.Seed, key []byte) uint32 {
	return uint32(maphash.Bytes(seed, key) % slotCount)
}

// record notes the keys that the transaction seq has written.
func (t *tracker) record(seq uint64, slot uint32, key []byte) {
	t.slots[slot] = seq
	for t.used == len(t.ring) || (t.used > 0 && t.bytes+len(key) > recentBytes) {
		old := &t.ring[(t.next-t.used+len(t.ring))%len(t.ring)]
		t.floor = old.seq
		t.bytes -= len(old.key)
		*old = recentWrite{}
		t.used--
	}
	t.ring[t.next] = recentWrite{seq: seq, key: key}
	t.next = (t.next + 1) % len(t.ring)
	t.used++
	t.bytes += len(key)
}

// changed reports whether something of the read set may have been written after seq, and a slot
// that was.
func (t *tracker) changed(s *readSet, seq uint64, seed maphash.Seed) (uint32, bool) {
	for _, slot := range s.slots {
		if t.slots[slot] > seq {
			return slot, true
		}
	}
	if len(s.ranges) == 0 {
		return 0, false
	}
	if seq < t.floor {
		return slotOf(seed, s.ranges[0].from), true
	}
	for i := 1; i <= t.used; i++ {
		w := t.ring[(t.next-i+len(t.ring))%len(t.ring)]
		if w.seq <= seq {
			return 0, false
		}
		for _, r := range s.ranges {
			if r.holds(w.key) {
				return slotOf(seed, w.key), true
			}
		}
	}
	return 0, false
}
