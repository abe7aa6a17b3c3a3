package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/test/realnode"
)

// accessLine is what is looked at of a line; encoding/json is the oracle of its form.
type accessLine struct {
	ID        string `json:"request_id"`
	Operation string `json:"operation"`
	Key       string `json:"key"`
	Path      string `json:"path"`
	Session   string `json:"session"`
	Status    int    `json:"status"`
	In        int64  `json:"bytes_in"`
	Out       int64  `json:"bytes_out"`
	Payload   int64  `json:"payload_bytes"`
}

// TestHangupRotatesTheAccessLog: a real process; clients of every path work while the file is renamed and
// the process is told, again and again. Every request has one line, in one of the files, with the path
// that carried its bytes.
func TestHangupRotatesTheAccessLog(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binary")
	}
	const rounds, size, rotations = 40, 100_000, 10
	binary, path := realnode.Build(t), filepath.Join(t.TempDir(), "access.log")
	n, err := bench.StartNode(t.Context(), bench.NodeOptions{
		Binary: binary, Dir: t.TempDir(),
		Flags: []string{"--storage-segment", "128MiB", "--storage-reserve", "64MiB", "--http-access-log", path},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := endpoint{n.Endpoint, n.AccessKey, n.SecretKey}
	if err := e.connect(t, client.HTTP).CreateBucket(t.Context(), "access"); err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	failed := make(chan error, len(paths))
	for _, p := range paths {
		c := e.connect(t, p)
		region, err := c.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = region.Close() }) // before its client, which says what went wrong
		clients.Go(func() { failed <- roundTrips(t.Context(), c, region, p, rounds) })
	}
	for i := range rotations {
		awaitFile(t, path)
		if err := os.Rename(path, fmt.Sprintf("%s.%d", path, i)); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	awaitFile(t, path)
	clients.Wait()
	for range paths {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	var log bytes.Buffer
	asking, err := client.New(client.Config{
		Endpoint: e.url, Fabric: client.HTTP, Credentials: client.Credentials{AccessKey: e.accessKey, SecretKey: e.secretKey},
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = asking.Head(t.Context(), "access", "none")
	var missing *client.Error
	if !errors.As(err, &missing) || !strings.Contains(log.String(), "request_id="+missing.RequestID) {
		t.Errorf("%v; the client's log has %s", err, log.String())
	}
	if err := asking.Close(); err != nil {
		t.Error(err)
	}
	if err := n.Stop(); err != nil {
		t.Errorf("the node did not end well: %v", err)
	}
	if ids := checkAccess(t, path, rounds, size); missing != nil && !ids[missing.RequestID] {
		t.Errorf("no line of request %s, which the client's error names", missing.RequestID)
	}
}

// roundTrips puts and gets objects by one path.
func roundTrips(ctx context.Context, c *client.Client, r *client.Region, path client.Fabric, rounds int) error {
	for i := range rounds {
		key := fmt.Sprintf("%s-%d", path, i)
		if _, err := c.PutFrom(ctx, r.All(), "access", key, client.PutOptions{}); err != nil {
			return err
		}
		if _, err := c.GetInto(ctx, r.All(), "access", key, client.GetOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// awaitFile waits until the process has made its file.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	poll(t, func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

func poll(t *testing.T, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(30 * time.Second); !ok(); <-ticker.C {
		if time.Now().After(end) {
			t.Fatal("it did not happen in 30 s")
		}
	}
}

// checkAccess looks at all lines and returns the ids of their requests.
func checkAccess(t *testing.T, path string, rounds int, size int64) map[string]bool {
	t.Helper()
	names, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	ids, seen := map[string]bool{}, map[string]int{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for l := range bytes.Lines(text) {
			var line accessLine
			if err := json.Unmarshal(l, &line); err != nil {
				t.Fatalf("%s: %v: %s", name, err, l)
			}
			if ids[line.ID] {
				t.Errorf("two lines of request %s", line.ID)
			}
			ids[line.ID] = true
			if line.Operation != "PutObject" && line.Operation != "GetObject" {
				continue
			}
			fabric := line.Path != "http"
			ok := line.Status == 200 || line.Operation == "GetObject" && line.Status == 206 // a window asks for a range
			if !ok || line.Payload != size || fabric == (line.Session == "") ||
				fabric && line.In+line.Out != 0 || !fabric && line.In+line.Out < size {
				t.Errorf("%s", l)
			}
			seen[line.Operation+" "+line.Path+" "+line.Key]++
		}
	}
	for _, p := range paths {
		for i := range rounds {
			for _, op := range []string{"PutObject", "GetObject"} {
				if what := fmt.Sprintf("%s %s %s-%d", op, p, p, i); seen[what] != 1 {
					t.Errorf("%d lines of %s", seen[what], what)
				}
			}
		}
	}
	return ids
}

// TestHangupReloadsCertificates: a real process is given a new certificate while it runs, and then half of
// one. Nobody reads its access log, which goes to a pipe that is closed: that does not end it.
func TestHangupReloadsCertificates(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binary")
	}
	binary, dir := realnode.Build(t), t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	first := selfSigned(t, cert, key)
	cmd := exec.Command(binary, "serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0",
		"--admin-listen", "", "--http-tls-cert", cert, "--http-tls-key", key,
		"--storage-segment", "128MiB", "--storage-reserve", "64MiB", "--log-format", "json", "--http-access-log", "-")
	nobody, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := json.NewDecoder(log)
	next := func(message string) (line struct{ Msg, S3 string }) {
		t.Helper()
		for line.Msg != message {
			if err := lines.Decode(&line); err != nil {
				t.Fatalf("no line %q: %v", message, err)
			}
		}
		return line
	}
	_ = out.Close() // the process has its own
	address := next("node is up").S3
	web := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, // a line for the log
	}}
	if resp, err := web.Get("https://" + address + "/.penstock/livez"); err != nil {
		t.Error(err)
	} else {
		_ = resp.Body.Close()
	}
	next("access log is not complete")
	shown := func() *x509.Certificate {
		t.Helper()
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) // compared below
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0]
	}
	if !shown().Equal(first) {
		t.Error("not the certificate of the start")
	}
	hangup := func() {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	second := selfSigned(t, cert, key)
	hangup()
	next("certificates are in force")
	if !shown().Equal(second) {
		t.Error("not the new certificate")
	}
	if err := os.Truncate(key, 10); err != nil {
		t.Fatal(err)
	}
	hangup()
	next("certificates stay as they were")
	if !shown().Equal(second) {
		t.Error("not the certificate that was good")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	next("node is down")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// selfSigned writes a fresh certificate and its key.
func selfSigned(t *testing.T, cert, key string) *x509.Certificate {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &secret.PublicKey, secret)
	if err != nil {
		t.Fatal(err)
	}
	secretDER, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secretDER},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}
