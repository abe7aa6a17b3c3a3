package shm

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric"
)

// mapping is a region's memfd mapped into this process. Operations on bytes are bracketed by enter
// and leave. Sever takes the client's memory away from under them.
type mapping struct {
	addr  unsafe.Pointer
	bytes []byte // the region; the mapping is this rounded up to whole pages

	mu      sync.Mutex
	idle    sync.Cond // on mu: uses became 0
	uses    int
	severed bool
}

var _ fabric.Backing = (*mapping)(nil)

// mapFile maps size bytes of the file, all pages at once: a fault per page and request would cost
// more than the copy.
func mapFile(fd int, size int64) (*mapping, error) {
	addr, err := unix.MmapPtr(fd, 0, nil, roundUp(size),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("shm: map %d bytes: %w", size, err)
	}
	m := &mapping{addr: addr, bytes: unsafe.Slice((*byte)(addr), size)}
	m.idle.L = &m.mu
	return m, nil
}

func roundUp(size int64) uintptr {
	page := int64(os.Getpagesize())
	return uintptr((size + page - 1) / page * page)
}

// enter begins an operation; false means that the memory is gone.
func (m *mapping) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.severed {
		return false
	}
	m.uses++
	return true
}

// leave ends an operation. The last one of a severed mapping gives the addresses back.
func (m *mapping) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uses--
	if m.uses > 0 {
		return
	}
	if m.uses < 0 {
		panic("shm: operation ended twice")
	}
	m.idle.Broadcast()
	if m.severed {
		m.unmap()
	}
}

// Sever makes the client's memory unreachable. While operations are under way, private memory takes
// its place at the same addresses, so that a copy that comes late (a kernel read that hung) lands
// there; the addresses stay taken until the last operation has left.
func (m *mapping) Sever() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uses > 0 && m.overlay() != nil {
		for m.uses > 0 { // no memory for page tables: all that is left is to wait
			m.idle.Wait()
		}
	}
	m.severed = true
	if m.uses == 0 {
		m.unmap()
	}
}

func (m *mapping) overlay() error {
	_, err := unix.MmapPtr(-1, 0, m.addr, roundUp(int64(len(m.bytes))), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}

func (m *mapping) unmap() {
	if err := unix.MunmapPtr(m.addr, roundUp(int64(len(m.bytes)))); err != nil {
		panic("shm: unmap: " + err.Error()) // the arguments are those of mmap
	}
	m.addr, m.bytes = nil, nil
}
