package target

import (
	"context"

	"github.com/penstock-store/penstock/internal/frame"
)

// Conn is one session, with all its data connections.
type Conn struct{}

// Memory is memory that can be announced. For shm it comes from NewMemory; tcp takes both kinds.
type Memory struct{ bytes []byte }

// Region is memory announced on a session.
type Region struct {
	conn   *Conn
	memory *Memory
	number uint32
}

func dial(context.Context, frame.SessionReply, Options) (*Conn, error) { return nil, ErrClosed }

// NewMemory allocates size bytes as a sealed, populated memfd.
func NewMemory(size int) (*Memory, error) { return nil, ErrMemory }

// WrapMemory takes memory of the caller (tcp only). The caller must not let it be freed or moved
// before the session has ended.
func WrapMemory(b []byte) *Memory { return &Memory{bytes: b} }

// Bytes is the memory.
func (m *Memory) Bytes() []byte { return m.bytes }

// Abandoned tells whether a session ended without confirming its fence while the memory was
// announced: its content may still change at any time.
func (m *Memory) Abandoned() bool { return false }

// Free unmaps memory of NewMemory. Errors: ErrMemory while it is announced on a session.
func (m *Memory) Free() error { return nil }

// Register announces the memory and waits for the server's answer. Errors: ErrRefused, ErrClosed.
func (c *Conn) Register(ctx context.Context, m *Memory) (*Region, error) { return nil, ErrClosed }

// Fabric is "shm" or "tcp".
func (c *Conn) Fabric() string { return "" }

// Bytes is the region's memory.
func (r *Region) Bytes() []byte { return r.memory.bytes }

// Forget takes the region back; when it returns nil the server cannot touch it.
func (r *Region) Forget(ctx context.Context) error { return nil }

// Expect grants a window for one request. Errors: ErrMemory (bounds), ErrClosed.
func (c *Conn) Expect(r *Region, off, size int64, d Direction) (*Grant, error) { return nil, ErrClosed }

// End takes the grant back, after the request was answered or given up. On tcp nothing of the
// window is touched after it has returned; if the transfer was still under way, the session ends. On
// shm, after a request that was not answered, the caller must Fence.
func (g *Grant) End() error { return nil }

// Fence ends the session and makes late access impossible. Errors: ErrNotFenced (shm only: no
// confirmation before ctx ended); the memory of the session's regions is then abandoned.
func (c *Conn) Fence(ctx context.Context) error { return nil }

// Close ends the session without waiting for the server: on shm the memory counts as abandoned,
// unless Fence came before.
func (c *Conn) Close() error { return nil }

// Done is closed when the session has ended, for whatever reason.
func (c *Conn) Done() <-chan struct{} { return nil }

// Err is why the session ended; nil while it lives.
func (c *Conn) Err() error { return nil }
