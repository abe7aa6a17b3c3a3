package rail

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/native"
)

// v2 is a RoCEv2 entry of the address on eth0.
func v2(index int, address string) native.GID {
	return native.GID{Index: index, Raw: netip.MustParseAddr(address).As16(), Type: native.GIDRoCEv2, Network: "eth0"}
}

func v1(index int, address string) native.GID {
	g := v2(index, address)
	g.Type = native.GIDRoCEv1
	return g
}

func on(network string, g native.GID) native.GID {
	g.Network = network
	return g
}

func ethernet(gids ...native.GID) native.PortInfo {
	return native.PortInfo{Number: 1, State: native.PortActive, Link: native.LinkEthernet, MTU: 4096,
		MaxMessage: 1 << 31, GIDs: gids}
}

// TestPickChoosesTheGIDThatOthersReach has tables as adapters show them; the expected index is what the addressing
// rules of IP say about reach.
func TestPickChoosesTheGIDThatOthersReach(t *testing.T) {
	infiniBand := native.PortInfo{Number: 1, Link: native.LinkInfiniBand, LID: 7, GIDs: []native.GID{
		{Index: 0, Raw: netip.MustParseAddr("fe80::1").As16()}, {Index: 1, Raw: netip.MustParseAddr("fec0::1").As16()},
	}}
	for _, c := range []struct {
		name string
		port native.PortInfo
		want int
		why  string // part of the reason, where there is none
	}{
		{"mlx5 with an IPv4 address",
			ethernet(v1(0, "fe80::1"), v2(1, "fe80::1"), v1(2, "10.0.1.2"), v2(3, "10.0.1.2")), 3, ""},
		{"soft-RoCE", ethernet(v2(0, "fe80::1"), v2(1, "10.0.2.15")), 1, ""},
		{"IPv4 behind IPv6", ethernet(v2(0, "fe80::1"), v2(1, "2001:db8::1"), v2(2, "192.168.0.1")), 2, ""},
		{"global IPv6", ethernet(v2(0, "fe80::1"), v1(1, "2001:db8::1"), v2(2, "2001:db8::1")), 2, ""},
		{"unique local IPv6", ethernet(v2(0, "fe80::1"), v2(1, "fd00::1")), 1, ""},
		{"link-local IPv4 loses to global IPv6", ethernet(v2(0, "169.254.1.1"), v2(1, "2001:db8::1")), 1, ""},
		{"link-local IPv4", ethernet(v2(0, "fe80::1"), v2(1, "169.254.1.1")), 1, ""},
		{"link-local IPv6 only", ethernet(v1(0, "fe80::1"), v2(1, "fe80::1")), 1, ""},
		{"loopback device", ethernet(v2(0, "::1"), v2(1, "127.0.0.1")), 0, ""},
		{"two addresses", ethernet(v2(0, "fe80::1"), v2(1, "10.0.0.1"), v2(2, "10.0.0.2")), 1, ""},
		{"own device before its VLAN", ethernet(v2(0, "fe80::1"), on("eth0.5", v2(1, "10.5.0.1")), v2(2, "10.0.0.1")), 2, ""},
		{"address on the VLAN only", ethernet(v2(0, "fe80::1"), on("eth0.5", v2(1, "10.5.0.1"))), 1, ""},
		{"order of the list does not count", ethernet(v2(4, "10.0.0.2"), v2(2, "10.0.0.1"), v2(0, "fe80::1")), 2, ""},
		{"InfiniBand", infiniBand, 0, ""},
		{"InfiniBand in another order", native.PortInfo{Link: native.LinkInfiniBand,
			GIDs: []native.GID{infiniBand.GIDs[1], infiniBand.GIDs[0]}}, 0, ""},
		{"InfiniBand without a table", native.PortInfo{Link: native.LinkInfiniBand}, 0, "subnet manager"},
		{"no entry", ethernet(), 0, "give it an IP address"},
		{"RoCEv1 only", ethernet(v1(0, "fe80::1"), v1(1, "10.0.0.1")), 0, "RoCEv1"},
		{"iWARP", ethernet(native.GID{Raw: [16]byte{2, 1}}), 0, "iWARP"},
		{"multicast", ethernet(v2(0, "ff02::1")), 0, "unicast"},
		{"unknown link", native.PortInfo{GIDs: []native.GID{v2(0, "10.0.0.1")}}, 0, "neither Ethernet nor InfiniBand"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, why := pick(c.port)
			if c.why == "" && (why != "" || g.Index != c.want) {
				t.Errorf("picked %d (%s), want %d", g.Index, why, c.want)
			}
			if c.why != "" && !strings.Contains(why, c.why) {
				t.Errorf("reason %q does not say %q", why, c.why)
			}
		})
	}
}

func device(name string, ports ...native.PortInfo) Device {
	for i := range ports {
		ports[i].Number = i + 1
	}
	return Device{DeviceInfo: native.DeviceInfo{Name: name, Ports: len(ports), NUMANode: 1}, Ports: ports}
}

func TestRailsAreOrderedAndFiltered(t *testing.T) {
	down := ethernet(v2(0, "10.0.2.2"))
	down.State = native.PortDown
	devices := []Device{
		device("mlx5_10", ethernet(v2(0, "10.0.10.1"))),
		device("mlx5_2", ethernet(v2(0, "10.0.2.1")), down),
		device("rxe0", ethernet(v1(0, "10.0.3.1"))),
		{DeviceInfo: native.DeviceInfo{Name: "mlx5_3", Ports: 1}, Err: &native.CallError{Call: "ibv_open_device",
			Errno: int(syscall.EACCES)}},
		device("hfi1_0"),
	}
	const all = "mlx5_2/1 mlx5_2/2=port-down mlx5_10/1"
	for _, c := range []struct {
		only           []string
		rails, skipped string
	}{
		{nil, all, "hfi1_0 mlx5_3 rxe0/1"},
		{[]string{"mlx5_2"}, "mlx5_2/1 mlx5_2/2=port-down", "hfi1_0 mlx5_3 mlx5_10/1 rxe0/1"},
		{[]string{"mlx5_2/2"}, "mlx5_2/2=port-down", "hfi1_0 mlx5_2/1 mlx5_3 mlx5_10/1 rxe0/1"},
		{[]string{"rxe0", "mlx5_10/1"}, "mlx5_10/1", "hfi1_0 mlx5_2/1 mlx5_2/2 mlx5_3 rxe0/1"},
		{[]string{"mlx5_3/2"}, "", "hfi1_0 mlx5_2/1 mlx5_2/2 mlx5_3 mlx5_10/1 rxe0/1"},
	} {
		rails, skipped, err := Rails(devices, Options{Devices: c.only})
		if err != nil {
			t.Fatalf("%v: %v", c.only, err)
		}
		var gotRails, gotSkipped []string
		for _, r := range rails {
			word := r.Name()
			if r.Up == (r.Reason != "") {
				t.Errorf("%s: up %v, reason %q", r.Name(), r.Up, r.Reason)
			}
			if !r.Up {
				word += "=" + r.Reason
			}
			gotRails = append(gotRails, word)
		}
		for _, s := range skipped {
			gotSkipped = append(gotSkipped, s.Name)
			if s.Reason == "" {
				t.Errorf("%s is skipped without a reason", s.Name)
			}
		}
		if got := strings.Join(gotRails, " "); got != c.rails {
			t.Errorf("%v: rails %s, want %s", c.only, got, c.rails)
		}
		if got := strings.Join(gotSkipped, " "); got != c.skipped {
			t.Errorf("%v: skipped %s, want %s", c.only, got, c.skipped)
		}
	}
	if devices[0].Name != "mlx5_10" {
		t.Error("the caller's list was sorted")
	}
}

func TestRailsSayWhatIsNotThere(t *testing.T) {
	devices := []Device{device("mlx5_0", ethernet(v2(0, "10.0.0.1"))), device("mlx5_1", ethernet(v2(0, "10.0.0.2")))}
	for name, want := range map[string]string{
		"mlx5_2":    "mlx5_0, mlx5_1",
		"":          "mlx5_0, mlx5_1",
		"mlx5_0/2":  "the device has mlx5_0/1",
		"mlx5_0/x":  "as in mlx5_0/1",
		"mlx5_0/":   "as in mlx5_0/1",
		"mlx5_0/01": "as in mlx5_0/1",
		"mlx5_0/0":  "the device has mlx5_0/1",
	} {
		rails, skipped, err := Rails(devices, Options{Devices: []string{"mlx5_1", name}})
		if !errors.Is(err, ErrUnknown) || !strings.Contains(fmt.Sprint(err), want) || rails != nil || skipped != nil {
			t.Errorf("%q: %v (%d rails), want ErrUnknown and %q", name, err, len(rails), want)
		}
	}
	if _, _, err := Rails(nil, Options{Devices: []string{"mlx5_0"}}); !errors.Is(err, ErrUnknown) {
		t.Errorf("no device at all: %v", err)
	}
	if rails, skipped, err := Rails(nil, Options{}); err != nil || len(rails)+len(skipped) != 0 {
		t.Errorf("nothing asked for and nothing there: %v %v %v", rails, skipped, err)
	}
}

func TestSkippedDeviceSaysWhatToDo(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.EACCES: "read and write access", syscall.EPERM: "read and write access",
		syscall.ENOENT: "visible", syscall.EIO: "kernel's log",
	} {
		d := Device{DeviceInfo: native.DeviceInfo{Name: "a"},
			Err: &native.CallError{Call: "ibv_open_device", Errno: int(errno)}}
		_, skipped, err := Rails([]Device{d}, Options{})
		if err != nil || len(skipped) != 1 || !strings.Contains(skipped[0].Reason, want) {
			t.Errorf("%v: %v %v, want %q", errno, skipped, err, want)
		}
	}
}

func TestRF_38_AddressIsUnwrapped(t *testing.T) {
	for gid, want := range map[string]string{
		"::ffff:10.0.1.2": "10.0.1.2", "10.0.1.2": "10.0.1.2", "2001:db8::1": "2001:db8::1", "fe80::1": "fe80::1",
	} {
		r := Rail{Device: "rxe0", Port: 2, Link: native.LinkEthernet, GID: netip.MustParseAddr(gid).As16()}
		if got := r.Address(); got.String() != want || r.Name() != "rxe0/2" {
			t.Errorf("%s of %s: %v, want %s", gid, r.Name(), got, want)
		}
	}
	if got := (Rail{Link: native.LinkInfiniBand, GID: netip.MustParseAddr("10.0.1.2").As16()}).Address(); got.IsValid() {
		t.Errorf("InfiniBand: address %v", got)
	}
}

func TestNaturalOrder(t *testing.T) {
	want := []string{"", "2", "10", "mlx5", "mlx5_0", "mlx5_02", "mlx5_2", "mlx5_10", "mlx5_10a", "mlx10_0", "rxe0",
		"rxe18446744073709551616"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, natural)
	if !slices.Equal(got, want) {
		t.Errorf("order %q, want %q", got, want)
	}
	for _, a := range want {
		for _, b := range want {
			if natural(a, b) != -natural(b, a) || (natural(a, b) == 0) != (a == b) {
				t.Errorf("natural(%q, %q) is not an order", a, b)
			}
		}
	}
}

func TestRefreshedKeepsItsGID(t *testing.T) {
	info := native.DeviceInfo{Name: "rxe0", NUMANode: -1}
	was := rail(Device{DeviceInfo: info}, ethernet(v2(1, "10.0.0.1")), v2(1, "10.0.0.1"))
	down := ethernet(v2(1, "10.0.0.1"))
	down.State = native.PortDown
	for name, c := range map[string]struct {
		port    native.PortInfo
		index   int
		address string
		reason  string
	}{
		"unchanged":           {ethernet(v2(0, "fe80::1"), v2(1, "10.0.0.1")), 1, "10.0.0.1", ""},
		"moved in the table":  {ethernet(v2(0, "fe80::1"), v2(1, "10.0.0.9"), v2(3, "10.0.0.1")), 3, "10.0.0.1", ""},
		"twice in the table":  {ethernet(v2(0, "10.0.0.1"), v2(1, "10.0.0.1")), 1, "10.0.0.1", ""},
		"not the RoCEv1 twin": {ethernet(v1(1, "10.0.0.1"), v2(2, "10.0.0.1")), 2, "10.0.0.1", ""},
		"another address":     {ethernet(v2(0, "fe80::1"), v2(1, "10.0.0.9")), 1, "10.0.0.9", ""},
		"port down":           {down, 1, "10.0.0.1", ReasonPortDown},
		"no address left":     {ethernet(), 1, "10.0.0.1", ReasonNoAddress},
	} {
		got := refreshed(info, c.port, was)
		if got.GIDIndex != c.index || got.Address().String() != c.address || got.Reason != c.reason ||
			got.Up != (c.reason == "") || got.Name() != "rxe0/1" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestRefreshedGoesBack: an address that goes and returns, as when a network device is configured again, leaves the
// rail where it was; a worse one is used only meanwhile, and one that is as good is never a reason to change.
func TestRefreshedGoesBack(t *testing.T) {
	info := native.DeviceInfo{Name: "rxe0", NUMANode: -1}
	now := rail(Device{DeviceInfo: info}, ethernet(v2(1, "10.0.0.1")), v2(1, "10.0.0.1"))
	for i, step := range []struct {
		port native.PortInfo
		want string
	}{
		{ethernet(v2(0, "fe80::1"), v2(1, "10.0.0.1")), "10.0.0.1"},
		{ethernet(v2(0, "fe80::1")), "fe80::1"},
		{ethernet(v2(0, "fe80::1"), v2(1, "2001:db8::1")), "2001:db8::1"},
		{ethernet(v2(0, "fe80::1"), v2(1, "2001:db8::1"), v2(2, "10.0.0.1")), "10.0.0.1"},
		{ethernet(v2(0, "10.0.0.9"), v2(1, "2001:db8::1"), v2(2, "10.0.0.1")), "10.0.0.1"},
		{ethernet(v2(0, "10.0.0.9"), v2(1, "2001:db8::1")), "10.0.0.9"},
		{ethernet(v2(0, "10.0.0.9"), v2(2, "10.0.0.1")), "10.0.0.9"},
		{ethernet(), "10.0.0.9"},
		{ethernet(v2(0, "fe80::1")), "fe80::1"},
		{ethernet(v2(0, "fe80::1"), v2(1, "10.0.0.9")), "10.0.0.9"},
	} {
		if now = refreshed(info, step.port, now); now.Address().String() != step.want {
			t.Fatalf("step %d: %s, want %s", i, now.Address(), step.want)
		}
	}
}
