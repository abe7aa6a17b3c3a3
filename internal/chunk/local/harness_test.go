package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/chunk/local"
	"github.com/penstock-store/penstock/internal/drive"
	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// segmentBytes holds one chunk of the largest size with its frame.
const segmentBytes = chunk.MaxBytes + 1<<20

// node is an engine over a drive in a directory, on a file system with hooks.
type node struct {
	t      testing.TB
	config drive.Config
	fs     *hookFS
	drive  *drive.Drive
	engine *local.Engine
}

func newNode(t testing.TB, change func(c *drive.Config)) *node {
	t.Helper()
	n := &node{t: t, fs: &hookFS{FS: osfs.FS{}}}
	n.config = drive.Config{
		FS: n.fs, Dir: filepath.Join(t.TempDir(), "drive"), Set: drive.UUID{1},
		SegmentBytes: segmentBytes, NoReserve: true,
	}
	if change != nil {
		change(&n.config)
	}
	if _, err := drive.Format(n.config); err != nil {
		t.Fatal(err)
	}
	n.open(time.Minute) // nothing is stuck here unless a test says so
	return n
}

func (n *node) open(stuckAfter time.Duration) {
	n.t.Helper()
	d, err := drive.Open(context.Background(), n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	n.drive = d
	n.engine = local.New(local.Options{Drive: d, StuckAfter: stuckAfter})
}

func (n *node) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.engine.Close(ctx); err != nil {
		return err
	}
	return n.drive.Close()
}

// restart opens the drive anew with an engine of another patience.
func (n *node) restart(stuckAfter time.Duration) {
	n.t.Helper()
	if err := n.close(); err != nil {
		n.t.Fatal(err)
	}
	n.open(stuckAfter)
}

// corrupt changes a payload byte on the drive. It finds the record by its header (docs/format.md:
// one block of 4 KiB that starts with a magic and names the chunk; the payload follows).
func (n *node) corrupt(ref chunk.Ref, off int64) error {
	const unit = 4096
	found := errors.New("found")
	err := filepath.WalkDir(n.config.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		block := make([]byte, unit)
		for at := int64(0); ; at += unit {
			if _, err := io.ReadFull(io.NewSectionReader(f, at, unit), block); err != nil {
				return nil // the end of the file
			}
			if !bytes.HasPrefix(block, []byte("PNSTKREC")) || !bytes.Contains(block, ref.ID[:]) {
				continue
			}
			at += unit + off
			if _, err := f.ReadAt(block[:1], at); err != nil {
				return err
			}
			block[0] ^= 0x80
			if _, err := f.WriteAt(block[:1], at); err != nil {
				return err
			}
			return found
		}
	})
	if errors.Is(err, found) {
		return nil
	}
	return fmt.Errorf("no record of chunk %v: %w", ref.ID, err)
}

// hookFS lets a test stand between the drive and its segment files.
type hookFS struct {
	osfs.FS
	mu sync.Mutex
	// Each may be nil. They get the call that would reach the file.
	read  func(p []byte, off int64, call func() (int, error)) (int, error)
	write func(p []byte, off int64, call func() (int, error)) (int, error)
	sync  func(call func() error) error
}

func (h *hookFS) hook(set func(h *hookFS)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	set(h)
}

func (h *hookFS) Open(name string, f vfs.Flag) (vfs.File, error) {
	file, err := h.FS.Open(name, f)
	if err != nil || !strings.Contains(name, "segment") {
		return file, err
	}
	return &hookFile{File: file, fs: h}, nil
}

type hookFile struct {
	vfs.File
	fs *hookFS
}

func (f *hookFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	hook := f.fs.read
	f.fs.mu.Unlock()
	if hook == nil {
		return f.File.ReadAt(p, off)
	}
	return hook(p, off, func() (int, error) { return f.File.ReadAt(p, off) })
}

func (f *hookFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	hook := f.fs.write
	f.fs.mu.Unlock()
	if hook == nil {
		return f.File.WriteAt(p, off)
	}
	return hook(p, off, func() (int, error) { return f.File.WriteAt(p, off) })
}

func (f *hookFile) Sync() error {
	f.fs.mu.Lock()
	hook := f.fs.sync
	f.fs.mu.Unlock()
	if hook == nil {
		return f.File.Sync()
	}
	return hook(f.File.Sync)
}

func newArena(t testing.TB, buffers int) *arena.Arena {
	t.Helper()
	share := arena.ShareOption{Name: "test", Buffers: buffers, BufferBytes: 1 << 20}
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{share}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func payload(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{3, byte(n)}).Read(p)
	return p
}

func (n *node) put(a *arena.Arena, p []byte) chunk.Ref {
	n.t.Helper()
	ref, err := n.write(context.Background(), a, p)
	if err != nil {
		n.t.Fatal(err)
	}
	return ref
}

func (n *node) write(ctx context.Context, a *arena.Arena, p []byte) (chunk.Ref, error) {
	o := chunk.Owner{ID: [16]byte{9}, Epoch: 3}
	return n.engine.Write(ctx, o, chunk.Scheme{}, arena.NewBytesSource(a.Share("test"), p))
}

// heapSink collects an answer.
type heapSink struct {
	from *arena.Share
	got  []byte
}

func (s *heapSink) Alloc(ctx context.Context) (arena.Buffer, error) { return s.from.Alloc(ctx) }

func (s *heapSink) Deliver(_ context.Context, off int64, b arena.Buffer) error {
	defer b.Release()
	if off != int64(len(s.got)) {
		return fmt.Errorf("delivered at %d, want %d", off, len(s.got))
	}
	s.got = append(s.got, b.Bytes()...)
	return nil
}

func (s *heapSink) Done(context.Context) error { return nil }

// mapSink is mapped memory. Deliver copies.
type mapSink struct {
	from   *arena.Share
	memory []byte

	mu       sync.Mutex
	open     int // guarded by mu
	verified int // bytes, guarded by mu
}

func (s *mapSink) Alloc(ctx context.Context) (arena.Buffer, error) { return s.from.Alloc(ctx) }

func (s *mapSink) Deliver(_ context.Context, off int64, b arena.Buffer) error {
	defer b.Release()
	return arena.Guard(func() { copy(s.memory[off:], b.Bytes()) })
}

func (s *mapSink) Done(context.Context) error { return nil }

func (s *mapSink) Map(off int64, n int) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	return s.memory[off : off+int64(n)], nil
}

func (s *mapSink) Unmap(_ int64, n int, v arena.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if v.Verified {
		s.verified += n
	}
}

func (s *mapSink) counts() (open, verified int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open, s.verified
}

// until polls for a state that another goroutine brings about.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func (n *node) stats() local.Stats {
	n.t.Helper()
	s, err := n.engine.Stats()
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}
