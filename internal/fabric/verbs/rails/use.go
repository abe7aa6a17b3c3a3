package rails

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/rail"
)

// shareOfUses is the part of a rail's uses that one principal may have: half, so that others find room.
const shareOfUses = 2

// Rail is a rail with its health and its uses.
type Rail struct {
	set    *Set
	index  uint8
	name   string
	engine Engine // nil: could not be opened
	cause  error  // then: why
	numa   int

	up    atomic.Bool           // takes uses and transfers; set under Set.mu
	place atomic.Pointer[place] // of info; set under Set.mu, and read by each request
	load  atomic.Int64          // bytes of the open transfers that chose it
	good  atomic.Int64          // when a move last succeeded, Unix nanoseconds

	ejections, returns, refused atomic.Int64

	connects *turns        // of the queue pairs that connect
	ejected  chan struct{} // capacity 1: wakes the keeper, which sees by ejections that there was one
	kept     chan struct{} // closed when the keeper has ended; nil: there was none

	staging sync.WaitGroup // of stages that are being made; counted up under Set.mu, until closing

	// guarded by Set.mu
	info    rail.Rail
	reason  string
	uses    map[*Use]struct{}
	holders map[string]int // uses by principal
	lapses  []lapse        // failures since the last success, oldest first
	stages  map[*Stage]struct{}
	closing bool // no stage is made any more
}

// place is where a rail is in the network.
type place struct {
	at     netip.Addr // invalid on InfiniBand
	device string     // of the network
}

// Index is its place in the set.
func (k *Rail) Index() uint8 { return k.index }

// Up tells whether it takes uses and transfers. It takes no lock.
func (k *Rail) Up() bool { return k.up.Load() }

// Carry adds n to the bytes of the open transfers that chose the rail, and returns how many they are then. It takes no
// lock.
func (k *Rail) Carry(n int64) int64 { return k.load.Add(n) }

// beside tells whether two rails are known to be of one NUMA node.
func (k *Rail) beside(other *Rail) bool { return k.numa == other.numa && k.numa >= 0 }

// close ends the keeper and closes the rail.
func (k *Rail) close() error {
	if k.engine == nil {
		return nil
	}
	if k.kept != nil {
		<-k.kept
	}
	if err := k.closeStages(); err != nil {
		return fmt.Errorf("rails: %s: %w", k.name, err)
	}
	if err := k.engine.Close(); err != nil {
		return fmt.Errorf("rails: %s: %w", k.name, err)
	}
	return nil
}

// note keeps the port's state. Set.mu is held, or nobody else has the rail yet.
func (k *Rail) note(info rail.Rail) {
	at := info.Address()
	if at.Is6() && at.IsLinkLocalUnicast() {
		at = at.WithZone(info.Network) // as the address of a connection has it
	}
	k.info = info
	k.place.Store(&place{at, info.Network})
}

// Use is the use of a rail by one queue pair of a fabric. What is exported does not change.
type Use struct {
	Rail    *Rail
	Owner   string                // the principal whose it is
	Session [16]byte              // of the client, or what takes its place
	Far     End                   // the client's queue pair
	Path    initiator.PathOptions // of this node's
	// Fail is called, perhaps more than once, when the rail went down or the queue pair is found not to be the client's.
	// It must end the use without waiting.
	Fail func()

	near End          // this node's; guarded by ends.mu
	good atomic.Int64 // when a move last succeeded, Unix nanoseconds
}

// Join counts the use in, and Leave must follow its end. Errors: ErrTaken, ErrDown, ErrShare.
func (u *Use) Join() error {
	if !u.Rail.set.ends.claim(u) {
		return ErrTaken
	}
	err := u.Rail.join(u)
	if err != nil {
		u.Rail.set.ends.drop(u)
	}
	return err
}

// Leave undoes Join.
func (u *Use) Leave() {
	u.Rail.leave(u)
	u.Rail.set.ends.drop(u)
}

func (k *Rail) join(u *Use) error {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	switch {
	case !k.up.Load():
		return ErrDown
	case k.holders[u.Owner] >= max(1, k.engine.Limit()/shareOfUses):
		k.refused.Add(1)
		return ErrShare
	}
	k.holders[u.Owner]++
	k.uses[u] = struct{}{}
	return nil
}

func (k *Rail) leave(u *Use) {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	delete(k.uses, u)
	if k.holders[u.Owner]--; k.holders[u.Owner] == 0 {
		delete(k.holders, u.Owner)
	}
}

// Turn waits until the use may connect: making a queue pair and taking it to its peer's. The caller gives the turn back
// by calling leave; nil: stop was closed.
func (u *Use) Turn(stop <-chan struct{}) (leave func()) { return u.Rail.connects.take(u.Owner, stop) }

// NewPath makes the queue pair. Uses that lead to it, which may be this one, fail. Errors: those of
// initiator.Rail.NewPath.
func (u *Use) NewPath() (*initiator.Path, error) {
	made, err := u.Rail.engine.NewPath(u.Path)
	if err != nil {
		u.Refused()
		return nil, err
	}
	local := made.Local()
	u.Rail.set.ends.enter(u, End{local.GID, local.QPN})
	return made, nil
}

// Refused counts a use that the adapter did not take to its peer.
func (u *Use) Refused() { u.Rail.refused.Add(1) }

// Moved says that a move succeeded: the client's queue pair has answered, and the rail works.
func (u *Use) Moved() {
	now := time.Now().UnixNano()
	u.Rail.good.Store(now)
	if u.good.Swap(now) == 0 {
		u.Rail.set.ends.answered(u)
	}
}

// heard says that a client's bytes came: the rail works. Whose queue pair sent them is not known.
func (u *Use) heard() { u.Rail.good.Store(time.Now().UnixNano()) }

// port is the number of the rail's port.
func (u *Use) port() int {
	u.Rail.set.mu.Lock()
	defer u.Rail.set.mu.Unlock()
	return u.Rail.info.Port
}

// Stuck says loudly that the adapter did not give the queue pair back.
func (u *Use) Stuck(err error) {
	u.Rail.set.logger.Error("rdma queue pair is not given back", "rail", u.Rail.name, "error", err)
}
