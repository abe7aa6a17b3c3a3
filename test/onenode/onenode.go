// Package onenode runs a node inside the test's own process, so that the race detector and the leak check see both
// ends.
//
// Called by: the tests of client, client/awsrdma, internal/cli.
//
// What it does not do: nodes that can be killed (realnode), checks.
package onenode

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/server"
)

// Node is a node that listens on ports of its own.
type Node struct {
	Endpoint    string
	Metrics     string // URL; the node's own, not of the process
	Credentials client.Credentials
	Stop        func() // at the latest at the end of the test
}

// Start runs a node with few buffers and short segments, on a directory that goes with the test.
func Start(t testing.TB, change ...func(*config.Config)) *Node {
	t.Helper()
	dir, err := os.MkdirTemp("", "pn") // t.TempDir is too long a path for a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	set := flag.NewFlagSet("node", flag.ContinueOnError)
	flags := config.RegisterFlags(set)
	if err := set.Parse([]string{
		"--data", dir, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--storage-segment", config.Bytes(config.MinSegment).String(),
		"--arena-fabric-buffers", "16", "--arena-http-buffers", "16", "--arena-small-buffers", "32",
	}); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load("", flags, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Root = config.Credentials{AccessKey: "ONENODETESTACCESS", SecretKey: "onenodetestsecretonenodetestsecret"}
	for _, f := range change {
		f(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := server.New(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	scheme := "http"
	if cfg.HTTP.TLSCert != "" {
		scheme = "https"
	}
	n := &Node{
		Endpoint: scheme + "://" + s.Addr().String(), Metrics: "http://" + s.AdminAddr().String() + "/metrics",
		Credentials: client.Credentials{AccessKey: cfg.Root.AccessKey, SecretKey: cfg.Root.SecretKey},
		Stop: sync.OnceFunc(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("node: %v", err)
			}
		}),
	}
	t.Cleanup(n.Stop)
	return n
}
