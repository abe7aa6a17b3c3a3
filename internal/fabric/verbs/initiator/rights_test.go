//go:build cgo

package initiator

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const everything = native.LocalWrite | native.RemoteWrite | native.RemoteRead

// open makes a queue pair in the rail's protection domain that has rights, connected to one of the peer's.
func (g *rig) open(rights native.Access) *native.QP {
	g.t.Helper()
	cq, err := g.rail.dev.NewCQ(4)
	if err != nil {
		g.t.Fatal(err)
	}
	qp, err := g.rail.pd.NewQP(cq, native.PairOptions{Depth: 1})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		for _, end := range []func() error{qp.Close, cq.Close} {
			if err := end(); err != nil {
				g.t.Error(err)
			}
		}
	})
	now := g.rail.Rail()
	own, far, err := g.peer.answer(Endpoint{QPN: qp.Number(), PSN: 5, GID: now.GID, LID: now.LID, MTU: now.MTU, Reads: 1})
	if err != nil {
		g.t.Fatal(err)
	}
	path := native.Path{Port: now.Port, GIDIndex: now.GIDIndex, HopLimit: 64, Access: rights, MinRNRTimer: 12}
	if err := qp.Init(path); err != nil {
		g.t.Fatal(err)
	}
	peer := native.Peer{QPN: own.QPN, PSN: own.PSN, GID: own.GID, LID: own.LID, MTU: own.MTU, Reads: 1}
	if err := qp.Receive(path, peer); err != nil {
		g.t.Fatal(err)
	}
	return far
}

// attack is a work request of the peer against memory of the rail's machine, and how it ends.
func (g *rig) attack(far *native.QP, op native.Opcode, at uint64, key uint32) native.Status {
	g.t.Helper()
	if state, err := far.State(); err != nil || state != native.QPReady {
		g.t.Fatalf("the peer's queue pair is in state %d, %v", state, err)
	}
	path := native.Path{PSN: g.peer.psns[far], Timeout: 14, Retries: 6, RNRRetries: 6}
	if err := far.Send(path, native.Peer{Reads: 1}); err != nil {
		g.t.Fatal(err)
	}
	work := native.Work{
		ID: 1, Op: op, Local: g.peer.at(0), LKey: g.peer.mr.LKey(), Remote: at, RKey: key, Length: 64, Signal: true,
	}
	if _, err := far.Post([]native.Work{work}); err != nil {
		g.t.Fatal(err)
	}
	var got [1]native.Completion
	g.nic.Await("the peer's work request", func() bool {
		n, err := g.peer.cq.Poll(got[:])
		return n == 1 || err != nil
	})
	return got[0].Status
}

// TestPeersHaveNoRights: neither the rail's memory nor its queue pairs let a peer read or write. Each is enough alone,
// so each is tried with the other one open. Oracle: the adapter's answer, and the bytes of both ends.
func TestPeersHaveNoRights(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16, fake: true})
	open := mapped(t, 1<<16)
	mr, err := g.rail.pd.Register(open, everything)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	}()
	both := func() *native.QP { return g.open(everything &^ native.LocalWrite) }
	paths := func() *native.QP { _, far := g.pathTo(); return far }
	for _, c := range []struct {
		name   string
		qp     func() *native.QP
		mr     *native.MR
		memory []byte
		want   native.Status
	}{
		{"all is open", both, mr, open, native.StatusOK}, // the test sees what succeeds
		{"queue pair", paths, mr, open, native.StatusRemoteAccess},
		{"arena", both, g.rail.arena.mr, g.arena, native.StatusRemoteAccess},
		{"scratch", both, g.rail.scratch.mr, g.rail.scratch.memory, native.StatusRemoteAccess},
		{"path and arena", paths, g.rail.arena.mr, g.arena, native.StatusRemoteAccess},
	} {
		for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
			t.Run(fmt.Sprintf("%s/%d", c.name, op), func(t *testing.T) {
				fillRandom(g.peer.memory)
				fillRandom(c.memory)
				mine, theirs := bytes.Clone(c.memory), bytes.Clone(g.peer.memory)
				status := g.attack(c.qp(), op, c.mr.Addr(), c.mr.RKey())
				// A peer's adapter that is refused says so as an access, or as an invalid request.
				if status != c.want && (c.want == native.StatusOK || status != native.StatusRemoteOther) {
					t.Errorf("ended with status %d, want %d", status, c.want)
				}
				kept := bytes.Equal(c.memory, mine)
				if moved := c.want == native.StatusOK && op == native.OpWrite; kept == moved {
					t.Errorf("the rail's memory is as before: %v", kept)
				}
				// The fake adapter poisons the target of a READ, which is the peer's own affair.
				if c.want != native.StatusOK && bytes.Contains(g.peer.memory[:64], mine[:8]) ||
					!bytes.Equal(g.peer.memory[64:], theirs[64:]) {
					t.Error("the peer has read")
				}
			})
		}
	}
}

// TestScratchesAreApart: each path's proofs land in memory of its own, on the slots that are used again too.
func TestScratchesAreApart(t *testing.T) {
	g := newRig(t, rigOptions{arena: 1 << 16, remote: 1 << 16, fake: true, Options: Options{Paths: 3, Depth: 100}})
	for range 2 {
		var all []*Path
		for range 3 {
			all = append(all, g.path())
		}
		for i, p := range all {
			mark := g.nic.Mark()
			for range 2 * scratchBytes {
				mustMove(t, p, g.write(1))
			}
			for j, q := range all {
				touched := g.nic.Touched(q.scratch, mark)
				if (len(touched) > 0) != (i == j) {
					t.Errorf("moves of path %d: %d accesses to the scratch of %d", i, len(touched), j)
				}
			}
		}
		for _, p := range all {
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestForeignCompletions belong to nothing, are counted, and end no Move: numbers of no path, of work requests that
// were never posted, and of those that have ended.
func TestForeignCompletions(t *testing.T) {
	g := faultRig(t)
	p := g.path()
	mustMove(t, p, g.write(3*4096))
	hold := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: p.Local().QPN})
	c := moving(p, g.read(100))
	hold.Await(1)
	g.quiet()
	p.mu.Lock()
	head, tail := p.head, p.tail
	p.mu.Unlock()
	for _, at := range []uint64{0, 1, head - 1, tail, tail + 1, 1<<numberBits - 1} {
		for _, status := range []native.Status{native.StatusOK, native.StatusFlushed, native.StatusLocal, 99} {
			want := g.rail.Stats()
			want.Unexpected++
			p.complete([]native.Completion{{ID: workID(p.slot, at), Status: status, Bytes: 100}})
			if got := g.rail.Stats(); got != want {
				t.Errorf("number %d, status %d: %+v, want %+v", at, status, got, want)
			}
		}
	}
	for _, id := range []uint64{workID(7, 1), workID(8, 1), workID(maxPaths-1, 1), ^uint64(0)} {
		if q := g.rail.pathOf(id); q != nil {
			t.Errorf("work request %#x is of a path", id)
		}
	}
	select {
	case err := <-c:
		t.Fatalf("the move returned: %v", err)
	default:
	}
	if !isOpen(p.Failed()) {
		t.Error("the path has failed")
	}
	hold.Release()
	if err := result(t, c); err != nil {
		t.Fatal(err)
	}
	g.works(p)
}
