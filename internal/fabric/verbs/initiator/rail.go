package initiator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric/dc/lane"
	"github.com/penstock-store/penstock/internal/fabric/verbs/reach"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

const (
	// closeWait bounds Close where a driver does not return from a call: resets take microseconds, and a firmware that
	// is asked to reset thousands of queue pairs takes milliseconds for each at most.
	closeWait = 30 * time.Second
	// maxSettling bounds the threads that are in a driver's reset at once. One that hangs keeps its place.
	maxSettling = 256
	// eventRoom is how many events wait for their reader; see watch.
	eventRoom = 64
)

// Rail is an open rail.
type Rail struct {
	opts  Options
	name  string
	piece int // bytes of a work request, at most
	depth int // work requests of a path under way, at most
	batch int // work requests of one post, at most
	reads int // RDMA READs of a path under way, at most

	closeWait time.Duration

	dev     *native.Device
	pd      *native.PD
	cq      *native.CQ
	arena   local
	scratch local
	credits *credits
	slots   []slot

	ctx      context.Context // ends the watcher
	stop     context.CancelFunc
	watched  chan struct{} // closed when the watcher has ended
	polled   chan struct{} // closed when the poller has
	events   chan native.Event
	settlers chan struct{} // one token for each path in takeBack
	settling sync.WaitGroup
	making   sync.WaitGroup
	leaving  runs // calls that destroy the queue pair of a path that is in the table no more

	closing   sync.Mutex // one Close at a time
	gone      bool       // guarded by closing
	endEvents sync.Once

	polling sync.Mutex
	batchOf [pollBatch]native.Completion // guarded by polling

	works, writes, readBytes  atomic.Int64
	denied, lost, localErrors atomic.Int64
	unexpected, paths, stuck  atomic.Int64

	mu      sync.Mutex
	now     rail.Rail
	closed  bool
	broken  bool         // the adapter or the completion queue has failed: no path any more
	free    []int        // slots
	orphans []*native.QP // that could not be destroyed

	pool atomic.Pointer[Pool] // of dynamic connections, or nil
}

// slot is a place in the table by which completions find their path.
type slot struct {
	path atomic.Pointer[Path]
	next uint64 // number of the next work request; guarded by Rail.mu while there is no path
}

// A work request's number is its path's slot and a counter that goes on from path to path in that slot, so that no
// number comes twice: 2⁴⁸ work requests of a slot take years.
const numberBits = 48

func workID(slot int, number uint64) uint64 { return uint64(slot)<<numberBits | number }
func workSlot(id uint64) int                { return int(id >> numberBits) }
func workNumber(id uint64) uint64           { return id & (1<<numberBits - 1) }

// Open opens the device and registers the arena. Errors: native.ErrVerbs; a refused registration (locked memory) names
// the limit.
func Open(o Options) (*Rail, error) {
	o.Paths = cmp.Or(o.Paths, DefaultPaths)
	o.Depth = cmp.Or(o.Depth, DefaultDepth)
	o.Piece = cmp.Or(o.Piece, DefaultPiece)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Retries = cmp.Or(o.Retries, defaultRetries)
	o.HopLimit = cmp.Or(o.HopLimit, defaultHopLimit)
	if o.Paths < 1 || o.Paths > maxPaths || o.Depth < 1 || o.Piece < 1 {
		return nil, fmt.Errorf("%w: %d paths, depth %d, piece %d", ErrLocal, o.Paths, o.Depth, o.Piece)
	}
	r := &Rail{
		opts: o, name: o.Rail.Name(), now: o.Rail, closeWait: closeWait,
		watched:  make(chan struct{}),
		polled:   make(chan struct{}),
		events:   make(chan native.Event, eventRoom),
		settlers: make(chan struct{}, maxSettling),
	}
	if err := r.open(); err != nil {
		if closeErr := r.closeDevice(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
		return nil, err
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	go r.poll()
	go r.watch()
	return r, nil
}

func (r *Rail) open() (err error) {
	if r.dev, err = r.opts.Library.OpenDevice(r.opts.Rail.Device); err != nil {
		return fmt.Errorf("initiator: open %s: %w", r.name, err)
	}
	info := r.dev.Info()
	r.size(info)
	if r.pd, err = r.dev.NewPD(); err != nil {
		return fmt.Errorf("initiator: protection domain on %s: %w", r.name, err)
	}
	if r.arena, err = register(r.pd, r.opts.Arena); err != nil {
		return err
	}
	scratch, err := mapScratch(r.opts.Paths)
	if err != nil {
		return err
	}
	if r.scratch, err = register(r.pd, scratch); err != nil {
		return errors.Join(err, unix.Munmap(scratch))
	}
	if r.cq, err = r.dev.NewCQ(int(r.credits.total)); err != nil {
		return fmt.Errorf("initiator: completion queue of %d on %s: %w", r.credits.total, r.name, err)
	}
	return nil
}

// size fits the limits to what the adapter and the port take.
func (r *Rail) size(info native.DeviceInfo) {
	within := func(n, limit int) int {
		if limit > 0 {
			return min(n, limit)
		}
		return n
	}
	paths := within(r.opts.Paths, info.MaxQP)
	r.depth = within(r.opts.Depth, info.MaxQPDepth)
	r.batch = max(1, min(batchWork, r.depth/2))
	r.piece = min(r.opts.Piece, maxPiece)
	if most := r.opts.Rail.MaxMessage; most > 0 {
		r.piece = min(r.piece, int(most))
	}
	r.reads = max(1, min(info.MaxIssued, maxReads))
	r.credits = newCredits(within(min(maxWork, paths*r.depth), info.MaxCQDepth))
	r.opts.Paths = paths
	r.slots = make([]slot, paths)
	r.free = make([]int, paths)
	for i := range r.slots {
		r.slots[i].next = 1
		r.free[i] = paths - 1 - i
	}
}

// randomPSN is one that is not 0, which some peers take for none.
func randomPSN() (uint32, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("initiator: random number: %w", err)
	}
	return max(1, binary.LittleEndian.Uint32(b[:])>>8), nil
}

// Limit is how many paths the rail has at most.
func (r *Rail) Limit() int { return r.opts.Paths }

// Rail is what was opened, as Refresh saw it last; its state may have changed since.
func (r *Rail) Rail() rail.Rail {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Refresh asks for the port's state as it is now. New paths use what it found. Errors: native.ErrVerbs, ErrClosed.
func (r *Rail) Refresh() (rail.Rail, error) {
	now, err := rail.Refresh(r.dev, r.Rail())
	was, err := r.learn(now, err)
	if err != nil {
		return was, err
	}
	if pool := r.pool.Load(); pool != nil {
		pool.seen(was, now)
	}
	return now, nil
}

// learn takes what a refresh has found, and returns what was known before.
func (r *Rail) learn(now rail.Rail, err error) (rail.Rail, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.now
	switch {
	case r.closed:
		return was, ErrClosed
	case err != nil:
		return was, fmt.Errorf("initiator: refresh %s: %w", r.name, err)
	}
	r.now = now
	return was, nil
}

// usable tells whether anything is made on the rail any more.
func (r *Rail) usable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.broken && !r.closed
}

// From is where in the port's table of GIDs a queue pair to a peer's GID begins; the whole table is read only where the
// rail's own GID will not do. Errors: ErrUnreached, native.ErrVerbs.
func (r *Rail) From(peer [16]byte) (Source, error) {
	now := r.Rail()
	if reach.Own(now, peer) {
		return Source{}, nil
	}
	port, err := r.dev.Port(now.Port)
	if err != nil {
		return Source{}, fmt.Errorf("initiator: port of %s: %w", r.name, err)
	}
	g, ok := reach.From(now, port.GIDs, peer)
	if !ok {
		return Source{}, fmt.Errorf("%w: %s", ErrUnreached, r.name)
	}
	return Source{Index: g.Index, GID: g.Raw}, nil
}

// Stats reads the counters.
func (r *Rail) Stats() Stats {
	var pooled lane.Counts
	if pool := r.pool.Load(); pool != nil {
		pooled = pool.counts()
	}
	return Stats{
		Paths: r.paths.Load(), Stuck: r.stuck.Load() + int64(pooled.Stuck), WorkNow: r.credits.now() + int64(pooled.Work),
		Writes: r.writes.Load(), Reads: r.readBytes.Load(), Works: r.works.Load() + pooled.Works,
		Denied: r.denied.Load(), Lost: r.lost.Load(), Local: r.localErrors.Load(),
		Unexpected: r.unexpected.Load(),
	}
}

// count counts a Move that ended with an error.
func (r *Rail) count(err error) {
	switch {
	case errors.Is(err, ErrDenied):
		r.denied.Add(1)
	case errors.Is(err, ErrLocal):
		r.localErrors.Add(1)
	default:
		r.lost.Add(1)
	}
}

// reserve takes a slot. The caller ends r.making.
func (r *Rail) reserve() (slot int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return 0, ErrClosed
	case r.broken:
		return 0, fmt.Errorf("%w: %s has failed", ErrClosed, r.name)
	case len(r.free) == 0:
		return 0, fmt.Errorf("%w: %s has %d", ErrLimit, r.name, len(r.slots))
	}
	r.making.Add(1)
	slot = r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.paths.Add(1)
	return slot, nil
}

// release gives up a slot that got no path.
func (r *Rail) release(slot int) {
	r.mu.Lock()
	r.free = append(r.free, slot)
	r.paths.Add(-1)
	r.mu.Unlock()
}

// enter puts a path into the table.
func (r *Rail) enter(p *Path) {
	r.mu.Lock()
	s := &r.slots[p.slot]
	p.head, p.tail = s.next, s.next
	s.path.Store(p)
	broken := r.broken
	r.mu.Unlock()
	if broken {
		p.failBy(errBroken)
	}
}

// leave takes a settled path out of the table and destroys its queue pair. It does not serve another path after a
// reset: soft-RoCE keeps a part of its state, and then reports the first work request of the next path as done when it
// is not.
func (r *Rail) leave(p *Path) error {
	r.mu.Lock()
	s := &r.slots[p.slot]
	if s.path.Load() != p {
		r.mu.Unlock()
		return nil
	}
	s.path.Store(nil)
	s.next = p.tail
	r.free = append(r.free, p.slot)
	r.paths.Add(-1)
	r.leaving.begin()
	r.mu.Unlock()
	defer r.leaving.done()
	if !p.reset {
		return nil // destroyed
	}
	return r.destroy(p.qp)
}

// destroy ends a queue pair that nothing uses. What the driver does not destroy is tried again by Close.
func (r *Rail) destroy(qp *native.QP) error {
	err := qp.Close()
	if err == nil {
		return nil
	}
	r.mu.Lock()
	r.orphans = append(r.orphans, qp)
	r.mu.Unlock()
	return fmt.Errorf("initiator: destroy a queue pair of %s: %w", r.name, err)
}

// list is the paths there are.
func (r *Rail) list() []*Path {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*Path
	for i := range r.slots {
		if p := r.slots[i].path.Load(); p != nil {
			all = append(all, p)
		}
	}
	return all
}

func (r *Rail) failAll(why error) {
	if pool := r.pool.Load(); pool != nil {
		pool.down()
	}
	for _, p := range r.list() {
		p.failBy(why)
	}
}
