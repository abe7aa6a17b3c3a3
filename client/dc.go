package client

import (
	"context"
	"net"
	"net/netip"
	"strconv"

	"github.com/penstock-store/penstock/client/target"
)

// openDC makes targets on this machine. No server is asked for that: the token tells it all that it needs.
func (f *fabricSet) openDC(ctx context.Context, devices *target.Devices) (conn, error) {
	key, err := strconv.ParseUint(f.client.cfg.DCKey, 0, 64) // checked
	if err != nil {
		return nil, err
	}
	from, to := f.client.route(ctx)
	dc, err := target.OpenDC(devices, target.DCOptions{Key: key, From: from, To: to})
	if err != nil {
		return nil, err
	}
	log := f.client.cfg.Logger
	log.Warn("DC: not yet run on hardware")
	if f.client.cfg.DCKey == DefaultDCKey {
		log.Warn("DC has the access key that everybody knows: whoever reads a token can use its memory",
			"remedy", "Config.DCKey, and rdma.dc_key of the node")
	}
	return dcConn{dc}, nil
}

// route tells which addresses requests come from and go to, without sending anything; invalid ones where that is not
// known. Behind a proxy they are not those that the server sees.
func (c *Client) route(ctx context.Context) (from, to netip.Addr) {
	port := c.base.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[c.base.Scheme]
	}
	var d net.Dialer
	probe, err := d.DialContext(ctx, "udp", net.JoinHostPort(c.base.Hostname(), port))
	if err != nil {
		return netip.Addr{}, netip.Addr{} // the request itself will tell
	}
	defer probe.Close()
	return addrOf(probe.LocalAddr()), addrOf(probe.RemoteAddr())
}

func addrOf(a net.Addr) netip.Addr {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.Addr{}
	}
	return u.AddrPort().Addr().Unmap()
}

type dcConn struct{ *target.DC }

func (d dcConn) Announce(_ context.Context, m *target.Memory) (announced, error) {
	r, err := d.DC.Register(m)
	if err != nil {
		return nil, err
	}
	return dcRegion{r}, nil
}

// dcRegion is also a fencer.
type dcRegion struct{ *target.DCRegion }

func (r dcRegion) Grant(off, n int64, _ target.Direction) (grant, error) {
	g, err := r.DCRegion.Grant(off, n)
	if err != nil {
		return nil, err
	}
	return dcGrant{g}, nil
}

type dcGrant struct{ *target.DCGrant }

func (g dcGrant) End() error {
	g.DCGrant.End()
	return nil
}
