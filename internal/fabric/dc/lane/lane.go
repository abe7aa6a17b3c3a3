// Package lane is what a rail's DCIs do for transfers, as a machine that does nothing by itself: which DCI serves which
// transfer, how a transfer is cut into work requests, and when a DCI has to be reset before its transfer may end. It
// has no goroutines, no clock and no adapter: inputs are calls of Core, and each returns the actions that follow.
// So every order of events can be tried, and tried again.
//
// Called by: internal/fabric/verbs/initiator, whose Pool is the goroutines, timers and calls around it.
//
// Words: a lane is a place for a DCI. It serves one transfer at a time: two destinations on one DCI would make it
// connect anew all the time, and one that fails would take the other with it.
//
// Invariants:
//  1. A work request lies in its transfer's window, and in one of its segments.
//  2. Release says that the adapter has let go of a transfer's buffers: all its work requests have completed, or its
//     lane was reset or its DCI destroyed. Finish follows Release. A lane that can be neither reset nor destroyed keeps
//     its transfer, for good.
//  3. After Finish nothing of the transfer reaches the peer's memory: it went well, and a READ came back from behind
//     all that was written; or its lane was reset, and what was in the network then had the time of Linger to arrive.
//  4. Nothing of a transfer is posted after Stop, and Expire resets its lane at once.
//  5. A lane posts for one transfer between that one's first post and its Release.
//  6. A work request has a place in the completion queue from before it is posted until its completion was taken, or
//     its lane was reset and the queue was seen empty after that.
//  7. A peer has at most PerPeer lanes, those that are being reset among them: a dead one cannot take all. An owner has
//     at most PerOwner, whatever peers it names.
//  8. A work request's number is used once on a lane, also after a reset. A completion that is late or comes twice
//     belongs to nothing, and is counted as unexpected.
//  9. Nobody waits for a lane where there is none: all are late, stuck or gone.
//
// What it does not do: addresses and keys, suspension of peers, choice of a rail, waiting. It is not safe for several
// goroutines.
package lane

// Peer is the port that a transfer's memory is behind.
type Peer struct {
	GID [16]byte
	LID uint16
}

// Transfer is one direction's move between segments of local memory, one after another, and a window of a peer's.
type Transfer struct {
	ID       uint64 // chosen by the caller; no two under way have the same
	Owner    string // whose it is
	Peer     Peer
	Read     bool   // from the peer; else into its memory
	Window   Window // that was granted
	Remote   uint64 // where it begins there
	Segments []int  // bytes of each
}

// Window is a range of a peer's addresses.
type Window struct{ Addr, Size uint64 }

// Work is one work request to be posted.
type Work struct {
	ID      uint64 // for the completion
	Remote  uint64
	Segment int // of the transfer; -1: the proof, whose byte goes into memory of the lane's own
	Offset  int // in the segment
	Length  int
	Read    bool
	Signal  bool
}

// Kind of an Action.
type Kind uint8

// Kinds of Action.
const (
	// Post: post Works on the lane's DCI, by one call, and tell by Posted. They stay as they are until then.
	Post Kind = iota + 1
	// Reset: reset the lane's DCI, connect it again, take every completion that is in the queue, and tell by ResetDone.
	Reset
	// Retire: destroy the lane's DCI, take every completion, make another, and tell by RetireDone.
	Retire
	// Release: the adapter has let go of the transfer's buffers.
	Release
	// Linger: call Lingered after the longest time that a packet may live in the network.
	Linger
	// Finish: the transfer has ended with Result.
	Finish
)

// Action is what the caller has to do.
type Action struct {
	Kind     Kind
	Result   Result
	Lane     int
	Transfer uint64
	Works    []Work
}

// Result is how a transfer ended.
type Result uint8

// Results. But for OK what moved is not known.
const (
	OK      Result = iota
	Denied         // the peer's adapter refused address, length, key or request
	Lost           // no acknowledgement, flushed, port down
	Local          // this end posted something wrong, or its adapter failed
	Expired        // Stop or Expire
	Invalid        // the transfer cannot be meant
)

// Status of a completion.
type Status uint8

// Statuses.
const (
	StatusOK Status = iota
	StatusDenied
	StatusFlushed // something else failed the DCI
	StatusLost
	StatusLocal
)

// Config sizes a Core.
type Config struct {
	Lanes    int // at most 4096
	PerPeer  int
	PerOwner int
	Depth    int // work requests of a lane under way
	Batch    int // of one post
	Piece    int // bytes of one work request
	Credits  int // places in the completion queue
}

// Counts are gauges and counters of a Core.
type Counts struct {
	Waiting    int   // transfers without a lane
	Idle       int   // lanes
	Stuck      int   // lanes whose DCI could be neither reset nor destroyed
	Gone       int   // lanes whose DCI is destroyed, and not made anew
	Late       int   // lanes whose reset or destruction does not return
	Work       int   // places of the completion queue in use
	Works      int64 // work requests completed well
	Unexpected int   // completions that belonged to nothing
}

// The number of a work request: the lane's 12 bits, and 52 of its count, which does not come to its end: at ten million
// a second that takes 14 years.
const (
	maxLanes  = 1 << 12
	countBits = 52
)

func workID(lane int, count uint64) uint64 { return uint64(lane)<<countBits | count }

func laneOf(id uint64) int { return int(id >> countBits) }

func countOf(id uint64) uint64 { return id & (1<<countBits - 1) }

// cut makes the next work request: at most a piece, and never across segments; the last one is the proof.
func (t *transfer) cut(piece int, w *Work) {
	if t.pieces--; t.pieces == 0 {
		*w = Work{Remote: t.Remote, Segment: -1, Length: 1, Read: true}
		return
	}
	for t.off == t.Segments[t.seg] {
		t.seg, t.off = t.seg+1, 0
	}
	n := min(t.Segments[t.seg]-t.off, piece)
	*w = Work{Remote: t.at, Segment: t.seg, Offset: t.off, Length: n, Read: t.Read}
	t.off += n
	t.at += uint64(n)
}

// plan counts the work requests of a transfer, the proof among them; 0: it cannot be meant.
func plan(t *Transfer, piece int) int {
	total, pieces := uint64(0), 0
	for _, n := range t.Segments {
		if n < 0 {
			return 0
		}
		total += uint64(n)
		pieces += (n + piece - 1) / piece
	}
	from := t.Remote - t.Window.Addr
	if t.Remote < t.Window.Addr || from > t.Window.Size || total > t.Window.Size-from || total == 0 ||
		t.Window.Addr+t.Window.Size < t.Window.Addr {
		return 0
	}
	return pieces + 1
}
