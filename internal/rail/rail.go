// Package rail finds the RDMA rails of this machine: ports of adapters with an address that others can reach.
//
// Called by: internal/fabric/verbs and client/target (which ports to use), internal/cli (doctor).
//
// A rail is one port of one adapter with one GID: on Ethernet the RoCEv2 entry of the port's table that holds an
// IPv4 address, or else a global IPv6 one, or else a link-local one; on InfiniBand entry 0.
//
// What it does not do: health over time, choosing a rail for a transfer, moving payload.
package rail

import (
	"net/netip"

	"github.com/penstock-store/penstock/native"
)

// Rail is one port that can carry transfers.
type Rail struct {
	Device     string // "mlx5_0"
	Port       int
	GIDIndex   int
	GID        [16]byte
	LID        uint16
	Network    string // name of the network device; empty on InfiniBand
	NUMANode   int    // -1: not known
	MTU        int    // active, bytes
	MaxMessage uint32 // bytes
	Up         bool
	Reason     string // why it is not up; one word
}

// Name is "mlx5_0/1".
func (r Rail) Name() string { return "" }

// Address is the IP address in the GID, unwrapped to IPv4 where it is one; invalid on InfiniBand.
func (r Rail) Address() netip.Addr { return netip.Addr{} }

// Skipped is a port, or a device, that is no rail, with the reason in words.
type Skipped struct {
	Name   string
	Reason string
}

// Options restrict Discover.
type Options struct {
	Devices []string // "mlx5_0" or "mlx5_0/1"; empty: all
}

// Discover lists the rails, in the order of their names, also those that are down, and what is none.
// Errors: native.ErrVerbs.
func Discover(*native.Library, Options) ([]Rail, []Skipped, error) { return nil, nil, nil }
