package shm

import "unsafe"

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// pointer is for system calls on mapped memory, which Go does not move.
func pointer(address uint64) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

func slice(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }
