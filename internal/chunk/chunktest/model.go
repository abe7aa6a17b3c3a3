package chunktest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
)

// errModel is the failure that model sinks and sources inject.
var errModel = errors.New("chunktest: injected failure")

// payload returns n random bytes, the same ones for the same n.
func payload(n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
	p := make([]byte, n)
	_, _ = r.Read(p) // never fails
	return p
}

// modelSource yields a payload and misbehaves as told.
type modelSource struct {
	reservation *arena.Reservation
	size        int64 // what Size says
	left        []byte
	step        int
	onNext      func(step int) error // called before each buffer and before io.EOF
}

func (s *suite) source(p []byte, buffers int) *modelSource {
	s.t.Helper()
	r, err := s.arena.Share("test").Reserve(context.Background(), buffers)
	if err != nil {
		s.t.Fatal(err)
	}
	return &modelSource{reservation: r, size: int64(len(p)), left: p}
}

func (m *modelSource) Size() int64 { return m.size }

func (m *modelSource) Next(ctx context.Context) (arena.Buffer, error) {
	b, err := m.next(ctx)
	if err != nil {
		m.reservation.Close() // no later Next is allowed to allocate
	}
	return b, err
}

func (m *modelSource) next(ctx context.Context) (arena.Buffer, error) {
	if m.onNext != nil {
		if err := m.onNext(m.step); err != nil {
			return arena.Buffer{}, err
		}
	}
	m.step++
	if err := context.Cause(ctx); err != nil {
		return arena.Buffer{}, err
	}
	if len(m.left) == 0 {
		return arena.Buffer{}, io.EOF
	}
	b, err := m.reservation.Alloc(ctx)
	if err != nil {
		return arena.Buffer{}, err
	}
	n := copy(b.Bytes(), m.left)
	m.left = m.left[n:]
	return b.Slice(0, n), nil
}

// modelSink is a sink with the checks of this suite.
type modelSink interface {
	arena.Sink
	doneCalled() bool
	complete() error // every wanted byte came
	correct() error  // no byte that came is wrong
	balanced() error // Map and Unmap
	hook(onCall func(step int) error)
	landed() int64 // bytes that came
}

type sinkKind int

const (
	buffered sinkKind = iota // deliveries complete at once
	delayed                  // deliveries complete in another goroutine
	mapped
)

func (k sinkKind) String() string { return [...]string{"buffered", "delayed", "mapped"}[k] }

func (s *suite) sink(kind sinkKind, want []byte, buffers int) modelSink {
	s.t.Helper()
	r, err := s.arena.Share("test").Reserve(context.Background(), buffers)
	if err != nil {
		s.t.Fatal(err)
	}
	base := &bufferSink{reservation: r, want: want}
	switch kind {
	case delayed:
		base.queue = make(chan delivery, 16)
		base.wg.Go(base.run)
		return base
	case mapped:
		// Outside the Go heap, as client memory is: at least one page.
		const shared = unix.MAP_SHARED | unix.MAP_ANON
		memory, err := unix.Mmap(-1, 0, max(len(want), 1), unix.PROT_READ|unix.PROT_WRITE, shared)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = unix.Munmap(memory) })
		return &mapSink{bufferSink: base, memory: memory[:len(want)], open: map[span]int{}}
	}
	return base
}

type delivery struct {
	off int64
	b   arena.Buffer
}

// bufferSink compares what is delivered with what is wanted, and requires ascending order.
type bufferSink struct {
	reservation *arena.Reservation
	want        []byte
	queue       chan delivery // nil: complete in Deliver
	wg          sync.WaitGroup

	mu     sync.Mutex
	onCall func(step int) error
	step   int
	next   int64 // position that must come next
	done   bool
	wrong  error
}

func (b *bufferSink) hook(f func(step int) error) { b.onCall = f }

func (b *bufferSink) call() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	step := b.step
	b.step++
	if b.onCall == nil {
		return nil
	}
	return b.onCall(step)
}

func (b *bufferSink) Alloc(ctx context.Context) (arena.Buffer, error) {
	if err := b.call(); err != nil {
		return arena.Buffer{}, err
	}
	return b.reservation.Alloc(ctx)
}

func (b *bufferSink) Deliver(_ context.Context, off int64, buf arena.Buffer) error {
	if err := b.call(); err != nil {
		buf.Release()
		return err
	}
	b.mu.Lock()
	if off != b.next {
		b.wrong = fmt.Errorf("delivered position %d, want %d", off, b.next)
	}
	b.next = off + int64(buf.Len())
	b.mu.Unlock()
	if b.queue != nil {
		b.queue <- delivery{off, buf}
		return nil
	}
	b.check(off, buf.Bytes())
	buf.Release()
	return nil
}

func (b *bufferSink) run() {
	for d := range b.queue {
		b.check(d.off, d.b.Bytes())
		d.b.Release()
	}
}

func (b *bufferSink) check(off int64, p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case off < 0 || off+int64(len(p)) > int64(len(b.want)):
		b.wrong = fmt.Errorf("delivered [%d, +%d) of an answer of %d bytes", off, len(p), len(b.want))
	case !bytes.Equal(p, b.want[off:off+int64(len(p))]):
		b.wrong = fmt.Errorf("wrong bytes delivered in [%d, +%d)", off, len(p))
	}
}

func (b *bufferSink) Done(context.Context) error {
	b.done = true
	if b.queue != nil {
		close(b.queue)
		b.wg.Wait()
	}
	b.reservation.Close()
	return b.correct()
}

func (b *bufferSink) doneCalled() bool { return b.done }
func (b *bufferSink) balanced() error  { return nil }

func (b *bufferSink) landed() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next
}

func (b *bufferSink) correct() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wrong
}

func (b *bufferSink) complete() error {
	if err := b.correct(); err != nil {
		return err
	}
	if n := b.landed(); n != int64(len(b.want)) {
		return fmt.Errorf("%d of %d bytes were delivered", n, len(b.want))
	}
	return nil
}

type span struct {
	off int64
	n   int
}

// mapSink is a sink with mapped memory. Deliver copies into it.
type mapSink struct {
	*bufferSink
	memory    []byte
	broken    bool // Deliver finds the memory gone
	delivered int  // calls of Deliver

	mapMu    sync.Mutex
	open     map[span]int
	verified []span
	mapErr   error
}

var _ arena.Mapper = (*mapSink)(nil)

func (m *mapSink) Map(off int64, n int) ([]byte, error) {
	if err := m.call(); err != nil {
		return nil, err
	}
	m.mapMu.Lock()
	defer m.mapMu.Unlock()
	if off < 0 || n <= 0 || off+int64(n) > int64(len(m.memory)) {
		m.mapErr = fmt.Errorf("mapped [%d, +%d) of %d bytes", off, n, len(m.memory))
		return nil, m.mapErr
	}
	m.open[span{off, n}]++
	return m.memory[off : off+int64(n) : off+int64(n)], nil
}

func (m *mapSink) Unmap(off int64, n int, v arena.Verdict) {
	m.mapMu.Lock()
	defer m.mapMu.Unlock()
	s := span{off, n}
	m.open[s]--
	if m.open[s] < 0 {
		m.mapErr = fmt.Errorf("unmapped [%d, +%d), which was not mapped", off, n)
	}
	if m.open[s] == 0 {
		delete(m.open, s)
	}
	if v.Verified {
		m.verified = append(m.verified, s)
		if want := checksum.Sum(m.want[off : off+int64(n)]); v.CRC64NVME != want && m.mapErr == nil {
			m.mapErr = fmt.Errorf("[%d, +%d) has the sum %#x, told was %#x", off, n, want, v.CRC64NVME)
		}
	}
}

func (m *mapSink) Deliver(_ context.Context, off int64, buf arena.Buffer) error {
	defer buf.Release()
	if err := m.call(); err != nil {
		return err
	}
	m.bufferSink.check(off, buf.Bytes())
	m.mapMu.Lock()
	defer m.mapMu.Unlock()
	m.delivered++
	if m.broken {
		return arena.ErrMapped
	}
	if err := arena.Guard(func() { copy(m.memory[off:], buf.Bytes()) }); err != nil {
		return err
	}
	m.verified = append(m.verified, span{off, buf.Len()})
	return nil
}

// balanced fails when a Map is open or a call was out of bounds.
func (m *mapSink) balanced() error {
	m.mapMu.Lock()
	defer m.mapMu.Unlock()
	if len(m.open) != 0 {
		return fmt.Errorf("%d mapped ranges were never unmapped", len(m.open))
	}
	return m.mapErr
}

// tiles returns the verified ranges in ascending order.
func (m *mapSink) tiles() []span {
	m.mapMu.Lock()
	defer m.mapMu.Unlock()
	sorted := slices.Clone(m.verified)
	slices.SortFunc(sorted, func(a, b span) int { return cmp.Compare(a.off, b.off) })
	return sorted
}

func (m *mapSink) landed() int64 {
	var n int64
	for _, s := range m.tiles() {
		n += int64(s.n)
	}
	return n
}

func (m *mapSink) correct() error {
	for _, s := range m.tiles() {
		if hi := s.off + int64(s.n); !bytes.Equal(m.memory[s.off:hi], m.want[s.off:hi]) {
			return fmt.Errorf("[%d, +%d) is reported as verified and is wrong", s.off, s.n)
		}
	}
	return m.bufferSink.correct()
}

// covered fails unless every byte was reported as verified exactly once.
func (m *mapSink) covered() error {
	var next int64
	for _, s := range m.tiles() {
		if s.off != next {
			return fmt.Errorf("verified ranges go on at byte %d, want %d", s.off, next)
		}
		next += int64(s.n)
	}
	if next != int64(len(m.want)) {
		return fmt.Errorf("%d of %d bytes are reported as verified", next, len(m.want))
	}
	return m.bufferSink.correct()
}

func (m *mapSink) complete() error {
	if err := m.covered(); err != nil {
		return err
	}
	if !bytes.Equal(m.memory, m.want) {
		return errors.New("client memory differs from the payload")
	}
	return nil
}

func (m *mapSink) Done(context.Context) error {
	m.done = true
	m.reservation.Close()
	return nil
}
