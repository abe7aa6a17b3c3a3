package target

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// Limits of the paths of a session.
const (
	// maxPaths is docs/wire.md's bound.
	maxPaths = 16
	// steadyLife: a path that lived so long failed for a reason of the moment, and the next is offered at once.
	steadyLife = 10 * time.Second
	// firstDelay and maxDelay bound the wait before a pair that failed again is tried again: an adapter takes up to
	// two seconds to find that a peer does not answer, and each failure costs its transfers that time.
	firstDelay = 100 * time.Millisecond
	maxDelay   = 5 * time.Second
	// idleLook is how often ports are looked at without a reason, while a rail has no path; adapters in use tell of
	// changes, others do not. steadyLook is how often when all have: another port could only be a better one.
	idleLook   = 30 * time.Second
	steadyLook = 5 * time.Minute
	// recentLook is how old a look of another session, or of who asked whether a rail is up, may be at the start. A look
	// opens every adapter and reads tables of hundreds of entries.
	recentLook = time.Second
	// pathlessWait is how long a session lives without a path: a rail that comes back within it costs no new session.
	pathlessWait = 2 * time.Second

	cqDepth = 16 // nothing is ever posted here; drivers refuse queues of no depth
	qpDepth = 1
	maxRead = 255 // RDMA READs that are answered at once, in a byte
)

// Attributes of a queue pair that only answers. Its packets cross routers; 12 is a timer of 0.64 ms, and never used.
const (
	hopLimit    = 64
	minRNRTimer = 12
)

var (
	errPathless = errors.New("target: no path left")
	errAdapter  = errors.New("target: adapter does not let go of a queue pair or of memory")
)

// paths are the queue pairs of an rc session and what they stand on. The receiver of the connection connects and
// fails them as the server says; keep offers them and fails them as the adapters say.
type paths struct {
	conn    *Conn
	shared  *Devices
	wake    chan struct{} // tells keep to look; holds one
	first   chan error    // once: whether the session has got a path; holds one
	dead    chan struct{} // closed, after close, when no queue pair can be reached any more; never when one is stuck
	settled chan struct{} // closed when the adapters have let go of everything

	eventMu sync.Mutex
	events  []event

	mu       sync.Mutex
	closed   bool
	calls    sync.WaitGroup // of the library about queue pairs, without mu; none begins once closed
	pins     sync.WaitGroup // the same about memory, which takes long when there is much of it
	decided  bool           // first has been told; devices do not change any more
	hopeless bool           // Dial has failed, and is about to end the session
	rails    []frame.Rail   // the server's; nil: not known yet
	devices  []*local       // by their number in keys and frames
	retiring int            // paths that are out of live and not fenced yet
	changed  bool           // since the last look for something to offer
	since    time.Time      // with changed: the look must not be older
	live     map[uint64]*path
	last     uint64            // number of the last path
	strange  map[[16]byte]bool // GIDs that the server does not take for ours
	delays   map[pairing]delay
	refusal  error     // of the last offer that came to nothing
	pathless time.Time // since when no path is live; zero: one is
	keys     map[*Region][]*native.MR
	exposed  map[*Region]bool // an adapter can still reach it
}

// event is one of an adapter's.
type event struct {
	device *device
	native.Event
}

// local is an adapter in its role for one session.
type local struct {
	number uint8
	device *device
	pd     *native.PD
	cq     *native.CQ

	// guarded by paths.mu
	lost  bool
	stuck int // queue pairs that could be neither failed nor destroyed
}

// pairing names a rail of the server and a port of ours.
type pairing struct {
	rail uint8
	port string
}

// delay is when a pairing that failed may be tried again, and how long to wait after the next failure.
type delay struct {
	until time.Time
	wait  time.Duration
}

// path is one queue pair. Whoever takes it out of paths.live owns it.
type path struct {
	id    uint64
	on    *local
	pair  pairing
	port  rail.Rail
	qp    *native.QP
	own   native.Path
	reads uint8 // offered

	// guarded by paths.mu
	up      bool // the server has connected its end, and we ours
	doomed  bool // failed before it was up
	joining bool // the receiver connects it, and owns it until it has
	since   time.Time
	down    error // of failing it when everything is closed
}

func newPaths(c *Conn, d *Devices) *paths {
	return &paths{
		conn: c, shared: d, wake: make(chan struct{}, 1), first: make(chan error, 1),
		dead: make(chan struct{}), settled: make(chan struct{}),
		live: make(map[uint64]*path), strange: make(map[[16]byte]bool), delays: make(map[pairing]delay),
		keys: make(map[*Region][]*native.MR), exposed: make(map[*Region]bool),
	}
}

// open waits for the first path.
func (p *paths) open(ctx context.Context) error {
	p.conn.tasks.Go(p.keep)
	select {
	case err := <-p.first:
		if err != nil && !errors.Is(err, ErrRefused) {
			err = fmt.Errorf("%w: no path: %w", ErrRefused, err)
		}
		return err
	case <-p.conn.ended:
		return p.conn.Err()
	case <-ctx.Done():
		return fmt.Errorf("target: open paths: %w", context.Cause(ctx))
	}
}

// begin lets the caller register memory, or take it back, until pins.Done; false: everything is being closed.
func (p *paths) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.pins.Add(1)
	return true
}

func (p *paths) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// notice is told by an adapter; it does not block.
func (p *paths) notice(d *device, e native.Event) {
	p.eventMu.Lock()
	p.events = append(p.events, event{d, e})
	p.eventMu.Unlock()
	p.look()
}

// keep offers paths until the session ends.
func (p *paths) keep() {
	timer := time.NewTimer(maxDelay)
	defer timer.Stop()
	for {
		wait, err := p.round()
		if err != nil {
			p.conn.end(err)
			return
		}
		timer.Reset(wait)
		select {
		case <-p.conn.ended:
			return
		case <-p.wake:
		case <-timer.C:
			p.lookAgain()
		}
	}
}

// round takes the adapters' events and offers the paths that are wanted. It returns when to look again.
func (p *paths) round() (time.Duration, error) {
	p.eventMu.Lock()
	events := p.events
	p.events = nil
	p.eventMu.Unlock()
	var failures []error
	for _, e := range events {
		for _, t := range p.struck(e) { // each of them, since the end of the session waits for all
			failures = append(failures, p.retire(t))
		}
	}
	if err := errors.Join(failures...); err != nil {
		return 0, err
	}
	since, may := p.mayOffer()
	if !may {
		return p.judge()
	}
	rails, _, err := p.shared.rails(since)
	if err != nil {
		p.refused(err)
	}
	ports := subnets(rails)
	for {
		t := p.next(ports)
		if t == nil {
			break
		}
		if err := p.offer(t); err != nil {
			return 0, err
		}
	}
	return p.judge()
}

// struck takes out the paths that an adapter's event has ended. Of one that is not up, the server is told when it has
// answered and our end is connected.
func (p *paths) struck(e event) []*path {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(0)
	for _, l := range p.devices {
		l.lost = l.lost || (l.device == e.device && e.Type == native.EventDeviceFatal)
	}
	var out []*path
	for id, t := range p.live {
		if t.on.device != e.device {
			continue
		}
		switch e.Type {
		case native.EventDeviceFatal:
		case native.EventPortDown:
			if t.port.Port != e.Port {
				continue
			}
		case native.EventQPFatal:
			if t.qp.Number() != e.QPN {
				continue
			}
		default:
			continue
		}
		if !t.up {
			t.doomed = true
			continue
		}
		delete(p.live, id)
		p.failed(t.pair, t.since)
		p.calls.Add(1) // mu is held and live not empty, so nothing is closed yet
		p.retiring++
		out = append(out, t)
	}
	return out
}

// failed puts off the next try of a pairing. The caller holds mu.
func (p *paths) failed(pair pairing, since time.Time) {
	p.change(0)
	d := p.delays[pair]
	if !since.IsZero() && time.Since(since) > steadyLife {
		d.wait = 0
	}
	p.delays[pair] = delay{until: time.Now().Add(d.wait), wait: min(max(2*d.wait, firstDelay), maxDelay)}
}

func (p *paths) refused(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusal = err
}

// change asks for another look, for which one of that age will do. The caller holds mu.
func (p *paths) change(age time.Duration) {
	if since := time.Now().Add(-age); !p.changed || since.After(p.since) {
		p.changed, p.since = true, since
	}
}

// mayOffer tells, once for each change, whether there may be something to offer, and how old the look may be that
// shows it.
func (p *paths) mayOffer() (since time.Time, may bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retiring > 0 {
		return since, false // what changed is looked at when FENCED is sent: the server counts such a path until then
	}
	may = p.changed && p.rails != nil && !p.closed && !p.hopeless
	p.changed = false
	return p.since, may
}

// lookAgain shares its look with the other sessions, whose turns are about as often.
func (p *paths) lookAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(idleLook / 2)
}

// next chooses what to offer: each rail that is up shall have a path from the port that reaches it best, whatever
// others it has. nil: nothing now. The caller offers it.
func (p *paths) next(ports []port) *path {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.live) >= maxPaths {
		return nil
	}
	live := map[pairing]bool{}
	for _, t := range p.live {
		live[t.pair] = true
	}
	now := time.Now()
	count := map[string]int{}
	for _, r := range p.rails {
		i := choose(ports, r, count, func(o port) bool {
			pair := pairing{r.Index, o.Name()}
			return r.Up && o.Up && !p.strange[o.GID] && p.reachable(o.Device) && (live[pair] || p.due(pair, now))
		})
		if i < 0 {
			continue
		}
		name := ports[i].Name()
		count[name]++
		if pair := (pairing{r.Index, name}); !live[pair] {
			p.calls.Add(1)
			return &path{port: ports[i].Rail, pair: pair}
		}
	}
	return nil
}

// due tells whether a pairing may be tried: by Dial once, later when its delay is over. The caller holds mu.
func (p *paths) due(pair pairing, now time.Time) bool {
	d, tried := p.delays[pair]
	return !tried || (p.decided && !now.Before(d.until))
}

// reachable tells whether the session has the device, or may take it. The caller holds mu.
func (p *paths) reachable(name string) bool {
	for _, l := range p.devices {
		if l.device.name == name {
			return !l.lost
		}
	}
	return !p.decided && len(p.devices) < frame.MaxDevices
}

// offer makes the queue pair of a path and sends it to the server. An adapter that refuses puts the pairing off.
// Errors: of the connection; errAdapter.
func (p *paths) offer(t *path) error {
	err := p.prepare(t)
	p.mu.Lock()
	if err != nil || p.closed {
		p.refusal = err
		p.failed(t.pair, time.Time{})
		p.mu.Unlock()
		p.look()
		if t.qp != nil {
			err = p.bury(t)
		} else {
			err = nil
		}
		p.calls.Done()
		return err
	}
	p.last++
	t.id, t.since = p.last, time.Now()
	p.live[t.id] = t
	p.mu.Unlock()
	p.calls.Done()
	body := make([]byte, frame.PathBytes)
	frame.PathBody{
		QPN: t.qp.Number(), PSN: t.own.PSN, GID: t.port.GID, LID: t.port.LID, MTU: frame.MTUNumber(t.port.MTU),
		Device: t.on.number, Reads: t.reads,
	}.Encode(body)
	h := frame.Header{Type: frame.Path, ID: t.id, Region: uint64(t.pair.rail)}
	return p.conn.links[0].sendWith(h, extra{body: body})
}

// prepare opens the device, if need be, and makes a queue pair that can be connected.
func (p *paths) prepare(t *path) (err error) {
	if t.on, err = p.local(t.port.Device); err != nil {
		return err
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	const psnBits = 24
	t.own = native.Path{
		Port: t.port.Port, GIDIndex: t.port.GIDIndex, HopLimit: hopLimit, MinRNRTimer: minRNRTimer,
		Access: native.RemoteRead | native.RemoteWrite, PSN: binary.LittleEndian.Uint32(random[:]) >> (32 - psnBits),
	}
	t.reads = uint8(min(max(t.on.device.verbs.Info().MaxReads, 1), maxRead))
	if t.qp, err = t.on.pd.NewQP(t.on.cq, native.PairOptions{Depth: qpDepth}); err != nil {
		return fmt.Errorf("target: make queue pair on %s: %w", t.pair.port, err)
	}
	if err := t.qp.Init(t.own); err != nil {
		return fmt.Errorf("target: prepare queue pair on %s: %w", t.pair.port, err)
	}
	return nil
}

// local returns the session's share of a device; only keep calls it.
func (p *paths) local(name string) (*local, error) {
	p.mu.Lock()
	for _, l := range p.devices {
		if l.device.name == name {
			p.mu.Unlock()
			return l, nil
		}
	}
	number := uint8(len(p.devices))
	p.mu.Unlock()
	dev, err := p.shared.use(name, p)
	if err != nil {
		return nil, err
	}
	l := &local{number: number, device: dev}
	if l.pd, err = dev.verbs.NewPD(); err == nil {
		l.cq, err = dev.verbs.NewCQ(cqDepth)
	}
	if err != nil {
		l.close(p)
		return nil, fmt.Errorf("target: use adapter %s: %w", name, err)
	}
	p.mu.Lock()
	p.devices = append(p.devices, l)
	p.mu.Unlock()
	return l, nil
}

func (l *local) close(p *paths) {
	if l.cq != nil {
		_ = l.cq.Close() // refused only while a queue pair is stuck, which is counted
	}
	if l.pd != nil {
		_ = l.pd.Close() // as above, or while memory could not be given back
	}
	l.device.release(p)
}

// judge tells Dial, ends a session that has been without a path for too long, and says when to look again.
func (p *paths) judge() (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	up := false
	for _, t := range p.live {
		up = up || t.up
	}
	switch {
	case p.decided || p.rails == nil:
	case up:
		p.decided = true
		p.first <- nil
	case len(p.live) == 0 && !p.changed:
		p.decided, p.hopeless = true, true
		p.first <- p.why()
	}
	now := time.Now()
	again := p.nextLook()
	for _, d := range p.delays {
		if wait := d.until.Sub(now); wait > 0 {
			again = min(again, wait)
		}
	}
	if len(p.live) > 0 || !p.decided {
		p.pathless = time.Time{}
		return again, nil
	}
	if p.pathless.IsZero() {
		p.pathless = now
	}
	left := pathlessWait - now.Sub(p.pathless)
	if left <= 0 {
		return 0, fmt.Errorf("%w: %w", errPathless, p.why())
	}
	return min(again, left), nil
}

// nextLook is how long to wait for a look without a reason. The caller holds mu.
func (p *paths) nextLook() time.Duration {
	with := map[uint8]bool{}
	for _, t := range p.live {
		with[t.pair.rail] = true
	}
	for _, r := range p.rails {
		if r.Up && !with[r.Index] {
			return idleLook
		}
	}
	return steadyLook
}

// why is the reason for having no path. The caller holds mu.
func (p *paths) why() error {
	if p.refusal == nil {
		return errUnreachable
	}
	return p.refusal
}

var errUnreachable = errors.New("target: no rail of the server is up and reached by a port of this machine")

// bury ends a queue pair that the server knows nothing of, or that it has ended. Errors: errAdapter.
func (p *paths) bury(t *path) error {
	failed := t.qp.Fail()
	closed := t.qp.Close()
	return p.buried(t, failed, closed)
}

func (p *paths) buried(t *path, failed, closed error) error {
	if failed == nil || closed == nil {
		return nil
	}
	p.mu.Lock()
	t.on.stuck++
	p.mu.Unlock()
	return fmt.Errorf("%w: %w", errAdapter, errors.Join(failed, closed))
}

func (p *paths) retired() {
	p.mu.Lock()
	p.retiring--
	p.mu.Unlock()
	p.look()
}

// retire ends the queue pair of a path that the caller took out, with a call begun and counted in retiring, and tells
// the server. It is destroyed before that: some drivers do not wait, when they change its state, for a packet that they
// are just copying (soft-RoCE), and all do when they destroy it. Errors: of the connection; errAdapter.
func (p *paths) retire(t *path) error {
	defer p.calls.Done()
	defer p.retired()
	if err := p.bury(t); err != nil {
		return err
	}
	return p.conn.links[0].send(frame.Header{Type: frame.Fenced, ID: t.id})
}
