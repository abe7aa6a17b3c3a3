package rail_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// realLibrary is the machine's own, with the devices that it has. Without one the test is skipped, unless the
// environment promises one.
func realLibrary(t *testing.T) (*native.Library, []rail.Device) {
	t.Helper()
	skip := t.Skipf
	if os.Getenv("PENSTOCK_TEST_VERBS") == "device" {
		skip = t.Fatalf
	}
	l, err := native.Open(native.Options{})
	if errors.Is(err, native.ErrNotSupported) {
		skip("%v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	devices, err := rail.Look(l)
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) == 0 {
		skip("no RDMA device")
	}
	return l, devices
}

// sysfs reads what the kernel says of a port.
func sysfs(t *testing.T, r rail.Rail, item string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/class/infiniband", r.Device, "ports", strconv.Itoa(r.Port), item))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// TestDiscoverOnRealDevices compares with sysfs and with the addresses of the network devices.
func TestDiscoverOnRealDevices(t *testing.T) {
	l, _ := realLibrary(t)
	rails, skipped, err := rail.Discover(l, rail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range skipped {
		t.Logf("skipped %s: %s", s.Name, s.Reason)
		names = append(names, s.Name)
	}
	for _, r := range rails {
		t.Logf("%+v", r)
		names = append(names, r.Name())
		index := strconv.Itoa(r.GIDIndex)
		gid := netip.MustParseAddr(sysfs(t, r, "gids/"+index))
		if gid.As16() != r.GID {
			t.Errorf("%s: GID %d is %v", r.Name(), r.GIDIndex, gid)
		}
		if up := strings.HasSuffix(sysfs(t, r, "state"), "ACTIVE"); up != r.Up {
			t.Errorf("%s: up %v, the kernel says %v", r.Name(), r.Up, up)
		}
		if r.Link == native.LinkEthernet {
			if kind := sysfs(t, r, "gid_attrs/types/"+index); kind != "RoCE v2" {
				t.Errorf("%s: the type of GID %d is %s", r.Name(), r.GIDIndex, kind)
			}
			checkAddress(t, r)
		}
	}
	ports, err := filepath.Glob("/sys/class/infiniband/*/ports/*")
	if err != nil || len(ports) == 0 {
		t.Fatalf("%v, ports %v", err, ports)
	}
	for _, p := range ports {
		device := filepath.Base(filepath.Dir(filepath.Dir(p)))
		if !slices.Contains(names, device+"/"+filepath.Base(p)) && !slices.Contains(names, device) {
			t.Errorf("%s is neither a rail nor skipped", p)
		}
	}
}

// checkAddress compares with the network device, which must have the address, and no IPv4 one when that is none.
func checkAddress(t *testing.T, r rail.Rail) {
	t.Helper()
	device, err := net.InterfaceByName(r.Network)
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := device.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	found, four := false, false
	for _, a := range addresses {
		prefix := netip.MustParsePrefix(a.String())
		found = found || prefix.Addr() == r.Address()
		four = four || prefix.Addr().Is4() && !prefix.Addr().IsLinkLocalUnicast()
	}
	if !found || four && !r.Address().Is4() {
		t.Errorf("%s has %v, %s has %v", r.Name(), r.Address(), r.Network, addresses)
	}
}

// realRails opens the devices of the rails that are up.
func realRails(t *testing.T, try func(*native.Device, rail.Rail)) {
	t.Helper()
	l, _ := realLibrary(t)
	rails, _, err := rail.Discover(l, rail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, r := range rails {
		if !r.Up {
			continue
		}
		tried++
		d, err := l.OpenDevice(r.Device)
		if err != nil {
			t.Fatal(err)
		}
		try(d, r)
		if err := d.Close(); err != nil {
			t.Errorf("%s: close: %v", r.Name(), err)
		}
	}
	if tried == 0 {
		t.Skip("no rail is up")
	}
}

func TestLoopbackOnRealDevices(t *testing.T) {
	realRails(t, func(d *native.Device, r rail.Rail) {
		report, err := rail.Loopback(t.Context(), d, r, rail.LoopbackOptions{Size: 65536, Budget: 100 * time.Millisecond})
		if err != nil {
			t.Errorf("%s: %v (%s)", r.Name(), err, rail.Remedy(err))
			return
		}
		t.Logf("%s: %+v, writes %.3f GB/s, reads %.3f GB/s", r.Name(), report, report.Write.GBps(), report.Read.GBps())
		if report.Write.Bytes < 65536 || report.Read.Bytes < 65536 || len(report.Compared) != 5 || report.Latency <= 0 {
			t.Errorf("%s: %+v", r.Name(), report)
		}
	})
}

// TestLoopbackFailsOnRealDevices: what cannot work fails with its step, in bounded time, and leaves the device as it
// was: the next one works.
func TestLoopbackFailsOnRealDevices(t *testing.T) {
	realRails(t, func(d *native.Device, r rail.Rail) {
		down := r
		down.Up, down.Reason = false, rail.ReasonPortDown
		wantStep(t, d, down, rail.StepPort)
		noEntry := r
		noEntry.GIDIndex = 200
		wantStep(t, d, noEntry, rail.StepConnect)
		nowhere := r // TEST-NET-1: nobody has it
		nowhere.GID = netip.MustParseAddr("::ffff:192.0.2.1").As16()
		wantStep(t, d, nowhere, rail.StepConnect, rail.StepWrite)
		if _, err := rail.Loopback(t.Context(), d, r, rail.LoopbackOptions{}); err != nil {
			t.Errorf("%s, afterwards: %v", r.Name(), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := rail.Loopback(ctx, d, r, rail.LoopbackOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, canceled: %v", r.Name(), err)
		}
	})
}

func wantStep(t *testing.T, d *native.Device, r rail.Rail, want ...rail.Step) {
	t.Helper()
	_, err := rail.Loopback(t.Context(), d, r, rail.LoopbackOptions{})
	var failed *rail.LoopbackError
	if !errors.As(err, &failed) || !slices.Contains(want, failed.Step) || failed.Rail != r.Name() ||
		rail.Remedy(err) == "" {
		t.Errorf("%s: %v, want %v", r.Name(), err, want)
		return
	}
	t.Logf("%v → %s", err, rail.Remedy(err))
}
