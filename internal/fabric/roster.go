package fabric

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/requestid"
	"github.com/penstock-store/penstock/internal/token"
)

// Causes for which a session ends; they come wrapped in ErrFenced.
var (
	// ErrRevoked says that the principal's key was revoked.
	ErrRevoked = errors.New("fabric: principal revoked")
	// ErrPeerGone says that the client closed its connection or died.
	ErrPeerGone = errors.New("fabric: client gone")
	// ErrOverdue says that a deadline passed while client memory was in use.
	ErrOverdue = errors.New("fabric: deadline passed")
	// ErrStalled says that the client took or sent nothing for the stall wait.
	ErrStalled = errors.New("fabric: client stalls")
	// ErrIdle says that neither frame nor transfer came for the idle wait.
	ErrIdle = errors.New("fabric: session idle")
	// ErrProtocol says that the client broke the protocol.
	ErrProtocol = errors.New("fabric: client broke the protocol")
	// ErrShutdown says that the fabric is closing.
	ErrShutdown = errors.New("fabric: closing")
)

// Roster holds one fabric's offers and live sessions. Its mutex is held for a map look-up; it is
// never held together with a session's.
type Roster struct {
	fabric   string
	ledger   *Ledger
	Counters Counters

	mu     sync.RWMutex
	closed bool
	offers map[[16]byte]*offered
	live   map[[16]byte]*Session
}

type offered struct {
	principal string
	request   string // id of the request that asked for it
	secret    token.Secret
	timer     *time.Timer
}

// NewRoster starts the roster of the named fabric.
func NewRoster(fabric string, ledger *Ledger) *Roster {
	return &Roster{
		fabric: fabric,
		ledger: ledger,
		offers: make(map[[16]byte]*offered),
		live:   make(map[[16]byte]*Session),
	}
}

// Limits are the limits in force.
func (r *Roster) Limits() Limits { return r.ledger.Limits() }

// Offer creates a session that waits for its first data connection; it lapses after OfferWait. An
// offer counts as a session. The caller fills in network and address. Errors: ErrLimit, ErrShutdown.
func (r *Roster) Offer(ctx context.Context, principal string) (SessionOffer, error) {
	if err := r.ledger.AddSession(principal); err != nil {
		return SessionOffer{}, err
	}
	wait := r.ledger.Limits().OfferWait
	o := SessionOffer{Fabric: r.fabric, Secret: token.NewSecret(), Expires: time.Now().Add(wait)}
	_, _ = rand.Read(o.ID[:]) // documented to never fail
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.ledger.DropSession(principal)
		return SessionOffer{}, ErrShutdown
	}
	r.offers[o.ID] = &offered{
		principal: principal,
		request:   requestid.FromContext(ctx),
		secret:    o.Secret,
		timer:     time.AfterFunc(wait, func() { r.lapse(o.ID) }),
	}
	r.Counters.Offers.Add(1)
	return o, nil
}

func (r *Roster) lapse(id [16]byte) {
	r.mu.Lock()
	o := r.offers[id]
	delete(r.offers, id)
	r.mu.Unlock()
	if o != nil {
		r.ledger.DropSession(o.principal)
		r.Counters.Lapsed.Add(1)
	}
}

// OfferSecret is the secret that the first data connection of an offer must prove.
func (r *Roster) OfferSecret(id [16]byte) (token.Secret, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if o := r.offers[id]; o != nil {
		return o.secret, true
	}
	return token.Secret{}, false
}

// Admit turns an offer, whose secret was proved, into a live session carried by c. It succeeds once
// per offer. Errors: ErrNoSession.
func (r *Roster) Admit(id [16]byte, c Carrier) (*Session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.offers[id]
	if o == nil || r.closed {
		return nil, ErrNoSession
	}
	o.timer.Stop()
	delete(r.offers, id)
	s := newSession(r, id, o, c)
	r.live[id] = s
	r.Counters.Sessions.Add(1)
	return s, nil
}

// Find returns a live session. Errors: ErrNoSession.
func (r *Roster) Find(id [16]byte) (*Session, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s := r.live[id]; s != nil {
		return s, nil
	}
	return nil, ErrNoSession
}

// Open pins the window that the descriptor names. Errors: those of Fabric.Open.
func (r *Roster) Open(d token.Descriptor, g Grant) (*Window, error) {
	if d.Kind != token.Session || d.Fabric != r.fabric {
		return nil, ErrNoFabric
	}
	s, err := r.Find(d.SessionID)
	if err != nil {
		return nil, err
	}
	return s.Open(d, g)
}

// remove is called once per session, by its Cut.
func (r *Roster) remove(s *Session) {
	r.mu.Lock()
	delete(r.live, s.ID)
	r.mu.Unlock()
	r.ledger.DropSession(s.Principal)
	r.Counters.Sessions.Add(-1)
}

// Revoke drops the offers and cuts the sessions of a principal.
func (r *Roster) Revoke(principal string) {
	r.end(ErrRevoked, func(p string) bool { return p == principal })
}

// Close drops all offers and cuts all sessions; no new ones are admitted.
func (r *Roster) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.end(ErrShutdown, func(string) bool { return true })
}

func (r *Roster) end(cause error, match func(principal string) bool) {
	var sessions []*Session
	var dropped []string
	r.mu.Lock()
	for id, o := range r.offers {
		if match(o.principal) {
			o.timer.Stop()
			delete(r.offers, id)
			dropped = append(dropped, o.principal)
		}
	}
	for _, s := range r.live {
		if match(s.Principal) {
			sessions = append(sessions, s)
		}
	}
	r.mu.Unlock()
	for _, p := range dropped {
		r.ledger.DropSession(p)
	}
	var cuts sync.WaitGroup // at once: an adapter or a kernel that hangs costs each of them the same wait
	for _, s := range sessions {
		cuts.Go(func() { s.Cut(cause) })
	}
	cuts.Wait()
}

func fenced(cause error) error { return fmt.Errorf("%w: %w", ErrFenced, cause) }
