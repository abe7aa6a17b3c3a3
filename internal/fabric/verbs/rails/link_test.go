package rails

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const windowBytes = 1 << 16

// client is one with memory, and queue pairs that answer to links.
type client struct {
	t      *testing.T
	dev    *native.Device
	pd     *native.PD
	cq     *native.CQ
	mr     *native.MR
	memory []byte
	gid    [16]byte
	own    native.Path
	qps    []*native.QP
}

func newClient(t *testing.T, nic *fakeverbs.NIC) *client {
	t.Helper()
	c := &client{t: t, memory: make([]byte, windowBytes)}
	var err error
	must := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c.dev, err = nic.Library().OpenDevice(fakeClient)
	must()
	c.pd, err = c.dev.NewPD()
	must()
	c.cq, err = c.dev.NewCQ(16)
	must()
	c.mr, err = c.pd.Register(c.memory, native.LocalWrite|native.RemoteWrite|native.RemoteRead)
	must()
	port, err := c.dev.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range port.GIDs {
		if g.Index == 1 {
			c.gid = g.Raw
		}
	}
	c.own = native.Path{
		Port: 1, GIDIndex: 1, HopLimit: 64, Access: native.RemoteRead | native.RemoteWrite, PSN: 7, MinRNRTimer: 12,
	}
	t.Cleanup(c.close)
	return c
}

func (c *client) close() {
	var errs []error
	for _, q := range c.qps {
		errs = append(errs, q.Close())
	}
	if err := errors.Join(append(errs, c.mr.Close(), c.cq.Close(), c.pd.Close(), c.dev.Close())...); err != nil {
		c.t.Errorf("client: %v", err)
	}
}

// offer is a new queue pair.
func (c *client) offer() (*native.QP, initiator.Endpoint) {
	c.t.Helper()
	q, err := c.pd.NewQP(c.cq, native.PairOptions{Depth: 1, Receives: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	c.qps = append(c.qps, q)
	if err := q.Init(c.own); err != nil {
		c.t.Fatal(err)
	}
	return q, initiator.Endpoint{QPN: q.Number(), PSN: c.own.PSN, GID: c.gid, MTU: 4096, Reads: 1}
}

// link makes a link to a new queue pair, which answers to it.
func (c *client) link(set *Set, owner string) (*Link, *native.QP) {
	c.t.Helper()
	q, end := c.offer()
	l, err := set.Link(LinkOptions{Owner: owner, Peer: end, RNRRetries: 7}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	at := l.Local()
	err = q.Receive(c.own, native.Peer{QPN: at.QPN, PSN: at.PSN, GID: at.GID, MTU: at.MTU, Reads: at.Reads})
	if err != nil {
		c.t.Fatal(err)
	}
	return l, q
}

// move is one of all of the client's memory.
func (c *client) move(op native.Opcode, buffer []byte) initiator.Move {
	return initiator.Move{Op: op, Remote: c.mr.Addr(), RKey: c.mr.RKey(), Local: [][]byte{buffer}}
}

// ground is a set on a fake rail, with its memory, and a client.
func ground(t *testing.T, o fakeverbs.Options, log *slog.Logger) (*fakeverbs.NIC, *Set, []byte, *client) {
	t.Helper()
	if o.Devices == nil {
		o.Devices = []fakeverbs.Device{{Name: fakeRail}, {Name: fakeClient}}
	}
	o.Poison = true
	nic := fakeverbs.New(t, o)
	c := newClient(t, nic)
	memory := make([]byte, windowBytes)
	opened, err := Open(Options{Library: nic.Library(), Devices: []string{fakeRail}, Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	set, err := New(opened, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		k := set.list[0]
		if len(k.uses)+len(k.holders)+len(set.ends.uses)+len(set.ends.own) != 0 {
			t.Error("something is remembered of links")
		}
		if n := len(k.connects.all) + len(k.connects.lines); n != 0 {
			t.Errorf("%d turns or lines are left", n)
		}
	})
	return nic, set, memory, c
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ seed
	}
}

func done(t *testing.T, l *Link) {
	t.Helper()
	soon(t, "nothing is left of a link", func() bool {
		select {
		case <-l.Done():
			return true
		default:
			return false
		}
	})
}

// TestLink moves bytes both ways, tells an immediate, and ends.
func TestLink(t *testing.T) {
	_, set, memory, c := ground(t, fakeverbs.Options{}, nil)
	l, q := c.link(set, "p")
	for i, op := range []native.Opcode{native.OpWrite, native.OpRead} {
		from, to := memory, c.memory
		if op == native.OpRead {
			from, to = to, from
		}
		fill(from, byte(i))
		clear(to)
		if err := l.Move(c.move(op, memory)); err != nil || !bytes.Equal(from, to) {
			t.Errorf("opcode %d: %v, or other bytes", op, err)
		}
	}
	imm := uint32(0xcafe)
	m := c.move(native.OpWrite, memory)
	m.Imm = &imm
	if err := errors.Join(q.PostReceive(1), l.Move(m)); err != nil {
		t.Fatal(err)
	}
	var one [1]native.Completion
	if n, err := c.cq.Poll(one[:]); err != nil || n != 1 || one[0].Imm != imm {
		t.Errorf("heard %+v: %v", one, err)
	}
	if s := set.Stats()[0]; s.Engine.Writes != 2*windowBytes || s.Engine.Reads != windowBytes || s.Engine.Paths != 1 {
		t.Errorf("counters %+v", s)
	}
	if at := l.Local(); at.MTU != 1024 || at.Reads != 1 {
		t.Errorf("agreed on %+v", at)
	}
	if err := l.Cut(patience); err != nil {
		t.Error(err)
	}
	done(t, l)
	if err := l.Move(m); !errors.Is(err, initiator.ErrLost) {
		t.Errorf("moved by a link that was cut: %v", err)
	}
}

// TestCutLink: what is under way ends with the cut, its buffer is free then, and packets that come later find a queue
// pair that the client has given up, or change what nobody promised.
func TestCutLink(t *testing.T) {
	nic, set, memory, c := ground(t, fakeverbs.Options{}, nil)
	for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
		l, _ := c.link(set, "p")
		held := nic.Inject(fakeverbs.Rule{
			At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: l.Local().QPN, Times: fakeverbs.Always,
		})
		moved := make(chan error, 1)
		go func() { moved <- l.Move(c.move(op, memory)) }()
		held.Await(1)
		if !nic.Owned(memory) {
			t.Error("nothing is under way")
		}
		if err := l.Cut(patience); err != nil {
			t.Error(err)
		}
		if err := <-moved; !errors.Is(err, initiator.ErrLost) {
			t.Errorf("opcode %d: %v", op, err)
		}
		if nic.Owned(memory) {
			t.Errorf("opcode %d: the adapter has the buffer after the cut", op)
		}
		done(t, l)
		held.Remove()
	}
	if s := set.Stats()[0]; s.Engine.Paths != 0 || s.Ejections != 0 {
		t.Errorf("counters %+v", s)
	}
}

// TestLinkOfARailThatGoesDown fails, and is given back; none is made while the rail is down.
func TestLinkOfARailThatGoesDown(t *testing.T) {
	nic, set, memory, c := ground(t, fakeverbs.Options{}, nil)
	l, _ := c.link(set, "p")
	nic.PortDown(fakeRail)
	done(t, l)
	if err := l.Move(c.move(native.OpWrite, memory)); !errors.Is(err, initiator.ErrLost) {
		t.Errorf("moved: %v", err)
	}
	soon(t, "the rail is down", func() bool { return !set.AnyUp() })
	_, end := c.offer()
	if _, err := set.Link(LinkOptions{Owner: "p", Peer: end}, nil); !errors.Is(err, ErrDown) {
		t.Errorf("linked by a rail that is down: %v", err)
	}
	nic.PortUp(fakeRail)
	soon(t, "the rail is up", set.AnyUp)
	again, _ := c.link(set, "p")
	if err := again.Move(c.move(native.OpWrite, memory)); err != nil {
		t.Error(err)
	}
}

// TestRailGoesDownWhileALinkConnects: it is not made, and nothing is left of it.
func TestRailGoesDownWhileALinkConnects(t *testing.T) {
	for _, at := range []fakeverbs.Point{
		fakeverbs.AtCreateQP, fakeverbs.AtInit, fakeverbs.AtReceive, fakeverbs.AtSend,
	} {
		nic, set, _, c := ground(t, fakeverbs.Options{}, nil)
		hang := nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Hold, Device: fakeRail})
		_, end := c.offer()
		linked := make(chan error, 1)
		go func() {
			_, err := set.Link(LinkOptions{Owner: "p", Peer: end}, nil)
			linked <- err
		}()
		hang.Await(1)
		set.list[0].lower("a test's", nil)
		hang.Release()
		if err := <-linked; !errors.Is(err, ErrDown) && !errors.Is(err, initiator.ErrLost) {
			t.Errorf("at %d: %v", at, err)
		}
		if n := set.Stats()[0].Engine.Paths; n != 0 || len(set.list[0].uses) != 0 {
			t.Errorf("at %d: %d paths are left", at, n)
		}
	}
}

// TestRefusedLinks: whom it may not lead to, whom no address reaches, who waits no longer, and what cannot be meant.
func TestRefusedLinks(t *testing.T) {
	nic, set, memory, c := ground(t, fakeverbs.Options{}, nil)
	first, q := c.link(set, "p")
	if err := first.Move(c.move(native.OpWrite, memory)); err != nil {
		t.Fatal(err)
	}
	_, end := c.offer()
	with := func(change func(*initiator.Endpoint)) initiator.Endpoint {
		e := end
		change(&e)
		return e
	}
	own := first.Local()
	for name, r := range map[string]struct {
		peer initiator.Endpoint
		want error
	}{
		"another's":      {with(func(e *initiator.Endpoint) { e.QPN = q.Number() }), ErrTaken},
		"this node's":    {with(func(e *initiator.Endpoint) { e.QPN, e.GID = own.QPN, own.GID }), ErrTaken},
		"nobody's":       {with(func(e *initiator.Endpoint) { e.GID = [16]byte{} }), initiator.ErrUnreached},
		"a long number":  {with(func(e *initiator.Endpoint) { e.QPN = 1 << 24 }), initiator.ErrLocal},
		"a tiny packet":  {with(func(e *initiator.Endpoint) { e.MTU = 128 }), initiator.ErrLocal},
		"reads nothing":  {with(func(e *initiator.Endpoint) { e.Reads = 0 }), initiator.ErrLocal},
		"a long counter": {with(func(e *initiator.Endpoint) { e.PSN = 1 << 24 }), initiator.ErrLocal},
	} {
		if _, err := set.Link(LinkOptions{Owner: "q", Peer: r.peer}, nil); !errors.Is(err, r.want) {
			t.Errorf("%s: %v, want %v", name, err, r.want)
		}
	}
	if n := set.Stats()[0].Refused; n != 4 { // those that an adapter was asked for
		t.Errorf("%d refused", n)
	}
	hang := nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtReceive, Do: fakeverbs.Hold, Device: fakeRail, Times: fakeverbs.Always,
	})
	var tasks sync.WaitGroup
	for range maxConnects / connectShare { // all the turns of r
		_, e := c.offer()
		tasks.Go(func() {
			if _, err := set.Link(LinkOptions{Owner: "r", Peer: e}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	hang.Await(maxConnects / connectShare)
	stopped := make(chan struct{})
	close(stopped)
	if _, err := set.Link(LinkOptions{Owner: "r", Peer: end}, stopped); !errors.Is(err, ErrGivenUp) {
		t.Errorf("waited for a turn: %v", err)
	}
	hang.Remove()
	hang.Release()
	tasks.Wait()
	if err := first.Move(c.move(native.OpWrite, memory)); err != nil {
		t.Errorf("another's link: %v", err)
	}
}

// syncBuffer is a buffer for several writers.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestLinkOnAHungAdapter: a cut says that the queue pair is not reset, the buffer stays out, the log tells of it, and
// the link is given back once the adapter does it.
func TestLinkOnAHungAdapter(t *testing.T) {
	var log syncBuffer
	nic, set, memory, c := ground(t, fakeverbs.Options{Lenient: true}, slog.New(slog.NewTextHandler(&log, nil)))
	l, _ := c.link(set, "p")
	held := nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: l.Local().QPN, Times: fakeverbs.Always,
	})
	hang := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReset, Do: fakeverbs.Hold, Device: fakeRail})
	moved := make(chan error, 1)
	go func() { moved <- l.Move(c.move(native.OpRead, memory)) }()
	held.Await(1)
	begin := time.Now()
	if err := l.Cut(shortly); !errors.Is(err, initiator.ErrStuck) || time.Since(begin) < shortly {
		t.Errorf("cut after %v: %v", time.Since(begin), err)
	}
	soon(t, "the log tells of it", func() bool { return strings.Contains(log.String(), "level=ERROR") })
	select {
	case err := <-moved:
		t.Errorf("the buffer came back before the reset: %v", err)
	default:
	}
	hang.Release()
	if err := errors.Join(l.Cut(patience)); err != nil {
		t.Error(err)
	}
	if err := <-moved; !errors.Is(err, initiator.ErrLost) {
		t.Errorf("moved: %v", err)
	}
	done(t, l)
}

// TestLinksEndWithTheirRails: closing the rails ends what is under way, and no link is made after it.
func TestLinksEndWithTheirRails(t *testing.T) {
	nic, set, memory, c := ground(t, fakeverbs.Options{}, nil)
	l, _ := c.link(set, "p")
	held := nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: l.Local().QPN, Times: fakeverbs.Always,
	})
	moved := make(chan error, 1)
	go func() { moved <- l.Move(c.move(native.OpWrite, memory)) }()
	held.Await(1)
	_, end := c.offer()
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-moved; !errors.Is(err, initiator.ErrLost) {
		t.Errorf("moved: %v", err)
	}
	select {
	case <-l.Done():
	default:
		t.Error("closed before a link has ended")
	}
	if _, err := set.Link(LinkOptions{Owner: "p", Peer: end}, nil); !errors.Is(err, initiator.ErrClosed) {
		t.Errorf("linked: %v", err)
	}
}
