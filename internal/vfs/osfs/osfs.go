// Package osfs is the vfs.FS of real files on Linux.
//
// Called by: server (drives, metadata engine), tests.
//
// Invariants:
//  1. Sync is fdatasync. SyncDir is fsync of the directory. Neither is ever retried.
//  2. Interrupted and short system calls are continued here; a caller sees all or an error.
//  3. Every error wraps the vfs sentinel that fits and the errno, and names the operation and path.
//
// What it does not do: caching, buffering, retries of failed operations.
package osfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/vfs"
)

// FS is the namespace of the operating system. The zero value is ready to use.
type FS struct{}

var (
	_ vfs.FS            = FS{}
	_ vfs.SpaceReporter = FS{}
)

const (
	filePerm = 0o600 // drives hold data of every tenant: nobody but the server reads them
	dirPerm  = 0o700
)

// sentinel returns the vfs error that stands for the errno of err, or nil.
func sentinel(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return vfs.ErrNotExist
	case errors.Is(err, unix.EEXIST):
		return vfs.ErrExist
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return vfs.ErrNoSpace
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		return vfs.ErrNotSupported
	case errors.Is(err, unix.EWOULDBLOCK):
		return vfs.ErrLocked
	}
	return nil
}

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if p, ok := err.(*os.PathError); ok && p.Path == name {
		err = p.Err // the rest would say the operation and the name again
	}
	if s := sentinel(err); s != nil {
		return fmt.Errorf("osfs: %s %s: %w: %w", op, name, s, err)
	}
	return fmt.Errorf("osfs: %s %s: %w", op, name, err)
}

// again runs a system call until it is not interrupted by a signal.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Open opens or creates a file. A Direct open that the file system refuses is ErrNotSupported.
func (FS) Open(name string, f vfs.Flag) (vfs.File, error) {
	flags := unix.O_CLOEXEC
	if f&vfs.Write != 0 {
		flags |= unix.O_RDWR
	}
	if f&vfs.Create != 0 {
		flags |= unix.O_CREAT
	}
	if f&vfs.Excl != 0 {
		flags |= unix.O_EXCL
	}
	if f&vfs.Truncate != 0 {
		flags |= unix.O_TRUNC
	}
	if f&vfs.Direct != 0 {
		flags |= unix.O_DIRECT
	}
	fd := -1
	err := again(func() (err error) {
		fd, err = unix.Open(name, flags, filePerm)
		return err
	})
	if f&vfs.Direct != 0 && errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("osfs: open %s: direct: %w: %w", name, vfs.ErrNotSupported, err)
	}
	if err != nil {
		return nil, wrap("open", name, err)
	}
	return &file{name: name, fd: fd, direct: f&vfs.Direct != 0}, nil
}

// Remove removes a file or an empty directory.
func (FS) Remove(name string) error {
	err := unix.Unlink(name)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Rmdir(name)
	}
	return wrap("remove", name, err)
}

// Rename replaces newName by oldName.
func (FS) Rename(oldName, newName string) error {
	return wrap("rename", oldName, unix.Rename(oldName, newName))
}

// MkdirAll creates dir and its missing parents.
func (FS) MkdirAll(dir string) error { return wrap("mkdir", dir, os.MkdirAll(dir, dirPerm)) }

// List returns the sorted names in dir.
func (FS) List(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, wrap("list", dir, err)
	}
	defer func() { _ = d.Close() }() // opened for reading only
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, wrap("list", dir, err)
	}
	slices.Sort(names)
	return names, nil
}

// Stat describes a name; symbolic links are followed.
func (FS) Stat(name string) (vfs.Info, error) {
	st, err := os.Stat(name)
	if err != nil {
		return vfs.Info{}, wrap("stat", name, err)
	}
	return vfs.Info{SizeBytes: st.Size(), Dir: st.IsDir()}, nil
}

// SyncDir makes the names in dir durable.
func (FS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return wrap("sync directory", dir, err)
	}
	err = unix.Fsync(int(d.Fd())) // not retried, also not after EINTR
	return errors.Join(wrap("sync directory", dir, err), wrap("close", dir, d.Close()))
}

// Lock takes flock on a file, which also excludes a second opener in this process.
func (FS) Lock(name string) (io.Closer, error) {
	fd := -1
	err := again(func() (err error) {
		fd, err = unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, filePerm)
		return err
	})
	if err != nil {
		return nil, wrap("lock", name, err)
	}
	if err := again(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return nil, errors.Join(wrap("lock", name, err), wrap("close", name, unix.Close(fd)))
	}
	return &file{name: name, fd: fd}, nil
}

// Space reports the file system that holds dir; Free is what an ordinary user may use.
func (FS) Space(dir string) (vfs.Space, error) {
	var st unix.Statfs_t
	if err := again(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return vfs.Space{}, wrap("statfs", dir, err)
	}
	unit := st.Frsize
	return vfs.Space{Total: int64(st.Blocks) * unit, Free: int64(st.Bavail) * unit}, nil
}

// file is an open file. The descriptor is not in Go's poller: disk files are always ready.
type file struct {
	name   string
	fd     int
	direct bool
}

var (
	_ vfs.File       = (*file)(nil)
	_ vfs.Reserver   = (*file)(nil)
	_ vfs.Flusher    = (*file)(nil)
	_ vfs.DataSeeker = (*file)(nil)
	_ vfs.Descriptor = (*file)(nil)
	_ vfs.DiskBytes  = (*file)(nil)
)

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(f.fd, p[done:], off+int64(done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return done, wrap("read", f.name, err)
		}
		if n == 0 {
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if f.direct && (off%vfs.Alignment != 0 || len(p)%vfs.Alignment != 0 || !vfs.Aligned(p)) {
		return 0, fmt.Errorf("osfs: write %s: unaligned direct write of %d bytes at %d: %w",
			f.name, len(p), off, syscall.EINVAL)
	}
	done := 0
	for done < len(p) {
		n, err := unix.Pwrite(f.fd, p[done:], off+int64(done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return done, wrap("write", f.name, err)
		}
		done += n
	}
	return done, nil
}

func (f *file) Close() error {
	fd := f.fd
	f.fd = -1
	return wrap("close", f.name, unix.Close(fd))
}

func (f *file) Sync() error { return wrap("sync", f.name, unix.Fdatasync(f.fd)) }

func (f *file) Truncate(sizeBytes int64) error {
	return wrap("truncate", f.name, again(func() error { return unix.Ftruncate(f.fd, sizeBytes) }))
}

func (f *file) fallocate(op string, mode uint32, off, n int64) error {
	if n == 0 {
		return nil
	}
	return wrap(op, f.name, again(func() error { return unix.Fallocate(f.fd, mode, off, n) }))
}

func (f *file) Preallocate(off, n int64) error { return f.fallocate("preallocate", 0, off, n) }

func (f *file) Reserve(off, n int64) error {
	return f.fallocate("reserve", unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (f *file) Punch(off, n int64) error {
	return f.fallocate("punch", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (f *file) Flush(off, n int64) error {
	return wrap("flush", f.name, unix.SyncFileRange(f.fd, off, n, unix.SYNC_FILE_RANGE_WRITE))
}

func (f *file) NextData(off int64) (from, to int64, err error) {
	from, err = unix.Seek(f.fd, off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return 0, 0, io.EOF
	}
	if err != nil {
		return 0, 0, wrap("seek data", f.name, err)
	}
	to, err = unix.Seek(f.fd, from, unix.SEEK_HOLE)
	return from, to, wrap("seek hole", f.name, err)
}

func (f *file) stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	err := again(func() error { return unix.Fstat(f.fd, &st) })
	return st, wrap("stat", f.name, err)
}

func (f *file) Size() (int64, error) {
	st, err := f.stat()
	return st.Size, err
}

func (f *file) DiskBytes() (int64, error) {
	const statBlockBytes = 512 // st_blocks counts these on Linux, whatever the block size
	st, err := f.stat()
	return st.Blocks * statBlockBytes, err
}

func (f *file) Fd() uintptr { return uintptr(f.fd) }
