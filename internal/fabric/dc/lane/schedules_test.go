package lane

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var numbers = regexp.MustCompile(`[0-9]+`)

// TestSchedules plays random schedules of transfers, faults and times, each by its seed. Oracle: the model's memory and
// books; see model_test.go. TestMillionSchedules is its long form.
func TestSchedules(t *testing.T) {
	n := uint64(50_000)
	if testing.Short() {
		n = 10_000
	}
	play(t, n)
}

// TestMillionSchedules needs PENSTOCK_TEST_LONG=1.
func TestMillionSchedules(t *testing.T) {
	if os.Getenv("PENSTOCK_TEST_LONG") == "" {
		t.Skip("PENSTOCK_TEST_LONG is not set")
	}
	play(t, 1_000_000)
}

// TestInvalid: a transfer that leaves its window, or moves nothing, ends at once and is nowhere posted.
func TestInvalid(t *testing.T) {
	const top = ^uint64(0)
	for i, v := range []struct {
		window   Window
		remote   uint64
		segments []int
		result   Result
	}{
		{Window{100, 10}, 100, []int{10}, OK},
		{Window{100, 10}, 105, []int{2, 0, 3}, OK},
		{Window{top - 9, 9}, top - 9, []int{9}, OK},
		{Window{100, 10}, 99, []int{1}, Invalid},
		{Window{100, 10}, 105, []int{3, 3}, Invalid},
		{Window{100, 10}, 110, []int{1}, Invalid},
		{Window{100, 10}, 111, []int{1}, Invalid},
		{Window{100, 10}, 100, nil, Invalid},
		{Window{100, 10}, 100, []int{0, 0}, Invalid},
		{Window{100, 10}, 100, []int{4, -1}, Invalid},
		{Window{top - 5, 10}, top - 5, []int{8}, Invalid},
	} {
		c := New(Config{Lanes: 1, PerPeer: 1, PerOwner: 1, Depth: 64, Batch: 64, Piece: 4, Credits: 64})
		got := c.Submit(Transfer{ID: 7, Window: v.window, Remote: v.remote, Segments: v.segments})
		if v.result == OK {
			if len(got) != 1 || got[0].Kind != Post {
				t.Errorf("case %d: %+v", i, got)
			}
			continue
		}
		if len(got) != 2 || got[0].Kind != Release || got[1].Kind != Finish || got[1].Result != Invalid {
			t.Errorf("case %d: %+v", i, got)
		}
	}
}

func play(t *testing.T, n uint64) {
	var ends [Invalid + 1]int
	found := map[string]bool{} // what is wrong, without its numbers
	for seed := range n {
		m := newModel(seed)
		for _, wrong := range m.run() {
			if kind := strings.Trim(numbers.ReplaceAllString(wrong, "#"), "#"); !found[kind] && len(found) < 40 {
				found[kind] = true
				t.Errorf("seed %d: %s", seed, wrong)
			}
		}
		if len(found) > 0 && seed > 10_000 {
			return
		}
		for i := range m.moves {
			if m.moves[i].finished {
				ends[m.moves[i].result]++
			}
		}
	}
	t.Logf("%d schedules, transfers by result: %v", n, ends)
	for r := range Invalid {
		if ends[r] == 0 {
			t.Errorf("no transfer ended with result %d", r)
		}
	}
}
