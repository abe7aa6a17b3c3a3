package hostile

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/server"
	"github.com/penstock-store/penstock/internal/vfs/errfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

const (
	// bucket is root's; alicesBucket is that of a principal without any right to it.
	bucket, alicesBucket = "hostile", "alice"
	// objectBytes is several chunks' pieces, and more than any socket buffer holds.
	objectBytes = 16<<20 + 4321
	// patience bounds every wait for something that must come.
	patience = 20 * time.Second
)

func TestMain(m *testing.M) {
	if text := os.Getenv(besiegeVariable); text != "" {
		os.Exit(besiege(text))
	}
	if job := os.Getenv(jobVariable); job != "" {
		os.Exit(attack(job))
	}
	goleak.VerifyTestMain(m)
}

// journal is the node's log, all of it.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// node is a node under attack.
type node struct {
	t      testing.TB
	config config.Config
	s      *server.Server
	fs     *errfs.FS
	host   string
	root   iam.Key
	alice  iam.Key
	object []byte // of bucket/object
	log    *journal
	signer *s3.Signer
	web    *http.Client // one connection per request

	mu      sync.Mutex
	secrets []string // that must not be in the log
	stop    func()
}

func startNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, log: &journal{}, signer: s3.NewSigner(), fs: errfs.New(osfs.FS{})}
	n.web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	dir := t.TempDir()
	c := config.Default()
	c.Data, c.Drives = dir, []string{filepath.Join(dir, "drive")}
	c.HTTP.Listen, c.HTTP.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	c.HTTP.Domains = []string{"s3.test"}
	c.Arena.FabricBuffers, c.Arena.HTTPBuffers, c.Arena.SmallBuffers = 24, 16, 16
	c.Storage.Segment, c.Storage.Reserve = 256*config.MiB, 16*config.MiB
	c.Limits.StallTimeout, c.Limits.ReadHeaderTimeout = 2*time.Second, 2*time.Second
	n.config = c
	n.open()
	t.Cleanup(func() {
		n.stop()
		n.checkLog()
	})
	n.root = n.s.Root()
	n.expectStatus(200, n.send(n.put("/"+bucket, nil)))
	n.alice = n.newKey("alice")
	n.expectStatus(200, n.send(n.as(n.alice, n.put("/"+alicesBucket, nil))))
	n.object = pattern(1, objectBytes)
	n.expectStatus(200, n.send(n.put("/"+bucket+"/object", n.object)))
	return n
}

// open starts the node on its directory.
func (n *node) open() {
	n.t.Helper()
	log := slog.New(slog.NewJSONHandler(n.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := server.NewOn(context.Background(), server.Ground{FS: n.fs}, n.config, log)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	n.s, n.host = s, s.Addr().String()
	n.secret(string(s.Root().Secret))
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Errorf("node ended: %v", err)
		}
	})
}

// secret notes what must not be in the log.
func (n *node) secret(texts ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.secrets = append(n.secrets, texts...)
}

func (n *node) checkLog() {
	n.mu.Lock()
	defer n.mu.Unlock()
	text := n.log.text()
	for _, s := range n.secrets {
		if i := strings.Index(text, s); i >= 0 {
			n.t.Errorf("the log has a secret: …%s…", text[max(0, i-200):min(len(text), i+200)])
		}
	}
	if strings.Contains(text, "request panicked") {
		n.t.Errorf("a request panicked:\n%s", text)
	}
}

func (n *node) newKey(principal string) iam.Key {
	n.t.Helper()
	a := n.send(request{method: "POST", path: "/.penstock/admin/v1/keys",
		body: fmt.Appendf(nil, `{"principal":%q}`, principal)})
	var got struct {
		ID     string `json:"access_key"`
		Secret string `json:"secret_key"`
	}
	if err := json.Unmarshal(a.body, &got); a.status != 201 || err != nil {
		n.t.Fatalf("new key: %d %v", a.status, err)
	}
	n.secret(got.Secret)
	return iam.Key{ID: got.ID, Secret: meta.Secret(got.Secret), Principal: principal}
}

func (n *node) client(f client.Fabric) *client.Client {
	n.t.Helper()
	c, err := client.New(client.Config{
		Endpoint: "http://" + n.host, Fabric: f, MaxAttempts: 1,
		Credentials: client.Credentials{AccessKey: n.root.ID, SecretKey: string(n.root.Secret)},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// offer asks the control plane for a session.
func (n *node) offer(k iam.Key, fabric string) frame.SessionReply {
	n.t.Helper()
	body := fmt.Appendf(nil, `{"fabric":%q}`, fabric)
	a := n.send(n.as(k, request{method: "POST", path: frame.SessionsPath, body: body}))
	n.expectStatus(200, a)
	reply, err := frame.DecodeSessionReply(bytes.NewReader(a.body))
	if err != nil {
		n.t.Fatal(err)
	}
	secret := reply.Secret.Reveal()
	n.secret(hex.EncodeToString(secret[:]))
	return reply
}

// levels are what must come back to where it was.
type levels map[string]float64

// levelMetrics are gauges of things that clients make the node hold.
var levelMetrics = []string{
	"penstock_connections", "penstock_requests_in_flight", "penstock_arena_buffers_in_use", "penstock_fabric_sessions",
	"penstock_fabric_regions", "penstock_fabric_mapped_bytes", "penstock_fabric_windows", "penstock_chunk_stuck",
	"penstock_drive_records",
}

// metrics reads the node's own page: name and labels → value.
func (n *node) metrics() levels {
	n.t.Helper()
	resp, err := n.web.Get("http://" + n.s.AdminAddr().String() + "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	all := levels{}
	for line := range strings.Lines(string(text)) {
		at := strings.LastIndexByte(line, ' ')
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); err == nil && line[0] != '#' {
			all[line[:at]] = v
		}
	}
	return all
}

// baseline is the levels once what was replaced is collected: later leaks must not hide behind garbage.
func (n *node) baseline(records float64) levels {
	n.t.Helper()
	var v levels
	if !eventually(func() bool {
		v = n.levels()
		for name, value := range v {
			if strings.HasPrefix(name, "penstock_drive_records") && value != records {
				return false
			}
		}
		return v["penstock_requests_in_flight"] == 0
	}) {
		n.t.Fatalf("no baseline of %v records: %v", records, v)
	}
	return v
}

func (n *node) levels() levels {
	n.t.Helper()
	v := levels{}
	for name, value := range n.metrics() {
		base, _, _ := strings.Cut(name, "{")
		if slices.Contains(levelMetrics, base) && !strings.Contains(name, `"pending"`) {
			v[name] = value
		}
	}
	v["sockets"], v["memfds"], v["mappings"] = inventory(n.t)
	v["goroutines"] = float64(runtime.NumGoroutine())
	return v
}

// inventory counts what of the process's descriptors and mappings comes from clients.
func inventory(t testing.TB) (sockets, memfds, mappings float64) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		kind, err := os.Readlink("/proc/self/fd/" + f.Name())
		switch {
		case err != nil: // the descriptor of the listing itself
		case strings.HasPrefix(kind, "socket:"):
			sockets++
		case strings.Contains(kind, "memfd:"):
			memfds++
		}
	}
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return sockets, memfds, float64(strings.Count(string(text), "/memfd:"))
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

// settled waits until the node holds nothing more than before.
func (n *node) settled(before levels, what string) {
	n.t.Helper()
	var leaks []string
	if eventually(func() bool {
		leaks = n.levels().above(before)
		return len(leaks) == 0
	}) {
		return
	}
	stacks := make([]byte, 1<<20)
	n.t.Logf("%s", stacks[:runtime.Stack(stacks, true)])
	n.t.Errorf("%s: the node still holds\n%s", what, strings.Join(leaks, "\n"))
}

// eventually polls.
func eventually(ok func() bool) bool {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-ticker.C {
		if ok() {
			return true
		}
	}
	return false
}

// during checks that something holds for a while: a late write needs time to come.
func during(d time.Duration, ok func() bool) bool {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-ticker.C {
		if !ok() {
			return false
		}
	}
	return ok()
}

// neighbour is an honest client beside the attacks, with sessions of its own.
type neighbour struct {
	n       *node
	clients map[client.Fabric]*client.Client
	regions map[client.Fabric]*client.Region
}

func (n *node) neighbour() *neighbour {
	n.t.Helper()
	h := &neighbour{n: n, clients: map[client.Fabric]*client.Client{}, regions: map[client.Fabric]*client.Region{}}
	for _, f := range []client.Fabric{client.SHM, client.TCP, client.HTTP} {
		h.clients[f] = n.client(f)
		r, err := h.clients[f].Alloc(objectBytes)
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() { _ = r.Close() })
		h.regions[f] = r
	}
	h.works("at the start")
	return h
}

// works moves bytes both ways over every path.
func (h *neighbour) works(when string) {
	h.n.t.Helper()
	for f, c := range h.clients {
		r := h.regions[f]
		clear(r.Bytes())
		got, err := c.GetInto(h.n.t.Context(), r.All(), bucket, "object", client.GetOptions{})
		if err != nil || got.Path != string(f) || !bytes.Equal(r.Bytes(), h.n.object) {
			h.n.t.Errorf("%s: the neighbour's GET over %s: path %q, %v", when, f, got.Path, err)
		}
		put, err := c.PutFrom(h.n.t.Context(), r.Window(0, 100_000), bucket, "neighbour", client.PutOptions{})
		if err != nil || put.Path != string(f) {
			h.n.t.Errorf("%s: the neighbour's PUT over %s: path %q, %v", when, f, put.Path, err)
		}
	}
}

// absent checks that a key does not exist and is not listed.
func (n *node) absent(key string) {
	n.t.Helper()
	if a := n.send(request{method: "HEAD", path: "/" + bucket + "/" + key}); a.status != 404 {
		n.t.Errorf("%s: status %d, want 404", key, a.status)
	}
	n.listed("neighbour", "object")
}

// listed checks that the bucket has at most these keys.
func (n *node) listed(keys ...string) {
	n.t.Helper()
	a := n.send(request{method: "GET", path: "/" + bucket + "?list-type=2"})
	n.expectStatus(200, a)
	for rest := string(a.body); ; {
		_, after, ok := strings.Cut(rest, "<Key>")
		if !ok {
			return
		}
		var key string
		key, rest, _ = strings.Cut(after, "</Key>")
		if !slices.Contains(keys, key) {
			n.t.Errorf("the bucket has %q", key)
		}
	}
}

// pattern is n bytes that depend on the seed and are like no shifted or other one.
func pattern(seed uint64, n int) []byte {
	p := make([]byte, n)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range p {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p[i] = byte(x >> 32)
	}
	return p
}
