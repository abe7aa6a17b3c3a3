package rails

import (
	"bytes"
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// stage makes one of memory with a new queue pair of the client, which may write there.
func (c *client) stage(set *Set, owner string, memory []byte) (*Stage, *native.QP) {
	c.t.Helper()
	q, end := c.offer()
	s, err := set.Stage(StageOptions{LinkOptions: LinkOptions{Owner: owner, Peer: end}, Memory: memory}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	own := c.own
	own.Timeout, own.Retries, own.RNRRetries = 14, 6, 7
	at := s.Local()
	peer := native.Peer{QPN: at.QPN, PSN: at.PSN, GID: at.GID, MTU: at.MTU, Reads: 1}
	if err := errors.Join(q.Receive(own, peer), q.Send(own, peer)); err != nil {
		c.t.Fatal(err)
	}
	return s, q
}

// push writes the client's first bytes to where the stage begins.
func (c *client) push(q *native.QP, s *Stage, n int) {
	c.t.Helper()
	at, key := s.Region()
	w := native.Work{Op: native.OpWriteImm, Local: c.mr.Addr(), LKey: c.mr.LKey(), Remote: at, RKey: key,
		Length: uint32(n), Imm: 7, Signal: true}
	if _, err := q.Post([]native.Work{w}); err != nil {
		c.t.Fatal(err)
	}
}

func gone(t *testing.T, s *Stage) {
	t.Helper()
	soon(t, "nothing is left of a stage", func() bool {
		select {
		case <-s.Done():
			return true
		default:
			return false
		}
	})
}

func uses(set *Set) int {
	set.mu.Lock()
	defer set.mu.Unlock()
	return len(set.list[0].uses) + len(set.list[0].stages)
}

// TestStage: what the client wrote is there when it says so, and the memory is free when the stage is gone.
func TestStage(t *testing.T) {
	nic, set, _, c := ground(t, fakeverbs.Options{}, nil)
	memory := make([]byte, windowBytes)
	fill(c.memory, 3)
	before := nic.Counters().MRs
	s, q := c.stage(set, "p", memory)
	if s.Port() != 1 || s.Local().QPN == 0 || s.Local().PSN == 0 {
		t.Errorf("port %d, %+v", s.Port(), s.Local())
	}
	c.push(q, s, windowBytes)
	imm, n, err := s.Wait(t.Context())
	if err := errors.Join(err, s.Cut(patience)); err != nil {
		t.Fatal(err)
	}
	if imm != 7 || n != windowBytes || !bytes.Equal(memory, c.memory) {
		t.Errorf("told %d with %d bytes, or other bytes", imm, n)
	}
	gone(t, s)
	if n := nic.Counters().MRs; n != before || uses(set) != 0 {
		t.Errorf("%d regions are left instead of %d, and %d uses", n, before, uses(set))
	}
	if err := s.Cut(patience); err != nil {
		t.Error(err)
	}
}

// TestStageIsNobodysPeer: no use leads to a stage's queue pair, neither one that comes later nor one that named it
// before; and what comes by a stage gives its owner no right to the queue pair that it named.
func TestStageIsNobodysPeer(t *testing.T) {
	_, set, _, c := ground(t, fakeverbs.Options{}, nil)
	s, q := c.stage(set, "p", make([]byte, windowBytes))
	at := s.Local()
	own := initiator.Endpoint{QPN: at.QPN, PSN: at.PSN, GID: at.GID, MTU: at.MTU, Reads: 1}
	for _, owner := range []string{"p", "q"} {
		if _, err := set.Link(LinkOptions{Owner: owner, Peer: own}, nil); !errors.Is(err, ErrTaken) {
			t.Errorf("link of %s: %v", owner, err)
		}
		o := StageOptions{LinkOptions: LinkOptions{Owner: owner, Peer: own}, Memory: make([]byte, 4096)}
		if _, err := set.Stage(o, nil); !errors.Is(err, ErrTaken) {
			t.Errorf("stage of %s: %v", owner, err)
		}
	}
	c.push(q, s, 100)
	if _, _, err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	end := initiator.Endpoint{QPN: q.Number(), PSN: c.own.PSN, GID: c.gid, MTU: 4096, Reads: 1}
	l, err := set.Link(LinkOptions{Owner: "q", Peer: end}, nil)
	if err != nil {
		t.Errorf("a link to the queue pair that a stage heard of: %v", err)
	} else if err := l.Cut(patience); err != nil {
		t.Error(err)
	}
	if err := s.Cut(patience); err != nil {
		t.Error(err)
	}
	gone(t, s)
	// The next queue pair of this adapter has the number again; a link leads to it beforehand.
	// Numbers are given one after another. Links lead to two that are not given yet; one of them a stage gets.
	early := make(map[uint32]*Link)
	for i := range uint32(2) {
		own.QPN = at.QPN + 40 + i
		l, err := set.Link(LinkOptions{Owner: "q", Peer: own}, nil)
		if err != nil {
			t.Fatal(err)
		}
		early[own.QPN] = l
	}
	for found := false; !found; {
		later, _ := c.stage(set, "p", make([]byte, 4096))
		var l *Link
		if l, found = early[later.Local().QPN]; found {
			done(t, l)
		} else if later.Local().QPN > own.QPN {
			t.Fatal("no stage got the number")
		}
		if err := later.Cut(patience); err != nil {
			t.Error(err)
		}
	}
	for _, l := range early {
		if err := l.Cut(patience); err != nil {
			t.Error(err)
		}
	}
}

// TestStageThatIsNotWritten ends by its owner, its waiter's context, or its rail.
func TestStageThatIsNotWritten(t *testing.T) {
	_, set, _, c := ground(t, fakeverbs.Options{}, nil)
	why := errors.New("why")
	for name, end := range map[string]struct {
		end  func(*Stage, context.CancelCauseFunc)
		want error
	}{
		"owner":   {func(s *Stage, _ context.CancelCauseFunc) { s.Fail() }, ErrEnded},
		"context": {func(_ *Stage, cancel context.CancelCauseFunc) { cancel(why) }, why},
		"rail":    {func(*Stage, context.CancelCauseFunc) { set.list[0].lower("a test's", nil) }, ErrDown},
	} {
		s, _ := c.stage(set, "p", make([]byte, 4096))
		ctx, cancel := context.WithCancelCause(t.Context())
		waited := make(chan error, 1)
		go func() {
			_, _, err := s.Wait(ctx)
			waited <- err
		}()
		end.end(s, cancel)
		if err := <-waited; !errors.Is(err, end.want) {
			t.Errorf("%s: waited: %v", name, err)
		}
		if err := s.Cut(patience); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		gone(t, s)
		set.list[0].raise()
		cancel(nil)
	}
	if uses(set) != 0 {
		t.Errorf("%d uses are left", uses(set))
	}
}

// TestRefusedStages: what an adapter refuses leaves nothing behind, and its memory is free at once.
func TestRefusedStages(t *testing.T) {
	nic, set, _, c := ground(t, fakeverbs.Options{}, nil)
	before := nic.Counters().Open()
	for _, at := range []fakeverbs.Point{
		fakeverbs.AtAllocPD, fakeverbs.AtRegMR, fakeverbs.AtCreateCQ, fakeverbs.AtCreateQP, fakeverbs.AtInit,
		fakeverbs.AtReceive,
	} {
		nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, Errno: syscall.ENOMEM, Device: fakeRail})
		_, end := c.offer()
		before++ // the client's
		o := StageOptions{LinkOptions: LinkOptions{Owner: "p", Peer: end}, Memory: make([]byte, 4096)}
		_, err := set.Stage(o, nil)
		if !errors.Is(err, syscall.ENOMEM) || errors.Is(err, initiator.ErrStuck) {
			t.Errorf("at %d: %v", at, err)
		}
		if n := nic.Counters().Open(); n != before || uses(set) != 0 {
			t.Errorf("at %d: %d objects instead of %d, %d uses", at, n, before, uses(set))
		}
	}
	_, end := c.offer()
	end.GID = [16]byte{}
	if _, err := set.Stage(StageOptions{LinkOptions: LinkOptions{Owner: "p", Peer: end}}, nil); !errors.Is(err,
		initiator.ErrUnreached) {
		t.Errorf("nobody's: %v", err)
	}
}

// TestStagesEndWithTheirRails: closing the rails ends them, though nobody cut them, and none is made after it.
func TestStagesEndWithTheirRails(t *testing.T) {
	_, set, _, c := ground(t, fakeverbs.Options{}, nil)
	s, _ := c.stage(set, "p", make([]byte, 4096))
	_, end := c.offer()
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	default:
		t.Error("closed before a stage has ended")
	}
	o := StageOptions{LinkOptions: LinkOptions{Owner: "p", Peer: end}, Memory: make([]byte, 4096)}
	if _, err := set.Stage(o, nil); !errors.Is(err, initiator.ErrClosed) {
		t.Errorf("made: %v", err)
	}
}

// TestStageOnAStubbornAdapter: one that neither resets nor destroys has its rail not closed, and the memory stays out,
// until it does.
func TestStageOnAStubbornAdapter(t *testing.T) {
	nic, set, _, c := ground(t, fakeverbs.Options{Lenient: true}, nil)
	s, _ := c.stage(set, "p", make([]byte, 4096))
	for _, at := range []fakeverbs.Point{fakeverbs.AtReset, fakeverbs.AtDestroyQP} {
		nic.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Fail, QPN: s.Local().QPN, Errno: syscall.EIO, Times: 2})
	}
	if err := s.Cut(shortly); !errors.Is(err, initiator.ErrStuck) {
		t.Errorf("cut: %v", err)
	}
	if err := set.Close(); !errors.Is(err, initiator.ErrStuck) {
		t.Errorf("closed: %v", err)
	}
	select {
	case <-s.Done():
		t.Error("gone though the adapter has it")
	default:
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	gone(t, s)
}
