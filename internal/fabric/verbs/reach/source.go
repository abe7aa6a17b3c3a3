package reach

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// kind of an address, where packets from one kind do not lead to another.
type kind int

const (
	none kind = iota // no adapter's
	ipv4
	ipv6
	link4 // of one link
	link6
	loopback // soft-RoCE on the loopback device: enough for a test on one host
)

func kindOf(gid [16]byte) kind {
	a := netip.AddrFrom16(gid)
	mapped := a.Is4In6()
	a = a.Unmap()
	switch {
	case a.IsUnspecified(), a.IsMulticast():
		return none
	case a.IsLoopback():
		return loopback
	case a.IsLinkLocalUnicast() && mapped:
		return link4
	case a.IsLinkLocalUnicast():
		return link6
	case mapped:
		return ipv4
	}
	return ipv6
}

// LinkLocal tells whether a GID is an address that each link has its own of.
func LinkLocal(gid [16]byte) bool {
	k := kindOf(gid)
	return k == link4 || k == link6
}

// prefixBytes of a GID name the subnet of an InfiniBand fabric.
const prefixBytes = 8

// Own tells whether a rail reaches a peer from its own GID: the peer's is an address of the same kind, or of the same
// subnet on InfiniBand, where a peer without a GID is reached by its LID.
func Own(r rail.Rail, peer [16]byte) bool {
	if r.Link == native.LinkInfiniBand {
		return peer == [16]byte{} || [prefixBytes]byte(peer[:]) == [prefixBytes]byte(r.GID[:])
	}
	k := kindOf(peer)
	return k != none && k == kindOf(r.GID)
}

// From is the entry of a rail's port, which has the table, from which it reaches a peer: its own where that will do,
// and else the first RoCEv2 entry of the peer's kind, of the rail's network device. False: there is none.
func From(r rail.Rail, table []native.GID, peer [16]byte) (native.GID, bool) {
	if Own(r, peer) {
		return native.GID{Index: r.GIDIndex, Raw: r.GID, Network: r.Network}, true
	}
	k := kindOf(peer)
	if r.Link == native.LinkInfiniBand || k == none {
		return native.GID{}, false
	}
	fit := slices.DeleteFunc(slices.Clone(table), func(g native.GID) bool {
		return g.Type != native.GIDRoCEv2 || kindOf(g.Raw) != k || g.Network != r.Network
	})
	if len(fit) == 0 {
		return native.GID{}, false
	}
	return slices.MinFunc(fit, func(a, b native.GID) int { return cmp.Compare(a.Index, b.Index) }), true
}
