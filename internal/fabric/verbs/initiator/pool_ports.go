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

// errUnwanted says that nobody waited for an address any more.
var errUnwanted = errors.New("nobody waits for it")

// ports are the addresses of peers' ports. Making one may ask the network and wait, so they are kept: until a move by
// one is lost, since it holds the neighbour of that day, or until this port's table has changed, of which it holds an
// entry.
type ports struct {
	pool *Pool

	mu     sync.Mutex
	known  map[native.PeerPort]*port
	old    map[*port]struct{} // those that are forgotten, until nobody uses them and they are closed
	closed bool
}

type port struct {
	at      native.PeerPort
	users   int           // guarded by ports.mu
	ready   chan struct{} // closed when address or err is set
	address *native.Address
	err     error
}

// take makes, for an owner, or finds the address of a port. Errors: ErrLost, when the peer cannot be found or it takes
// too long.
func (s *ports) take(ctx context.Context, at native.PeerPort, owner string) (*port, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	p := s.known[at]
	if p == nil {
		p = &port{at: at, ready: make(chan struct{}), users: 1} // the maker's
		if s.known == nil {
			s.known, s.old = map[native.PeerPort]*port{}, map[*port]struct{}{}
		}
		s.known[at] = p
		s.pool.resets.Go(func() { s.make(p, owner) })
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

// make makes an address that somebody waits for.
func (s *ports) make(p *port, owner string) {
	leave := func() {}
	if turn := s.pool.o.Turn; turn != nil {
		leave = turn(owner, s.pool.stop)
	}
	switch {
	case leave == nil:
		p.err = ErrClosed
	case !s.wanted(p):
		p.err = errUnwanted
		leave()
	default:
		s.resolve(p)
		leave()
	}
	if p.err != nil {
		s.forget(p) // before anybody hears of it, so that who asks again does not find it
	}
	close(p.ready)
	s.give(p)
}

// wanted tells whether somebody waits for a port besides its maker. One that nobody waits for is forgotten.
func (s *ports) wanted(p *port) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.users > 1 {
		return true
	}
	s.drop(p)
	return false
}

func (s *ports) resolve(p *port) {
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
}

// give gives a port back. Of those that nobody uses only so many are kept.
func (s *ports) give(p *port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.users--
	if p.users > 0 {
		return
	}
	if s.known[p.at] != p {
		s.drop(p)
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

// forget lets the next who asks for the port have a new address. Those who use the old one go on with it.
func (s *ports) forget(p *port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(p)
}

// forgetAll does so with all ports.
func (s *ports) forgetAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.known {
		s.drop(p)
	}
}

// drop forgets a port, and closes its address when nobody uses it. Called with mu held.
func (s *ports) drop(p *port) {
	if s.known[p.at] == p {
		delete(s.known, p.at)
	}
	if p.users > 0 || p.err == nil && p.address.Close() != nil {
		s.old[p] = struct{}{}
		return
	}
	delete(s.old, p)
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
	for _, p := range s.known {
		s.old[p] = struct{}{}
	}
	for p := range s.old {
		if p.err != nil {
			continue // there is none; those who waited for it are about to forget it
		}
		if err := s.pool.rail.ended("address", p.address.Close()); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(s.known, p.at)
		delete(s.old, p)
	}
	return errors.Join(errs...)
}
