package target

import (
	"net"
	"net/netip"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// Prefix lengths where the network device does not tell its own: the usual ones.
const (
	usualBits4 = 24
	usualBits6 = 64
)

// port is a port of ours, with the length of its subnet's prefix.
type port struct {
	rail.Rail
	bits int
}

// subnets adds what the network devices know of their subnets.
func subnets(rails []rail.Rail) []port {
	ports := make([]port, len(rails))
	for i, r := range rails {
		ports[i] = port{Rail: r, bits: subnetBits(r)}
	}
	return ports
}

func subnetBits(r rail.Rail) int {
	own := netip.AddrFrom16(r.GID).Unmap()
	if dev, err := net.InterfaceByName(r.Network); err == nil {
		addrs, _ := dev.Addrs() // without them, the usual length
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == own {
				return p.Bits()
			}
		}
	}
	if own.Is4() {
		return usualBits4
	}
	return usualBits6
}

func (p port) infiniBand() bool { return p.Link == native.LinkInfiniBand }

// Ranks of a port for a rail; zero means that it cannot reach it.
const (
	rankLink   = iota + 1 // same kind of link and family of addresses
	rankSubnet            // same subnet
)

// rank says how well the port reaches the server's rail.
func (p port) rank(r frame.Rail) int {
	own, peer := netip.AddrFrom16(p.GID).Unmap(), netip.AddrFrom16(r.GID).Unmap()
	if p.infiniBand() != (r.LID != 0 && !peer.Is4()) { // ports on Ethernet have no LID, or one that means nothing
		return 0
	}
	const subnetPrefix = 8 // bytes of a GID on InfiniBand
	if p.infiniBand() {
		if [subnetPrefix]byte(p.GID[:]) == [subnetPrefix]byte(r.GID[:]) {
			return rankSubnet
		}
		return rankLink
	}
	if own.Is4() != peer.Is4() {
		return 0
	}
	if prefix, err := own.Prefix(p.bits); err == nil && prefix.Contains(peer) {
		return rankSubnet
	}
	return rankLink
}

// choose finds the port for a rail: in its subnet first, then the one with the fewest paths, then the first. Of those
// that usable refuses none is chosen. -1: no port reaches the rail.
func choose(ports []port, r frame.Rail, paths map[string]int, usable func(port) bool) int {
	best := -1
	for i, p := range ports {
		rank := p.rank(r)
		if rank == 0 || !usable(p) {
			continue
		}
		if best < 0 || rank > ports[best].rank(r) ||
			(rank == ports[best].rank(r) && paths[p.Name()] < paths[ports[best].Name()]) {
			best = i
		}
	}
	return best
}
