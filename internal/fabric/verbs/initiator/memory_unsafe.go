package initiator

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/native"
)

// address is where b begins. The memory is mapped, or pinned by its caller for as long as the adapter may use it.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// local is memory that this rail has registered.
type local struct {
	memory []byte
	mr     *native.MR
	from   uint64
	lkey   uint32
}

// has tells whether the n bytes at addr lie in it.
func (l *local) has(addr, n uint64) bool {
	return addr >= l.from && n <= uint64(len(l.memory)) && addr-l.from <= uint64(len(l.memory))-n
}

// register makes memory known to the adapter, without remote rights.
func register(pd *native.PD, memory []byte) (local, error) {
	mr, err := pd.Register(memory, native.LocalWrite)
	if err != nil {
		return local{}, fmt.Errorf("initiator: register %d bytes (%s): %w", len(memory), lockedLimit(), err)
	}
	return local{memory: memory, mr: mr, from: address(memory), lkey: mr.LKey()}, nil
}

// lockedLimit names the limit that a refused registration most likely met.
func lockedLimit() string {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return "limit of locked memory not known"
	}
	if l.Cur == unix.RLIM_INFINITY {
		return "locked memory is not limited"
	}
	return fmt.Sprintf("limit of locked memory is %d bytes", l.Cur)
}

// mapScratch maps memory for one scratch of each path, outside Go's heap.
func mapScratch(paths int) ([]byte, error) {
	page := os.Getpagesize()
	size := (paths*scratchBytes + page - 1) / page * page
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("initiator: map %d bytes: %w", size, err)
	}
	return memory, nil
}
