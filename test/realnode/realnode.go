// Package realnode builds the penstock binary and runs it as a node that tests can kill.
//
// Called by: test/kill, test/e2e, test/hostile, the tests of awsrdma.
//
// What it does not do: load and checks; nodes inside the test's own process.
package realnode

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
)

// Build makes the binary under test, unless PENSTOCK_TEST_BINARY names one that is ready. It must be called from a
// package two levels below the root.
func Build(t *testing.T) string {
	t.Helper()
	if ready := os.Getenv("PENSTOCK_TEST_BINARY"); ready != "" {
		return ready
	}
	binary := filepath.Join(t.TempDir(), "penstock")
	out, err := exec.Command("go", "build", "-o", binary, "../../cmd/penstock").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// Start runs a node on the data directory, with small segments and a short grace.
func Start(t *testing.T, binary, dir string) *bench.Node {
	t.Helper()
	n, err := bench.StartNode(t.Context(), bench.NodeOptions{
		Binary: binary, Dir: dir,
		Flags: []string{"--storage-segment", "128MiB", "--storage-reserve", "64MiB", "--storage-grace", "1s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Kill ends the node as a crash would. When it returns, the process is gone.
func Kill(t *testing.T, n *bench.Node) {
	t.Helper()
	if err := syscall.Kill(n.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = n.Stop() // says that it was killed
}

// Connect returns a client that never repeats a request by itself. The caller closes it.
func Connect(t *testing.T, n *bench.Node, f client.Fabric, partBytes int64) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{
		Endpoint: n.Endpoint, Fabric: f, PartBytes: partBytes, MultipartBytes: partBytes, MaxAttempts: 1,
		Credentials: client.Credentials{AccessKey: n.AccessKey, SecretKey: n.SecretKey},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
