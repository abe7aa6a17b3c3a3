package fabric

import (
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// ip6Site is the part of an IPv6 address that one site is given; it may use all addresses behind it.
const ip6Site = 8

// originOf names whom a connection counts for at the door: the user on this machine, the IPv4 address or
// the IPv6 site. Connections of which that is not known share one name.
func originOf(conn net.Conn) string {
	switch c := conn.(type) {
	case *net.UnixConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return ""
		}
		name := ""
		_ = raw.Control(func(fd uintptr) { // its error means a closed connection
			if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				name = strconv.FormatUint(uint64(peer.Uid), 10)
			}
		})
		return name
	case *net.TCPConn:
		at, ok := c.RemoteAddr().(*net.TCPAddr)
		if !ok {
			return ""
		}
		if ip4 := at.IP.To4(); ip4 != nil {
			return string(ip4)
		}
		return string(at.IP[:min(len(at.IP), ip6Site)])
	}
	return ""
}
