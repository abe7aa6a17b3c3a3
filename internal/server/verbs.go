package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs"
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
	scratch, err := s.arena.Share(verbs.ScratchShare).Alloc(context.Background())
	if err != nil {
		return nil, err
	}
	f, err := verbs.New(verbs.Options{
		Ledger: ledger, Address: r.RCListen, Advertise: r.RCAdvertise, Library: s.library, Devices: r.Devices,
		Networks: r.Networks(), Memory: s.arena.Memory(), Scratch: scratch, Logger: s.log,
	})
	if err == nil {
		s.verbs = f
		return f, nil
	}
	scratch.Release()
	if !errors.Is(err, fabric.ErrNotSupported) && !errors.Is(err, native.ErrVerbs) {
		return nil, fmt.Errorf("rc: %w", err) // a listener
	}
	return s.verbsOff(err), nil
}

// verbsOff says loudly that there is no RDMA, and what to do about it.
func (s *Server) verbsOff(cause error) fabric.Fabric {
	reason := verbs.Reason(cause)
	remedy := "look at the adapter: penstock doctor rdma"
	switch reason {
	case native.ReasonNoCgo:
		remedy = "use a program that was built with CGO_ENABLED=1"
	case native.ReasonNoHeaders:
		remedy = "build the program where infiniband/verbs.h is (libibverbs-dev, rdma-core-devel)"
	case native.ReasonNoLibrary, native.ReasonNoSymbol:
		remedy = "install rdma-core (libibverbs1), or name the library by rdma.verbs_library"
	case native.ReasonNoDevice, verbs.ReasonNoRail:
		remedy = "give an adapter's port an address, or load its driver; rdma.rc: false silences this"
	case verbs.ReasonMemoryLimit:
		remedy = "raise the limit of locked memory above the arena's size: ulimit -l, LimitMEMLOCK"
	}
	s.log.Warn("RDMA off", "reason", reason, "remedy", remedy, "error", cause)
	return verbs.NewOff(reason)
}
