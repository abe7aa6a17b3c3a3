package sink

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
)

// remoteWriters bounds the fabric writes of one answer that are under way. It equals the buffers of
// a fabric reservation: every buffer can be on the wire.
const remoteWriters = 4

var (
	_ Sink         = (*Remote)(nil)
	_ Sink         = (*Mapped)(nil)
	_ arena.Mapper = (*Mapped)(nil)
	_ arena.Source = (*RemoteSource)(nil)
)

// Remote writes an answer into client memory through a fabric.
type Remote struct{ mover }

// NewRemote returns a sink of size bytes over the window's first bytes.
func NewRemote(r fabric.Remote, from *arena.Reservation, size int64) *Remote {
	return &Remote{mover{
		from:    from,
		size:    size,
		workers: remoteWriters,
		move: func(ctx context.Context, off int64, b arena.Buffer) error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			return r.Write(ctx, off, b)
		},
	}}
}

// Done implements arena.Sink. When ctx ends while a write hangs, it returns ctx's error at once; the
// write ends with fabric.Remote.Close, which cuts the session off, and releases its buffer then.
func (r *Remote) Done(ctx context.Context) error {
	r.stop()
	if err := waitFor(ctx, &r.wg); err != nil {
		r.fail(err)
		return err
	}
	return r.result()
}

// waitFor waits for wg until ctx ends. The waiting goroutine ends when wg is done.
func waitFor(ctx context.Context, wg *sync.WaitGroup) error {
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-ended: // both: the operations have ended
		return nil
	default:
		return fmt.Errorf("sink: operation on client memory hangs: %w", context.Cause(ctx))
	}
}

// Mapped is an answer into client memory that is mapped into this process: engines read straight
// into it.
type Mapped struct {
	memory fabric.Mapper
	from   *arena.Reservation
	size   int64
	moved  atomic.Int64

	mu   sync.Mutex
	open int           // Maps without their Unmap, guarded by mu
	idle chan struct{} // closed when open falls to 0 after Done came, guarded by mu
	err  error         // first error of Deliver, guarded by mu
}

// NewMapped returns a sink of size bytes over the window's first bytes.
func NewMapped(m fabric.Mapper, from *arena.Reservation, size int64) *Mapped {
	return &Mapped{memory: m, from: from, size: size}
}

// Map implements arena.Mapper.
func (m *Mapped) Map(off int64, n int) ([]byte, error) {
	if off < 0 || n <= 0 || int64(n) > m.size-off {
		return nil, fmt.Errorf("sink: map [%d, +%d) of an answer of %d bytes", off, n, m.size)
	}
	memory, err := m.memory.Map(off, int64(n))
	if err != nil {
		return nil, fmt.Errorf("sink: map [%d, +%d): %w", off, n, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open++
	return memory, nil
}

// Unmap implements arena.Mapper.
func (m *Mapped) Unmap(off int64, n int, v arena.Verdict) { m.unmap(off, n, v.Verified) }

func (m *Mapped) unmap(off int64, n int, filled bool) {
	m.memory.Unmap(off, int64(n))
	if filled {
		m.moved.Add(int64(n))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open--
	if m.open == 0 && m.idle != nil {
		close(m.idle)
		m.idle = nil
	}
}

// Alloc implements arena.Sink.
func (m *Mapped) Alloc(ctx context.Context) (arena.Buffer, error) {
	if err := m.failed(); err != nil {
		return arena.Buffer{}, err
	}
	return m.from.Alloc(ctx)
}

// Deliver implements arena.Sink: it copies. Errors: arena.ErrMapped when the memory faults.
func (m *Mapped) Deliver(ctx context.Context, off int64, b arena.Buffer) error {
	defer b.Release()
	if err := m.failed(); err != nil {
		return err
	}
	err := context.Cause(ctx)
	if err == nil && b.Len() > 0 {
		err = m.copyIn(off, b.Bytes())
	}
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.err = err
	}
	return err
}

func (m *Mapped) copyIn(off int64, p []byte) error {
	memory, err := m.Map(off, len(p))
	if err != nil {
		return err
	}
	err = arena.Guard(func() { copy(memory, p) })
	m.unmap(off, len(p), err == nil)
	if err != nil {
		return fmt.Errorf("sink: copy [%d, +%d): %w", off, len(p), err)
	}
	return nil
}

func (m *Mapped) failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Done implements arena.Sink. When ctx ends while a device read hangs in client memory, it returns
// ctx's error at once; fabric.Remote.Close then takes the memory away from the read.
func (m *Mapped) Done(ctx context.Context) error {
	m.mu.Lock()
	var idle chan struct{}
	if m.open > 0 {
		idle = make(chan struct{})
		m.idle = idle
	}
	err := m.err
	m.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("sink: device read into client memory hangs: %w", context.Cause(ctx))
		}
	}
	if err != nil {
		return err
	}
	if n := m.moved.Load(); n != m.size {
		return fmt.Errorf("%d of %d bytes moved: %w", n, m.size, ErrShort)
	}
	return nil
}

// Bytes implements Sink.
func (m *Mapped) Bytes() int64 { return m.moved.Load() }

// RemoteSource reads a payload out of client memory. Fabric reads run ahead as far as the
// reservation has buffers.
type RemoteSource struct {
	remote fabric.Remote
	from   *arena.Reservation
	size   int64
	next   int64 // first byte that no read was started for
	err    error // final
	ahead  []chan fetched
	wg     sync.WaitGroup
	read   atomic.Int64
}

type fetched struct {
	b   arena.Buffer
	err error
}

// NewRemoteSource returns a source of the window's first size bytes.
func NewRemoteSource(r fabric.Remote, from *arena.Reservation, size int64) *RemoteSource {
	return &RemoteSource{remote: r, from: from, size: size}
}

// Size implements arena.Source.
func (s *RemoteSource) Size() int64 { return s.size }

// Next implements arena.Source.
func (s *RemoteSource) Next(ctx context.Context) (arena.Buffer, error) {
	if s.err != nil {
		return arena.Buffer{}, s.err
	}
	b, err := s.fetch(ctx)
	if err != nil {
		s.err = err
	}
	return b, err
}

func (s *RemoteSource) fetch(ctx context.Context) (arena.Buffer, error) {
	if err := context.Cause(ctx); err != nil {
		return arena.Buffer{}, err
	}
	if len(s.ahead) == 0 {
		if s.next == s.size {
			return arena.Buffer{}, io.EOF
		}
		b, err := s.from.Alloc(ctx)
		if err != nil {
			return arena.Buffer{}, err
		}
		off, b := s.claim(b)
		s.lookAhead(ctx)
		return s.pull(ctx, off, b) // in this goroutine: it has nothing better to do
	}
	s.lookAhead(ctx)
	first := s.ahead[0]
	select {
	case f := <-first:
		s.ahead = s.ahead[1:]
		return f.b, f.err
	case <-ctx.Done():
		return arena.Buffer{}, context.Cause(ctx)
	}
}

// claim takes the next bytes of the window for b.
func (s *RemoteSource) claim(b arena.Buffer) (off int64, view arena.Buffer) {
	off = s.next
	n := min(int64(b.Cap()), s.size-off)
	s.next += n
	return off, b.Whole().Slice(0, int(n))
}

// lookAhead starts a read for every buffer that is free now.
func (s *RemoteSource) lookAhead(ctx context.Context) {
	for s.next < s.size {
		b, ok := s.from.TryAlloc()
		if !ok {
			return
		}
		off, b := s.claim(b)
		result := make(chan fetched, 1)
		s.ahead = append(s.ahead, result)
		s.wg.Go(func() {
			b, err := s.pull(ctx, off, b)
			result <- fetched{b, err}
		})
	}
}

func (s *RemoteSource) pull(ctx context.Context, off int64, b arena.Buffer) (arena.Buffer, error) {
	if err := s.remote.Read(ctx, off, b); err != nil {
		n := b.Len()
		b.Release()
		return arena.Buffer{}, fmt.Errorf("sink: read [%d, +%d) of client memory: %w", off, n, err)
	}
	s.read.Add(int64(b.Len()))
	return b, nil
}

// Close waits for the reads that are ahead and releases their buffers. When ctx ends while one hangs,
// it returns at once with ctx's error; such a read ends with fabric.Remote.Close and its buffer is
// released then. Next must not be called afterwards. Close may be called more than once.
func (s *RemoteSource) Close(ctx context.Context) error {
	if s.err == nil {
		s.err = fmt.Errorf("sink: source is closed: %w", ErrShort)
	}
	for _, result := range s.ahead {
		s.wg.Go(func() {
			f := <-result
			if f.err == nil {
				f.b.Release()
			}
		})
	}
	s.ahead = nil
	return waitFor(ctx, &s.wg)
}

// Bytes is the number of payload bytes read so far.
func (s *RemoteSource) Bytes() int64 { return s.read.Load() }
