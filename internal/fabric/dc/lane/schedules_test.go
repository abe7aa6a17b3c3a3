package lane

import (
	"os"
	"testing"
)

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

func play(t *testing.T, n uint64) {
	var ends [Invalid + 1]int
	for seed := range n {
		m := newModel(seed)
		if wrong := m.run(); len(wrong) > 0 {
			t.Fatalf("seed %d: %q", seed, wrong)
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
