package fabric

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestOriginOf: connections are told apart by user and by address, not by port.
func TestOriginOf(t *testing.T) {
	accept := func(network, address, from string) net.Conn {
		t.Helper()
		l, err := net.Listen(network, address)
		if err != nil {
			t.Skipf("%s %s: %v", network, address, err) // a machine without IPv6
		}
		defer l.Close()
		d := net.Dialer{}
		if from != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		c, err := d.Dial(network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	user := accept("unix", filepath.Join(t.TempDir(), "s"), "")
	if got := originOf(user); got != strconv.Itoa(os.Getuid()) {
		t.Errorf("origin of this user is %q", got)
	}
	one, again := accept("tcp4", "127.0.0.1:0", "127.0.0.1"), accept("tcp4", "127.0.0.1:0", "127.0.0.1")
	other := accept("tcp4", "127.0.0.1:0", "127.0.0.2")
	if originOf(one) != originOf(again) || originOf(one) == originOf(other) || originOf(one) == "" {
		t.Errorf("origins %q, %q, %q", originOf(one), originOf(again), originOf(other))
	}
	if got := originOf(accept("tcp6", "[::1]:0", "")); len(got) != ip6Site {
		t.Errorf("origin of an IPv6 address: %q", got)
	}
}
