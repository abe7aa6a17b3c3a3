package gateway_test

import (
	"io"
	"net"
	"testing"
)

// TestPeerGoneBehindPipelinedBytes: net/http stops watching a connection once the client has sent the
// first byte of another request; its end counts nevertheless.
func TestPeerGoneBehindPipelinedBytes(t *testing.T) {
	n, _ := rdmaNode(t)
	n.fabric.gate, n.fabric.entered = make(chan struct{}), make(chan struct{}, 8)
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(n.raw(withToken("PUT", "/rdm/gone", tokenFor(0, 1<<20)))); err != nil {
		t.Fatal(err)
	}
	<-n.fabric.entered
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	close(n.fabric.gate)
	eventually(t, func() bool { return n.g.InFlight() == 0 })
	n.fabric.gate, n.fabric.entered = nil, nil
	if got := n.send(request{method: "HEAD", path: "/rdm/gone"}); got.status != 404 {
		t.Error("committed for a client that went away")
	}
}
