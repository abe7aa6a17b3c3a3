package pebble

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// tablePause is how long the first new table file waits after one could not be written; each
	// failure in a row doubles it up to tablePauseMax. Pebble itself tries again at once.
	tablePause    = 100 * time.Millisecond
	tablePauseMax = 5 * time.Second
)

var errDead = errors.New("pebble: write file: the engine has failed")

// guard stands between Pebble and its files. Pebble panics when its log or manifest cannot be
// written; so once the engine is open, the guard tells the engine of the first such error and shows
// Pebble success. From then on nothing that Pebble does reaches the disk: no later write may become
// durable after a lost one, and no file may be removed because of a manifest that is not there.
// Errors of table files go to Pebble, which writes them again elsewhere; the guard slows it down.
type guard struct {
	pvfs.FS
	failure *failure
	armed   atomic.Bool   // Open has finished; before, errors make Open fail
	stop    chan struct{} // closed when the engine closes

	tables atomic.Int32 // table files in a row that could not be written

	mu       sync.Mutex
	tableErr error
}

// rebuildable reports whether a file is a table, which Pebble can write again under another name.
func rebuildable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

func (g *guard) dead() bool { return g.failure.writes() != nil }

// tableFailures returns how many table files in a row could not be written, and the last error.
func (g *guard) tableFailures() (int, error) {
	n := int(g.tables.Load())
	if n == 0 {
		return 0, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return n, g.tableErr
}

// check judges the error of a call that changes a file. It returns what to tell Pebble.
func (g *guard) check(verb, name string, err error) error {
	if err == nil || !g.armed.Load() {
		return err
	}
	if rebuildable(name) {
		g.tables.Add(1)
		g.mu.Lock()
		g.tableErr = err
		g.mu.Unlock()
		return err
	}
	g.failure.set(fmt.Errorf("pebble: %s %s: %w", verb, name, err), failWrites)
	return nil
}

// pause holds back a new table file after failures, and for good once the engine has failed.
func (g *guard) pause() error {
	n := g.tables.Load()
	if g.dead() {
		<-g.stop
		return errDead
	}
	if n == 0 {
		return nil
	}
	timer := time.NewTimer(min(tablePause<<min(n-1, 10), tablePauseMax))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.stop:
	}
	return nil
}

// made wraps a file made for writing.
func (g *guard) made(verb, name string, f pvfs.File, err error) (pvfs.File, error) {
	if err := g.check(verb, name, err); err != nil {
		return nil, err
	}
	return &guardedFile{File: f, g: g, name: name}, nil
}

// Create implements vfs.FS.
func (g *guard) Create(name string, c pvfs.DiskWriteCategory) (pvfs.File, error) {
	if rebuildable(name) {
		if err := g.pause(); err != nil {
			return nil, err
		}
	}
	if g.dead() {
		return &guardedFile{g: g, name: name}, nil
	}
	f, err := g.FS.Create(name, c)
	return g.made("create", name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (g *guard) ReuseForWrite(oldName, newName string, c pvfs.DiskWriteCategory) (pvfs.File, error) {
	if g.dead() {
		return &guardedFile{g: g, name: newName}, nil
	}
	f, err := g.FS.ReuseForWrite(oldName, newName, c)
	return g.made("reuse", newName, f, err)
}

// OpenReadWrite implements vfs.FS.
func (g *guard) OpenReadWrite(
	name string, c pvfs.DiskWriteCategory, opts ...pvfs.OpenOption,
) (pvfs.File, error) {
	if g.dead() {
		return &guardedFile{g: g, name: name}, nil
	}
	f, err := g.FS.OpenReadWrite(name, c, opts...)
	return g.made("open", name, f, err)
}

// OpenDir implements vfs.FS. The directory is wrapped for its Sync.
func (g *guard) OpenDir(name string) (pvfs.File, error) {
	f, err := g.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &guardedFile{File: f, g: g, name: name}, nil
}

// Remove implements vfs.FS.
func (g *guard) Remove(name string) error {
	if g.dead() {
		return nil
	}
	return g.FS.Remove(name)
}

// RemoveAll implements vfs.FS.
func (g *guard) RemoveAll(name string) error {
	if g.dead() {
		return nil
	}
	return g.FS.RemoveAll(name)
}

// Rename implements vfs.FS.
func (g *guard) Rename(oldName, newName string) error {
	if g.dead() {
		return nil
	}
	return g.check("rename", newName, g.FS.Rename(oldName, newName))
}

// Link implements vfs.FS.
func (g *guard) Link(oldName, newName string) error {
	if g.dead() {
		return nil
	}
	return g.check("link", newName, g.FS.Link(oldName, newName))
}

// Unwrap implements vfs.FS.
func (g *guard) Unwrap() pvfs.FS { return g.FS }

// guardedFile is a file open for writing, or a directory. Without a File it swallows what is written.
type guardedFile struct {
	pvfs.File
	g    *guard
	name string
}

// skip says that a call must not reach the file, and what it returns instead.
func (f *guardedFile) skip() (bool, error) {
	switch {
	case f.File == nil:
		return true, nil
	case !f.g.dead():
		return false, nil
	case rebuildable(f.name):
		return true, errDead
	}
	return true, nil
}

// Write implements vfs.File.
func (f *guardedFile) Write(p []byte) (int, error) {
	if skip, err := f.skip(); skip {
		return len(p), err
	}
	n, err := f.File.Write(p)
	if err == nil {
		return n, nil
	}
	if err = f.g.check("write", f.name, err); err == nil {
		n = len(p)
	}
	return n, err
}

// WriteAt implements vfs.File.
func (f *guardedFile) WriteAt(p []byte, off int64) (int, error) {
	if skip, err := f.skip(); skip {
		return len(p), err
	}
	n, err := f.File.WriteAt(p, off)
	if err == nil {
		return n, nil
	}
	if err = f.g.check("write", f.name, err); err == nil {
		n = len(p)
	}
	return n, err
}

func (f *guardedFile) synced(err error) error {
	if err == nil && rebuildable(f.name) {
		f.g.tables.Store(0)
	}
	return f.g.check("sync", f.name, err)
}

// Sync implements vfs.File.
func (f *guardedFile) Sync() error {
	if skip, err := f.skip(); skip {
		return err
	}
	return f.synced(f.File.Sync())
}

// SyncData implements vfs.File.
func (f *guardedFile) SyncData() error {
	if skip, err := f.skip(); skip {
		return err
	}
	return f.synced(f.File.SyncData())
}

// SyncTo implements vfs.File.
func (f *guardedFile) SyncTo(length int64) (bool, error) {
	if skip, err := f.skip(); skip {
		return true, err
	}
	full, err := f.File.SyncTo(length)
	return full, f.g.check("sync", f.name, err)
}

// Preallocate implements vfs.File.
func (f *guardedFile) Preallocate(off, n int64) error {
	if skip, err := f.skip(); skip {
		return err
	}
	return f.File.Preallocate(off, n) // a hint
}

// Close implements vfs.File.
func (f *guardedFile) Close() error {
	if f.File == nil {
		return nil
	}
	return f.g.check("close", f.name, f.File.Close())
}

// Fd implements vfs.File.
func (f *guardedFile) Fd() uintptr {
	if f.File == nil {
		return pvfs.InvalidFd
	}
	return f.File.Fd()
}
