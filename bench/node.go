package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// NodeOptions start a node.
type NodeOptions struct {
	Binary string   // path of penstock; empty: this executable
	Dir    string   // data directory, made when missing
	Flags  []string // further flags of `penstock serve`
	TLS    bool     // Flags switch it on, with a certificate that this process trusts
	Log    io.Writer
	Again  *Node // one that has ended: its addresses and credentials are taken again
}

// Node is a server in a process of its own, with credentials of its own.
type Node struct {
	Endpoint  string
	Metrics   string // URL of /metrics
	AccessKey string
	SecretKey string

	cmd    *exec.Cmd
	log    *bytes.Buffer
	exited chan struct{}
	err    error // of the process, once exited is closed
}

// Limits of starting and stopping.
const (
	startTimeout = 60 * time.Second // preallocation on a slow disk
	stopTimeout  = 40 * time.Second // the server's own limit of draining, and some
)

// StartNode runs `penstock serve` on free loopback ports and waits until it is ready.
func StartNode(ctx context.Context, o NodeOptions) (*Node, error) {
	binary := o.Binary
	if binary == "" {
		var err error
		if binary, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("bench: start node: %w", err)
		}
	}
	listen, err := freeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	scheme := "http://"
	if o.TLS {
		scheme = "https://"
	}
	n := &Node{
		Endpoint: scheme + listen, Metrics: "http://" + admin + "/metrics",
		AccessKey: "BENCH" + rand.Text()[:15], SecretKey: rand.Text() + rand.Text()[:14],
		log: &bytes.Buffer{}, exited: make(chan struct{}),
	}
	if old := o.Again; old != nil {
		n.Endpoint, n.Metrics, n.AccessKey, n.SecretKey = old.Endpoint, old.Metrics, old.AccessKey, old.SecretKey
		listen = strings.TrimPrefix(old.Endpoint, scheme)
		admin = strings.TrimSuffix(strings.TrimPrefix(old.Metrics, "http://"), "/metrics")
	}
	args := append([]string{"serve", "--data", o.Dir, "--listen", listen, "--admin-listen", admin}, o.Flags...)
	n.cmd = exec.Command(binary, args...)
	n.cmd.Env = append(os.Environ(), "PENSTOCK_ROOT_ACCESS_KEY="+n.AccessKey, "PENSTOCK_ROOT_SECRET_KEY="+n.SecretKey)
	n.cmd.Stderr = n.log
	if o.Log != nil {
		n.cmd.Stderr = o.Log
	}
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true} // our ^C is not its
	if err := n.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start node: %w", err)
	}
	go func() {
		n.err = n.cmd.Wait()
		close(n.exited)
	}()
	if err := n.awaitReady(ctx); err != nil {
		_ = n.Stop() // it never served; the first error is what counts
		return nil, fmt.Errorf("bench: start node: %w: %s", err, n.lastLines())
	}
	return n, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("bench: find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (n *Node) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if n.ready(ctx) {
			return nil
		}
		select {
		case <-n.exited:
			return fmt.Errorf("server ended: %w", errors.Join(n.err, io.ErrUnexpectedEOF))
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

func (n *Node) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.Endpoint+"/.penstock/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // the status is the answer
	return resp.StatusCode == http.StatusOK
}

func (n *Node) lastLines() string {
	const most = 2000
	text := n.log.Bytes()
	return string(text[max(0, len(text)-most):])
}

// PID of the server.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Environment is the AWS_* variables of clients of this node.
func (n *Node) Environment() []string {
	return []string{
		"AWS_ENDPOINT_URL=" + n.Endpoint, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=" + n.AccessKey,
		"AWS_SECRET_ACCESS_KEY=" + n.SecretKey, "AWS_SESSION_TOKEN=", "AWS_ENDPOINT_URL_S3=",
	}
}

// Stop ends the server and waits for it: first politely, then not.
func (n *Node) Stop() error {
	_ = n.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-n.exited:
		return n.err
	case <-timer.C:
		_ = n.cmd.Process.Kill() // it may have ended meanwhile
		<-n.exited
		return fmt.Errorf("bench: the server did not end within %v", stopTimeout)
	}
}

// Counters reads the samples of one metric from a /metrics page: label text → value.
func Counters(ctx context.Context, url, metric string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("bench: read metrics: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("bench: read metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("bench: read metrics: status %d", resp.StatusCode)
	}
	return parseCounters(resp.Body, metric)
}

func parseCounters(r io.Reader, metric string) (map[string]float64, error) {
	values := map[string]float64{}
	s := bufio.NewScanner(r)
	for s.Scan() {
		rest, ok := strings.CutPrefix(s.Text(), metric)
		if !ok || rest == "" || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		at := strings.LastIndexByte(rest, ' ')
		v, err := strconv.ParseFloat(rest[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("bench: read metrics: %w", err)
		}
		values[strings.Trim(strings.TrimSpace(rest[:at]), "{}")] = v
	}
	return values, s.Err()
}

// TempDir makes a directory for a run below parent (empty: the current directory, so that the
// figures are of the disk that people look at, not of a memory file system at /tmp).
func TempDir(parent string) (string, error) {
	if parent == "" {
		parent = "."
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("bench: make directory: %w", err)
	}
	dir, err := os.MkdirTemp(parent, "penstock-data-")
	if err != nil {
		return "", fmt.Errorf("bench: make directory: %w", err)
	}
	return filepath.Abs(dir)
}
