// Package pebblefs adapts a vfs.FS to the file system interface of Pebble v2, so that Pebble runs
// on real, crashable and fault-injecting files alike.
//
// Called by: drive (index), meta/kv/pebble.
//
// Invariants:
//  1. Errors satisfy errors.Is for both the vfs sentinel and the os or syscall error that Pebble
//     looks for (os.ErrNotExist, os.ErrExist, syscall.ENOSPC).
//  2. Create always gives a new inode; an existing file of that name is removed first.
//  3. Preallocate reserves space and leaves the size alone, because Pebble reads sizes. Where the
//     file has no vfs.Reserver it does nothing.
//
// What it does not do: hard links (Link is not supported, Pebble copies instead), modification
// times, device ids.
package pebblefs

import (
	"errors"
	"io"
	"os"
	"path"
	"syscall"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstock-store/penstock/internal/vfs"
)

// FS is a Pebble file system over a vfs.FS.
type FS struct{ fs vfs.FS }

var _ pebblevfs.FS = FS{}

// New adapts fs. Paths are passed on unchanged.
func New(fs vfs.FS) FS { return FS{fs} }

// known is an error that also is one of the errors Pebble tests for.
type known struct {
	cause error
	as    error
}

func (e *known) Error() string        { return e.cause.Error() }
func (e *known) Unwrap() error        { return e.cause }
func (e *known) Is(target error) bool { return target == e.as }

func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, vfs.ErrNotExist):
		return &known{err, os.ErrNotExist}
	case errors.Is(err, vfs.ErrExist):
		return &known{err, os.ErrExist}
	case errors.Is(err, vfs.ErrNoSpace):
		return &known{err, syscall.ENOSPC}
	}
	return err
}

func (p FS) open(name string, f vfs.Flag) (pebblevfs.File, error) {
	inner, err := p.fs.Open(name, f)
	if err != nil {
		return nil, translate(err)
	}
	return &file{inner: inner, name: name}, nil
}

// Create makes a new, empty file.
func (p FS) Create(name string, _ pebblevfs.DiskWriteCategory) (pebblevfs.File, error) {
	const create = vfs.Write | vfs.Create | vfs.Excl
	f, err := p.open(name, create)
	for errors.Is(err, vfs.ErrExist) {
		if rmErr := p.fs.Remove(name); rmErr != nil && !errors.Is(rmErr, vfs.ErrNotExist) {
			return nil, translate(rmErr)
		}
		f, err = p.open(name, create)
	}
	return f, err
}

// Link is not supported; Pebble falls back to copying.
func (p FS) Link(oldName, newName string) error {
	return &os.LinkError{Op: "link", Old: oldName, New: newName, Err: syscall.EOPNOTSUPP}
}

// Open opens a file for reading.
func (p FS) Open(name string, opts ...pebblevfs.OpenOption) (pebblevfs.File, error) {
	if info, err := p.fs.Stat(name); err == nil && info.Dir {
		return p.OpenDir(name)
	}
	return apply(opts)(p.open(name, 0))
}

// OpenReadWrite opens a file, created when missing.
func (p FS) OpenReadWrite(
	name string, _ pebblevfs.DiskWriteCategory, opts ...pebblevfs.OpenOption,
) (pebblevfs.File, error) {
	return apply(opts)(p.open(name, vfs.Write|vfs.Create))
}

func apply(opts []pebblevfs.OpenOption) func(pebblevfs.File, error) (pebblevfs.File, error) {
	return func(f pebblevfs.File, err error) (pebblevfs.File, error) {
		if err != nil {
			return nil, err
		}
		for _, o := range opts {
			o.Apply(f)
		}
		return f, nil
	}
}

// OpenDir opens a directory, whose Sync is vfs.FS.SyncDir.
func (p FS) OpenDir(name string) (pebblevfs.File, error) {
	st, err := p.fs.Stat(name)
	if err != nil {
		return nil, translate(err)
	}
	if !st.Dir {
		return nil, &os.PathError{Op: "opendir", Path: name, Err: syscall.ENOTDIR}
	}
	return &dir{fs: p.fs, name: name}, nil
}

// Remove removes a file or an empty directory.
func (p FS) Remove(name string) error { return translate(p.fs.Remove(name)) }

// RemoveAll removes name and what is below it; a missing name is no error.
func (p FS) RemoveAll(name string) error {
	st, err := p.fs.Stat(name)
	if errors.Is(err, vfs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return translate(err)
	}
	if st.Dir {
		children, err := p.fs.List(name)
		if err != nil {
			return translate(err)
		}
		var first error
		for _, c := range children {
			if err := p.RemoveAll(path.Join(name, c)); err != nil && first == nil {
				first = err
			}
		}
		if first != nil {
			return first
		}
	}
	return p.Remove(name)
}

// Rename replaces newName by oldName.
func (p FS) Rename(oldName, newName string) error { return translate(p.fs.Rename(oldName, newName)) }

// ReuseForWrite renames oldName and opens it for writing without emptying it.
func (p FS) ReuseForWrite(oldName, newName string, _ pebblevfs.DiskWriteCategory) (pebblevfs.File, error) {
	if err := p.Rename(oldName, newName); err != nil {
		return nil, err
	}
	return p.open(newName, vfs.Write|vfs.Create)
}

// MkdirAll creates a directory and its parents; perm is chosen by the vfs.FS.
func (p FS) MkdirAll(name string, _ os.FileMode) error { return translate(p.fs.MkdirAll(name)) }

// Lock locks name until the closer is closed.
func (p FS) Lock(name string) (io.Closer, error) {
	c, err := p.fs.Lock(name)
	if err != nil {
		return nil, translate(err)
	}
	return c, nil
}

// List returns the names in a directory.
func (p FS) List(name string) ([]string, error) {
	names, err := p.fs.List(name)
	return names, translate(err)
}

// Stat describes a name.
func (p FS) Stat(name string) (pebblevfs.FileInfo, error) {
	st, err := p.fs.Stat(name)
	if err != nil {
		return nil, translate(err)
	}
	return info{path.Base(name), st}, nil
}

// PathBase is path.Base.
func (FS) PathBase(name string) string { return path.Base(name) }

// PathJoin is path.Join.
func (FS) PathJoin(elem ...string) string { return path.Join(elem...) }

// PathDir is path.Dir.
func (FS) PathDir(name string) string { return path.Dir(name) }

// GetDiskUsage reports the space of the file system, or ErrUnsupported.
func (p FS) GetDiskUsage(name string) (pebblevfs.DiskUsage, error) {
	r, ok := p.fs.(vfs.SpaceReporter)
	if !ok {
		return pebblevfs.DiskUsage{}, pebblevfs.ErrUnsupported
	}
	s, err := r.Space(name)
	if err != nil {
		return pebblevfs.DiskUsage{}, translate(err)
	}
	return pebblevfs.DiskUsage{
		AvailBytes: uint64(s.Free), TotalBytes: uint64(s.Total), UsedBytes: uint64(s.Total - s.Free),
	}, nil
}

// Unwrap returns nil: there is no Pebble file system below.
func (FS) Unwrap() pebblevfs.FS { return nil }

// info is a FileInfo without what vfs does not know.
type info struct {
	name string
	st   vfs.Info
}

func (i info) Name() string                 { return i.name }
func (i info) Size() int64                  { return i.st.SizeBytes }
func (i info) ModTime() time.Time           { return time.Time{} }
func (i info) IsDir() bool                  { return i.st.Dir }
func (i info) Sys() any                     { return nil }
func (i info) DeviceID() pebblevfs.DeviceID { return pebblevfs.DeviceID{} }

func (i info) Mode() os.FileMode {
	if i.st.Dir {
		return os.ModeDir | 0o700
	}
	return 0o600
}

// file adds the sequential offset that Pebble's Read and Write use. As with os.File those two are
// for one goroutine at a time; all else is safe concurrently.
type file struct {
	inner vfs.File
	name  string
	pos   int64
}

var _ pebblevfs.File = (*file)(nil)

func (f *file) Close() error { return translate(f.inner.Close()) }

func (f *file) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.inner.ReadAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, translate(err)
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.inner.ReadAt(p, off)
	return n, translate(err)
}

func (f *file) Write(p []byte) (int, error) {
	n, err := f.inner.WriteAt(p, f.pos)
	f.pos += int64(n)
	return n, translate(err)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.inner.WriteAt(p, off)
	return n, translate(err)
}

func (f *file) Preallocate(off, n int64) error {
	r, ok := f.inner.(vfs.Reserver)
	if !ok {
		return nil
	}
	err := r.Reserve(off, n)
	if errors.Is(err, vfs.ErrNotSupported) {
		return nil
	}
	return translate(err)
}

func (f *file) Stat() (pebblevfs.FileInfo, error) {
	size, err := f.inner.Size()
	if err != nil {
		return nil, translate(err)
	}
	return info{path.Base(f.name), vfs.Info{SizeBytes: size}}, nil
}

func (f *file) Sync() error     { return translate(f.inner.Sync()) }
func (f *file) SyncData() error { return f.Sync() }

// SyncTo starts writing back where the file can, and syncs fully where it cannot.
func (f *file) SyncTo(length int64) (fullSync bool, err error) {
	if fl, ok := f.inner.(vfs.Flusher); ok {
		err := fl.Flush(0, length)
		if !errors.Is(err, vfs.ErrNotSupported) {
			return false, translate(err)
		}
	}
	return true, f.Sync()
}

func (f *file) Prefetch(int64, int64) error { return nil } // the kernel's read-ahead is enough

func (f *file) Fd() uintptr {
	if d, ok := f.inner.(vfs.Descriptor); ok {
		return d.Fd()
	}
	return pebblevfs.InvalidFd
}

// dir is an open directory: it can only be synced.
type dir struct {
	fs   vfs.FS
	name string
}

var _ pebblevfs.File = (*dir)(nil)

func (d *dir) fail(op string) error {
	return &os.PathError{Op: op, Path: d.name, Err: syscall.EISDIR}
}

func (d *dir) Close() error                       { return nil }
func (d *dir) Read([]byte) (int, error)           { return 0, d.fail("read") }
func (d *dir) ReadAt([]byte, int64) (int, error)  { return 0, d.fail("read") }
func (d *dir) Write([]byte) (int, error)          { return 0, d.fail("write") }
func (d *dir) WriteAt([]byte, int64) (int, error) { return 0, d.fail("write") }
func (d *dir) Preallocate(int64, int64) error     { return d.fail("preallocate") }
func (d *dir) Stat() (pebblevfs.FileInfo, error) {
	return info{path.Base(d.name), vfs.Info{Dir: true}}, nil
}
func (d *dir) Sync() error                           { return translate(d.fs.SyncDir(d.name)) }
func (d *dir) SyncData() error                       { return d.Sync() }
func (d *dir) SyncTo(int64) (fullSync bool, e error) { return true, d.Sync() }
func (d *dir) Prefetch(int64, int64) error           { return nil }
func (d *dir) Fd() uintptr                           { return pebblevfs.InvalidFd }
