package e2e

import (
	"context"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/server"
)

// paths are the ways of a payload. The order is fixed: the first is the one with MD5 ETags.
var paths = [...]client.Fabric{client.HTTP, client.TCP, client.SHM}

const (
	accessKey = "PSENDTOENDENDTOENDEN"
	secretKey = "end-to-end-secret-of-tests-0123456789"
	partBytes = client.MinPartBytes
)

func TestMain(m *testing.M) {
	flag.Parse()
	checks := "12"
	switch {
	case long():
		checks = "400"
	case testing.Short():
		checks = "20" // rapid divides it by 5
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", checks); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

func long() bool { return os.Getenv("PENSTOCK_TEST_LONG") != "" }

// endpoint is where clients of one node go.
type endpoint struct {
	url, accessKey, secretKey string
}

// connect returns a client of one path that may not fall back. It is closed at the end of the test.
func (e endpoint) connect(t *testing.T, f client.Fabric) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{
		Endpoint: e.url, Fabric: f, PartBytes: 64 << 20, MaxAttempts: 1,
		Credentials: client.Credentials{AccessKey: e.accessKey, SecretKey: e.secretKey},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close %s client: %v", f, err)
		}
	})
	return c
}

// sdk is an independent client, for what package client leaves to other tools.
func (e endpoint) sdk(t *testing.T) *awss3.Client {
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(e.url), UsePathStyle: true, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(e.accessKey, e.secretKey, ""),
		HTTPClient:  &http.Client{Transport: transport},
	})
}

// node is a node in this process.
type node struct {
	endpoint
	metrics string
	relay   *relay // in front of the same node: clients of fabrics go through it
}

func startNode(t *testing.T, change ...func(*config.Config)) *node {
	t.Helper()
	dir := t.TempDir()
	c := config.Default()
	c.Data, c.Drives = dir, []string{filepath.Join(dir, "drive")}
	c.HTTP.Listen, c.HTTP.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	c.Arena.FabricBuffers, c.Arena.HTTPBuffers, c.Arena.SmallBuffers = 32, 32, 64
	c.Arena.Wait = 20 * time.Second // a queue is no error here
	c.Storage.Segment, c.Storage.Reserve, c.Storage.Grace = 128*config.MiB, 16*config.MiB, time.Second
	c.Root = config.Credentials{AccessKey: accessKey, SecretKey: secretKey}
	for _, f := range change {
		f(&c)
	}
	s, err := server.New(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections() // of those who read the metrics
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("stop node: %v", err)
		}
	})
	return &node{
		endpoint: endpoint{"http://" + s.Addr().String(), accessKey, secretKey},
		metrics:  "http://" + s.AdminAddr().String() + "/metrics",
		relay:    startRelay(t, s.Addr().String()),
	}
}

// front is where a client of the path goes: fabrics through the relay that counts.
func (n *node) front(f client.Fabric) endpoint {
	if f == client.HTTP {
		return n.endpoint
	}
	return endpoint{"http://" + n.relay.listener.Addr().String(), n.accessKey, n.secretKey}
}

// payload reads the node's own count of payload bytes of an operation by a path.
func (n *node) payload(t *testing.T, op string, path client.Fabric) int64 {
	t.Helper()
	all, err := bench.Counters(t.Context(), n.metrics, "penstock_payload_bytes_total")
	if err != nil {
		t.Fatal(err)
	}
	for labels, v := range all {
		if strings.Contains(labels, `op="`+op+`"`) && strings.Contains(labels, `path="`+string(path)+`"`) {
			return int64(v)
		}
	}
	t.Fatalf("no counter of %s by %s in %v", op, path, all)
	return 0
}

// relay passes connections on and counts their bytes, both ways together.
type relay struct {
	listener net.Listener
	to       string
	bytes    atomic.Int64
	tasks    sync.WaitGroup
}

func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, to: to}
	r.tasks.Go(r.accept)
	t.Cleanup(func() {
		_ = l.Close()
		r.tasks.Wait() // clients have closed their connections
	})
	return r
}

func (r *relay) accept() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			r.tasks.Go(func() {
				_, _ = io.Copy(counted{pair[0], &r.bytes}, pair[1]) // either end closes both
				_ = in.Close()
				_ = out.Close()
			})
		}
	}
}

type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// patternOf is what client memory holds where no transfer may touch it.
func patternOf(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{'p'}).Read(p) // never returns an error
	return p
}
