package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
)

// Steps at which a raw client ends, in their order.
const (
	stepOffered   = "offered"   // no data connection yet
	stepConnected = "connected" // half of the handshake
	stepReady     = "ready"     // the handshake is done
	stepPath      = "path"      // rc: the node has answered PATH
	stepUp        = "up"        // rc: PATH_UP was sent
	stepAnnounced = "announced" // rc: KEYED was sent, the answer not read
)

// raw says "at" at its step and ends there.
func (w *worker) raw() error {
	offer, err := frame.DecodeSessionReply(bytes.NewReader(w.Offer))
	if err != nil {
		return err
	}
	at := func(step string) {
		if step == w.Step {
			_ = w.out.Encode(report{What: "at"})
			_ = unix.Kill(unix.Getpid(), w.How)
			if w.How == syscall.SIGKILL {
				select {} // it comes
			}
		}
	}
	at(stepOffered)
	c, err := net.Dial(offer.Network, offer.Address)
	if err != nil {
		return err
	}
	if w.Step == stepConnected {
		var hello [frame.HelloBytes]byte
		frame.HelloBody{Session: offer.Session}.Encode(hello[:])
		if err := frame.WriteFrame(c, frame.Header{Type: frame.Hello}, hello[:]); err != nil {
			return err
		}
		at(stepConnected)
	}
	if _, err := frame.Connect(c, offer.Session, offer.Secret.Reveal(), 0); err != nil {
		return err
	}
	at(stepReady)
	if w.Fabric == rc {
		e, err := newEnd(c, offer)
		if err != nil {
			return err
		}
		defer e.close()
		e.step = at
		if err := e.path(); err != nil {
			return err
		}
		if _, err := e.announce(1<<20, 1<<20); err != nil {
			return err
		}
	}
	return w.orders(func(order) error { return nil }) // what was stopped went on: nothing is left to do
}

// end is a hand-made client end of rc: it says what a test wants, true or not.
type end struct {
	conn  net.Conn
	offer frame.SessionReply
	step  func(string)

	library *native.Library
	device  *native.Device
	info    native.DeviceInfo
	port    native.PortInfo
	gid     native.GID
	pd      *native.PD
	cq      *native.CQ
	closers []func() error

	mu      sync.Mutex // of writes
	replies chan frame.Header
	bodies  chan []byte
	broken  chan error
	mute    bool // answers no LOST; set before the first transfer

	rails  []frame.Rail
	lastID uint64
	qp     *native.QP // of the newest path
	region uint64
	tokens uint32
}

// newEnd takes a data connection after its handshake, and opens an adapter.
func newEnd(c net.Conn, offer frame.SessionReply) (*end, error) {
	e := &end{
		conn: c, offer: offer, step: func(string) {},
		replies: make(chan frame.Header, 16), bodies: make(chan []byte, 16), broken: make(chan error, 1),
	}
	e.closers = append(e.closers, c.Close)
	if err := e.open(); err != nil {
		return nil, errors.Join(err, e.close())
	}
	go func() { e.broken <- e.receive() }()
	h, body, err := e.next()
	if err == nil && h.Type != frame.Rails {
		err = fmt.Errorf("frame %d, want the rails", h.Type)
	}
	if err == nil {
		e.rails, err = frame.DecodeRails(body)
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// open takes the first adapter that has a port with an address.
func (e *end) open() error {
	var err error
	if e.library, err = native.Open(native.Options{}); err != nil {
		return err
	}
	e.closers = append(e.closers, e.library.Close)
	list, err := e.library.Devices()
	if err != nil {
		return err
	}
	for _, d := range list {
		if e.device, err = e.library.OpenDevice(d.Name); err != nil {
			return err
		}
		e.closers = append(e.closers, e.device.Close)
		e.info = e.device.Info()
		for number := 1; number <= d.Ports; number++ {
			if e.port, err = e.device.Port(number); err != nil {
				return err
			}
			for _, g := range e.port.GIDs {
				v4 := bytes.HasPrefix(g.Raw[:], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff})
				if e.port.State == native.PortActive && (g.Type == native.GIDInfiniBand || g.Type == native.GIDRoCEv2 && v4) {
					e.gid = g
					return e.domain()
				}
			}
		}
	}
	return errors.New("no port with an address")
}

func (e *end) domain() error {
	var err error
	if e.pd, err = e.device.NewPD(); err != nil {
		return err
	}
	e.closers = append(e.closers, e.pd.Close)
	if e.cq, err = e.device.NewCQ(16); err != nil {
		return err
	}
	e.closers = append(e.closers, e.cq.Close)
	return nil
}

// close undoes everything, the newest first.
func (e *end) close() error {
	var err error
	for len(e.closers) > 0 {
		last := len(e.closers) - 1
		err = errors.Join(err, e.closers[last]())
		e.closers = e.closers[:last]
	}
	return err
}

func (e *end) send(h frame.Header, body []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return frame.WriteFrame(e.conn, h, body)
}

// receive answers LOST, and passes on what answers a question.
func (e *end) receive() error {
	var b [frame.HeaderBytes]byte
	for known := false; ; {
		h, err := frame.ReadHeader(e.conn, &b)
		if err != nil {
			return err
		}
		body := make([]byte, h.Length)
		if _, err := io.ReadFull(e.conn, body); err != nil {
			return err
		}
		switch {
		case h.Type == frame.Lost && e.mute:
		case h.Type == frame.Lost:
			if err := e.send(frame.Header{Type: frame.Fenced, ID: h.ID}, nil); err != nil {
				return err
			}
		case h.Type == frame.Pong || h.Type == frame.Rails && known: // one rail is enough here
		default:
			known = known || h.Type == frame.Rails
			e.replies <- h
			e.bodies <- body
		}
	}
}

// next is the next answer.
func (e *end) next() (frame.Header, []byte, error) {
	select {
	case h := <-e.replies:
		return h, <-e.bodies, nil
	case err := <-e.broken:
		return frame.Header{}, nil, fmt.Errorf("data connection: %w", err)
	case <-time.After(patience()):
		return frame.Header{}, nil, errors.New("no answer on the data connection")
	}
}

// path offers a queue pair on the first rail that is up.
func (e *end) path() error {
	rail := -1
	for _, r := range e.rails {
		if r.Up {
			rail = int(r.Index)
			break
		}
	}
	if rail < 0 {
		return errors.New("no rail is up")
	}
	qp, err := e.pd.NewQP(e.cq, native.PairOptions{Depth: 4})
	if err != nil {
		return err
	}
	e.closers = append(e.closers, qp.Close)
	e.qp = qp
	e.lastID++
	mine := frame.PathBody{
		QPN: qp.Number(), PSN: 4711, GID: e.gid.Raw, LID: e.port.LID, MTU: frame.MTUNumber(e.port.MTU),
		Reads: uint8(min(e.info.MaxReads, 16)),
	}
	var body [frame.PathBytes]byte
	mine.Encode(body[:])
	if err := e.send(frame.Header{
		Type: frame.Path, ID: e.lastID, Region: uint64(rail), Length: frame.PathBytes,
	}, body[:]); err != nil {
		return err
	}
	h, answer, err := e.next()
	if err != nil {
		return err
	}
	if h.Type != frame.PathOK {
		return fmt.Errorf("path: frame %d, status %d", h.Type, h.Status)
	}
	e.step(stepPath)
	peer, err := frame.DecodePath(answer)
	if err != nil {
		return err
	}
	if err := e.join(qp, mine, peer); err != nil {
		return err
	}
	err = e.send(frame.Header{Type: frame.PathUp, ID: e.lastID}, nil)
	e.step(stepUp)
	return err
}

func (e *end) join(qp *native.QP, mine, peer frame.PathBody) error {
	path := native.Path{
		Port: e.port.Number, GIDIndex: e.gid.Index, HopLimit: 64, Access: native.RemoteWrite | native.RemoteRead,
		PSN: mine.PSN, Timeout: 14, Retries: 7, RNRRetries: 7, MinRNRTimer: 12,
	}
	if err := qp.Init(path); err != nil {
		return err
	}
	return qp.Receive(path, native.Peer{
		QPN: peer.QPN, PSN: peer.PSN, GID: peer.GID, LID: peer.LID, MTU: 128 << min(mine.MTU, peer.MTU),
		Reads: int(mine.Reads),
	})
}

// memory is client memory with its registration.
type memory struct {
	number uint64
	bytes  []byte // three equal parts: only the middle one is registered
	mr     *native.MR
}

func (m *memory) part(i int) []byte {
	third := len(m.bytes) / 3
	return m.bytes[i*third : (i+1)*third]
}

// announce registers n bytes with equal parts before and behind them, and announces claim bytes from their start on.
func (e *end) announce(n int, claim int64) (*memory, error) {
	whole, err := unix.Mmap(-1, 0, 3*n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	m := &memory{bytes: whole}
	e.closers = append(e.closers, func() error { return unix.Munmap(whole) })
	if m.mr, err = e.pd.Register(m.part(1), native.LocalWrite|native.RemoteWrite|native.RemoteRead); err != nil {
		return nil, err
	}
	e.closers = append(e.closers, func() error {
		if m.mr == nil {
			return nil
		}
		return m.mr.Close()
	})
	m.number, err = e.keyed(m.mr.Addr(), claim, m.mr.RKey())
	return m, err
}

// keyed announces what it is told to.
func (e *end) keyed(address uint64, size int64, rkey uint32) (number uint64, err error) {
	e.region++
	body := frame.EncodeKeys([]uint32{rkey})
	if err := e.send(frame.Header{
		Type: frame.Keyed, Region: e.region, Offset: address, Size: uint64(size), Length: uint32(len(body)),
	}, body); err != nil {
		return 0, err
	}
	e.step(stepAnnounced)
	h, _, err := e.next()
	if err == nil && h.Type != frame.RegionOK {
		err = fmt.Errorf("region: frame %d, status %d", h.Type, h.Status)
	}
	return e.region, err
}

// answer is what the node said to a transfer.
type answer struct {
	status int
	code   string
	header http.Header
}

// transfer asks for one: a GET or PUT of the window of a region.
func (n *node) transfer(e *end, method, key string, region uint64, off, size int64) answer {
	n.t.Helper()
	e.tokens++
	d := token.Descriptor{
		Kind: token.Session, Fabric: rc, SessionID: e.offer.Session,
		Region: frame.JoinRegion(uint32(region), e.tokens), Addr: uint64(off), Size: size,
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), patience())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, n.Endpoint+"/"+bucket+"/"+key, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("X-Amz-Rdma-Token", d.Encode())
	// Longer than an adapter tries and the node waits for another path.
	req.Header.Set("X-Penstock-Rdma-Deadline-Ms", strconv.FormatInt(slow(15*time.Second).Milliseconds(), 10))
	if err := s3.NewSigner().Sign(req, s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: n.AccessKey, SecretKey: n.SecretKey},
		Region:      "us-east-1", Time: time.Now(), PayloadHash: "UNSIGNED-PAYLOAD",
	}); err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatalf("%s %s: no answer: %v", method, key, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, key, err)
	}
	_, code, _ := strings.Cut(string(body), "<Code>")
	code, _, _ = strings.Cut(code, "</Code>")
	return answer{resp.StatusCode, code, resp.Header}
}

// dial opens a data connection.
func dial(offer frame.SessionReply) (net.Conn, error) {
	c, err := net.Dial(offer.Network, offer.Address)
	if err != nil {
		return nil, err
	}
	if _, err := frame.Connect(c, offer.Session, offer.Secret.Reveal(), 0); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}
