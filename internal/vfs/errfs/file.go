package errfs

import (
	"errors"

	"github.com/penstock-store/penstock/internal/vfs"
)

// file passes every operation through the rules.
type file struct {
	fs    *FS
	name  string
	inner vfs.File
}

var (
	_ vfs.File            = (*file)(nil)
	_ vfs.Reserver        = (*file)(nil)
	_ vfs.Flusher         = (*file)(nil)
	_ vfs.DiskBytes       = (*file)(nil)
	_ vfs.DataSeeker      = (*file)(nil)
	_ vfs.UnsyncedDropper = (*file)(nil)
)

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	r := f.fs.strike(Read, f.name)
	if r != nil && r.Fault != FlipBit {
		return 0, failure("read", f.name, r)
	}
	n, err := f.inner.ReadAt(p, off)
	if r != nil && r.At >= off && r.At < off+int64(n) {
		p[r.At-off] ^= 1 << (r.Bit & 7)
	}
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	r := f.fs.strike(Write, f.name)
	if r == nil {
		return f.inner.WriteAt(p, off)
	}
	err := failure("write", f.name, r)
	keep := 0
	switch r.Fault {
	case ShortWrite, TornWrite:
		keep = min(r.Keep, len(p))
	case FailAfter:
		keep = len(p)
	}
	if keep == 0 {
		return 0, err
	}
	n, innerErr := f.writePart(p[:keep], off)
	if r.Fault != ShortWrite {
		n = 0
	}
	return n, errors.Join(err, innerErr)
}

// writePart writes through a second, undirected file, because a part need not be aligned.
func (f *file) writePart(p []byte, off int64) (int, error) {
	plain, err := f.fs.inner.Open(f.name, vfs.Write)
	if err != nil {
		return 0, err
	}
	n, err := plain.WriteAt(p, off)
	return n, errors.Join(err, plain.Close())
}

func (f *file) Close() error {
	r := f.fs.strike(Close, f.name)
	err := f.inner.Close()
	if r != nil {
		return errors.Join(failure("close", f.name, r), err)
	}
	return err
}

func (f *file) Sync() error {
	r := f.fs.strike(Sync, f.name)
	if r == nil {
		return f.inner.Sync()
	}
	switch r.Fault {
	case LoseSync:
		f.DropUnsynced(r.Seed)
	case FailAfter:
		return errors.Join(failure("sync", f.name, r), f.inner.Sync())
	}
	return failure("sync", f.name, r)
}

func (f *file) Truncate(sizeBytes int64) error {
	return f.fs.around(Truncate, "truncate", func() error { return f.inner.Truncate(sizeBytes) }, f.name)
}

func (f *file) Preallocate(off, n int64) error {
	return f.fs.around(Preallocate, "preallocate", func() error { return f.inner.Preallocate(off, n) }, f.name)
}

func (f *file) Punch(off, n int64) error {
	return f.fs.around(Punch, "punch", func() error { return f.inner.Punch(off, n) }, f.name)
}

func (f *file) Size() (n int64, err error) {
	err = f.fs.around(Size, "size", func() (err error) {
		n, err = f.inner.Size()
		return err
	}, f.name)
	return n, err
}

func (f *file) Reserve(off, n int64) error {
	return f.fs.around(Preallocate, "reserve", func() error {
		if r, ok := f.inner.(vfs.Reserver); ok {
			return r.Reserve(off, n)
		}
		return vfs.ErrNotSupported
	}, f.name)
}

func (f *file) Flush(off, n int64) error {
	return f.fs.around(Flush, "flush", func() error {
		if fl, ok := f.inner.(vfs.Flusher); ok {
			return fl.Flush(off, n)
		}
		return vfs.ErrNotSupported
	}, f.name)
}

func (f *file) NextData(off int64) (from, to int64, err error) {
	err = f.fs.around(NextData, "seek data", func() (err error) {
		s, ok := f.inner.(vfs.DataSeeker)
		if !ok {
			return vfs.ErrNotSupported
		}
		from, to, err = s.NextData(off)
		return err
	}, f.name)
	return from, to, err
}

func (f *file) DiskBytes() (int64, error) {
	if d, ok := f.inner.(vfs.DiskBytes); ok {
		return d.DiskBytes()
	}
	return 0, vfs.ErrNotSupported
}

// DropUnsynced does nothing where the file below is a real one: then the sync is merely missing.
func (f *file) DropUnsynced(seed uint64) {
	if d, ok := f.inner.(vfs.UnsyncedDropper); ok {
		d.DropUnsynced(seed)
	}
}
