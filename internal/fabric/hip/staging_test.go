package hip

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// FuzzStaging compares the staging memory with a map of its pages: what is handed out was free, is the first run that
// fits, and is refused only where none does, or where its owner has one already and would have more than half.
func FuzzStaging(f *testing.F) {
	f.Add([]byte{3, 2, 5, 0x80, 1, 9, 0x81, 0x80})
	f.Add([]byte{16, 0x80, 1, 1, 1, 0x81, 2, 0x80, 0x80})
	f.Fuzz(func(t *testing.T, steps []byte) { stagingModel(t, steps) })
}

// TestStaging runs the model on random steps.
func TestStaging(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		steps := make([]byte, 200)
		for i := range steps {
			steps[i] = byte(r.Uint32())
			if r.IntN(2) == 0 {
				steps[i] &= 0x87 // short ones
			}
		}
		stagingModel(t, steps)
	}
}

func stagingModel(t *testing.T, steps []byte) {
	t.Helper()
	const pages = 32
	s := &staging{page: 4096, size: pages * 4096, free: []run{{0, pages * 4096}}, held: map[string]int{}}
	var busy [pages]bool
	type owned struct {
		run
		owner string
	}
	var out []owned
	for turn, step := range steps {
		if step&0x80 != 0 { // give one back
			if len(out) == 0 {
				continue
			}
			i := int(step&0x7f) % len(out)
			r := out[i]
			out = append(out[:i], out[i+1:]...)
			s.give(r.owner, r.run)
			for p := range r.length / 4096 {
				busy[r.at/4096+p] = false
			}
			continue
		}
		want, n := -1, int(step)%pages+1
		for at := 0; at+n <= pages && want < 0; at++ {
			if fits(busy[at : at+n]) {
				want = at
			}
		}
		owner, has := string("abc"[turn%3]), 0
		for _, r := range out {
			if r.owner == owner {
				has += r.length / 4096
			}
		}
		r, err := s.take(owner, n*4096-int(step)%4096)
		if has > 0 && has+n > pages/2 {
			if !errors.Is(err, errShare) {
				t.Fatalf("%d pages besides %d: %+v, %v", n, has, r, err)
			}
			continue
		}
		if want < 0 {
			if !errors.Is(err, errFull) {
				t.Fatalf("%d pages: %+v, %v, though none fit", n, r, err)
			}
			continue
		}
		if got := r.length / 4096; err != nil || r.at != want*4096 || got != n {
			t.Fatalf("%d pages: %+v, %v, want page %d", n, r, err, want)
		}
		for p := range n {
			busy[want+p] = true
		}
		out = append(out, owned{r, owner})
	}
	held := 0
	for _, r := range out {
		held += r.length
	}
	if s.taken() != held {
		t.Fatalf("taken %d, want %d", s.taken(), held)
	}
	for _, r := range out {
		s.give(r.owner, r.run)
	}
	if len(s.free) != 1 || s.free[0] != (run{0, pages * 4096}) || s.taken()+len(s.held) != 0 {
		t.Fatalf("in the end %+v, %d taken, %v", s.free, s.taken(), s.held)
	}
}

func fits(busy []bool) bool {
	for _, b := range busy {
		if b {
			return false
		}
	}
	return true
}

// TestStagingMemory maps whole pages, and unmaps them once.
func TestStagingMemory(t *testing.T) {
	s, err := newStaging(10_000)
	if err != nil {
		t.Fatal(err)
	}
	if s.size%s.page != 0 || s.size < 10_000 || len(s.memory) != s.size {
		t.Errorf("%d bytes of %d", len(s.memory), s.size)
	}
	if b := s.bytes(run{s.page, s.page}, 17); len(b) != 17 || cap(b) != 17 {
		t.Errorf("%d bytes, %d", len(b), cap(b))
	}
	if err := errors.Join(s.close(), s.close()); err != nil {
		t.Error(err)
	}
	if _, err := newStaging(0); err == nil {
		t.Error("mapped nothing")
	}
}
