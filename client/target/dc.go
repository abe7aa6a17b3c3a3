package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-store/penstock/native"
)

// fenceGrace is how long after a request the keys of its memory live on: the server finds the connection closed and
// ends the transfer by itself. What the adapter refuses instead counts against this client, for some servers.
const fenceGrace = 250 * time.Millisecond

// fencePatience bounds the wait for the other requests on the memory. It is docs/wire.md's bound of a transfer by dc
// with the time that an answer may take: nobody is disturbed who keeps to it.
const fencePatience = 10 * time.Second

// DCOptions of OpenDC.
type DCOptions struct {
	// Key is the access key of the targets; the server must have the same one. A secret, unless it is the usual one.
	Key uint64
	// From and To are the ends of the connection by which requests go, where they are known: servers take a port for
	// the client's that has the address From.
	From, To netip.Addr
}

// Format prints the options without the key, whatever the verb.
func (o DCOptions) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "dc{from %v to %v}", o.From, o.To) }

// DC is the client's end of the dc fabric: targets of dynamic connections (DCTs), one on each port, and memory with
// keys of its own. No server knows of it: a token has all that one needs. It is safe for concurrent use.
//
// A server cannot be cut off by closing anything it knows of, so late access is ended on this side: the keys of the
// memory are revoked (Fence, Forget of a DCRegion), or the targets closed with them (Fence, Close of the DC).
type DC struct {
	shared *Devices
	key    uint64
	locals []*dcDevice
	ports  []*dct

	wake     chan struct{}  // tells keep that there are events; holds one
	stopping chan struct{}  // closed when the end has begun
	dead     chan struct{}  // closed, after that, when no target can be reached any more; never when one is stuck
	ended    chan struct{}  // closed when the adapters have let go of everything that they will
	tasks    sync.WaitGroup // none begins once err is set

	eventMu sync.Mutex
	events  []event

	mu      sync.Mutex
	err     error          // not nil once the end has begun
	pins    sync.WaitGroup // calls of the library about memory; Register begins none once err is set
	regions map[*DCRegion]struct{}
	leaky   bool   // some memory can still be reached
	turn    uint64 // of the ports
}

// Format prints it without the key, whatever the verb.
func (c *DC) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "dc{redacted}") }

// dcDevice is an adapter in its role for one DC.
type dcDevice struct {
	number int // of its keys in a DCRegion
	device *device
	pd     *native.PD
	cq     *native.CQ
}

// dct is a target on a port.
type dct struct {
	on     *dcDevice
	port   port
	rank   int
	target *native.DCT
	number uint32
	up     bool // guarded by DC.mu
}

// Ranks of a port for the requests of a client.
const (
	rankAny  = iota
	rankNear // in the subnet of the server's end
	rankSelf // it has the address that the requests come from
)

// OpenDC makes the targets, on all ports of the devices whose adapter has dynamic connections. Errors:
// native.ErrNotSupported with the reason, native.ErrVerbs.
func OpenDC(d *Devices, o DCOptions) (*DC, error) {
	rails, _, err := d.rails(time.Now().Add(-recentLook))
	if err != nil {
		return nil, err
	}
	if err := d.library.DC(); err != nil {
		return nil, fmt.Errorf("target: dynamic connections: %w", err)
	}
	c := &DC{
		shared: d, key: o.Key, wake: make(chan struct{}, 1), stopping: make(chan struct{}), dead: make(chan struct{}),
		ended: make(chan struct{}), regions: make(map[*DCRegion]struct{}),
	}
	why := error(&native.UnavailableError{Reason: native.ReasonNoDevice})
	for _, p := range subnets(rails) {
		if err := c.add(p, o); err != nil {
			why = err
		}
	}
	switch {
	case len(c.ports) == 0:
	case !c.anyUp():
		why = &native.UnavailableError{Reason: c.ports[0].port.Reason, Detail: c.ports[0].port.Name()}
	default:
		c.tasks.Go(c.keep)
		return c, nil
	}
	_ = c.Close() // the first error is what counts
	return nil, why
}

// add makes the target of a port. OpenDC only.
func (c *DC) add(p port, o DCOptions) error {
	on, err := c.local(p.Device)
	if err != nil {
		return err
	}
	t := &dct{on: on, port: p, rank: p.toward(o.From, o.To), up: p.Up}
	if t.target, err = on.pd.NewDCT(on.cq, c.key); err != nil {
		return fmt.Errorf("target: make target on %s: %w", p.Name(), err)
	}
	t.number, err = t.target.Answer(native.Path{
		Port: p.Port, GIDIndex: p.GIDIndex, HopLimit: hopLimit, MinRNRTimer: minRNRTimer,
		Access: native.RemoteRead | native.RemoteWrite,
	}, p.MTU)
	if err != nil {
		_ = t.target.Close() // it answers nobody, and nothing is registered
		return fmt.Errorf("target: prepare target on %s: %w", p.Name(), err)
	}
	c.ports = append(c.ports, t)
	return nil
}

// toward says how well the port fits for requests between the two addresses.
func (p port) toward(from, to netip.Addr) int {
	own := p.Address()
	if !own.IsValid() {
		return rankAny
	}
	if own == from.Unmap() {
		return rankSelf
	}
	if prefix, err := own.Prefix(p.bits); err == nil && prefix.Contains(to.Unmap()) {
		return rankNear
	}
	return rankAny
}

// local opens an adapter, once. OpenDC only.
func (c *DC) local(name string) (*dcDevice, error) {
	for _, l := range c.locals {
		if l.device.name == name {
			return l, nil
		}
	}
	dev, err := c.shared.use(name, c)
	if err != nil {
		return nil, err
	}
	l := &dcDevice{number: len(c.locals), device: dev}
	if err = dev.verbs.DC(); err == nil {
		l.pd, err = dev.verbs.NewPD()
	}
	if err == nil {
		l.cq, err = dev.verbs.NewCQ(cqDepth)
	}
	if err != nil {
		l.close(c)
		return nil, fmt.Errorf("target: use adapter %s: %w", name, err)
	}
	c.locals = append(c.locals, l)
	return l, nil
}

func (l *dcDevice) close(c *DC) {
	if l.cq != nil {
		_ = l.cq.Close() // refused only while a target is stuck, which counts as reachable
	}
	if l.pd != nil {
		_ = l.pd.Close() // as above, or while memory could not be given back
	}
	l.device.release(c)
}

// notice is told by an adapter; it does not block.
func (c *DC) notice(d *device, e native.Event) {
	c.eventMu.Lock()
	c.events = append(c.events, event{d, e})
	c.eventMu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

var (
	errTarget  = errors.New("target: adapter or target of dynamic connections failed")
	errNoPorts = errors.New("target: no port is up")
)

// keep follows the adapters until the end.
func (c *DC) keep() {
	for {
		select {
		case <-c.stopping:
			return
		case <-c.wake:
		}
		if err := c.follow(); err != nil {
			c.end(err)
			return
		}
	}
}

// follow takes the events of the adapters. An error ends everything: the next DC takes what is there then.
func (c *DC) follow() error {
	c.eventMu.Lock()
	events := c.events
	c.events = nil
	c.eventMu.Unlock()
	for _, e := range events {
		if e.Type == native.EventDeviceFatal {
			return fmt.Errorf("%w: %s", errTarget, e.device.name)
		}
		for _, t := range c.ports {
			if e.Type == native.EventQPFatal && e.device == t.on.device && e.QPN == t.number {
				return fmt.Errorf("%w: %s", errTarget, t.port.Name())
			}
		}
	}
	rails, _, err := c.shared.rails(time.Now())
	if err != nil {
		return err
	}
	c.mu.Lock()
	for _, t := range c.ports {
		t.up = false
		for _, r := range rails { // one whose address is another is another port: the target answers at the old one
			if r.Name() == t.port.Name() && r.GID == t.port.GID && r.GIDIndex == t.port.GIDIndex {
				t.up = r.Up
			}
		}
	}
	c.mu.Unlock()
	if !c.anyUp() {
		return errNoPorts
	}
	return nil
}

func (c *DC) anyUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.choose() != nil
}

// choose takes the ports that are up and fit best in turns; nil: none is up. The caller holds mu.
func (c *DC) choose() *dct {
	var best []*dct
	for _, t := range c.ports {
		switch {
		case !t.up || (len(best) > 0 && t.rank < best[0].rank):
		case len(best) > 0 && t.rank == best[0].rank:
			best = append(best, t)
		default:
			best = []*dct{t}
		}
	}
	if len(best) == 0 {
		return nil
	}
	c.turn++
	return best[c.turn%uint64(len(best))]
}

// end closes everything, once. A second caller does not wait for the first.
func (c *DC) end(cause error) {
	if c.begin(cause) {
		c.finish()
	}
}

// begin notes the end. True: the caller must finish it.
func (c *DC) begin(cause error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.err = fmt.Errorf("%w: %w", ErrClosed, cause)
	close(c.stopping)
	return true
}

// finish closes the targets, so that no memory is reached, then takes all keys back and lets the devices go.
func (c *DC) finish() {
	stuck := false
	for _, t := range c.ports {
		err := t.target.Close()
		if err != nil { // it may be half closed, and then answers nobody: see native's nv_dc.h
			err = t.target.Close()
		}
		stuck = stuck || err != nil
	}
	if !stuck {
		close(c.dead)
	}
	c.pins.Wait()
	c.mu.Lock()
	regions := c.regions
	c.regions = nil
	c.mu.Unlock()
	for r := range regions {
		left := closeKeys(r.keys)
		r.over(len(left) > 0 && stuck)
	}
	for _, l := range c.locals {
		l.close(c)
	}
	close(c.ended)
}

// Done is closed when the DC has ended, for whatever reason.
func (c *DC) Done() <-chan struct{} { return c.ended }

// Err is why it ended, an ErrClosed; nil while it lives.
func (c *DC) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Fence ends the DC and makes late access to all of its memory impossible. Errors: ErrNotFenced, when an adapter lets
// go of neither target nor memory, or its driver did not return before ctx ended and a while after.
func (c *DC) Fence(ctx context.Context) error {
	first := c.begin(errFenced)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if first {
			c.finish()
		}
		<-c.ended
		c.tasks.Wait()
	}()
	if !returned(ctx, over) {
		select {
		case <-c.dead: // what is left to do cannot bring a target back
			return nil
		default:
			return ErrNotFenced
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaky {
		return ErrNotFenced
	}
	return nil
}

// Close is Fence that waits for nothing but the adapters.
func (c *DC) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return c.Fence(ctx)
}
