package drive

import "sync"

// syncer shares one fdatasync among the writers of a file: whoever asks while one runs is served by
// the next, which starts after all their writes. After a failure it fails everybody, for ever,
// without another try: the kernel forgets what it could not write.
type syncer struct {
	sync func() error

	mu      sync.Mutex
	running bool
	next    *round
	err     error // the first failure
}

// round is one fdatasync to come and those who wait for it.
type round struct {
	lead chan struct{} // the token that makes one waiter run it
	done chan struct{}
	err  error
}

// wait returns when an fdatasync that began after the call has ended.
func (s *syncer) wait() error {
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return s.err
	}
	if s.next == nil {
		s.next = &round{lead: make(chan struct{}, 1), done: make(chan struct{})}
	}
	r := s.next
	if !s.running {
		s.running = true
		s.mu.Unlock()
		return s.run(r)
	}
	s.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-r.lead:
		return s.run(r)
	}
}

// run does round r, of which the caller is the leader, and passes the lead on.
func (s *syncer) run(r *round) error {
	s.mu.Lock()
	s.next = nil
	err := s.err
	s.mu.Unlock()
	if err == nil {
		err = s.sync()
	}
	s.mu.Lock()
	if err != nil && s.err == nil {
		s.err = err
	}
	r.err = err
	close(r.done)
	if s.next != nil {
		s.next.lead <- struct{}{}
	} else {
		s.running = false
	}
	s.mu.Unlock()
	return err
}
