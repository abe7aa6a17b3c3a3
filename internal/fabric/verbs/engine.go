package verbs

import (
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// engine is an open rail: an initiator.Rail, or a test's.
type engine interface {
	NewPath() (lane, error)
	Refresh() (rail.Rail, error)
	Limit() int
	Events() <-chan native.Event
	Probe(time.Duration) error
	Stats() initiator.Stats
	Close() error
}

// lane is this node's end of a path; see initiator.Path.
type lane interface {
	Local() initiator.Endpoint
	Connect(initiator.Endpoint) error
	Move(initiator.Move) error
	Fail()
	Failed() <-chan struct{}
	Settled() <-chan struct{}
	Close() error
}

// openRail is an initiator.Rail as an engine.
type openRail struct{ *initiator.Rail }

// NewPath makes a queue pair.
func (r openRail) NewPath() (lane, error) {
	p, err := r.Rail.NewPath()
	if err != nil {
		return nil, err // and no lane that is not nil and holds nil
	}
	return p, nil
}

func openEngines(o Options, rails []rail.Rail) []opened {
	all := make([]opened, 0, len(rails))
	for _, r := range rails {
		e := opened{rail: r}
		open, err := initiator.Open(initiator.Options{Library: o.Library, Rail: r, Arena: o.Memory})
		if err == nil {
			e.engine = openRail{open}
		}
		e.err = err
		all = append(all, e)
	}
	return all
}
