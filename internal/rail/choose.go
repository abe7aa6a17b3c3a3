package rail

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-store/penstock/native"
)

// Rails sorts the ports of the devices into rails and what is none, both in the order of their names.
// Errors: ErrUnknown.
func Rails(devices []Device, o Options) ([]Rail, []Skipped, error) {
	devices = slices.SortedFunc(slices.Values(devices), func(a, b Device) int { return natural(a.Name, b.Name) })
	wanted, err := filter(devices, o.Devices)
	if err != nil {
		return nil, nil, err
	}
	var rails []Rail
	var skipped []Skipped
	for _, d := range devices {
		for _, p := range d.Ports {
			name := portName(d.Name, p.Number)
			if !wanted(d.Name, p.Number) {
				skipped = append(skipped, Skipped{name, "not among the chosen devices"})
				continue
			}
			g, why := pick(p)
			if why != "" {
				skipped = append(skipped, Skipped{name, why})
				continue
			}
			rails = append(rails, rail(d, p, g))
		}
		switch {
		case d.Err != nil:
			skipped = append(skipped, Skipped{d.Name, notOpen(d.Err)})
		case len(d.Ports) == 0:
			skipped = append(skipped, Skipped{d.Name, "has no port: look at the kernel's log for its driver"})
		}
	}
	return rails, skipped, nil
}

// notOpen says what to do about an adapter that does not open.
func notOpen(err error) string {
	remedy := "look at the kernel's log for its driver"
	switch {
	case errors.Is(err, fs.ErrPermission):
		remedy = "give this process read and write access to /dev/infiniband"
	case errors.Is(err, fs.ErrNotExist):
		remedy = "make /dev/infiniband visible here, in a container by its device options"
	}
	return fmt.Sprintf("does not open (%v): %s", err, remedy)
}

func rail(d Device, p native.PortInfo, g native.GID) Rail {
	r := Rail{
		Device: d.Name, Port: p.Number, Link: p.Link, GIDIndex: g.Index, GID: g.Raw, LID: p.LID, Network: g.Network,
		NUMANode: d.NUMANode, MTU: p.MTU, MaxMessage: p.MaxMessage, Up: p.State == native.PortActive,
	}
	if !r.Up {
		r.Reason = ReasonPortDown
	}
	return r
}

// filter returns what tells whether a port was chosen.
func filter(devices []Device, names []string) (func(device string, port int) bool, error) {
	if len(names) == 0 {
		return func(string, int) bool { return true }, nil
	}
	for _, name := range names {
		if err := known(devices, name); err != nil {
			return nil, err
		}
	}
	return func(device string, port int) bool {
		return slices.Contains(names, device) || slices.Contains(names, portName(device, port))
	}, nil
}

// known tells whether there is such a device or port. A device that does not open keeps its number of ports to itself,
// so each of its ports is taken as known.
func known(devices []Device, name string) error {
	device, number, withPort := strings.Cut(name, "/")
	i := slices.IndexFunc(devices, func(d Device) bool { return d.Name == device })
	if i < 0 {
		if len(devices) == 0 {
			return fmt.Errorf("%w %q: this machine has none", ErrUnknown, name)
		}
		return fmt.Errorf("%w %q: this machine has %s", ErrUnknown, name, strings.Join(deviceNames(devices), ", "))
	}
	if !withPort {
		return nil
	}
	port, err := strconv.Atoi(number)
	if err != nil || portName(device, port) != name {
		return fmt.Errorf("%w %q: write device or device/port, as in %s/1", ErrUnknown, name, device)
	}
	d := devices[i]
	if d.Err == nil && !slices.ContainsFunc(d.Ports, func(p native.PortInfo) bool { return p.Number == port }) {
		var ports []string
		for _, p := range d.Ports {
			ports = append(ports, portName(device, p.Number))
		}
		return fmt.Errorf("%w %q: the device has %s", ErrUnknown, name, strings.Join(ports, ", "))
	}
	return nil
}

func deviceNames(devices []Device) []string {
	out := make([]string, len(devices))
	for i, d := range devices {
		out[i] = d.Name
	}
	return out
}

// pick returns the entry of the port's table that a rail uses, or in words why there is none.
func pick(p native.PortInfo) (native.GID, string) {
	switch p.Link {
	case native.LinkInfiniBand:
		return pickInfiniBand(p)
	case native.LinkEthernet:
		return pickEthernet(p)
	}
	return native.GID{}, "speaks neither Ethernet nor InfiniBand: other links are not supported"
}

func pickInfiniBand(p native.PortInfo) (native.GID, string) {
	for _, g := range p.GIDs {
		if g.Index == 0 {
			return g, ""
		}
	}
	return native.GID{}, "has no GID 0: is a subnet manager running?"
}

func pickEthernet(p native.PortInfo) (native.GID, string) {
	if len(p.GIDs) == 0 {
		return native.GID{}, "has no address: bring its network device up and give it an IP address"
	}
	own := slices.MinFunc(p.GIDs, func(a, b native.GID) int { return cmp.Compare(a.Index, b.Index) }).Network
	foreign := func(g native.GID) int { // VLANs and the like share the table of the port
		if g.Network == own {
			return 0
		}
		return 1
	}
	best := slices.MinFunc(p.GIDs, func(a, b native.GID) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(foreign(a), foreign(b)),
			cmp.Compare(a.Index, b.Index))
	})
	if rank(best) == rankUnusable {
		return native.GID{}, notUsable(p)
	}
	return best, ""
}

// notUsable says why none of the entries will do.
func notUsable(p native.PortInfo) string {
	for _, g := range p.GIDs {
		if g.Type == native.GIDRoCEv2 {
			return "has no unicast address: give its network device an IP address"
		}
	}
	for _, g := range p.GIDs {
		if g.Type == native.GIDRoCEv1 {
			return "speaks RoCEv1 only: switch RoCEv2 on in the adapter's firmware or driver"
		}
	}
	return "has no RoCEv2 entry (iWARP?): a RoCEv2 adapter is needed"
}

// Ranks of the entries of a table, the best first.
const (
	rankIPv4 = iota
	rankIPv6
	rankLinkLocal4
	rankLinkLocal6
	rankLoopback // soft-RoCE on the loopback device: enough for a test on one host
	rankUnusable
)

// rank says how good an entry of a table is for others to reach. IPv4 comes first since clients and tokens name rails
// by it; what is link-local needs a shared link.
func rank(g native.GID) int {
	a := netip.AddrFrom16(g.Raw)
	mapped := a.Is4In6()
	a = a.Unmap()
	switch {
	case g.Type != native.GIDRoCEv2, a.IsUnspecified(), a.IsMulticast():
		return rankUnusable
	case a.IsLoopback():
		return rankLoopback
	case a.IsLinkLocalUnicast() && mapped:
		return rankLinkLocal4
	case a.IsLinkLocalUnicast():
		return rankLinkLocal6
	case mapped:
		return rankIPv4
	}
	return rankIPv6
}

// natural compares names with the numbers in them as numbers: mlx5_2 comes before mlx5_10.
func natural(a, b string) int {
	for a != "" && b != "" {
		x, restA := run(a)
		y, restB := run(b)
		m, errA := strconv.ParseUint(x, 10, 64)
		n, errB := strconv.ParseUint(y, 10, 64)
		order := cmp.Compare(x, y)
		if errA == nil && errB == nil {
			order = cmp.Or(cmp.Compare(m, n), order)
		}
		if order != 0 {
			return order
		}
		a, b = restA, restB
	}
	return cmp.Compare(a, b)
}

// run cuts the digits, or the other characters, that s begins with.
func run(s string) (head, rest string) {
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	n := 1
	for n < len(s) && digit(s[n]) == digit(s[0]) {
		n++
	}
	return s[:n], s[n:]
}
