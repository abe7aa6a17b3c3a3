// Package errfs wraps a vfs.FS and lets chosen operations fail, stick or lie.
//
// Called by: tests of drive, kv, chunk and store.
//
// A Rule says which operations it looks at (by kind and name), at which of them it begins, how
// often it strikes, and what then happens. The first rule that strikes wins; rules before it that
// only count do count.
//
// Invariants:
//  1. Without rules an FS behaves as the one below; its optional abilities are passed on, or answer
//     ErrNotSupported where the file below lacks them. Only the file descriptor is hidden.
//  2. An injected error wraps Rule.Err, or ErrInjected.
//  3. No lock is held while an operation below runs, sticks or is delayed.
//
// Lock order: FS.mu is a leaf.
//
// What it does not do: power loss (crashfs).
package errfs

import (
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/vfs"
)

// ErrInjected is the error of a rule that names none; it stands for EIO.
var ErrInjected = errors.New("errfs: injected input/output error")

// Op is a set of kinds of operations.
type Op uint32

// Kinds of operations. Create is an Open that may create.
const (
	Open Op = 1 << iota
	Create
	Remove
	Rename // matched by the old and by the new name
	Mkdir
	List
	Stat
	SyncDir
	Lock
	Space
	Read
	Write
	Sync
	Truncate
	Preallocate // and Reserve
	Punch
	Size
	Close
	Flush
	NextData

	Any Op = 1<<iota - 1
)

// Fault is what happens.
type Fault int

// Faults.
const (
	Fail       Fault = iota // the operation is not done and fails
	Count                   // nothing: Armed.Seen counts
	FailAfter               // the operation is done, and fails nevertheless
	ShortWrite              // the first Keep bytes are written and reported, with the error
	TornWrite               // the first Keep bytes are written, none reported, with the error
	LoseSync                // Sync fails and loses unsynced bytes by Seed (vfs.UnsyncedDropper)
	FlipBit                 // reads see bit Bit of the byte at file offset At changed
	Stick                   // waits until Release is closed, then goes on normally
	Delay                   // waits for Wait, then goes on normally
)

// Rule says what strikes where.
type Rule struct {
	Ops   Op
	Path  string // path.Match pattern for the whole name, or for its last element; "" for every name
	Nth   int    // strikes from the nth matching operation on, counted from 1; 0 is 1
	Times int    // strikes that often; 0 is for ever

	Fault   Fault
	Err     error // default ErrInjected; vfs.ErrNoSpace for a full file system
	Keep    int
	Seed    uint64
	At      int64
	Bit     uint
	Release <-chan struct{}
	Wait    time.Duration
}

// Armed is a rule in force.
type Armed struct {
	fs   *FS
	rule Rule
	seen int // guarded by FS.mu, as the others
	hits int
	hit  chan struct{} // closed at the first strike
}

// Seen counts the matching operations.
func (a *Armed) Seen() int {
	a.fs.mu.Lock()
	defer a.fs.mu.Unlock()
	return a.seen
}

// Hits counts the strikes.
func (a *Armed) Hits() int {
	a.fs.mu.Lock()
	defer a.fs.mu.Unlock()
	return a.hits
}

// Struck is closed at the first strike.
func (a *Armed) Struck() <-chan struct{} { return a.hit }

// FS is a vfs.FS with rules. Safe for concurrent use.
type FS struct {
	inner vfs.FS

	mu    sync.Mutex
	rules []*Armed
}

var (
	_ vfs.FS            = (*FS)(nil)
	_ vfs.SpaceReporter = (*FS)(nil)
)

// New wraps inner.
func New(inner vfs.FS, rules ...Rule) *FS {
	fs := &FS{inner: inner}
	for _, r := range rules {
		fs.Add(r)
	}
	return fs
}

// Add puts a rule in force, behind the others.
func (fs *FS) Add(r Rule) *Armed {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if r.Err == nil {
		r.Err = ErrInjected
	}
	a := &Armed{fs: fs, rule: r, hit: make(chan struct{})}
	fs.rules = append(fs.rules, a)
	return a
}

// Clear ends all rules. What sticks goes on sticking until its Release.
func (fs *FS) Clear() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.rules = nil
}

func matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	for _, candidate := range []string{name, path.Base(name)} {
		if ok, err := path.Match(pattern, candidate); err == nil && ok {
			return true
		}
	}
	return false
}

// strike returns the rule that an operation meets, after its waiting, or nil.
func (fs *FS) strike(op Op, names ...string) *Rule {
	r := fs.meet(op, names)
	if r == nil {
		return nil
	}
	switch r.Fault {
	case Stick:
		<-r.Release
		return nil
	case Delay:
		t := time.NewTimer(r.Wait)
		defer t.Stop()
		<-t.C
		return nil
	}
	return r
}

func (fs *FS) meet(op Op, names []string) *Rule {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, a := range fs.rules {
		hit := false
		for _, n := range names {
			hit = hit || matches(a.rule.Path, n)
		}
		if a.rule.Ops&op == 0 || !hit {
			continue
		}
		a.seen++
		if a.rule.Fault == Count || a.seen < a.rule.Nth || a.rule.Times > 0 && a.hits >= a.rule.Times {
			continue
		}
		if a.hits++; a.hits == 1 {
			close(a.hit)
		}
		return &a.rule
	}
	return nil
}

func failure(op, name string, r *Rule) error { return fmt.Errorf("errfs: %s %s: %w", op, name, r.Err) }

// around runs an operation that a rule may fail before or after.
func (fs *FS) around(op Op, verb string, run func() error, names ...string) error {
	r := fs.strike(op, names...)
	if r == nil {
		return run()
	}
	if r.Fault == FailAfter {
		return errors.Join(failure(verb, names[0], r), run())
	}
	return failure(verb, names[0], r)
}

// Open opens or creates a file.
func (fs *FS) Open(name string, f vfs.Flag) (vfs.File, error) {
	op := Open
	if f&vfs.Create != 0 {
		op = Create
	}
	var inner vfs.File
	err := fs.around(op, "open", func() (err error) {
		inner, err = fs.inner.Open(name, f)
		return err
	}, name)
	if err != nil {
		if inner != nil {
			err = errors.Join(err, inner.Close())
		}
		return nil, err
	}
	return &file{fs: fs, name: name, inner: inner}, nil
}

// Remove removes a name.
func (fs *FS) Remove(name string) error {
	return fs.around(Remove, "remove", func() error { return fs.inner.Remove(name) }, name)
}

// Rename replaces newName.
func (fs *FS) Rename(oldName, newName string) error {
	return fs.around(Rename, "rename", func() error { return fs.inner.Rename(oldName, newName) }, oldName, newName)
}

// MkdirAll makes directories.
func (fs *FS) MkdirAll(dir string) error {
	return fs.around(Mkdir, "mkdir", func() error { return fs.inner.MkdirAll(dir) }, dir)
}

// List lists a directory.
func (fs *FS) List(dir string) (names []string, err error) {
	err = fs.around(List, "list", func() (err error) {
		names, err = fs.inner.List(dir)
		return err
	}, dir)
	return names, err
}

// Stat describes a name.
func (fs *FS) Stat(name string) (info vfs.Info, err error) {
	err = fs.around(Stat, "stat", func() (err error) {
		info, err = fs.inner.Stat(name)
		return err
	}, name)
	return info, err
}

// SyncDir makes names durable.
func (fs *FS) SyncDir(dir string) error {
	return fs.around(SyncDir, "sync directory", func() error { return fs.inner.SyncDir(dir) }, dir)
}

// Lock takes a lock.
func (fs *FS) Lock(name string) (c io.Closer, err error) {
	err = fs.around(Lock, "lock", func() (err error) {
		c, err = fs.inner.Lock(name)
		return err
	}, name)
	if err != nil && c != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, err
}

// Space reports space; ErrNotSupported where the FS below does not.
func (fs *FS) Space(dir string) (s vfs.Space, err error) {
	err = fs.around(Space, "statfs", func() (err error) {
		r, ok := fs.inner.(vfs.SpaceReporter)
		if !ok {
			return vfs.ErrNotSupported
		}
		s, err = r.Space(dir)
		return err
	}, dir)
	return s, err
}
