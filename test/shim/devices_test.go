package shim_test

import (
	"os/exec"
	"testing"
)

// TestOnDevices is what this package does on this machine's adapters. One library serves it all: an emulated guest
// compiles slowly.
func TestOnDevices(t *testing.T) {
	compiler(t)
	so := shared(t, files(t)...)
	binary := linked(t, so)
	t.Run("requests", func(t *testing.T) { // the oracle is as in TestRequests
		n := startNode(t)
		d := newDriver(t, binary, n.environment("rc")...)
		if got := d.ask("available"); got != "1 " {
			t.Fatalf("available: %s", got)
		}
		requests(t, n, d, "rc", false)
		manyTokens(t, n, d)
		d.want("0 ", "threads 4 5")
	})
	t.Run("killed", func(t *testing.T) { killed(t, binary, "rc", 32<<20) })
	t.Run("python", func(t *testing.T) { // memory of Python, threads, and children of a fork with sessions of their own
		python, err := exec.LookPath("python3")
		if err != nil {
			t.Skip("no python3")
		}
		ctypes(t, python, so, startNode(t).environment("rc"))
	})
	t.Run("multi-storage-client", func(t *testing.T) { // as TestMultiStorageClient
		python := installed(t)
		storageClient(t, startNode(t), python, so, "rc")
	})
}
