package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/token"
)

// Region is memory that objects are read into and stored from. It is announced to the node at first
// use and again on every new session.
type Region struct {
	memory *target.Memory
	own    bool // allocated by Alloc: unmapped by Close

	mu        sync.Mutex
	closed    bool
	abandoned bool
	calls     int           // windows in use
	idle      chan struct{} // closed when calls is 0 after closing began
	announced map[*session]*announcement
}

// announcement is a region on one session. ready is closed when the rest is final.
type announcement struct {
	ready   chan struct{}
	at      announced
	err     error     // the node refused it
	retryAt time.Time // until then a refusal stands: not every request pays for another
}

// stale tells whether a refused announcement may be tried again.
func (a *announcement) stale(now time.Time) bool {
	return a.final() && a.err != nil && !now.Before(a.retryAt)
}

func (a *announcement) final() bool {
	select {
	case <-a.ready:
		return true
	default:
		return false
	}
}

// Alloc allocates n bytes as a sealed memfd, all of it populated, so that a node on this host can
// map it. The memory is zero. The caller closes the Region. A multiple of 2 MiB takes huge pages of the
// machine's pool (vm.nr_hugepages) when enough are free.
func (c *Client) Alloc(n int64) (*Region, error) {
	if n <= 0 || n > MaxRegionBytes {
		return nil, fmt.Errorf("%w: region of %d bytes", ErrWindow, n)
	}
	m, err := target.NewMemory(int(n))
	if err != nil {
		return nil, fmt.Errorf("client: allocate region of %d bytes: %w", n, err)
	}
	return c.newRegion(m, true)
}

// MaxRegionBytes bounds a region: more than any machine's memory is a mistake.
const MaxRegionBytes = 1 << 46

// Register makes a Region of the caller's memory, which must be writable. rc, dc, tcp and HTTP reach any such
// memory. A node on this host reaches it (shm) through the kernel, if it runs as the same user, without
// CAP_SYS_PTRACE, and the kernel lets it trace this process (docs/semantics.md); memory of Alloc is
// faster there.
//
// mem must stay mapped and in place until Close has returned. When the region is Abandoned, a node may
// still write into it: memory of Go's heap is then never collected, and other memory must never be unmapped
// or used again by this process.
func (c *Client) Register(mem []byte) (*Region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: empty region", ErrWindow)
	}
	return c.newRegion(target.WrapMemory(mem), false)
}

func (c *Client) newRegion(m *target.Memory, own bool) (*Region, error) {
	r := &Region{memory: m, own: own, announced: map[*session]*announcement{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		if own {
			return nil, errors.Join(ErrClosed, m.Free())
		}
		return nil, ErrClosed
	}
	return r, nil
}

// Bytes is the memory. It is invalid after Close. While a call has a window of it, that window's
// content is undefined (GET) or must not change (PUT).
func (r *Region) Bytes() []byte { return r.memory.Bytes() }

// Window returns n bytes of the region from offset off.
func (r *Region) Window(off, n int64) Window { return Window{Region: r, Offset: off, Bytes: n} }

// All returns the whole region as a window.
func (r *Region) All() Window { return r.Window(0, int64(len(r.Bytes()))) }

// Abandoned tells whether a fence of this region was not acknowledged: its memory may still change
// and every further call with it fails.
func (r *Region) Abandoned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.abandoned || r.memory.Abandoned()
}

// Close waits for the calls that use the region, takes it back from the node and unmaps it. An
// abandoned region's memfd is let go, never used again.
func (r *Region) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.idle = make(chan struct{})
	if r.calls == 0 {
		close(r.idle)
	}
	r.mu.Unlock()
	<-r.idle

	ctx, cancel := context.WithTimeout(context.Background(), fenceTimeout)
	defer cancel()
	r.mu.Lock()
	list := r.announced
	r.announced = nil
	r.mu.Unlock()
	for s, a := range list {
		<-a.ready
		if !s.over() && (a.err != nil || a.at.Forget(ctx) == nil) {
			continue // refused: the session never had it
		}
		// It waits until nothing can touch the memory. Without an ack it is abandoned, by the conn or, where a driver
		// does not return, here: an adapter may still reach it.
		if s.fence() != nil && byAdapter(s.name) {
			r.abandon()
		}
		select {
		case <-s.conn.Done(): // an adapter may still be busy with other memory of the session
		case <-ctx.Done():
		}
	}
	if !r.own {
		return nil
	}
	if err := r.memory.Free(); err != nil && !r.Abandoned() {
		return fmt.Errorf("client: free region: %w", err)
	}
	return nil
}

// acquire keeps the region open for one call.
func (r *Region) acquire() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return fmt.Errorf("%w: region", ErrClosed)
	case r.abandoned || r.memory.Abandoned():
		return ErrRegionAbandoned
	}
	r.calls++
	return nil
}

func (r *Region) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls--
	if r.calls == 0 && r.idle != nil {
		close(r.idle)
	}
}

func (r *Region) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = true
}

// pinBytesPerMilli is how fast, at the least, memory is pinned or mapped: 1 GiB/s, page by page.
const pinBytesPerMilli = 1 << 30 / 1000

// make announces the memory. It goes on without the caller who began it: others wait for it too, and an
// announcement that is broken off costs the session, with all that moves on it.
func (a *announcement) make(s *session, m *target.Memory) {
	defer close(a.ready)
	limit := sessionTimeout + time.Duration(int64(len(m.Bytes()))/pinBytesPerMilli)*time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	a.at, a.err = s.conn.Announce(ctx, m)
	if a.err != nil {
		a.retryAt = time.Now().Add(reopenDelay)
		if ctx.Err() != nil {
			_ = s.fence() // the node may have mapped it all the same
		}
	}
}

// on returns the region as announced on the session, announcing it at the first call. Concurrent
// callers share one announcement and wait for it no longer than their contexts.
func (r *Region) on(ctx context.Context, s *session) (announced, error) {
	r.mu.Lock()
	a := r.announced[s]
	if a == nil || a.stale(time.Now()) {
		for old := range r.announced { // forget sessions that have ended
			if old.over() {
				delete(r.announced, old)
			}
		}
		a = &announcement{ready: make(chan struct{})}
		r.announced[s] = a
		r.calls++ // Close waits for it
		go func() {
			defer r.release()
			a.make(s, r.memory)
		}()
	}
	r.mu.Unlock()
	select {
	case <-a.ready:
		return a.at, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// retire makes later calls announce the region anew on the session.
func (r *Region) retire(s *session, at announced) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.announced[s]; a != nil && a.final() && a.at == at {
		delete(r.announced, s)
	}
}

// Window is a span of a Region.
type Window struct {
	Region *Region
	Offset int64
	Bytes  int64 // at most MaxWindowBytes for one request; longer ones are cut into parts
}

// MaxWindowBytes is the longest window of one request: its length has 32 bits in a token.
const MaxWindowBytes = token.MaxWindow

// Hold checks the bounds and keeps the region open until release is called, which Region.Close waits
// for. Errors: ErrWindow, ErrClosed, ErrRegionAbandoned.
func (w Window) Hold() (release func(), err error) {
	if w.Region == nil {
		return nil, fmt.Errorf("%w: no region", ErrWindow)
	}
	if err := w.Region.acquire(); err != nil {
		return nil, err
	}
	size := int64(len(w.Region.Bytes()))
	if w.Offset < 0 || w.Bytes <= 0 || w.Offset > size || w.Bytes > size-w.Offset {
		w.Region.release()
		return nil, fmt.Errorf("%w: %d bytes at %d of %d", ErrWindow, w.Bytes, w.Offset, size)
	}
	return w.Region.release, nil
}

// section is the part of the window from off on.
func (w Window) section(off, n int64) Window {
	return Window{Region: w.Region, Offset: w.Offset + off, Bytes: n}
}

func (w Window) mem() []byte { return w.Region.Bytes()[w.Offset : w.Offset+w.Bytes : w.Offset+w.Bytes] }
