// Package vfs is the file layer under drives and metadata: a contract and its real, crashable and
// fault-injecting implementations.
//
// Called by: drive, vfs/pebblefs, tests.
//
// Durability rules that every implementation models:
//  1. Bytes written are durable only after Sync of that file returned nil. After a failed Sync the
//     state of all writes since the last good one is undefined for ever.
//  2. A created, renamed or removed name is durable only after SyncDir of its directory.
//  3. WriteAt and ReadAt on a Direct file need offset, length and memory aligned to Alignment.
//
// What it does not do: caching, retries.
package vfs

import (
	"errors"
	"io"
)

// Alignment of offset, length and memory for files opened with Direct. Unit: bytes.
const Alignment = 4096

var (
	// ErrNotExist says that a name does not exist.
	ErrNotExist = errors.New("vfs: name does not exist")
	// ErrExist says that a name exists already.
	ErrExist = errors.New("vfs: name exists")
	// ErrNoSpace is ENOSPC or EDQUOT.
	ErrNoSpace = errors.New("vfs: no space left")
	// ErrLocked says that another process, or another opener in this one, holds the lock.
	ErrLocked = errors.New("vfs: locked by another owner")
	// ErrNotSupported says that the file system lacks the operation (O_DIRECT, fallocate, punch).
	ErrNotSupported = errors.New("vfs: operation not supported by the file system")
)

// Flag says how to open a file. The zero value opens an existing file for reading.
type Flag uint

// Flags for Open.
const (
	Write    Flag = 1 << iota // reading and writing
	Create                    // create when missing (with Write)
	Excl                      // with Create: fail with ErrExist when it exists
	Truncate                  // empty it (with Write)
	Direct                    // bypass the page cache; ErrNotSupported where that cannot be
)

// FS is a namespace of files. Paths are absolute or relative slash paths. Every error wraps one of
// the sentinels above where one fits, and the operating system's error otherwise.
type FS interface {
	Open(name string, f Flag) (File, error)
	Remove(name string) error // a file or an empty directory
	Rename(oldName, newName string) error
	MkdirAll(dir string) error // durable after SyncDir of each parent
	List(dir string) ([]string, error)
	Stat(name string) (Info, error)
	SyncDir(dir string) error
	// Lock takes an exclusive advisory lock on a file, created when missing, until Close.
	Lock(name string) (io.Closer, error)
}

// Info describes a name.
type Info struct {
	SizeBytes int64
	Dir       bool
}

// Space of the file system that holds a directory. Unit: bytes.
type Space struct {
	Total, Free int64
}

// SpaceReporter is an optional ability of an FS.
type SpaceReporter interface {
	Space(dir string) (Space, error)
}

// Reserver is an optional ability of a File: Reserve allocates space for [off, off+n) and leaves
// the size alone, so that later appends neither fail for space nor fragment.
type Reserver interface {
	Reserve(off, n int64) error
}

// Flusher is an optional ability of a File: Flush starts writing [off, off+n) back without waiting
// and promises nothing about durability. It smooths what a later Sync has to do.
type Flusher interface {
	Flush(off, n int64) error
}

// DataSeeker is an optional ability of a File: NextData returns the first range [from, to) at or
// behind off in which the file may hold bytes; what lies before it reads as zero. io.EOF when there
// is none. Reading zeros can make them count as bytes, so ask for all ranges before reading.
type DataSeeker interface {
	NextData(off int64) (from, to int64, err error)
}

// Descriptor is an optional ability of a File: the file descriptor below, for advice to the
// kernel. It is valid until Close.
type Descriptor interface {
	Fd() uintptr
}

// DiskBytes is an optional ability of a File: the space that its blocks take, which is less than
// its size after Punch. Unit: bytes.
type DiskBytes interface {
	DiskBytes() (int64, error)
}

// UnsyncedDropper is an optional ability of a File on a simulated FS: the kernel met an I/O error
// while writing back. A seeded subset of the bytes written since the last Sync is on the medium,
// the others are not, and all of them count as clean, so that no later Sync writes them.
type UnsyncedDropper interface {
	DropUnsynced(seed uint64)
}

// File is an open file, safe for concurrent ReadAt and WriteAt of disjoint ranges.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes the bytes and what is needed to read them durable (fdatasync).
	Sync() error
	Truncate(sizeBytes int64) error
	// Preallocate reserves space for [off, off+n) and extends the size to cover it; the new bytes
	// read as zero.
	Preallocate(off, n int64) error
	// Punch frees the space of [off, off+n), which then reads as zero; the size stays.
	Punch(off, n int64) error
	Size() (int64, error)
}
