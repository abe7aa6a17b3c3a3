package gateway

import (
	"net"
	"testing"
	"time"
)

// TestArrivalCountsTheAcceptQueue: bytes that waited in the kernel before Accept arrived when they came,
// not when they were read. The oracle is the clock of the test.
func TestArrivalCountsTheAcceptQueue(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(inner, 1, time.Second)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("GET / HTTP/1.1\r\n")); err != nil {
		t.Fatal(err)
	}
	sent := time.Now()
	<-time.After(300 * time.Millisecond)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	at := c.(*conn).arrival(time.Now())
	if late := at.Sub(sent); late > 100*time.Millisecond || late < -100*time.Millisecond {
		t.Errorf("arrival is %v after the bytes were sent", late)
	}
	if l.Connections() != 1 {
		t.Errorf("%d connections", l.Connections())
	}
}

// Held is how many bytes of headers the listener believes to be held: that a byte has arrived shows nowhere else.
func (l *Listener) Held() int64 {
	l.crowd.mu.Lock()
	defer l.crowd.mu.Unlock()
	return l.crowd.held
}

// Rests says whether the connection from a client's address is among those that wait for their next request. The
// client has the last answer before that.
func (l *Listener) Rests(client net.Addr) bool {
	l.crowd.mu.Lock()
	defer l.crowd.mu.Unlock()
	for e := l.crowd.idle.Front(); e != nil; e = e.Next() {
		if e.Value.(*conn).RemoteAddr().String() == client.String() {
			return true
		}
	}
	return false
}

// TestNoRequestBeginsOnALostConnection: between the choice of a connection for a newcomer and its end, a request on it
// may have been read; it must not begin. Oracle: the order of the calls.
func TestNoRequestBeginsOnALostConnection(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(inner, 2, time.Second)
	defer l.Close()
	var all [2]*conn
	for i := range all {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all[i] = c.(*conn)
	}
	if lost := l.crowd.take(); lost != all[0] {
		t.Fatal("the connection that waits longest is not the first one")
	}
	if all[0].enter() {
		t.Error("a request begins on a connection that was given up")
	}
	if !all[1].enter() {
		t.Error("no request begins on the other one")
	}
	if lost := l.crowd.take(); lost != nil {
		t.Error("a connection with a request was given up")
	}
}
