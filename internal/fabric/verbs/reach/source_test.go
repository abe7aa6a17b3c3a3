package reach

import (
	"net/netip"
	"testing"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

func gidOf(text string) [16]byte { return netip.MustParseAddr(text).As16() }

// TestFrom: a peer is reached from an entry of its own kind, the rail's where that is one.
func TestFrom(t *testing.T) {
	table := []native.GID{
		{Index: 0, Raw: gidOf("fe80::1"), Type: native.GIDRoCEv1, Network: "eth0"},
		{Index: 1, Raw: gidOf("10.0.0.1"), Type: native.GIDRoCEv1, Network: "eth0"},
		{Index: 3, Raw: gidOf("2001:db8::2"), Type: native.GIDRoCEv2, Network: "eth0.7"},
		{Index: 9, Raw: gidOf("fe80::3"), Type: native.GIDRoCEv2, Network: "eth0"},
		{Index: 5, Raw: gidOf("fe80::1"), Type: native.GIDRoCEv2, Network: "eth0"},
		{Index: 6, Raw: gidOf("10.0.0.1"), Type: native.GIDRoCEv2, Network: "eth0"},
		{Index: 7, Raw: gidOf("10.0.0.2"), Type: native.GIDRoCEv2, Network: "eth0"},
		{Index: 8, Raw: gidOf("2001:db8::1"), Type: native.GIDRoCEv2, Network: "eth0"},
		{Index: 10, Raw: gidOf("169.254.1.1"), Type: native.GIDRoCEv2, Network: "eth0"},
	}
	at := func(index int) rail.Rail {
		for _, g := range table {
			if g.Index == index {
				return rail.Rail{Link: native.LinkEthernet, GIDIndex: index, GID: g.Raw, Network: g.Network}
			}
		}
		t.Fatal(index)
		return rail.Rail{}
	}
	infiniband := rail.Rail{Link: native.LinkInfiniBand, GID: gidOf("fe80::7:1")}
	for _, c := range []struct {
		own  rail.Rail
		peer string
		want int // -1: it is not reached
	}{
		{at(6), "10.9.9.9", 6},
		{at(7), "10.9.9.9", 7},
		{at(6), "198.51.100.1", 6},
		{at(8), "10.9.9.9", 6},
		{at(6), "2001:db8::99", 8},
		{at(6), "fe80::99", 5},
		{at(9), "fe80::99", 9},
		{at(6), "169.254.9.9", 10},
		{at(6), "127.0.0.1", -1},
		{at(6), "::", -1},
		{at(6), "0.0.0.0", -1},
		{at(6), "224.0.0.1", -1},
		{at(6), "ff02::1", -1},
		{at(3), "fe80::99", -1}, // those of another network device do not count
		{infiniband, "fe80::9:9", 0},
		{infiniband, "::", 0},
		{infiniband, "fec0::9:9", -1},
		{infiniband, "10.9.9.9", -1},
	} {
		got, ok := From(c.own, table, gidOf(c.peer))
		if ok != (c.want >= 0) || ok && got.Index != c.want {
			t.Errorf("from %v to %s: entry %d %v, want %d", c.own.Address(), c.peer, got.Index, ok, c.want)
		}
		if ok && got.Index != c.own.GIDIndex && Own(c.own, gidOf(c.peer)) {
			t.Errorf("from %v to %s: not from its own, though it could", c.own.Address(), c.peer)
		}
	}
}
