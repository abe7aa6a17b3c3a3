package server_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/internal/server"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestRF_25_NodeWithoutLibrary: a node that does not find libibverbs says so, and works without.
func TestRF_25_NodeWithoutLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnone.so")
	worksWithout(t, path, native.ReasonNoLibrary, path)
	if err := os.WriteFile(path, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	worksWithout(t, path, native.ReasonNoLibrary, path)
}

// TestRF_28_NodeWithOldLibrary: the same for a library that lacks what is needed.
func TestRF_28_NodeWithOldLibrary(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	dir := t.TempDir()
	source, path := filepath.Join(dir, "old.c"), filepath.Join(dir, "libold.so")
	if err := os.WriteFile(source, []byte("void *ibv_get_device_list(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", path, source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	worksWithout(t, path, native.ReasonNoSymbol, "ibv_")
}

// TestUnknownDeviceIsNamed: a device in the configuration that the machine does not have keeps the node from starting,
// and the error says which key names it, and what there is.
func TestUnknownDeviceIsNamed(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	c := configFor(t, t.TempDir())
	c.RDMA.Devices = []string{"fake0", "mlx5_9"}
	s, err := server.NewOn(t.Context(), server.Ground{Verbs: nic.Library()}, c, nil)
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, rail.ErrUnknown) {
		t.Fatalf("started with an unknown device: %v", err)
	}
	for _, want := range []string{"rdma.devices", `"mlx5_9"`, "fake0"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not have %s", err, want)
		}
	}
}

// TestNodeWithoutDevice: libibverbs is there and knows no device. The reason is that, and not a port without address.
func TestNodeWithoutDevice(t *testing.T) {
	library, err := native.Open(native.Options{})
	if err != nil {
		t.Skip(err)
	}
	devices, err := library.Devices()
	if err := errors.Join(err, library.Close()); err != nil {
		t.Fatal(err)
	}
	if len(devices) > 0 {
		t.Skip("this machine has an RDMA device")
	}
	worksWithout(t, "", native.ReasonNoDevice, "there is no RDMA device")
}

// worksWithout starts a node on a library that is no good. The log has the reason and the detail, the list of fabrics
// the reason; tcp is up, and an object goes up and down over HTTP.
func worksWithout(t *testing.T, library, reason, detail string) {
	t.Helper()
	var built *native.UnavailableError
	_, err := native.Open(native.Options{Path: library})
	if errors.As(err, &built) && (built.Reason == native.ReasonNoCgo || built.Reason == native.ReasonNoHeaders) {
		reason, detail = built.Reason, "RDMA off" // such a program looks at no library
	}
	c := configFor(t, t.TempDir())
	c.RDMA.VerbsLibrary = library
	var log bytes.Buffer
	r := start(t, c, slog.New(slog.NewTextHandler(&log, nil)))
	status, body := r.do("GET", "/.penstock/fabric/v1", nil)
	info, err := frame.DecodeNodeInfo(bytes.NewReader(body))
	if status != 200 || err != nil {
		t.Fatalf("%d %v %s", status, err, body)
	}
	up := map[string]bool{}
	for _, f := range info.Fabrics {
		up[f.Name] = f.Up
		if f.Name == "rc" && f.Reason != reason {
			t.Errorf("rc has reason %q, want %q", f.Reason, reason)
		}
	}
	if rc, listed := up["rc"]; rc || !listed || !up["tcp"] || !up["shm"] {
		t.Errorf("fabrics %v", up)
	}
	for _, step := range []struct{ method, path, body string }{
		{"PUT", "/bucket", ""}, {"PUT", "/bucket/k", "v"}, {"GET", "/bucket/k", ""},
	} {
		if status, got := r.do(step.method, step.path, []byte(step.body)); status != 200 {
			t.Errorf("%s %s: %d %s", step.method, step.path, status, got)
		} else if step.method == "GET" && string(got) != "v" {
			t.Errorf("got %q", got)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"RDMA off", "reason=" + reason, detail} {
		if !bytes.Contains(log.Bytes(), []byte(want)) {
			t.Errorf("the log does not have %q: %s", want, log.String())
		}
	}
}
