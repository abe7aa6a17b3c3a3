package rdma

import (
	"errors"
	"net/http"
	"testing"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native"
)

const (
	// granted is the memory that a forging client really registers.
	granted = 1<<20 + 4096
	ground  = 0x77
)

// forger is a hand-made client on a node, beside an honest one.
type forger struct {
	*node
	*end
	neighbour *client.Client
	region    *client.Region
}

// TestForgedMemory: a client announces more than it registered, a key that it revoked, memory that it has
// deregistered, or lets its queue pair die. The transfer fails as documented, nothing outside the grant changes,
// nothing of a PUT is visible; others are served at once, and the client itself over a new path.
func TestForgedMemory(t *testing.T) {
	onVerbs(t)
	n := startNode(t, rc)
	f := &forger{node: n, neighbour: n.connect(rc)}
	f.region = alloc(t, f.neighbour, 2*granted)
	n.put(f.neighbour, f.region, "fits", 1, granted)
	n.put(f.neighbour, f.region, "exceeds", 2, 2*granted)
	before := n.baseline()
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		for _, lie := range []struct {
			name  string
			claim int64
			tell  func(*memory) error
			mute  bool
		}{
			{"the size exceeds the MR", 2 * granted, nil, false},
			{"the key is revoked", granted, f.revoke, false},
			{"the memory is deregistered", granted, f.deregister, false},
			{"the queue pair is dead", granted, f.kill, false},
			{"the queue pair is dead and LOST stays unanswered", granted, f.kill, true},
		} {
			t.Run(method+" "+lie.name, func(t *testing.T) {
				if lie.mute && !long() {
					t.Skip("waits 15 s for the answer to LOST")
				}
				n.t, f.t = t, t
				f.arrive(lie.mute)
				defer func() { _ = f.close() }() // of a case that failed
				m := f.announced(lie.claim)
				if lie.tell != nil {
					if err := lie.tell(m); err != nil {
						t.Fatal(err)
					}
				}
				f.fails(method, m, lie.claim)
				f.honest()
				if !lie.mute { // that cost the session
					if err := f.path(); err != nil {
						t.Fatalf("another path: %v", err)
					}
					f.good()
				}
				f.leave()
				n.settled(before, "afterwards")
			})
		}
	}
	n.t, f.t = t, t
	f.arrive(false)
	f.good()
	f.leave()
	n.absent("never")
}

// arrive opens a session with a path.
func (f *forger) arrive(mute bool) {
	f.t.Helper()
	offer := (&stage{node: f.node}).offer()
	c, err := dial(offer)
	if err != nil {
		f.t.Fatal(err)
	}
	if f.end, err = newEnd(c, offer); err != nil {
		f.t.Fatal(err)
	}
	f.mute = mute
	if err := f.path(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *forger) leave() {
	f.t.Helper()
	if err := f.close(); err != nil {
		f.t.Errorf("close: %v", err)
	}
}

// announced is painted memory with a region that claims so many bytes.
func (f *forger) announced(claim int64) *memory {
	f.t.Helper()
	m, err := f.announce(granted, claim)
	if err != nil {
		f.t.Fatal(err)
	}
	paint(m.bytes, ground)
	return m
}

// revoke registers the memory anew: the announced key is good for nothing.
func (f *forger) revoke(m *memory) error {
	if err := f.deregister(m); err != nil {
		return err
	}
	var err error
	m.mr, err = f.pd.Register(m.part(1), native.LocalWrite|native.RemoteWrite|native.RemoteRead)
	return err
}

func (f *forger) deregister(m *memory) error {
	err := m.mr.Close()
	m.mr = nil
	return err
}

func (f *forger) kill(*memory) error { return f.qp.Fail() }

// fails checks one transfer that cannot be.
func (f *forger) fails(method string, m *memory, size int64) {
	f.t.Helper()
	key := "never"
	if method == http.MethodGet {
		key = "fits"
		if size > granted {
			key = "exceeds"
		}
	}
	a := f.transfer(f.end, method, key, m.number, 0, size)
	reply := a.header.Get("X-Amz-Rdma-Reply")
	if a.status != http.StatusInternalServerError || a.code != "RDMATransferFailed" || reply != "" {
		f.t.Errorf("%s: status %d, code %q, reply %q", method, a.status, a.code, reply)
	}
	if !painted(m.part(0), ground) || !painted(m.part(2), ground) {
		f.t.Errorf("%s: memory outside of what was registered changed", method)
	}
	if (method == http.MethodPut || size == granted) && !painted(m.part(1), ground) {
		f.t.Errorf("%s: memory changed that nobody could reach", method)
	}
	f.absent("never")
}

// honest is what the neighbour does at once.
func (f *forger) honest() {
	f.t.Helper()
	if err := f.gets(f.neighbour, f.region, "exceeds", 2, 2*granted); err != nil {
		f.t.Errorf("the neighbour: %v", err)
	}
	f.put(f.neighbour, f.region, "honest", 3, granted)
}

// good moves both ways as it should be.
func (f *forger) good() {
	f.t.Helper()
	m := f.announced(granted)
	a := f.transfer(f.end, http.MethodGet, "fits", m.number, 0, granted)
	if a.status != http.StatusOK || a.header.Get("X-Amz-Rdma-Reply") != "200" || !newPattern(1).is(m.part(1), 0) ||
		!painted(m.part(0), ground) || !painted(m.part(2), ground) {
		f.t.Errorf("a good GET: status %d %s, or other bytes", a.status, a.code)
	}
	a = f.transfer(f.end, http.MethodPut, "good", m.number, 0, granted)
	if a.status != http.StatusOK || a.header.Get("X-Amz-Rdma-Reply") != "200" {
		f.t.Errorf("a good PUT: status %d %s", a.status, a.code)
	}
	if err := f.gets(f.neighbour, f.region, "good", 1, granted); err != nil {
		f.t.Errorf("what the PUT stored: %v", err)
	}
}

// TestForgottenMemory: a region that was taken back is none any more, and its token moves nothing.
func TestForgottenMemory(t *testing.T) {
	onVerbs(t)
	n := startNode(t, rc)
	f := &forger{node: n, neighbour: n.connect(rc)}
	f.region = alloc(t, f.neighbour, granted)
	n.put(f.neighbour, f.region, "fits", 1, granted)
	f.arrive(false)
	m := f.announced(granted)
	if err := f.send(frame.Header{Type: frame.Forget, Region: m.number}, nil); err != nil {
		t.Fatal(err)
	}
	h, _, err := f.next()
	if err == nil && h.Type != frame.Forgotten {
		err = errors.New("no answer to FORGET")
	}
	if err != nil {
		t.Fatal(err)
	}
	a := f.transfer(f.end, http.MethodGet, "fits", m.number, 0, granted)
	if a.status != http.StatusBadRequest || a.code != "InvalidRDMAToken" {
		t.Errorf("a token of a region that was taken back: status %d, code %q", a.status, a.code)
	}
	if !painted(m.bytes, ground) {
		t.Error("memory changed that was taken back")
	}
	f.good()
	f.leave()
}
