package fabric

import (
	"fmt"
	"sync"
	"time"
)

// Limits bound what clients may take. The zero value of a field means its default.
type Limits struct {
	Sessions             int           // in all; DefaultSessions
	SessionsPerPrincipal int           // DefaultSessionsPerPrincipal
	RegionsPerSession    int           // DefaultRegionsPerSession
	MappedBytes          int64         // bytes of regions per principal; DefaultMappedBytes
	OfferWait            time.Duration // life of an offer without a data connection; DefaultOfferWait
	IdleWait             time.Duration // a session without frames and transfers ends; DefaultIdleWait
	DrainWait            time.Duration // grace of running transfers after Close or Forget; DefaultDrainWait
}

// Defaults of Limits.
const (
	// DefaultSessions bounds sockets and session state: a session costs up to eight descriptors.
	DefaultSessions = 4096
	// DefaultSessionsPerPrincipal lets 256 client processes work under one key.
	DefaultSessionsPerPrincipal = 1024
	// DefaultRegionsPerSession bounds mappings: the kernel allows 65530 per process by default.
	DefaultRegionsPerSession = 256
	// DefaultMappedBytes bounds what a principal can make the server fault in by punching holes.
	DefaultMappedBytes = 64 << 30
	// DefaultOfferWait is long for a client that dials at once, and short for one that hoards.
	DefaultOfferWait = 10 * time.Second
	// DefaultIdleWait is three missed pings of a living client.
	DefaultIdleWait = 15 * time.Minute
	// DefaultDrainWait lets a transfer that moves finish when its session closes.
	DefaultDrainWait = 2 * time.Second
)

// WithDefaults fills the zero fields.
func (l Limits) WithDefaults() Limits {
	fill(&l.Sessions, DefaultSessions)
	fill(&l.SessionsPerPrincipal, DefaultSessionsPerPrincipal)
	fill(&l.RegionsPerSession, DefaultRegionsPerSession)
	fill(&l.MappedBytes, int64(DefaultMappedBytes))
	fill(&l.OfferWait, DefaultOfferWait)
	fill(&l.IdleWait, DefaultIdleWait)
	fill(&l.DrainWait, DefaultDrainWait)
	return l
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Ledger counts, over all fabrics of a node, what each principal holds. Its mutex is a leaf.
type Ledger struct {
	limits Limits

	mu       sync.Mutex
	sessions int
	accounts map[string]*account
}

type account struct {
	sessions int
	bytes    int64
}

// NewLedger starts a ledger; limits may have zero fields.
func NewLedger(limits Limits) *Ledger {
	return &Ledger{limits: limits.WithDefaults(), accounts: make(map[string]*account)}
}

// Limits are the limits in force.
func (l *Ledger) Limits() Limits { return l.limits }

// AddSession counts a session. Errors: ErrLimit.
func (l *Ledger) AddSession(principal string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions >= l.limits.Sessions {
		return fmt.Errorf("%w: %d sessions", ErrLimit, l.sessions)
	}
	a := l.account(principal)
	if a.sessions >= l.limits.SessionsPerPrincipal {
		return fmt.Errorf("%w: %d sessions of one principal", ErrLimit, a.sessions)
	}
	a.sessions++
	l.sessions++
	return nil
}

// KeepSession counts a session that has ended, and still holds something of the node, against its principal,
// whatever the limits are.
func (l *Ledger) KeepSession(principal string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(principal).sessions++
	l.sessions++
}

// DropSession takes a session out of the count.
func (l *Ledger) DropSession(principal string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions--
	l.account(principal).sessions--
	l.forget(principal)
}

// AddBytes counts a region. Errors: ErrLimit.
func (l *Ledger) AddBytes(principal string, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(principal)
	if n < 0 || n > l.limits.MappedBytes-a.bytes {
		l.forget(principal)
		return fmt.Errorf("%w: %d bytes of regions and %d more", ErrLimit, a.bytes, n)
	}
	a.bytes += n
	return nil
}

// DropBytes takes a region out of the count.
func (l *Ledger) DropBytes(principal string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(principal).bytes -= n
	l.forget(principal)
}

// Held is what a principal holds at the moment.
func (l *Ledger) Held(principal string) (sessions int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[principal]; a != nil {
		return a.sessions, a.bytes
	}
	return 0, 0
}

func (l *Ledger) account(principal string) *account {
	a := l.accounts[principal]
	if a == nil {
		a = &account{}
		l.accounts[principal] = a
	}
	return a
}

func (l *Ledger) forget(principal string) {
	a := l.accounts[principal]
	if a.sessions < 0 || a.bytes < 0 {
		panic("fabric: ledger dropped more than it added")
	}
	if a.sessions == 0 && a.bytes == 0 {
		delete(l.accounts, principal)
	}
}
