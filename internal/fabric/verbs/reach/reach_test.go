package reach

import (
	"net"
	"net/netip"
	"testing"
)

// TestPermittedGIDs is the rule of docs/wire.md §10.2 by itself.
func TestPermittedGIDs(t *testing.T) {
	rails := map[string]bool{"10.99.0.1": true, "10.99.0.2": true}
	r := Rule{
		Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:1::/48")},
		Own:      func(gid [16]byte) bool { return rails[netip.AddrFrom16(gid).Unmap().String()] },
	}
	for _, c := range []struct {
		peer, gid string
		want      bool
	}{
		{"198.51.100.7", "198.51.100.7", true},
		{"::ffff:198.51.100.7", "198.51.100.7", true},
		{"2001:db8::7", "2001:db8::7", true},
		{"fe80::7%eth0", "fe80::7", true},
		{"198.51.100.7", "198.51.100.8", false},
		{"198.51.100.7", "192.0.2.200", true},
		{"198.51.100.7", "192.0.3.1", false},
		{"198.51.100.7", "2001:db8:1::9", true},
		{"198.51.100.7", "2001:db8:2::9", false},
		{"198.51.100.7", "10.99.0.1", false}, // this node's rail, for a client elsewhere
		{"127.0.0.1", "10.99.0.1", true},     // and for one of this machine
		{"::1", "10.99.0.2", true},
		{"127.0.0.1", "198.51.100.8", false},
		{"127.0.0.1", "127.0.0.1", false},
		{"::1", "::1", false},
	} {
		if got := r.Permits(netip.MustParseAddr(c.gid).As16(), netip.MustParseAddr(c.peer)); got != c.want {
			t.Errorf("peer %s, GID %s: %v", c.peer, c.gid, got)
		}
	}
}

// TestOnDevice: each address of this machine is its device's and no other's.
func TestOnDevice(t *testing.T) {
	devices, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for _, d := range devices {
		addresses, err := d.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				t.Fatal(err)
			}
			looked++
			if !OnDevice(prefix.Addr().As16(), d.Name) {
				t.Errorf("%s has %s, and it is not found", d.Name, a)
			}
		}
		if gid := netip.MustParseAddr("fe80::dead:beef").As16(); OnDevice(gid, d.Name) {
			t.Errorf("%s has what nobody has", d.Name)
		}
	}
	if looked == 0 {
		t.Skip("this machine has no address")
	}
	if OnDevice(netip.MustParseAddr("127.0.0.1").As16(), "no-such-device") {
		t.Error("a device that is not there has an address")
	}
}
