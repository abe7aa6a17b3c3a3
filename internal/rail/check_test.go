package rail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/native"
)

// fakeMachine is a tree of files; its directories exist by what lies in them.
type fakeMachine struct {
	files  map[string]string
	denied map[string]error
	limit  uint64
	err    error
}

func (f fakeMachine) Read(name string) (string, error) {
	if text, ok := f.files[name]; ok {
		return text, nil
	}
	return "", fs.ErrNotExist
}

func (f fakeMachine) Glob(pattern string) []string {
	found := map[string]bool{}
	for name := range f.files {
		for ; name != "/" && name != "."; name = path.Dir(name) {
			if ok, err := path.Match(pattern, name); err == nil && ok {
				found[name] = true
			}
		}
	}
	var out []string
	for name := range found {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (f fakeMachine) Writable(name string) error { return f.denied[name] }
func (f fakeMachine) Memlock() (uint64, error)   { return f.limit, f.err }

func tree(names ...string) fakeMachine {
	f := fakeMachine{files: map[string]string{}, denied: map[string]error{}}
	for _, n := range names {
		f.files[n] = ""
	}
	return f
}

// expect compares a check's state, and words that its detail and its remedy must have. A check that says no must say
// what to do, in the remedy or, where a device says it, in the detail.
func expect(t *testing.T, what string, c Check, state State, detail, remedy string) {
	t.Helper()
	if c.State != state || !strings.Contains(c.Detail, detail) || !strings.Contains(c.Remedy, remedy) ||
		(remedy == "") != (c.Remedy == "") || c.Name == "" || c.Detail == "" {
		t.Errorf("%s: %+v, want %s, %q, %q", what, c, state, detail, remedy)
	}
}

func TestKernelChecksTellWhatIsMissing(t *testing.T) {
	const device, class, file = "/sys/class/infiniband/rxe0/node_type", "/sys/class/infiniband_verbs/uverbs0/dev",
		"/dev/infiniband/uverbs0"
	denied := tree(device, class, file)
	denied.denied[file] = syscall.EACCES
	for name, c := range map[string]struct {
		m                       fakeMachine
		devices                 State
		access                  State
		detail, remedy, devText string
	}{
		"nothing":            {tree(), No, No, "not loaded", "modprobe ib_uverbs", "soft-RoCE"},
		"device, no uverbs":  {tree(device), OK, No, "not loaded", "modprobe ib_uverbs", "rxe0"},
		"uverbs, no device":  {tree("/sys/class/infiniband_verbs/abi_version"), No, No, "no device", "rdma link add", "soft"},
		"builtin module":     {tree("/sys/module/ib_uverbs/parameters/x"), No, No, "no device", "rdma link add", "soft"},
		"container":          {tree(device, class), OK, No, "not visible", "--device=/dev/infiniband", "rxe0"},
		"permission":         {denied, OK, No, "permission denied", "udev", "rxe0"},
		"all there":          {tree(device, class, file), OK, OK, file, "", "rxe0"},
		"device not in /sys": {tree(class, file), No, OK, file, "", "soft"},
	} {
		checks := KernelChecks(c.m)
		if len(checks) != 2 || checks[0].State != c.devices || !strings.Contains(checks[0].Detail, c.devText) ||
			(checks[0].Remedy == "") == (c.devices == No) {
			t.Errorf("%s: devices %+v", name, checks)
			continue
		}
		expect(t, name, checks[1], c.access, c.detail, c.remedy)
	}
}

func TestLibraryCheckHasARemedyForEachReason(t *testing.T) {
	expect(t, "open", LibraryCheck(nil), OK, "opens", "")
	expect(t, "other error", LibraryCheck(errors.New("x y")), No, "x y", "")
	for _, reason := range []string{native.ReasonNoCgo, native.ReasonNoHeaders, native.ReasonNoLibrary,
		native.ReasonNoSymbol, native.ReasonNoDevice} {
		err := fmt.Errorf("wrapped: %w", &native.UnavailableError{Reason: reason, Detail: "the linker's words"})
		c := LibraryCheck(err)
		if c.State != No || !strings.HasPrefix(c.Detail, reason+": ") || c.Remedy == "" ||
			!strings.Contains(c.Detail, "the linker's words") {
			t.Errorf("%s: %+v", reason, c)
		}
	}
	if words, remedy := Explain("other"); words != "other" || remedy != "" {
		t.Errorf("an unknown reason: %q %q", words, remedy)
	}
}

func TestDriverCheckComparesKernelAndLibrary(t *testing.T) {
	m := tree("/sys/class/infiniband/mlx5_0/x", "/sys/class/infiniband/rxe0/x")
	mlx, rxe := device("mlx5_0", ethernet()), device("rxe0", ethernet())
	expect(t, "both", DriverCheck(m, []Device{mlx, rxe}), OK, "mlx5_0, rxe0", "")
	expect(t, "one lost", DriverCheck(m, []Device{rxe}), No, "no driver for mlx5_0,", "ibverbs-providers")
	expect(t, "none", DriverCheck(tree(), nil), No, "no device", checkDevices)
	mlx.Err = &native.CallError{Call: "ibv_open_device", Errno: int(syscall.EACCES)}
	expect(t, "closed", DriverCheck(m, []Device{mlx, rxe}), No, "mlx5_0 does not open", "")
}

func TestRailChecks(t *testing.T) {
	m := tree()
	m.files["/sys/class/net/eth0/mtu"] = "1500"
	up := Rail{Device: "rxe0", Port: 1, Link: native.LinkEthernet, GID: v2(0, "10.0.0.1").Raw, Network: "eth0", MTU: 1024,
		Up: true}
	down := up
	down.Device, down.Up, down.Reason = "rxe1", false, ReasonPortDown
	local := up
	local.GID = v2(0, "fe80::1").Raw
	only := up
	only.GID = v2(0, "127.0.0.1").Raw
	jumbo := up
	jumbo.MTU, jumbo.Network = 4096, "eth1"
	ib := Rail{Device: "mlx5_0", Port: 1, Link: native.LinkInfiniBand, LID: 9, MTU: 4096, Up: true}
	find := func(name string, rails []Rail, skipped ...Skipped) Check {
		for _, c := range RailChecks(m, rails, skipped) {
			if c.Name == name {
				return c
			}
		}
		return Check{}
	}
	expect(t, "none", find(checkPorts, nil), No, "no port", "driver")
	expect(t, "skipped", find(checkPorts, nil, Skipped{"rxe0/1", "has no address: do x"}), No,
		"rxe0/1 has no address: do x", "")
	expect(t, "up", find(checkPorts, []Rail{up}), OK, "up: rxe0/1", "")
	expect(t, "down", find(checkPorts, []Rail{down}), No, "down: rxe1/1", "ip link set")
	expect(t, "both", find(checkPorts, []Rail{up, down}), OK, "up: rxe0/1; down: rxe1/1", "cable")
	expect(t, "address", find(checkAddresses, []Rail{up, ib}), OK, "rxe0/1 10.0.0.1, mlx5_0/1 LID 9", "")
	expect(t, "link-local", find(checkAddresses, []Rail{local}), OK, "fe80::1", "give eth0 an IPv4 address")
	expect(t, "loopback", find(checkAddresses, []Rail{only}), OK, "127.0.0.1", "this host only")
	expect(t, "mtu", find(checkMTU, []Rail{up}), OK, "rxe0/1 1024 (eth0 has 1500)", "4192 or more on eth0")
	expect(t, "jumbo", find(checkMTU, []Rail{jumbo, ib}), OK, "rxe0/1 4096, mlx5_0/1 4096", "")
}

func TestMemlockCheck(t *testing.T) {
	const need = 416 << 20
	capable := map[string]string{"/proc/self/status": "Name:\tx\nCapEff:\t0000000000004000\nCapBnd:\t0\n",
		"/proc/self/uid_map": "         0          0 4294967295"}
	contained := map[string]string{"/proc/self/status": capable["/proc/self/status"],
		"/proc/self/uid_map": "0 100000 65536"}
	other := map[string]string{"/proc/self/status": "CapEff:\t00000000ffffbfff\n",
		"/proc/self/uid_map": capable["/proc/self/uid_map"]}
	for name, c := range map[string]struct {
		m              fakeMachine
		state          State
		detail, remedy string
	}{
		"unlimited":         {fakeMachine{limit: unix.RLIM_INFINITY}, OK, "unlimited", ""},
		"default":           {fakeMachine{limit: 8 << 20}, No, "8 MiB may be locked, 416 MiB are needed", "ulimit -l"},
		"tiny":              {fakeMachine{limit: 64 << 10}, No, "64 KiB may be locked", "ulimit -l"},
		"exactly enough":    {fakeMachine{limit: need}, OK, "416 MiB may be locked", ""},
		"one byte short":    {fakeMachine{limit: need - 1}, No, "needed", "LimitMEMLOCK"},
		"unknown":           {fakeMachine{err: syscall.EPERM}, Unknown, "operation not permitted", ""},
		"capable":           {fakeMachine{limit: 8 << 20, files: capable}, OK, "CAP_IPC_LOCK", ""},
		"root of a sandbox": {fakeMachine{limit: 8 << 20, files: contained}, No, "needed", "ulimit -l"},
		"other capability":  {fakeMachine{limit: 8 << 20, files: other}, No, "needed", "ulimit -l"},
	} {
		expect(t, name, MemlockCheck(c.m, need), c.state, c.detail, c.remedy)
	}
}

// TestHostReadsThisMachine compares with what the operating system says by other ways.
func TestHostReadsThisMachine(t *testing.T) {
	file := path.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte(" text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := Host()
	if text, err := h.Read(file); text != "text" || err != nil {
		t.Errorf("read %q %v", text, err)
	}
	if got := h.Glob(path.Dir(file) + "/*"); !slices.Equal(got, []string{file}) {
		t.Errorf("glob %v", got)
	}
	if err := h.Writable(file); err != nil {
		t.Error(err)
	}
	if err := h.Writable(file + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	text, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	n, err := h.Memlock()
	want := fmt.Sprint(n)
	if n == unix.RLIM_INFINITY {
		want = "unlimited"
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); strings.HasPrefix(line, "Max locked memory") && f[3] != want {
			t.Errorf("limit %d %v, the kernel says %s", n, err, line)
		}
	}
}
