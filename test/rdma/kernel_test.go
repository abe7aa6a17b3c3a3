package rdma

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// kernelObjects counts the kernel's verbs objects of all devices, where the tool that shows them is. Those of all
// processes are among them: also the test's own.
func kernelObjects(t *testing.T) levels {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "rdma", "-j", "resource", "show").Output()
	if err != nil {
		return nil // no tool, no kernel support: the node's own gauges are all there is
	}
	var devices []map[string]any
	if err := json.Unmarshal(out, &devices); err != nil {
		t.Fatalf("rdma resource show: %v: %s", err, out)
	}
	v := levels{}
	for _, d := range devices {
		for _, kind := range []string{"pd", "cq", "qp", "mr", "ctx"} {
			if n, ok := d[kind].(float64); ok {
				v["kernel "+kind] += n
			}
		}
	}
	return v
}
