package lane

type laneState uint8

const (
	idle laneState = iota
	busy
	resetting // a reset was asked for, or will be when the post that is under way has returned
	retiring  // the destruction of its DCI was asked for
	stuck
	gone // its DCI is destroyed, and there is no other yet
)

// entry is a work request under way, at its count modulo the ring's size.
type entry struct {
	length int
	read   bool
	signal bool
	done   bool // its own completion came, and ended the lane's use
}

type lane struct {
	state      laneState
	posting    bool // a Post has not been answered
	starved    bool // it stands in line for places of the completion queue
	late       bool // the driver does not return from its reset or its destruction
	owner      *transfer
	head, tail uint64 // the oldest work request under way, and the next one
	ring       []entry
	works      []Work
}

func (l *lane) flight() int { return int(l.tail - l.head) }

type transferState uint8

const (
	waiting transferState = iota
	active
	lingering
)

type transfer struct {
	Transfer
	state   transferState
	lane    int
	pieces  int // work requests that are still to be posted, the proof among them
	seg     int // where posting goes on: segment,
	off     int // offset in it,
	at      uint64
	stopped bool
	result  Result // once known
}

// Core is the machine of one rail.
type Core struct {
	o        Config
	lanes    []lane
	idle     []int // lanes, the one used last at the end
	peers    map[Peer]int
	owners   map[string]int
	moves    map[uint64]*transfer
	queue    []*transfer // waiting, in the order of their coming
	starved  []int       // lanes, in the order of their coming
	spares   []*transfer
	free     int // places of the completion queue
	down     bool
	out      []Action
	strange  int
	works    int64
	stuck    int
	finished int // lanes gone
	late     int
}

// New makes a machine with all lanes idle. The caller's limits must be at least 1, Lanes at most 4096, and Depth and
// Credits at least Batch.
func New(o Config) *Core {
	o.Lanes = min(o.Lanes, maxLanes)
	c := &Core{o: o, lanes: make([]lane, o.Lanes), peers: map[Peer]int{}, owners: map[string]int{},
		moves: map[uint64]*transfer{}, free: o.Credits}
	size := 1
	for size < o.Depth {
		size *= 2
	}
	for i := range c.lanes {
		c.lanes[i].ring = make([]entry, size)
		c.lanes[i].works = make([]Work, o.Batch)
		c.idle = append(c.idle, o.Lanes-1-i)
	}
	return c
}

// Counts reads the counters.
func (c *Core) Counts() Counts {
	return Counts{Waiting: len(c.queue), Idle: len(c.idle), Stuck: c.stuck, Gone: c.finished, Late: c.late,
		Work: c.o.Credits - c.free, Works: c.works, Unexpected: c.strange}
}

// Serves tells whether there is a lane that serves transfers, or soon will.
func (c *Core) Serves() bool { return !c.down && c.stuck+c.finished+c.late < len(c.lanes) }

// emit adds an action. The list that an input returns is good until the next input.
func (c *Core) emit(a Action) { c.out = append(c.out, a) }

// Submit takes a transfer. It waits for a lane, as long as Stop or Expire let it.
func (c *Core) Submit(t Transfer) []Action {
	c.out = c.out[:0]
	m := c.spare()
	*m = transfer{Transfer: t, pieces: plan(&t, c.o.Piece), at: t.Remote, lane: -1}
	c.moves[t.ID] = m
	if m.pieces == 0 {
		c.end(m, Invalid)
	} else {
		c.queue = append(c.queue, m)
		c.dispatch()
	}
	return c.out
}

func (c *Core) spare() *transfer {
	if n := len(c.spares); n > 0 {
		m := c.spares[n-1]
		c.spares = c.spares[:n-1]
		return m
	}
	return &transfer{}
}

// end ends a transfer of which the adapter has nothing, and nothing is in the network.
func (c *Core) end(m *transfer, r Result) {
	c.emit(Action{Kind: Release, Transfer: m.ID})
	c.finish(m, r)
}

func (c *Core) finish(m *transfer, r Result) {
	c.emit(Action{Kind: Finish, Transfer: m.ID, Result: r})
	delete(c.moves, m.ID)
	c.spares = append(c.spares, m)
}

// part takes a transfer from its lane, whose DCI has nothing of it any more. Unless it went well, packets of it may
// still be under way.
func (c *Core) part(l *lane, r Result) {
	m := l.owner
	l.owner = nil
	less(c.peers, m.Peer)
	less(c.owners, m.Owner)
	if r == OK {
		c.end(m, OK)
		return
	}
	c.emit(Action{Kind: Release, Transfer: m.ID})
	m.state, m.lane, m.result = lingering, -1, r
	c.emit(Action{Kind: Linger, Transfer: m.ID})
}

// less counts one down; what is 0 takes no room.
func less[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// Lingered says that the time of Linger has passed.
func (c *Core) Lingered(id uint64) []Action {
	c.out = c.out[:0]
	if m := c.moves[id]; m != nil && m.state == lingering {
		c.finish(m, m.result)
	}
	return c.out
}

// dispatch gives idle lanes to those that wait. Who has all the lanes of its peer, or its owner's share, lets others
// pass. Where no lane is left nobody waits.
func (c *Core) dispatch() {
	if !c.Serves() {
		c.dismiss()
		return
	}
	kept := c.queue[:0]
	for _, m := range c.queue {
		if len(c.idle) == 0 || c.peers[m.Peer] >= c.o.PerPeer || c.owners[m.Owner] >= c.o.PerOwner {
			kept = append(kept, m)
			continue
		}
		at := c.idle[len(c.idle)-1]
		c.idle = c.idle[:len(c.idle)-1]
		l := &c.lanes[at]
		l.state, l.owner = busy, m
		m.state, m.lane = active, at
		c.peers[m.Peer]++
		c.owners[m.Owner]++
		c.advance(at)
	}
	clear(c.queue[len(kept):])
	c.queue = kept
}

// dismiss ends all that wait.
func (c *Core) dismiss() {
	for _, m := range c.queue {
		c.end(m, Lost)
	}
	clear(c.queue)
	c.queue = c.queue[:0]
}

// advance posts the next batch of a lane, where there is room for it.
func (c *Core) advance(at int) {
	l := &c.lanes[at]
	m := l.owner
	if l.state != busy || l.posting || l.starved || m.stopped || m.pieces == 0 {
		return
	}
	want := min(m.pieces, c.o.Batch)
	if c.o.Depth-l.flight() < want {
		return // goes on with the next completion
	}
	if len(c.starved) > 0 || c.free == 0 {
		l.starved = true
		c.starved = append(c.starved, at)
		return
	}
	c.post(at, min(want, c.free))
}

func (c *Core) post(at, n int) {
	l := &c.lanes[at]
	works := l.works[:n]
	for i := range works {
		w := &works[i]
		l.owner.cut(c.o.Piece, w)
		w.ID = workID(at, l.tail)
		// A READ's length is known from its own completion only. The last of each batch is signalled, so that what is
		// not has a successor that is.
		w.Signal = w.Read || i == n-1
		l.ring[l.tail%uint64(len(l.ring))] = entry{length: w.Length, read: w.Read, signal: w.Signal}
		l.tail++
	}
	c.free -= n
	l.posting = true
	c.emit(Action{Kind: Post, Lane: at, Transfer: l.owner.ID, Works: works})
}

// give returns places of the completion queue.
func (c *Core) give(n int) {
	c.free += n
	for c.free > 0 && len(c.starved) > 0 {
		at := c.starved[0]
		c.starved = append(c.starved[:0], c.starved[1:]...)
		l := &c.lanes[at]
		l.starved = false
		if l.state == busy && !l.posting && !l.owner.stopped && l.owner.pieces > 0 {
			c.post(at, min(l.owner.pieces, c.o.Batch, c.free))
		}
	}
}

// Posted says that the call for a Post has returned. Where it failed, any of its work requests may have been taken.
func (c *Core) Posted(at int, well bool) []Action {
	c.out = c.out[:0]
	l := &c.lanes[at]
	if !l.posting {
		return c.out
	}
	l.posting = false
	switch {
	case l.state == resetting:
		c.emit(Action{Kind: Reset, Lane: at})
	case !well:
		c.fail(at, Local)
	default:
		c.settle(at)
	}
	return c.out
}

// settle goes on with a lane, or ends its transfer when nothing of it is under way and nothing more will be posted.
func (c *Core) settle(at int) {
	l := &c.lanes[at]
	if l.state != busy || l.posting {
		return
	}
	m := l.owner
	switch {
	case l.flight() > 0 || m.pieces > 0 && !m.stopped:
		c.advance(at)
		return
	case m.pieces > 0:
		c.part(l, Expired)
	default:
		c.part(l, OK)
	}
	c.serve(at)
	c.dispatch()
}

// fail ends the use of a lane until its DCI is reset.
func (c *Core) fail(at int, r Result) {
	l := &c.lanes[at]
	if l.state != busy {
		return
	}
	l.state = resetting
	l.owner.result = r
	if !l.posting {
		c.emit(Action{Kind: Reset, Lane: at})
	}
}

// Completed takes a completion; n is the bytes that a READ brought.
func (c *Core) Completed(id uint64, s Status, n int) []Action {
	c.out = c.out[:0]
	at, count := laneOf(id), countOf(id)
	if at >= len(c.lanes) || count < c.lanes[at].head || count >= c.lanes[at].tail {
		c.strange++
		return c.out
	}
	l := &c.lanes[at]
	e := &l.ring[count%uint64(len(l.ring))]
	switch {
	case e.done:
		c.strange++
	case l.state != busy:
		e.done = true // its place is given back by the reset
	case s != StatusOK:
		e.done = true
		c.fail(at, resultOf(s))
	case e.read && n != e.length, c.disordered(l, count):
		e.done = true
		c.fail(at, Local)
	default:
		freed := int(count-l.head) + 1
		c.works += int64(freed)
		l.head = count + 1
		c.give(freed)
		c.settle(at)
	}
	return c.out
}

func resultOf(s Status) Result {
	switch s {
	case StatusDenied:
		return Denied
	case StatusLocal:
		return Local
	default:
		return Lost
	}
}

// disordered tells whether a work request before count asked for a completion, and had none: a DCI's completions come
// in order, so an adapter that does otherwise proves nothing.
func (c *Core) disordered(l *lane, count uint64) bool {
	for i := l.head; i != count; i++ {
		if l.ring[i%uint64(len(l.ring))].signal {
			return true
		}
	}
	return false
}

// Late says that the driver has not returned from a Reset or a Retire for longer than any that works takes. The lane
// counts as none until it is answered.
func (c *Core) Late(at int) []Action {
	c.out = c.out[:0]
	if l := &c.lanes[at]; !l.late && (l.state == resetting && !l.posting || l.state == retiring) {
		l.late = true
		c.late++
		c.dispatch()
	}
	return c.out
}

// answered says that the driver has returned.
func (c *Core) answered(l *lane) {
	if l.late {
		l.late = false
		c.late--
	}
}

// ResetDone answers a Reset. Fenced: the DCI was reset; usable: and is connected again.
func (c *Core) ResetDone(at int, fenced, usable bool) []Action {
	c.out = c.out[:0]
	l := &c.lanes[at]
	if l.state != resetting || l.posting {
		return c.out
	}
	c.answered(l)
	if fenced {
		c.fenced(at)
	}
	if fenced && usable {
		c.serve(at)
	} else {
		l.state = retiring
		c.emit(Action{Kind: Retire, Lane: at})
	}
	c.dispatch()
	return c.out
}

// serve lets a lane serve whoever comes.
func (c *Core) serve(at int) {
	c.lanes[at].state = idle
	c.idle = append(c.idle, at)
}

// fenced ends what a lane had under way: its DCI has let go of it, and adds no completions any more.
func (c *Core) fenced(at int) {
	l := &c.lanes[at]
	n := l.flight()
	l.head = l.tail
	c.part(l, l.owner.result)
	c.give(n)
}

// Stuck tells whether a lane's DCI could be neither reset nor destroyed.
func (c *Core) Stuck(at int) bool { return c.lanes[at].state == stuck }

// RetireDone answers a Retire. Destroyed: the DCI is no more; else what the lane had stays with the adapter, and the
// caller may try again, and say so by another call. Usable: there is another one, connected, in its place; else the
// caller may make one, and say so by Made.
func (c *Core) RetireDone(at int, destroyed, usable bool) []Action {
	c.out = c.out[:0]
	l := &c.lanes[at]
	if l.state != retiring && l.state != stuck {
		return c.out
	}
	c.answered(l)
	switch {
	case !destroyed && l.state == retiring:
		l.state = stuck
		c.stuck++
	case destroyed:
		if l.state == stuck {
			c.stuck--
		}
		l.state = gone
		c.finished++
		if l.owner != nil {
			c.fenced(at)
		}
		if usable {
			c.made(at)
		}
	}
	c.dispatch()
	return c.out
}

// Made says that a lane whose DCI was destroyed has another one, connected.
func (c *Core) Made(at int) []Action {
	c.out = c.out[:0]
	if c.lanes[at].state == gone {
		c.made(at)
		c.dispatch()
	}
	return c.out
}

func (c *Core) made(at int) {
	c.finished--
	c.serve(at)
}

// Stop says that nothing more of a transfer may be posted. What is under way may still end well.
func (c *Core) Stop(id uint64) []Action {
	c.out = c.out[:0]
	if m := c.moves[id]; m != nil {
		c.halt(m, Expired, false)
	}
	return c.out
}

// Expire says that a transfer has to end now.
func (c *Core) Expire(id uint64) []Action {
	c.out = c.out[:0]
	if m := c.moves[id]; m != nil {
		c.halt(m, Expired, true)
	}
	return c.out
}

// Abandon says that nobody wants a transfer any more: its HTTP peer is gone, or its grant was taken back.
func (c *Core) Abandon(id uint64) []Action {
	c.out = c.out[:0]
	if m := c.moves[id]; m != nil {
		c.halt(m, Lost, true)
	}
	return c.out
}

func (c *Core) halt(m *transfer, r Result, now bool) {
	switch m.state {
	case waiting:
		c.unqueue(m)
		c.end(m, r)
	case active:
		l := &c.lanes[m.lane]
		m.stopped = true
		if now && l.state == busy && (l.flight() > 0 || l.posting) {
			c.fail(m.lane, r)
			return
		}
		c.settle(m.lane)
	}
}

func (c *Core) unqueue(m *transfer) {
	kept := c.queue[:0]
	for _, q := range c.queue {
		if q != m {
			kept = append(kept, q)
		}
	}
	clear(c.queue[len(kept):])
	c.queue = kept
}

// Failed says that the adapter reports a lane's DCI as failed.
func (c *Core) Failed(at int) []Action {
	c.out = c.out[:0]
	if l := &c.lanes[at]; l.state == busy && (l.flight() > 0 || l.posting) {
		c.fail(at, Lost)
	}
	return c.out
}

// PortDown ends everything; until PortUp transfers end as they come.
func (c *Core) PortDown() []Action {
	c.out = c.out[:0]
	c.down = true
	c.dismiss()
	for at := range c.lanes {
		switch l := &c.lanes[at]; {
		case l.state == busy && l.flight() == 0 && !l.posting: // the adapter has nothing of it
			c.part(l, Lost)
			c.serve(at)
		default:
			c.fail(at, Lost)
		}
	}
	return c.out
}

// PortUp lets transfers begin again.
func (c *Core) PortUp() []Action {
	c.out = c.out[:0]
	c.down = false
	return c.out
}
