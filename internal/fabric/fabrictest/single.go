package fabrictest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
)

// testSingleUse opens one token many times, at once and one after another: exactly one request gets the
// window. Tokens that overtake each other all work, and another principal's attempt uses nothing up.
func testSingleUse(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	r := s.register(s.connect(principal), 100_000)
	claimer, ok := s.fabric.(fabric.Claimer)
	if !ok {
		t.Fatal("a fabric with sessions takes no claims")
	}
	grants := make([]Window, 20)
	for i := range grants {
		grants[i] = s.grant(r, int64(i)*1000, 1000, fabric.ForGet)
	}
	for i := len(grants) - 1; i >= 0; i-- {
		d := grants[i].Descriptor()
		if _, err := claimer.Claim(d, "other"); !errors.Is(err, fabric.ErrNotGranted) {
			t.Errorf("claim of another principal: %v", err)
		}
		remote := s.raceToOpen(d)
		if err := s.sendAll(remote, uint64(i)+1, 1000, 1000); err != nil {
			t.Error(err)
		}
		if err := remote.Close(); err != nil {
			t.Error(err)
		}
		_ = grants[i].EndContext(s.ctx)
	}
	stays(s, r, func() {
		for _, w := range grants {
			d := w.Descriptor()
			if _, err := s.fabric.Open(s.ctx, d, request(fabric.ForGet, 1000)); !errors.Is(err, fabric.ErrReplayed) {
				t.Errorf("opened again: %v", err)
			}
			if _, err := claimer.Claim(d, principal); !errors.Is(err, fabric.ErrReplayed) {
				t.Errorf("claimed again: %v", err)
			}
		}
	})
	s.claims(r, claimer)
}

// raceToOpen opens a token from many goroutines, half of them with a claim of their own before.
func (s *stage) raceToOpen(d token.Descriptor) fabric.Remote {
	s.t.Helper()
	const racers = 16
	var won atomic.Pointer[fabric.Remote]
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			g := request(fabric.ForGet, d.Size)
			var err error
			if i%2 == 0 {
				if g.Claim, err = s.fabric.(fabric.Claimer).Claim(d, principal); err != nil {
					if !errors.Is(err, fabric.ErrReplayed) {
						s.t.Errorf("claim: %v", err)
					}
					return
				}
			}
			remote, err := s.fabric.Open(s.ctx, d, g)
			switch {
			case err == nil:
				if won.Swap(&remote) != nil {
					s.t.Error("one token opened two windows")
				}
			case !errors.Is(err, fabric.ErrReplayed):
				s.t.Errorf("open: %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() == nil {
		s.t.Fatal("nobody got the window")
	}
	return *won.Load()
}

// claims: a claim opens one window of its own token only, and a claim that opened nothing has used the
// token up all the same.
func (s *stage) claims(r Region, claimer fabric.Claimer) {
	s.t.Helper()
	d, other := s.grant(r, 0, 100, fabric.ForPut).Descriptor(), s.grant(r, 0, 100, fabric.ForPut).Descriptor()
	g := request(fabric.ForPut, 100)
	var err error
	if g.Claim, err = claimer.Claim(d, principal); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.fabric.Open(s.ctx, other, g); !errors.Is(err, fabric.ErrReplayed) {
		s.t.Errorf("open by another token's claim: %v", err)
	}
	remote := s.openWith(d, g)
	if _, err := s.fabric.Open(s.ctx, d, g); !errors.Is(err, fabric.ErrReplayed) {
		s.t.Errorf("claim used twice: %v", err)
	}
	if err := remote.Close(); err != nil {
		s.t.Error(err)
	}
	if _, err := claimer.Claim(other, principal); err != nil {
		s.t.Errorf("a token that was never claimed: %v", err)
	}
	if _, err := s.fabric.Open(s.ctx, other, request(fabric.ForPut, 100)); !errors.Is(err, fabric.ErrReplayed) {
		s.t.Errorf("open without the claim that was taken: %v", err)
	}
	none := other
	none.Region = uint64(uint32(none.Region))
	if _, err := s.fabric.Open(s.ctx, none, request(fabric.ForPut, 100)); !errors.Is(err, fabric.ErrReplayed) {
		s.t.Errorf("a token without a number: %v", err)
	}
	last := s.grant(r, 0, 100, fabric.ForPut).Descriptor()
	if g.Claim, err = claimer.Claim(last, principal); err != nil {
		s.t.Fatal(err)
	}
	s.fabric.RevokePrincipal(principal)
	if _, err := s.fabric.Open(s.ctx, last, g); !errors.Is(err, fabric.ErrNoSession) {
		s.t.Errorf("open after a revocation, claimed before: %v", err)
	}
}

func (s *stage) openWith(d token.Descriptor, g fabric.Grant) fabric.Remote {
	s.t.Helper()
	remote, err := s.fabric.Open(s.ctx, d, g)
	if err != nil {
		s.t.Fatal(err)
	}
	return remote
}
