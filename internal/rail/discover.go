package rail

import (
	"fmt"
	"slices"

	"github.com/penstock-store/penstock/native"
)

// Look opens each adapter for a moment and asks for its ports. An adapter that does not open has its Err.
// Errors: native.ErrVerbs.
func Look(l *native.Library) ([]Device, error) {
	infos, err := l.Devices()
	if err != nil {
		return nil, fmt.Errorf("rail: devices: %w", err)
	}
	devices := make([]Device, 0, len(infos))
	for _, info := range infos {
		devices = append(devices, look(l, info))
	}
	return devices, nil
}

func look(l *native.Library, info native.DeviceInfo) Device {
	out := Device{DeviceInfo: info}
	d, err := l.OpenDevice(info.Name)
	if err != nil {
		out.Err = err
		return out
	}
	out.DeviceInfo = d.Info()
	for port := 1; port <= out.DeviceInfo.Ports; port++ {
		p, err := d.Port(port)
		if err != nil {
			out.Err = fmt.Errorf("port %d: %w", port, err)
			break
		}
		out.Ports = append(out.Ports, p)
	}
	if err := d.Close(); err != nil && out.Err == nil {
		out.Err = err
	}
	return out
}

// Discover lists the rails, in the order of their names, also those that are down, and what is none.
// Errors: native.ErrVerbs, ErrUnknown.
func Discover(l *native.Library, o Options) ([]Rail, []Skipped, error) {
	devices, err := Look(l)
	if err != nil {
		return nil, nil, err
	}
	return Rails(devices, o)
}

// Refresh asks for the state of a rail as it is now. Its GID stays the same while the port has it and none of a better
// kind, also where its place in the table has changed; otherwise it is chosen again, and without any choice the rail is
// down for ReasonNoAddress. So a rail that was left with a link-local address goes back to its own when that returns.
// The whole table is read only when the GID is not in its place, or is not of the best kind: ports are looked at every
// few seconds, and tables have hundreds of entries. Errors: native.ErrVerbs.
func Refresh(d *native.Device, was Rail) (Rail, error) {
	p, err := d.PortEntry(was.Port, was.GIDIndex)
	stays := func(g native.GID) bool {
		return was.has(p, g) && (p.Link == native.LinkInfiniBand || rank(g) == rankIPv4)
	}
	if err == nil && !slices.ContainsFunc(p.GIDs, stays) {
		p, err = d.Port(was.Port)
	}
	if err != nil {
		return was, fmt.Errorf("rail: port %s: %w", was.Name(), err)
	}
	return refreshed(d.Info(), p, was), nil
}

// has tells whether an entry of the port is the rail's GID.
func (r Rail) has(p native.PortInfo, g native.GID) bool {
	return g.Raw == r.GID && (p.Link == native.LinkInfiniBand || g.Type == native.GIDRoCEv2)
}

func refreshed(info native.DeviceInfo, p native.PortInfo, was Rail) Rail {
	d := Device{DeviceInfo: info}
	same := func(g native.GID) bool { return was.has(p, g) }
	i := slices.IndexFunc(p.GIDs, func(g native.GID) bool { return same(g) && g.Index == was.GIDIndex })
	if i < 0 {
		i = slices.IndexFunc(p.GIDs, same)
	}
	g, why := pick(p)
	switch {
	case i >= 0 && (why != "" || p.Link != native.LinkEthernet || rank(g) >= rank(p.GIDs[i])):
		return rail(d, p, p.GIDs[i])
	case why == "":
		return rail(d, p, g)
	}
	was.Up, was.Reason = false, ReasonNoAddress
	return was
}
