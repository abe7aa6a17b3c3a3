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
//     idle connections end.
//
// A connection with a request in a handler, or with an answer on its way to a client that signed, stays.
type crowd struct {
	mu    sync.Mutex
	fresh list.List // of *conn: nothing proved, oldest first
	idle  list.List // of *conn: proved and between requests, longest first
}

// wait puts a connection at the end of a list.
func (k *crowd) wait(l *list.List, c *conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(c)
	if !c.closed.Load() {
		c.place, c.list = l.PushBack(c), l
	}
}

// leave takes a connection out of the lists.
func (k *crowd) leave(c *conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(c)
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
	}
	if e == nil {
		return nil
	}
	c := e.Value.(*conn)
	k.drop(c)
	return c
}

// enter says that a request of the connection has reached its handler.
func (c *conn) enter() {
	if c != nil {
		c.listener.crowd.leave(c)
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
	if c != nil && !c.proved.Load() {
		c.listener.crowd.wait(&c.listener.crowd.fresh, c)
	}
}

// ConnState goes into http.Server.ConnState.
func ConnState(nc net.Conn, state http.ConnState) {
	c := ownConn(nc)
	if c == nil || !c.proved.Load() {
		return
	}
	switch state {
	case http.StateIdle:
		c.listener.crowd.wait(&c.listener.crowd.idle, c)
	case http.StateActive:
		c.listener.crowd.leave(c)
	case http.StateNew, http.StateHijacked, http.StateClosed: // Close has left the lists
	}
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
