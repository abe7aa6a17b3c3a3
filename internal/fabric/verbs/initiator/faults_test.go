//go:build cgo

package initiator

import (
	"bytes"
	"fmt"
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// faultRig has small pieces, so that a Move has many work requests, and a network in which they are under way a while.
func faultRig(t *testing.T) *rig {
	return newRig(t, rigOptions{
		arena: 1 << 20, remote: 1 << 20, fake: true, Options: Options{Piece: 4096, Depth: 8, Paths: 8},
		nic: fakeverbs.Options{Latency: 20 * time.Microsecond, KeepCompletions: true},
	})
}

// poison differs from what the adapter fills the target of a READ with.
const poison = 0x6e

// quiet lets the adapter do all that it still would do.
func (g *rig) quiet() {
	g.t.Helper()
	g.nic.Await("the adapter to be idle", func() bool { return !g.nic.Busy() })
}

// released checks that the memory of a Move that has returned is the caller's again: the adapter owns none of it at
// this moment, and whatever it still does, it does elsewhere.
func (g *rig) released(b []byte, faults ...*fakeverbs.Fault) {
	g.t.Helper()
	if g.nic.Owned(b) {
		g.t.Fatal("the move has returned, and the adapter owns its buffer")
	}
	mark := g.nic.Mark()
	for i := range b {
		b[i] = poison
	}
	for _, f := range faults {
		f.Release()
	}
	g.quiet()
	if touched := g.nic.Touched(b, mark); len(touched) != 0 {
		g.t.Fatalf("the adapter used a buffer after its move had returned: %+v", touched[0])
	}
	if n := bytes.Count(b, []byte{poison}); n != len(b) {
		g.t.Fatalf("%d bytes changed after the move had returned", len(b)-n)
	}
}

// works checks that a rail still moves bytes, on old paths and on a new one, in the last bytes of its memory, and that
// nothing but what was under way is.
func (g *rig) works(paths ...*Path) {
	g.t.Helper()
	before := g.rail.Stats().WorkNow
	fresh := g.path()
	b := g.arena[len(g.arena)-9000:]
	there := g.peer.at(len(g.peer.memory) - 9000)
	for _, p := range append(paths, fresh) {
		for i := range b {
			b[i] = byte(i % 251)
		}
		m := Move{Op: native.OpWrite, Remote: there, RKey: g.peer.mr.RKey(), Local: []Segment{b}}
		mustMove(g.t, p, m)
		clear(b)
		m.Op = native.OpRead
		mustMove(g.t, p, m)
		for i, c := range b {
			if c != byte(i%251) {
				g.t.Fatalf("byte %d is %d after a fault", i, c)
			}
		}
	}
	if err := fresh.Close(); err != nil {
		g.t.Fatal(err)
	}
	if n := g.rail.Stats().WorkNow; n != before {
		g.t.Errorf("%d work requests under way, and before %d", n, before)
	}
}

// counted is how many Moves ended with which error.
func counted(r *Rail) map[error]int64 {
	s := r.Stats()
	return map[error]int64{ErrDenied: s.Denied, ErrLost: s.Lost, ErrLocal: s.Local}
}

// TestFaultsOfWorkRequests ends each work request of a Move in each way, one at a time, and expects the documented
// error, counted once.
func TestFaultsOfWorkRequests(t *testing.T) {
	fail := func(s fakeverbs.Status) fakeverbs.Rule {
		return fakeverbs.Rule{Do: fakeverbs.Fail, Status: s, Vendor: 0x77}
	}
	for _, c := range []struct {
		name string
		rule fakeverbs.Rule
		want error
	}{
		{"remote access", fail(fakeverbs.RemoteAccess), ErrDenied},
		{"remote invalid request", fail(fakeverbs.RemoteInvalid), ErrDenied},
		{"remote operation", fail(fakeverbs.RemoteOperation), ErrDenied},
		{"local length", fail(fakeverbs.LocalLength), ErrLocal},
		{"local operation", fail(fakeverbs.LocalOperation), ErrLocal},
		{"local protection", fail(fakeverbs.LocalProtection), ErrLocal},
		{"flushed", fail(fakeverbs.Flushed), ErrLost},
		{"retry exceeded", fail(fakeverbs.RetryExceeded), ErrLost},
		{"receiver not ready", fail(fakeverbs.RNRRetryExceeded), ErrLost},
		{"response timeout", fail(fakeverbs.ResponseTimeout), ErrLost},
		{"fatal", fail(fakeverbs.FatalError), ErrLost},
		{"general", fail(fakeverbs.GeneralError), ErrLost},
		{"after some packets", fakeverbs.Rule{Do: fakeverbs.Fail, Status: fakeverbs.RetryExceeded, Bytes: 2048}, ErrLost},
		{"short", fakeverbs.Rule{Do: fakeverbs.Short, Bytes: 100}, ErrLocal},
		{"short and empty", fakeverbs.Rule{Do: fakeverbs.Short}, ErrLocal},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := faultRig(t)
			other := g.path()
			for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
				if c.rule.Do == fakeverbs.Short && op == native.OpWrite {
					continue
				}
				for skip := range 11 { // work requests of a Move of 11
					p := g.path()
					rule := c.rule
					rule.At, rule.QPN, rule.Skip = fakeverbs.AtWork, p.Local().QPN, skip
					f := g.nic.Inject(rule)
					m := g.write(10*4096 + 101)
					m.Op = op
					count := counted(g.rail)
					wantError(t, p.Move(m), c.want)
					count[c.want]++
					if now := counted(g.rail); !maps.Equal(now, count) {
						t.Fatalf("counted %v, want %v", now, count)
					}
					if f.Hits() != 1 {
						t.Fatalf("the fault hit %d times", f.Hits())
					}
					g.released(m.Local[0], f)
					ended(t, "settling", p.Settled())
					wantError(t, p.Move(m), ErrLost)
					if err := p.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}
			g.works(other)
			if s := g.rail.Stats(); s.Denied+s.Local+s.Lost == 0 || s.Stuck != 0 || s.Paths != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestOthersOnTheFailedPathAreLost: only the Move whose own work request was refused is denied.
func TestOthersOnTheFailedPathAreLost(t *testing.T) {
	g := faultRig(t)
	p := g.path()
	hold := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: p.Local().QPN, Skip: 1})
	first := moving(p, g.write(100)) // its proof is held, and done as far as the adapter is concerned
	hold.Await(1)
	bad := g.write(5000)
	bad.RKey++
	bad.Local = []Segment{g.arena[4096:9000]}
	second := moving(p, bad)
	g.nic.Await("the refused one", func() bool { q, _ := g.nic.QP(p.Local().QPN); return q.State == native.QPError })
	later := g.read(40)
	later.Local = []Segment{g.arena[9000:9040]}
	third := moving(p, later)
	hold.Release()
	if err := result(t, first); err != nil {
		wantError(t, err, ErrLost) // its completion may be seen before or after the failure
	}
	wantError(t, result(t, second), ErrDenied)
	wantError(t, result(t, third), ErrLost)
	g.released(g.arena[:9040])
	g.works()
}

// TestAForgedSizeChangesNothingElse: an address range that ends behind the peer's memory, a key that is not one, and
// memory that was let go.
func TestAForgedSizeChangesNothingElse(t *testing.T) {
	for name, change := range map[string]func(*rig, *Move){
		"past the end": func(g *rig, m *Move) { m.Remote = g.peer.at(len(g.peer.memory) - 20000) },
		"before it":    func(g *rig, m *Move) { m.Remote = g.peer.at(0) - 100 },
		"other key":    func(_ *rig, m *Move) { m.RKey ^= 0x55 },
	} {
		for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
			t.Run(fmt.Sprintf("%s/%d", name, op), func(t *testing.T) {
				g := newRig(t, rigOptions{arena: 1 << 20, remote: 1 << 20, Options: Options{Piece: 4096}})
				p := g.path()
				m := g.write(50000)
				m.Op = op
				change(g, &m)
				wantError(t, p.Move(m), ErrDenied)
				ended(t, "failing", p.Failed())
				ended(t, "settling", p.Settled())
				if name != "past the end" && !bytes.Equal(g.peer.memory, make([]byte, len(g.peer.memory))) {
					t.Error("the peer's memory changed")
				}
				if g.nic != nil {
					g.released(m.Local[0])
					g.works()
				}
			})
		}
	}
}

// TestReportedThenFailed: what an adapter reports as done before its queue pair fails is not done, wherever it lies in
// the Move, and whatever it moved of it. soft-RoCE does that when its state of a READ is broken.
func TestReportedThenFailed(t *testing.T) {
	for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
		for at := range 4 {
			for _, bytes := range []int{0, 8192} {
				g := faultRig(t)
				p, other := g.path(), g.path()
				m := g.read(3 * 16384)
				m.Op = op
				lie := g.nic.Inject(fakeverbs.Rule{
					At: fakeverbs.AtWork, Do: fakeverbs.Lie, QPN: p.Local().QPN, Skip: at, Bytes: bytes,
				})
				wantError(t, p.Move(m), ErrLost)
				if lie.Hits() != 1 {
					t.Errorf("opcode %d, request %d: %d lies", op, at, lie.Hits())
				}
				g.works(other)
			}
		}
	}
}

// TestCompletionsThatComeTwiceOrLate are counted, and end no other Move.
func TestCompletionsThatComeTwiceOrLate(t *testing.T) {
	g := faultRig(t)
	p := g.path()
	twice := g.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Twice, QPN: p.Local().QPN, Times: fakeverbs.Always,
	})
	for range 20 {
		mustMove(t, p, g.read(3*4096))
	}
	g.quiet()
	twice.Remove()
	g.nic.Await("the second copies", func() bool { return g.rail.Stats().Unexpected >= 60 })
	before := g.rail.Stats().Unexpected

	for range 20 { // held beyond the reset, and let go when another path has its place
		f := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: p.Local().QPN, Late: true})
		m := g.read(2 * 4096)
		c := moving(p, m)
		f.Await(1)
		g.quiet() // it has completed
		p.Fail()
		wantError(t, result(t, c), ErrLost)
		g.released(m.Local[0])
		was := p.slot
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if p = g.path(); p.slot != was {
			t.Fatalf("place %d was not used again, but %d", was, p.slot)
		}
		next := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: p.Local().QPN})
		c = moving(p, g.read(4096))
		next.Await(1)
		f.Release()
		before++
		g.nic.Await("the late completion", func() bool { return g.rail.Stats().Unexpected >= before })
		select {
		case err := <-c:
			t.Fatalf("a late completion ended another move: %v", err)
		default:
		}
		next.Release()
		if err := result(t, c); err != nil {
			t.Fatal(err)
		}
	}
	if n := g.rail.Stats().Unexpected; n != before {
		t.Errorf("%d unexpected completions, want %d", n, before)
	}
	g.works(p)
}

// TestACompletionThatOvertakes proves nothing about those before it: the path fails.
func TestACompletionThatOvertakes(t *testing.T) {
	g := faultRig(t)
	p := g.path()
	f := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: p.Local().QPN, Overtake: true})
	wantError(t, p.Move(g.read(100)), ErrLocal) // by its own proof
	g.released(g.arena[:8192], f)
	g.works()
}

// TestACompletionThatNeverComes is waited for until the path is failed.
func TestACompletionThatNeverComes(t *testing.T) {
	g := faultRig(t)
	p, other := g.path(), g.path()
	f := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Lose, QPN: p.Local().QPN, Skip: 1})
	c := moving(p, g.read(100))
	f.Await(1)
	g.quiet()
	mustMove(t, other, g.write(9000))
	select {
	case err := <-c:
		t.Fatalf("the move returned: %v", err)
	default:
	}
	if g.rail.Stats().WorkNow == 0 {
		t.Error("nothing is under way")
	}
	p.Fail()
	wantError(t, result(t, c), ErrLost)
	g.released(g.arena[:100])
	g.works(other)
}

// TestPostsThatFail: the adapter takes some of a chain and refuses the next.
func TestPostsThatFail(t *testing.T) {
	for skip := range 3 {
		for batch := range 4 {
			t.Run(fmt.Sprintf("%d/%d", skip, batch), func(t *testing.T) {
				g := faultRig(t)
				p, other := g.path(), g.path()
				f := g.nic.Inject(fakeverbs.Rule{
					At: fakeverbs.AtPost, Do: fakeverbs.Fail, QPN: p.Local().QPN, Skip: skip, Batch: batch, Errno: syscall.ENOMEM,
				})
				m := g.read(16 * 4096)
				wantError(t, p.Move(m), ErrLocal)
				if f.Hits() != 1 {
					t.Fatalf("the fault hit %d times", f.Hits())
				}
				g.released(m.Local[0], f)
				g.works(other)
			})
		}
	}
}

// TestAPostThatHangs holds up its own path, and no other.
func TestAPostThatHangs(t *testing.T) {
	g := faultRig(t)
	p, other := g.path(), g.path()
	f := g.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtPost, Do: fakeverbs.Hold, QPN: p.Local().QPN})
	c := moving(p, g.write(100))
	f.Await(1)
	p.Fail()
	g.works(other)
	if !isOpen(p.Settled()) {
		t.Fatal("settled with a post under way")
	}
	f.Release()
	wantError(t, result(t, c), ErrLost)
	g.released(g.arena[:100])
}

// TestLostPackets are sent again; those that never arrive end the path.
func TestLostPackets(t *testing.T) {
	for _, at := range []fakeverbs.Point{
		fakeverbs.AtWritePacket, fakeverbs.AtReadRequest, fakeverbs.AtReadResponse, fakeverbs.AtAck,
	} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			g := faultRig(t)
			p := g.path()
			op := native.OpWrite
			if at == fakeverbs.AtReadRequest || at == fakeverbs.AtReadResponse {
				op = native.OpRead
			}
			m := g.write(10 * 4096)
			m.Op = op
			once := g.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, Skip: 3})
			copies := g.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Twice, Skip: 5, Times: 3})
			for once.Hits() == 0 || copies.Hits() == 0 {
				mustMove(t, p, m)
			}
			g.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, Times: fakeverbs.Always, Device: device(at)})
			wantError(t, p.Move(m), ErrLost)
			g.released(m.Local[0])
			wantError(t, p.Move(m), ErrLost)
		})
	}
}

// device is where packets leave.
func device(at fakeverbs.Point) string {
	if at == fakeverbs.AtReadResponse || at == fakeverbs.AtAck {
		return "fake1"
	}
	return "fake0"
}
