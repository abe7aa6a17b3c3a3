package target

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// hugePage is the size of the huge pages that are asked for: what x86-64 and arm64 with 4 KiB pages have
// beside the small ones.
const hugePage = 2 << 20

// Memory is memory that can be announced on a session: what NewMemory returns as a memfd, what
// WrapMemory returns as foreign memory on shm, where the server takes that. tcp takes both.
type Memory struct {
	bytes []byte

	mu        sync.Mutex
	file      int // memfd, or -1
	announced int // sessions that may touch it
	abandoned bool
	freed     bool
}

// NewMemory allocates size bytes as a populated memfd that is sealed against changes of its size. Its
// pages belong to this process; they are zero. A multiple of 2 MiB takes huge pages of the machine's pool
// (vm.nr_hugepages) when it has enough free ones; otherwise transparent huge pages are asked for.
func NewMemory(size int) (*Memory, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: size %d", ErrMemory, size)
	}
	if size%hugePage == 0 {
		if m, err := allocate(size, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB); err == nil {
			return m, nil
		}
	}
	return allocate(size, 0)
}

func allocate(size, flags int) (*Memory, error) {
	file, err := unix.MemfdCreate("penstock-region", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return nil, fmt.Errorf("target: create memfd: %w", err)
	}
	b, err := mapSealed(file, size)
	if err != nil {
		_ = unix.Close(file) // nothing is in it; the first error is what counts
		return nil, fmt.Errorf("target: allocate %d bytes: %w", size, err)
	}
	return &Memory{bytes: b, file: file}, nil
}

func mapSealed(file, size int) ([]byte, error) {
	if err := unix.Ftruncate(file, int64(size)); err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, seals); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	if size >= hugePage {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a wish: see shmem_enabled; pages of the pool are huge anyhow
	}
	if err := populate(b); err != nil {
		_ = unix.Munmap(b)
		return nil, err
	}
	return b, nil
}

// populate gives every page memory, so that it is charged to this process and the server finds no
// sparse region.
func populate(b []byte) error {
	err := unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	for i := 0; i < len(b); i += os.Getpagesize() { // before Linux 5.14
		b[i] = 0
	}
	return nil
}

// WrapMemory takes memory of the caller. The caller keeps it reachable, in place and mapped until the
// session has ended or the region is forgotten; memory that becomes Abandoned must stay so for the rest of
// the process (of Go's own memory this package sees to that).
func WrapMemory(b []byte) *Memory { return &Memory{bytes: b, file: -1} }

// Foreign tells whether the memory is the caller's.
func (m *Memory) Foreign() bool { return m.file < 0 }

// Bytes is the memory.
func (m *Memory) Bytes() []byte { return m.bytes }

// Abandoned tells whether a session ended without a fence while the memory was announced (shm: the server did not
// confirm it; rc: an adapter let go of nothing in time): its content may still change at any time, so it cannot be
// announced again. Free it and allocate anew; foreign memory must not be used for anything else.
func (m *Memory) Abandoned() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.abandoned
}

// Free gives memory of NewMemory back; its slices must not be used any more. Pages of abandoned memory
// live on until the server lets go of them, but nothing else will get them before. Errors: ErrMemory
// while it is announced on a session.
func (m *Memory) Free() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.announced > 0 {
		return fmt.Errorf("%w: announced on a session", ErrMemory)
	}
	if m.freed || m.file < 0 {
		return nil
	}
	m.freed = true
	return errors.Join(unix.Munmap(m.bytes), unix.Close(m.file))
}

// announce counts a session in.
func (m *Memory) announce() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed || m.abandoned || len(m.bytes) == 0 {
		return fmt.Errorf("%w: freed, abandoned or empty", ErrMemory)
	}
	m.announced++
	return nil
}

// release counts a session out; without a fence the memory is abandoned.
func (m *Memory) release(fenced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.announced--
	if fenced || m.abandoned {
		return
	}
	m.abandoned = true
	if m.file < 0 {
		keep(m)
	}
}

// keep makes m outlive every collection: the server may still write to its bytes, which must not become
// memory of something else. A collection that finds m unreachable runs keep, which revives it.
func keep(m *Memory) { runtime.SetFinalizer(m, keep) }
