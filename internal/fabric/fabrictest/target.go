package fabrictest

import (
	"context"
	"errors"
	"sync"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
)

// TargetOffer turns a server's offer into what the client's end takes.
func TargetOffer(o fabric.SessionOffer) frame.SessionReply {
	return frame.SessionReply{
		Session: o.ID, Secret: o.Secret, Fabric: o.Fabric, Network: o.Network, Address: o.Address, Expires: o.Expires,
	}
}

// DialTarget is the Dial of fabrics that package client/target speaks.
func DialTarget(ctx context.Context, o fabric.SessionOffer) (Client, error) {
	c, err := target.Dial(ctx, TargetOffer(o), target.Options{})
	if err != nil {
		return nil, err
	}
	return &targetClient{conn: c, allocate: target.NewMemory}, nil
}

// DialForeign is DialTarget for a client whose memory is its own heap's, not a memfd.
func DialForeign(ctx context.Context, o fabric.SessionOffer) (Client, error) {
	c, err := target.Dial(ctx, TargetOffer(o), target.Options{})
	if err != nil {
		return nil, err
	}
	return &targetClient{conn: c, allocate: func(size int) (*target.Memory, error) {
		return target.WrapMemory(make([]byte, size+oddBytes)[oddBytes:]), nil
	}}, nil
}

// DialDevices is DialTarget on adapters of this machine.
func DialDevices(d *target.Devices) func(context.Context, fabric.SessionOffer) (Client, error) {
	return func(ctx context.Context, o fabric.SessionOffer) (Client, error) {
		c, err := target.Dial(ctx, TargetOffer(o), target.Options{Devices: d})
		if err != nil {
			return nil, err
		}
		return &targetClient{conn: c, allocate: target.NewMemory}, nil
	}
}

// oddBytes is how far foreign memory of the suite begins off a page boundary.
const oddBytes = 13

type targetClient struct {
	conn     *target.Conn
	allocate func(size int) (*target.Memory, error)

	mu     sync.Mutex
	memory []*target.Memory
}

func (c *targetClient) Register(ctx context.Context, size int) (Region, error) {
	m, err := c.allocate(size)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.memory = append(c.memory, m)
	c.mu.Unlock()
	r, err := c.conn.Register(ctx, m)
	if err != nil {
		return nil, err
	}
	return targetRegion{conn: c.conn, region: r}, nil
}

func (c *targetClient) Fence(ctx context.Context) error { return c.conn.Fence(ctx) }

// Drop closes the connections at once; the test may still watch the memory.
func (c *targetClient) Drop() { _ = c.conn.Close() }

// Free drops the session and gives the memory back.
func (c *targetClient) Free() error {
	c.Drop()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, m := range c.memory {
		errs = append(errs, m.Free())
	}
	c.memory = nil
	return errors.Join(errs...)
}

func (c *targetClient) Done() <-chan struct{} { return c.conn.Done() }

type targetRegion struct {
	conn   *target.Conn
	region *target.Region
}

func (r targetRegion) Bytes() []byte                    { return r.region.Bytes() }
func (r targetRegion) Forget(ctx context.Context) error { return r.region.Forget(ctx) }

func (r targetRegion) Grant(off, size int64, d fabric.Direction) (Window, error) {
	direction := target.ForGet
	if d == fabric.ForPut {
		direction = target.ForPut
	}
	return r.conn.Expect(r.region, off, size, direction)
}

// AttachDC makes clients of fabric dc on adapters of this machine, whose targets have the key.
func AttachDC(d *target.Devices, key uint64) func() (Client, error) {
	return func() (Client, error) {
		c, err := target.OpenDC(d, target.DCOptions{Key: key})
		if err != nil {
			return nil, err
		}
		return &dcClient{DC: c}, nil
	}
}

type dcClient struct {
	*target.DC

	mu     sync.Mutex
	memory []*target.Memory
}

func (c *dcClient) Register(_ context.Context, size int) (Region, error) {
	m, err := target.NewMemory(size)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.memory = append(c.memory, m)
	c.mu.Unlock()
	r, err := c.DC.Register(m)
	if err != nil {
		return nil, err
	}
	return dcRegion{r}, nil
}

// Drop closes the targets; the test may still watch the memory.
func (c *dcClient) Drop() { _ = c.Close() }

func (c *dcClient) Free() error {
	errs := []error{c.Close()}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.memory {
		errs = append(errs, m.Free())
	}
	c.memory = nil
	return errors.Join(errs...)
}

// dcRegion is also fenced by itself.
type dcRegion struct{ *target.DCRegion }

func (r dcRegion) Grant(off, size int64, _ fabric.Direction) (Window, error) {
	g, err := r.DCRegion.Grant(off, size)
	if err != nil {
		return nil, err
	}
	return dcWindow{g}, nil
}

type dcWindow struct{ *target.DCGrant }

func (w dcWindow) EndContext(context.Context) error {
	w.End()
	return nil
}
