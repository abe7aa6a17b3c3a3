//go:build !cgo

package shimlib

import "fmt"

// Library is one that is loaded. Without cgo there is none.
type Library struct{}

// Load fails. Errors: ErrUnavailable.
func Load(string) (*Library, error) { return nil, fmt.Errorf("%w: built without cgo", ErrUnavailable) }

// UseVerbs gives a library that was built for tests a table of functions.
func (l *Library) UseVerbs(uintptr) {}

// Available is cuobj_available.
func (l *Library) Available() error { return ErrUnavailable }

// Register is cuobj_register_buffer.
func (l *Library) Register([]byte) error { return ErrUnavailable }

// Deregister is cuobj_deregister_buffer.
func (l *Library) Deregister([]byte) error { return ErrUnavailable }

// Token is cuobj_get_rdma_token.
func (l *Library) Token([]byte, int, int, bool) (string, error) { return "", ErrUnavailable }

// Put is cuobj_put_rdma_token.
func (l *Library) Put(string) error { return ErrUnavailable }
