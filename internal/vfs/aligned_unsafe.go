package vfs

import "unsafe"

// Aligned says whether p starts at a multiple of Alignment in memory, as Direct files need it.
func Aligned(p []byte) bool {
	return len(p) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(p)))%Alignment == 0
}

// AlignedBytes allocates n zero bytes that start at a multiple of Alignment.
func AlignedBytes(n int) []byte {
	raw := make([]byte, n+Alignment)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (Alignment - 1)
	return raw[skip : int(skip)+n : int(skip)+n]
}
