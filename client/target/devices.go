package target

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// Devices are the RDMA adapters of this machine. They are opened when the first session needs them and shared by
// all: opening one takes milliseconds, and some drivers pin memory for each opening. It is safe for concurrent use.
type Devices struct {
	library *native.Library
	own     bool // opened here
	only    rail.Options

	looking sync.Mutex // one look at a time: who waits for it shares it; no other lock is taken under it
	last    look       // guarded by looking

	mu     sync.Mutex
	closed bool
	open   map[string]*device
}

// listener is told what happens to an adapter. It must not block, nor call back.
type listener interface {
	notice(d *device, e native.Event)
}

// device is an open adapter and what listens to its events.
type device struct {
	owner  *Devices
	name   string
	verbs  *native.Device
	cancel context.CancelFunc
	heard  chan struct{} // closed when nothing listens any more

	// guarded by Devices.mu
	users map[listener]struct{}
	lost  bool // the adapter failed: whoever comes next opens it anew
}

// OpenDevices loads the verbs library, unless l is one, and looks whether there is a rail. names restrict the adapters
// or ports ("mlx5_0", "mlx5_0/1"); none means all. Errors: native.ErrNotSupported with the reason, native.ErrVerbs.
func OpenDevices(l *native.Library, names []string) (*Devices, error) {
	d := &Devices{library: l, only: rail.Options{Devices: names}, open: make(map[string]*device)}
	if l == nil {
		var err error
		if d.library, err = native.Open(native.Options{}); err != nil {
			return nil, err
		}
		d.own = true
	}
	if err := d.Usable(); err != nil {
		_ = d.Close() // nothing is open; the first error is what counts
		return nil, err
	}
	return d, nil
}

// Usable tells whether some rail is up now. Errors: native.ErrNotSupported with the reason, native.ErrVerbs.
func (d *Devices) Usable() error {
	rails, skipped, err := d.rails(time.Now())
	if err != nil {
		return err
	}
	none := &native.UnavailableError{Reason: native.ReasonNoDevice}
	if len(skipped) > 0 {
		none.Detail = skipped[0].Name + ": " + skipped[0].Reason
	}
	for _, r := range rails {
		if r.Up {
			return nil
		}
		none.Reason, none.Detail = r.Reason, r.Name()
	}
	return none
}

// look is what the ports were like.
type look struct {
	began   time.Time
	rails   []rail.Rail
	skipped []rail.Skipped
}

// rails looks at all ports, unless somebody has since then. The result is shared, and must not be changed.
func (d *Devices) rails(since time.Time) ([]rail.Rail, []rail.Skipped, error) {
	d.looking.Lock()
	defer d.looking.Unlock()
	if d.last.began.Before(since) {
		now := look{began: time.Now()}
		var err error
		if now.rails, now.skipped, err = rail.Discover(d.library, d.only); err != nil {
			return nil, nil, fmt.Errorf("target: look for adapters: %w", err)
		}
		d.last = now
	}
	return d.last.rails, d.last.skipped, nil
}

// use opens the adapter, or shares it, and delivers its events to p until release.
func (d *Devices) use(name string, p listener) (*device, error) {
	if dev, err := d.join(name, p, nil); dev != nil || err != nil {
		return dev, err
	}
	verbs, err := d.library.OpenDevice(name)
	if err != nil {
		return nil, fmt.Errorf("target: open adapter %s: %w", name, err)
	}
	dev, err := d.join(name, p, verbs)
	if err != nil || dev.verbs != verbs {
		_ = verbs.Close() // nothing was made of it: somebody else was faster, or closed everything
	}
	return dev, err
}

// join makes p a user of the open adapter, or of verbs when there is none; nil without an error: neither is there.
func (d *Devices) join(name string, p listener, verbs *native.Device) (*device, error) {
	d.mu.Lock()
	before := d.open[name]
	switch {
	case d.closed:
		d.mu.Unlock()
		return nil, fmt.Errorf("%w: devices", ErrClosed)
	case before != nil && !before.lost:
		before.users[p] = struct{}{}
		d.mu.Unlock()
		return before, nil
	case verbs == nil:
		d.mu.Unlock()
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	dev := &device{
		owner: d, name: name, verbs: verbs, cancel: cancel, heard: make(chan struct{}),
		users: map[listener]struct{}{p: {}},
	}
	d.open[name] = dev
	idle := before != nil && len(before.users) == 0
	d.mu.Unlock()
	go dev.listen(ctx)
	if idle {
		before.close()
	}
	return dev, nil
}

// listen tells the sessions what happens to the adapter.
func (v *device) listen(ctx context.Context) {
	defer close(v.heard)
	for {
		e, err := v.verbs.NextEvent(ctx)
		if ctx.Err() != nil {
			return // closed
		}
		if err != nil { // an adapter of which nothing would be heard any more
			e = native.Event{Type: native.EventDeviceFatal}
		}
		v.owner.mu.Lock()
		v.lost = v.lost || e.Type == native.EventDeviceFatal
		for p := range v.users {
			p.notice(v, e)
		}
		v.owner.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// release ends the session's use of the adapter.
func (v *device) release(p listener) {
	v.owner.mu.Lock()
	delete(v.users, p)
	last := len(v.users) == 0 && (v.owner.closed || v.owner.open[v.name] != v)
	v.owner.mu.Unlock()
	if last {
		v.close()
	}
}

// close is called once, by who saw that nobody uses the adapter any more.
func (v *device) close() {
	v.cancel()
	<-v.heard
	_ = v.verbs.Close() // a part of it that could not be destroyed keeps it open, to the end of the process
}

// Close closes the adapters; those in use follow with their last session.
func (d *Devices) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	var idle []*device
	for _, dev := range d.open {
		if len(dev.users) == 0 {
			idle = append(idle, dev)
		}
	}
	d.mu.Unlock()
	for _, dev := range idle {
		dev.close()
	}
	if d.own {
		return d.library.Close()
	}
	return nil
}
