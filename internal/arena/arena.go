package arena

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// BlockSize is the granule of verification in bytes: buffer sizes are multiples of it. It equals
// the block of docs/format.md that one CRC64NVME covers.
const BlockSize = 64 << 10

// DefaultWait bounds the wait for a free buffer. A transfer has 8 s in all (docs/wire.md), of
// which posting may use 6; a request that waited this long would rarely finish in time.
const DefaultWait = 2 * time.Second

// Options sizes an Arena.
type Options struct {
	Shares []ShareOption // at least one
	Wait   time.Duration // bounded wait for a buffer; 0 means DefaultWait
}

// ShareOption names a share and sizes it.
type ShareOption struct {
	Name        string
	Buffers     int
	BufferBytes int // a multiple of BlockSize and of the page size
}

// Arena is the whole of the registered memory.
type Arena struct {
	memory []byte
	shares map[string]*Share
}

// New maps the arena. The memory is anonymous and private, so it is never shared with a client,
// and is faulted in on first use.
func New(o Options) (*Arena, error) {
	page := os.Getpagesize()
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	total := 0
	for _, s := range o.Shares {
		if s.Buffers <= 0 {
			return nil, fmt.Errorf("arena: share %q has %d buffers", s.Name, s.Buffers)
		}
		if s.BufferBytes <= 0 || s.BufferBytes%BlockSize != 0 || s.BufferBytes%page != 0 {
			return nil, fmt.Errorf("arena: share %q: buffer size %d is not a multiple of %d and of the page size %d",
				s.Name, s.BufferBytes, BlockSize, page)
		}
		total += s.Buffers * s.BufferBytes
	}
	if total == 0 {
		return nil, fmt.Errorf("arena: no share")
	}
	memory, err := unix.Mmap(-1, 0, total, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("arena: map %d bytes: %w", total, err)
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // a wish: the kernel may have no huge pages
	a := &Arena{memory: memory, shares: make(map[string]*Share, len(o.Shares))}
	rest := memory
	for _, so := range o.Shares {
		s := &Share{name: so.Name, wait: o.Wait, bufferBytes: so.BufferBytes, free: newStack(so.Buffers)}
		for range so.Buffers {
			s.free.push(&slot{share: s, memory: rest[:so.BufferBytes:so.BufferBytes]})
			rest = rest[so.BufferBytes:]
		}
		a.shares[so.Name] = s
	}
	return a, nil
}

// Share returns the share of that name, or nil.
func (a *Arena) Share(name string) *Share { return a.shares[name] }

// Memory is the whole mapping, for registration with a device.
func (a *Arena) Memory() []byte { return a.memory }

// InUse is the number of buffers that are out, over all shares.
func (a *Arena) InUse() int {
	n := 0
	for _, s := range a.shares {
		n += s.InUse()
	}
	return n
}

// Close unmaps the arena. It refuses while buffers are out, since something may still write them.
func (a *Arena) Close() error {
	if n := a.InUse(); n != 0 {
		return fmt.Errorf("arena: close with %d buffers out", n)
	}
	return unix.Munmap(a.memory)
}

// Share is a bounded set of buffers for one kind of user.
type Share struct {
	name        string
	wait        time.Duration
	bufferBytes int
	free        *stack
	waits       atomic.Int64
	refusals    atomic.Int64
}

// slot is one buffer's memory, its home and, while reserved, the reservation it belongs to. Only the
// owner of the buffer touches reserved.
type slot struct {
	share    *Share
	memory   []byte
	reserved *Reservation
	out      atomic.Bool
}

// stack is the free buffers of a share. The one that came home last is handed out first: its memory
// is in the caches, and buffers that were never needed are never faulted in.
type stack struct {
	ready chan struct{} // one token per buffer in free
	mu    sync.Mutex
	free  []*slot // guarded by mu
}

func newStack(most int) *stack {
	return &stack{ready: make(chan struct{}, most), free: make([]*slot, 0, most)}
}

func (s *stack) push(p *slot) {
	s.mu.Lock()
	s.free = append(s.free, p)
	s.mu.Unlock()
	s.ready <- struct{}{}
}

// pop is called by whoever holds a token, so that there is a buffer.
func (s *stack) pop() *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return p
}

func (s *stack) tryPop() *slot {
	select {
	case <-s.ready:
		return s.pop()
	default:
		return nil
	}
}

// Name is the name given in Options.
func (s *Share) Name() string { return s.name }

// BufferBytes is the capacity of each buffer.
func (s *Share) BufferBytes() int { return s.bufferBytes }

// InUse is the number of buffers of this share that are out or reserved.
func (s *Share) InUse() int { return cap(s.free.ready) - len(s.free.ready) }

// Total is the number of buffers of this share.
func (s *Share) Total() int { return cap(s.free.ready) }

// Waits is how often a caller had to wait for a buffer.
func (s *Share) Waits() int64 { return s.waits.Load() }

// Refusals is how often a caller gave up with ErrBusy.
func (s *Share) Refusals() int64 { return s.refusals.Load() }

// Alloc takes a buffer, waiting at most the arena's limit. Its view covers the whole capacity and
// its content is undefined. Errors: ErrBusy, or ctx's error.
func (s *Share) Alloc(ctx context.Context) (Buffer, error) {
	p, err := s.take(ctx)
	if err != nil {
		return Buffer{}, err
	}
	return p.hand(), nil
}

func (s *Share) take(ctx context.Context) (*slot, error) {
	if p := s.free.tryPop(); p != nil {
		return p, nil
	}
	s.waits.Add(1)
	timer := time.NewTimer(s.wait)
	defer timer.Stop()
	select {
	case <-s.free.ready:
		return s.free.pop(), nil
	case <-timer.C:
		s.refusals.Add(1)
		return nil, fmt.Errorf("share %s: %w", s.name, ErrBusy)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *slot) hand() Buffer {
	p.out.Store(true)
	return Buffer{slot: p, view: p.memory}
}

// Reserve takes n buffers for one transfer, so that it cannot starve half way. The first is waited
// for up to the arena's limit; the others are taken as far as they are free at once, so a reservation
// has between 1 and n buffers and two transfers cannot block each other. Errors: ErrBusy, ctx's error.
func (s *Share) Reserve(ctx context.Context, n int) (*Reservation, error) {
	first, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	r := &Reservation{free: make(chan *slot, max(n, 1))}
	first.reserved = r
	r.free <- first
	for range n - 1 {
		p := s.free.tryPop()
		if p == nil {
			break
		}
		p.reserved = r
		r.free <- p
	}
	return r, nil
}

// Reservation is the buffers of one transfer. Buffers that are released return to it until Close,
// and to their share afterwards.
type Reservation struct {
	mu     sync.Mutex
	closed bool // guarded by mu
	free   chan *slot
}

// Alloc takes a buffer of the reservation and waits until one is back, without a limit but ctx's:
// only this transfer's own operations hold them.
func (r *Reservation) Alloc(ctx context.Context) (Buffer, error) {
	select {
	case p := <-r.free:
		return p.hand(), nil
	default:
	}
	select {
	case p := <-r.free:
		return p.hand(), nil
	case <-ctx.Done():
		return Buffer{}, context.Cause(ctx)
	}
}

// TryAlloc takes a buffer of the reservation if one is back, without waiting.
func (r *Reservation) TryAlloc() (Buffer, bool) {
	select {
	case p := <-r.free:
		return p.hand(), true
	default:
		return Buffer{}, false
	}
}

// Close gives the buffers back to the share; those still out follow when they are released. Alloc
// must not be called afterwards. Closing twice does nothing.
func (r *Reservation) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for {
		select {
		case p := <-r.free:
			p.goHome()
		default:
			return
		}
	}
}

func (r *Reservation) put(p *slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		p.goHome()
		return
	}
	r.free <- p
}

func (p *slot) goHome() {
	p.reserved = nil
	p.share.free.push(p)
}

// Buffer is a view of one arena buffer. It is a value: copies and sub-views share the ownership,
// so only one of them may be released. The zero Buffer holds nothing.
type Buffer struct {
	slot *slot
	view []byte
}

// Bytes is the memory of the view.
func (b Buffer) Bytes() []byte { return b.view }

// Len is the length of the view in bytes.
func (b Buffer) Len() int { return len(b.view) }

// Cap is the capacity of the whole buffer in bytes.
func (b Buffer) Cap() int { return len(b.slot.memory) }

// IsZero tells whether the Buffer holds nothing.
func (b Buffer) IsZero() bool { return b.slot == nil }

// Slice returns the view [lo, hi) of this view, as a Go slice expression would.
func (b Buffer) Slice(lo, hi int) Buffer { return Buffer{slot: b.slot, view: b.view[lo:hi]} }

// Whole returns the view of the whole buffer.
func (b Buffer) Whole() Buffer { return Buffer{slot: b.slot, view: b.slot.memory} }

// Release gives the buffer back. Releasing twice is a broken invariant (the second owner's bytes
// would be overwritten by a third), so it panics.
func (b Buffer) Release() {
	if b.slot == nil {
		return
	}
	if !b.slot.out.CompareAndSwap(true, false) {
		panic("arena: buffer released twice")
	}
	if r := b.slot.reserved; r != nil {
		r.put(b.slot)
		return
	}
	b.slot.share.free.push(b.slot)
}
