package target

import "unsafe"

// address is where the memory begins, for a server that reads and writes it from outside. The memory is
// on the heap or the caller's own, so it does not move.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
