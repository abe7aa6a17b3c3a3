package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-store/penstock/native"
)

// maxPorts bounds the addresses that are kept for peers without a move: each is memory of the kernel.
const maxPorts = 4096

// ports are the addresses of peers' ports. Making one may ask the network and wait, so they are kept.
type ports struct {
	pool *Pool

	mu     sync.Mutex
	known  map[native.PeerPort]*port
	closed bool
}

type port struct {
	at      native.PeerPort
	users   int           // guarded by ports.mu
	ready   chan struct{} // closed when address or err is set
	address *native.Address
	err     error
}

// take makes or finds the address of a port. Errors: ErrLost, when the peer cannot be found or it takes too long.
func (s *ports) take(ctx context.Context, at native.PeerPort) (*port, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	p := s.known[at]
	if p == nil {
		p = &port{at: at, ready: make(chan struct{}), users: 1} // the maker's
		if s.known == nil {
			s.known = map[native.PeerPort]*port{}
		}
		s.known[at] = p
		s.pool.resets.Go(func() { s.make(p) })
	}
	p.users++
	s.mu.Unlock()
	select {
	case <-p.ready:
	case <-ctx.Done():
		s.give(p)
		return nil, fmt.Errorf("%w: %s: address of a peer: %w", ErrLost, s.pool.rail.name, context.Cause(ctx))
	}
	if p.err != nil {
		s.give(p)
		return nil, fmt.Errorf("%w: %s: address of a peer: %w", ErrLost, s.pool.rail.name, p.err)
	}
	return p, nil
}

func (s *ports) make(p *port) {
	r := s.pool.rail
	now := r.Rail()
	path := native.Path{Port: now.Port, GIDIndex: now.GIDIndex, HopLimit: r.opts.HopLimit,
		TrafficClass: r.opts.TrafficClass}
	if p.at.HasGID { // from an address of the peer's kind
		var from Source
		if from, p.err = r.From(p.at.GID); from.GID != [16]byte{} {
			path.GIDIndex = from.Index
		}
	}
	if p.err == nil {
		p.address, p.err = r.pd.NewAddress(path, p.at)
	}
	close(p.ready)
	s.give(p)
}

// give gives a port back. One that could not be made is forgotten; of those that nobody uses only so many are kept.
func (s *ports) give(p *port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.users--
	if p.users > 0 {
		return
	}
	if p.err != nil {
		delete(s.known, p.at)
		return
	}
	for at, old := range s.known {
		if len(s.known) <= maxPorts {
			return
		}
		if old.users == 0 && old.address.Close() == nil {
			delete(s.known, at)
		}
	}
}

// shut lets no address be made or used any more; those that are being made are among the pool's resets.
func (s *ports) shut() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
}

// close closes the addresses. None is being made, and nothing uses them any more.
func (s *ports) close() error {
	s.shut()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for at, p := range s.known {
		if p.err != nil {
			continue // there is none; those who waited for it are about to forget it
		}
		if err := s.pool.rail.ended("address", p.address.Close()); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(s.known, at)
	}
	return errors.Join(errs...)
}
