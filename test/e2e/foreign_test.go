package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/test/realnode"
)

// nodeBinary names, for a test process of another user, the binary that the first one built.
const nodeBinary = "PENSTOCK_E2E_NODE"

// nobody is a user without capabilities.
const nobody = 65534

// TestForeignMemory moves objects between memory that this process allocated by itself (its heap, private and
// shared mappings) and a node of the same user in another process. Root's capability would make the node
// decline, so as root it runs both as another user.
func TestForeignMemory(t *testing.T) {
	if os.Geteuid() == 0 {
		runAs(t, nobody, "TestForeignMemory")
		return
	}
	binary := os.Getenv(nodeBinary)
	if binary == "" {
		binary = realnode.Build(t)
	}
	n := realnode.Start(t, binary, t.TempDir())
	defer func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, f := range []client.Fabric{client.SHM, client.Auto} {
		c := realnode.Connect(t, n, f, partBytes)
		if f == client.SHM {
			if err := c.CreateBucket(t.Context(), "foreign"); err != nil {
				t.Fatal(err)
			}
		}
		for name, mem := range foreignMemories(t, 24<<20) {
			foreignTrips(t, c, fmt.Sprintf("%s-%s", f, name), mem)
		}
		refusedMemory(t, c, f)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	deniedMemory(t, n)
}

// deniedMemory forbids others to trace this process: the kernel denies the node, and the client says so.
func deniedMemory(t *testing.T, n *bench.Node) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }() // it was
	c := realnode.Connect(t, n, client.Auto, partBytes)
	r, err := c.Register(make([]byte, 5000))
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.PutFrom(t.Context(), r.All(), "foreign", "denied", client.PutOptions{})
	if err != nil || res.Path != client.PathTCP || res.Reason != client.ReasonForeignDenied {
		t.Errorf("not dumpable: %+v, %v", res, err)
	}
	if err := errors.Join(r.Close(), c.Close()); err != nil {
		t.Error(err)
	}
}

// TestAutoSaysWhy: memory that shm does not reach goes by tcp with the reason, memory that it reaches by shm
// without one. A node with root's capability takes no foreign memory.
func TestAutoSaysWhy(t *testing.T) {
	n := startNode(t)
	c := n.connect(t, client.Auto)
	if err := c.CreateBucket(t.Context(), "auto"); err != nil {
		t.Fatal(err)
	}
	foreign, err := c.Register(make([]byte, 5000))
	if err != nil {
		t.Fatal(err)
	}
	own, err := c.Alloc(5000)
	if err != nil {
		t.Fatal(err)
	}
	path, reason := client.PathSHM, ""
	if os.Geteuid() == 0 {
		path, reason = client.PathTCP, client.ReasonForeignOff
	}
	for _, tc := range []struct {
		region       *client.Region
		path, reason string
	}{{own, client.PathSHM, ""}, {foreign, path, reason}} {
		put, putErr := c.PutFrom(t.Context(), tc.region.All(), "auto", "k", client.PutOptions{})
		get, getErr := c.GetInto(t.Context(), tc.region.All(), "auto", "k", client.GetOptions{})
		if err := errors.Join(putErr, getErr); err != nil {
			t.Fatal(err)
		}
		for _, res := range []client.Result{put, get} {
			if res.Path != tc.path || res.Reason != tc.reason || res.FabricBytes != 5000 {
				t.Errorf("%+v, want %s %q", res, tc.path, tc.reason)
			}
		}
	}
	if err := errors.Join(own.Close(), foreign.Close()); err != nil {
		t.Error(err)
	}
}

// TestForeignMemorySwitchedOff: the listing of a node that is told to take no foreign memory says so, and why.
func TestForeignMemorySwitchedOff(t *testing.T) {
	c := startNode(t, func(c *config.Config) { c.RDMA.ShmForeign = false }).connect(t, client.Auto)
	info, err := c.NodeInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range info.Fabrics {
		if f.Name == client.PathSHM && (!f.Up || f.Foreign || f.ForeignReason != "off") {
			t.Errorf("%+v", f)
		}
	}
	r, err := c.Register(make([]byte, 5000))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CreateBucket(t.Context(), "off"); err != nil {
		t.Fatal(err)
	}
	res, err := c.PutFrom(t.Context(), r.All(), "off", "k", client.PutOptions{})
	if err != nil || res.Path != client.PathTCP || res.Reason != client.ReasonForeignOff {
		t.Errorf("%+v, %v", res, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// foreignMemories is memory of several kinds, none of it page aligned.
func foreignMemories(t *testing.T, size int) map[string][]byte {
	mapped := func(flags int) []byte {
		b, err := unix.Mmap(-1, 0, size+4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) })
		return b[7 : 7+size]
	}
	return map[string][]byte{
		"heap": make([]byte, size+4096)[5 : 5+size], "private": mapped(unix.MAP_PRIVATE), "shared": mapped(unix.MAP_SHARED),
	}
}

// foreignTrips stores and reads objects of awkward sizes at awkward offsets of one region. The oracle is the
// payload; the memory around the window must stay as it was.
func foreignTrips(t *testing.T, c *client.Client, name string, mem []byte) {
	t.Helper()
	r, err := c.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i, size := range []int{1, 4095, 16<<10 + 1, 1<<20 + 3, 5 << 20, 17<<20 + 12345} { // the last in parts
		payload := make([]byte, size)
		for at := range payload {
			payload[at] = byte(random.Uint32())
		}
		key, off := fmt.Sprintf("%s-%d", name, i), int64(random.IntN(len(mem)-size+1))
		clear(mem)
		copy(mem[off:], payload)
		put, err := c.PutFrom(t.Context(), r.Window(off, int64(size)), "foreign", key, client.PutOptions{})
		if err != nil || put.Path != client.PathSHM || put.FabricBytes != int64(size) || put.Reason != "" {
			t.Fatalf("%s: put: %+v, %v", key, put, err)
		}
		for at := range mem {
			mem[at] = 0xa5
		}
		off = int64(random.IntN(len(mem) - size + 1))
		get, err := c.GetInto(t.Context(), r.Window(off, int64(size)), "foreign", key, client.GetOptions{})
		if err != nil || get.Path != client.PathSHM || get.FabricBytes != int64(size) || get.Reason != "" {
			t.Fatalf("%s: get: %+v, %v", key, get, err)
		}
		end := int(off) + size
		if !bytes.Equal(mem[off:end], payload) {
			t.Errorf("%s: other bytes than were stored", key)
		}
		kept := bytes.Count(mem[:off], []byte{0xa5}) + bytes.Count(mem[end:], []byte{0xa5})
		if changed := len(mem) - size - kept; changed != 0 {
			t.Errorf("%s: %d bytes changed outside the window", key, changed)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(mem)
}

// refusedMemory registers a private mapping of a file, which shm does not take: auto says why tcp had to carry
// the bytes, and shm alone declines.
func refusedMemory(t *testing.T, c *client.Client, f client.Fabric) {
	t.Helper()
	const size = 100_000
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Write(bytes.Repeat([]byte("payload "), size/8)); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	r, err := c.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	res, err := c.PutFrom(t.Context(), r.All(), "foreign", "file", client.PutOptions{})
	if f == client.Auto {
		if err != nil || res.Path != client.PathTCP || res.Reason != client.ReasonForeignAddress {
			t.Errorf("auto: %+v, %v", res, err)
		}
		return
	}
	declined := new(client.DeclinedError)
	if !errors.As(err, &declined) || declined.Reason != client.ReasonForeignAddress {
		t.Errorf("shm: %+v, %v", res, err)
	}
}

// runAs runs a test of this binary, and the node's, as another user, which cannot reach their directories.
func runAs(t *testing.T, uid uint32, test string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	node, tests := filepath.Join(dir, "penstock"), filepath.Join(dir, "e2e.test")
	err = errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, int(uid), int(uid)),
		copyFile(node, realnode.Build(t)), copyFile(tests, self))
	if err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), tests, "-test.v", "-test.run=^"+test+"$")
	run.Dir = dir
	run.Env = append(os.Environ(), nodeBinary+"="+node, "TMPDIR="+dir, "HOME="+dir)
	run.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := run.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Errorf("as user %d: %v\n%s", uid, err, out)
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
