package rdma

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/bench"
)

// TestRailDown: of two rails that carry a load one is taken down. No transfer fails, all go by the other one, the
// counters say so; the rail comes back by itself and carries transfers again.
func TestRailDown(t *testing.T) {
	onVerbs(t)
	link := os.Getenv(linkVariable)
	if link == "" {
		t.Skipf("%s names no network device that may be taken down", linkVariable)
	}
	n := startNode(t, rc)
	c := n.connect(rc)
	n.put(c, alloc(t, c, crowdBytes), object, objectSeed, crowdBytes)
	before := n.baseline()
	var all []*process
	for range 2 {
		p := n.launch(job{Kind: kindCrowd, Bytes: crowdBytes, Flight: crowdFlight, Seed: objectSeed})
		p.tell(order{Verb: "clients", Clients: 2, Key: object})
		fine(t, p.hears("ready", patience()))
		all = append(all, p)
	}
	rails := n.rails()
	if len(rails) < 2 {
		t.Fatalf("%d rails, want 2: %v", len(rails), rails)
	}
	all[0].tell(order{Verb: "get", Key: object, For: 10 * patience()})
	all[1].tell(order{Verb: "put", Key: object, For: 10 * patience()})
	n.moves("at the start", keys(rails))
	t.Cleanup(func() { setLink(t, link, "up") })
	setLink(t, link, "down")
	var down []string
	if !eventually(func() bool {
		down = n.railsAt(0)
		return len(down) == 1
	}) {
		t.Errorf("rails that are down: %q, want one", down)
	}
	still := n.rails()
	n.moves("while one is down", without(keys(rails), down))
	for _, name := range down {
		if now := n.rails()[name]; now != still[name] {
			t.Errorf("rail %s moved %v bytes while it was down", name, now-still[name])
		}
	}
	setLink(t, link, "up")
	if !eventually(func() bool { return len(n.railsAt(0)) == 0 }) {
		t.Errorf("rails that are still down: %q", n.railsAt(0))
	}
	n.moves("when it is back", keys(rails))
	for _, p := range all {
		p.tell(order{Verb: "end"})
		r := p.hears("done", patience())
		fine(t, r)
		t.Logf("%d transfers", r.Transfers)
	}
	for _, p := range all {
		p.leave()
	}
	n.settled(before, "afterwards")
}

func setLink(t *testing.T, link, state string) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "set", link, state).CombinedOutput(); err != nil {
		t.Errorf("ip link set %s %s: %v: %s", link, state, err, out)
	}
}

func keys(m map[string]float64) []string {
	var all []string
	for name := range m {
		all = append(all, name)
	}
	return all
}

func without(all, some []string) []string {
	var rest []string
	for _, name := range all {
		if !strings.Contains(strings.Join(some, " ")+" ", name+" ") {
			rest = append(rest, name)
		}
	}
	return rest
}

// rails is how many bytes each rail has moved.
func (n *node) rails() map[string]float64 {
	n.t.Helper()
	return n.byRail("penstock_rdma_bytes_total")
}

// railsAt lists the rails whose state is so.
func (n *node) railsAt(up float64) []string {
	n.t.Helper()
	var all []string
	for name, v := range n.byRail("penstock_rdma_rail_up") {
		if v == up {
			all = append(all, name)
		}
	}
	return all
}

// byRail adds up a metric's samples by their label rail.
func (n *node) byRail(metric string) map[string]float64 {
	n.t.Helper()
	all, err := bench.Counters(n.t.Context(), n.Metrics, metric)
	if err != nil {
		n.t.Fatal(err)
	}
	sums := map[string]float64{}
	for labels, v := range all {
		_, name, ok := strings.Cut(labels, `rail="`)
		if !ok {
			n.t.Fatalf("%s{%s} names no rail", metric, labels)
		}
		name, _, _ = strings.Cut(name, `"`)
		sums[name] += v
	}
	return sums
}

// moves waits until each of the rails has carried a dozen transfers more.
func (n *node) moves(when string, names []string) {
	n.t.Helper()
	const enough = 12 * crowdBytes
	before := n.rails()
	var now map[string]float64
	if !eventually(func() bool {
		now = n.rails()
		for _, name := range names {
			if now[name] < before[name]+enough {
				return false
			}
		}
		return true
	}) {
		n.t.Errorf("%s: not all of %q carry transfers: %v, was %v", when, names, now, before)
	}
}
