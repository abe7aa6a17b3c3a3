package native

// -O2 also without the default flags of cgo: the core is on the path of every transfer.

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -O2
#cgo linux LDFLAGS: -ldl
#cgo noescape nv_qp_post
#cgo nocallback nv_qp_post
#cgo noescape nv_cq_poll
#cgo nocallback nv_cq_poll
#cgo noescape nv_cq_event
#cgo nocallback nv_cq_event
#cgo noescape nv_cq_arm
#cgo nocallback nv_cq_arm
#include <stdlib.h>
#include "nv.h"
*/
import "C"

import (
	"sync"
	"syscall"
	"unsafe"
)

// Options of Open.
type Options struct {
	Path string // of the library; empty: libibverbs.so.1
}

// Library is libibverbs.
type Library struct {
	mu  sync.Mutex
	lib *C.struct_nv_lib // nil: closed
}

// Open opens the library. Errors: *UnavailableError.
func Open(o Options) (*Library, error) {
	var path *C.char
	if o.Path != "" {
		path = C.CString(o.Path)
		defer C.free(unsafe.Pointer(path))
	}
	var detail [C.NV_DETAIL_BYTES]C.char
	var lib *C.struct_nv_lib
	if why := C.nv_open(path, &lib, &detail[0]); why != C.NV_AVAILABLE {
		return nil, unavailable(why, C.GoString(&detail[0]))
	}
	return &Library{lib: lib}, nil
}

// OpenTable makes a Library of a table of functions, a struct nv_api of nv_api.h, instead of opening one. The table
// must stay in place until the Library and its devices are closed. Errors: *UnavailableError.
func OpenTable(table unsafe.Pointer) (*Library, error) {
	var lib *C.struct_nv_lib
	if why := C.nv_open_table(table, &lib); why != C.NV_AVAILABLE {
		return nil, unavailable(why, "a table of another version")
	}
	return &Library{lib: lib}, nil
}

func unavailable(why C.enum_nv_unavailable, detail string) error {
	switch why {
	case C.NV_NO_HEADERS_BUILT:
		return &UnavailableError{Reason: ReasonNoHeaders}
	case C.NV_NO_SYMBOL:
		return &UnavailableError{Reason: ReasonNoSymbol, Detail: detail}
	case C.NV_NO_MEMORY:
		return &UnavailableError{Reason: ReasonNoLibrary, Detail: syscall.ENOMEM.Error()}
	default:
		return &UnavailableError{Reason: ReasonNoLibrary, Detail: detail}
	}
}

// failure is the error of a status, or nil.
func failure(s C.struct_nv_status) error {
	if s.err == 0 {
		return nil
	}
	return &CallError{Call: C.GoString(s.call), Errno: int(s.err)}
}

// Devices lists the adapters; one that does not open has a name and a GUID, and limits of zero. Errors: ErrVerbs; none
// is an empty list.
func (l *Library) Devices() ([]DeviceInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lib == nil {
		return nil, ErrClosed
	}
	var list *C.struct_nv_device_info
	var count C.int32_t
	if err := failure(C.nv_devices(l.lib, &list, &count)); err != nil {
		return nil, err
	}
	defer C.nv_free(unsafe.Pointer(list))
	infos := make([]DeviceInfo, 0, int(count))
	for i := range unsafe.Slice(list, int(count)) {
		infos = append(infos, deviceInfo(&unsafe.Slice(list, int(count))[i]))
	}
	return infos, nil
}

func deviceInfo(c *C.struct_nv_device_info) DeviceInfo {
	return DeviceInfo{
		Name:       C.GoString(&c.name[0]),
		GUID:       uint64(c.guid),
		NUMANode:   int(c.numa_node),
		Ports:      int(c.ports),
		MaxQP:      int(c.max_qp),
		MaxCQ:      int(c.max_cq),
		MaxCQDepth: int(c.max_cq_depth),
		MaxQPDepth: int(c.max_qp_depth),
		MaxMR:      int(c.max_mr),
		MaxMRBytes: int64(min(c.max_mr_bytes, 1<<63-1)),
		MaxReads:   int(c.max_reads),
		MaxIssued:  int(c.max_issued),
		Firmware:   C.GoString(&c.firmware[0]),
	}
}

// OpenDevice opens an adapter by name. Errors: ErrVerbs.
func (l *Library) OpenDevice(name string) (*Device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lib == nil {
		return nil, ErrClosed
	}
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var device *C.struct_nv_device
	if err := failure(C.nv_device_open(l.lib, text, &device)); err != nil {
		return nil, err
	}
	return newDevice(device)
}

// Close drops the library. It stays loaded: drivers of adapters may not be unmapped. Closing again does nothing.
func (l *Library) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lib != nil {
		C.nv_release(l.lib)
		l.lib = nil
	}
	return nil
}
