package gateway

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// crowd orders the connections that run no request by how little is lost with them. When a listener is
// full, a newcomer takes the place of one of them:
//
//  1. of those that never had a request with a valid signature, the one that has waited longest, also
//     when it is in the middle of a TLS handshake or a header: whoever means to sign does so at once;
//  2. of those that had one, the one that has been idle longest. Its client has to expect that anyway:
//     idle connections end. One whose next header has begun to come is taken last.
//
// A connection with a request in a handler, or with an answer on its way to a client that signed, stays, and a
// request does not begin on one that was given up.
//
// It also bounds what net/http holds of headers that are not complete: beyond maxHeld bytes in all, the
// connection that has sent most of them is closed. Whoever means to be served sends a header at once.
type crowd struct {
	mu      sync.Mutex
	fresh   list.List // of *conn: nothing proved, oldest first
	idle    list.List // of *conn: proved and between requests, or in the middle of a header, longest first
	reading list.List // of *conn: proved, with a header that was read and has not reached its handler
	held    int64     // bytes of headers, read outside of handlers
}

// maxHeld is enough for 1,024 clients whose headers of 4 KiB have come in part, which they do for
// milliseconds. Parsed, a byte of a header of the shortest lines takes up to 20 in memory, and as much
// again until it is collected.
const maxHeld = 4 << 20

// wait puts a connection at the end of a list.
func (k *crowd) wait(l *list.List, c *conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.push(l, c)
}

func (k *crowd) push(l *list.List, c *conn) {
	k.drop(c)
	if !c.closed.Load() {
		c.place, c.list = l.PushBack(c), l
	}
}

// leave says that a connection is closed.
func (k *crowd) leave(c *conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(c)
	k.forget(c)
}

func (k *crowd) drop(c *conn) {
	if c.place != nil {
		c.list.Remove(c.place)
		c.place, c.list = nil, nil
	}
}

// take removes the connection with which least is lost, or returns nil.
func (k *crowd) take() *conn {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.fresh.Front()
	if e == nil {
		e = k.idle.Front()
		for next := e; next != nil; next = next.Next() {
			if next.Value.(*conn).held == 0 {
				e = next
				break
			}
		}
	}
	if e == nil {
		return nil
	}
	c := e.Value.(*conn)
	k.drop(c)
	c.lost = true
	return c
}

// hold counts bytes that were read outside of handlers. out is the connection to close, or nil.
func (k *crowd) hold(c *conn, n int) (out *conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.serving || c.closed.Load() {
		return nil
	}
	c.held += int64(n)
	if k.held += int64(n); k.held <= maxHeld {
		return nil
	}
	for _, l := range []*list.List{&k.fresh, &k.idle, &k.reading} {
		for e := l.Front(); e != nil; e = e.Next() {
			if other := e.Value.(*conn); out == nil || other.held > out.held {
				out = other
			}
		}
	}
	if out != nil {
		k.drop(out)
		k.forget(out)
		out.lost = true
	}
	return out
}

// forget takes back what hold has counted.
func (k *crowd) forget(c *conn) {
	k.held -= c.held
	c.held = 0
}

// enter says that a request of the connection has reached its handler. It is false when the connection was
// given up before: then the request must not begin, since nobody would hear of its outcome.
func (c *conn) enter() bool {
	if c == nil {
		return true
	}
	k := &c.listener.crowd
	k.serve(c, true)
	k.mu.Lock()
	defer k.mu.Unlock()
	return !c.lost
}

// serve notes whether a handler has the connection.
func (k *crowd) serve(c *conn, serving bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(c)
	k.forget(c)
	c.serving = serving
	if !serving && !c.proved.Load() {
		k.push(&k.fresh, c)
	}
}

// prove says that the connection had a request with a valid signature.
func (c *conn) prove() {
	if c != nil {
		c.proved.Store(true)
	}
}

// exit says that the handler has returned. What it answered may not be sent yet, so a connection that
// has proved something waits for ConnState.
func (c *conn) exit() {
	if c != nil {
		c.listener.crowd.serve(c, false)
	}
}

// ConnState goes into http.Server.ConnState.
func ConnState(nc net.Conn, state http.ConnState) {
	c := ownConn(nc)
	if c == nil {
		return
	}
	k := &c.listener.crowd
	switch state {
	case http.StateIdle: // the rest of the request was read, and nothing is held of it
		k.rest(c)
	case http.StateActive:
		if c.proved.Load() {
			k.wait(&k.reading, c)
		}
	case http.StateNew, http.StateHijacked, http.StateClosed: // Close has left the lists
	}
}

// rest says that a connection waits for its next request.
func (k *crowd) rest(c *conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.proved.Load() {
		k.push(&k.idle, c)
	}
	k.forget(c)
}

// ownConn is the connection of a Listener below what net/http sees, or nil.
func ownConn(nc net.Conn) *conn {
	for {
		if c, ok := nc.(*conn); ok {
			return c
		}
		outer, ok := nc.(interface{ NetConn() net.Conn }) // TLS, and what watches answers
		if !ok {
			return nil
		}
		nc = outer.NetConn()
	}
}
