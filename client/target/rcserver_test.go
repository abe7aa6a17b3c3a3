package target_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// device is the machine's own library where the harness says that it has adapters.
func device(t *testing.T) *native.Library {
	t.Helper()
	if os.Getenv("PENSTOCK_TEST_VERBS") != "device" {
		return nil
	}
	l, err := native.Open(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func upRails(t *testing.T, l *native.Library) []rail.Rail {
	t.Helper()
	rails, _, err := rail.Discover(l, rail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var up []rail.Rail
	for _, r := range rails {
		if r.Up {
			up = append(up, r)
		}
	}
	if len(up) == 0 {
		t.Fatal("no rail is up")
	}
	return up
}

func openDevices(t *testing.T, l *native.Library, names ...string) *target.Devices {
	t.Helper()
	d, err := target.OpenDevices(l, names)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// rcServer is the other end of an rc session, played by the test with queue pairs of its own.
type rcServer struct {
	*server
	rails  []rail.Rail // by index
	ports  []*serverPort
	giveUp context.CancelFunc // of Dial
}

// serverPort is what the server opened for a rail.
type serverPort struct {
	device *native.Device
	pd     *native.PD
	cq     *native.CQ
}

// serverPath is one of the server's queue pairs.
type serverPath struct {
	id   uint64
	rail int
	port *serverPort
	own  native.Path
	peer frame.PathBody
	qp   *native.QP
}

// dialing is a Dial under way.
type dialing struct {
	conn *target.Conn
	err  error
}

// hello begins a session: the connection is proved, and nothing else has been sent.
func hello(t *testing.T, d *target.Devices, rails []rail.Rail, l *native.Library) (*rcServer, <-chan dialing) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	secret := [32]byte{1, 2, 3}
	dialed := make(chan dialing, 1)
	offer := frame.SessionReply{
		Session: [16]byte{7}, Secret: token.SecretFrom(secret), Fabric: "rc", Network: "tcp",
		Address: listener.Addr().String(),
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		c, err := target.Dial(ctx, offer, target.Options{Devices: d})
		dialed <- dialing{c, err}
	}()
	nc, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, err = frame.Accept(nc, keeper{secret}, frame.ReadyBody{
		RegionBytes: 1 << 40, Regions: 9, Conns: 1, Payload: frame.MaxPayload, IdleMillis: 600_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &rcServer{server: &server{t: t, conn: nc}, rails: rails, giveUp: cancel}
	_ = nc.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() {
		cancel()
		_ = nc.Close()
		select { // nobody took it
		case d := <-dialed:
			if d.conn != nil {
				_ = d.conn.Close()
			}
		default:
		}
		s.closePorts()
	})
	for _, r := range rails {
		s.ports = append(s.ports, s.openPort(l, r))
	}
	return s, dialed
}

func must[T any](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (s *rcServer) openPort(l *native.Library, r rail.Rail) *serverPort {
	dev, err := l.OpenDevice(r.Device)
	p := &serverPort{device: must(s.t, dev, err)}
	pd, err := dev.NewPD()
	p.pd = must(s.t, pd, err)
	cq, err := dev.NewCQ(64)
	p.cq = must(s.t, cq, err)
	return p
}

func (s *rcServer) closePorts() {
	for _, p := range s.ports {
		if err := errors.Join(p.cq.Close(), p.pd.Close(), p.device.Close()); err != nil {
			s.t.Errorf("server's end: %v", err)
		}
	}
	s.ports = nil
}

// list sends RAILS; without arguments all are up.
func (s *rcServer) list(up ...bool) {
	s.t.Helper()
	var rails []frame.Rail
	for i, r := range s.rails {
		rails = append(rails, frame.Rail{
			Index: uint8(i), Up: len(up) == 0 || up[i], MTU: 3, LID: r.LID, GID: r.GID,
		})
	}
	s.send(frame.Header{Type: frame.Rails}, frame.EncodeRails(rails))
}

// offered takes a PATH and makes the server's queue pair for it.
func (s *rcServer) offered() *serverPath {
	s.t.Helper()
	h, body := s.expect(frame.Path)
	peer, err := frame.DecodePath(body)
	if err != nil {
		s.t.Fatal(err)
	}
	r := s.rails[h.Region]
	p := &serverPath{id: h.ID, rail: int(h.Region), port: s.ports[h.Region], peer: peer}
	p.own = native.Path{
		Port: r.Port, GIDIndex: r.GIDIndex, HopLimit: 64, PSN: 4711, Timeout: 10, Retries: 1, RNRRetries: 1,
	}
	qp, err := p.port.pd.NewQP(p.port.cq, native.PairOptions{Depth: 16})
	p.qp = must(s.t, qp, err)
	s.t.Cleanup(func() {
		if err := p.qp.Close(); err != nil {
			s.t.Errorf("server's queue pair: %v", err)
		}
	})
	return p
}

// body is what PATH_OK says.
func (s *rcServer) body(p *serverPath) frame.PathBody {
	r := s.rails[p.rail]
	return frame.PathBody{
		QPN: p.qp.Number(), PSN: p.own.PSN, GID: r.GID, LID: r.LID, MTU: 3, Device: p.peer.Device, Reads: 1,
	}
}

func (s *rcServer) ok(id uint64, b frame.PathBody) {
	s.t.Helper()
	body := make([]byte, frame.PathBytes)
	b.Encode(body)
	s.send(frame.Header{Type: frame.PathOK, ID: id}, body)
}

// connect connects the server's queue pair.
func (s *rcServer) connect(p *serverPath) {
	s.t.Helper()
	peer := native.Peer{
		QPN: p.peer.QPN, PSN: p.peer.PSN, GID: p.peer.GID, LID: p.peer.LID, MTU: 1024, Reads: 1,
	}
	if err := errors.Join(p.qp.Init(p.own), p.qp.Receive(p.own, peer), p.qp.Send(p.own, peer)); err != nil {
		s.t.Fatal(err)
	}
}

// up connects the server's queue pair and waits for PATH_UP.
func (s *rcServer) up(p *serverPath) *serverPath {
	s.t.Helper()
	s.connect(p)
	s.ok(p.id, s.body(p))
	if h, _ := s.expect(frame.PathUp); h.ID != p.id {
		s.t.Fatalf("path %d is up, want %d", h.ID, p.id)
	}
	return p
}

// dialRC opens a session with a path for each rail.
func dialRC(
	t *testing.T, d *target.Devices, l *native.Library, rails ...rail.Rail,
) (*rcServer, *target.Conn, []*serverPath) {
	t.Helper()
	s, dialed := hello(t, d, rails, l)
	s.list()
	var paths []*serverPath
	for range rails {
		paths = append(paths, s.offered())
	}
	for _, p := range paths {
		s.up(p)
	}
	done := <-dialed
	if done.err != nil {
		t.Fatal(done.err)
	}
	t.Cleanup(func() { _ = done.conn.Close() })
	return s, done.conn, paths
}

// keyed is a region as the server knows it.
type keyed struct {
	number, address, size uint64
	keys                  []uint32
}

// registerRC announces memory and plays the server's answer.
func registerRC(t *testing.T, s *rcServer, c *target.Conn, m *target.Memory) (*target.Region, keyed) {
	t.Helper()
	registered := make(chan *target.Region, 1)
	go func() {
		r, err := c.Register(context.Background(), m)
		if err != nil {
			t.Errorf("register: %v", err)
		}
		registered <- r
	}()
	h, body := s.expect(frame.Keyed)
	keys, err := frame.DecodeKeys(body)
	if err != nil || h.Size != uint64(len(m.Bytes())) {
		t.Fatalf("%d bytes, %v", h.Size, err)
	}
	s.send(frame.Header{Type: frame.RegionOK, Region: h.Region}, nil)
	return <-registered, keyed{h.Region, h.Offset, h.Size, keys}
}

// move is one work request of the server, whose memory is local. It returns how it completed.
func (s *rcServer) move(p *serverPath, op native.Opcode, k keyed, off int, local []byte) native.Status {
	s.t.Helper()
	status, err := s.tryMove(p, op, k, off, local)
	if err != nil {
		s.t.Fatal(err)
	}
	return status
}

func (s *rcServer) tryMove(
	p *serverPath, op native.Opcode, k keyed, off int, local []byte,
) (native.Status, error) {
	s.t.Helper()
	mr, err := p.port.pd.Register(local, native.LocalWrite)
	if err != nil {
		return 0, err
	}
	s.t.Cleanup(func() {
		if err := mr.Close(); err != nil {
			s.t.Error(err)
		}
	})
	_, err = p.qp.Post([]native.Work{{
		ID: 1, Local: mr.Addr(), Remote: k.address + uint64(off), Length: uint32(len(local)), LKey: mr.LKey(),
		RKey: k.keys[p.peer.Device], Op: op, Signal: true,
	}})
	if err != nil {
		return 0, err
	}
	return p.complete()
}

// complete waits for one completion.
func (p *serverPath) complete() (native.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var done [1]native.Completion
	for {
		if err := p.port.cq.Arm(); err != nil {
			return 0, err
		}
		n, err := p.port.cq.Poll(done[:])
		if n > 0 || err != nil {
			return done[0].Status, err
		}
		if err := p.port.cq.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// closed waits for the end of the session.
func (s *rcServer) closed(c *target.Conn) {
	s.t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		s.t.Fatal("session lives")
	}
	if !errors.Is(c.Err(), target.ErrClosed) {
		s.t.Error(c.Err())
	}
}

// tryReceive returns the next frame; false: the client has hung up.
func (s *rcServer) tryReceive() (frame.Header, []byte, bool) {
	var b [frame.HeaderBytes]byte
	h, err := frame.ReadHeader(s.conn, &b)
	if err != nil {
		return h, nil, false
	}
	body := make([]byte, h.Length)
	_, err = io.ReadFull(s.conn, body)
	return h, body, err == nil
}

// adapters are those of the test: the machine's own, or faked ones.
type adapters struct {
	library *native.Library
	nic     *fakeverbs.NIC // nil: the machine's
}

// network has two devices of faked adapters, or the machine's own where the harness says that it has some.
func network(t *testing.T) *adapters {
	t.Helper()
	if l := device(t); l != nil {
		return &adapters{library: l}
	}
	return faked(t, fakeverbs.Options{})
}

// faked makes adapters with two devices, fake0 and fake1.
func faked(t *testing.T, o fakeverbs.Options) *adapters {
	t.Helper()
	if len(o.Devices) == 0 {
		o.Devices = []fakeverbs.Device{{}, {}}
	}
	nic := fakeverbs.New(t, o)
	return &adapters{library: nic.Library(), nic: nic}
}

// dead checks that the queue pair takes nothing any more, as far as the adapters tell.
func (a *adapters) dead(t *testing.T, qpn uint32) {
	t.Helper()
	if a.nic == nil {
		return
	}
	if q, ok := a.nic.QP(qpn); ok && q.State != native.QPError && q.State != native.QPReset { // which follows destruction
		t.Errorf("queue pair in state %d", q.State)
	}
}
