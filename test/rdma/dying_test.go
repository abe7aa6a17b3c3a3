package rdma

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/frame"
)

const (
	// movedBytes is what moves while something ends: on the slowest machine a second, on the fastest a few ms.
	movedBytes = 32 << 20
	objectSeed = 7
	object     = "object"
)

// stage is a node with an object, and a neighbour of those who end.
type stage struct {
	*node
	neighbour *client.Client
	region    *client.Region
	before    levels
	usual     time.Duration // what a PUT of the object takes
}

func newStage(t *testing.T, fabric string) *stage {
	t.Helper()
	s := &stage{node: startNode(t, fabric)}
	s.meet()
	s.put(s.neighbour, s.region, object, objectSeed, movedBytes)
	start := time.Now()
	s.put(s.neighbour, s.region, object, objectSeed, movedBytes)
	s.usual = time.Since(start)
	s.works("at the start")
	s.before = s.baseline()
	return s
}

// meet gives the node a neighbour.
func (s *stage) meet() {
	s.t.Helper()
	s.neighbour = s.connect(s.fabric)
	s.region = alloc(s.t, s.neighbour, movedBytes)
}

// works reads the object by the fabric.
func (s *stage) works(when string) {
	s.t.Helper()
	if err := s.gets(s.neighbour, s.region, object, objectSeed, movedBytes); err != nil {
		s.t.Errorf("%s: the neighbour: %v", when, err)
	}
}

// absentOrWhole checks a PUT whose answer nobody heard.
func (s *stage) absentOrWhole(key string) {
	s.t.Helper()
	err := s.gets(s.neighbour, s.region, key, objectSeed, movedBytes)
	if errors.Is(err, client.ErrNotFound) {
		s.absent(key)
		return
	}
	if err != nil {
		s.t.Errorf("%s is neither absent nor whole: %v", key, err)
	}
	if err := s.neighbour.Delete(s.t.Context(), bucket, key); err != nil {
		s.t.Error(err)
	}
}

// moment is where in a transfer something ends.
type moment struct {
	verb string
	part float64 // of the bytes that came (get), of the usual time (put)
}

func (m moment) String() string { return fmt.Sprintf("%s at %.3g", m.verb, m.part) }

func moments() []moment {
	if !long() {
		return []moment{{"get", 0.5}, {"put", 0.5}}
	}
	return []moment{{"get", 0}, {"get", 0.5}, {"get", 1}, {"put", 0.1}, {"put", 0.6}}
}

// strike begins a transfer in the middle of which the signal is sent, and returns when that was done. What was over
// before begins again.
func (s *stage) strike(p *process, m moment, sig syscall.Signal, toServer bool) {
	s.t.Helper()
	const tries = 8
	o := s.order(m, sig, toServer)
	for range tries {
		p.tell(o)
		r := p.hears("", patience())
		if r.What == "at" {
			return
		}
		if len(r.Failures) > 0 {
			s.t.Fatalf("%v: %q", m, r.Failures)
		}
		o.For /= 2
		if m.verb == "put" {
			if err := s.neighbour.Delete(s.t.Context(), bucket, o.Key); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	s.t.Fatalf("%v: the transfer was over each time", m)
}

// order is the transfer in the middle of which the signal is sent.
func (s *stage) order(m moment, sig syscall.Signal, toServer bool) order {
	o := order{Verb: m.verb, Key: object, Signal: sig, ToServer: toServer}
	if m.verb == "put" {
		o.Key, o.For = "unanswered", time.Duration(m.part*float64(s.usual))
		return o
	}
	o.At = int64(m.part * (movedBytes - 1))
	// The pattern may have the painted byte there.
	for p := newPattern(objectSeed); p.is([]byte{0x5A}, o.At); {
		o.At--
	}
	return o
}

// limit is how long a transfer may take that nothing disturbs: who waits for it to pass must wait that long.
func (s *stage) limit() time.Duration { return max(slow(time.Second), 4*s.usual) }

// victim is a client with a session: what happens to it then happens to a transfer.
func (s *stage) victim(timeout time.Duration) *process {
	s.t.Helper()
	p := s.launch(job{Kind: kindVictim, Bytes: movedBytes, Seed: objectSeed, Timeout: timeout})
	p.tell(order{Verb: "get", Key: object})
	if r := p.hears("done", patience()); len(r.Failures) > 0 {
		s.t.Fatalf("before: %q", r.Failures)
	}
	return p
}

// recovers lets the process read the object, with other memory where it lost its own: it opens a session again by
// itself.
func (s *stage) recovers(p *process, when string) {
	s.t.Helper()
	p.tell(order{Verb: "renew"})
	p.hears("done", patience())
	var last report
	if !eventually(func() bool {
		p.tell(order{Verb: "get", Key: object})
		last = p.hears("done", 2*patience())
		return len(last.Failures) == 0
	}) {
		s.t.Errorf("%s: the client does not recover: %q", when, last.Failures)
	}
}

// still has the process paint its memory. watch checks that it stays so.
func (s *stage) still(p *process) {
	s.t.Helper()
	p.tell(order{Verb: "still"})
	p.hears("done", patience())
}

func (s *stage) watch(p *process, when string) {
	s.t.Helper()
	p.tell(order{Verb: "watch", For: slow(300 * time.Millisecond)})
	for _, f := range p.hears("done", 2*patience()).Failures {
		s.t.Errorf("%s: %s", when, f)
	}
}

// TestClientsThatEnd: a client process is killed, or stopped for longer than its deadline, at each phase of a transfer.
// The node gives everything back and serves others meanwhile; a stopped client goes on with right bytes.
func TestClientsThatEnd(t *testing.T) {
	each(t, "tcp", func(t *testing.T, fabric string) {
		s := newStage(t, fabric)
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			for _, step := range s.steps() {
				s.endRaw(step, sig)
			}
			for _, m := range moments() {
				s.endClient(m, sig)
			}
		}
		s.works("at the end")
		s.settled(s.before, "at the end")
	})
}

func (s *stage) steps() []string {
	steps := []string{stepOffered, stepConnected, stepReady}
	if s.fabric == rc {
		steps = append(steps, stepPath, stepUp, stepAnnounced)
	}
	return steps
}

// endRaw ends a client that speaks by hand.
func (s *stage) endRaw(step string, sig syscall.Signal) {
	s.t.Helper()
	when := fmt.Sprintf("%v at %s", sig, step)
	offer := s.offer()
	body, err := offer.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	p := s.launch(job{Kind: kindRaw, Offer: body, Step: step, How: sig})
	p.hears("at", patience())
	s.works(when)
	if sig == syscall.SIGKILL {
		<-p.ended
	} else {
		p.kill() // a stopped process dies too
	}
	s.settled(s.before, when)
}

func (s *stage) offer() frame.SessionReply {
	s.t.Helper()
	var body json.RawMessage
	c := s.connect("http")
	ask := frame.SessionRequest{Fabric: s.fabric}
	if err := c.Control(s.t.Context(), "POST", frame.SessionsPath, ask, &body); err != nil {
		s.t.Fatal(err)
	}
	offer, err := frame.DecodeSessionReply(strings.NewReader(string(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	return offer
}

func (s *stage) endClient(m moment, sig syscall.Signal) {
	s.t.Helper()
	when := fmt.Sprintf("client %v, %v", sig, m)
	p := s.victim(s.limit())
	s.strike(p, m, sig, false)
	if sig == syscall.SIGKILL {
		<-p.ended
	} else {
		if !eventually(func() bool { return s.metric("penstock_fabric_windows") == 0 }) {
			s.t.Errorf("%s: windows stay open past the deadline", when)
		}
		s.works(when)
		p.signal(syscall.SIGCONT)
		for _, f := range p.hears("done", 2*patience()).Failures {
			s.t.Logf("%s: %s", when, f) // it may fail, but not with wrong bytes
			if strings.Contains(f, "other bytes") {
				s.t.Errorf("%s: %s", when, f)
			}
		}
		s.recovers(p, when)
		p.leave()
	}
	s.settled(s.before, when)
	s.works(when)
	if m.verb == "put" {
		s.absentOrWhole("unanswered")
	}
}

// TestNodesThatEnd: the node is killed, stopped for a moment, or stopped for longer than the client waits, in the
// middle of a transfer. The client comes back in time, its memory is its own afterwards, and it recovers.
func TestNodesThatEnd(t *testing.T) {
	each(t, "tcp", func(t *testing.T, fabric string) {
		s := newStage(t, fabric)
		for _, m := range moments() {
			s.killNode(m)
			s.stopNode(m, true)
			s.stopNode(m, false)
		}
		s.works("at the end")
	})
}

// wait is how long a client may take to come back: its own limit, the grace, and a fence that nobody acknowledges.
func (s *stage) wait() time.Duration { return s.limit() + 20*time.Second }

func (s *stage) killNode(m moment) {
	s.t.Helper()
	when := fmt.Sprintf("node killed, %v", m)
	p := s.victim(s.limit())
	s.strike(p, m, syscall.SIGKILL, true)
	r := p.hears("done", s.wait())
	s.t.Logf("%s: %v, %q", when, r.Took, r.Failures)
	_ = s.Stop() // says that it was killed
	s.start()
	s.meet()
	s.recovers(p, when)
	p.leave()
	s.works(when)
	if m.verb == "put" {
		s.absentOrWhole("unanswered")
		if len(r.Failures) == 0 {
			s.t.Logf("%s: it was acknowledged before", when)
		}
	}
	s.before = s.baseline()
}

func (s *stage) stopNode(m moment, short bool) {
	s.t.Helper()
	when := fmt.Sprintf("node stopped (for a moment: %v), %v", short, m)
	p := s.victim(s.limit())
	s.strike(p, m, syscall.SIGSTOP, true)
	if short {
		<-time.After(200 * time.Millisecond)
		s.resume()
	}
	r := p.hears("done", s.wait())
	s.t.Logf("%s: %v, %q", when, r.Took, r.Failures)
	if !short {
		if len(r.Failures) == 0 && m.part < 1 {
			s.t.Errorf("%s: a transfer succeeded without its node", when)
		}
		if s.fabric != client.PathSHM { // there, only the node can end its access
			s.still(p)
		}
		s.resume()
		if s.fabric != client.PathSHM {
			s.watch(p, when)
		}
	}
	for _, f := range r.Failures {
		if strings.Contains(f, "other bytes") {
			s.t.Errorf("%s: %s", when, f)
		}
	}
	s.recovers(p, when)
	p.leave()
	s.settled(s.before, when)
	s.works(when)
	if m.verb == "put" {
		s.absentOrWhole("unanswered")
	}
}

func (s *stage) resume() {
	s.t.Helper()
	if err := syscall.Kill(s.PID(), syscall.SIGCONT); err != nil {
		s.t.Fatal(err)
	}
}
