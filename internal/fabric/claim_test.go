package fabric_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
)

// claim tells whether the session takes the number.
func (s *scene) claim(n uint32) bool {
	s.t.Helper()
	_, err := s.session.Claim(token.Descriptor{Region: uint64(n)<<32 | 1}, "p")
	if err != nil && !errors.Is(err, fabric.ErrReplayed) {
		s.t.Fatal(err)
	}
	return err == nil
}

// naive is the set of all numbers, and the largest one.
type naive struct {
	seen map[uint32]bool
	top  int64
}

func (m *naive) take(n uint32) bool {
	if n == 0 || int64(n) <= m.top-fabric.ClaimWindow || m.seen[n] {
		return false
	}
	m.seen[n] = true
	m.top = max(m.top, int64(n))
	return true
}

// TestClaimsModel compares the window with a set of all numbers: steps forward, far jumps, late ones,
// repeats, and the borders of window, words and range.
func TestClaimsModel(t *testing.T) {
	const w = fabric.ClaimWindow
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, m := newScene(t), &naive{seen: map[uint32]bool{}}
		if seed%4 == 3 { // near the end of the range
			first := uint32(math.MaxUint32 - 3*w)
			if s.claim(first) != m.take(first) {
				t.Fatal("first")
			}
		}
		for step := range 20_000 {
			var n int64
			switch r.IntN(10) {
			case 0, 1, 2:
				n = m.top + 1
			case 3:
				n = m.top + r.Int64N(200)
			case 4:
				n = m.top - r.Int64N(200)
			case 5:
				n = m.top - r.Int64N(w+200)
			case 6:
				n = m.top - w + r.Int64N(3) - 1 // the border itself
			case 7:
				n = m.top - w - r.Int64N(w)
			case 8:
				n = (m.top/64 + r.Int64N(3) - 1) * 64
			default:
				if r.IntN(200) == 0 {
					n = m.top + r.Int64N(3*w)
				} else {
					n = m.top - 1024*64 + r.Int64N(128)
				}
			}
			number := uint32(min(max(n, 0), math.MaxUint32))
			if got, want := s.claim(number), m.take(number); got != want {
				t.Fatalf("seed %d, step %d: number %d after %d: %v, want %v", seed, step, number, m.top, got, want)
			}
		}
		s.session.Cut(fabric.ErrPeerGone)
	}
}

// TestClaimsEnds: zero is no number, the last one works, and nothing follows it.
func TestClaimsEnds(t *testing.T) {
	s := newScene(t)
	defer s.session.Cut(fabric.ErrPeerGone)
	for _, c := range []struct {
		n    uint32
		want bool
	}{
		{0, false}, {1, true}, {1, false}, {2, true}, {0, false}, {math.MaxUint32, true}, {math.MaxUint32, false},
		{math.MaxUint32 - 1, true}, {3, false}, {1, false}, {0, false},
		{math.MaxUint32 - fabric.ClaimWindow + 1, true}, {math.MaxUint32 - fabric.ClaimWindow, false},
	} {
		if got := s.claim(c.n); got != c.want {
			t.Errorf("number %d: %v", c.n, got)
		}
	}
	if n := s.roster.Counters.Read("test").Replayed; n != 8 {
		t.Errorf("%d refusals counted", n)
	}
}

// TestClaimsRace: each number goes to one of those who ask for it at the same time.
func TestClaimsRace(t *testing.T) {
	s := newScene(t)
	const numbers, racers = 2000, 8
	var taken [numbers + 1]atomic.Int32
	var wg sync.WaitGroup
	for i := range uint64(racers) {
		wg.Go(func() {
			for _, n := range rand.New(rand.NewPCG(i, 2)).Perm(numbers) {
				if _, err := s.session.Claim(token.Descriptor{Region: uint64(n+1) << 32}, "p"); err == nil {
					taken[n+1].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for n := 1; n <= numbers; n++ {
		if got := taken[n].Load(); got != 1 {
			t.Errorf("number %d was taken %d times", n, got)
		}
	}
	s.session.Cut(fabric.ErrPeerGone)
	if _, err := s.session.Claim(token.Descriptor{Region: 9999 << 32}, "p"); !errors.Is(err, fabric.ErrNoSession) {
		t.Errorf("claim after the end: %v", err)
	}
}
