package fabric

import "sync/atomic"

// Counters are what a fabric counts; plain atomics, read through Stats.
type Counters struct {
	Offers    atomic.Int64 // offers made
	Lapsed    atomic.Int64 // offers that expired unused
	Refused   atomic.Int64 // data connections refused at the handshake
	Sessions  atomic.Int64 // now
	Regions   atomic.Int64 // now
	Mapped    atomic.Int64 // bytes of regions now
	Rejected  atomic.Int64 // regions refused
	Open      atomic.Int64 // windows now
	Gets      atomic.Int64 // windows closed without error, for GET
	Puts      atomic.Int64 // and for PUT
	GetBytes  atomic.Int64 // bytes of those Gets
	PutBytes  atomic.Int64 // bytes of those Puts
	Failed    atomic.Int64 // windows closed with an error
	Fenced    atomic.Int64 // sessions cut off while a window was open
	Faults    atomic.Int64 // memory faults in client memory
	Violation atomic.Int64 // sessions ended because the client broke the protocol
	Replayed  atomic.Int64 // tokens refused because their number was used before
}

// Stats is a reading of Counters.
type Stats struct {
	Fabric string `json:"fabric"`

	Offers, Lapsed, Refused          int64
	Sessions, Regions, MappedBytes   int64
	RejectedRegions, OpenWindows     int64
	Gets, Puts, GetBytes, PutBytes   int64
	Failed, Fenced, Faults, Violated int64
	Replayed                         int64
}

// Read takes a reading.
func (c *Counters) Read(fabric string) Stats {
	return Stats{
		Fabric: fabric,
		Offers: c.Offers.Load(), Lapsed: c.Lapsed.Load(), Refused: c.Refused.Load(),
		Sessions: c.Sessions.Load(), Regions: c.Regions.Load(), MappedBytes: c.Mapped.Load(),
		RejectedRegions: c.Rejected.Load(), OpenWindows: c.Open.Load(),
		Gets: c.Gets.Load(), Puts: c.Puts.Load(), GetBytes: c.GetBytes.Load(), PutBytes: c.PutBytes.Load(),
		Failed: c.Failed.Load(), Fenced: c.Fenced.Load(), Faults: c.Faults.Load(), Violated: c.Violation.Load(),
		Replayed: c.Replayed.Load(),
	}
}

// StatsReporter is what a fabric with counters offers.
type StatsReporter interface{ Stats() Stats }
