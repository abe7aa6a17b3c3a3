package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// placesOfNode is the limit of connections of the test node.
const placesOfNode = 32

// caller is a connection that a test holds open.
type caller struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

func (n *node) call() *caller {
	n.t.Helper()
	accepted := func() int64 { return n.listener.Connections() + n.listener.Evicted() }
	before := accepted()
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	n.t.Cleanup(func() { _ = conn.Close() })
	eventually(n.t, func() bool { return accepted() > before }) // so that the order is known
	return &caller{n.t, conn, bufio.NewReader(conn)}
}

// ask sends a request and reads its answer; the connection stays open.
func (c *caller) ask(p []byte) int {
	c.t.Helper()
	if _, err := c.conn.Write(p); err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// settle asks for something with a valid signature and waits until the node knows that the connection is idle:
// connections are taken in the order in which it has learnt that, not in which their clients got their answers.
func (n *node) settle(c *caller, p []byte) {
	n.t.Helper()
	if status := c.ask(p); status != 200 {
		n.t.Fatalf("status %d", status)
	}
	eventually(n.t, func() bool { return n.listener.Rests(c.conn.LocalAddr()) })
}

// gone tells whether the node has closed the connection.
func (c *caller) gone() bool {
	_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, err := c.in.ReadByte()
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// slowPut begins a PUT and stays in the middle of its body.
func (n *node) slowPut() *caller {
	n.t.Helper()
	c := n.call()
	before := n.g.InFlight()
	head := n.raw(request{method: "PUT", path: "/hst/slow", hash: "UNSIGNED-PAYLOAD",
		unsigned: map[string]string{"Content-Length": "100"}, body: strings.NewReader("x")})
	if _, err := c.conn.Write(head); err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, func() bool { return n.g.InFlight() > before })
	return c
}

// TestNewcomerTakesAnIdlePlace: when all places are taken, a newcomer is served, at the cost of the connection
// that has proved nothing for the longest time, then of the one that has been idle longest; one with a
// request under way stays. Oracle: which sockets the node has closed.
func TestNewcomerTakesAnIdlePlace(t *testing.T) {
	n := newNode(t)
	if got := n.send(request{method: "PUT", path: "/hst"}); got.status != 200 {
		t.Fatal(got.status)
	}
	n.client.CloseIdleConnections()
	eventually(t, func() bool { return n.listener.Connections() == 0 })
	signed := n.raw(request{method: "GET", path: "/"})

	busy := n.slowPut()
	var proved, silent []*caller
	for range 3 {
		c := n.call()
		n.settle(c, signed)
		proved = append(proved, c)
	}
	dripping := n.call() // in the middle of a header
	if _, err := dripping.conn.Write(signed[:40]); err != nil {
		t.Fatal(err)
	}
	refused := n.call() // was answered, but proved nothing
	if status := refused.ask([]byte("GET /hst/x HTTP/1.1\r\nHost: x\r\n\r\n")); status != 403 {
		t.Fatalf("status %d", status)
	}
	for int(n.listener.Connections()) < placesOfNode {
		silent = append(silent, n.call())
	}
	unproved := append([]*caller{dripping, refused}, silent...)
	var newcomers []*caller
	for i, victim := range unproved {
		c := n.call()
		n.settle(c, signed)
		newcomers = append(newcomers, c)
		if !victim.gone() {
			t.Errorf("connection %d of those that proved nothing lives", i)
		}
	}
	n.settle(proved[0], signed) // now it is the one that was idle last
	for _, victim := range []*caller{proved[1], proved[2], newcomers[0]} {
		n.settle(n.call(), signed)
		if !victim.gone() {
			t.Error("the connection that was idle longest lives")
		}
	}
	if status := busy.ask([]byte(strings.Repeat("y", 99))); status != 200 {
		t.Errorf("the request under way: status %d", status)
	}
	if status := proved[0].ask(signed); status != 200 {
		t.Errorf("a connection that was used: status %d", status)
	}
	if got, want := n.listener.Evicted(), int64(len(unproved)+3); got != want {
		t.Errorf("%d evicted, want %d", got, want)
	}
}

// TestTooManyConnectionsGetSlowDown: with a request under way on every connection, a newcomer is told to come
// again, and nobody loses an answer.
func TestTooManyConnectionsGetSlowDown(t *testing.T) {
	n := newNode(t)
	if got := n.send(request{method: "PUT", path: "/hst"}); got.status != 200 {
		t.Fatal(got.status)
	}
	n.client.CloseIdleConnections()
	eventually(t, func() bool { return n.listener.Connections() == 0 })
	var busy []*caller
	for range placesOfNode {
		busy = append(busy, n.slowPut())
	}
	resp, body := n.talk(n.raw(request{method: "GET", path: "/"}))
	if resp.StatusCode != 503 || !strings.Contains(body, "SlowDown") || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
	}
	for _, c := range busy {
		if status := c.ask([]byte(strings.Repeat("y", 99))); status != 200 {
			t.Errorf("a request under way: status %d", status)
		}
		_ = c.conn.Close()
	}
	eventually(t, func() bool { return n.listener.Connections() == 0 })
	if resp, _ := n.talk(n.raw(request{method: "GET", path: "/"})); resp.StatusCode != 200 {
		t.Errorf("afterwards: %d", resp.StatusCode)
	}
}

// TestHeadersHoldBoundedMemory: headers that never end hold 4 MiB, however many clients send them, also clients
// that have signed a request before; those who send most lose their connection, and a client that signs is served
// meanwhile.
func TestHeadersHoldBoundedMemory(t *testing.T) {
	for _, proved := range []bool{false, true} {
		t.Run(fmt.Sprint("proved ", proved), func(t *testing.T) { holdHeaders(t, proved) })
	}
}

func holdHeaders(t *testing.T, proved bool) {
	const most, each = 4 << 20, 300 << 10
	n := newNode(t)
	signed := n.raw(request{method: "GET", path: "/"})
	line := "a: " + strings.Repeat("b", 2000) + "\r\n" // long ones are parsed fast
	header := []byte("GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat(line, each/len(line)))
	var attackers []*caller
	for range placesOfNode - 2 {
		c := n.call()
		attackers = append(attackers, c)
		if proved {
			if status := c.ask(signed); status != 200 {
				t.Fatalf("status %d", status)
			}
		}
	}
	for _, c := range attackers {
		_, _ = c.conn.Write(header) // it may be closed in the middle
	}
	eventually(t, func() bool { return n.listener.Evicted() > 0 })
	for range 3 { // not by call, which cannot count connections while others end
		if resp, _ := n.talk(signed); resp.StatusCode != 200 {
			t.Errorf("an honest client: status %d", resp.StatusCode)
		}
	}
	eventually(t, func() bool {
		live := 0
		for _, c := range attackers {
			if !c.gone() {
				live++
			}
		}
		return live*len(header) <= most
	})
}

// TestBegunHeaderIsTakenLast: a connection on which the next request has begun to come outlives those without one,
// although it has been idle for longer.
func TestBegunHeaderIsTakenLast(t *testing.T) {
	n := newNode(t)
	signed := n.raw(request{method: "GET", path: "/"})
	var all []*caller
	for range placesOfNode {
		c := n.call()
		n.settle(c, signed)
		all = append(all, c)
	}
	held := n.listener.Held()
	if _, err := all[0].conn.Write(signed[:40]); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return n.listener.Held() == held+40 })
	if status := n.call().ask(signed); status != 200 {
		t.Errorf("a newcomer: status %d", status)
	}
	if !all[1].gone() {
		t.Error("the connection that was idle longest lives")
	}
	if status := all[0].ask(signed[40:]); status != 200 {
		t.Errorf("the request that had begun: status %d", status)
	}
}
