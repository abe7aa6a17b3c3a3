package target

import (
	"net/netip"
	"testing"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

func gid(text string) [16]byte { return netip.MustParseAddr(text).As16() }

// ours is a port that is up, with the usual subnet.
func ours(device, address string) port {
	r := rail.Rail{Device: device, Port: 1, GID: gid(address), Up: true}
	return port{Rail: r, bits: subnetBits(r)}
}

func ofIB(p port, lid uint16) port {
	p.Link, p.LID = native.LinkInfiniBand, lid
	return p
}

// Each rail of the server gets the port that reaches it best. Oracle: the tables, written by hand.
func TestPortsAreChosenForRails(t *testing.T) {
	theirs := func(address string) frame.Rail { return frame.Rail{Up: true, GID: gid(address)} }
	ib := func(address string, lid uint16) frame.Rail {
		return frame.Rail{Up: true, GID: gid(address), LID: lid}
	}
	wide := ours("d", "10.1.9.9")
	wide.bits = 16
	for name, c := range map[string]struct {
		ports []port
		rails []frame.Rail
		want  []int
	}{
		"same subnet": {[]port{ours("a", "10.0.1.2"), ours("b", "10.0.2.2")},
			[]frame.Rail{theirs("10.0.2.1"), theirs("10.0.1.1")}, []int{1, 0}},
		"its own length of prefix": {[]port{ours("a", "10.2.0.1"), wide}, []frame.Rail{theirs("10.1.0.1")}, []int{1}},
		"another subnet": {[]port{ours("a", "10.0.1.2"), ours("b", "10.0.2.2")},
			[]frame.Rail{theirs("10.9.9.1")}, []int{0}},
		"one subnet for all": {[]port{ours("a", "10.0.1.2"), ours("b", "10.0.1.3")},
			[]frame.Rail{theirs("10.0.1.11"), theirs("10.0.1.12"), theirs("10.0.1.13"), theirs("10.0.1.14")},
			[]int{0, 1, 0, 1}},
		"one device for all": {[]port{ours("a", "10.0.1.2")},
			[]frame.Rail{theirs("10.0.1.11"), theirs("10.0.2.12")}, []int{0, 0}},
		"families": {[]port{ours("a", "10.0.1.2"), ours("b", "fd00::2")},
			[]frame.Rail{theirs("fd00::1"), theirs("fd01::1"), theirs("10.0.1.1")}, []int{1, 1, 0}},
		"no such family": {[]port{ours("a", "10.0.1.2")}, []frame.Rail{theirs("fd00::1")}, []int{-1}},
		"InfiniBand": {[]port{ours("a", "10.0.1.2"), ofIB(ours("b", "fe80::2"), 7)},
			[]frame.Rail{ib("fe80::1", 3), theirs("10.0.1.1")}, []int{1, 0}},
		"InfiniBand alone": {[]port{ofIB(ours("b", "fe80::2"), 7)}, []frame.Rail{theirs("fe80::1")}, []int{-1}},
		"InfiniBand subnet": {[]port{ofIB(ours("a", "fe80::2"), 7), ofIB(ours("b", "fec0::2"), 8)},
			[]frame.Rail{ib("fec0::1", 3)}, []int{1}},
		"nothing here": {nil, []frame.Rail{theirs("10.0.1.1")}, []int{-1}},
	} {
		paths := map[string]int{}
		for i, r := range c.rails {
			got := choose(c.ports, r, paths, func(port) bool { return true })
			if got != c.want[i] {
				t.Errorf("%s: rail %d gets port %d, want %d", name, i, got, c.want[i])
			}
			if got >= 0 {
				paths[c.ports[got].Name()]++
			}
		}
	}
	up := []port{ours("a", "10.0.1.2"), ours("b", "10.0.2.2")}
	if got := choose(up, theirs("10.0.1.1"), nil, func(p port) bool { return p.Device != "a" }); got != 1 {
		t.Errorf("with the best one out, port %d is chosen", got)
	}
}
