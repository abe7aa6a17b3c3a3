package server

import (
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs"
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
	f, err := verbs.New(verbs.Options{
		Ledger: ledger, Address: r.RCListen, Advertise: r.RCAdvertise, Library: s.library, Devices: r.Devices,
		Networks: r.Networks(), Memory: s.arena.Memory(), Logger: s.log,
	})
	if err == nil {
		s.verbs = f
		return f, nil
	}
	if errors.Is(err, rail.ErrUnknown) {
		return nil, fmt.Errorf("rdma.devices: %w", err)
	}
	if !errors.Is(err, fabric.ErrNotSupported) && !errors.Is(err, native.ErrVerbs) {
		return nil, fmt.Errorf("rc: %w", err) // a listener
	}
	return s.verbsOff(err), nil
}

// verbsOff says loudly that there is no RDMA, and what to do about it.
func (s *Server) verbsOff(cause error) fabric.Fabric {
	reason := verbs.Reason(cause)
	words, remedy := rail.Explain(reason)
	switch reason {
	case verbs.ReasonNoRail:
		words, remedy = "no port has an address", "give one to an adapter's port; rdma.rc: false silences this"
	case verbs.ReasonMemoryLimit:
		words, remedy = "the buffers cannot be locked in memory", "raise ulimit -l (LimitMEMLOCK) above the arena's size"
	case verbs.ReasonAdapter:
		words, remedy = "the adapter refused", "penstock doctor rdma"
	}
	s.log.Warn("RDMA off", "reason", reason, "meaning", words, "remedy", remedy, "error", cause)
	return verbs.NewOff(reason)
}
