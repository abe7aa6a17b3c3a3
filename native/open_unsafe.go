package native

import "unsafe"

// OpenTable makes a Library of a table of functions, a struct nv_api of nv_api.h, instead of opening one. The table
// must stay in place until the Library and its devices are closed. Errors: *UnavailableError.
func OpenTable(table unsafe.Pointer) (*Library, error) {
	return nil, &UnavailableError{Reason: ReasonNoCgo}
}
