// Package shimlib loads libpenstock-cuobj-shim, or a form of it that was built for a test, into the test's own process:
// there the library shares faked adapters with a node.
//
// Called by: test/shim.
//
// Invariants:
//  1. A library that was loaded stays loaded: its threads and what it holds live as long as the process.
//  2. Memory that is registered is the caller's, and not of Go's heap: the library keeps its address.
//
// What it does not do: building the library, requests.
package shimlib

import "errors"

// ErrUnavailable says that the library cannot be loaded, with the words of the dynamic linker.
var ErrUnavailable = errors.New("shimlib: not available")

// ErrRefused is a failed call, with the library's reason.
var ErrRefused = errors.New("shimlib: refused")
