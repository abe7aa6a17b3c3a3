package lane

import (
	"fmt"
	"math/rand/v2"
)

// The model: an adapter, a network, clients' memory and a driver in simulated time, around a Core. It keeps its own
// books of who owns what, from what the Core was told and what it answered; it does not look into the Core.

const (
	// Times in ticks. A transfer is expired margin before its deadline: what a call of the driver, a reset and a packet
	// take together. Nothing of it may touch the client's memory after the deadline.
	postTime   = 15
	resetTime  = 20
	packetTime = 10
	linger     = packetTime
	margin     = postTime + resetTime + packetTime + 2
	slowReset  = 400 // a driver that returns late; the adapter has stopped in time
	lateTime   = 60  // when the Core is told so
)

type eventKind uint8

const (
	evSubmit eventKind = iota
	evStop
	evExpire
	evAbandon
	evTaken    // the adapter sees posted work requests
	evPosted   // the driver returns from a post
	evExecute  // the adapter goes on with a DCI's oldest work request
	evArrive   // a packet arrives at the client's memory
	evComplete // a completion is polled
	evQuiet    // a reset has stopped the adapter
	evReset    // and the driver returns from it
	evRetired
	evLate // the driver has not returned for a while
	evMade // somebody has tried to make a DCI in place of one that was destroyed
	evLingered
	evPort
	evFailed
)

type event struct {
	at   int64
	tie  uint64
	kind eventKind
	n    int // lane, or index of the transfer
	job  job
	well bool
}

// job is a work request, as the adapter has it.
type job struct {
	id     uint64
	move   int // index of the transfer
	work   Work
	gen    int // of the model's DCI
	status Status
	bytes  int
	data   [16]byte // of a WRITE, as it left
}

// dci is one lane's, as the adapter has it.
type dci struct {
	gen      int   // ends with each reset
	sq       []job // posted and not executed
	running  bool  // an evExecute is under way
	failed   bool  // in its error state
	hung     bool  // nobody answers, for ever
	rogue    bool  // neither reset nor destroyed: it goes on
	stopping bool  // a reset was asked for
	calls    int   // of the driver to reset or destroy it
	called   bool  // one has not returned,
	late     bool  // and the Core was told so
	dead     bool  // there is none, or it is lost
	owned    []job // whose buffers the adapter has: not completed, or their completion not polled
	posting  []job
	owner    int // index of the transfer that has it; -1: none
	asked    bool
	arrival  int64 // of the last packet, and of the last completion: each in order
	complete int64
}

// move is a transfer, as its client and its server have it.
type move struct {
	Transfer
	local    []byte
	want     []byte // what local or the window should be in the end
	stop     int64
	expire   int64
	deadline int64
	released bool
	finished bool
	stuck    bool
	begun    bool // submitted
	unwanted bool // abandoned
	result   Result
	proved   bool
	lane     int // that has posted for it; -1: none
	inFlight int // packets in the network
	moved    int // bytes
}

type model struct {
	rng    *rand.Rand
	core   *Core
	o      Config
	now    int64
	heap   []event
	moves  []move
	dcis   []dci
	memory []byte // of all clients; addresses are base and on
	owner  []int  // of each byte of memory: index of the transfer that has a window there
	inCQ   int    // places that may be in use at the adapter
	down   bool   // the port,
	upAt   int64  // and when it came up
	faults float64
	wrong  []string
}

const base = 1 << 20

func (m *model) blame(format string, args ...any) {
	if len(m.wrong) < 8 {
		m.wrong = append(m.wrong, fmt.Sprintf("at %d: ", m.now)+fmt.Sprintf(format, args...))
	}
}

// chance is true in so many of 100 cases, scaled by how faulty the schedule is.
func (m *model) chance(percent float64) bool { return m.rng.Float64()*100 < percent*m.faults }

// at schedules an event; those of the same time come in an order chosen by the seed.
func (m *model) at(t int64, e event) {
	e.at, e.tie = t, m.rng.Uint64()
	m.heap = append(m.heap, e)
	i := len(m.heap) - 1
	for i > 0 && before(&m.heap[i], &m.heap[(i-1)/2]) {
		m.heap[i], m.heap[(i-1)/2] = m.heap[(i-1)/2], m.heap[i]
		i = (i - 1) / 2
	}
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.tie < b.tie }

func (m *model) next() event {
	e := m.heap[0]
	last := len(m.heap) - 1
	m.heap[0] = m.heap[last]
	m.heap = m.heap[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			return e
		}
		if c+1 < last && before(&m.heap[c+1], &m.heap[c]) {
			c++
		}
		if !before(&m.heap[c], &m.heap[i]) {
			return e
		}
		m.heap[i], m.heap[c] = m.heap[c], m.heap[i]
		i = c
	}
}

func (m *model) some(n int64) int64 { return 1 + m.rng.Int64N(n) }

// newModel makes a schedule's clients and transfers, all by the seed.
func newModel(seed uint64) *model {
	rng := rand.New(rand.NewPCG(seed, 20))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	o := Config{Lanes: 1 + rng.IntN(4), PerPeer: 1 + rng.IntN(3), PerOwner: 1 + rng.IntN(3), Batch: 1 + rng.IntN(3),
		Piece: pick(1, 3, 4, 16)}
	o.Depth = o.Batch + rng.IntN(4)
	o.Credits = o.Batch + rng.IntN(o.Lanes*o.Depth)
	m := &model{rng: rng, o: o, core: New(o), faults: float64(pick(0, 1, 1, 1, 4)), dcis: make([]dci, o.Lanes)}
	for i := range m.dcis {
		m.dcis[i].owner = -1
	}
	m.moves = make([]move, 1+rng.IntN(6))
	m.memory = make([]byte, 64*len(m.moves))
	m.owner = make([]int, len(m.memory))
	for i := range m.moves {
		m.newMove(i)
	}
	if m.chance(5) {
		m.at(rng.Int64N(600), event{kind: evFailed, n: rng.IntN(o.Lanes)})
	}
	if m.chance(5) {
		m.at(rng.Int64N(300), event{kind: evPort})
		m.at(300+rng.Int64N(300), event{kind: evPort, well: true})
	}
	return m
}

// newMove makes a transfer; its window lies in 64 bytes of the memory that are its own.
func (m *model) newMove(i int) {
	rng, v := m.rng, &m.moves[i]
	v.ID = uint64(100 + i)
	v.Peer.LID = uint16(rng.IntN(3))
	v.Owner = []string{"alice", "bob"}[rng.IntN(2)]
	v.Read = rng.IntN(2) == 0
	from := 64*i + rng.IntN(16)
	size := 1 + rng.IntN(40)
	v.Window = Window{Addr: uint64(base + from), Size: uint64(size)}
	skip := rng.IntN(size)
	v.Remote = v.Window.Addr + uint64(skip)
	left := 1 + rng.IntN(size-skip)
	v.local = make([]byte, left)
	for left > 0 {
		n := rng.IntN(left + 1)
		v.Segments = append(v.Segments, n)
		left -= n
	}
	for k := range 64 {
		m.memory[64*i+k] = byte(rng.Uint32())
		m.owner[64*i+k] = -1
	}
	for k := range size {
		m.owner[from+k] = i
	}
	there := m.memory[from+skip:][:len(v.local)]
	for k := range v.local {
		v.local[k] = byte(rng.Uint32())
	}
	if v.Read {
		v.want = append(v.want, there...)
	} else {
		v.want = append(v.want, v.local...)
	}
	v.lane = -1
	begin := rng.Int64N(200)
	v.expire = begin + 20 + rng.Int64N(600)
	v.stop = v.expire - rng.Int64N(20+v.expire-begin-20)
	v.deadline = v.expire + margin
	m.at(begin, event{kind: evSubmit, n: i})
	m.at(max(v.stop, begin), event{kind: evStop, n: i})
	m.at(v.expire, event{kind: evExpire, n: i})
	if m.chance(4) {
		m.at(begin+rng.Int64N(200), event{kind: evAbandon, n: i})
	}
}

// run plays the schedule to its end, and returns what was wrong.
func (m *model) run() []string {
	for steps := 0; len(m.heap) > 0 && len(m.wrong) == 0; steps++ {
		if steps > 20000 {
			m.blame("the schedule does not end")
			break
		}
		e := m.next()
		m.now = e.at
		m.play(e)
		m.waits()
	}
	if len(m.wrong) == 0 {
		m.end()
	}
	return m.wrong
}

func (m *model) play(e event) {
	switch e.kind {
	case evSubmit:
		m.moves[e.n].begun = true
		m.do(m.core.Submit(m.moves[e.n].Transfer))
	case evStop:
		m.do(m.core.Stop(m.moves[e.n].ID))
	case evExpire:
		m.do(m.core.Expire(m.moves[e.n].ID))
	case evAbandon:
		m.moves[e.n].unwanted = true
		m.do(m.core.Abandon(m.moves[e.n].ID))
	case evTaken:
		m.taken(e.n)
	case evPosted:
		m.dcis[e.n].asked = false
		m.do(m.core.Posted(e.n, e.well))
	case evExecute:
		m.execute(e)
	case evArrive:
		m.arrive(e)
	case evComplete:
		m.polled(e)
	case evQuiet:
		m.quiet(e.n)
	case evReset:
		m.resetDone(e)
	case evRetired:
		m.retired(e)
	case evLate:
		m.late(e)
	case evMade:
		m.made(e)
	case evLingered:
		m.do(m.core.Lingered(m.moves[e.n].ID))
	case evFailed:
		m.dcis[e.n].failed = true
		m.do(m.core.Failed(e.n))
	case evPort:
		m.down, m.upAt = !e.well, m.now
		if e.well {
			m.do(m.core.PortUp())
		} else {
			m.do(m.core.PortDown())
		}
	}
}
