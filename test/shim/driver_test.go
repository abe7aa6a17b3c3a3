package shim_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/test/realnode"
)

// patience bounds every wait of a test; it only matters when something hangs.
const patience = 60 * time.Second

// unprivileged is what a program runs under so that it has no CAP_SYS_PTRACE: with it the node takes no foreign memory.
func unprivileged(t testing.TB) []string {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	name, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("root needs setpriv to be without CAP_SYS_PTRACE")
	}
	return []string{name, "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"}
}

// driver is a running testdata/driver.c.
type driver struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	text  *lockedText
}

type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newDriver starts one under the sanitizers with the environment.
func newDriver(t testing.TB, binary string, env ...string) *driver {
	t.Helper()
	args := append(unprivileged(t), binary)
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	d := &driver{t: t, cmd: cmd, lines: make(chan string, 16), text: &lockedText{}}
	d.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "PENSTOCK_CUOBJ_LOG=1"}, env...)
	d.cmd.Stderr = d.text
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(d.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			d.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		defer cancel()
		_ = d.in.Close()
		for range d.lines { // until its end
		}
		if err := d.cmd.Wait(); err != nil {
			t.Errorf("driver: %v", err)
		}
		if t.Failed() {
			t.Logf("driver: %s", d.text)
		}
		if strings.Contains(d.text.String(), "ps1:") {
			t.Error("a token was printed")
		}
	})
	return d
}

// ask sends a line and returns the answer.
func (d *driver) ask(format string, args ...any) string {
	d.t.Helper()
	d.tell(format, args...)
	return d.hear()
}

func (d *driver) tell(format string, args ...any) {
	d.t.Helper()
	if _, err := fmt.Fprintf(d.in, format+"\n", args...); err != nil {
		d.t.Fatalf("driver: %v\n%s", err, d.text)
	}
}

func (d *driver) hear() string {
	d.t.Helper()
	select {
	case line, ok := <-d.lines:
		if !ok {
			d.t.Fatalf("driver ended\n%s", d.text)
		}
		return line
	case <-time.After(patience):
		d.t.Fatalf("driver does not answer\n%s", d.text)
	}
	return ""
}

func (d *driver) want(answer, format string, args ...any) {
	d.t.Helper()
	if got := d.ask(format, args...); got != answer {
		d.t.Errorf(format+": %s, want %s", append(args, got, answer)...)
	}
}

// token returns a token over part of a memory.
func (d *driver) token(memory int, size, offset int64, put bool) string {
	d.t.Helper()
	direction := 0
	if put {
		direction = 1
	}
	text := d.ask("token %d %d %d %d", memory, size, offset, direction)
	if !strings.HasPrefix(text, "ps1:") {
		d.t.Fatalf("token: %s", text)
	}
	return text
}

// memory allocates and registers one.
func (d *driver) memory(number int, size int64, seed uint64) {
	d.t.Helper()
	d.want("0", "alloc %d %d", number, size)
	d.want("0", "fill %d %d", number, seed)
	d.want("0", "register %d", number)
}

// pattern is what driver.c fills memory with.
func pattern(seed uint64, n int64) []byte {
	b := make([]byte, 0, n+8)
	for at := uint64(0); int64(len(b)) < n; at++ {
		x := seed*0x9e3779b97f4a7c15 + at
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		b = binary.LittleEndian.AppendUint64(b, x^x>>31)
	}
	return b[:n]
}

// node is a node in a process of its own without CAP_SYS_PTRACE.
type node struct {
	*bench.Node
	t      testing.TB
	signer *s3.Signer
}

func startNode(t *testing.T) *node {
	t.Helper()
	binary := realnode.Build(t)
	if before := unprivileged(t); before != nil {
		script := filepath.Join(t.TempDir(), "node")
		text := "#!/bin/sh\nexec " + strings.Join(before, " ") + " " + binary + " \"$@\"\n"
		if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		binary = script
	}
	dir, err := os.MkdirTemp("", "pn") // t.TempDir is too long a path for a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{Node: realnode.Start(t, binary, dir), t: t, signer: s3.NewSigner()}
	t.Cleanup(func() { _ = n.Stop() }) // it may have been killed
	if a := n.send(http.MethodPut, "/buck", nil, nil); a.status != http.StatusOK {
		t.Fatalf("make bucket: %d %s", a.status, a.body)
	}
	return n
}

// environment is what the driver needs to reach the node.
func (n *node) environment(fabric string) []string {
	return []string{
		"AWS_ENDPOINT_URL=" + n.Endpoint, "AWS_ACCESS_KEY_ID=" + n.AccessKey, "AWS_SECRET_ACCESS_KEY=" + n.SecretKey,
		"PENSTOCK_CUOBJ_FABRIC=" + fabric,
	}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) rdma() string {
	return fmt.Sprintf("%d %s %s %d", a.status, a.header.Get("X-Amz-Rdma-Reply"),
		a.header.Get("X-Amz-Rdma-Bytes-Transferred"), len(a.body))
}

func (n *node) send(method, path string, header map[string]string, body []byte) answer {
	n.t.Helper()
	a, err := n.try(context.Background(), method, path, header, body)
	if err != nil {
		n.t.Fatal(err)
	}
	return a
}

func (n *node) try(ctx context.Context, method, path string, header map[string]string, body []byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, n.Endpoint+path, strings.NewReader(string(body)))
	if err != nil {
		return answer{}, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	o := s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: n.AccessKey, SecretKey: n.SecretKey}, Region: "us-east-1", Time: time.Now(),
	}
	if err := n.signer.Sign(req, o); err != nil {
		return answer{}, err
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, text}, err
}

// move sends a request with a token.
func (n *node) move(method, path, token string, header ...string) answer {
	n.t.Helper()
	h := map[string]string{"x-amz-rdma-token": token}
	for i := 0; i+1 < len(header); i += 2 {
		h[header[i]] = header[i+1]
	}
	return n.send(method, path, h, nil)
}
