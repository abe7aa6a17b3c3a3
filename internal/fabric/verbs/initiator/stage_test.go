//go:build cgo

package initiator

import (
	"bytes"
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// stage makes one, with a queue pair of the peer that may write to it.
func (g *rig) stage(size int) (*Stage, *native.QP) {
	g.t.Helper()
	s, err := g.rail.NewStage(mapped(g.t, size), Source{})
	if err != nil {
		g.t.Fatal(err)
	}
	own, qp, err := g.peer.answer(s.Local())
	if err == nil {
		err = s.Connect(own)
	}
	if err == nil {
		path := native.Path{
			Port: g.peer.rail.Port, GIDIndex: g.peer.rail.GIDIndex, HopLimit: 64, PSN: own.PSN, Timeout: 14, Retries: 6,
			RNRRetries: 6, MinRNRTimer: 12,
		}
		err = qp.Send(path, native.Peer{Reads: 1, MTU: own.MTU})
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			g.t.Errorf("close of a stage: %v", err)
		}
	})
	return s, qp
}

// toStage is a work request of the peer: its first n bytes to where a stage begins.
func (g *rig) toStage(s *Stage, op native.Opcode, n int) native.Work {
	at, key := s.Region()
	return native.Work{
		Op: op, Local: g.peer.at(0), LKey: g.peer.mr.LKey(), Remote: at, RKey: key, Length: uint32(n), Signal: true, Imm: 77,
	}
}

// did posts a work request of the peer and waits for its end.
func (g *rig) did(qp *native.QP, w native.Work) native.Status {
	g.t.Helper()
	if n, err := qp.Post([]native.Work{w}); err != nil || n != 1 {
		g.t.Fatal(err)
	}
	return g.peerCompletion()
}

func (g *rig) peerCompletion() native.Status {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), wait)
	defer cancel()
	var one [1]native.Completion
	for {
		if err := g.peer.cq.Arm(); err != nil {
			g.t.Fatal(err)
		}
		n, err := g.peer.cq.Poll(one[:])
		if err == nil && n == 0 {
			err = g.peer.cq.Wait(ctx)
		}
		if err != nil {
			g.t.Fatal(err)
		}
		if n == 1 {
			return one[0].Status
		}
	}
}

// TestStage: what the peer wrote is there when it says so.
func TestStage(t *testing.T) {
	for _, size := range []int{1, 4096, 70_001} {
		g := newRig(t, rigOptions{arena: 4096, remote: 1 << 17})
		s, qp := g.stage(size)
		if status := g.did(qp, g.toStage(s, native.OpWriteImm, size)); status != native.StatusOK {
			t.Fatalf("status %d", status)
		}
		imm, n, err := s.Wait(t.Context())
		if err := errors.Join(err, s.Seal(), s.Seal()); err != nil {
			t.Fatal(err)
		}
		if imm != 77 || n != size || !bytes.Equal(s.memory, g.peer.memory[:size]) {
			t.Errorf("told %d with %d bytes of %d", imm, n, size)
		}
	}
}

// TestSealedStage: a packet that was under way when the stage was sealed changes nothing, also where the adapter
// refuses all but one of the ways to end a queue pair.
func TestSealedStage(t *testing.T) {
	for name, refused := range map[string][]fakeverbs.Point{
		"willing":      nil,
		"by reset":     {fakeverbs.AtError},
		"by its death": {fakeverbs.AtError, fakeverbs.AtReset},
	} {
		t.Run(name, func(t *testing.T) { sealed(t, refused) })
	}
}

func sealed(t *testing.T, refused []fakeverbs.Point) {
	const size = 3000
	g := newRig(t, rigOptions{arena: 4096, remote: 1 << 16, fake: true})
	s, qp := g.stage(size)
	for _, at := range refused {
		g.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, QPN: s.Local().QPN, Errno: syscall.EIO})
	}
	if status := g.did(qp, g.toStage(s, native.OpWriteImm, size)); status != native.StatusOK {
		t.Fatalf("status %d", status)
	}
	if _, _, err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := g.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold, QPN: qp.Number(), Times: fakeverbs.Always,
	})
	fillRandom(g.peer.memory)
	if _, err := qp.Post([]native.Work{g.toStage(s, native.OpWrite, size)}); err != nil {
		t.Fatal(err)
	}
	held.Await(1)
	if err := s.Seal(); err != nil {
		t.Fatal(err)
	}
	before, dropped := bytes.Clone(s.memory), g.nic.Counters().Dropped
	held.Remove()
	held.Release()
	g.nic.Await("the packets have arrived", func() bool { return g.nic.Counters().Dropped > dropped })
	if status := g.peerCompletion(); status != native.StatusRetry {
		t.Errorf("a late write ended with status %d", status)
	}
	if !bytes.Equal(before, s.memory) {
		t.Error("a sealed stage changed")
	}
}

// TestStageThatIsNotSealed: an adapter that does none of it is not believed, and is asked again.
func TestStageThatIsNotSealed(t *testing.T) {
	g := newRig(t, rigOptions{arena: 4096, remote: 1 << 16, fake: true, nic: fakeverbs.Options{Lenient: true}})
	s, qp := g.stage(4096)
	for _, at := range []fakeverbs.Point{fakeverbs.AtReset, fakeverbs.AtDestroyQP} {
		g.nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, QPN: s.Local().QPN, Errno: syscall.EIO, Times: 2})
	}
	wantIs(t, s.Seal(), ErrStuck)
	wantIs(t, s.Close(), ErrStuck)
	if err := errors.Join(s.Seal(), s.Close()); err != nil {
		t.Error(err)
	}
	if status := g.did(qp, g.toStage(s, native.OpWrite, 4096)); status == native.StatusOK {
		t.Error("written after its end")
	}
}

// TestKeyOfAStage: it opens this memory, by this queue pair, for writing, and nothing else.
func TestKeyOfAStage(t *testing.T) {
	const size = 4096
	for name, wrong := range map[string]func(w *native.Work, other *Stage, arena []byte){
		"another stage's":  func(w *native.Work, other *Stage, _ []byte) { w.Remote, w.RKey = other.Region() },
		"beyond its end":   func(w *native.Work, _ *Stage, _ []byte) { w.Length++ },
		"before its begin": func(w *native.Work, _ *Stage, _ []byte) { w.Remote-- },
		"to read it":       func(w *native.Work, _ *Stage, _ []byte) { w.Op = native.OpRead },
		"the arena":        func(w *native.Work, _ *Stage, arena []byte) { w.Remote = address(arena) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, rigOptions{arena: 4096, remote: 1 << 16})
			s, qp := g.stage(size)
			other, _ := g.stage(size)
			before, theirs, arena := bytes.Clone(s.memory), bytes.Clone(other.memory), bytes.Clone(g.arena)
			w := g.toStage(s, native.OpWriteImm, size)
			wrong(&w, other, g.arena)
			if status := g.did(qp, w); status != native.StatusRemoteAccess && status != native.StatusRemoteOther {
				t.Errorf("status %d", status)
			}
			if !bytes.Equal(before, s.memory) || !bytes.Equal(theirs, other.memory) || !bytes.Equal(arena, g.arena) {
				t.Error("memory changed")
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			if _, _, err := s.Wait(ctx); !errors.Is(err, ErrLost) {
				t.Errorf("told: %v", err)
			}
		})
	}
}

// TestStageThatIsNotWritten: its owner stops waiting, and has the memory back; what cannot be meant is refused.
func TestStageThatIsNotWritten(t *testing.T) {
	g := newRig(t, rigOptions{arena: 4096, remote: 4096})
	s, _ := g.stage(4096)
	why := errors.New("deadline")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, _, err := s.Wait(ctx); !errors.Is(err, why) {
		t.Errorf("waited: %v", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := g.rail.NewStage(nil, Source{}); err == nil {
		t.Error("a stage without memory")
	}
	wantIs(t, s.Connect(Endpoint{MTU: 1024, QPN: 1 << 24}), ErrLocal)
}

// TestASealedStageStaysSealed: one that was sealed before it was connected does not open for its peer any more.
func TestASealedStageStaysSealed(t *testing.T) {
	g := newRig(t, rigOptions{arena: 4096, remote: 4096})
	s, err := g.rail.NewStage(mapped(t, 4096), Source{})
	if err != nil {
		t.Fatal(err)
	}
	own, _, err := g.peer.answer(s.Local())
	if err := errors.Join(err, s.Seal()); err != nil {
		t.Fatal(err)
	}
	wantIs(t, s.Connect(own), ErrLost)
	if state, err := s.qp.State(); err != nil || state != native.QPReset {
		t.Errorf("state %d: %v", state, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
