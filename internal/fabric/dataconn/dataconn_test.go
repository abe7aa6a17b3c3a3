package dataconn

import (
	"net"
	"testing"

	"github.com/penstock-store/penstock/internal/frame"
)

// TestHeadersAllocateNothing: a frame costs no memory, however many there are. Oracle: the allocations counted.
func TestHeadersAllocateNothing(t *testing.T) {
	l, _, err := Listen("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	var sent [frame.HeaderBytes]byte
	frame.Header{Type: frame.Ack, ID: 7, Size: 9}.Encode(sent[:])
	headers := Reader{Conn: accepted.(*net.TCPConn)}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := client.Write(sent[:]); err != nil {
			t.Error(err)
		}
		if h, err := headers.Next(); err != nil || h.ID != 7 || h.Size != 9 {
			t.Errorf("%+v, %v", h, err)
		}
	}); n != 0 {
		t.Errorf("%.1f allocations for a header", n)
	}
}
