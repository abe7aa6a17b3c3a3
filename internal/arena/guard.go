package arena

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Guard runs a pass over mapped client memory. A memory fault (the client truncated or unmapped it)
// ends the pass with ErrMapped and not the process. Other panics go on. The pass must leave nothing
// half changed but the mapped memory, and must not take locks.
func Guard(pass func()) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface {
			runtime.Error
			Addr() uintptr
		})
		if !ok {
			panic(r)
		}
		err = fmt.Errorf("%w: %s", ErrMapped, fault.Error())
	}()
	pass()
	return nil
}
