//go:build cgo

package initiator

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// spanBytes is each worker's share of both memories.
const spanBytes = 64 << 10

// leg is a path and the peer's end of it.
type leg struct {
	path *Path
	qp   *native.QP
	once sync.Once
}

// fence is what a client does when a path has failed: no packet that is still under way is taken any more.
func (l *leg) fence() { l.once.Do(func() { _ = l.qp.Fail() }) }

// schedule is random Moves of several workers over a few paths, with random faults among them.
type schedule struct {
	*rig
	t     *testing.T
	moved atomic.Int64
	// exact: the completion queue is small, and no completion comes that was not asked for: it must not overflow.
	exact bool

	mu       sync.Mutex
	lanes    []*leg
	held     []*fakeverbs.Fault // hold something, or break the driver
	refusals int                // faults of the driver that Close may meet
}

// TestSchedules runs Moves with faults, and looks at the memory after each: a Move that went well has moved its bytes
// and nothing else; of one that failed the adapter lets go at that moment, for good. At the end everything is reset,
// nothing is open and no work request was forgotten. `PENSTOCK_TEST_LONG=1 go test -run 'TestSchedules/4711$'` runs
// number 4711 again, as far as threads allow.
func TestSchedules(t *testing.T) {
	n := 250
	switch {
	case os.Getenv("PENSTOCK_TEST_LONG") != "":
		n = 10_000
	case testing.Short():
		n = 60
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runSchedule(t, uint64(seed)) })
	}
}

func runSchedule(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	workers := 1 + rng.IntN(6)
	device := fakeverbs.Device{MaxCQDepth: pick(2, 9, 40, 0, 0, 0), MaxReads: pick(1, 4, 0)}
	g := newRig(t, rigOptions{
		arena: workers * spanBytes, remote: workers * spanBytes, fake: true,
		Options: Options{Paths: 6, Depth: pick(1, 2, 5, 64, 64), Piece: pick(1000, 4096, 65536)},
		nic: fakeverbs.Options{
			Devices: []fakeverbs.Device{device, {}}, Seed: seed + 1,
			Latency: time.Duration(rng.IntN(30)) * time.Microsecond, Jitter: time.Duration(rng.IntN(30)) * time.Microsecond,
			FlushTime: time.Duration(rng.IntN(20)) * time.Microsecond, KeepCompletions: rng.IntN(2) == 0,
			ReuseNumbers: rng.IntN(2) == 0,
		},
	})
	s := &schedule{rig: g, t: t, exact: g.rail.credits.total < 128, lanes: make([]*leg, 1+rng.IntN(4))}
	for i := range s.lanes {
		s.lanes[i] = s.lane()
	}
	done := make(chan struct{})
	var all, janitor sync.WaitGroup
	for w := range workers {
		all.Go(func() { s.work(w, rand.New(rand.NewPCG(seed, uint64(100+w)))) })
	}
	janitor.Go(func() { s.deadlines(done) })
	all.Wait()
	close(done)
	janitor.Wait()
	err := g.rail.Close()
	for refusals := s.refusals; err != nil && refusals > 0; refusals-- { // a fault that nothing met before
		err = g.rail.Close()
	}
	if err != nil {
		t.Errorf("close: %v", err)
	}
	if st := g.rail.Stats(); st.WorkNow != 0 || st.Stuck != 0 || st.Paths != 0 {
		t.Errorf("at the end: %+v", st)
	}
}

// lane makes a path, or none where a fault prevents it.
func (s *schedule) lane() *leg {
	p, err := s.rail.NewPath(PathOptions{})
	if err != nil {
		return nil
	}
	qp, err := s.peer.join(p)
	if err != nil {
		if err := p.Close(); err != nil && !errors.Is(err, ErrStuck) && !errors.Is(err, native.ErrVerbs) {
			s.t.Errorf("close of a path: %v", err)
		}
		return nil
	}
	return &leg{path: p, qp: qp}
}

// work does one worker's Moves in its spans.
func (s *schedule) work(w int, rng *rand.Rand) {
	mine := s.arena[w*spanBytes:][:spanBytes]
	there := s.peer.memory[w*spanBytes:][:spanBytes]
	was, wasThere := bytes.Clone(mine), bytes.Clone(there)
	for range 12 {
		if rng.IntN(3) == 0 {
			s.disturb(rng)
		}
		l := s.choose(rng)
		if l == nil {
			continue
		}
		from, at := rng.IntN(spanBytes), rng.IntN(spanBytes)
		n := rng.IntN(min(spanBytes-from, spanBytes-at) + 1)
		m := Move{
			Op: native.OpWrite, Remote: s.peer.at(w*spanBytes + at), RKey: s.peer.mr.RKey(),
			Local: cut(mine[from:from+n], 1+rng.IntN(max(1, min(4, n/8)))),
		}
		read := rng.IntN(2) == 0
		if read {
			m.Op = native.OpRead
		} else {
			for i := range n {
				mine[from+i] = byte(rng.Uint32())
			}
		}
		copy(was, mine)
		err := l.path.Move(m)
		s.moved.Add(1)
		if s.nic.Owned(mine) {
			s.t.Fatalf("worker %d: the adapter owns memory of no move", w)
		}
		switch {
		case err == nil && read:
			copy(was[from:from+n], there[at:at+n])
		case err == nil:
			copy(wasThere[at:at+n], mine[from:from+n])
		default:
			s.failed(l, err)
			for i := range n { // a late access would change it
				mine[from+i] = poison
			}
			copy(was, mine)
			copy(wasThere[at:at+n], there[at:at+n]) // not known
			if read {
				copy(wasThere, there)
			}
		}
		if !bytes.Equal(mine, was) || !bytes.Equal(there, wasThere) {
			s.t.Errorf("worker %d: %d bytes, read %v: memory is not what it should be after %v", w, n, read, err)
			return
		}
	}
}

// failed checks the error of a Move, and does what the client would.
func (s *schedule) failed(l *leg, err error) {
	if !errors.Is(err, ErrDenied) && !errors.Is(err, ErrLost) && !errors.Is(err, ErrLocal) {
		s.t.Errorf("undocumented: %v", err)
	}
	if isOpen(l.path.Failed()) {
		s.t.Errorf("the path lives after %v", err)
	}
	l.fence()
}

// choose takes a path, and replaces one that has failed.
func (s *schedule) choose(rng *rand.Rand) *leg {
	s.mu.Lock()
	i := rng.IntN(len(s.lanes))
	l := s.lanes[i]
	if l != nil && isOpen(l.path.Failed()) {
		s.mu.Unlock()
		return l
	}
	s.lanes[i] = nil
	s.mu.Unlock()
	if l != nil {
		if err := l.path.Close(); err != nil && !errors.Is(err, ErrStuck) && !errors.Is(err, native.ErrVerbs) {
			s.t.Errorf("close of a path: %v", err)
		}
		l.fence()
	}
	fresh := s.lane()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lanes[i] == nil {
		s.lanes[i] = fresh
	}
	return fresh
}

// disturb injects a fault, or ends a path.
func (s *schedule) disturb(rng *rand.Rand) {
	rule := fakeverbs.Rule{Skip: rng.IntN(6), Device: "fake0", Errno: syscall.EIO}
	hold := false
	switch rng.IntN(16) {
	case 0, 1:
		rule.At, rule.Do = fakeverbs.AtWork, fakeverbs.Fail
		of := []fakeverbs.Status{
			fakeverbs.LocalProtection, fakeverbs.Flushed, fakeverbs.RemoteAccess, fakeverbs.RemoteOperation,
			fakeverbs.RetryExceeded, fakeverbs.GeneralError,
		}
		rule.Status, rule.Bytes = of[rng.IntN(len(of))], rng.IntN(4096)
	case 2:
		rule.At, rule.Do, rule.Op = fakeverbs.AtWork, fakeverbs.Short, native.OpRead
	case 3:
		rule.At, rule.Do = fakeverbs.AtWork, fakeverbs.Lose
	case 4:
		if s.exact {
			return
		}
		rule.At, rule.Do, rule.Times = fakeverbs.AtWork, fakeverbs.Twice, 3
	case 5, 6:
		rule.At, rule.Do, hold = fakeverbs.AtWork, fakeverbs.Hold, true
		rule.Late, rule.Overtake = !s.exact && rng.IntN(2) == 0, rng.IntN(2) == 0
	case 7:
		rule.At, rule.Do, rule.Batch = fakeverbs.AtPost, fakeverbs.Fail, rng.IntN(5)
	case 8:
		rule.At, rule.Do, rule.Skip = fakeverbs.AtReset, fakeverbs.Fail, rng.IntN(2)
	case 9:
		at := []fakeverbs.Point{
			fakeverbs.AtInit, fakeverbs.AtReceive, fakeverbs.AtSend, fakeverbs.AtError, fakeverbs.AtCreateQP,
			fakeverbs.AtDestroyQP,
		}
		rule.At, rule.Do, rule.Skip = at[rng.IntN(len(at))], fakeverbs.Fail, rng.IntN(2)
	case 10:
		rule.At, rule.Do, rule.Skip, hold = fakeverbs.AtReset, fakeverbs.Hold, 0, true
	case 11, 12:
		at := []fakeverbs.Point{
			fakeverbs.AtWritePacket, fakeverbs.AtReadRequest, fakeverbs.AtReadResponse, fakeverbs.AtAck,
		}
		do := []fakeverbs.Effect{fakeverbs.Fail, fakeverbs.Twice}
		rule.At, rule.Do, rule.Device = at[rng.IntN(len(at))], do[rng.IntN(len(do))], ""
		rule.Times = 1 + rng.IntN(20)
	case 13:
		s.nic.PortDown("fake0")
		s.nic.PortUp("fake0")
		return
	default:
		s.end(rng)
		return
	}
	f := s.nic.Inject(rule)
	s.mu.Lock()
	defer s.mu.Unlock()
	if hold {
		s.held = append(s.held, f)
	}
	if rule.Do == fakeverbs.Fail && (rule.At == fakeverbs.AtReset || rule.At == fakeverbs.AtDestroyQP) {
		s.refusals++
	}
}

// end fails a path in one of the ways that are no fault.
func (s *schedule) end(rng *rand.Rand) {
	s.mu.Lock()
	l := s.lanes[rng.IntN(len(s.lanes))]
	s.mu.Unlock()
	switch {
	case l == nil:
	case rng.IntN(3) == 0:
		l.fence()
	case rng.IntN(2) == 0:
		s.nic.FailQP(l.path.Local().QPN)
	default:
		l.path.Fail()
	}
}

// deadlines does what the callers' deadlines would: when nothing moves, what is held is let go, all paths are failed,
// and those that the driver did not reset are tried again.
func (s *schedule) deadlines(done <-chan struct{}) {
	var again sync.WaitGroup
	defer again.Wait()
	defer s.release() // of attempts that hang
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for last := int64(-1); ; {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		now := s.moved.Load()
		if now != last {
			last = now
			continue
		}
		for _, p := range s.rail.list() {
			p.Fail()
		}
		s.release()
		for _, p := range s.rail.list() {
			if !isOpen(p.stuck) { // reset and destroy have both failed: only another attempt frees its moves
				again.Go(p.settleAgain)
			}
		}
	}
}

// release lets go of what is held.
func (s *schedule) release() {
	s.mu.Lock()
	held := s.held
	s.held = nil
	s.mu.Unlock()
	for _, f := range held {
		f.Release()
	}
}
