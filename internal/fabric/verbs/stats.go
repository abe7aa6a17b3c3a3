package verbs

import "github.com/penstock-store/penstock/internal/fabric/verbs/initiator"

// RailStats is a reading of one rail.
type RailStats struct {
	Name      string
	Up        bool
	Reason    string // why it is not up
	Engine    initiator.Stats
	Ejections int64
	Returns   int64 // how often it came back, from ejections and from a port that was down
	Refused   int64 // paths that the rail had no room for, or its adapter refused
}

// RailStats reads the counters of all rails.
func (f *Fabric) RailStats() []RailStats {
	all := make([]RailStats, 0, len(f.ports.list))
	for _, k := range f.ports.list {
		f.ports.mu.Lock()
		r := RailStats{Name: k.name, Up: k.up.Load(), Reason: k.reason}
		f.ports.mu.Unlock()
		if r.Up {
			r.Reason = ""
		}
		if k.engine != nil {
			r.Engine = k.engine.Stats()
		}
		r.Ejections, r.Returns = k.ejections.Load(), k.returns.Load()
		r.Refused = k.refused.Load()
		all = append(all, r)
	}
	return all
}
