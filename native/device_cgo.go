package native

// #include "nv.h"
import "C"

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

// invalid is the error for arguments that the library's types cannot hold.
func invalid(call string) error { return &CallError{Call: call, Errno: int(syscall.EINVAL)} }

// busy is for an object that others of the library still use. Who closes them holds no lock of it, so it is asked once:
// one that is found busy and then closed all the same would leave its waiter behind.
func busy(call string) error { return &CallError{Call: call, Errno: int(syscall.EBUSY)} }

// object is something of the library that is closed once all calls on it have returned.
type object struct {
	mu     sync.RWMutex // held to read in calls, to write in close
	closed bool
}

// use begins a call on the object, which ends with the unlock of mu; ErrClosed begins none.
func (o *object) use() error {
	o.mu.RLock()
	if o.closed {
		o.mu.RUnlock()
		return ErrClosed
	}
	return nil
}

// close runs once, after all calls; when it fails the object stays as it is. Closing again does nothing.
func (o *object) close(end func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if err := end(); err != nil {
		return err
	}
	o.closed = true
	return nil
}

// Device is an open adapter.
type Device struct {
	object
	dev    *C.struct_nv_device
	info   DeviceInfo
	events *waiter
	event  C.struct_nv_event // the last one; the one NextEvent's
}

func newDevice(dev *C.struct_nv_device) (*Device, error) {
	d := &Device{dev: dev}
	take := func() C.struct_nv_status { return C.nv_device_event(dev, &d.event) }
	events, err := newWaiter(int(C.nv_device_fd(dev)), "verbs-events", take)
	if err != nil {
		C.nv_device_close(dev)
		return nil, err
	}
	var info C.struct_nv_device_info
	C.nv_device_info(dev, &info)
	d.info, d.events = deviceInfo(&info), events
	return d, nil
}

// Info is what the adapter said of itself when it was opened.
func (d *Device) Info() DeviceInfo { return d.info }

// Port asks for a port's state and GIDs as they are now.
func (d *Device) Port(number int) (PortInfo, error) {
	return d.port(number, 0, maxGIDs)
}

// PortEntry is Port with one entry of the table at most: each entry costs a call of the kernel and two files of sysfs.
func (d *Device) PortEntry(number, index int) (PortInfo, error) {
	if index < 0 {
		return PortInfo{}, invalid("ibv_query_gid")
	}
	index = min(index, maxGIDs)
	return d.port(number, index, index+1)
}

// port reads the entries of the port's table from first to before end.
func (d *Device) port(number, first, end int) (PortInfo, error) {
	if err := d.use(); err != nil {
		return PortInfo{}, err
	}
	defer d.mu.RUnlock()
	if number < 1 || number > 255 {
		return PortInfo{}, invalid("ibv_query_port")
	}
	var c C.struct_nv_port_info
	err := failure(C.nv_port(d.dev, C.uint8_t(number), &c))
	if err != nil {
		return PortInfo{}, err
	}
	p := PortInfo{
		Number:     number,
		Link:       LinkLayer(c.link),
		LID:        uint16(c.lid),
		MTU:        int(c.mtu),
		MaxMessage: uint32(c.max_message),
	}
	if c.active != 0 {
		p.State = PortActive
	}
	if end = min(end, int(c.gids)); first < end {
		p.GIDs, err = d.gids(number, first, end)
	}
	return p, err
}

// maxGIDs is the end of what can be used of a port's table: Path.GIDIndex is a byte for the adapter.
const maxGIDs = C.NV_GIDS

// gids reads entries of a port's table, which are at least one.
func (d *Device) gids(port, first, end int) ([]GID, error) {
	entries := C.struct_nv_range{first: C.int32_t(first), end: C.int32_t(end)}
	room := make([]C.struct_nv_gid, end-first)
	var count C.int32_t
	err := failure(C.nv_gids(d.dev, C.uint8_t(port), entries, &room[0], C.int32_t(len(room)), &count))
	if err != nil {
		return nil, err
	}
	gids := make([]GID, 0, int(count))
	for i := range room[:count] {
		c := &room[i]
		gids = append(gids, GID{
			Index:   int(c.index),
			Raw:     *(*[16]byte)(unsafe.Pointer(&c.raw)),
			Type:    GIDType(c._type),
			Network: C.GoString(&c.network[0]),
		})
	}
	return gids, nil
}

// NextEvent waits for an asynchronous event. One NextEvent at a time. Errors: ErrClosed, ctx's error.
func (d *Device) NextEvent(ctx context.Context) (Event, error) {
	if err := d.events.wait(ctx); err != nil {
		return Event{}, err
	}
	c := &d.event
	return Event{Type: EventType(c._type), Port: int(c.port), QPN: uint32(c.qpn)}, nil
}

// Close closes the device and ends its NextEvent.
func (d *Device) Close() error {
	return d.close(func() error {
		if C.nv_device_busy(d.dev) != 0 {
			return busy("ibv_close_device")
		}
		d.events.close()
		return failure(C.nv_device_close(d.dev))
	})
}

// PD is a protection domain: its QPs reach its MRs and no others.
type PD struct {
	object
	pd *C.struct_nv_pd
}

// NewPD makes a protection domain.
func (d *Device) NewPD() (*PD, error) {
	if err := d.use(); err != nil {
		return nil, err
	}
	defer d.mu.RUnlock()
	p := &PD{}
	if err := failure(C.nv_pd_open(d.dev, &p.pd)); err != nil {
		return nil, err
	}
	return p, nil
}

// Close closes the PD.
func (p *PD) Close() error { return p.close(func() error { return failure(C.nv_pd_close(p.pd)) }) }

// MR is registered memory.
type MR struct {
	object
	mr   *C.struct_nv_mr
	info C.struct_nv_mr_info
}

// Register pins the memory and makes it known to the adapter. The slice must not be moved or unmapped before Close.
func (p *PD) Register(memory []byte, access Access) (*MR, error) {
	if err := p.use(); err != nil {
		return nil, err
	}
	defer p.mu.RUnlock()
	if len(memory) == 0 {
		return nil, invalid("ibv_reg_mr")
	}
	m := &MR{}
	at := unsafe.Pointer(unsafe.SliceData(memory))
	if err := failure(C.nv_mr_open(p.pd, at, C.size_t(len(memory)), C.int(access), &m.mr)); err != nil {
		return nil, err
	}
	runtime.KeepAlive(memory)
	C.nv_mr_info(m.mr, &m.info)
	return m, nil
}

// RegisterDMABuf registers length bytes at offset of a dma-buf, known to peers as addresses from iova on.
func (p *PD) RegisterDMABuf(fd int, offset, length, iova uint64, access Access) (*MR, error) {
	if err := p.use(); err != nil {
		return nil, err
	}
	defer p.mu.RUnlock()
	if length == 0 {
		return nil, invalid("ibv_reg_dmabuf_mr")
	}
	m := &MR{}
	buffer := C.struct_nv_dmabuf{
		offset: C.uint64_t(offset), length: C.uint64_t(length), iova: C.uint64_t(iova), fd: C.int32_t(fd),
	}
	if err := failure(C.nv_mr_open_dmabuf(p.pd, &buffer, C.int(access), &m.mr)); err != nil {
		return nil, err
	}
	C.nv_mr_info(m.mr, &m.info)
	return m, nil
}

// Format prints the region without its keys, whatever the verb.
func (m *MR) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "mr{redacted}") }

// Addr is where it begins, for peers.
func (m *MR) Addr() uint64 { return uint64(m.info.addr) }

// LKey is the key for Work.Local.
func (m *MR) LKey() uint32 { return uint32(m.info.lkey) }

// RKey is the key that peers need. A secret: it must not be logged.
func (m *MR) RKey() uint32 { return uint32(m.info.rkey) }

// Close revokes the keys and unpins the memory: afterwards no adapter touches it.
func (m *MR) Close() error { return m.close(func() error { return failure(C.nv_mr_close(m.mr)) }) }
