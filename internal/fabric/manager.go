package fabric

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-store/penstock/internal/token"
)

// Manager knows the fabrics of a node. Its fields never change, so it takes no lock.
type Manager struct {
	fabrics []Fabric
	ledger  *Ledger
}

// NewManager takes ownership of the fabrics; Close closes them. The ledger is the one they share.
func NewManager(ledger *Ledger, fabrics ...Fabric) *Manager {
	return &Manager{fabrics: fabrics, ledger: ledger}
}

// Limits are the limits in force.
func (m *Manager) Limits() Limits { return m.ledger.Limits() }

// Open parses the value of x-amz-rdma-token and opens its window for one request. Errors: those of
// token.Parse (token.ErrInvalid) and of OpenDescriptor.
func (m *Manager) Open(ctx context.Context, text string, g Grant) (Remote, error) {
	d, err := token.Parse(text)
	if err != nil {
		return nil, err
	}
	return m.OpenDescriptor(ctx, d, g)
}

// OpenDescriptor opens the window of a parsed token for one request. Errors: ErrNoFabric,
// ErrUnsupportedToken, and those of Fabric.Open. Reason tells which of them are declines.
func (m *Manager) OpenDescriptor(ctx context.Context, d token.Descriptor, g Grant) (Remote, error) {
	f, err := m.Route(d)
	if err != nil {
		return nil, err
	}
	if g.Bytes > d.Size {
		return nil, fmt.Errorf("%w: %d bytes into %d", ErrTooLarge, g.Bytes, d.Size)
	}
	return f.Open(ctx, d, g)
}

// Route returns the fabric that takes tokens like d, without looking at sessions, so that a request
// can be declined before anything is reserved for it: that of a session token by its name, that of another grammar by
// what the fabrics say, in their order. Errors: ErrNoFabric, ErrUnsupportedToken.
func (m *Manager) Route(d token.Descriptor) (Fabric, error) {
	switch d.Kind {
	case token.Session:
		if f := m.fabric(d.Fabric); f != nil {
			return f, nil
		}
		return nil, fmt.Errorf("%w: %s", ErrNoFabric, d.Fabric)
	case token.DC, token.RC: // they name no fabric: a fabric named rc or dc is not asked for its name
		for _, f := range m.fabrics {
			if t, ok := f.(Taker); ok && t.Takes(d) {
				return f, nil
			}
		}
		return nil, ErrNoFabric
	default:
		return nil, ErrUnsupportedToken
	}
}

func (m *Manager) fabric(name string) Fabric {
	for _, f := range m.fabrics {
		if f.Name() == name {
			return f
		}
	}
	return nil
}

// NewSession offers a session of the named fabric to the principal. Errors: ErrNoFabric, ErrLimit.
func (m *Manager) NewSession(ctx context.Context, fabricName, principal string) (SessionOffer, error) {
	opener, ok := m.fabric(fabricName).(SessionOpener)
	if !ok {
		return SessionOffer{}, fmt.Errorf("%w: %s", ErrNoFabric, fabricName)
	}
	return opener.NewSession(ctx, principal)
}

// RevokePrincipal ends all sessions and transfers of the principal on every fabric, at once, since one that waits for
// an adapter must not let those of another go on; running transfers are fenced when it returns.
func (m *Manager) RevokePrincipal(principal string) {
	var all sync.WaitGroup
	for _, f := range m.fabrics {
		if r, ok := f.(Revoker); ok {
			all.Go(func() { r.RevokePrincipal(principal) })
		}
	}
	all.Wait()
}

// Rails lists the rails of all fabrics.
func (m *Manager) Rails() []Rail {
	var rails []Rail
	for _, f := range m.fabrics {
		rails = append(rails, f.Rails()...)
	}
	return rails
}

// Stats reads the counters of all fabrics.
func (m *Manager) Stats() []Stats {
	var stats []Stats
	for _, f := range m.fabrics {
		if r, ok := f.(StatsReporter); ok {
			stats = append(stats, r.Stats())
		}
	}
	return stats
}

// Close closes all fabrics; it returns when no session is left.
func (m *Manager) Close() error {
	var errs []error
	for _, f := range m.fabrics {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
