package crashfs

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/penstock-store/penstock/internal/vfs"
)

// ErrHalted says that the simulated machine is off: Halt was called.
var ErrHalted = errors.New("crashfs: machine is off")

var (
	errIsDir    = errors.New("is a directory")
	errNotDir   = errors.New("is not a directory")
	errNotEmpty = errors.New("directory is not empty")
	errReadOnly = errors.New("file is open for reading only")
	errRange    = errors.New("negative offset or length")
	errClosed   = errors.New("file is closed")
	errAlign    = errors.New("unaligned direct transfer")
)

// Options of an FS. The zero value is an endless FS that allows direct files.
type Options struct {
	CapacityBytes int64 // 0: no limit
	RefuseDirect  bool  // Direct opens fail with ErrNotSupported, as on some file systems
	RefusePunch   bool
}

// FS is the simulated file system. Safe for concurrent use.
type FS struct {
	opts Options

	mu     sync.RWMutex
	root   *inode
	nextID uint64
	seq    uint64 // entry changes so far
	ops    uint64
	locks  map[*inode]bool
	hook   func(Point)
	halted bool
}

var (
	_ vfs.FS            = (*FS)(nil)
	_ vfs.SpaceReporter = (*FS)(nil)
)

// inode is a file or a directory. Its id fixes the order in which a seed is consumed.
type inode struct {
	id uint64

	// Files.
	now     *content // what processes see
	durable *content // what the medium holds
	pending []change // in order
	touched []span   // ranges of now that the next Sync writes
	dropped bool     // now holds clean bytes that are not on the medium

	// Directories: nil for files.
	entries        map[string]*inode
	durableEntries map[string]*inode
	changes        []*entryChange
}

type span struct{ off, n int64 }

func (n *inode) isDir() bool { return n.entries != nil }

// New returns an empty FS whose root directory exists.
func New(opts Options) *FS {
	fs := &FS{opts: opts, locks: map[*inode]bool{}}
	fs.root = fs.newDir()
	return fs
}

func (fs *FS) newDir() *inode {
	fs.nextID++
	return &inode{id: fs.nextID, entries: map[string]*inode{}, durableEntries: map[string]*inode{}}
}

func (fs *FS) newFile() *inode {
	fs.nextID++
	return &inode{id: fs.nextID, now: newContent(), durable: newContent()}
}

// Hook sets fn to run after each mutating operation took effect, before it returns to its caller.
// fn must not use fs, only its Point and the images taken from it. nil removes the hook.
func (fs *FS) Hook(fn func(Point)) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.hook = fn
}

// Halt turns the machine off: every later operation but Close fails with ErrHalted.
func (fs *FS) Halt() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.halted = true
}

// Atomic runs fn while the FS stands still, like a Hook, so that a test can change what its hook
// looks at. fn must not use fs.
func (fs *FS) Atomic(fn func()) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fn()
}

// Ops is the number of mutating operations so far.
func (fs *FS) Ops() uint64 {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	return fs.ops
}

// did counts a mutating operation and runs the hook. fs.mu is held.
func (fs *FS) did(op, name string) {
	fs.ops++
	if fs.hook != nil {
		fs.hook(Point{N: fs.ops, Op: op, Name: name, fs: fs})
	}
}

func fail(op, name string, err error) error { return fmt.Errorf("crashfs: %s %s: %w", op, name, err) }

func split(name string) []string {
	return strings.FieldsFunc(path.Clean("/"+name), func(r rune) bool { return r == '/' })
}

// find returns the inode of name. fs.mu is held.
func (fs *FS) find(name string) (*inode, error) {
	if fs.halted {
		return nil, ErrHalted
	}
	at := fs.root
	for _, part := range split(name) {
		if !at.isDir() {
			return nil, errNotDir
		}
		next, ok := at.entries[part]
		if !ok {
			return nil, vfs.ErrNotExist
		}
		at = next
	}
	return at, nil
}

// parent returns the directory of name and the last element. fs.mu is held.
func (fs *FS) parent(name string) (*inode, string, error) {
	dir, err := fs.find(path.Dir(path.Clean("/" + name)))
	if err != nil {
		return nil, "", err
	}
	if !dir.isDir() {
		return nil, "", errNotDir
	}
	return dir, path.Base(path.Clean("/" + name)), nil
}

// change does an entry change now and records it as unsynced. fs.mu is held.
func (fs *FS) change(steps ...entryStep) {
	fs.seq++
	e := &entryChange{seq: fs.seq, steps: steps}
	for i, s := range steps {
		if s.node != nil {
			s.dir.entries[s.name] = s.node
		} else {
			delete(s.dir.entries, s.name)
		}
		if i == 0 || steps[0].dir != s.dir {
			s.dir.changes = append(s.dir.changes, e)
		}
	}
}

// Open opens or creates a file.
func (fs *FS) Open(name string, f vfs.Flag) (vfs.File, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f&vfs.Direct != 0 && fs.opts.RefuseDirect {
		return nil, fail("open", name, vfs.ErrNotSupported)
	}
	n, err := fs.find(name)
	switch {
	case errors.Is(err, vfs.ErrNotExist) && f&vfs.Create != 0:
		dir, base, err := fs.parent(name)
		if err != nil {
			return nil, fail("open", name, err)
		}
		n = fs.newFile()
		fs.change(entryStep{dir: dir, name: base, node: n})
		fs.did("create", name)
	case err != nil:
		return nil, fail("open", name, err)
	case f&vfs.Create != 0 && f&vfs.Excl != 0:
		return nil, fail("open", name, vfs.ErrExist)
	case n.isDir():
		return nil, fail("open", name, errIsDir)
	}
	if f&vfs.Truncate != 0 && f&vfs.Write != 0 && n.now.size > 0 {
		n.apply(change{kind: changeTruncate})
		fs.did("truncate", name)
	}
	return &file{fs: fs, name: name, node: n, flag: f}, nil
}

// Remove removes a file or an empty directory.
func (fs *FS) Remove(name string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.find(name)
	if err != nil {
		return fail("remove", name, err)
	}
	if n == fs.root || len(n.entries) > 0 {
		return fail("remove", name, errNotEmpty)
	}
	dir, base, err := fs.parent(name)
	if err != nil {
		return fail("remove", name, err)
	}
	fs.change(entryStep{dir: dir, name: base, was: n})
	fs.did("remove", name)
	return nil
}

// Rename replaces newName by oldName.
func (fs *FS) Rename(oldName, newName string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.find(oldName)
	if err != nil {
		return fail("rename", oldName, err)
	}
	oldDir, oldBase, err := fs.parent(oldName)
	if err != nil {
		return fail("rename", oldName, err)
	}
	newDir, newBase, err := fs.parent(newName)
	if err != nil {
		return fail("rename", newName, err)
	}
	switch target := newDir.entries[newBase]; {
	case target == n:
		return nil
	case target != nil && target.isDir() != n.isDir():
		return fail("rename", newName, errIsDir)
	case target != nil && len(target.entries) > 0:
		return fail("rename", newName, errNotEmpty)
	}
	fs.change(entryStep{dir: oldDir, name: oldBase, was: n}, entryStep{dir: newDir, name: newBase, node: n})
	fs.did("rename", newName)
	return nil
}

// MkdirAll creates dir and its missing parents; each is one operation.
func (fs *FS) MkdirAll(dir string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.halted {
		return fail("mkdir", dir, ErrHalted)
	}
	at := fs.root
	for _, part := range split(dir) {
		next, ok := at.entries[part]
		if !ok {
			next = fs.newDir()
			fs.change(entryStep{dir: at, name: part, node: next})
			fs.did("mkdir", dir)
		}
		if !next.isDir() {
			return fail("mkdir", dir, errNotDir)
		}
		at = next
	}
	return nil
}

// List returns the sorted names in dir.
func (fs *FS) List(dir string) ([]string, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	n, err := fs.find(dir)
	if err == nil && !n.isDir() {
		err = errNotDir
	}
	if err != nil {
		return nil, fail("list", dir, err)
	}
	return slices.Sorted(maps.Keys(n.entries)), nil
}

// Stat describes a name.
func (fs *FS) Stat(name string) (vfs.Info, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	n, err := fs.find(name)
	if err != nil {
		return vfs.Info{}, fail("stat", name, err)
	}
	if n.isDir() {
		return vfs.Info{Dir: true}, nil
	}
	return vfs.Info{SizeBytes: n.now.size}, nil
}

// SyncDir makes the entries of dir durable, and renames that lead out of it or into it.
func (fs *FS) SyncDir(dir string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.find(dir)
	if err == nil && !n.isDir() {
		err = errNotDir
	}
	if err != nil {
		return fail("sync directory", dir, err)
	}
	for _, e := range n.changes {
		for _, s := range e.steps {
			e.apply(map[*inode]map[string]*inode{s.dir: s.dir.durableEntries})
			if s.dir != n {
				s.dir.changes = slices.DeleteFunc(s.dir.changes, func(o *entryChange) bool { return o == e })
			}
		}
	}
	n.changes = nil
	fs.did("syncdir", dir)
	return nil
}

// Lock takes an exclusive lock until Close.
func (fs *FS) Lock(name string) (io.Closer, error) {
	f, err := fs.Open(name, vfs.Write|vfs.Create)
	if err != nil {
		return nil, err
	}
	n := f.(*file).node
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.locks[n] {
		return nil, fail("lock", name, vfs.ErrLocked)
	}
	fs.locks[n] = true
	return &lock{fs, n}, nil
}

type lock struct {
	fs   *FS
	node *inode
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	delete(l.fs.locks, l.node)
	return nil
}

// endlessBytes is the size reported for an FS without a limit.
const endlessBytes = 1 << 50

// Space reports the capacity given in Options.
func (fs *FS) Space(string) (vfs.Space, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	if fs.halted {
		return vfs.Space{}, fail("statfs", "/", ErrHalted)
	}
	total := fs.opts.CapacityBytes
	if total == 0 {
		total = endlessBytes
	}
	return vfs.Space{Total: total, Free: max(0, total-used(fs.root))}, nil
}

// SetCapacity changes the limit; 0 is none.
func (fs *FS) SetCapacity(n int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.opts.CapacityBytes = n
}

// used is the space allocated below n. fs.mu is held.
func used(n *inode) int64 {
	if !n.isDir() {
		return n.now.diskBytes()
	}
	var sum int64
	for _, c := range n.entries {
		sum += used(c)
	}
	return sum
}
