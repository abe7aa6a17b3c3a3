package shim_test

import (
	"context"
	"crypto/sha3"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// installVariable names the directory where `make e2e` has clients of others installed; pinnedVariable, when set, asks
// for the versions in versions.txt instead of the newest.
const (
	installVariable = "PENSTOCK_TEST_MSC"
	pinnedVariable  = "PENSTOCK_TEST_MSC_PINNED"
)

// installed brings multi-storage-client from the package index into an environment of its own, and our module beside
// it by a .pth file, as users do.
func installed(t *testing.T) (python string) {
	t.Helper()
	dir := os.Getenv(installVariable)
	if dir == "" {
		t.Skip(installVariable, " names no directory to install into: see make e2e")
	}
	system, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	run := func(name string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	kind, wanted := "newest", []string{"--upgrade", "multi-storage-client[boto3]"}
	if os.Getenv(pinnedVariable) != "" {
		kind, wanted = "pinned", []string{"--no-deps", "-r", "testdata/msc.txt"}
	}
	if dir, err = filepath.Abs(filepath.Join(dir, kind, "msc")); err != nil {
		t.Fatal(err)
	}
	python = filepath.Join(dir, "bin", "python")
	if _, err := os.Stat(python); errors.Is(err, os.ErrNotExist) {
		if onDevices() {
			t.Skip("not installed: see make e2e")
		}
		run(system, "-m", "venv", dir)
	}
	if !onDevices() { // a guest has no network: it uses what a run on its host has installed
		run(python, append([]string{"-m", "pip", "-q", "--disable-pip-version-check", "install"}, wanted...)...)
	}
	site := run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])")
	module, err := os.ReadFile(filepath.Join(source, "penstock_msc.py"))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(filepath.Join(site, "penstock_msc.py"), module, 0o644),
		os.WriteFile(filepath.Join(site, "penstock_msc.pth"), []byte("import penstock_msc\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(run(python, "-c", "import importlib.metadata as m; print('version', m.version('multi-storage-client'))"))
	return python
}

// TestMultiStorageClient: the provider s3_cuobject of the published package writes and reads objects by tokens of the
// shim. The oracle is the content, here and there a function of its name, and a proxy that counts what goes over HTTP.
func TestMultiStorageClient(t *testing.T) {
	python := installed(t)
	so := library(t)
	n := startNode(t)
	for _, fabric := range []string{"shm", "tcp"} {
		t.Run(fabric, func(t *testing.T) { storageClient(t, n, python, so, fabric) })
	}
}

func storageClient(t *testing.T, on *node, python, so, fabric string) {
	n := &node{Node: on.Node, t: t, signer: on.signer}
	p := newProxy(t, strings.TrimPrefix(n.Endpoint, "http://"))
	if a := n.send("PUT", "/msc-"+fabric, nil, nil); a.status != 200 {
		t.Fatalf("make bucket: %s", a.body)
	}
	limit := 5 * time.Minute
	if onDevices() {
		limit *= 3 // in a guest that is emulated
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	args := append(unprivileged(t), python, "testdata/msc.py", "http://"+p.address, "msc-"+fabric, t.TempDir())
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AWS_") }),
		n.environment(fabric)...)
	cmd.Env = append(cmd.Env, "MSC_CUOBJ_SHIM="+so, "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var moved int64
	if _, scanErr := fmt.Sscanf(lines[len(lines)-1], "ok %d", &moved); err != nil || scanErr != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, size := range []int{1, 1000, 3 << 20, 20 << 20} {
		want := sha3.SumSHAKE256(fmt.Appendf(nil, "%d 0", size), size)
		if got := n.send("GET", fmt.Sprintf("/msc-%s/k%d", fabric, size), nil, nil).body; !slices.Equal(got, want) {
			t.Errorf("object of %d bytes differs", size)
		}
	}
	// the heads of some 200 requests and answers are 330 kB; one object of a thread in a body would be 300 kB more
	if over := p.bytes.Load(); over > 500_000 || moved < 90<<20 {
		t.Errorf("%d bytes went over HTTP, of %d that moved", over, moved)
	} else {
		t.Logf("%d bytes of payload moved, %d bytes went over HTTP", moved, over)
	}
}

// proxy passes connections on and counts their bytes.
type proxy struct {
	address string
	bytes   atomic.Int64
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{address: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.pass(from, to) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return p
}

func (p *proxy) pass(from net.Conn, to string) {
	defer from.Close()
	node, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer node.Close()
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{from, node}, {node, from}} {
		wg.Go(func() {
			_, _ = io.Copy(counter{pair[0], &p.bytes}, pair[1]) // its end is that of the connection
			_ = pair[0].Close()
		})
	}
	wg.Wait()
}

// counter counts bytes before they are passed on, so that none is missed when the last answer is there.
type counter struct {
	to    io.Writer
	bytes *atomic.Int64
}

func (c counter) Write(b []byte) (int, error) {
	c.bytes.Add(int64(len(b)))
	return c.to.Write(b)
}
