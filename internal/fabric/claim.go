package fabric

import (
	"fmt"
	"sync/atomic"

	"github.com/penstock-store/penstock/internal/token"
)

// ClaimWindow is how far the number of a token may lie behind the largest one that its session has
// used. A client numbers its tokens in the order in which it makes them, and requests overtake each
// other while they wait for a connection. A client has at most MaxOpenWindows under way; the window is
// 64 times that, so that one request may wait while tens of thousands pass it. A bit each: 8 KiB per
// session.
const ClaimWindow = 64 << 10

// claimWords is the length of the ring of bits: one word more than the window, since the oldest word
// in use is only partly inside it.
const claimWords = ClaimWindow/64 + 1

// claimLog remembers which numbers of a session were used, in bounded memory: a ring of bits for the
// last ClaimWindow numbers; everything older counts as used.
type claimLog struct {
	top  uint32             // largest number used; 0: none yet
	bits [claimWords]uint64 // of number n: bit n%64 of word n/64 mod claimWords
}

// take uses a number up. False: it was used before, is too old to tell, or is zero.
func (l *claimLog) take(n uint32) bool {
	if n == 0 || l.top >= ClaimWindow && n <= l.top-ClaimWindow {
		return false
	}
	word, bit := n/64, uint64(1)<<(n%64)
	if n > l.top {
		last := l.top / 64
		for w := word; w > last && word-w < claimWords; w-- {
			l.bits[w%claimWords] = 0 // held numbers that have left the window
		}
		l.top = n
	}
	seen := l.bits[word%claimWords]&bit != 0
	l.bits[word%claimWords] |= bit
	return !seen
}

// Claim is the number of one token, used up for one request: no other request can open the window that
// the token names, whatever becomes of this one.
type Claim struct {
	session *Session
	number  uint32
	opened  atomic.Bool
}

// Claim uses up the number of a token that the principal's authenticated request carries. Errors:
// ErrNoSession, ErrNotGranted, ErrReplayed.
func (s *Session) Claim(d token.Descriptor, principal string) (*Claim, error) {
	if s.Principal != principal {
		return nil, ErrNotGranted
	}
	number := uint32(d.Region >> 32)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil || s.closing {
		return nil, ErrNoSession
	}
	if !s.claims.take(number) {
		s.roster.Counters.Replayed.Add(1)
		return nil, fmt.Errorf("%w: number %d after %d", ErrReplayed, number, s.claims.top)
	}
	return &Claim{session: s, number: number}, nil
}

// open lets a claim open one window, of its own session and number.
func (c *Claim) open(s *Session, d token.Descriptor) error {
	if c.session != s || c.number != uint32(d.Region>>32) || !c.opened.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: claim of another token, or opened before", ErrReplayed)
	}
	return nil
}

// Claim finds the session of a descriptor and uses its number up. Errors: ErrNoFabric, and those of
// Session.Claim.
func (r *Roster) Claim(d token.Descriptor, principal string) (*Claim, error) {
	if d.Kind != token.Session || d.Fabric != r.fabric {
		return nil, ErrNoFabric
	}
	s, err := r.Find(d.SessionID)
	if err != nil {
		return nil, err
	}
	return s.Claim(d, principal)
}

// Claimer is what a fabric with sessions offers, so that a token counts as used from the moment its
// request was authenticated. Open claims by itself what was not claimed before.
type Claimer interface {
	// Claim uses up the token's number. Errors: ErrNoSession, ErrNotGranted, ErrReplayed.
	Claim(d token.Descriptor, principal string) (*Claim, error)
}

// Claim uses up the number of a token for one request of the principal. It is nil, without an error,
// for tokens that have no number. Errors: those of Route and of Claimer.
func (m *Manager) Claim(d token.Descriptor, principal string) (*Claim, error) {
	f, err := m.Route(d)
	if err != nil {
		return nil, err
	}
	if c, ok := f.(Claimer); ok {
		return c.Claim(d, principal)
	}
	return nil, nil
}
