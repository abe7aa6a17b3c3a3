package crashfs

import (
	"io"
	"math/rand/v2"

	"github.com/penstock-store/penstock/internal/vfs"
)

// apply does a change now and records it as unsynced. The FS's mutex is held.
func (n *inode) apply(ch change) {
	off, length := ch.dirty(n.now.size)
	ch.applyWhole(n.now)
	n.pending = append(n.pending, ch)
	n.touched = append(n.touched, span{off, length})
}

// sync makes now durable. Bytes dropped earlier stay lost unless their page was touched again.
func (n *inode) sync() {
	for _, s := range n.touched {
		n.durable.adopt(n.now, s.off, s.n)
	}
	n.durable.size = n.now.size
	n.pending, n.touched = nil, nil
}

type file struct {
	fs   *FS
	name string
	node *inode
	flag vfs.Flag

	closed bool // guarded by fs.mu
}

var (
	_ vfs.File            = (*file)(nil)
	_ vfs.DiskBytes       = (*file)(nil)
	_ vfs.UnsyncedDropper = (*file)(nil)
)

// usable checks what every operation needs. fs.mu is held.
func (f *file) usable(op string) error {
	switch {
	case f.fs.halted:
		return fail(op, f.name, ErrHalted)
	case f.closed:
		return fail(op, f.name, errClosed)
	}
	return nil
}

// changeable checks what every mutating operation needs. fs.mu is held.
func (f *file) changeable(op string, off, n int64) error {
	if err := f.usable(op); err != nil {
		return err
	}
	switch {
	case f.flag&vfs.Write == 0:
		return fail(op, f.name, errReadOnly)
	case off < 0 || n < 0:
		return fail(op, f.name, errRange)
	}
	return nil
}

// room checks that the capacity allows [off, off+n) to be allocated. fs.mu is held.
func (f *file) room(op string, off, n int64) error {
	limit := f.fs.opts.CapacityBytes
	if limit == 0 {
		return nil
	}
	if need := f.node.now.missing(off, n); need > 0 && used(f.fs.root)+need > limit {
		return fail(op, f.name, vfs.ErrNoSpace)
	}
	return nil
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if err := f.usable("read"); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, fail("read", f.name, errRange)
	}
	if f.flag&vfs.Direct != 0 && (off%vfs.Alignment != 0 || len(p)%vfs.Alignment != 0 || !vfs.Aligned(p)) {
		return 0, fail("read", f.name, errAlign)
	}
	n := int(min(int64(len(p)), max(0, f.node.now.size-off)))
	f.node.now.read(p[:n], off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n := int64(len(p))
	if err := f.changeable("write", off, n); err != nil {
		return 0, err
	}
	if f.flag&vfs.Direct != 0 && (off%vfs.Alignment != 0 || n%vfs.Alignment != 0 || !vfs.Aligned(p)) {
		return 0, fail("write", f.name, errAlign)
	}
	if err := f.room("write", off, n); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, nil
	}
	f.node.apply(change{kind: changeWrite, off: off, n: n, data: append([]byte(nil), p...)})
	f.fs.did("write", f.name)
	return len(p), nil
}

func (f *file) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed {
		return fail("close", f.name, errClosed)
	}
	f.closed = true
	return nil
}

func (f *file) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.usable("sync"); err != nil {
		return err
	}
	f.node.sync()
	f.fs.did("sync", f.name)
	return nil
}

func (f *file) Truncate(sizeBytes int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.changeable("truncate", 0, sizeBytes); err != nil {
		return err
	}
	f.node.apply(change{kind: changeTruncate, n: sizeBytes})
	f.fs.did("truncate", f.name)
	return nil
}

func (f *file) Preallocate(off, n int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.changeable("preallocate", off, n); err != nil {
		return err
	}
	if err := f.room("preallocate", off, n); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	f.node.apply(change{kind: changePreallocate, off: off, n: n})
	f.fs.did("preallocate", f.name)
	return nil
}

func (f *file) Punch(off, n int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.changeable("punch", off, n); err != nil {
		return err
	}
	if f.fs.opts.RefusePunch {
		return fail("punch", f.name, vfs.ErrNotSupported)
	}
	if n == 0 {
		return nil
	}
	f.node.apply(change{kind: changePunch, off: off, n: n})
	f.fs.did("punch", f.name)
	return nil
}

func (f *file) Size() (int64, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if err := f.usable("stat"); err != nil {
		return 0, err
	}
	return f.node.now.size, nil
}

// DiskBytes is the space allocated, reserved ranges included.
func (f *file) DiskBytes() (int64, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if err := f.usable("stat"); err != nil {
		return 0, err
	}
	return f.node.now.diskBytes(), nil
}

// DropUnsynced models a failed writeback; the caller of Sync is told by errfs. Only bytes get lost:
// sizes and extents are in the journal, without which the file system would be gone altogether.
func (f *file) DropUnsynced(seed uint64) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n := f.node
	rng := rand.New(rand.NewPCG(seed, n.id))
	for i, ch := range n.pending {
		if ch.kind == changeWrite {
			ch.applyPart(n.durable, rng, i == len(n.pending)-1)
		} else {
			ch.applyWhole(n.durable)
		}
	}
	n.pending, n.touched, n.dropped = nil, nil, true
	f.fs.did("dropped", f.name)
}
