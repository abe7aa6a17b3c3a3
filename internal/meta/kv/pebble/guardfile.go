package pebble

import (
	"io"
	"os"
	"time"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"
)

// guardedFile is a file open for writing, or a directory.
type guardedFile struct {
	pvfs.File
	g    *guard
	name string
}

// skip says that a call must not reach the file, and what it returns instead.
func (f *guardedFile) skip() (bool, error) {
	if isManifest(f.name) {
		if err := f.g.spoiledErr(); err != nil {
			f.g.failure.set(err, failWrites)
		}
	}
	switch {
	case !f.g.dead():
		return isBlobFile(f.name) && f.g.isSpoiled(f.name), nil
	case isTable(f.name) && !f.g.discards():
		return true, errDead
	}
	return true, nil
}

// did judges a finished call and returns what to tell Pebble.
func (f *guardedFile) did(verb string, err error) error {
	if err != nil && isBlobFile(f.name) {
		f.g.spoil(f.name, err)
		return nil
	}
	return f.g.check(verb, f.name, err)
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
	if err = f.did("write", err); err == nil {
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
	if err = f.did("write", err); err == nil {
		n = len(p)
	}
	return n, err
}

// sync runs a sync of the whole file.
func (f *guardedFile) sync(call func() error) error {
	if skip, err := f.skip(); skip {
		return err
	}
	if isTable(f.name) {
		if err := f.g.spoiledErr(); err != nil {
			return err
		}
	}
	err := call()
	if err == nil && isTable(f.name) {
		f.g.tables.Store(0)
	}
	return f.did("sync", err)
}

// Sync implements vfs.File.
func (f *guardedFile) Sync() error { return f.sync(func() error { return f.File.Sync() }) }

// SyncData implements vfs.File.
func (f *guardedFile) SyncData() error { return f.sync(func() error { return f.File.SyncData() }) }

// SyncTo implements vfs.File.
func (f *guardedFile) SyncTo(length int64) (bool, error) {
	if skip, err := f.skip(); skip {
		return true, err
	}
	full, err := f.File.SyncTo(length)
	return full, f.did("sync", err)
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
	return f.did("close", f.File.Close())
}

// nullFile stands for a file that could not be made, once that no longer matters.
type nullFile struct{}

// Read implements vfs.File.
func (nullFile) Read([]byte) (int, error) { return 0, io.EOF }

// ReadAt implements vfs.File.
func (nullFile) ReadAt([]byte, int64) (int, error) { return 0, io.EOF }

// Write implements vfs.File.
func (nullFile) Write(p []byte) (int, error) { return len(p), nil }

// WriteAt implements vfs.File.
func (nullFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// Preallocate implements vfs.File.
func (nullFile) Preallocate(int64, int64) error { return nil }

// Stat implements vfs.File.
func (nullFile) Stat() (pvfs.FileInfo, error) { return nullInfo{}, nil }

// Sync implements vfs.File.
func (nullFile) Sync() error { return nil }

// SyncTo implements vfs.File.
func (nullFile) SyncTo(int64) (bool, error) { return true, nil }

// SyncData implements vfs.File.
func (nullFile) SyncData() error { return nil }

// Prefetch implements vfs.File.
func (nullFile) Prefetch(int64, int64) error { return nil }

// Fd implements vfs.File.
func (nullFile) Fd() uintptr { return pvfs.InvalidFd }

// Close implements vfs.File.
func (nullFile) Close() error { return nil }

// nullInfo describes a nullFile.
type nullInfo struct{}

func (nullInfo) Name() string            { return "" }
func (nullInfo) Size() int64             { return 0 }
func (nullInfo) Mode() os.FileMode       { return 0 }
func (nullInfo) ModTime() time.Time      { return time.Time{} }
func (nullInfo) IsDir() bool             { return false }
func (nullInfo) Sys() any                { return nil }
func (nullInfo) DeviceID() pvfs.DeviceID { return pvfs.DeviceID{} }
