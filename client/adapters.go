package client

import (
	"errors"
	"sync"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/native"
)

// Reasons of rc that this machine gives, beside those of package native ("no-cgo", "no-headers", "no-library",
// "no-symbol", "no-device") and of a port ("port-down").
const (
	ReasonAdapter = "adapter"       // an adapter, or its library, failed
	ReasonMemlock = "memory-locked" // more memory than this process may lock (ulimit -l)
	ReasonNoPath  = "no-path"       // no port of this machine is connected to a rail of the node: the cause says why
	ReasonAddress = "not-ours"      // the node takes no port's address for this machine's: see rdma.client_networks

	reasonNoRail = "no-rail" // the node has no adapter, or none with an address
)

// adapters are the RDMA devices of this machine, opened when rc is first wanted.
type adapters struct {
	library *native.Library
	names   []string

	mu      sync.Mutex
	closed  bool
	devices *target.Devices
}

// ready is what get found last, or looks.
func (a *adapters) ready() (*target.Devices, *DeclinedError) {
	a.mu.Lock()
	devices := a.devices
	if a.closed {
		devices = nil
	}
	a.mu.Unlock()
	if devices != nil {
		return devices, nil
	}
	return a.get()
}

// get tells what can be used now, without a word to the node.
func (a *adapters) get() (*target.Devices, *DeclinedError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, &DeclinedError{Reason: ReasonNoSession, Cause: ErrClosed}
	}
	var err error
	if a.devices == nil {
		a.devices, err = target.OpenDevices(a.library, a.names)
	} else {
		err = a.devices.Usable()
	}
	if err == nil {
		return a.devices, nil
	}
	missing := new(native.UnavailableError)
	if errors.As(err, &missing) {
		return nil, &DeclinedError{Reason: missing.Reason, Cause: err}
	}
	return nil, &DeclinedError{Reason: ReasonAdapter, Cause: err}
}

func (a *adapters) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.devices == nil {
		return nil
	}
	return a.devices.Close()
}

// expected tells whether a fabric is simply not there, so that another one in its place is no surprise.
func expected(fabric, reason string) bool {
	switch reason {
	case ReasonOtherHost:
		return true
	case ReasonNoFabric, native.ReasonNoCgo, native.ReasonNoHeaders, native.ReasonNoLibrary, native.ReasonNoSymbol,
		native.ReasonNoDevice, reasonNoRail: // of either machine
		return fabric == PathRC
	}
	return false
}
