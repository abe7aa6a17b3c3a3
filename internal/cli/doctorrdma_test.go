package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// twoRails are a machine with two adapters, and the doctor on it.
func twoRails(t *testing.T) (*fakeverbs.NIC, rdmaDoctor) {
	t.Helper()
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{
		{Name: "mlx5_0", Addr: netip.MustParseAddr("10.0.1.2"), NetDevice: "eth0", NUMA: 1, MTU: 4096},
		{Name: "mlx5_1", Addr: netip.MustParseAddr("2001:db8::2"), NetDevice: "eth1", NUMA: -1},
	}})
	return nic, rdmaDoctor{
		need: 1 << 20, size: 4096, budget: time.Millisecond,
		open: func() (*native.Library, error) { return nic.Library(), nil },
		machine: fakeMachine{
			limit: 7 << 20,
			files: map[string]string{"/sys/class/net/eth0/mtu": "9000", "/sys/class/net/eth1/mtu": "1500"},
			globs: map[string][]string{
				"/sys/class/infiniband/*":     {"/sys/class/infiniband/mlx5_0", "/sys/class/infiniband/mlx5_1"},
				"/dev/infiniband/uverbs*":     {"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"},
				"/sys/class/infiniband_verbs": {"/sys/class/infiniband_verbs"},
			},
		},
	}
}

// TestDoctorRDMATellsAll compares the text with the description of the adapters. Figures are cut out.
func TestDoctorRDMATellsAll(t *testing.T) {
	_, d := twoRails(t)
	o := examine(t, d, false)
	want, err := os.ReadFile("testdata/doctor-rdma.txt")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Builder{}
	for line := range strings.Lines(o.stdout) {
		switch {
		case strings.HasPrefix(line, "device "):
			_, numa, _ := strings.Cut(line, "NUMA node ")
			numa, _, _ = strings.Cut(numa, ",")
			line = line[:28] + "NUMA node " + numa + "\n"
		case strings.Contains(line, "loopback "):
			line, _, _ = strings.Cut(line, " writes")
			line += " writes\n"
		}
		got.WriteString(line)
	}
	if got.String() != string(want) || o.code != ExitOK || o.stderr != "" {
		t.Errorf("code %d, %q, got:\n%s\nwant:\n%s", o.code, o.stderr, got.String(), want)
	}
}

// TestDoctorRDMAJSONIsStable: fields are only ever added.
func TestDoctorRDMAJSONIsStable(t *testing.T) {
	_, d := twoRails(t)
	o := examine(t, d, true)
	got := lines(t, o)
	for line, fields := range map[string]string{
		"check memlock":     "detail name status type",
		"check rail mtu":    "detail name remedy status type",
		"device mlx5_0":     "firmware guid max_qp max_reads name numa_node ports type",
		"port mlx5_0/1":     "gids lid link max_message_bytes mtu name state type",
		"rail mlx5_0/1":     "address gid gid_index lid mtu name network numa_node type up",
		"loopback mlx5_0/1": "compared_bytes latency_us name read_gbps size_bytes status type write_gbps",
		"result":            "detail passed rails status type up",
	} {
		if names := slices.Sorted(maps.Keys(got[line])); strings.Join(names, " ") != fields {
			t.Errorf("%s: fields %v, want %s", line, names, fields)
		}
	}
	rail, back := got["rail mlx5_0/1"], got["loopback mlx5_0/1"]
	if rail["address"] != "10.0.1.2" || rail["gid"] != "::ffff:10.0.1.2" || rail["gid_index"] != 1.0 ||
		rail["up"] != true ||
		back["write_gbps"].(float64) <= 0 || back["read_gbps"].(float64) <= 0 || back["size_bytes"] != 4096.0 ||
		fmt.Sprint(back["compared_bytes"]) != "[1 4096 1.048576e+06 65537 4096]" || o.code != ExitOK {
		t.Errorf("%v %v %v", rail, back, got["result"])
	}
	gids, err := json.Marshal(got["port mlx5_0/1"]["gids"])
	const want = `{"gid":"::ffff:10.0.1.2","gid_type":"rocev2","index":1,"network":"eth0","used":true}`
	if err != nil || !strings.Contains(string(gids), want) {
		t.Errorf("%s, want %s in it", gids, want)
	}
}

// TestDoctorRDMAExitCodes has one machine for each row of the exit codes.
func TestDoctorRDMAExitCodes(t *testing.T) {
	lost := fakeverbs.Rule{At: fakeverbs.AtWritePacket, Device: "mlx5_1", Times: fakeverbs.Always}
	pinned := fakeverbs.Rule{At: fakeverbs.AtRegMR, Device: "mlx5_0", Errno: syscall.ENOMEM, Times: fakeverbs.Always}
	closed := fakeverbs.Rule{At: fakeverbs.AtOpenDevice, Errno: syscall.EACCES, Times: fakeverbs.Always}
	for name, c := range map[string]struct {
		down    []string
		rules   []fakeverbs.Rule
		devices []string
		code    int
		says    []string
	}{
		"all": {code: ExitOK, says: []string{"2 of 2 rails up, 2 passed"}},
		"one down": {down: []string{"mlx5_0"}, code: ExitOK,
			says: []string{"rail     mlx5_0/1           port-down", "1 passed"}},
		"all down": {down: []string{"mlx5_0", "mlx5_1"}, code: ExitFailure, says: []string{"no rail is up", "rdma off"}},
		"chosen, down": {down: []string{"mlx5_0"}, devices: []string{"mlx5_0"}, code: ExitFailure,
			says: []string{"loopback port: port-down", "0 passed", "not among the chosen"}},
		"chosen, one down": {down: []string{"mlx5_0"}, devices: []string{"mlx5_0/1", "mlx5_1"}, code: ExitPartial,
			says: []string{"no       loopback mlx5_0/1", "1 passed"}},
		"chosen, other down": {down: []string{"mlx5_0"}, devices: []string{"mlx5_1"}, code: ExitOK,
			says: []string{"1 of 1 rails up"}},
		"one fails": {rules: []fakeverbs.Rule{lost}, code: ExitPartial,
			says: []string{"no       loopback mlx5_1/1", "write of 1 bytes: no acknowledgement", "→ packets", "1 passed"}},
		"both fail": {rules: []fakeverbs.Rule{lost, pinned}, code: ExitFailure,
			says: []string{"loopback register", "→ ulimit", "rdma off", "0 passed"}},
		"no permission": {rules: []fakeverbs.Rule{closed}, code: ExitFailure,
			says: []string{"does not open", "access to /dev/infiniband", "no port of this machine is a rail"}},
		"unknown device": {devices: []string{"mlx5_7"}, code: ExitUsage, says: []string{"mlx5_0, mlx5_1"}},
		"unknown port":   {devices: []string{"mlx5_0/2"}, code: ExitUsage, says: []string{"the device has mlx5_0/1"}},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(asJSON bool) outcome {
				nic, d := twoRails(t)
				for _, name := range c.down {
					nic.PortDown(name)
				}
				for _, r := range c.rules {
					nic.Inject(r)
				}
				d.devices = c.devices
				return examine(t, d, asJSON)
			}
			o := run(false)
			if o.code != c.code || (o.stderr != "") != (c.code == ExitUsage) {
				t.Errorf("code %d, want %d: %s %s", o.code, c.code, o.stderr, o.stdout)
			}
			for _, text := range c.says {
				if !strings.Contains(o.stdout+o.stderr, text) {
					t.Errorf("it does not say %q:\n%s%s", text, o.stdout, o.stderr)
				}
			}
			o = run(true)
			result := lines(t, o)["result"]
			if o.code != c.code || c.code != ExitUsage && (result["status"] == "ok") != (c.code == ExitOK) {
				t.Errorf("as JSON: code %d, %v", o.code, result)
			}
		})
	}
}

// TestDoctorRDMACountsLockedMemoryForEachRail: a node registers its arena with each, and needs 4 MiB to
// probe one.
func TestDoctorRDMACountsLockedMemoryForEachRail(t *testing.T) {
	for _, c := range []struct {
		devices []string
		limit   uint64
		want    string
	}{
		{nil, 6 << 20, "ok"}, {nil, 6<<20 - 1, "no"}, {[]string{"mlx5_0"}, 5 << 20, "ok"}, {nil, unix.RLIM_INFINITY, "ok"},
	} {
		_, d := twoRails(t)
		m := d.machine.(fakeMachine)
		m.limit = c.limit
		d.machine, d.devices = m, c.devices
		if got := lines(t, examine(t, d, true))["check memlock"]; got["status"] != c.want {
			t.Errorf("limit %d for %v: %v, want %s", c.limit, c.devices, got, c.want)
		}
	}
}

// TestDoctorRDMASaysThatTheLibraryFails has a library that lists nothing any more.
func TestDoctorRDMASaysThatTheLibraryFails(t *testing.T) {
	nic, d := twoRails(t)
	if err := nic.Library().Close(); err != nil {
		t.Fatal(err)
	}
	o := examine(t, d, false)
	if o.code != ExitFailure || o.stderr != "" ||
		!strings.Contains(o.stdout, "rdma off           rail: devices: native: closed") {
		t.Errorf("%+v", o)
	}
}

// TestDoctorRDMAStopsWhenNobodyReads: a closed pipe is the command's error, and nothing stays open.
func TestDoctorRDMAStopsWhenNobodyReads(t *testing.T) {
	for after := range 14 {
		_, d := twoRails(t)
		w := &brokenPipe{left: after}
		d.app = &app{env: Environment{Stdout: w, Stderr: w}}
		if err := d.run(t.Context()); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("after %d lines: %v", after, err)
		}
	}
}

// brokenPipe takes a few writes.
type brokenPipe struct{ left int }

func (b *brokenPipe) Write(p []byte) (int, error) {
	if b.left--; b.left < 0 {
		return 0, syscall.EPIPE
	}
	return len(p), nil
}
