//go:build !cgo

package native

import (
	"context"
	"errors"
)

// Options of Open.
type Options struct {
	Path string // of the library; empty: libibverbs.so.1
}

// Library is libibverbs.
type Library struct{}

// Open opens the library. Errors: *UnavailableError.
func Open(Options) (*Library, error) { return nil, &UnavailableError{Reason: ReasonNoCgo} }

// Devices lists the adapters. Errors: ErrVerbs; none is an empty list.
func (l *Library) Devices() ([]DeviceInfo, error) { return nil, ErrClosed }

// OpenDevice opens an adapter by name. Errors: ErrVerbs.
func (l *Library) OpenDevice(string) (*Device, error) { return nil, ErrClosed }

// Close drops the library. It stays loaded while a device is open.
func (l *Library) Close() error { return nil }

// Device is an open adapter.
type Device struct{}

// Info is what the adapter said of itself when it was opened.
func (d *Device) Info() DeviceInfo { return DeviceInfo{} }

// Port asks for a port's state and GIDs as they are now.
func (d *Device) Port(int) (PortInfo, error) { return PortInfo{}, ErrClosed }

// PortEntry is Port with one entry of the table at most.
func (d *Device) PortEntry(int, int) (PortInfo, error) { return PortInfo{}, ErrClosed }

// NewPD makes a protection domain.
func (d *Device) NewPD() (*PD, error) { return nil, ErrClosed }

// NewCQ makes a completion queue with room for depth completions.
func (d *Device) NewCQ(int) (*CQ, error) { return nil, ErrClosed }

// NextEvent waits for an asynchronous event. Errors: ErrClosed, ctx's error.
func (d *Device) NextEvent(context.Context) (Event, error) { return Event{}, ErrClosed }

// Close closes the device.
func (d *Device) Close() error { return nil }

// PD is a protection domain: its QPs reach its MRs and no others.
type PD struct{}

// Register pins the memory and makes it known to the adapter. The slice must not be moved or unmapped before Close.
func (p *PD) Register([]byte, Access) (*MR, error) { return nil, ErrClosed }

// RegisterDMABuf registers length bytes at offset of a dma-buf, known to peers as addresses from iova on.
func (p *PD) RegisterDMABuf(fd int, offset, length, iova uint64, a Access) (*MR, error) {
	return nil, errors.ErrUnsupported
}

// NewQP makes a QP of type RC in the state QPReset.
func (p *PD) NewQP(*CQ, PairOptions) (*QP, error) { return nil, ErrClosed }

// Close closes the PD.
func (p *PD) Close() error { return nil }

// MR is registered memory.
type MR struct{}

// Addr is where it begins, for peers.
func (m *MR) Addr() uint64 { return 0 }

// LKey is the key for Work.Local.
func (m *MR) LKey() uint32 { return 0 }

// RKey is the key that peers need. A secret: it must not be logged.
func (m *MR) RKey() uint32 { return 0 }

// Close revokes the keys and unpins the memory: afterwards no adapter touches it.
func (m *MR) Close() error { return nil }

// CQ is a completion queue with its completion channel.
type CQ struct{}

// Poll takes completions, as many as there are and fit into dst, without waiting.
func (c *CQ) Poll([]Completion) (int, error) { return 0, ErrClosed }

// Arm asks that the next completion ends Wait. Completions that came before it do not, so Poll follows Arm.
func (c *CQ) Arm() error { return ErrClosed }

// Wait blocks until an armed CQ has had a completion. Errors: ErrClosed, ctx's error.
func (c *CQ) Wait(context.Context) error { return ErrClosed }

// Close closes the CQ and ends its Wait.
func (c *CQ) Close() error { return nil }

// QP is one end of a reliable connection.
type QP struct{}

// Number is the QP's number, 24 bits.
func (q *QP) Number() uint32 { return 0 }

// State asks for the state.
func (q *QP) State() (QPState, error) { return 0, ErrClosed }

// Init takes the QP from QPReset to QPInit.
func (q *QP) Init(Path) error { return ErrClosed }

// Receive takes it to QPReady: from now on it answers the peer.
func (q *QP) Receive(Path, Peer) error { return ErrClosed }

// Send takes it to QPSend: Post may be called.
func (q *QP) Send(Path, Peer) error { return ErrClosed }

// Fail takes it to QPError from any state but QPReset: what is posted completes as StatusFlushed, and what the peer
// sends is thrown away.
func (q *QP) Fail() error { return ErrClosed }

// Reset takes it to QPReset from any state. Completions of it that were not polled may still come.
func (q *QP) Reset() error { return ErrClosed }

// Post posts work requests in one call. Of n < len(work) the first n are posted, and the error says why the next one
// was not.
func (q *QP) Post(work []Work) (n int, err error) { return 0, ErrClosed }

// PostReceive posts a receive without memory, from QPInit on.
func (q *QP) PostReceive(id uint64) error { return ErrClosed }

// Close destroys the QP.
func (q *QP) Close() error { return nil }
