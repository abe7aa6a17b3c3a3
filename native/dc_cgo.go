package native

/*
#cgo noescape nv_dci_post
#cgo nocallback nv_dci_post
#include <stdlib.h>
#include "nv_dc.h"
*/
import "C"

import (
	"syscall"
	"unsafe"
)

// DC makes dynamically connected queue pairs available, by libmlx5.so.1. Calling it again is cheap once it has gone
// well. Errors: *UnavailableError, ErrClosed.
func (l *Library) DC() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lib == nil {
		return ErrClosed
	}
	var detail [C.NV_DETAIL_BYTES]C.char
	return dcUnavailable(C.nv_dc_open(l.lib, nil, &detail[0]), C.GoString(&detail[0]))
}

func dcUnavailable(why C.enum_nv_unavailable, detail string) error {
	switch why {
	case C.NV_AVAILABLE:
		return nil
	case C.NV_NO_HEADERS_BUILT, C.NV_NO_MLX5_BUILT:
		return &UnavailableError{Reason: ReasonNoMlx5Headers}
	case C.NV_NO_SYMBOL:
		return &UnavailableError{Reason: ReasonNoMlx5Symbol, Detail: detail}
	case C.NV_NO_MEMORY:
		return &UnavailableError{Reason: ReasonNoMlx5, Detail: syscall.ENOMEM.Error()}
	default:
		return &UnavailableError{Reason: ReasonNoMlx5, Detail: detail}
	}
}

// DC tells whether the adapter has dynamically connected queue pairs; Library.DC comes first. Errors:
// *UnavailableError, ErrClosed.
func (d *Device) DC() error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.mu.RUnlock()
	if C.nv_dc_device(d.dev).err != 0 {
		return &UnavailableError{Reason: ReasonNoDC}
	}
	return nil
}

// Address is a peer's port as the adapter knows it.
type Address struct {
	object
	ah *C.struct_nv_ah
}

// NewAddress makes an address. Of the path it needs Port, GIDIndex, HopLimit and TrafficClass. It may wait for the
// network to tell who the neighbour is.
func (p *PD) NewAddress(path Path, peer PeerPort) (*Address, error) {
	if err := p.use(); err != nil {
		return nil, err
	}
	defer p.mu.RUnlock()
	if !fits(path, Peer{}) {
		return nil, invalid("ibv_create_ah")
	}
	c := C.struct_nv_address{
		gid_index:     C.int32_t(path.GIDIndex),
		lid:           C.uint16_t(peer.LID),
		port:          C.uint8_t(path.Port),
		hop_limit:     C.uint8_t(path.HopLimit),
		traffic_class: C.uint8_t(path.TrafficClass),
	}
	if peer.HasGID {
		c.global = 1
	}
	*(*[16]byte)(unsafe.Pointer(&c.gid)) = peer.GID
	a := &Address{}
	if err := failure(C.nv_ah_open(p.pd, &c, &a.ah)); err != nil {
		return nil, err
	}
	return a, nil
}

// Close closes the address: see Destination.
func (a *Address) Close() error { return a.close(func() error { return failure(C.nv_ah_close(a.ah)) }) }

// DCI is a queue pair that sends to whatever DCT each Post names, and answers nobody.
type DCI struct {
	object
	dci    *C.struct_nv_dci
	number uint32
}

// NewDCI makes a DCI in the state QPReset.
func (p *PD) NewDCI(cq *CQ, o PairOptions) (*DCI, error) {
	if err := p.use(); err != nil {
		return nil, err
	}
	defer p.mu.RUnlock()
	if err := cq.use(); err != nil {
		return nil, err
	}
	defer cq.mu.RUnlock()
	if o.Depth < 1 || o.Depth > maxDepth {
		return nil, invalid("mlx5dv_create_qp")
	}
	d := &DCI{}
	if err := failure(C.nv_dci_open(p.pd, cq.cq, C.int(o.Depth), &d.dci)); err != nil {
		return nil, err
	}
	d.number = uint32(C.nv_qp_number(C.nv_dci_qp(d.dci)))
	return d, nil
}

// Number is the DCI's number, 24 bits.
func (d *DCI) Number() uint32 { return d.number }

// State asks for the state.
func (d *DCI) State() (QPState, error) {
	if err := d.use(); err != nil {
		return 0, err
	}
	defer d.mu.RUnlock()
	var state C.int32_t
	if err := failure(C.nv_qp_state(C.nv_dci_qp(d.dci), &state)); err != nil {
		return 0, err
	}
	return QPState(state), nil
}

// Connect takes it from QPReset to QPSend: Post may be called. Of the path it needs Port, PSN, Timeout, Retries and
// RNRRetries, of the peer MTU and Reads.
func (d *DCI) Connect(path Path, peer Peer) error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.mu.RUnlock()
	if !fits(path, peer) {
		return invalid("ibv_modify_qp")
	}
	return failure(C.nv_dci_connect(d.dci, &C.struct_nv_path{
		psn:         C.uint32_t(path.PSN),
		mtu:         C.int32_t(peer.MTU),
		port:        C.uint8_t(path.Port),
		reads:       C.uint8_t(peer.Reads),
		timeout:     C.uint8_t(path.Timeout),
		retries:     C.uint8_t(path.Retries),
		rnr_retries: C.uint8_t(path.RNRRetries),
	}))
}

// Fail takes it to QPError from any state but QPReset: what is posted completes as StatusFlushed.
func (d *DCI) Fail() error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.mu.RUnlock()
	return failure(C.nv_qp_to_error(C.nv_dci_qp(d.dci)))
}

// Reset takes it to QPReset from any state. Completions of it that were not polled may still come.
func (d *DCI) Reset() error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.mu.RUnlock()
	return failure(C.nv_qp_to_reset(C.nv_dci_qp(d.dci)))
}

// Post posts work requests to one destination, as QP.Post. Each has at least one byte.
func (d *DCI) Post(to Destination, work []Work) (n int, err error) {
	if err := d.use(); err != nil {
		return 0, err
	}
	defer d.mu.RUnlock()
	if err := to.Address.use(); err != nil {
		return 0, err
	}
	defer to.Address.mu.RUnlock()
	if len(work) == 0 {
		return 0, nil
	}
	if to.DCT >= 1<<24 {
		return 0, invalid("ibv_wr_complete")
	}
	c := C.struct_nv_target{ah: to.Address.ah, key: C.uint64_t(to.Key), dct: C.uint32_t(to.DCT)}
	list := (*C.struct_nv_work)(unsafe.Pointer(unsafe.SliceData(work)))
	var posted C.int32_t
	err = failure(C.nv_dci_post(d.dci, &c, list, C.int32_t(min(len(work), maxDepth)), &posted))
	return int(posted), err
}

// Close destroys the DCI.
func (d *DCI) Close() error { return d.close(func() error { return failure(C.nv_dci_close(d.dci)) }) }

// DCT is a target of DCIs: its number and its access key are all that a peer needs besides the keys of memory.
type DCT struct {
	object
	dct *C.struct_nv_dct
}

// NewDCT makes a DCT with an access key; it answers nobody before Answer.
func (p *PD) NewDCT(cq *CQ, key uint64) (*DCT, error) {
	if err := p.use(); err != nil {
		return nil, err
	}
	defer p.mu.RUnlock()
	if err := cq.use(); err != nil {
		return nil, err
	}
	defer cq.mu.RUnlock()
	d := &DCT{}
	if err := failure(C.nv_dct_open(p.pd, cq.cq, C.uint64_t(key), &d.dct)); err != nil {
		return nil, err
	}
	return d, nil
}

// Answer lets peers reach it, and returns its number, 24 bits. Of the path it needs Port, GIDIndex, HopLimit,
// TrafficClass, Access and MinRNRTimer.
func (d *DCT) Answer(path Path, mtu int) (number uint32, err error) {
	if err := d.use(); err != nil {
		return 0, err
	}
	defer d.mu.RUnlock()
	if !fits(path, Peer{MTU: mtu}) {
		return 0, invalid("ibv_modify_qp")
	}
	err = failure(C.nv_dct_answer(d.dct, &C.struct_nv_path{
		mtu:           C.int32_t(mtu),
		gid_index:     C.int32_t(path.GIDIndex),
		access:        C.int32_t(path.Access),
		port:          C.uint8_t(path.Port),
		hop_limit:     C.uint8_t(path.HopLimit),
		traffic_class: C.uint8_t(path.TrafficClass),
		min_rnr_timer: C.uint8_t(path.MinRNRTimer),
	}))
	if err != nil {
		return 0, err
	}
	return uint32(C.nv_dct_number(d.dct)), nil
}

// Close destroys the DCT: afterwards it answers nobody.
func (d *DCT) Close() error { return d.close(func() error { return failure(C.nv_dct_close(d.dct)) }) }
