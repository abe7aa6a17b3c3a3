package drive

import "sync"

// pinShards spreads look-ups over locks; a power of two well above the number of cores.
const pinShards = 64

// pinTable holds the records that are in use.
type pinTable [pinShards]pinShard

type pinShard struct {
	mu      sync.Mutex
	entries map[Key]*pinned
	claims  uint64 // counts claim, so that a look-up notices one that came between
}

// pinned is a record in use: it is not punched while refs > 0.
type pinned struct {
	entry
	seg  *segment
	refs int // guarded by pinShard.mu

	footerMu sync.Mutex // held while the footer is read, which only users of this record wait for
	blocks   []uint64
}

func (t *pinTable) shard(k Key) *pinShard { return &t[k.Chunk[0]&(pinShards-1)] }

// again pins a record that is pinned already.
func (s *pinShard) again(k Key) (p *pinned, claims uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p = s.entries[k]; p != nil {
		p.refs++
	}
	return p, s.claims
}

// add pins a record that was found in the index when claims was read; nil if one was claimed since.
func (s *pinShard) add(e entry, seg *segment, claims uint64) *pinned {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.entries[e.Key]; p != nil {
		p.refs++
		return p
	}
	if s.claims != claims {
		return nil
	}
	p := &pinned{entry: e, seg: seg, refs: 1}
	if s.entries == nil {
		s.entries = map[Key]*pinned{}
	}
	s.entries[e.Key] = p
	return p
}

func (s *pinShard) drop(p *pinned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.refs--; p.refs == 0 {
		delete(s.entries, p.Key)
	}
}

// has says whether a record of this key is pinned.
func (s *pinShard) has(k Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[k] != nil
}

// claim says whether the deleted record k may be punched: nobody pins it. From then on a look-up
// that found it in the index before its delete starts again.
func (s *pinShard) claim(k Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[k] != nil {
		return false
	}
	s.claims++
	return true
}
