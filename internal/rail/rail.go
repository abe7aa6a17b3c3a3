// Package rail finds the RDMA rails of this machine: ports of adapters with an address that others can reach.
// It also tries them by a transfer to themselves, and says what stands in the way of RDMA.
//
// Called by: internal/fabric/verbs/rails and client/target (which ports to use), internal/fabric/verbs/initiator (state
// and probes of an open rail), internal/cli (doctor).
//
// A rail is one port of one adapter with one GID: on Ethernet the RoCEv2 entry of the port's table that holds an
// IPv4 address, or else a global IPv6 one, or else a link-local one; on InfiniBand entry 0.
//
// Invariants:
//  1. A port is either a rail or skipped, never neither: whoever looks for a port finds it, or the reason.
//  2. Choosing is a pure function of what the adapters said, so the same machine gives the same rails in the same
//     order.
//  3. Memory of a loopback transfer is unmapped only after its queue pairs were destroyed.
//
// What it does not do: health over time, choosing a rail for a transfer, moving payload.
package rail

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/penstock-store/penstock/native"
)

// ErrUnknown says that Options name a device or port that this machine has not.
var ErrUnknown = errors.New("rail: unknown device")

// Reasons of a rail that is not up.
const (
	ReasonPortDown  = "port-down"  // its port is not active: no cable, no link, or its network device is down
	ReasonNoAddress = "no-address" // its port has lost its address
)

// Rail is one port that can carry transfers.
type Rail struct {
	Device     string // "mlx5_0"
	Port       int
	Link       native.LinkLayer
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
func (r Rail) Name() string { return portName(r.Device, r.Port) }

func portName(device string, port int) string { return fmt.Sprintf("%s/%d", device, port) }

// Address is the IP address in the GID, unwrapped to IPv4 where it is one; invalid on InfiniBand.
func (r Rail) Address() netip.Addr {
	if r.Link == native.LinkInfiniBand {
		return netip.Addr{}
	}
	return netip.AddrFrom16(r.GID).Unmap()
}

// Skipped is a port, or a device, that is no rail, with the reason in words.
type Skipped struct {
	Name   string
	Reason string
}

// Options restrict Discover.
type Options struct {
	Devices []string // "mlx5_0" or "mlx5_0/1"; empty: all
}

// Device is an adapter with its ports as they were when it was looked at.
type Device struct {
	native.DeviceInfo
	Ports []native.PortInfo
	Err   error // why the ports are not known, or not all of them
}
