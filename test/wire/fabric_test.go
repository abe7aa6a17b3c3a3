package wire_test

import (
	"context"
	"errors"
	"sync"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
)

// memoryBase is the address of the client's memory.
const memoryBase = 0x7f7c80000000

// heldBase is the address of a window whose transfers wait until they are released.
const heldBase = 0x100000

// fault is what goes wrong with a transfer.
type fault int

const (
	noFault fault = iota
	noRail        // the fabric does not take the token
	noSession
	notGranted // 403
	replayed   // 403
	outside    // 400: the window is not inside its region
	limited    // 503
	halfway    // an error in the middle
	stalls     // until the deadline
	lingers    // an operation never comes back: there is no answer
)

// memory is a fabric that reaches one client's memory.
type memory struct {
	mu     sync.Mutex
	bytes  []byte
	fault  fault
	moves  int           // operations on the memory
	held   chan struct{} // told when a transfer of the held window begins
	letOut chan struct{} // ends it

	sessions   map[[16]byte]fabric.Preparation // of messages; one that was taken is not among them
	prepared   byte                            // how many there were
	immediates int                             // that the client's adapter had
}

var (
	_ fabric.Fabric   = (*memory)(nil)
	_ fabric.Taker    = (*memory)(nil)
	_ fabric.Exchange = (*memory)(nil)
)

func (m *memory) Name() string         { return "memory" }
func (m *memory) Rails() []fabric.Rail { return nil }
func (m *memory) Close() error         { return nil }

// Takes implements fabric.Taker: what adapters take. hipObject's tokens are for a protocol of their own.
func (m *memory) Takes(d token.Descriptor) bool {
	return (d.Kind == token.DC || d.Kind == token.RC) && m.now() != noRail
}

func (m *memory) now() fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fault
}

// reset fills the memory and chooses what will go wrong.
func (m *memory) reset(content []byte, f fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes, m.fault, m.moves, m.immediates = content, f, 0, 0
}

// content is the memory, and how often it was touched.
func (m *memory) content() ([]byte, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]byte(nil), m.bytes...), m.moves
}

func (m *memory) Open(_ context.Context, d token.Descriptor, g fabric.Grant) (fabric.Remote, error) {
	if d.Addr == heldBase {
		return &window{m: m, n: g.Bytes, held: true}, nil
	}
	switch m.now() {
	case noSession:
		return nil, fabric.ErrNoSession
	case notGranted:
		return nil, fabric.ErrNotGranted
	case replayed:
		return nil, fabric.ErrReplayed
	case outside:
		return nil, fabric.ErrWindow
	case limited:
		return nil, fabric.ErrLimit
	}
	if d.Addr < memoryBase || d.Addr-memoryBase+uint64(g.Bytes) > uint64(len(m.bytes)) {
		return nil, fabric.ErrWindow
	}
	return &window{m: m, base: int64(d.Addr - memoryBase), n: g.Bytes}, nil
}

// window is the memory of one request.
type window struct {
	m       *memory
	base, n int64
	held    bool
}

func (w *window) Size() int64 { return w.n }

func (w *window) Write(ctx context.Context, off int64, src ...arena.Buffer) error {
	return w.move(ctx, off, src, func(mine, theirs []byte) int { return copy(theirs, mine) })
}

func (w *window) Read(ctx context.Context, off int64, dst ...arena.Buffer) error {
	return w.move(ctx, off, dst, func(mine, theirs []byte) int { return copy(mine, theirs) })
}

func (w *window) move(ctx context.Context, off int64, bufs []arena.Buffer, one func(mine, theirs []byte) int) error {
	if w.held {
		w.m.held <- struct{}{}
		<-w.m.letOut
		return fabric.ErrTransfer
	}
	w.m.mu.Lock()
	f := w.m.fault
	w.m.moves++
	if f == stalls {
		w.m.mu.Unlock()
		<-ctx.Done()
		return context.Cause(ctx)
	}
	defer w.m.mu.Unlock()
	for _, b := range bufs {
		if off+int64(b.Len()) > w.n {
			return fabric.ErrTransfer
		}
		mine := b.Bytes()
		if f == halfway {
			mine = mine[:len(mine)/2]
		}
		off += int64(one(mine, w.m.bytes[w.base+off:w.base+w.n]))
		if f == halfway {
			return fabric.ErrTransfer
		}
	}
	return nil
}

func (w *window) Close() error {
	switch f := w.m.now(); {
	case w.held:
		return nil
	case f == lingers:
		return errors.Join(fabric.ErrFenced, fabric.ErrLingering)
	}
	return nil
}
