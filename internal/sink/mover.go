package sink

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-store/penstock/internal/arena"
)

// queueDepth bounds deliveries that wait for a worker. Reservations (4 buffers at most) are the
// tighter bound; it only keeps Deliver from blocking while there are buffers.
const queueDepth = 4

// mover moves delivered buffers in worker goroutines that it starts when they are needed, or, with no
// workers, in the caller's. The last delivery of a payload that fits one buffer is moved by the caller
// in any case: most answers are small.
type mover struct {
	move    func(ctx context.Context, off int64, p arena.Buffer) error
	from    *arena.Reservation
	size    int64
	workers int // at most

	started int // of the caller's goroutine
	queue   chan delivery
	wg      sync.WaitGroup
	moved   atomic.Int64

	mu  sync.Mutex
	err error // first error of a delivery, guarded by mu
}

type delivery struct {
	ctx context.Context // of the call of Deliver
	off int64
	b   arena.Buffer
}

// Alloc implements arena.Sink.
func (m *mover) Alloc(ctx context.Context) (arena.Buffer, error) {
	if err := m.failed(); err != nil {
		return arena.Buffer{}, err
	}
	b, err := m.from.Alloc(ctx)
	if err != nil {
		return arena.Buffer{}, err
	}
	if err := m.failed(); err != nil {
		b.Release()
		return arena.Buffer{}, err
	}
	return b, nil
}

// Deliver implements arena.Sink.
func (m *mover) Deliver(ctx context.Context, off int64, b arena.Buffer) error {
	if off < 0 || int64(b.Len()) > m.size-off {
		m.fail(fmt.Errorf("sink: [%d, +%d) delivered to an answer of %d bytes", off, b.Len(), m.size))
	}
	if err := m.failed(); err != nil {
		b.Release()
		return err
	}
	d := delivery{ctx, off, b}
	if m.workers == 0 || m.started == 0 && off+int64(b.Len()) == m.size {
		m.one(d)
		return m.failed()
	}
	if m.queue == nil {
		m.queue = make(chan delivery, queueDepth)
	}
	if m.started < m.workers {
		m.started++
		m.wg.Go(m.run)
	}
	select {
	case m.queue <- d:
		return nil
	case <-ctx.Done():
		b.Release()
		m.fail(context.Cause(ctx))
		return context.Cause(ctx)
	}
}

func (m *mover) run() {
	for d := range m.queue {
		m.one(d)
	}
}

func (m *mover) one(d delivery) {
	defer d.b.Release()
	if m.failed() != nil {
		return
	}
	if err := m.move(d.ctx, d.off, d.b); err != nil {
		m.fail(fmt.Errorf("sink: move [%d, +%d): %w", d.off, d.b.Len(), err))
		return
	}
	m.moved.Add(int64(d.b.Len()))
}

func (m *mover) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
}

func (m *mover) failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// stop lets the workers end when the queue is empty.
func (m *mover) stop() {
	if m.queue != nil {
		close(m.queue)
	}
}

// result is the first error, or ErrShort when bytes are missing. Every worker has ended.
func (m *mover) result() error {
	if err := m.failed(); err != nil {
		return err
	}
	if n := m.moved.Load(); n != m.size {
		return fmt.Errorf("%d of %d bytes moved: %w", n, m.size, ErrShort)
	}
	return nil
}

// Bytes implements Sink.
func (m *mover) Bytes() int64 { return m.moved.Load() }
