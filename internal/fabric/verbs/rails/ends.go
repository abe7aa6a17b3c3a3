package rails

import "sync"

// End names a queue pair of an adapter.
type End struct {
	GID [16]byte
	QPN uint32
}

// ends knows which queue pairs the uses of this node lead to. An adapter finds the queue pair of a packet by number
// and sender, and the sender is this node on every one: a client that named the queue pair of another user of its own
// machine could have that one's packets answered wrongly and the queue pair fail. What it says of its own cannot be
// checked, but a queue pair that has answered belongs to the use on which it did.
type ends struct {
	mu   sync.Mutex
	uses map[End][]*Use
	own  map[End]*Use // this node's queue pairs
}

func newEnds() *ends {
	return &ends{uses: make(map[End][]*Use), own: make(map[End]*Use)}
}

// claim notes that a use leads to a queue pair; false: it is this node's own, or another principal's.
func (e *ends) claim(u *Use) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ours := e.own[u.Far]; ours {
		return false
	}
	for _, other := range e.uses[u.Far] {
		if other.good.Load() != 0 && other.Owner != u.Owner {
			return false
		}
	}
	e.uses[u.Far] = append(e.uses[u.Far], u)
	return true
}

// drop undoes claim and enter.
func (e *ends) drop(u *Use) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.own[u.near] == u { // its number may be another's by now
		delete(e.own, u.near)
	}
	rest := e.uses[u.Far]
	for i, other := range rest {
		if other == u {
			rest = append(rest[:i:i], rest[i+1:]...)
			break
		}
	}
	if e.uses[u.Far] = rest; len(rest) == 0 {
		delete(e.uses, u.Far)
	}
}

// enter notes this node's end of a use. Uses that lead to it, which may be that one itself, fail.
func (e *ends) enter(u *Use, near End) {
	e.mu.Lock()
	u.near = near
	e.own[near] = u
	liars := append([]*Use(nil), e.uses[near]...)
	e.mu.Unlock()
	for _, l := range liars {
		l.Fail()
	}
}

// answered says that a queue pair has answered on a use for the first time. Uses of others that lead to it fail.
func (e *ends) answered(u *Use) {
	e.mu.Lock()
	var liars []*Use
	for _, other := range e.uses[u.Far] {
		if other.Owner != u.Owner {
			liars = append(liars, other)
		}
	}
	e.mu.Unlock()
	for _, l := range liars {
		l.Fail()
	}
}
