package rdma

import (
	"testing"
	"time"
)

const (
	crowdProcesses = 16
	crowdFlight    = 4 // of each: 64 transfers at once
	crowdBytes     = 1 << 20
)

// span is how long a load runs: long enough for some dozens of transfers of each process.
func span() time.Duration {
	switch {
	case long():
		return 10 * time.Second
	case bounded():
		return 4 * time.Second
	case given():
		return 2 * time.Second
	}
	return 1500 * time.Millisecond
}

// TestCrowd: 64 transfers at once by 16 processes, GETs and then PUTs. None fails or hangs, the node is fair to the
// processes, and all it held comes back.
func TestCrowd(t *testing.T) {
	each(t, "tcp", func(t *testing.T, fabric string) {
		n := startNode(t, fabric)
		c := n.connect(fabric)
		n.put(c, alloc(t, c, crowdBytes), object, objectSeed, crowdBytes)
		before := n.baseline()
		var all []*process
		for range crowdProcesses {
			all = append(all, n.launch(job{Kind: kindCrowd, Bytes: crowdBytes, Flight: crowdFlight, Seed: objectSeed}))
		}
		for _, p := range all {
			p.tell(order{Verb: "clients", Clients: 1, Key: object})
		}
		for _, p := range all {
			fine(t, p.hears("ready", patience()))
		}
		for _, verb := range []string{"get", "put"} {
			for _, p := range all {
				p.tell(order{Verb: verb, Key: object, For: span()})
			}
			var least, most, sum int64
			for i, p := range all {
				r := p.hears("done", span()+patience())
				fine(t, r)
				if i == 0 || r.Bytes < least {
					least = r.Bytes
				}
				most, sum = max(most, r.Bytes), sum+r.Bytes
			}
			fair := float64(least) / float64(most)
			t.Logf("%s: %.1f MiB/s, the slowest process has %.2f of the fastest's bytes (%d and %d MiB)", verb,
				float64(sum)/(1<<20)/span().Seconds(), fair, least>>20, most>>20)
			record(t, figure{What: "fairness " + verb, Fabric: fabric, Bytes: crowdBytes, Flight: crowdProcesses * crowdFlight,
				Ratio: fair, Rate: float64(sum) / (1 << 20) / span().Seconds()})
			if bounded() && fair < 0.5 {
				t.Errorf("%s: the slowest process has %.2f of the fastest's bytes", verb, fair)
			}
		}
		for _, p := range all {
			p.leave()
		}
		n.settled(before, "after the crowd")
	})
}

// fine reports the failures of a client process.
func fine(t *testing.T, r report) {
	t.Helper()
	const enough = 5
	for i, f := range r.Failures {
		if i == enough {
			t.Errorf("… %d failures in all", len(r.Failures))
			break
		}
		t.Error(f)
	}
}

// TestManySessions: 256 open sessions, all in use by turns, keep at least half of the rate that 16 have. The run with
// many lies between two with few, so that a drift of the machine does not count.
func TestManySessions(t *testing.T) {
	const few, many = 16, 256
	each(t, "tcp", func(t *testing.T, fabric string) {
		n := startNode(t, fabric)
		c := n.connect(fabric)
		n.put(c, alloc(t, c, crowdBytes), object, objectSeed, crowdBytes)
		before := n.baseline()
		p := n.launch(job{Kind: kindCrowd, Bytes: crowdBytes, Flight: few, Shared: true, Seed: objectSeed})
		rate := func(clients int) float64 {
			p.tell(order{Verb: "clients", Clients: clients, Key: object})
			fine(t, p.hears("ready", 5*patience()))
			got := 0
			if !eventually(func() bool {
				got = int(n.metric("penstock_fabric_sessions", fabric))
				return got == clients+1
			}) {
				t.Errorf("%d sessions, want %d and the test's own", got, clients)
			}
			// Each session carries several transfers.
			load := span() / 2
			if clients == many {
				load = span()
			}
			p.tell(order{Verb: "get", Key: object, For: load})
			r := p.hears("done", span()+patience())
			fine(t, r)
			return float64(r.Bytes) / (1 << 20) / r.Took.Seconds()
		}
		first := rate(few)
		crowded := rate(many)
		second := rate(few)
		ratio := crowded / ((first + second) / 2)
		t.Logf("%d sessions: %.1f and %.1f MiB/s; %d sessions: %.1f MiB/s; ratio %.2f", few, first, second, many, crowded,
			ratio)
		record(t, figure{What: "256 sessions against 16", Fabric: fabric, Bytes: crowdBytes, Flight: few, Ratio: ratio,
			Rate: crowded})
		if bounded() && ratio < 0.5 {
			t.Errorf("%d sessions keep %.2f of the rate of %d", many, ratio, few)
		}
		p.leave()
		n.settled(before, "after all sessions")
	})
}
