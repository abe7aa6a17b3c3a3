package shimlib

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdlib.h>
// #include <stdint.h>
//
// struct shim {
//	int (*available)(void);
//	int (*book)(void *, size_t);
//	int (*unbook)(void *);
//	const char *(*get)(void *, size_t, size_t, int);
//	int (*put)(const char *);
//	const char *(*why)(void);
//	void (*verbs)(const void *);
// };
//
// static void *find(void *library, const char *name) { return dlsym(library, name); }
//
// static int load(const char *path, struct shim *s)
// {
//	void *l = dlopen(path, RTLD_NOW | RTLD_LOCAL);
//
//	if (!l)
//		return -1;
//	*(void **)&s->available = find(l, "cuobj_available");
//	*(void **)&s->book = find(l, "cuobj_register_buffer");
//	*(void **)&s->unbook = find(l, "cuobj_deregister_buffer");
//	*(void **)&s->get = find(l, "cuobj_get_rdma_token");
//	*(void **)&s->put = find(l, "cuobj_put_rdma_token");
//	*(void **)&s->why = find(l, "penstock_cuobj_last_error");
//	*(void **)&s->verbs = find(l, "penstock_cuobj_test_verbs");
//	return s->available && s->book && s->unbook && s->get && s->put && s->why ? 0 : -1;
// }
//
// static void set_verbs(struct shim *s, uintptr_t table) { if (s->verbs) s->verbs((const void *)table); }
// static int available(struct shim *s) { return s->available(); }
// static int book(struct shim *s, uintptr_t p, size_t n) { return s->book((void *)p, n); }
// static int unbook(struct shim *s, uintptr_t p) { return s->unbook((void *)p); }
// static const char *get(struct shim *s, uintptr_t p, size_t n, size_t off, int put)
// {
//	return s->get((void *)p, n, off, put);
// }
// static int put(struct shim *s, const char *token) { return s->put(token); }
// static const char *why(struct shim *s) { return s->why(); }
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Library is one that is loaded. It is safe for concurrent use.
type Library struct {
	shim C.struct_shim
}

// Load loads a library by its path. Errors: ErrUnavailable.
func Load(path string) (*Library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	l := &Library{}
	if C.load(name, &l.shim) != 0 {
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, C.GoString(C.dlerror()))
	}
	return l, nil
}

// UseVerbs gives a library that was built for tests a table of functions in the place of libibverbs.
func (l *Library) UseVerbs(table uintptr) { C.set_verbs(&l.shim, C.uintptr_t(table)) }

// result tells the reason of the calling thread's last failure.
func (l *Library) result(bad C.int) error {
	if bad == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrRefused, C.GoString(C.why(&l.shim)))
}

// Available is cuobj_available.
func (l *Library) Available() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if C.available(&l.shim) == 1 {
		return nil
	}
	return l.result(-1)
}

// Register is cuobj_register_buffer.
func (l *Library) Register(memory []byte) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return l.result(C.book(&l.shim, address(memory), C.size_t(len(memory))))
}

// Deregister is cuobj_deregister_buffer.
func (l *Library) Deregister(memory []byte) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return l.result(C.unbook(&l.shim, address(memory)))
}

// Token is cuobj_get_rdma_token.
func (l *Library) Token(memory []byte, size, offset int, put bool) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	direction := C.int(0)
	if put {
		direction = 1
	}
	text := C.get(&l.shim, address(memory), C.size_t(size), C.size_t(offset), direction)
	if text == nil {
		return "", l.result(-1)
	}
	return C.GoString(text), nil
}

// Put is cuobj_put_rdma_token.
func (l *Library) Put(token string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	text := C.CString(token)
	defer C.free(unsafe.Pointer(text))
	return l.result(C.put(&l.shim, text))
}

func address(memory []byte) C.uintptr_t {
	return C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
}
