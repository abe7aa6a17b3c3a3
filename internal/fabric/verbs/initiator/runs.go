package initiator

import "sync"

// runs are goroutines, or calls, whose end may be waited for while others begin, which a WaitGroup does not allow.
type runs struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n comes to 0; nil: nobody waits
}

// begin counts one in, whose end is done.
func (r *runs) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
}

// Go runs f.
func (r *runs) Go(f func()) {
	r.begin()
	go func() {
		defer r.done()
		f()
	}()
}

func (r *runs) done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n--; r.n == 0 && r.none != nil {
		close(r.none)
		r.none = nil
	}
}

// ended is closed when none runs, or none has run once since.
func (r *runs) ended() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.none != nil {
		return r.none
	}
	none := make(chan struct{})
	if r.n == 0 {
		close(none)
	} else {
		r.none = none
	}
	return none
}
