package verbs

import "sync"

// farEnd names a queue pair of an adapter.
type farEnd struct {
	gid [16]byte
	qpn uint32
}

// ends knows which queue pairs the paths of this node lead to. An adapter finds the queue pair of a packet by number
// and sender, and the sender is this node on every path: a client that named the queue pair of another user of its own
// machine could have that one's packets answered wrongly and the queue pair fail. What it says of its own cannot be
// checked, but a queue pair that has answered belongs to the path on which it did.
type ends struct {
	mu    sync.Mutex
	paths map[farEnd][]*path
	own   map[farEnd]*path // this node's queue pairs
}

func newEnds() *ends {
	return &ends{paths: make(map[farEnd][]*path), own: make(map[farEnd]*path)}
}

// claim notes that a path leads to a queue pair; false: it is this node's own, or another principal's.
func (e *ends) claim(p *path) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ours := e.own[p.far]; ours {
		return false
	}
	for _, other := range e.paths[p.far] {
		if other.good.Load() != 0 && other.owner() != p.owner() {
			return false
		}
	}
	e.paths[p.far] = append(e.paths[p.far], p)
	return true
}

// drop undoes claim and enter.
func (e *ends) drop(p *path) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.own[p.near] == p { // its number may be another's by now
		delete(e.own, p.near)
	}
	rest := e.paths[p.far]
	for i, other := range rest {
		if other == p {
			rest = append(rest[:i:i], rest[i+1:]...)
			break
		}
	}
	if e.paths[p.far] = rest; len(rest) == 0 {
		delete(e.paths, p.far)
	}
}

// enter notes this node's end of a path. Paths that lead to it, which may be that path itself, fail.
func (e *ends) enter(p *path, near farEnd) {
	e.mu.Lock()
	p.near = near
	e.own[near] = p
	liars := append([]*path(nil), e.paths[near]...)
	e.mu.Unlock()
	for _, l := range liars {
		l.fail(whyTaken)
	}
}

// answered says that a queue pair has answered on a path for the first time. Paths of others that lead to it fail.
func (e *ends) answered(p *path) {
	e.mu.Lock()
	var liars []*path
	for _, other := range e.paths[p.far] {
		if other.owner() != p.owner() {
			liars = append(liars, other)
		}
	}
	e.mu.Unlock()
	for _, l := range liars {
		l.fail(whyTaken)
	}
}
