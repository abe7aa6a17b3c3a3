package fabric

import (
	"context"

	"github.com/penstock-store/penstock/internal/token"
)

// Sessions is what the control plane and requests ask of a fabric whose sessions a roster holds. Fabrics embed it.
type Sessions struct {
	roster           *Roster
	network, address string
}

var (
	_ SessionOpener = Sessions{}
	_ Revoker       = Sessions{}
	_ Claimer       = Sessions{}
	_ StatsReporter = Sessions{}
)

// Sessions are the roster's; clients find the data connections at the address.
func (r *Roster) Sessions(network, address string) Sessions { return Sessions{r, network, address} }

// NewSession offers a session to the principal.
func (s Sessions) NewSession(ctx context.Context, principal string) (SessionOffer, error) {
	offer, err := s.roster.Offer(ctx, principal)
	offer.Network, offer.Address = s.network, s.address
	return offer, err
}

// RevokePrincipal cuts the principal's sessions; their memory is out of reach when it returns, or lingers (Lingerer).
func (s Sessions) RevokePrincipal(principal string) { s.roster.Revoke(principal) }

// Claim uses up the number of a token.
func (s Sessions) Claim(d token.Descriptor, principal string) (*Claim, error) {
	return s.roster.Claim(d, principal)
}

// Stats reads the counters of sessions and transfers.
func (s Sessions) Stats() Stats { return s.roster.Counters.Read(s.roster.fabric) }
