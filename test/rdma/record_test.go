package rdma

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/penstock-store/penstock/bench"
)

// figure is one measured figure.
type figure struct {
	What      string        `json:"what"`
	Fabric    string        `json:"fabric"`
	Bytes     int64         `json:"bytes"`  // of a transfer
	Flight    int           `json:"flight"` // transfers at once
	Rate      float64       `json:"mib_per_s"`
	Reference float64       `json:"reference_mib_per_s,omitempty"`
	Ratio     float64       `json:"ratio"`
	Machine   bench.Machine `json:"machine"`
}

// record appends the figure to the file that the environment names.
func record(t *testing.T, f figure) {
	t.Helper()
	name := os.Getenv(recordVariable)
	if name == "" {
		return
	}
	f.Machine = bench.DescribeMachine(t.TempDir())
	line, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(append(line, '\n')); err != nil {
		t.Error(err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}
