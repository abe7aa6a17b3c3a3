package fabric

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/token"
)

// MaxOpenWindows bounds the transfers of one session under way; each has a timer and a place in the
// protocol's tables. Clients keep tens in flight.
const MaxOpenWindows = 1024

// Carrier is the fabric's own part of a session: its data connections.
type Carrier interface {
	// Hangup closes the data connections. It does not block, and may be called again.
	Hangup()
}

// Backing is what a fabric holds of a region's memory.
type Backing interface {
	// Sever makes client memory unreachable at once: operations under way meet other memory. It is
	// called exactly once, without a lock held.
	Sever()
}

// Lingerer is an optional ability of a Backing whose operations cannot be led to other memory: Sever
// waits for them for a bounded time, and Lingers tells whether one is still under way.
type Lingerer interface{ Lingers() bool }

// Session is one client's relation with one fabric, from the proof of its secret to its end: the
// regions it announced and the windows that are open. Fabrics add connections and movement.
type Session struct {
	ID        [16]byte
	Principal string
	Secret    token.Secret
	Carrier   Carrier
	RequestID string // of the request that opened it, for log lines

	roster *Roster
	once   sync.Once     // of Cut
	ended  chan struct{} // closed when Cut begins

	mu      sync.Mutex
	changed sync.Cond // on mu: a window's operations ended, a window closed, or severed was set
	closing bool
	cause   error // not nil once ended
	severed bool  // client memory is out of reach
	regions map[uint32]*Region
	windows map[*Window]struct{}
	used    time.Time // when a window was opened or closed last
	claims  claimLog  // numbers of tokens that were used
}

// Region is memory that the client announced.
type Region struct {
	Number uint32
	Size   int64

	// guarded by the session's mu
	backing   Backing
	charge    int64 // bytes on the ledger
	ready     bool  // published
	forgotten bool  // no new windows
	pins      int   // open windows
}

func newSession(r *Roster, id [16]byte, o *offered, c Carrier) *Session {
	s := &Session{
		ID: id, Principal: o.principal, Secret: o.secret, Carrier: c, RequestID: o.request,
		roster:  r,
		ended:   make(chan struct{}),
		regions: make(map[uint32]*Region),
		windows: make(map[*Window]struct{}),
	}
	s.changed.L = &s.mu
	return s
}

// Ended is closed when the session begins to end.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Err is nil while the session lives, and then an ErrFenced with its cause.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Cut ends the session at once: when it returns, client memory is out of reach and every open window
// has failed. Calling it again waits for the first call and does nothing.
func (s *Session) Cut(cause error) {
	s.once.Do(func() { s.cut(cause) })
}

func (s *Session) cut(cause error) {
	s.mu.Lock()
	s.cause = fenced(cause)
	close(s.ended)
	regions := s.regions
	s.regions = nil
	if len(s.windows) > 0 {
		s.roster.Counters.Fenced.Add(1)
	}
	s.mu.Unlock()
	if errors.Is(cause, ErrProtocol) {
		s.roster.Counters.Violation.Add(1)
	}
	s.Carrier.Hangup()
	for _, g := range regions {
		s.sever(g)
	}
	s.mu.Lock()
	s.severed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	s.roster.remove(s)
}

// sever runs without the lock, for a region that is out of the map.
func (s *Session) sever(g *Region) {
	if g.backing != nil {
		g.backing.Sever()
	}
	s.roster.ledger.DropBytes(s.Principal, g.charge)
	if g.ready {
		s.roster.Counters.Regions.Add(-1)
		s.roster.Counters.Mapped.Add(-g.charge)
	}
}

// Reserve takes a number and the ledger's bytes for a region that is about to be mapped; charge is
// what counts against the principal. Publish or Unreserve follows. Errors: ErrLimit, ErrRegion
// (number in use), ErrFenced.
func (s *Session) Reserve(number uint32, size, charge int64) (*Region, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return nil, s.cause
	}
	if s.regions[number] != nil {
		return nil, fmt.Errorf("%w: number %d is in use", ErrRegion, number)
	}
	if n := s.roster.ledger.limits.RegionsPerSession; len(s.regions) >= n {
		return nil, fmt.Errorf("%w: %d regions", ErrLimit, n)
	}
	if err := s.roster.ledger.AddBytes(s.Principal, charge); err != nil {
		return nil, err
	}
	g := &Region{Number: number, Size: size, charge: charge}
	s.regions[number] = g
	return g, nil
}

// Publish makes a reserved region usable. On an error the caller still owns the backing. Errors:
// ErrFenced.
func (s *Session) Publish(g *Region, b Backing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return s.cause
	}
	g.backing = b
	g.ready = true
	s.roster.Counters.Regions.Add(1)
	s.roster.Counters.Mapped.Add(g.charge)
	return nil
}

// Unreserve gives up a region that was reserved and not published.
func (s *Session) Unreserve(g *Region) {
	s.mu.Lock()
	mine := s.regions[g.Number] == g
	if mine {
		delete(s.regions, g.Number)
	}
	s.mu.Unlock()
	if mine { // else Cut has it
		s.roster.ledger.DropBytes(s.Principal, g.charge)
	}
}

// Forget stops new windows of a region. The returned function, to be called once, waits until the
// open ones are closed (their deadlines bound that), severs the region, and returns false when the
// session ended instead. It is nil when there is no such region.
func (s *Session) Forget(number uint32) (finish func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.regions[number]
	if g == nil || !g.ready || g.forgotten {
		return nil
	}
	g.forgotten = true
	return func() bool { return s.finishForget(g) }
}

func (s *Session) finishForget(g *Region) bool {
	s.mu.Lock()
	for g.pins > 0 && s.cause == nil {
		s.changed.Wait()
	}
	if s.cause != nil {
		s.mu.Unlock()
		return false
	}
	delete(s.regions, g.Number)
	s.mu.Unlock()
	s.sever(g)
	return true
}

// Idle tells whether no window is open and none was for wait.
func (s *Session) Idle(wait time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.windows) == 0 && time.Since(s.used) >= wait
}

// Drain stops new windows and waits until the open ones are closed, at most for wait.
func (s *Session) Drain(wait time.Duration) {
	timer := time.AfterFunc(wait, func() {
		s.mu.Lock()
		wait = 0
		s.changed.Broadcast()
		s.mu.Unlock()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for len(s.windows) > 0 && s.cause == nil && wait > 0 {
		s.changed.Wait()
	}
}

// Open checks a descriptor and pins its window. Errors: those of Fabric.Open.
func (s *Session) Open(d token.Descriptor, g Grant) (*Window, error) {
	if s.Principal != g.Principal {
		return nil, ErrNotGranted
	}
	if g.Claim == nil {
		var err error
		if g.Claim, err = s.Claim(d, g.Principal); err != nil {
			return nil, err
		}
	}
	if err := g.Claim.open(s, d); err != nil {
		return nil, err
	}
	if g.Bytes < 0 || g.Bytes > d.Size {
		return nil, fmt.Errorf("%w: %d bytes into %d", ErrTooLarge, g.Bytes, d.Size)
	}
	if !time.Now().Before(g.Deadline) {
		return nil, fenced(ErrOverdue)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil || s.closing {
		return nil, ErrNoSession
	}
	region := s.regions[uint32(d.Region)] // the high half is the token's number
	if region == nil || !region.ready || region.forgotten {
		return nil, fmt.Errorf("%w: no such region", ErrWindow)
	}
	if d.Size < 0 || d.Size > region.Size || d.Addr > uint64(region.Size-d.Size) {
		return nil, ErrWindow
	}
	if len(s.windows) >= MaxOpenWindows {
		return nil, fmt.Errorf("%w: %d open windows", ErrLimit, MaxOpenWindows)
	}
	w := &Window{
		Session: s, Region: region, Backing: region.backing, Field: d.Region,
		Base: int64(d.Addr), Span: d.Size, Bytes: g.Bytes, Direction: g.Direction, Deadline: g.Deadline,
	}
	region.pins++
	s.windows[w] = struct{}{}
	s.used = time.Now()
	s.roster.Counters.Open.Add(1)
	w.timer = time.AfterFunc(time.Until(g.Deadline), w.expire)
	return w, nil
}
