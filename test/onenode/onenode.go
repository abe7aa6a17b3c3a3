// Package onenode runs a node inside the test's own process, so that the race detector and the leak check see both
// ends.
//
// Called by: the tests of client, client/awsrdma, internal/cli, test/wire.
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
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// Node is a node that listens on ports of its own.
type Node struct {
	Endpoint    string
	Adapters    *fakeverbs.NIC // of StartRC
	Metrics     string         // URL; the node's own, not of the process
	Credentials client.Credentials
	Stop        func() // at the latest at the end of the test
}

// StartRC is Start with faked RDMA adapters, which the node and its clients share (client.Config.Verbs): fake0 and
// fake1. Where they cannot be, the test is skipped.
func StartRC(t testing.TB, o fakeverbs.Options, change ...func(*config.Config)) *Node {
	t.Helper()
	return StartRCLogged(t, slog.DiscardHandler, o, change...)
}

// StartRCLogged is StartRC with a log.
func StartRCLogged(t testing.TB, log slog.Handler, o fakeverbs.Options, change ...func(*config.Config)) *Node {
	t.Helper()
	if len(o.Devices) == 0 {
		o.Devices = []fakeverbs.Device{{}, {}}
	}
	nic := fakeverbs.New(t, o)
	here := func(c *config.Config) { c.RDMA.ClientNetworks = []string{fakeNetwork} }
	n := start(t, server.Ground{Verbs: nic.Library()}, log, append([]func(*config.Config){here}, change...))
	n.Adapters = nic
	return n
}

// fakeNetwork is where faked adapters have their addresses.
const fakeNetwork = "10.99.0.0/16"

// Start runs a node with few buffers and short segments, on a directory that goes with the test.
func Start(t testing.TB, change ...func(*config.Config)) *Node {
	t.Helper()
	return start(t, server.Ground{}, slog.DiscardHandler, change)
}

// StartOn is Start on other ground.
func StartOn(t testing.TB, g server.Ground, change ...func(*config.Config)) *Node {
	t.Helper()
	return start(t, g, slog.DiscardHandler, change)
}

func start(t testing.TB, g server.Ground, log slog.Handler, change []func(*config.Config)) *Node {
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
	s, err := server.NewOn(ctx, g, cfg, slog.New(log))
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
