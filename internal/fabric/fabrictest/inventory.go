package fabrictest

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// inventory counts what a leak would show: descriptors of connections and of client memory, and mappings
// of region memory of this process. Goroutines are checked by goleak in Main.
type inventory struct{ files, mappings int }

func takeInventory(t *testing.T) inventory {
	t.Helper()
	v, err := countInventory()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func countInventory() (inventory, error) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return inventory{}, fmt.Errorf("fabrictest: list descriptors: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return inventory{}, fmt.Errorf("fabrictest: read maps: %w", err)
	}
	v := inventory{mappings: strings.Count(string(maps), "/memfd:")}
	for _, f := range files {
		kind, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err != nil {
			continue // the descriptor of the listing itself
		}
		// The runtime keeps its poller, and os/exec may open pidfds while other tests run.
		memory := strings.HasPrefix(kind, "/proc/") && (strings.HasSuffix(kind, "/mem") || strings.HasSuffix(kind, "/maps"))
		if strings.HasPrefix(kind, "socket:") || strings.Contains(kind, "memfd:") || memory {
			v.files++
		}
	}
	return v, nil
}

func (v inventory) compare(t *testing.T) {
	t.Helper()
	var now inventory
	if !eventually(func() bool {
		n, err := countInventory()
		now = n
		return err == nil && now.files <= v.files && now.mappings <= v.mappings
	}) {
		t.Errorf("leak: %d descriptors (before: %d), %d mappings (before: %d)",
			now.files, v.files, now.mappings, v.mappings)
	}
}
