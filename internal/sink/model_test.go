package sink_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
)

const full = arena.BlockSize // capacity of the tests' buffers

var errModel = errors.New("injected failure")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func randomBytes(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{2, byte(n)}).Read(p)
	return p
}

// newReservation returns buffers, and checks at the end that all are back.
func newReservation(t *testing.T, n int) *arena.Reservation {
	t.Helper()
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "test", Buffers: n, BufferBytes: full}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Share("test").Reserve(context.Background(), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func newContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// window is a model of client memory behind a fabric.
type window struct {
	mu       sync.Mutex
	memory   []byte
	reads    []int         // how often each byte was read
	calls    int           // of Write and Read
	failAt   int           // call that fails; -1 none
	gate     chan struct{} // nil, or calls wait for it, whatever becomes of ctx
	gateFrom int64         // only those at this offset or behind
	started  chan struct{} // nil, or told of each call
}

func newWindow(n int) *window {
	return &window{memory: make([]byte, n), reads: make([]int, n), failAt: -1}
}

func (w *window) Size() int64  { return int64(len(w.memory)) }
func (w *window) Close() error { return nil }

func (w *window) enter(off int64) error {
	w.mu.Lock()
	call := w.calls
	w.calls++
	w.mu.Unlock()
	if w.started != nil {
		w.started <- struct{}{}
	}
	if w.gate != nil && off >= w.gateFrom {
		<-w.gate
	}
	if call == w.failAt {
		return errModel
	}
	return nil
}

func (w *window) Write(_ context.Context, off int64, src ...arena.Buffer) error {
	err := w.enter(off)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		return err
	}
	for _, b := range src {
		off += int64(copy(w.memory[off:], b.Bytes()))
	}
	return nil
}

func (w *window) Read(_ context.Context, off int64, dst ...arena.Buffer) error {
	err := w.enter(off)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		return err
	}
	for _, b := range dst {
		n := copy(b.Bytes(), w.memory[off:])
		for i := off; i < off+int64(n); i++ {
			w.reads[i]++
		}
		off += int64(n)
	}
	return nil
}

// mappedWindow is a window that can be mapped.
type mappedWindow struct {
	*window
	open int // guarded by mu
}

var _ fabric.Mapper = (*mappedWindow)(nil)

func (w *mappedWindow) Map(off, n int64) ([]byte, error) {
	if err := w.enter(off); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open++
	return w.memory[off : off+n], nil
}

func (w *mappedWindow) Unmap(_, _ int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open--
}

// deliver gives all of p to dst in pieces.
func deliver(ctx context.Context, dst arena.Sink, p []byte, piece int) error {
	for off := 0; off < len(p); {
		b, err := dst.Alloc(ctx)
		if err != nil {
			return err
		}
		n := copy(b.Bytes()[:piece], p[off:])
		if err := dst.Deliver(ctx, int64(off), b.Slice(0, n)); err != nil {
			return err
		}
		off += n
	}
	return nil
}

// drain reads a source to io.EOF and checks that each buffer but the last is full.
func drain(ctx context.Context, src arena.Source) ([]byte, error) {
	var got []byte
	for {
		b, err := src.Next(ctx)
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if len(got)%full != 0 {
			b.Release()
			return got, errors.New("a short buffer is not the last")
		}
		got = append(got, b.Bytes()...)
		b.Release()
	}
}

// slowWriter is a client that takes its bytes in pieces of its own.
type slowWriter struct {
	bytes.Buffer
	failAfter int // bytes; < 0 never
	block     chan struct{}
	blocked   chan struct{} // closed when a write blocks
	once      sync.Once
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if w.block != nil {
		w.once.Do(func() { close(w.blocked) })
		<-w.block
	}
	if w.failAfter >= 0 && w.Len()+len(p) > w.failAfter {
		n, _ := w.Buffer.Write(p[:w.failAfter-w.Len()])
		return n, errModel
	}
	return w.Buffer.Write(p)
}
