// Package reach says where queue pairs of this node may lead, which GIDs belong to a client, and from which address of
// a rail they are reached.
//
// Called by: internal/fabric/verbs, its rails and its initiator.
//
// Invariants:
//  1. A GID is permitted only where it is the peer's own address, lies in a network that the operator names, or is this
//     machine's and the peer is on it.
//  2. Where a queue pair begins is a pure function of the port's table: an address of the peer's kind.
//
// What it does not do: asking adapters; choosing among rails.
package reach

import (
	"net"
	"net/netip"
)

// Rule is where queue pairs may lead.
type Rule struct {
	Networks []netip.Prefix          // where GIDs of clients may lie besides their own addresses
	Own      func(gid [16]byte) bool // tells whether a GID is that of one of this node's rails
}

// Permits tells whether a queue pair may lead to gid for a client whose connection comes from peer: to the client's
// own address, to this machine's when the client is on it, or into the networks that the operator names. On which link
// a link-local address is, it does not look at: see rails.Rail.Links.
func (r Rule) Permits(gid [16]byte, peer netip.Addr) bool {
	at := netip.AddrFrom16(gid).Unmap()
	if at.IsUnspecified() || at.IsLoopback() || at.IsMulticast() {
		return false // no adapter's
	}
	peer = peer.Unmap().WithZone("")
	if at == peer {
		return true
	}
	for _, n := range r.Networks {
		if n.Contains(at) {
			return true
		}
	}
	own := ownAddresses()
	if !peer.IsLoopback() && !own[peer] {
		return false
	}
	return own[at] || r.Own(gid)
}

// OnDevice tells whether a GID is an address of a network device of this machine, as they are now.
func OnDevice(gid [16]byte, device string) bool {
	d, err := net.InterfaceByName(device)
	if err != nil {
		return false // nor is anything known to be its own
	}
	addresses, err := d.Addrs()
	return err == nil && addressesOf(addresses)[netip.AddrFrom16(gid).Unmap()]
}

// ownAddresses are the addresses of this machine, as they are now.
func ownAddresses() map[netip.Addr]bool {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil // nothing is known to be this machine's
	}
	return addressesOf(addresses)
}

func addressesOf(all []net.Addr) map[netip.Addr]bool {
	own := make(map[netip.Addr]bool)
	for _, a := range all {
		if prefix, ok := a.(*net.IPNet); ok {
			if at, ok := netip.AddrFromSlice(prefix.IP); ok {
				own[at.Unmap()] = true
			}
		}
	}
	return own
}
