package verbs

import (
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestRF_15_EjectedRailCostsNothing: once a rail that does not work is ejected, no request of old or new sessions pays
// an attempt on it, and probing brings it back. Oracles: the counts of moves that failed and of paths refused.
func TestRF_15_EjectedRailCostsNothing(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	l := b.load(b.client("p"))
	defer l.end()
	l.more(t, "transfers")
	fault := b.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Fail, Device: rail0, Times: fakeverbs.Always, Status: fakeverbs.RetryExceeded,
	})
	soon(t, "the rail is ejected", func() bool { return b.rail(0).Ejections == 1 && b.rail(0).Engine.Paths == 0 })
	failed := func() (n int64) {
		for i := range 2 {
			s := b.rail(i)
			n += s.Engine.Lost + s.Engine.Denied + s.Engine.Local + s.Refused
		}
		return n
	}
	paid := failed()
	if paid < lapsesToEject {
		t.Errorf("ejected after %d failures", paid)
	}
	hits, still := fault.Hits(), b.bytesOf(0)
	newcomer := b.load(b.client("p"))
	defer newcomer.end()
	for range 5 {
		l.more(t, "transfers on the other rail")
		newcomer.more(t, "transfers of a new session")
	}
	soon(t, "the rail is probed", func() bool { return fault.Hits() > hits })
	if n := failed(); n != paid || b.bytesOf(0) != still || b.rail(0).Up {
		t.Errorf("%d requests paid an attempt on a rail that is out", n-paid)
	}
	fault.Remove()
	soon(t, "the rail is back", func() bool { return b.rail(0).Up })
	soon(t, "it carries bytes", func() bool { return b.bytesOf(0) > still || l.failed.Load() > 0 })
	if r := b.rail(0); r.Ejections != 1 || r.Returns != 1 || failed() != paid {
		t.Errorf("after its return: %+v", r)
	}
}

// TestStorm moves bytes of two clients while rails go down and up, lose their address, and queue pairs fail: a transfer
// may fail, but none that says it is done has a wrong byte, and afterwards everything works and nothing is left over.
func TestStorm(t *testing.T) {
	b := newBench(t, fakeverbs.Options{Poison: true, Latency: 20 * time.Microsecond})
	random := rand.New(rand.NewPCG(1, 2))
	loads := []*load{b.load(b.client("p", device0)), b.load(b.client("p", device1))}
	for _, l := range loads {
		l.lenient.Store(true)
	}
	names := []string{rail0, rail1}
	addresses := []netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("10.99.0.2")}
	storm := func() {
		i := random.IntN(2)
		b.nic.SetAddr(names[1-i], addresses[1-i]) // a client gives up where no rail is up for long
		b.nic.PortUp(names[1-i])
		switch random.IntN(4) {
		case 0:
			b.nic.PortDown(names[i])
		case 1:
			b.nic.PortUp(names[i])
		case 2:
			var all []uint32
			for s := range b.liveSessions() {
				all = append(all, s.numbers()...)
			}
			if len(all) > 0 { // one: many would eject their rail
				b.nic.FailQP(all[random.IntN(len(all))])
			}
		case 3:
			b.nic.SetAddr(names[i], []netip.Addr{{}, addresses[i]}[random.IntN(2)])
		}
	}
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	for range rounds {
		storm()
		before := loads[0].moved.Load() + loads[1].moved.Load()
		soonOr(5*time.Millisecond, func() bool { return loads[0].moved.Load()+loads[1].moved.Load() > before+2 })
	}
	for i, name := range names {
		b.nic.SetAddr(name, addresses[i])
		b.nic.PortUp(name)
	}
	for i := range names {
		soon(t, "the rail is up", func() bool { return b.rail(i).Up })
	}
	for _, l := range loads {
		l.more(t, "transfers after the storm")
		l.end()
		if l.wrong.Load() != 0 {
			t.Errorf("%d transfers were done with wrong bytes", l.wrong.Load())
		}
		t.Logf("%d transfers, %d failed", l.moved.Load(), l.failed.Load())
	}
}

// TestCrossings lets one client and the node send PATH_UP, LOST and FENCED of many paths across each other, in every
// order that docs/wire.md allows the client: the session never ends for it, and no path is left.
func TestCrossings(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		b := newBench(t, fakeverbs.Options{})
		c := b.connect("p", device0)
		newCrossing(c, seed).run()
		if s := b.fabric.Stats(); s.Violated != 0 || s.Sessions != 1 {
			t.Errorf("seed %d: %+v", seed, s)
		}
	}
}

// crossing is a client that keeps to the protocol and to nothing else.
type crossing struct {
	c      *rawClient
	random *rand.Rand
	body   frame.PathBody
	frames chan arrived
	paths  map[uint64]*crossed // not gone as the client sees it
	old    []uint64            // fenced
	pongs  int
}

type arrived struct {
	header frame.Header
	body   []byte
	err    error
}

type crossed struct {
	qpn      uint32 // of the server; 0: not answered yet
	up, lost bool
}

func newCrossing(c *rawClient, seed uint64) *crossing {
	q, _, body := c.makePair()
	c.pairs[1<<40] = q
	x := &crossing{
		c: c, random: rand.New(rand.NewPCG(seed, 1)), body: body, frames: make(chan arrived, 64),
		paths: map[uint64]*crossed{},
	}
	go func() {
		defer close(x.frames)
		for {
			var raw [frame.HeaderBytes]byte
			h, err := frame.ReadHeader(c.conn, &raw)
			body := make([]byte, h.Length)
			if err == nil {
				_, err = io.ReadFull(c.conn, body)
			}
			x.frames <- arrived{h, body, err}
			if err != nil {
				return
			}
		}
	}()
	return x
}

func (x *crossing) run() {
	t := x.c.t
	for range 1000 {
		x.step()
	}
	for _, name := range []string{rail0, rail1} {
		x.c.b.nic.PortUp(name)
	}
	soon(t, "the rails are up", func() bool { return x.c.b.rail(0).Up && x.c.b.rail(1).Up })
	for id := range x.paths {
		x.fence(id)
	}
	soon(t, "no path is left", func() bool { x.take(); return x.c.b.paths() == 0 })
	pongs := x.pongs
	x.c.send(frame.Header{Type: frame.Ping}, nil)
	soon(t, "a pong", func() bool { x.take(); return x.pongs > pongs })
	for i := range 2 {
		if n := x.c.b.rail(i).Engine.Paths; n != 0 {
			t.Errorf("%d paths are left on rail %d", n, i)
		}
	}
}

func (x *crossing) fence(id uint64) {
	x.c.send(frame.Header{Type: frame.Fenced, ID: id}, nil)
	delete(x.paths, id)
	x.old = append(x.old, id)
}

// any is one of the paths, or 0.
func (x *crossing) any(wanted func(*crossed) bool) uint64 {
	for id, p := range x.paths {
		if wanted(p) {
			return id
		}
	}
	return 0
}

func (x *crossing) step() {
	c := x.c
	switch x.random.IntN(12) {
	case 0, 1, 2:
		if len(x.paths) < maxPaths {
			c.last++
			x.paths[c.last] = &crossed{}
			c.send(frame.Header{Type: frame.Path, ID: c.last, Region: uint64(x.random.IntN(2))}, encode(x.body))
		}
	case 3, 4: // also one that was lost
		if id := x.any(func(p *crossed) bool { return p.qpn != 0 && !p.up }); id != 0 {
			x.paths[id].up = true
			c.send(frame.Header{Type: frame.PathUp, ID: id}, nil)
		}
	case 5:
		if id := x.any(func(*crossed) bool { return true }); id != 0 {
			x.fence(id)
		}
	case 6, 7:
		if id := x.any(func(p *crossed) bool { return p.lost }); id != 0 {
			x.fence(id)
		}
	case 8:
		if len(x.old) > 0 { // again
			c.send(frame.Header{Type: frame.Fenced, ID: x.old[x.random.IntN(len(x.old))]}, nil)
		}
	case 9:
		if id := x.any(func(p *crossed) bool { return p.qpn != 0 && !p.lost }); id != 0 {
			c.b.nic.FailQP(x.paths[id].qpn)
		}
	case 10:
		name := []string{rail0, rail1}[x.random.IntN(2)]
		c.b.nic.PortDown(name)
		if x.random.IntN(4) > 0 {
			c.b.nic.PortUp(name)
		}
	case 11:
		c.send(frame.Header{Type: frame.Ping}, nil)
	}
	if x.random.IntN(3) > 0 {
		x.take()
	}
}

// take takes what has come, and waits a moment for it.
func (x *crossing) take() {
	x.c.t.Helper()
	for {
		moment := time.NewTimer(time.Millisecond)
		select {
		case a := <-x.frames:
			moment.Stop()
			if a.err != nil {
				x.c.t.Fatalf("the session ended: %v", a.err)
			}
			x.took(a)
		case <-moment.C:
			return
		}
	}
}

func (x *crossing) took(a arrived) {
	p := x.paths[a.header.ID]
	switch a.header.Type {
	case frame.Pong:
		x.pongs++
	case frame.PathRefused:
		delete(x.paths, a.header.ID)
		x.old = append(x.old, a.header.ID)
	case frame.PathOK:
		if body, err := frame.DecodePath(a.body); err != nil {
			x.c.t.Error(err)
		} else if p != nil {
			p.qpn = body.QPN
		}
	case frame.Lost:
		if p != nil {
			p.lost = true
		}
	case frame.Rails:
	default:
		x.c.t.Errorf("%+v", a.header)
	}
}

// TestEndWhilePathsConnect ends a session, its path or its rail while a driver's call hangs that connects the path: the
// end waits for nothing, the path never carries anything, and nothing is left of it once the call returns.
func TestEndWhilePathsConnect(t *testing.T) {
	ends := map[string]func(*rawClient){
		"dropped": func(c *rawClient) { _ = c.conn.Close() },
		"closed":  func(c *rawClient) { c.send(frame.Header{Type: frame.Close}, nil) },
		"revoked": func(c *rawClient) { c.b.fabric.RevokePrincipal("p") },
		"fenced":  func(c *rawClient) { c.send(frame.Header{Type: frame.Fenced, ID: c.last}, nil) },
		"down": func(c *rawClient) {
			server := c.session()
			server.mu.Lock()
			p := server.paths[c.last]
			server.mu.Unlock()
			c.b.nic.PortDown(rail0)
			soon(c.t, "the path failed with its rail", func() bool { return p.at() == dead })
		},
	}
	for name, end := range ends {
		for _, at := range []fakeverbs.Point{
			fakeverbs.AtCreateQP, fakeverbs.AtInit, fakeverbs.AtReceive, fakeverbs.AtSend,
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, fakeverbs.Options{})
				c, other := b.connect("p", device0), b.connect("q", device1)
				c.region(4096)
				q, _, body := c.makePair()
				c.last++
				c.pairs[c.last] = q
				hang := b.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Hold, Device: rail0})
				c.send(frame.Header{Type: frame.Path, ID: c.last}, encode(body))
				hang.Await(1)
				end(c)
				if name == "fenced" || name == "down" {
					c.alive(name)
				} else {
					soon(t, "the session has ended", func() bool { return b.fabric.Stats().Sessions == 1 })
				}
				other.path(1)
				other.works(other.region(4096))
				hang.Release()
				soon(t, "nothing is left", func() bool { return b.rail(0).Engine.Paths == 0 && b.paths() <= 1 })
				if name == "fenced" || name == "down" {
					c.want(frame.PathRefused, c.last)
				}
			})
		}
	}
}
