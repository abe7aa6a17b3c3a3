package pebble

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// failureKind says what an engine that has failed still does.
type failureKind int

const (
	failWrites failureKind = iota + 1 // durable states can be read
	failAll                           // memory may be inconsistent
)

// failure keeps the first error that ended the engine's writing.
type failure struct {
	onFatal func(error) // called once

	kind atomic.Int32
	mu   sync.Mutex
	err  error
}

// set records a failure; the first one stays, but its kind can get worse.
func (f *failure) set(err error, kind failureKind) {
	f.mu.Lock()
	first := f.err == nil
	if first {
		f.err = fmt.Errorf("%w: %w", kv.ErrClosed, err)
	}
	f.kind.Store(max(f.kind.Load(), int32(kind)))
	f.mu.Unlock()
	if first {
		f.onFatal(err)
	}
}

func (f *failure) get(from failureKind) error {
	if f.kind.Load() < int32(from) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// writes returns why nothing can be written, or nil.
func (f *failure) writes() error { return f.get(failWrites) }

// reads returns why nothing can be read, or nil.
func (f *failure) reads() error { return f.get(failAll) }

// panicked makes an error of what a panic carried.
func panicked(p any) error {
	if err, ok := p.(error); ok {
		return err
	}
	return fmt.Errorf("panic: %v", p)
}
