package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// breakAfterBytes is how much of an upload passes before the node is killed: some parts are done,
// others are under way.
const breakAfterBytes = 20 * mib

// breaker forwards connections to a node, and kills and restarts the node once enough bytes have
// passed. Connections made meanwhile wait.
type breaker struct {
	listener net.Listener
	node     *node
	ctx      context.Context
	passed   atomic.Int64
	once     sync.Once
	work     sync.WaitGroup

	up sync.RWMutex // held for writing while the node is down

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	err   error
	broke bool
}

func newBreaker(ctx context.Context, n *node) (*breaker, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("breaker: listen: %w", err)
	}
	b := &breaker{listener: l, node: n, ctx: ctx, conns: map[net.Conn]struct{}{}}
	b.work.Add(1)
	go b.accept()
	return b, nil
}

func (b *breaker) accept() {
	defer b.work.Done()
	for {
		from, err := b.listener.Accept()
		if err != nil {
			return // closed
		}
		b.work.Add(1)
		go func() {
			defer b.work.Done()
			b.forward(from)
		}()
	}
}

func (b *breaker) forward(from net.Conn) {
	defer from.Close()
	b.up.RLock()
	to, err := net.Dial("tcp", b.node.host)
	b.up.RUnlock()
	if err != nil {
		return // the client sees a closed connection
	}
	defer to.Close()
	b.track(from, true)
	defer b.track(from, false)
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(from, to)
		_ = from.Close() // wakes the other direction
	}()
	_, _ = io.Copy(counted{to, b}, from)
	_ = to.Close()
	<-back
}

func (b *breaker) track(c net.Conn, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if open {
		b.conns[c] = struct{}{}
	} else {
		delete(b.conns, c)
	}
}

// counted is a writer to the node that breaks it when enough has passed.
type counted struct {
	io.Writer
	b *breaker
}

func (c counted) Write(p []byte) (int, error) {
	if c.b.passed.Add(int64(len(p))) > breakAfterBytes {
		c.b.once.Do(c.b.restart)
	}
	return c.Writer.Write(p)
}

func (b *breaker) restart() {
	b.up.Lock()
	defer b.up.Unlock()
	b.node.kill()
	b.mu.Lock()
	for c := range b.conns {
		_ = c.Close()
	}
	b.mu.Unlock()
	err := b.node.start(b.ctx)
	b.mu.Lock()
	b.err, b.broke = err, true
	b.mu.Unlock()
}

// close ends the forwarding and says when the node was not broken or did not come back.
func (b *breaker) close() error {
	_ = b.listener.Close() // ends accept
	b.mu.Lock()
	for c := range b.conns {
		_ = c.Close()
	}
	b.mu.Unlock()
	b.work.Wait()
	if b.err == nil && !b.broke {
		return errors.New("breaker: the node was never killed")
	}
	return b.err
}
