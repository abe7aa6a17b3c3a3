package server

import (
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// openVerbs opens the rc fabric, or one that is down where the machine has no rail, the program no verbs, or the
// adapter refuses: a node works without.
func (s *Server) openVerbs(ledger *fabric.Ledger) (fabric.Fabric, error) {
	r := s.config.RDMA
	if s.library == nil {
		library, err := native.Open(native.Options{Path: r.VerbsLibrary})
		if err != nil {
			return s.verbsOff(err), nil
		}
		s.onClose("verbs library", library.Close)
		s.library = library
	}
	if err := s.openRails(); err != nil {
		if errors.Is(err, rail.ErrUnknown) {
			return nil, fmt.Errorf("rdma.devices: %w", err)
		}
		return s.verbsOff(err), nil
	}
	f, err := verbs.New(verbs.Options{
		Ledger: ledger, Address: r.RCListen, Advertise: r.RCAdvertise, Rails: s.rails, Networks: r.Networks(),
		Logger: s.log,
	})
	if err != nil {
		return nil, fmt.Errorf("rc: %w", err) // a listener
	}
	return f, nil
}

// openRails opens the rails, which all fabrics of queue pairs share. Errors: rail.ErrUnknown, and why there is none.
func (s *Server) openRails() error {
	opened, err := rails.Open(rails.Options{
		Library: s.library, Devices: s.config.RDMA.Devices, Memory: s.arena.Memory(), Logger: s.log,
	})
	if err != nil {
		return err
	}
	set, err := rails.New(opened, s.log)
	if err != nil {
		return err
	}
	s.ownRails(set, set.Close)
	return nil
}

// ownRails has the rails closed once, after all fabrics or by closeFabrics.
func (s *Server) ownRails(set *rails.Set, closing func() error) {
	s.rails, s.closeRails = set, sync.OnceValue(closing)
	s.onClose("rdma rails", s.closeRails)
}

// closeFabrics closes the fabrics. What an adapter has held up ends with the rails, so those that have not closed then
// are asked again.
func (s *Server) closeFabrics() error {
	err := s.fabrics.Close()
	if err != nil && s.rails != nil && s.closeRails() == nil {
		return s.fabrics.Close()
	}
	return err
}

// verbsOff says loudly that there is no RDMA, and what to do about it.
func (s *Server) verbsOff(cause error) fabric.Fabric {
	reason := rails.Reason(cause)
	words, remedy := rail.Explain(reason)
	switch reason {
	case rails.ReasonNoRail:
		words, remedy = "no port has an address", "give one to an adapter's port; rdma.rc: false silences this"
	case rails.ReasonMemoryLimit:
		words, remedy = "the buffers cannot be locked in memory", "raise ulimit -l (LimitMEMLOCK) above the arena's size"
	case rails.ReasonAdapter:
		words, remedy = "the adapter refused", "penstock doctor rdma"
	}
	s.log.Warn("RDMA off", "reason", reason, "meaning", words, "remedy", remedy, "error", cause)
	return verbs.NewOff(reason)
}
