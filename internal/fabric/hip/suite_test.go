//go:build cgo

package hip

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestSuite runs what the suite of fabrics says of windows: the client makes a queue pair for each, receives or writes,
// and both messages are sent when the window is opened.
func TestSuite(t *testing.T) {
	if onDevice() {
		t.Skip("for the fake adapter only")
	}
	devices := []fakeverbs.Device{{Name: "rail"}, {Name: "one"}}
	var nic *fakeverbs.NIC
	var f *suiteFabric
	fabrictest.RunWindows(t, fabrictest.Bed{
		Name: Name,
		New: func(_ *fabric.Ledger, memory []byte) (fabrictest.Fabric, error) {
			nic = fakeverbs.New(t, fakeverbs.Options{Devices: devices, Poison: true})
			opened, err := rails.Open(rails.Options{Library: nic.Library(), Devices: []string{"rail"}, Memory: memory})
			if err != nil {
				return nil, err
			}
			set, err := rails.New(opened, nil)
			if err != nil {
				return nil, err
			}
			own, err := New(Options{Rails: set, Sessions: 64, Staging: 16 << 20, Permits: func([16]byte, netip.Addr) bool {
				return true
			}})
			f = &suiteFabric{Fabric: own, set: set, windows: map[uint64]*suiteWindow{}}
			return f, err
		},
		Dial: func(context.Context, fabric.SessionOffer) (fabrictest.Client, error) {
			c := &suiteClient{f: f, done: make(chan struct{})}
			dev, err := nic.Library().OpenDevice("one")
			if err == nil {
				c.dev = dev
				c.pd, err = dev.NewPD()
			}
			return c, err
		},
	})
}

// suiteFabric opens a window by both messages.
type suiteFabric struct {
	*Fabric
	set *rails.Set

	mu      sync.Mutex
	windows map[uint64]*suiteWindow
}

func (f *suiteFabric) NewSession(context.Context, string) (fabric.SessionOffer, error) {
	return fabric.SessionOffer{Fabric: Name}, nil
}

func (f *suiteFabric) Close() error { return errors.Join(f.Fabric.Close(), f.set.Close()) }

func (f *suiteFabric) Open(ctx context.Context, d token.Descriptor, g fabric.Grant) (fabric.Remote, error) {
	f.mu.Lock()
	w := f.windows[d.Region]
	f.mu.Unlock()
	return w.begin(ctx, g)
}

type suiteClient struct {
	f    *suiteFabric
	dev  *native.Device
	pd   *native.PD
	all  []*suiteRegion
	done chan struct{}
}

func (c *suiteClient) Register(_ context.Context, size int) (fabrictest.Region, error) {
	r := &suiteRegion{c: c}
	var err error
	r.memory, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		r.mr, err = c.pd.Register(r.memory, native.LocalWrite|native.RemoteWrite|native.RemoteRead)
	}
	c.all = append(c.all, r)
	return r, err
}

func (c *suiteClient) Fence(context.Context) error { return nil }
func (c *suiteClient) Drop()                       {}
func (c *suiteClient) Done() <-chan struct{}       { return c.done }

func (c *suiteClient) Free() error {
	var errs []error
	for _, r := range c.all {
		errs = append(errs, r.mr.Close(), unix.Munmap(r.memory))
	}
	return errors.Join(append(errs, c.pd.Close(), c.dev.Close())...)
}

type suiteRegion struct {
	c      *suiteClient
	mr     *native.MR
	memory []byte
}

func (r *suiteRegion) Bytes() []byte                { return r.memory }
func (r *suiteRegion) Forget(context.Context) error { return nil }

func (r *suiteRegion) Grant(off, size int64, d fabric.Direction) (fabrictest.Window, error) {
	f := r.c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &suiteWindow{r: r, off: off, size: size, direction: d, number: uint64(len(f.windows))}
	f.windows[w.number] = w
	return w, nil
}

type suiteWindow struct {
	r         *suiteRegion
	off, size int64
	direction fabric.Direction
	number    uint64
}

func (w *suiteWindow) Descriptor() token.Descriptor {
	return token.Descriptor{Kind: token.Session, Region: w.number, Size: w.size}
}

func (w *suiteWindow) EndContext(context.Context) error { return nil }

// begin sends both messages, and does the client's part.
func (w *suiteWindow) begin(ctx context.Context, g fabric.Grant) (fabric.Remote, error) {
	c := w.r.c
	port, err := c.dev.Port(1)
	if err != nil {
		return nil, err
	}
	s := &suiteTransfer{}
	if s.cq, err = c.dev.NewCQ(4); err != nil {
		return nil, err
	}
	if s.qp, err = c.pd.NewQP(s.cq, native.PairOptions{Depth: 1, Receives: 1}); err != nil {
		return nil, err
	}
	own := native.Path{Port: 1, GIDIndex: 1, HopLimit: 64, Access: native.RemoteRead | native.RemoteWrite, PSN: 1,
		Timeout: 14, Retries: 7, RNRRetries: 7, MinRNRTimer: 12}
	d := token.Descriptor{Kind: token.HipObj, HipRC: true, QPN: s.qp.Number(), GID: [16]byte(port.GIDs[1].Raw), Port: 1}
	p := fabric.Preparation{
		Principal: g.Principal, Token: d, PSN: 1, Cookie: cookie, Direction: w.direction, Bytes: g.Bytes,
	}
	made, err := c.f.Prepare(ctx, p)
	if err != nil {
		return nil, err
	}
	peer := native.Peer{QPN: made.QPN, PSN: made.PSN, GID: made.GID, MTU: port.MTU, Reads: 1}
	err = errors.Join(s.qp.Init(own), s.qp.Receive(own, peer), s.qp.Send(own, peer))
	at := w.r.mr.Addr() + uint64(w.off)
	if err == nil && w.direction == fabric.ForGet {
		err = s.qp.PostReceive(1)
	} else if err == nil {
		_, err = s.qp.Post([]native.Work{{Op: native.OpWriteImm, Local: at, LKey: w.r.mr.LKey(), Remote: made.Addr,
			RKey: made.RKey, Length: uint32(g.Bytes), Imm: cookie, Signal: true}})
	}
	if err != nil {
		return nil, err
	}
	r := fabric.Readiness{Cookie: cookie, QPN: s.qp.Number(), Addr: at, RKey: w.r.mr.RKey()}
	if s.taken, err = c.f.Take(made.ID, g.Principal, r); err != nil {
		return nil, err
	}
	s.Remote = s.taken.Remote
	return s, nil
}

// suiteTransfer ends the session, and the client's part, with its window.
type suiteTransfer struct {
	fabric.Remote
	taken *fabric.Taken
	cq    *native.CQ
	qp    *native.QP
}

func (s *suiteTransfer) Close() error {
	err := s.Remote.Close()
	s.taken.Finish()
	return errors.Join(err, s.qp.Close(), s.cq.Close())
}
