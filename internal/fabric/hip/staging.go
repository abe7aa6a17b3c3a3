package hip

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// errFull says that no run of the length is free.
var errFull = errors.New("hip: no room in the staging memory")

// errShare says that the rest of the staging memory is for others.
var errShare = errors.New("hip: share of the staging memory is used up")

// shareOfStaging is the part of the staging memory that several runs of one principal may take: half, so that others
// find room. A single run may be as long as the memory is, since it bounds how large a PUT can be.
const shareOfStaging = 2

// run is a piece of the staging memory, in bytes from its begin.
type run struct{ at, length int }

// staging is the memory that clients write into: one mapping, handed out in contiguous runs of whole pages. A run that
// is not given back is never handed out again.
type staging struct {
	memory []byte
	size   int
	page   int

	mu   sync.Mutex
	free []run          // by place, none empty, no two of them adjacent
	out  int            // bytes
	held map[string]int // bytes that are out, by owner; none is 0
}

func newStaging(size int) (*staging, error) {
	s := &staging{page: os.Getpagesize(), held: make(map[string]int)}
	s.size = s.pages(size)
	var err error
	s.memory, err = unix.Mmap(-1, 0, s.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("hip: map %d bytes of staging memory: %w", s.size, err)
	}
	s.free = []run{{0, s.size}}
	return s, nil
}

// pages is n, up to whole pages.
func (s *staging) pages(n int) int { return (n + s.page - 1) / s.page * s.page }

// take hands out the first run that fits n bytes, n above 0. Errors: errFull, errShare.
func (s *staging) take(owner string, n int) (run, error) {
	n = s.pages(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if held := s.held[owner]; held > 0 && held+n > s.size/shareOfStaging {
		return run{}, fmt.Errorf("%w: %d bytes besides %d", errShare, n, held)
	}
	for i := range s.free {
		f := &s.free[i]
		if f.length < n {
			continue
		}
		r := run{f.at, n}
		f.at, f.length = f.at+n, f.length-n
		if f.length == 0 {
			s.free = slices.Delete(s.free, i, i+1)
		}
		s.out += n
		s.held[owner] += n
		return r, nil
	}
	return run{}, fmt.Errorf("%w for %d bytes", errFull, n)
}

// give takes a run of the owner back.
func (s *staging) give(owner string, r run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out -= r.length
	if s.held[owner] -= r.length; s.held[owner] == 0 {
		delete(s.held, owner)
	}
	i, _ := slices.BinarySearchFunc(s.free, r.at, func(f run, at int) int { return f.at - at })
	if i > 0 && s.free[i-1].at+s.free[i-1].length == r.at {
		i--
		s.free[i].length += r.length
	} else {
		s.free = slices.Insert(s.free, i, r)
	}
	if next := i + 1; next < len(s.free) && s.free[i].at+s.free[i].length == s.free[next].at {
		s.free[i].length += s.free[next].length
		s.free = slices.Delete(s.free, next, next+1)
	}
}

// bytes is the first n bytes of a run.
func (s *staging) bytes(r run, n int) []byte { return s.memory[r.at:][:n:n] }

// taken is how many bytes are out.
func (s *staging) taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out
}

// close unmaps the memory, of which nothing is out. Closing again does nothing.
func (s *staging) close() error {
	if s.memory == nil {
		return nil
	}
	if err := unix.Munmap(s.memory); err != nil {
		return fmt.Errorf("hip: unmap the staging memory: %w", err)
	}
	s.memory = nil
	return nil
}
