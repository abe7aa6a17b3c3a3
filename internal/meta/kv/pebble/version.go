package pebble

import (
	"sync"
	"sync/atomic"

	pdb "github.com/cockroachdb/pebble/v2"
)

// version is a durable state that readers share.
type version struct {
	snap *pdb.Snapshot
	refs atomic.Int64 // 1 of the owner while current, and 1 of each Snap
}

// versions holds the current version and closes the others when nobody reads them any more.
type versions struct {
	current atomic.Pointer[version] // nil after close

	mu   sync.Mutex
	live map[*version]struct{}
}

// publish makes v current.
func (s *versions) publish(v *version) {
	v.refs.Store(1)
	s.mu.Lock()
	if s.live == nil {
		s.live = make(map[*version]struct{})
	}
	s.live[v] = struct{}{}
	s.mu.Unlock()
	if old := s.current.Swap(v); old != nil {
		s.release(old)
	}
}

// acquire returns the current version for reading, or nil after close.
func (s *versions) acquire() *version {
	for {
		v := s.current.Load()
		if v == nil {
			return nil
		}
		// A count of 0 says that v has just been replaced: load again.
		if n := v.refs.Load(); n > 0 && v.refs.CompareAndSwap(n, n+1) {
			return v
		}
	}
}

func (s *versions) release(v *version) {
	if v.refs.Add(-1) > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.live[v]; ok {
		delete(s.live, v)
		_ = v.snap.Close() // only unregisters it
	}
}

// close ends all versions, read or not. No read may be under way.
func (s *versions) close() {
	s.current.Store(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	for v := range s.live {
		_ = v.snap.Close() // only unregisters it
	}
	clear(s.live)
}
