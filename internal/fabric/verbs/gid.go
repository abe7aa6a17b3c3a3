package verbs

import (
	"net"
	"net/netip"
)

// permitted tells whether a path may lead to gid for a client whose data connection comes from peer: to the client's
// own address, to this machine's when the client is on it, or into the networks that the operator names.
func (f *Fabric) permitted(gid [16]byte, peer netip.Addr) bool {
	at := netip.AddrFrom16(gid).Unmap()
	if at.IsUnspecified() || at.IsLoopback() || at.IsMulticast() {
		return false // no adapter's
	}
	peer = peer.Unmap().WithZone("")
	if at == peer {
		return true
	}
	for _, n := range f.networks {
		if n.Contains(at) {
			return true
		}
	}
	own := ownAddresses()
	if !peer.IsLoopback() && !own[peer] {
		return false
	}
	return own[at] || f.ports.owns(gid)
}

// ownAddresses are the addresses of this machine, as they are now.
func ownAddresses() map[netip.Addr]bool {
	own := make(map[netip.Addr]bool)
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return own // nothing is known to be this machine's
	}
	for _, a := range addresses {
		if prefix, ok := a.(*net.IPNet); ok {
			if at, ok := netip.AddrFromSlice(prefix.IP); ok {
				own[at.Unmap()] = true
			}
		}
	}
	return own
}
