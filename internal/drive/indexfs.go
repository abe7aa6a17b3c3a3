package drive

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync/atomic"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// tableTries is how many tables in a row may fail to be written before the index counts as
	// failed. Pebble itself tries for ever, and lets writers and its Open wait for ever.
	tableTries = 12

	// tablePause is the longest wait before the next of these tries; Pebble has none.
	tablePause = 100 * time.Millisecond
)

// indexFS stands between Pebble and its files. Pebble neither survives an error of its log or
// manifest (it expects the process to end; some ways of failing make it hang or panic), nor gives
// up on tables that cannot be written. So at the first such error the index is failed, and Pebble
// is shown success from then on, while nothing more reaches the medium: no later write may become
// durable after a lost one, and no file may be removed because of a manifest that is not there.
// Errors of tables go to Pebble, which writes them again under another name, a few times.
//
// A failed index still reads what it holds. Tables to come wait until it is closed and then end in
// nothing, as they do when the failure comes before the index was ever opened.
type indexFS struct {
	pebblevfs.FS
	watch  *watch
	stop   chan struct{} // closed when the index closes
	opened atomic.Bool
	tables atomic.Int32 // tables in a row that could not be written
}

func isTable(name string) bool { return path.Ext(name) == ".sst" }

func (x *indexFS) dead() bool { return x.watch.failure() != nil }

// judge decides what Pebble is told of an error of a file that changes.
func (x *indexFS) judge(name string, err error) error {
	if err == nil {
		return nil
	}
	if isTable(name) && !x.dead() {
		if x.tables.Add(1) >= tableTries {
			x.watch.fail(fmt.Errorf("index: write table: %w", err))
		}
		return err
	}
	x.watch.fail(fmt.Errorf("index: change file: %w", err))
	return nil
}

// pace holds a new table back after failures.
func (x *indexFS) pace() {
	if x.dead() {
		if x.opened.Load() {
			<-x.stop
		}
		return
	}
	if n := x.tables.Load(); n > 0 {
		t := time.NewTimer(min(tablePause, time.Millisecond<<min(n, 10)))
		defer t.Stop()
		select {
		case <-t.C:
		case <-x.stop:
		}
	}
}

func (x *indexFS) guard(name string, f pebblevfs.File, err error) (pebblevfs.File, error) {
	if err := x.judge(name, err); err != nil {
		return nil, err
	}
	return &indexFile{File: f, x: x, name: name}, nil
}

// Create makes a file.
func (x *indexFS) Create(name string, c pebblevfs.DiskWriteCategory) (pebblevfs.File, error) {
	if isTable(name) {
		x.pace()
	}
	if x.dead() {
		return x.guard(name, nil, nil)
	}
	f, err := x.FS.Create(name, c)
	return x.guard(name, f, err)
}

// ReuseForWrite renames a file and opens it for writing.
func (x *indexFS) ReuseForWrite(
	oldName, newName string, c pebblevfs.DiskWriteCategory,
) (pebblevfs.File, error) {
	if x.dead() {
		return x.guard(newName, nil, nil)
	}
	f, err := x.FS.ReuseForWrite(oldName, newName, c)
	return x.guard(newName, f, err)
}

// OpenReadWrite opens a file for changing.
func (x *indexFS) OpenReadWrite(
	name string, c pebblevfs.DiskWriteCategory, opts ...pebblevfs.OpenOption,
) (pebblevfs.File, error) {
	if x.dead() {
		return x.guard(name, nil, nil)
	}
	f, err := x.FS.OpenReadWrite(name, c, opts...)
	return x.guard(name, f, err)
}

// OpenDir opens a directory to sync it.
func (x *indexFS) OpenDir(name string) (pebblevfs.File, error) {
	f, err := x.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &indexFile{File: f, x: x, name: name}, nil
}

func (x *indexFS) change(name string, run func() error) error {
	if x.dead() {
		return nil
	}
	return x.judge(name, run())
}

// Remove removes a name. A table that stays is only garbage.
func (x *indexFS) Remove(name string) error {
	if x.dead() {
		return nil
	}
	return x.FS.Remove(name)
}

// List lists a directory. Pebble does not survive an error of the List late in its Open, by when
// compactions may run, so an error before the index is open fails it and shows nothing.
func (x *indexFS) List(name string) ([]string, error) {
	names, err := x.FS.List(name)
	if err != nil && !x.opened.Load() {
		x.watch.fail(fmt.Errorf("index: list: %w", err))
		return nil, nil
	}
	return names, err
}

// Rename replaces newName.
func (x *indexFS) Rename(oldName, newName string) error {
	return x.change(newName, func() error { return x.FS.Rename(oldName, newName) })
}

// Unwrap returns the file system below.
func (x *indexFS) Unwrap() pebblevfs.FS { return x.FS }

// indexFile is a file being written; File is nil when it never was made.
type indexFile struct {
	pebblevfs.File
	x     *indexFS
	name  string
	bytes int64 // written, for Stat when File is nil
	bad   bool  // a call failed
}

var errNothing = errors.New("index: file was never made")

func (f *indexFile) run(call func() error) error {
	if f.File == nil || f.x.dead() {
		return nil
	}
	err := call()
	f.bad = f.bad || err != nil
	return f.x.judge(f.name, err)
}

func (f *indexFile) Write(p []byte) (int, error) {
	f.bytes += int64(len(p))
	err := f.run(func() error {
		n, err := f.File.Write(p)
		if err == nil && n < len(p) {
			err = errShortWrite
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *indexFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.run(func() error {
		n, err := f.File.WriteAt(p, off)
		if err == nil && n < len(p) {
			err = errShortWrite
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *indexFile) Preallocate(off, n int64) error {
	return f.run(func() error { return f.File.Preallocate(off, n) })
}

func (f *indexFile) Sync() error { return f.synced(func() error { return f.File.Sync() }) }

func (f *indexFile) SyncData() error { return f.synced(func() error { return f.File.SyncData() }) }

// synced ends a series of failures when a table reached the medium.
func (f *indexFile) synced(sync func() error) error {
	err := f.run(sync)
	if err == nil && !f.bad && isTable(f.name) && !f.x.dead() {
		f.x.tables.Store(0)
	}
	return err
}

func (f *indexFile) SyncTo(length int64) (full bool, err error) {
	err = f.run(func() (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full || f.x.dead(), err
}

// Close closes the file. What Pebble needs of it has been synced, so an error tells nothing.
func (f *indexFile) Close() error {
	if f.File == nil {
		return nil
	}
	if err := f.File.Close(); err != nil {
		f.x.watch.Errorf("close %s: %v", f.name, err)
	}
	return nil
}

func (f *indexFile) Read(p []byte) (int, error) {
	if f.File == nil {
		return 0, errNothing
	}
	return f.File.Read(p)
}

func (f *indexFile) ReadAt(p []byte, off int64) (int, error) {
	if f.File == nil {
		return 0, errNothing
	}
	return f.File.ReadAt(p, off)
}

func (f *indexFile) Stat() (pebblevfs.FileInfo, error) {
	if f.File == nil {
		return nothingInfo{name: path.Base(f.name), bytes: f.bytes}, nil
	}
	return f.File.Stat()
}

func (f *indexFile) Prefetch(off, n int64) error {
	if f.File == nil {
		return nil
	}
	return f.File.Prefetch(off, n)
}

func (f *indexFile) Fd() uintptr {
	if f.File == nil {
		return pebblevfs.InvalidFd
	}
	return f.File.Fd()
}

// nothingInfo describes a file that never was made.
type nothingInfo struct {
	name  string
	bytes int64
}

func (i nothingInfo) Name() string                 { return i.name }
func (i nothingInfo) Size() int64                  { return i.bytes }
func (i nothingInfo) Mode() fs.FileMode            { return 0 }
func (i nothingInfo) ModTime() time.Time           { return time.Time{} }
func (i nothingInfo) IsDir() bool                  { return false }
func (i nothingInfo) Sys() any                     { return nil }
func (i nothingInfo) DeviceID() pebblevfs.DeviceID { return pebblevfs.DeviceID{} }
