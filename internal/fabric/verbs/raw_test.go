package verbs

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const (
	patience = 30 * time.Second
	shortly  = 200 * time.Millisecond
	bufBytes = 1 << 20
)

// What docs/operations.md says of rails.
const (
	lapsesToEject = 4
	maxConnects   = 64
	connectShare  = 4 // a quarter
	reasonEjected = "ejected"
)

// setup is the options of a fabric with rails of its own.
type setup struct {
	Options
	Library *native.Library
	Devices []string
	Memory  []byte
}

// railed is a fabric with rails of its own.
type railed struct{ *Fabric }

// open opens the rails and the fabric on them.
func (o setup) open() (*railed, error) {
	opened, err := rails.Open(rails.Options{Library: o.Library, Devices: o.Devices, Memory: o.Memory, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	if o.Rails, err = rails.New(opened, o.Logger); err != nil {
		return nil, err
	}
	f, err := New(o.Options)
	if err != nil {
		return nil, errors.Join(err, o.Rails.Close())
	}
	return &railed{f}, nil
}

// Close closes the fabric and then the rails. What a stuck rail has held up has ended once that is closed.
func (f *railed) Close() error {
	err, rails := f.Fabric.Close(), f.rails.Close()
	if err != nil && rails == nil {
		err = f.Fabric.Close()
	}
	return errors.Join(err, rails)
}

// bench is a fabric on a fake adapter, with an arena. At its end nothing may be left of either.
type bench struct {
	t      *testing.T
	nic    *fakeverbs.NIC
	fabric *railed
	arena  *arena.Arena
}

// tune changes the setup of a bench.
type tune func(*setup)

func newBench(t *testing.T, n fakeverbs.Options, tunes ...tune) *bench {
	t.Helper()
	nic := fakeNIC(t, n)
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 16, BufferBytes: bufBytes}}})
	if err != nil {
		t.Fatal(err)
	}
	o := fakeSetup(nic, fabric.NewLedger(fabric.Limits{}), a.Memory())
	for _, change := range tunes {
		change(&o)
	}
	f, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t, nic, f, a}
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), a.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		if s := f.Stats(); s.Sessions != 0 || s.Regions != 0 || s.OpenWindows != 0 {
			t.Errorf("left over: %+v", s)
		}
		for _, r := range f.rails.Stats() {
			if r.Engine.Paths != 0 || r.Engine.WorkNow != 0 || r.Engine.Unexpected != 0 {
				t.Errorf("left over on %s: %+v", r.Name, r.Engine)
			}
		}
	})
	return b
}

// buffer is one of the arena's, which the caller gives back.
func (b *bench) buffer(n int) arena.Buffer {
	b.t.Helper()
	buf, err := b.arena.Share("fabric").Alloc(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return buf.Slice(0, n)
}

// rail is the reading of a rail.
func (b *bench) rail(index int) rails.Stats { return b.fabric.rails.Stats()[index] }

// soon polls.
var soon = fabrictest.Soon

// soonOr waits for something that need not come.
func soonOr(limit time.Duration, ok func() bool) {
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end.C:
			return
		case <-tick.C:
		}
	}
}

// liveSessions are the server's ends.
func (b *bench) liveSessions() map[*session]struct{} {
	b.fabric.mu.Lock()
	defer b.fabric.mu.Unlock()
	return maps.Clone(b.fabric.sessions)
}

// numbers are those of the session's queue pairs.
func (s *session) numbers() (qpns []uint32) {
	s.mu.Lock()
	paths := s.connected()
	s.mu.Unlock()
	for _, p := range paths {
		qpns = append(qpns, p.lane.Local().QPN)
	}
	return qpns
}

// paths is how many of all sessions live.
func (b *bench) paths() (n int) {
	b.fabric.mu.Lock()
	defer b.fabric.mu.Unlock()
	for s := range b.fabric.sessions {
		s.mu.Lock()
		n += len(s.paths)
		s.mu.Unlock()
	}
	return n
}

// rawClient speaks the protocol frame by frame, so that it can break it.
type rawClient struct {
	b      *bench
	t      *testing.T
	owner  string // principal
	conn   *net.TCPConn
	offer  fabric.SessionOffer
	tokens uint32
	last   uint64 // path

	device *native.Device
	gid    [16]byte
	pd     *native.PD
	cq     *native.CQ
	pairs  map[uint64]*native.QP
	keys   []*native.MR
}

// connect opens a session of principal on a device of the client.
func (b *bench) connect(principal, device string) *rawClient {
	b.t.Helper()
	c := &rawClient{b: b, t: b.t, owner: principal, pairs: map[uint64]*native.QP{}}
	c.openDevice(device)
	b.t.Cleanup(c.end)
	c.dial()
	return c
}

// dial opens the data connection, and takes the first RAILS.
func (c *rawClient) dial() {
	c.t.Helper()
	offer, err := c.b.fabric.NewSession(context.Background(), c.owner)
	if err != nil {
		c.t.Fatal(err)
	}
	c.offer = offer
	conn, err := net.Dial("tcp", offer.Address)
	if err != nil {
		c.t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	c.conn = conn.(*net.TCPConn)
	if _, err := frame.Connect(conn, offer.ID, offer.Secret.Reveal(), 0); err != nil {
		c.t.Fatal(err)
	}
	if h, _ := c.receive(); h.Type != frame.Rails {
		c.t.Fatalf("%+v instead of the rails", h)
	}
}

func (c *rawClient) openDevice(name string) {
	c.t.Helper()
	var err error
	must := func() {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	c.device, err = c.b.nic.Library().OpenDevice(name)
	must()
	port, err := c.device.Port(1)
	must()
	for _, g := range port.GIDs {
		if g.Index == 1 {
			c.gid = g.Raw
		}
	}
	c.pd, err = c.device.NewPD()
	must()
	c.cq, err = c.device.NewCQ(16)
	must()
}

// end ends the session and closes what the client has.
func (c *rawClient) end() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
	var errs []error
	for _, q := range c.pairs {
		errs = append(errs, q.Close())
	}
	for _, k := range c.keys {
		errs = append(errs, k.Close())
	}
	if err := errors.Join(append(errs, c.cq.Close(), c.pd.Close(), c.device.Close())...); err != nil {
		c.t.Errorf("client: %v", err)
	}
}

func (c *rawClient) send(h frame.Header, body []byte) {
	c.t.Helper()
	if err := frame.WriteFrame(c.conn, h, body); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawClient) receive() (frame.Header, []byte) {
	c.t.Helper()
	var b [frame.HeaderBytes]byte
	h, err := frame.ReadHeader(c.conn, &b)
	body := make([]byte, h.Length)
	if err == nil {
		_, err = io.ReadFull(c.conn, body)
	}
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	return h, body
}

// want receives a frame of a type about an id; RAILS before it is passed over.
func (c *rawClient) want(t frame.Type, id uint64) (frame.Header, []byte) {
	c.t.Helper()
	for {
		h, body := c.receive()
		if h.Type == frame.Rails && t != frame.Rails {
			continue
		}
		if h.Type != t || h.ID != id {
			c.t.Fatalf("%+v instead of a frame of type %d about %d", h, t, id)
		}
		return h, body
	}
}

func (c *rawClient) alive(what string) {
	c.t.Helper()
	c.send(frame.Header{Type: frame.Ping}, nil)
	if h, _ := c.want(frame.Pong, 0); h.Type != frame.Pong {
		c.t.Errorf("%s: %+v instead of a pong", what, h)
	}
}

// ended fails unless the server closes the connection.
func (c *rawClient) ended(what string) {
	c.t.Helper()
	_, err := io.Copy(io.Discard, c.conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Errorf("%s: the session lives", what)
	}
}

// makePair makes a queue pair, and the PATH that offers it.
func (c *rawClient) makePair() (*native.QP, native.Path, frame.PathBody) {
	c.t.Helper()
	q, err := c.pd.NewQP(c.cq, native.PairOptions{Depth: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	own := native.Path{
		Port: 1, GIDIndex: 1, HopLimit: 64, Access: native.RemoteRead | native.RemoteWrite, PSN: 7, MinRNRTimer: 12,
	}
	if err := q.Init(own); err != nil {
		c.t.Fatal(err)
	}
	return q, own, frame.PathBody{QPN: q.Number(), PSN: own.PSN, GID: c.gid, MTU: 3, Reads: 4}
}

// encode is the body of a PATH.
func encode(p frame.PathBody) []byte {
	b := make([]byte, frame.PathBytes)
	p.Encode(b)
	return b
}

// offer offers a new queue pair to a rail and connects it, but for PATH_UP.
func (c *rawClient) offerPath(rail uint64) (id uint64, answer frame.PathBody) {
	c.t.Helper()
	q, own, body := c.makePair()
	c.last++
	id = c.last
	c.pairs[id] = q
	c.send(frame.Header{Type: frame.Path, ID: id, Region: rail}, encode(body))
	_, b := c.want(frame.PathOK, id)
	answer, err := frame.DecodePath(b)
	if err != nil {
		c.t.Fatal(err)
	}
	err = q.Receive(own, native.Peer{
		QPN: answer.QPN, PSN: answer.PSN, GID: answer.GID, LID: answer.LID, MTU: frame.MTUBytes(answer.MTU),
		Reads: int(answer.Reads),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return id, answer
}

// path brings a path up.
func (c *rawClient) path(rail uint64) (id uint64, answer frame.PathBody) {
	c.t.Helper()
	id, answer = c.offerPath(rail)
	c.send(frame.Header{Type: frame.PathUp, ID: id}, nil)
	c.alive("a path came up")
	return id, answer
}

// fence moves a path's queue pair to the error state and says so.
func (c *rawClient) fence(id uint64) {
	c.t.Helper()
	if err := c.pairs[id].Fail(); err != nil {
		c.t.Fatal(err)
	}
	c.send(frame.Header{Type: frame.Fenced, ID: id}, nil)
}

// register makes memory known to the adapter.
func (c *rawClient) register(memory []byte) *native.MR {
	c.t.Helper()
	mr, err := c.pd.Register(memory, native.LocalWrite|native.RemoteWrite|native.RemoteRead)
	if err != nil {
		c.t.Fatal(err)
	}
	c.keys = append(c.keys, mr)
	return mr
}

// announce announces memory, as if it had the key.
func (c *rawClient) announce(region, address, size uint64, keys ...uint32) {
	c.t.Helper()
	c.send(frame.Header{Type: frame.Keyed, Region: region, Offset: address, Size: size}, frame.EncodeKeys(keys))
	for {
		h, _ := c.receive()
		if h.Type == frame.Rails {
			continue
		}
		if h.Type != frame.RegionOK || h.Region != region {
			c.t.Fatalf("region: %+v", h)
		}
		return
	}
}

// region registers and announces memory as region 1.
func (c *rawClient) region(size int) []byte {
	c.t.Helper()
	memory := make([]byte, size)
	mr := c.register(memory)
	c.announce(1, mr.Addr(), uint64(size), mr.RKey())
	return memory
}

// open opens a window from the start of a region on.
func (c *rawClient) open(region uint32, d fabric.Direction, n int64, wait time.Duration) (fabric.Remote, error) {
	c.tokens++
	return c.b.fabric.Open(context.Background(), token.Descriptor{
		Kind: token.Session, Fabric: Name, SessionID: c.offer.ID, Region: frame.JoinRegion(region, c.tokens), Size: n,
	}, fabric.Grant{Principal: c.owner, Direction: d, Bytes: n, Deadline: time.Now().Add(wait)})
}

// mustOpen is open that has to work.
func (c *rawClient) mustOpen(d fabric.Direction, n int64, wait time.Duration) fabric.Remote {
	c.t.Helper()
	r, err := c.open(1, d, n, wait)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// works moves a buffer both ways through region 1.
func (c *rawClient) works(memory []byte) {
	c.t.Helper()
	buf := c.b.buffer(len(memory))
	defer buf.Release()
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		r := c.mustOpen(d, int64(len(memory)), patience)
		move, from, to := r.Write, buf.Bytes(), memory
		if d == fabric.ForPut {
			move, from, to = r.Read, memory, buf.Bytes()
		}
		fill(from, byte(d))
		clear(to)
		if err := errors.Join(move(context.Background(), 0, buf), r.Close()); err != nil {
			c.t.Fatalf("direction %d: %v", d, err)
		}
		if string(from) != string(to) {
			c.t.Fatalf("direction %d: the bytes differ", d)
		}
	}
}

// fill fills memory with a pattern of its positions.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ seed
	}
}

func mapped(text string) [16]byte { return netip.MustParseAddr(text).As16() }
