package rdma

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/test/realnode"
)

const bucket = "rdma"

// node is a node in a process of its own.
type node struct {
	*bench.Node
	t      *testing.T
	fabric string
	binary string
	dir    string
	flags  []string
	log    *journal
}

// startNode runs a node with a bucket, and skips when it does not offer the fabric.
func startNode(t *testing.T, fabric string, more ...string) *node {
	t.Helper()
	return startNodeLike(t, nil, fabric, more...)
}

// startNodeLike takes the addresses and credentials of a node that ended, if there is one.
func startNodeLike(t *testing.T, like *bench.Node, fabric string, more ...string) *node {
	t.Helper()
	n := &node{t: t, Node: like, fabric: fabric, binary: os.Getenv(binaryVariable), dir: t.TempDir(), log: &journal{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the node's log ends with\n%s", n.log.tail())
		}
	})
	if n.binary == "" {
		n.binary = realnode.Build(t)
	}
	n.flags = append([]string{
		"--storage-segment", "128MiB", "--storage-reserve", "16MiB", "--storage-grace", "1s",
		"--arena-fabric-buffers", "64", "--arena-http-buffers", "16", "--arena-small-buffers", "16",
		"--arena-wait", slow(5 * time.Second).String(), // a queue is no error here
		"--http-access-log", n.accessLog(), "--log-level", "debug",
	}, append(more, strings.Fields(os.Getenv(flagsVariable))...)...)
	n.start()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections() // of those who read the metrics
		if err := n.Stop(); err != nil && !t.Failed() {
			t.Errorf("end of the node: %v", err)
		}
	})
	c := n.connect("http")
	info, err := c.NodeInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(info.Fabrics, func(f frame.FabricInfo) bool { return f.Name == fabric })
	switch {
	case at < 0:
		unsupported(t, "the node knows no fabric %s", fabric)
	case !info.Fabrics[at].Up:
		unsupported(t, "the node's %s is off: %s", fabric, info.Fabrics[at].Reason)
	}
	if err := c.CreateBucket(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	return n
}

// journal keeps the end of a node's log.
type journal struct {
	mu  sync.Mutex
	buf []byte
}

const journalBytes = 16 << 10

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.buf = append(j.buf, p...)
	j.buf = j.buf[max(0, len(j.buf)-journalBytes):]
	return len(p), nil
}

func (j *journal) tail() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return string(j.buf)
}

// start runs the process; after an end, it does so at the same addresses.
func (n *node) start() {
	n.t.Helper()
	again, err := bench.StartNode(n.t.Context(), bench.NodeOptions{
		Binary: n.binary, Dir: filepath.Join(n.dir, "data"), Flags: n.flags, Again: n.Node, Log: n.log,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.Node = again
}

func (n *node) accessLog() string { return filepath.Join(n.dir, "access.log") }

// connect returns a client of one path that neither falls back nor repeats. It is closed with the test.
func (n *node) connect(fabric string) *client.Client {
	n.t.Helper()
	c, err := connect(n.Endpoint, n.AccessKey, n.SecretKey, fabric, slow(30*time.Second))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() }) // its node may be gone, so fences may fail
	return c
}

func connect(endpoint, accessKey, secretKey, fabric string, timeout time.Duration) (*client.Client, error) {
	const oneRequest = 512 << 20
	return client.New(client.Config{
		Endpoint: endpoint, Fabric: client.Fabric(fabric), MaxAttempts: 1, PartBytes: oneRequest, MultipartBytes: oneRequest,
		TransferTimeout: min(timeout, client.MaxTransferTimeout),
		Credentials:     client.Credentials{AccessKey: accessKey, SecretKey: secretKey},
	})
}

// alloc is memory that ends with the test.
func alloc(t *testing.T, c *client.Client, n int64) *client.Region {
	t.Helper()
	r, err := c.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() }) // its node may be gone
	return r
}

// put stores an object of the pattern by the fabric.
func (n *node) put(c *client.Client, r *client.Region, key string, seed uint64, size int64) {
	n.t.Helper()
	newPattern(seed).fill(r.Bytes()[:size], 0)
	res, err := c.PutFrom(n.t.Context(), r.Window(0, size), bucket, key, client.PutOptions{})
	if err != nil || res.Path != n.fabric {
		n.t.Fatalf("put %s: path %q, reason %q, error %v", key, res.Path, res.Reason, err)
	}
}

// gets reads an object back by the fabric and compares it.
func (n *node) gets(c *client.Client, r *client.Region, key string, seed uint64, size int64) error {
	clear(r.Bytes()[:size])
	res, err := c.GetInto(n.t.Context(), r.Window(0, size), bucket, key, client.GetOptions{})
	if err != nil {
		return err
	}
	if res.Path != n.fabric || res.Bytes != size || !newPattern(seed).is(r.Bytes()[:size], 0) {
		return fmt.Errorf("get %s: %d bytes by %s (%s), or other bytes", key, res.Bytes, res.Path, res.Reason)
	}
	return nil
}

// metric is the sum of a metric's samples whose labels have all of these texts in them.
func (n *node) metric(name string, labels ...string) float64 {
	n.t.Helper()
	all, err := bench.Counters(n.t.Context(), n.Metrics, name)
	if err != nil {
		n.t.Fatal(err)
	}
	sum := 0.0
	for text, v := range all {
		if !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(text, l) }) {
			sum += v
		}
	}
	return sum
}

// payload is the node's own count of payload bytes of an operation by a path.
func (n *node) payload(op, path string) int64 {
	n.t.Helper()
	return int64(n.metric("penstock_payload_bytes_total", `op="`+op+`"`, `path="`+path+`"`))
}

// levels are what must come back to where it was.
type levels map[string]float64

// gauges are of things that clients make the node hold.
var gauges = append([]string{
	"penstock_requests_in_flight", "penstock_arena_buffers_in_use", "penstock_fabric_sessions",
	"penstock_fabric_regions", "penstock_fabric_mapped_bytes", "penstock_fabric_windows", "penstock_chunk_stuck",
}, verbsGauges...)

// verbsGauges are there where a rail is.
var verbsGauges = []string{"penstock_rdma_paths", "penstock_rdma_work_requests"}

// levels reads all of them from one page.
func (n *node) levels() levels {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, n.Metrics, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	v := levels{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		at, end := strings.IndexAny(line, "{ "), strings.LastIndexByte(line, ' ')
		if at < 0 || !slices.Contains(gauges, line[:at]) {
			continue
		}
		value, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			n.t.Fatalf("metrics: %q: %v", line, err)
		}
		v[line[:at]+" "+strings.Trim(line[at:end], "{}")] = value
	}
	if resp.StatusCode != http.StatusOK || len(v) < len(gauges)-len(verbsGauges) {
		n.t.Fatalf("metrics: status %d, %d gauges", resp.StatusCode, len(v))
	}
	maps.Copy(v, kernelObjects(n.t))
	return v
}

// above lists what is higher than before.
func (v levels) above(before levels) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if v[name] > before[name] {
			lines = append(lines, fmt.Sprintf("%s: %v, was %v", name, v[name], before[name]))
		}
	}
	return lines
}

// baseline is the levels while nothing is under way.
func (n *node) baseline() levels {
	n.t.Helper()
	var v levels
	if !eventually(func() bool {
		v = n.levels()
		return v["penstock_requests_in_flight "] == 0
	}) {
		n.t.Fatalf("no baseline: %v", v)
	}
	return v
}

// settled waits until the node holds nothing more than before.
func (n *node) settled(before levels, what string) {
	n.t.Helper()
	var leaks []string
	if !eventually(func() bool {
		leaks = n.levels().above(before)
		return len(leaks) == 0
	}) {
		n.t.Errorf("%s: still held\n%s", what, strings.Join(leaks, "\n"))
	}
}

// logged is a line of the access log, as far as it is of interest.
type logged struct {
	Operation string `json:"operation"`
	Key       string `json:"key"`
	Status    int    `json:"status"`
	Path      string `json:"path"`
	BytesIn   int64  `json:"bytes_in"`
	BytesOut  int64  `json:"bytes_out"`
	Payload   int64  `json:"payload_bytes"`
}

// requests reads the access log, once it has n lines of transfers.
func (n *node) requests(want int) []logged {
	n.t.Helper()
	var all []logged
	if !eventually(func() bool {
		all = n.transfers()
		return len(all) >= want
	}) {
		n.t.Fatalf("access log: %d lines of transfers, want %d", len(all), want)
	}
	return all
}

func (n *node) transfers() []logged {
	n.t.Helper()
	text, err := os.ReadFile(n.accessLog())
	if err != nil {
		n.t.Fatal(err)
	}
	var all []logged
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var l logged
		if json.Unmarshal(s.Bytes(), &l) != nil {
			break // the last line is being written
		}
		switch l.Operation {
		case "GetObject", "PutObject", "UploadPart":
			all = append(all, l)
		}
	}
	return all
}

// absent checks that the key is neither readable nor listed.
func (n *node) absent(key string) {
	n.t.Helper()
	c := n.connect("http")
	if _, err := c.Head(n.t.Context(), bucket, key); err == nil {
		n.t.Errorf("%s is visible", key)
	}
	for e, err := range c.List(n.t.Context(), bucket, client.ListOptions{}) {
		if err != nil {
			n.t.Fatal(err)
		}
		if e.Key == key {
			n.t.Errorf("%s is listed", key)
		}
	}
}
