package initiator

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-store/penstock/native"
)

type pathState int

const (
	pathMade pathState = iota
	pathUp
	pathFailed
	pathSettled
)

// entry is a work request under way, at its number modulo the ring's size.
type entry struct {
	op     *op
	bytes  uint32
	read   bool
	proof  bool // the READ behind all others of its Move
	signal bool
	done   bool // it completed after the path had failed, or by failing it
}

// Path is one queue pair, from its making to its reset.
type Path struct {
	rail    *Rail
	opts    PathOptions
	slot    int
	qp      *native.QP
	psn     uint32
	scratch []byte
	failed  chan struct{}
	settled chan struct{}
	stuck   chan struct{}
	again   sync.Mutex // one more attempt of settling at a time
	reset   bool       // settled by reset, so that the queue pair can be used again

	mu     sync.Mutex
	state  pathState
	local  Endpoint
	cause  error         // an ErrLost, once failed
	using  bool          // a goroutine is in a call on the queue pair
	unused chan struct{} // closed when it has returned, where settle waits for that
	queue  opQueue
	spares *op
	need   int // room for so many work requests wakes the first of the queue; 0: it does not wait for room
	ticket ticket
	ring   []entry
	head   uint64 // the oldest work request under way
	tail   uint64 // the next one
	work   [batchWork]native.Work
}

// NewPath makes a queue pair. Errors: ErrLimit, ErrClosed, native.ErrVerbs.
func (r *Rail) NewPath(o PathOptions) (*Path, error) {
	psn, err := randomPSN()
	if err != nil {
		return nil, err
	}
	slot, err := r.reserve()
	if err != nil {
		return nil, err
	}
	defer r.making.Done()
	qp, err := r.pd.NewQP(r.cq, native.PairOptions{Depth: r.depth})
	if err != nil {
		r.release(slot)
		return nil, fmt.Errorf("initiator: queue pair on %s: %w", r.name, err)
	}
	p := &Path{
		rail: r, opts: o, slot: slot, qp: qp, psn: psn,
		scratch: r.scratch.memory[slot*scratchBytes:][:scratchBytes:scratchBytes],
		failed:  make(chan struct{}),
		settled: make(chan struct{}),
		stuck:   make(chan struct{}),
		ring:    make([]entry, ringSize(r.depth)),
	}
	now := r.Rail()
	if o.From != (Source{}) {
		now.GID = o.From.GID
	}
	p.local = Endpoint{QPN: qp.Number(), PSN: psn, GID: now.GID, LID: now.LID, MTU: now.MTU, Reads: r.reads}
	r.enter(p)
	return p, nil
}

// ringSize is the power of two that holds depth entries.
func ringSize(depth int) int {
	n := 1
	for n < depth {
		n *= 2
	}
	return n
}

// Local is what the peer must know. Once connected, MTU and reads are the agreed ones.
func (p *Path) Local() Endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.local
}

// Connect takes the queue pair to its peer's: MTU and reads are the lesser of both ends'. A path that could not be
// connected has failed. Errors: native.ErrVerbs; ErrLocal, when the peer's data cannot be meant; ErrLost, when the path
// failed meanwhile.
func (p *Path) Connect(peer Endpoint) error {
	p.mu.Lock()
	if p.state != pathMade {
		defer p.mu.Unlock()
		if p.state == pathUp {
			return fmt.Errorf("%w: path is connected", ErrLocal)
		}
		return p.cause
	}
	if p.using {
		p.mu.Unlock()
		return fmt.Errorf("%w: path is being connected", ErrLocal)
	}
	p.using = true
	mtu, reads := min(p.local.MTU, peer.MTU), min(p.local.Reads, peer.Reads)
	p.mu.Unlock()

	err := p.connect(peer, mtu, reads)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended()
	switch {
	case err != nil:
		err = fmt.Errorf("initiator: connect on %s: %w", p.rail.name, err)
		p.fail(err)
		return err
	case p.state != pathMade:
		return p.cause
	}
	p.state = pathUp
	p.local.MTU, p.local.Reads = mtu, reads
	return nil
}

func (p *Path) connect(peer Endpoint, mtu, reads int) error {
	if reads < 1 || mtu < 256 || peer.QPN >= 1<<24 || peer.PSN >= 1<<24 {
		return fmt.Errorf("%w: peer's queue pair %d, MTU %d, reads %d", ErrLocal, peer.QPN, peer.MTU, peer.Reads)
	}
	o, now := &p.rail.opts, p.rail.Rail()
	path := native.Path{
		Port: now.Port, GIDIndex: now.GIDIndex, HopLimit: o.HopLimit, TrafficClass: o.TrafficClass,
		PSN: p.psn, Timeout: o.Timeout, Retries: o.Retries,
		RNRRetries: cmp.Or(p.opts.RNRRetries, defaultRNRRetries), MinRNRTimer: minRNRTimer,
	}
	if from := p.opts.From; from != (Source{}) {
		path.GIDIndex = from.Index
	}
	// The peer has no right to read here; but an adapter may not take 0 for the READs that it answers at once.
	to := native.Peer{QPN: peer.QPN, PSN: peer.PSN, GID: peer.GID, LID: peer.LID, MTU: mtu, Reads: 1}
	if err := p.qp.Init(path); err != nil {
		return err
	}
	if err := p.qp.Receive(path, to); err != nil {
		return err
	}
	to.Reads = reads
	return p.qp.Send(path, to)
}

// ended ends a call on the queue pair. Called with mu held.
func (p *Path) ended() {
	p.using = false
	if p.unused != nil {
		close(p.unused)
		p.unused = nil
	}
}

// Move moves the bytes and waits. The last work request is a READ of the first byte, the proof: it is answered from
// the peer's memory behind all that was written, and by a queue pair that has not failed. An acknowledgement alone says
// that the peer's adapter has the bytes; and some adapters report a work request as done and then fail. Errors:
// ErrDenied, ErrLost, ErrLocal.
func (p *Path) Move(m Move) error {
	pieces, err := p.rail.check(&m)
	if err != nil {
		p.rail.count(err)
		return err
	}
	if pieces == 0 {
		return nil
	}
	p.mu.Lock()
	if p.state != pathUp {
		err := p.cause
		if p.state == pathMade {
			err = fmt.Errorf("%w: path is not connected", ErrLocal)
		}
		p.mu.Unlock()
		p.rail.count(err)
		return err
	}
	o := p.spare(m, pieces)
	p.queue.push(o)
	for !o.done {
		if p.queue.first == o && p.advance(o) {
			continue
		}
		p.mu.Unlock()
		<-o.wake
		p.mu.Lock()
	}
	err = o.err
	p.keep(o)
	p.mu.Unlock()
	return err
}

// advance posts the next batch of the first of the queue; false when it must wait for room, credits or its end. Called
// with mu held, which it gives up while it posts.
func (p *Path) advance(o *op) bool {
	if p.state != pathUp {
		return false
	}
	most := min(o.pieces, p.rail.batch)
	if room := p.rail.depth - int(p.tail-p.head); room < most {
		p.need = most
		return false
	}
	n := p.rail.credits.take(&p.ticket, most, o.wake)
	if n == 0 {
		return false
	}
	work := p.work[:n]
	for i := range work {
		w := &work[i]
		p.cut(o, w)
		read := w.Op == native.OpRead
		w.ID = workID(p.slot, p.tail)
		// A READ's length is known from its own completion only. The last of each batch is signalled, so that what
		// is not has a successor that is.
		w.Signal = read || i == n-1
		p.ring[p.tail%uint64(len(p.ring))] = entry{
			op: o, bytes: w.Length, read: read, proof: o.pieces == 0, signal: w.Signal,
		}
		p.tail++
	}
	o.left += n
	p.using = true
	p.mu.Unlock()

	posted, err := p.qp.Post(work)

	p.mu.Lock()
	p.ended()
	if err == nil && posted != n {
		err = errPosted
	}
	if err != nil && p.state == pathUp {
		o.err = fmt.Errorf("%w: post on %s: %w", ErrLocal, p.rail.name, err)
		p.fail(err)
	}
	if o.pieces == 0 || o.done {
		p.queue.remove(o)
		if next := p.queue.first; next != nil {
			poke(next.wake)
		}
	}
	return true
}

var errPosted = errors.New("initiator: fewer work requests posted than given")

// complete takes completions of this path. They are counted before a Move that they end returns.
func (p *Path) complete(cs []native.Completion) {
	p.mu.Lock()
	from := p.head
	var t tally
	for i := range cs {
		p.completeOne(&cs[i], &t)
	}
	p.rail.add(t)
	freed := int(p.head - from)
	if p.need > 0 && p.rail.depth-int(p.tail-p.head) >= p.need {
		p.need = 0
		if o := p.queue.first; o != nil {
			poke(o.wake)
		}
	}
	p.rail.credits.give(freed)
	p.mu.Unlock()
}

func (p *Path) completeOne(c *native.Completion, t *tally) {
	at := workNumber(c.ID)
	if at < p.head || at >= p.tail {
		t.unexpected++
		return
	}
	e := &p.ring[at%uint64(len(p.ring))]
	switch {
	case e.done:
		t.unexpected++
	case p.state != pathUp:
		e.done = true
		e.op.blame(p.rail, c)
	case c.Status != native.StatusOK:
		e.done = true
		e.op.blame(p.rail, c)
		p.fail(fmt.Errorf("a work request ended with status %d", c.Status))
	case e.read && c.Bytes != e.bytes:
		e.done = true
		e.op.err = fmt.Errorf("%w: %s read %d bytes of %d", ErrLocal, p.rail.name, c.Bytes, e.bytes)
		p.fail(errShort)
	case p.disordered(at):
		e.done = true
		e.op.err = fmt.Errorf("%w: completions of %s are out of order", ErrLocal, p.rail.name)
		p.fail(errOrder)
	default:
		for ; p.head <= at; p.head++ {
			p.succeed(&p.ring[p.head%uint64(len(p.ring))], t)
		}
	}
}

var (
	errShort = errors.New("a work request moved fewer bytes than it should")
	errOrder = errors.New("a completion came before that of an earlier work request")
)

// disordered tells whether a work request before at asked for a completion, and had none: a queue pair's completions
// come in order, so an adapter that does otherwise proves nothing.
func (p *Path) disordered(at uint64) bool {
	for i := p.head; i < at; i++ {
		if p.ring[i%uint64(len(p.ring))].signal {
			return true
		}
	}
	return false
}

// succeed ends a work request that completed well, or has a successor that did.
func (p *Path) succeed(e *entry, t *tally) {
	t.works++
	switch {
	case e.proof:
	case e.read:
		t.reads += int64(e.bytes)
	default:
		t.writes += int64(e.bytes)
	}
	o := e.op
	*e = entry{}
	if o.left--; o.left == 0 && o.pieces == 0 {
		p.finish(o, nil)
	}
}

// finish ends a Move. Called with mu held.
func (p *Path) finish(o *op, err error) {
	if o.err == nil {
		o.err = err
	}
	if o.err != nil {
		p.rail.count(o.err)
	}
	o.done = true
	poke(o.wake)
}

// blame notes what an error completion says about its Move. Flushed says nothing: something else failed the path.
func (o *op) blame(r *Rail, c *native.Completion) {
	if o.err != nil || c.Status == native.StatusOK || c.Status == native.StatusFlushed {
		return
	}
	kind := ErrLost
	switch c.Status {
	case native.StatusRemoteAccess, native.StatusRemoteOther:
		kind = ErrDenied
	case native.StatusLocal:
		kind = ErrLocal
	}
	o.err = fmt.Errorf("%w: %s, status %d, vendor %#x", kind, r.name, c.Status, c.Vendor)
}
