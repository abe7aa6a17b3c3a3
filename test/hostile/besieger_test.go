package hostile

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// besiegeVariable, set in the environment, makes the test binary a process that besieges a node until its
// input ends.
const besiegeVariable = "PENSTOCK_HOSTILE_SIEGE"

// siege is what a besieging process does: it keeps Count connections open, each of which sends Opening,
// reads one answer if Answered, and then Drip each Pause, endlessly. A connection that the node closes is
// opened again, at most Rate of them a second: an attack that costs as much as it takes is none.
type siege struct {
	Name             string
	Network, Address string
	Count            int
	Opening          [][]byte // taken in turn
	Answered         bool
	Drip             []byte
	Pause            time.Duration
	Rate             int
	SmallBuffer      bool // of the receiving side: what is not read stays with the node
	// HoldsHTTP says that the attackers have a key and hold the buffers of HTTP payloads: others who move
	// payload over HTTP may be told to slow down, those who move it by a fabric must not notice.
	HoldsHTTP bool
}

// besiege is the body of the process. It says "ready" once every connection was opened.
func besiege(text string) int {
	var s siege
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fail(err)
	}
	opened := make(chan struct{}, s.Count)
	// again lets one connection be opened again for each token. Who waits for one sleeps: thousands that look
	// for it by turns would take CPU from the node, which attackers elsewhere do not.
	again := make(chan struct{})
	go func() {
		for range time.Tick(100 * time.Millisecond) {
			for range max(1, s.Rate/10) {
				select {
				case again <- struct{}{}:
				default: // nobody waits
				}
			}
		}
	}()
	for i := range s.Count {
		go func() {
			for first := true; ; first = false {
				if !first {
					<-again
				}
				conn, err := s.open(i)
				if first {
					opened <- struct{}{}
				}
				if err == nil {
					s.hold(conn)
					_ = conn.Close()
				}
			}
		}()
		if i%64 == 63 {
			<-time.After(time.Millisecond) // not faster than a backlog holds
		}
	}
	for range s.Count {
		<-opened
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func (s *siege) open(i int) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	if s.Network == "tcp" { // more addresses, more ports
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%4))}
	}
	conn, err := d.Dial(s.Network, s.Address)
	if err != nil {
		return nil, err
	}
	if t, ok := conn.(*net.TCPConn); ok && s.SmallBuffer {
		_ = t.SetReadBuffer(4096)
	}
	if len(s.Opening) > 0 {
		if _, err := conn.Write(s.Opening[i%len(s.Opening)]); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	if s.Answered {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = conn.SetReadDeadline(time.Time{})
	}
	return conn, nil
}

// hold keeps a connection until the node closes it.
func (s *siege) hold(conn net.Conn) {
	if len(s.Drip) == 0 {
		if s.SmallBuffer { // reads nothing; the node's end shows in the socket's state
			for range time.Tick(time.Second) {
				if closedByPeer(conn) {
					return
				}
			}
		}
		_, _ = conn.Read(make([]byte, 1))
		return
	}
	for range time.Tick(s.Pause) {
		if _, err := conn.Write(s.Drip); err != nil {
			return
		}
	}
}

func closedByPeer(conn net.Conn) bool {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return true
	}
	const established = 1
	state := uint8(0)
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	})
	return state != established
}

// helloOf is the first flight of a TLS client.
func helloOf() []byte {
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, &tls.Config{ServerName: "localhost"}).Handshake() // the pipe's end ends it
	}()
	var b bytes.Buffer
	header := make([]byte, 5)
	if _, err := io.ReadFull(far, header); err == nil {
		b.Write(header)
		_, _ = io.CopyN(&b, far, int64(header[3])<<8|int64(header[4]))
	}
	_ = far.Close()
	_ = near.Close()
	return b.Bytes()
}

// repeated is text again and again, n bytes.
func repeated(text string, n int) []byte { return []byte(strings.Repeat(text, n/len(text)+1)[:n]) }
