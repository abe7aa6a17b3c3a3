package initiator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric/dc/lane"
	"github.com/penstock-store/penstock/native"
)

// ErrExpired says that a move by dynamic connections did not end in its time.
var ErrExpired = errors.New("initiator: time of the move is over")

// PoolOptions of NewPool.
type PoolOptions struct {
	Lanes   int // DCIs; 0 means 128
	PerPeer int // of them for one peer's port; 0 means half
	// PerOwner is how many of them one owner has, whatever ports it names; 0 means half.
	PerOwner int
	Depth    int           // work requests of a DCI under way; 0 means 16
	Linger   time.Duration // the longest that a packet lives in the network; 0 means 100 ms
	// Lost is told, and must not wait, when an adapter does not give a DCI back, or makes none in its place; nil:
	// nobody.
	Lost func(error)
	// Turn waits until the address of a port may be made for an owner, since a kernel that looks for one that is not there
	// holds a thread for seconds; the turn is given back by leave, which is nil when stop was closed. nil: no bound.
	Turn func(owner string, stop <-chan struct{}) (leave func())
}

// Defaults of PoolOptions.
const (
	defaultLanes  = 128
	poolDepth     = 16
	poolBatch     = 8
	poolRetries   = 7 // DC is on adapters only for which it is a number
	poolLinger    = 100 * time.Millisecond
	poolPSNLength = 24

	// lateWait bounds the silence about a reset or a destruction, which take an adapter microseconds.
	lateWait = 2 * time.Second
	// firstRenewal and lastRenewal are the shortest and the longest wait before a DCI that could not be made anew is
	// tried again: what keeps a firmware from it may pass, and a call of it takes a millisecond.
	firstRenewal = time.Second
	lastRenewal  = time.Minute
)

// Window is a range of a peer's addresses that was granted.
type Window = lane.Window

// DCTarget is where a move by dynamic connections goes.
type DCTarget struct {
	Port native.PeerPort
	DCT  uint32
	Key  uint64 // its access key. A secret
}

// Format prints the target without its key, whatever the verb.
func (t DCTarget) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "target{dct %d}", t.DCT) }

// DCMove is a Move by dynamic connections, which has no immediate.
type DCMove struct {
	Move
	Owner  string // whose it is
	Target DCTarget
	Window Window // that Remote and its bytes lie in
	// Nothing is decided to be posted after Stop; what was decided before may reach the adapter later, if the machine
	// is slow, but never after the move has returned. At Expire the DCI is reset; when that takes a millisecond,
	// nothing of the move reaches the peer later than Linger and that after it.
	Stop, Expire time.Time
}

// Format prints the move without its keys, whatever the verb.
func (m DCMove) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "move{op %d segments %d dct %d}", m.Op, len(m.Local), m.Target.DCT)
}

// Pool is the DCIs of a rail and what they are doing: a lane.Core, and the goroutines, timers and calls around it.
type Pool struct {
	rail    *Rail
	o       PoolOptions
	cq      *native.CQ
	scratch local
	ports   ports
	// linger calls f when no packet that has left before can be in the network any more, which takes so long.
	linger  func(long time.Duration, f func())
	renewal time.Duration // firstRenewal
	lateIn  time.Duration // lateWait
	polled  chan struct{} // closed when the poller has ended; nil: none was started
	stop    chan struct{} // closed by close
	resets  runs          // goroutines in calls of the driver

	polling sync.Mutex
	batchOf [pollBatch]native.Completion // guarded by polling

	mu     sync.Mutex
	dcis   []*native.DCI // by lane. That of a lane that is in use does not change; nil: there is none
	core   *lane.Core
	moves  map[uint64]*poolMove
	next   uint64
	closed bool
	empty  chan struct{} // closed when the last move has ended after closed
}

// poolMove is a DCMove under way.
type poolMove struct {
	DCMove
	address *native.Address
	done    chan lane.Result // capacity 1
}

// NewPool makes the rail's DCIs; a rail has one pool. Errors: native.ErrNotSupported with its reason, native.ErrVerbs,
// ErrClosed.
func (r *Rail) NewPool(o PoolOptions) (*Pool, error) {
	o.Lanes = cmp.Or(o.Lanes, defaultLanes)
	o.PerPeer = cmp.Or(o.PerPeer, max(1, o.Lanes/2))
	o.PerOwner = cmp.Or(o.PerOwner, max(1, o.Lanes/2))
	o.Depth = cmp.Or(o.Depth, poolDepth)
	o.Linger = cmp.Or(o.Linger, poolLinger)
	if err := r.opts.Library.DC(); err != nil {
		return nil, fmt.Errorf("initiator: dynamic connections: %w", err)
	}
	if err := r.dev.DC(); err != nil {
		return nil, fmt.Errorf("initiator: dynamic connections on %s: %w", r.name, err)
	}
	r.mu.Lock()
	if r.closed || r.broken {
		r.mu.Unlock()
		return nil, ErrClosed
	}
	r.making.Add(1)
	r.mu.Unlock()
	defer r.making.Done()
	p := &Pool{
		rail: r, o: o, stop: make(chan struct{}), moves: map[uint64]*poolMove{}, renewal: firstRenewal, lateIn: lateWait,
	}
	p.linger = func(long time.Duration, f func()) { time.AfterFunc(long, f) }
	credits := o.Lanes * o.Depth
	if most := r.dev.Info().MaxCQDepth; most > 0 {
		credits = min(credits, most)
	}
	batch := max(1, min(poolBatch, o.Depth, credits))
	p.core = lane.New(lane.Config{
		Lanes: o.Lanes, PerPeer: o.PerPeer, PerOwner: o.PerOwner, Depth: o.Depth, Batch: batch, Piece: r.piece,
		Credits: credits,
	})
	err := p.open(credits)
	if err == nil {
		err = p.enter()
	}
	if err != nil {
		return nil, errors.Join(err, p.destroy())
	}
	return p, nil
}

// enter makes it the rail's pool, which Close ends: all of it is there before.
func (p *Pool) enter() error {
	r := p.rail
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || r.broken:
		return ErrClosed
	case r.pool.Load() != nil:
		return fmt.Errorf("%w: %s has a pool", ErrLocal, r.name)
	}
	p.polled = make(chan struct{})
	go p.poll()
	r.pool.Store(p)
	return nil
}

func (p *Pool) open(credits int) error {
	r := p.rail
	p.ports.pool = p
	scratch, err := mapScratch(p.o.Lanes)
	if err != nil {
		return err
	}
	if p.scratch, err = register(r.pd, scratch); err != nil {
		return errors.Join(err, unix.Munmap(scratch))
	}
	if p.cq, err = r.dev.NewCQ(credits); err != nil {
		return fmt.Errorf("initiator: completion queue of %d on %s: %w", credits, r.name, err)
	}
	p.dcis = make([]*native.DCI, p.o.Lanes)
	for at := range p.dcis {
		if err := p.renew(at); err != nil {
			return err
		}
	}
	return nil
}

// renew makes a lane's DCI, in place of one that may be there and that the adapter owes nothing.
func (p *Pool) renew(at int) error {
	if old := p.dci(at); old != nil {
		if err := p.rail.ended("dci", old.Close()); err != nil {
			return err
		}
	}
	dci, err := p.rail.pd.NewDCI(p.cq, native.PairOptions{Depth: p.o.Depth})
	p.mu.Lock()
	p.dcis[at] = dci // whatever becomes of it: destroy closes it
	p.mu.Unlock()
	if err != nil {
		return fmt.Errorf("initiator: dci on %s: %w", p.rail.name, err)
	}
	if err := p.connect(dci); err != nil {
		return fmt.Errorf("initiator: connect a dci on %s: %w", p.rail.name, err)
	}
	return nil
}

func (p *Pool) dci(at int) *native.DCI {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dcis[at]
}

// Serves tells whether moves find a DCI: the port is up, and not all of them are lost or are being waited for.
func (p *Pool) Serves() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed && p.core.Serves()
}

// connect takes a DCI that was reset to where it can post.
func (p *Pool) connect(dci *native.DCI) error {
	psn, err := randomPSN()
	if err != nil {
		return err
	}
	now := p.rail.Rail()
	path := native.Path{
		Port: now.Port, PSN: psn & (1<<poolPSNLength - 1), Timeout: p.rail.opts.Timeout, Retries: poolRetries,
		RNRRetries: defaultRNRRetries,
	}
	return dci.Connect(path, native.Peer{MTU: now.MTU, Reads: p.rail.reads})
}

// Move moves the bytes and waits. When ctx ends, or the time of the move, its DCI is reset first. Errors: ErrDenied,
// ErrLost, ErrLocal, ErrExpired, ErrClosed, ctx's error.
func (p *Pool) Move(ctx context.Context, m DCMove) error {
	err := p.move(ctx, &m)
	if err != nil {
		p.rail.count(err)
	}
	return err
}

func (p *Pool) move(ctx context.Context, m *DCMove) error {
	pieces, err := p.rail.check(&m.Move)
	if err != nil || pieces == 0 {
		return err
	}
	if m.Imm != nil {
		return fmt.Errorf("%w: immediate by dc", ErrLocal)
	}
	ctx, cancel := context.WithDeadlineCause(ctx, m.Expire, ErrExpired)
	defer cancel()
	port, err := p.ports.take(ctx, m.Target.Port, m.Owner)
	if err != nil {
		return err
	}
	defer p.ports.give(port)
	w := &poolMove{DCMove: *m, address: port.address, done: make(chan lane.Result, 1)}
	t := lane.Transfer{
		Owner: m.Owner,
		Peer:  lane.Peer{GID: m.Target.Port.GID, LID: m.Target.Port.LID}, Read: m.Op == native.OpRead, Window: m.Window,
		Remote: m.Remote,
	}
	bytes := int64(0)
	for _, s := range m.Local {
		t.Segments = append(t.Segments, len(s))
		bytes += int64(len(s))
	}
	id, err := p.submit(w, t)
	if err != nil {
		return err
	}
	r := p.wait(ctx, w, id)
	if r == lane.Lost || r == lane.Expired {
		p.ports.forget(port) // the peer may have moved
	}
	return p.result(ctx, r, m.Op, bytes)
}

func (p *Pool) submit(w *poolMove, t lane.Transfer) (uint64, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return 0, ErrClosed
	}
	p.next++
	t.ID = p.next
	p.moves[t.ID] = w
	tasks := p.tasks(p.core.Submit(t))
	p.mu.Unlock()
	p.carry(tasks)
	return t.ID, nil
}

// wait tells the core of the times, and waits until it has let go.
func (p *Pool) wait(ctx context.Context, w *poolMove, id uint64) lane.Result {
	stop := time.NewTimer(time.Until(w.Stop))
	defer stop.Stop()
	over := ctx.Done()
	for {
		select {
		case r := <-w.done:
			return r
		case <-stop.C:
			p.input(func(c *lane.Core) []lane.Action { return c.Stop(id) })
		case <-over:
			over = nil
			if errors.Is(context.Cause(ctx), ErrExpired) {
				p.input(func(c *lane.Core) []lane.Action { return c.Expire(id) })
			} else {
				p.input(func(c *lane.Core) []lane.Action { return c.Abandon(id) })
			}
		}
	}
}

func (p *Pool) result(ctx context.Context, r lane.Result, op native.Opcode, bytes int64) error {
	kind := ErrLost
	switch r {
	case lane.OK:
		if op == native.OpRead {
			p.rail.readBytes.Add(bytes)
		} else {
			p.rail.writes.Add(bytes)
		}
		return nil
	case lane.Denied:
		kind = ErrDenied
	case lane.Local, lane.Invalid:
		kind = ErrLocal
	case lane.Expired:
		kind = ErrExpired
	default:
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("%w: %s: %w", ErrLost, p.rail.name, cause)
		}
	}
	return fmt.Errorf("%w: %s by dc", kind, p.rail.name)
}
