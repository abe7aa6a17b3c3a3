package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/admin"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func configFor(t testing.TB, dir string) config.Config {
	t.Helper()
	c := config.Default()
	c.Data = dir
	c.Drives = []string{filepath.Join(dir, "drive")}
	c.HTTP.Listen, c.HTTP.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	c.Arena.FabricBuffers, c.Arena.HTTPBuffers, c.Arena.SmallBuffers = 16, 16, 16
	c.Storage.Segment, c.Storage.Reserve = 128*config.MiB, 16*config.MiB
	c.Limits.ShutdownTimeout = 5 * time.Second
	return c
}

// running is a node in this process.
type running struct {
	t      testing.TB
	s      *server.Server
	stop   func() error // ends the node, once
	signer *s3.Signer
	key    iam.Key
	web    *http.Client
}

func start(t testing.TB, c config.Config, log *slog.Logger) *running {
	t.Helper()
	s, err := server.New(context.Background(), c, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	r := &running{t: t, s: s, signer: s3.NewSigner(), key: s.Root(), web: &http.Client{Transport: &http.Transport{}}}
	done := false
	r.stop = func() error {
		if done {
			return nil
		}
		done = true
		r.web.CloseIdleConnections()
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return r
}

func (r *running) do(method, path string, body []byte) (int, []byte) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.s.Addr().String()+path, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	o := s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: r.key.ID, SecretKey: string(r.key.Secret)},
		Region:      "us-east-1", Time: time.Now(),
	}
	if err := r.signer.Sign(req, o); err != nil {
		r.t.Fatal(err)
	}
	return r.fetch(req)
}

func (r *running) fetch(req *http.Request) (int, []byte) {
	r.t.Helper()
	resp, err := r.web.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, text
}

func (r *running) admin(path string) (int, string) {
	req, err := http.NewRequest("GET", "http://"+r.s.AdminAddr().String()+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	status, text := r.fetch(req)
	return status, string(text)
}

// await polls the metrics until they have the line.
func (r *running) await(line string) string {
	r.t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(10 * time.Second); ; <-ticker.C {
		status, text := r.admin("/metrics")
		if status == 200 && strings.Contains(text, line+"\n") {
			return text
		}
		if time.Now().After(end) {
			r.t.Fatalf("no line %s", line)
		}
	}
}

func TestObjectsLiveAcrossRestarts(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	r := start(t, configFor(t, dir), slog.New(slog.NewTextHandler(&log, nil)))
	if status, body := r.do("PUT", "/bucket", nil); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	objects := map[string][]byte{"empty": {}, "inline": []byte("x")}
	objects["large"] = bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	for key, p := range objects {
		if status, body := r.do("PUT", "/bucket/"+key, p); status != 200 {
			t.Fatalf("%s: %d %s", key, status, body)
		}
	}
	secret, err := os.ReadFile(r.s.CredentialsFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), r.s.CredentialsFile()) || strings.Contains(log.String(), string(r.key.Secret)) ||
		!strings.Contains(string(secret), string(r.key.Secret)) {
		t.Error("the log must name the file of the credentials and must not have the secret")
	}
	again := start(t, configFor(t, dir), nil)
	if again.key.ID != r.key.ID || again.key.Secret != r.key.Secret {
		t.Error("root's key changed")
	}
	for key, p := range objects {
		if status, body := again.do("GET", "/bucket/"+key, nil); status != 200 || !bytes.Equal(body, p) {
			t.Errorf("%s: %d, %d bytes", key, status, len(body))
		}
	}
}

func TestSecondProcessIsLockedOut(t *testing.T) {
	dir := t.TempDir()
	start(t, configFor(t, dir), nil)
	if _, err := server.New(context.Background(), configFor(t, dir), nil); !errors.Is(err, server.ErrLocked) {
		t.Errorf("got %v, want ErrLocked", err)
	}
}

// TestMissingDriveIsAnError: an unmounted disk must not become an empty store.
func TestMissingDriveIsAnError(t *testing.T) {
	dir := t.TempDir()
	r := start(t, configFor(t, dir), nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	drive := filepath.Join(dir, "drive")
	if err := os.Rename(drive, drive+".away"); err != nil {
		t.Fatal(err)
	}
	if s, err := server.New(context.Background(), configFor(t, dir), nil); err == nil {
		t.Errorf("a node came up without its drive (close: %v)", s.Close())
	}
	if _, err := os.Stat(drive); !errors.Is(err, os.ErrNotExist) {
		if names, _ := os.ReadDir(drive); len(names) > 0 {
			t.Errorf("something was made in place of the drive: %v", names)
		}
	}
	_ = os.Remove(drive)
	if err := os.Rename(drive+".away", drive); err != nil {
		t.Fatal(err)
	}
	start(t, configFor(t, dir), nil)
}

// TestFormattedAndKilled: a first start that ended right after it formatted the drive is gone on with.
func TestFormattedAndKilled(t *testing.T) {
	dir := t.TempDir()
	r := start(t, configFor(t, dir), nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "node")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := bytes.Cut(text, []byte(`,"drive":`))
	if !found {
		t.Fatalf("%s", text)
	}
	if err := os.WriteFile(name, append(before, '}'), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, configFor(t, dir), nil)
}

func TestHealthAndMetrics(t *testing.T) {
	r := start(t, configFor(t, t.TempDir()), nil)
	r.do("PUT", "/bucket", nil)
	r.do("PUT", "/bucket/k", make([]byte, 100_000))
	r.do("GET", "/bucket/k", nil)
	for _, path := range []string{"/livez", "/readyz"} {
		if status, body := r.admin(path); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	// A request is counted after its answer went out.
	text := r.await(`penstock_requests_total{op="GetObject",status="2xx"} 1`)
	for _, want := range []string{
		`penstock_payload_bytes_total{op="PutObject",path="http"} 100000`,
		`penstock_payload_bytes_total{op="GetObject",path="http"} 100000`,
		`penstock_request_seconds_count{op="PutObject"} 1`,
		`penstock_arena_buffers{share="fabric"} 16`, `penstock_ready 1`, `penstock_kv_writable 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	// docs/operations.md is the oracle for the names, both ways.
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE penstock_"); ok {
			name, _, _ = strings.Cut(name, " ")
			if !strings.Contains(string(doc), "`penstock_"+name+"`") {
				t.Errorf("docs/operations.md lacks penstock_%s", name)
			}
		}
	}
}

func TestHealthOnTheS3Port(t *testing.T) {
	r := start(t, configFor(t, t.TempDir()), nil)
	for path, want := range map[string]int{"/.penstock/livez": 200, "/.penstock/readyz": 200, "/metrics": 403} {
		req, err := http.NewRequest("GET", "http://"+r.s.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if status, body := r.fetch(req); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, body, want)
		}
	}
}

func TestAdminKeys(t *testing.T) {
	r := start(t, configFor(t, t.TempDir()), nil)
	status, body := r.do("POST", admin.KeysPath, []byte(`{"principal":"alice"}`))
	var made admin.Key
	err := json.Unmarshal(body, &made)
	if status != 201 || err != nil || made.SecretKey == "" || made.Principal != "alice" {
		t.Fatalf("%d %s %v", status, body, err)
	}
	status, body = r.do("GET", admin.KeysPath, nil)
	if status != 200 || !bytes.Contains(body, []byte(made.AccessKey)) || bytes.Contains(body, []byte(made.SecretKey)) {
		t.Errorf("list: %d %s", status, body)
	}
	alice := *r
	alice.key = iam.Key{ID: made.AccessKey}
	alice.key.Secret = "wrong-secret-wrong-secret"
	if status, _ := alice.do("GET", "/", nil); status != 403 {
		t.Errorf("wrong secret: %d", status)
	}
	asAlice := func(method, path string) int {
		alice.key.Secret = meta.Secret(made.SecretKey)
		status, _ := alice.do(method, path, nil)
		return status
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"PUT", "/alices", 200}, {"GET", "/", 200}, {"GET", admin.KeysPath, 403}, {"POST", admin.KeysPath, 403},
		{"DELETE", admin.KeysPath + "/" + r.key.ID, 403},
	} {
		if got := asAlice(c.method, c.path); got != c.want {
			t.Errorf("alice %s %s: %d, want %d", c.method, c.path, got, c.want)
		}
	}
	for path, want := range map[string]int{
		admin.KeysPath + "/" + r.key.ID: 400, admin.KeysPath + "/NOTHING": 404, admin.KeysPath + "/" + made.AccessKey: 204,
	} {
		if status, body := r.do("DELETE", path, nil); status != want {
			t.Errorf("DELETE %s: %d %s, want %d", path, status, body, want)
		}
	}
	if got := asAlice("GET", "/"); got != 403 {
		t.Errorf("a deleted key: %d", got)
	}
	if status, _ := r.do("POST", admin.KeysPath, []byte(`{"principle":"x"}`)); status != 400 {
		t.Errorf("unknown field: %d", status)
	}
}

// TestDrainLetsRequestsFinish: a PUT whose body is still coming ends well; new connections do not.
func TestDrainLetsRequestsFinish(t *testing.T) {
	r := start(t, configFor(t, t.TempDir()), nil)
	r.do("PUT", "/bucket", nil)
	body, feed := io.Pipe()
	req, err := http.NewRequest("PUT", "http://"+r.s.Addr().String()+"/bucket/slow", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = 100_000
	o := s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: r.key.ID, SecretKey: string(r.key.Secret)},
		Region:      "us-east-1", Time: time.Now(),
	}
	if err := r.signer.Sign(req, o); err != nil {
		t.Fatal(err)
	}
	answered := make(chan string, 1)
	go func() {
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		answered <- fmt.Sprint(resp.StatusCode)
	}()
	if _, err := feed.Write(make([]byte, 50_000)); err != nil {
		t.Fatal(err)
	}
	r.await("penstock_requests_in_flight 1")
	r.awaitMetric("penstock_requests_in_flight 1\n") // in the accept queue, it would be reset
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	awaitRefusal(t, r.s.Addr().String())
	if _, err := feed.Write(make([]byte, 50_000)); err != nil {
		t.Fatal(err)
	}
	_ = feed.Close()
	if got := <-answered; got != "200" {
		t.Errorf("the request in flight got %s", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// awaitMetric waits until the metrics have a line.
func (r *running) awaitMetric(line string) {
	r.t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(5 * time.Second); ; <-ticker.C {
		if _, text := r.admin("/metrics"); strings.Contains(text, line) {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("metrics never have %q", line)
		}
	}
}

// awaitRefusal waits until nobody listens any more.
func awaitRefusal(t *testing.T, address string) {
	t.Helper()
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(5 * time.Second); ; <-ticker.C {
		resp, err := web.Get("http://" + address + "/.penstock/livez")
		if err != nil {
			return
		}
		_ = resp.Body.Close()
		if time.Now().After(end) {
			t.Fatal("the node still listens")
		}
	}
}

// TestFabricsForThisHostOnlyAreNamed: a node whose S3 endpoint others reach says which fabrics they do not. The oracle
// are the addresses.
func TestFabricsForThisHostOnlyAreNamed(t *testing.T) {
	for _, c := range []struct {
		http, tcp, advertise string
		want                 bool
	}{
		{"127.0.0.1:0", "127.0.0.1:0", "", false},
		{"localhost:0", "127.0.0.1:0", "", false},
		{":0", "127.0.0.1:0", "", true},
		{":0", "127.0.0.1:0", "[::1]:9100", true},
		{":0", "127.0.0.1:0", "storage.example.com:9100", false},
	} {
		cfg := configFor(t, t.TempDir())
		cfg.HTTP.Listen, cfg.RDMA.TCPListen, cfg.RDMA.TCPAdvertise = c.http, c.tcp, c.advertise
		cfg.RDMA.RC = false
		var log bytes.Buffer
		if err := start(t, cfg, slog.New(slog.NewTextHandler(&log, nil))).stop(); err != nil {
			t.Error(err)
		}
		said := strings.Contains(log.String(), "fabric is reached from this host only") &&
			strings.Contains(log.String(), "remedy=rdma.tcp_listen")
		if said != c.want {
			t.Errorf("%+v: the log is %s", c, log.String())
		}
	}
}
