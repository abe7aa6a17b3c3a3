package target

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
)

// DCRegion is memory with keys of its own on each adapter of a DC. It is given up as a whole: whoever wants to go on
// with the memory registers it again, and gets other keys.
type DCRegion struct {
	owner  *DC
	memory *Memory
	keys   []*native.MR // by the number of the device; whoever takes the region out of DC.regions owns them

	// guarded by DC.mu
	users   int  // grants that have not ended
	leaving bool // no grant is given any more
	fencing bool
	exposed bool          // an adapter can still reach the memory
	idle    chan struct{} // closed when leaving and without users
	gone    chan struct{} // closed when the keys are dead, or when an adapter does not let go of them
}

// Register pins the memory on each adapter. It may take long for much memory. Errors: ErrMemory, ErrPinned, ErrClosed.
func (c *DC) Register(m *Memory) (*DCRegion, error) {
	if err := m.announce(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		m.release(true)
		return nil, err
	}
	c.pins.Add(1)
	c.mu.Unlock()
	r := &DCRegion{owner: c, memory: m, idle: make(chan struct{}), gone: make(chan struct{})}
	err := r.pin()
	c.mu.Lock()
	c.regions[r] = struct{}{} // also after a failure: some keys may have been made
	c.mu.Unlock()
	c.pins.Done()
	if err != nil {
		_ = r.drop() // the first error is what counts
		return nil, err
	}
	return r, nil
}

func (r *DCRegion) pin() error {
	const access = native.LocalWrite | native.RemoteWrite | native.RemoteRead
	for _, l := range r.owner.locals {
		mr, err := l.pd.Register(r.memory.bytes, access)
		if err != nil {
			return fmt.Errorf("%w: %d bytes on %s: %w", ErrPinned, len(r.memory.bytes), l.device.name, err)
		}
		r.keys = append(r.keys, mr)
	}
	return nil
}

// Bytes is the region's memory.
func (r *DCRegion) Bytes() []byte { return r.memory.bytes }

// Memory is what was registered.
func (r *DCRegion) Memory() *Memory { return r.memory }

// drop takes the keys back, and returns when no adapter can reach the memory: nil, or when one does not let go of it:
// ErrNotFenced. An adapter that refuses costs the DC, whose targets are then closed.
func (r *DCRegion) drop() error {
	c := r.owner
	c.mu.Lock()
	_, ours := c.regions[r]
	if !ours || c.err != nil { // somebody else is at it, or the end is
		c.mu.Unlock()
		return r.dropped()
	}
	delete(c.regions, r)
	c.pins.Add(1)
	c.mu.Unlock()
	left := closeKeys(r.keys)
	if len(left) == 0 {
		r.over(false)
		c.pins.Done()
		return nil
	}
	c.mu.Lock()
	r.keys = left
	c.regions[r] = struct{}{}
	c.mu.Unlock()
	c.pins.Done()
	c.end(errAdapter)
	return r.dropped()
}

func (r *DCRegion) dropped() error {
	<-r.gone
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	if r.exposed {
		return ErrNotFenced
	}
	return nil
}

// over notes that the keys are as dead as they get.
func (r *DCRegion) over(exposed bool) {
	r.memory.release(!exposed)
	c := r.owner
	c.mu.Lock()
	defer c.mu.Unlock()
	r.leave()
	r.exposed, c.leaky = exposed, c.leaky || exposed
	close(r.gone)
}

// leave ends the giving of grants. The caller holds mu.
func (r *DCRegion) leave() {
	if r.leaving {
		return
	}
	r.leaving = true
	if r.users == 0 {
		close(r.idle)
	}
}

// Forget takes the region back when its grants have ended; when it returns nil no adapter can reach the memory. Errors:
// ErrNotFenced, ctx's error: then it gives no grants any more, and its keys live until Fence or the end of the DC.
func (r *DCRegion) Forget(ctx context.Context) error {
	r.owner.mu.Lock()
	r.leave()
	r.owner.mu.Unlock()
	select {
	case <-r.idle:
		return r.drop()
	case <-r.gone:
		return r.dropped()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Fence makes late access to the region's memory impossible, after a request on it ended without an answer that can be
// trusted, and its grant was ended. It gives no grants any more, waits for those that have not ended, at most until
// none of them can have a transfer under way, and revokes the keys. Errors: ErrNotFenced, when an adapter lets go of
// neither memory nor target, or its driver did not return before ctx ended and a while after; then the DC needs a
// Fence.
func (r *DCRegion) Fence(ctx context.Context) error {
	c := r.owner
	c.mu.Lock()
	r.leave()
	if !r.fencing && c.err == nil {
		r.fencing = true
		c.tasks.Go(r.revoke)
	}
	c.mu.Unlock()
	if !returned(ctx, r.gone) {
		return ErrNotFenced
	}
	return r.dropped()
}

// revoke ends by itself, unless a driver does not return.
func (r *DCRegion) revoke() {
	wait := time.NewTimer(fenceGrace)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-r.owner.stopping:
	}
	wait.Reset(fencePatience)
	select {
	case <-r.idle:
	case <-wait.C:
	case <-r.owner.stopping:
	}
	_ = r.drop() // who waits asks for it again
}

// DCGrant is one request's use of a window, until End.
type DCGrant struct {
	region     *DCRegion
	descriptor token.Descriptor
	once       sync.Once
}

// Grant lets a request use a window. An adapter tells neither windows of a region nor directions apart: its token is as
// good for all of the region's memory, to whoever can alter it, until the keys are dead. Errors: ErrMemory (bounds),
// ErrClosed.
func (r *DCRegion) Grant(off, size int64) (*DCGrant, error) {
	whole := int64(len(r.memory.bytes))
	if off < 0 || size < 0 || size > token.MaxWindow || off > whole || size > whole-off {
		return nil, fmt.Errorf("%w: window [%d, %d+%d) of %d bytes", ErrMemory, off, off, size, whole)
	}
	c := r.owner
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	if r.leaving {
		return nil, fmt.Errorf("%w: region is given up", ErrClosed)
	}
	t := c.choose()
	if t == nil {
		return nil, fmt.Errorf("%w: %w", ErrClosed, errNoPorts)
	}
	g := &DCGrant{region: r, descriptor: token.Descriptor{
		Kind: token.DC, Addr: address(r.memory.bytes) + uint64(off), Size: size, RKey: r.keys[t.on.number].RKey(),
		QPN: t.number, HasGID: true, GID: t.port.GID,
	}}
	if t.port.infiniBand() {
		g.descriptor.LID = t.port.LID
	}
	r.users++
	return g, nil
}

// Token is the secret text for x-amz-rdma-token: 81 characters.
func (g *DCGrant) Token() string { return g.descriptor.Encode() }

// Descriptor is the grant as the server will see it.
func (g *DCGrant) Descriptor() token.Descriptor { return g.descriptor }

// End says that the request was answered or given up. It takes nothing back: where the answer does not say that the
// transfer has ended, Fence of the region must follow.
func (g *DCGrant) End() {
	g.once.Do(func() {
		r := g.region
		r.owner.mu.Lock()
		defer r.owner.mu.Unlock()
		r.users--
		if r.leaving && r.users == 0 {
			close(r.idle)
		}
	})
}
