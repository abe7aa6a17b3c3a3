// Package rails keeps the RDMA rails of a node, which all its fabrics of queue pairs share: each is opened once, with
// the arena registered; it is watched, probed, taken down and brought back; and it knows who uses it.
//
// Called by: internal/fabric/verbs, internal/fabric/hip; opened and closed by server.
//
// Words: a use is one queue pair of a fabric on a rail, with the queue pair of a client that it leads to; a link is a
// use of a fabric that has nothing to fall back on; a stage is a use whose client writes into memory of this node; a
// lapse is a use that failed and not for its client.
//
// Invariants:
//  1. A rail that is down takes no use, and those that it has are told to fail before anybody is told that it is down.
//  2. It comes back only when its port is up and a probe has worked since.
//  3. A rail is ejected by what living clients confirm, or by queue pairs that its adapter does not reset; never by
//     clients that are gone, nor by one principal alone while others move bytes by it.
//  4. A use leads never to a queue pair of this node, nor to one that has answered to another principal, of whichever
//     fabric: one that is found to is told to fail. The queue pairs of stages are this node's like all others; but what
//     comes by one proves nothing about who sent it.
//  5. A principal has at most its share of a rail's uses, and of those that connect at once, all fabrics together, the
//     addresses of dynamic connections included; and of its pool of those a share of its own, whatever ports it names.
//  6. A stage is closed before its rail is, and its memory is not its owner's before that.
//  7. A link-local address of a client is reached by the rail of the link that its connection came in by, and by no
//     other: another link has another machine there.
//
// Lock order: Set.mu, ends.mu, turns.mu and Link.mu are never held together, nor over a call of Use.Fail, of what Watch
// was given, or of an engine, but for Limit; those may take locks of a fabric, which holds them over no call that takes
// a lock here. Stage.mu comes before Set.mu and ends.mu, and is held while an adapter lets go of that stage.
//
// What it does not do: sessions, going on by another rail, which GIDs are a client's (reach), posting and polling
// (initiator).
package rails

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

var (
	// ErrNoRail says that this machine has no rail that can be used.
	ErrNoRail = errors.New("rails: no rdma rail")
	// ErrDown says that the rail is down.
	ErrDown = errors.New("rails: rail is down")
	// ErrShare says that the principal has its share of the rail's queue pairs.
	ErrShare = errors.New("rails: principal has its share")
	// ErrTaken says that the client's queue pair is this node's own, or another principal's.
	ErrTaken = errors.New("rails: queue pair is not the client's")
)

// Engine is an open rail: an initiator.Rail, or a test's.
type Engine interface {
	NewPath(initiator.PathOptions) (*initiator.Path, error)
	From(peer [16]byte) (initiator.Source, error)
	Refresh() (rail.Rail, error)
	Limit() int
	Events() <-chan native.Event
	Probe(time.Duration) error
	Stats() initiator.Stats
	Close() error
}

var _ Engine = (*initiator.Rail)(nil)

// Options of Open.
type Options struct {
	Library *native.Library
	Devices []string // which rails are used; see rail.Options
	Memory  []byte   // all of the arena; registered with every rail
	Logger  *slog.Logger
}

// Opened is a rail and what came of opening it.
type Opened struct {
	Rail   rail.Rail
	Engine Engine // nil: could not be opened
	Err    error  // then: why
}

// Open finds the rails and registers the arena with each. New takes what it returns, also rails that could not be
// opened. Errors: ErrNoRail, native.ErrVerbs, rail.ErrUnknown.
func Open(o Options) ([]Opened, error) {
	found, skipped, err := rail.Discover(o.Library, rail.Options{Devices: o.Devices})
	if err != nil {
		return nil, fmt.Errorf("rails: %w", err)
	}
	if len(found)+len(skipped) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrNoRail, &native.UnavailableError{Reason: native.ReasonNoDevice})
	}
	logger := orNone(o.Logger)
	for _, s := range skipped {
		logger.Info("rdma port is no rail", "port", s.Name, "reason", s.Reason)
	}
	used, left := fit(found)
	for _, r := range left {
		logger.Warn("rdma rail is left out", "rail", r.Name(), "found", len(used)+len(left), "most", frame.MaxRails,
			"up", r.Up, "reason", r.Reason, "remedy", "name those to use in rdma.devices")
	}
	all := make([]Opened, 0, len(used))
	for _, r := range used {
		one := Opened{Rail: r}
		open, err := initiator.Open(initiator.Options{Library: o.Library, Rail: r, Arena: o.Memory})
		if err == nil { // else an engine would hold nil, and not be nil
			one.Engine = open
		}
		one.Err = err
		all = append(all, one)
	}
	return all, nil
}

func orNone(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return logger
}

// fit chooses the rails that are used where there are more than a client can be told of: those that are up first. Both
// lists keep the order of found.
func fit(found []rail.Rail) (used, left []rail.Rail) {
	room := frame.MaxRails
	for _, r := range found {
		if r.Up {
			room--
		}
	}
	ups := 0
	for _, r := range found {
		switch {
		case r.Up && ups < frame.MaxRails:
			ups++
			used = append(used, r)
		case !r.Up && room > 0:
			room--
			used = append(used, r)
		default:
			left = append(left, r)
		}
	}
	return used, left
}

// Reasons why there is no rail, besides those of native.UnavailableError.
const (
	ReasonNoRail      = "no-rail"       // no port with an address
	ReasonMemoryLimit = "memory-locked" // the arena cannot be registered: the limit of locked memory
	ReasonAdapter     = "adapter"       // the library or the adapter refused
)

// Reason is the word for why Open, New, or the opening of the library, failed; empty when it did not.
func Reason(err error) string {
	var unavailable *native.UnavailableError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &unavailable):
		return unavailable.Reason
	case errors.Is(err, syscall.ENOMEM):
		return ReasonMemoryLimit
	case errors.Is(err, native.ErrVerbs), errors.Is(err, native.ErrNotSupported):
		return ReasonAdapter
	case errors.Is(err, ErrNoRail):
		return ReasonNoRail
	}
	return ReasonAdapter
}
