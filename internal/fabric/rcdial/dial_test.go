package rcdial

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const (
	fakeRail, fakeClient = "fake0", "fake1"

	patience = 30 * time.Second
	bufBytes = 1 << 16
)

// ground is the fabric on a fake adapter, and a client's adapter.
type ground struct {
	t      *testing.T
	nic    *fakeverbs.NIC
	rails  *rails.Set
	fabric *Fabric
	arena  *arena.Arena
}

func newGround(t *testing.T, o fakeverbs.Options) *ground {
	t.Helper()
	o.Devices = []fakeverbs.Device{{Name: fakeRail}, {Name: fakeClient}}
	o.Poison = true
	g := &ground{t: t, nic: fakeverbs.New(t, o)}
	var err error
	must := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	g.arena, err = arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 80,
		BufferBytes: bufBytes}}})
	must()
	opened, err := rails.Open(rails.Options{Library: g.nic.Library(), Devices: []string{fakeRail},
		Memory: g.arena.Memory()})
	if err != nil {
		t.Fatal(err)
	}
	g.rails, err = rails.New(opened, nil)
	must()
	g.fabric = New(Options{Rails: g.rails, Permits: func([16]byte, netip.Addr) bool { return true }})
	t.Cleanup(func() {
		f := g.fabric
		if err := errors.Join(f.Close(), g.rails.Close(), g.arena.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		if s := f.Stats(); s.Sessions != 0 || s.OpenWindows != 0 || len(f.all)+len(f.peers)+f.slots != 0 {
			t.Errorf("left over: %+v", s)
		}
		if s := g.rails.Stats()[0].Engine; s.Paths != 0 || s.WorkNow != 0 || s.Unexpected != 0 {
			t.Errorf("left over: %+v", s)
		}
	})
	return g
}

// buffer is one of the arena's.
func (g *ground) buffer(n int) arena.Buffer {
	g.t.Helper()
	b, err := g.arena.Share("fabric").Alloc(context.Background())
	if err != nil {
		g.t.Fatal(err)
	}
	return b.Slice(0, n)
}

// user is a client with memory; each connection of it has a queue pair of its own.
type user struct {
	g      *ground
	dev    *native.Device
	pd     *native.PD
	cq     *native.CQ
	mr     *native.MR
	mtu    int
	gid    [16]byte
	memory []byte
}

func (g *ground) user() *user {
	g.t.Helper()
	u := &user{g: g, memory: make([]byte, bufBytes)}
	var err error
	must := func() {
		g.t.Helper()
		if err != nil {
			g.t.Fatal(err)
		}
	}
	u.dev, err = g.nic.Library().OpenDevice(fakeClient)
	must()
	u.pd, err = u.dev.NewPD()
	must()
	u.cq, err = u.dev.NewCQ(16)
	must()
	u.mr, err = u.pd.Register(u.memory, native.LocalWrite|native.RemoteWrite|native.RemoteRead)
	must()
	port, err := u.dev.Port(1)
	must()
	u.mtu = port.MTU
	for _, e := range port.GIDs {
		if e.Index == 1 {
			u.gid = e.Raw
		}
	}
	g.t.Cleanup(func() {
		if err := errors.Join(u.mr.Close(), u.cq.Close(), u.pd.Close(), u.dev.Close()); err != nil {
			g.t.Errorf("client: %v", err)
		}
	})
	return u
}

// dialled is a connection, as its client has it.
type dialled struct {
	u    *user
	qp   *native.QP
	made fabric.Connection
}

// say is the token of a connect, by the form of the wire.
func say(qpn uint32, gid [16]byte) token.Descriptor {
	b := make([]byte, 44)
	b[0], b[41] = 1, 1
	binary.LittleEndian.PutUint32(b[1:], qpn)
	copy(b[5:], gid[:])
	d, err := token.Parse(hex.EncodeToString(b))
	if err != nil {
		panic(err)
	}
	return d
}

// dial connects a queue pair. wrong is added to the number of the packet that the client expects first.
func (u *user) dial(principal string, wrong uint32) (*dialled, error) {
	const psn = 0xabc
	qp, err := u.pd.NewQP(u.cq, native.PairOptions{Depth: 1})
	if err != nil {
		return nil, err
	}
	own := native.Path{Port: 1, GIDIndex: 1, HopLimit: 64, Access: native.RemoteRead | native.RemoteWrite, PSN: psn,
		MinRNRTimer: 12, Timeout: 14, Retries: 7, RNRRetries: 7}
	if err := qp.Init(own); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	made, err := u.g.fabric.Connect(context.Background(), fabric.ConnectRequest{
		Principal: principal, Peer: netip.AddrPortFrom(client, 1), Token: say(qp.Number(), u.gid), PSN: psn,
	})
	if err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	peer := native.Peer{QPN: made.QPN, PSN: (made.PSN + wrong) & 0xffffff, GID: made.GID, LID: made.LID, MTU: u.mtu,
		Reads: 1}
	if err := errors.Join(qp.Receive(own, peer), qp.Send(own, peer)); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	return &dialled{u: u, qp: qp, made: made}, nil
}

func (u *user) mustDial(principal string, wrong uint32) *dialled {
	u.g.t.Helper()
	d, err := u.dial(principal, wrong)
	if err != nil {
		u.g.t.Fatal(err)
	}
	return d
}

// hangUp ends the connection, and then the queue pair.
func (d *dialled) hangUp() {
	d.u.g.t.Helper()
	err := d.u.g.fabric.Disconnect(context.Background(), d.made.ID)
	if err := errors.Join(err, d.qp.Close()); err != nil {
		d.u.g.t.Error(err)
	}
}

func (d *dialled) open(dir fabric.Direction, n int, change func(*token.Descriptor)) (fabric.Remote, error) {
	t := token.Descriptor{Kind: token.RC, SessionID: d.made.ID, Addr: d.u.mr.Addr(), Size: int64(n), RKey: d.u.mr.RKey()}
	if change != nil {
		change(&t)
	}
	return d.u.g.fabric.Open(context.Background(), t, fabric.Grant{Principal: "alice", Direction: dir, Bytes: int64(n),
		Deadline: time.Now().Add(8 * time.Second)})
}

// move moves a buffer, of which there is one for each connection.
func (d *dialled) move(dir fabric.Direction, b arena.Buffer, change func(*token.Descriptor)) error {
	r, err := d.open(dir, b.Len(), change)
	if err != nil {
		return err
	}
	act := r.Write
	if dir == fabric.ForPut {
		act = r.Read
	}
	err = act(context.Background(), 0, b)
	return errors.Join(err, r.Close())
}

// works moves both ways, and compares.
func (d *dialled) works(b arena.Buffer, seed byte) {
	d.u.g.t.Helper()
	memory := d.u.memory[:b.Len()]
	for i, dir := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		from, to := b.Bytes(), memory
		if dir == fabric.ForPut {
			from, to = to, from
		}
		fill(from, seed+byte(i))
		clear(to)
		if err := d.move(dir, b, nil); err != nil || !bytes.Equal(from, to) {
			d.u.g.t.Errorf("direction %d: %v, or other bytes", dir, err)
		}
	}
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ seed
	}
}

// over fails unless nothing is left of the connections.
func (g *ground) over() {
	g.t.Helper()
	fabrictest.Soon(g.t, "nothing is left", func() bool { return g.fabric.Stats().Sessions == 0 })
}

// TestDialled moves bytes both ways by one connection, many times.
func TestDialled(t *testing.T) {
	g := newGround(t, fakeverbs.Options{})
	u := g.user()
	b := g.buffer(bufBytes)
	defer b.Release()
	d := u.mustDial("", 0)
	for i := range 10 {
		d.works(b, byte(i))
	}
	d.hangUp()
	if _, err := d.open(fabric.ForGet, 1, nil); !errors.Is(err, fabric.ErrNoSession) {
		t.Errorf("after a disconnect: %v", err)
	}
	g.over()
	if r := g.fabric.Rails(); len(r) != 1 || r[0].Name != fakeRail+"/1" || !r[0].Up || r[0].Fabric != Name {
		t.Errorf("%+v", r)
	}
}

// TestHangUpInTheMiddle: once a disconnect is answered, the adapter has neither buffer nor anything to send, and the
// transfer has failed.
func TestHangUpInTheMiddle(t *testing.T) {
	g := newGround(t, fakeverbs.Options{})
	u := g.user()
	b := g.buffer(bufBytes)
	defer b.Release()
	for _, dir := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		d := u.mustDial("", 0)
		held := g.nic.Inject(fakeverbs.Rule{
			At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: d.made.QPN, Times: fakeverbs.Always,
		})
		moved := make(chan error, 1)
		go func() { moved <- d.move(dir, b, nil) }()
		held.Await(1)
		if !g.nic.Owned(b.Bytes()) {
			t.Error("nothing is under way")
		}
		if err := d.move(dir, b, nil); !errors.Is(err, fabric.ErrBusy) {
			t.Errorf("a second transfer: %v", err)
		}
		d.hangUp()
		if g.nic.Owned(b.Bytes()) {
			t.Error("the adapter has the buffer after a disconnect")
		}
		wantIs(t, "move", <-moved, fabric.ErrFenced, fabric.ErrPeerGone)
		held.Remove()
	}
	g.over()
}

// TestClientsThatFail: one whose queue pair is gone, expects other packets, or has not what its token names costs its
// own connection, soon, and nothing is written.
func TestClientsThatFail(t *testing.T) {
	g := newGround(t, fakeverbs.Options{})
	u := g.user()
	b := g.buffer(1000)
	defer b.Release()
	fill(b.Bytes(), 3)
	living := u.mustDial("", 0)
	for name, c := range map[string]struct {
		wrong  uint32
		dead   bool
		change func(*token.Descriptor)
	}{
		"dead":          {dead: true},
		"other packets": {wrong: 0xffffff}, // one before; those that it takes for old it would acknowledge
		"wrong key":     {change: func(d *token.Descriptor) { d.RKey ^= 0x55 }},
		"below its":     {change: func(d *token.Descriptor) { d.Addr-- }},
		"beyond its":    {change: func(d *token.Descriptor) { d.Addr += bufBytes - 999 }},
		"nowhere":       {change: func(d *token.Descriptor) { d.Addr = 0x1000 }},
		"end of all":    {change: func(d *token.Descriptor) { d.Addr = ^uint64(0) - 1000 }},
	} {
		for _, dir := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
			d := u.mustDial("", c.wrong)
			if c.dead {
				if err := d.qp.Close(); err != nil {
					t.Fatal(err)
				}
			}
			fill(u.memory, 9)
			before := bytes.Clone(u.memory)
			err := d.move(dir, b, c.change)
			wantIs(t, name, err, fabric.ErrTransfer)
			wantNot(t, name, err, fabric.ErrFenced)
			if !bytes.Equal(u.memory, before) {
				t.Errorf("%s: memory was written", name)
			}
			if g.nic.Owned(b.Bytes()) {
				t.Errorf("%s: the adapter has the buffer", name)
			}
			if _, err := d.open(dir, 1, nil); !errors.Is(err, fabric.ErrNoSession) {
				t.Errorf("%s: after a failure: %v", name, err)
			}
			if !c.dead {
				d.hangUp()
			}
		}
	}
	living.works(b, 1)
	living.hangUp()
	g.over()
}

// TestPairsOfOthers: a connection leads neither to a queue pair that has answered to another principal, nor to this
// node's own, nor to an address that no rail reaches.
func TestPairsOfOthers(t *testing.T) {
	g := newGround(t, fakeverbs.Options{})
	u := g.user()
	b := g.buffer(100)
	defer b.Release()
	d := u.mustDial("alice", 0)
	d.works(b, 1)
	for name, c := range map[string]struct {
		token token.Descriptor
		want  error
	}{
		"another's":   {say(d.qp.Number(), u.gid), fabric.ErrNotGranted},
		"this node's": {say(d.made.QPN, d.made.GID), fabric.ErrNotGranted},
		"unreached":   {say(7, netip.MustParseAddr("2001:db8::1").As16()), fabric.ErrNoFabric},
	} {
		_, err := g.fabric.Connect(t.Context(), fabric.ConnectRequest{
			Principal: "bob", Peer: netip.AddrPortFrom(client, 1), Token: c.token, PSN: 1,
		})
		wantIs(t, name, err, c.want)
	}
	d.works(b, 2)
	d.hangUp()
}

// TestPortGoesDown: its connections are gone, and new ones are declined until it is up again.
func TestPortGoesDown(t *testing.T) {
	g := newGround(t, fakeverbs.Options{})
	u := g.user()
	b := g.buffer(100)
	defer b.Release()
	d := u.mustDial("", 0)
	g.nic.PortDown(fakeRail)
	fabrictest.Soon(t, "the rail is down", func() bool { return !g.rails.AnyUp() })
	g.over()
	if _, err := u.dial("", 0); !errors.Is(err, fabric.ErrNoFabric) {
		t.Errorf("connected without a rail: %v", err)
	}
	d.hangUp()
	g.nic.PortUp(fakeRail)
	fabrictest.Soon(t, "the rail is up", g.rails.AnyUp)
	d = u.mustDial("", 0)
	d.works(b, 1)
	d.hangUp()
}

// TestManyConnections: as many as one address may have, at once; one more is refused until one is gone.
func TestManyConnections(t *testing.T) {
	g := newGround(t, fakeverbs.Options{Latency: 50 * time.Microsecond, Jitter: 100 * time.Microsecond, Seed: 1})
	u := g.user()
	var tasks sync.WaitGroup
	all := make([]*dialled, maxPerPeer)
	for i := range all {
		tasks.Go(func() {
			d, err := u.dial("", 0)
			if err != nil {
				t.Error(err)
				return
			}
			all[i] = d
		})
	}
	tasks.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if _, err := u.dial("", 0); !errors.Is(err, fabric.ErrLimit) {
		t.Errorf("one more: %v", err)
	}
	const part = bufBytes / maxPerPeer
	fill(u.memory, 7)
	for i, d := range all {
		tasks.Go(func() {
			b := g.buffer(part)
			defer b.Release()
			at := func(t *token.Descriptor) { t.Addr += uint64(i * part) }
			for round := range 4 {
				if err := d.move(fabric.ForPut, b, at); err != nil {
					t.Error(err)
				}
				want := bytes.Clone(u.memory[i*part:][:part])
				if !bytes.Equal(b.Bytes(), want) {
					t.Errorf("connection %d, round %d: other bytes", i, round)
				}
				fill(b.Bytes(), byte(i+round))
				if err := d.move(fabric.ForGet, b, at); err != nil {
					t.Error(err)
				}
				if !bytes.Equal(b.Bytes(), u.memory[i*part:][:part]) {
					t.Errorf("connection %d, round %d: other bytes in memory", i, round)
				}
			}
		})
	}
	tasks.Wait()
	for _, d := range all {
		tasks.Go(d.hangUp)
	}
	tasks.Wait()
	g.over()
	u.mustDial("", 0).hangUp()
}

// TestHangUpAnywhere: clients hang up at random moments of transfers. From the answer to a disconnect on, their memory
// does not change, and what was told to have succeeded is there. Oracle: the client's own copy of its memory.
func TestHangUpAnywhere(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := newGround(t, fakeverbs.Options{Latency: 100 * time.Microsecond, Jitter: 300 * time.Microsecond,
		PacketTime: 20 * time.Microsecond, Seed: seed})
	var tasks sync.WaitGroup
	for w := range 8 {
		u := g.user()
		tasks.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			b := g.buffer(bufBytes / 2)
			defer b.Release()
			for round := range 12 {
				if err := u.hangUpAnywhere(random, b, byte(round)); err != nil {
					t.Errorf("worker %d, round %d: %v", w, round, err)
				}
			}
		})
	}
	tasks.Wait()
	g.over()
}

func (u *user) hangUpAnywhere(random *rand.Rand, b arena.Buffer, seed byte) error {
	d, err := u.dial("", 0)
	if err != nil {
		return err
	}
	clear(u.memory)
	fill(b.Bytes(), seed)
	moved := make(chan error, 1)
	go func() { moved <- d.move(fabric.ForGet, b, nil) }()
	<-time.After(time.Duration(random.Int64N(int64(3 * time.Millisecond))))
	if err := u.g.fabric.Disconnect(context.Background(), d.made.ID); err != nil {
		return err
	}
	then := bytes.Clone(u.memory) // the queue pair is alive still
	err = <-moved
	<-time.After(time.Duration(random.Int64N(int64(2 * time.Millisecond))))
	if !bytes.Equal(u.memory, then) {
		return errors.New("memory changed after a disconnect")
	}
	n := b.Len()
	switch {
	case err == nil && !bytes.Equal(u.memory[:n], b.Bytes()):
		return errors.New("moved, and not there")
	case err != nil && !errors.Is(err, fabric.ErrFenced) && !errors.Is(err, fabric.ErrNoSession):
		return fmt.Errorf("moved: %w", err)
	case !bytes.Equal(u.memory[n:], make([]byte, bufBytes-n)):
		return errors.New("written beyond the window")
	}
	return d.qp.Close()
}
