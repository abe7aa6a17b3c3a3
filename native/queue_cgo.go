package native

// #include "nv.h"
import "C"

import (
	"context"
	"unsafe"
)

// CQ is a completion queue with its completion channel.
type CQ struct {
	object
	cq     *C.struct_nv_cq
	events *waiter
}

// NewCQ makes a completion queue with room for depth completions.
func (d *Device) NewCQ(depth int) (*CQ, error) {
	if err := d.use(); err != nil {
		return nil, err
	}
	defer d.mu.RUnlock()
	if depth < 1 || depth > maxDepth {
		return nil, invalid("ibv_create_cq")
	}
	c := &CQ{}
	if err := failure(C.nv_cq_open(d.dev, C.int(depth), &c.cq)); err != nil {
		return nil, err
	}
	take := func() C.struct_nv_status { return C.nv_cq_event(c.cq) }
	events, err := newWaiter(int(C.nv_cq_fd(c.cq)), "verbs-completions", take)
	if err != nil {
		C.nv_cq_close(c.cq)
		return nil, err
	}
	c.events = events
	return c, nil
}

// Poll takes completions, as many as there are and fit into dst, without waiting. The first n are good also when it
// fails.
func (c *CQ) Poll(dst []Completion) (n int, err error) {
	if err := c.use(); err != nil {
		return 0, err
	}
	defer c.mu.RUnlock()
	if len(dst) == 0 {
		return 0, nil
	}
	list := (*C.struct_nv_completion)(unsafe.Pointer(unsafe.SliceData(dst)))
	var count C.int32_t
	err = failure(C.nv_cq_poll(c.cq, list, C.int32_t(min(len(dst), maxDepth)), &count))
	return int(count), err
}

// Arm asks that the next completion ends Wait. Completions that came before it do not, so Poll follows Arm.
func (c *CQ) Arm() error {
	if err := c.use(); err != nil {
		return err
	}
	defer c.mu.RUnlock()
	return failure(C.nv_cq_arm(c.cq))
}

// Wait blocks until an armed CQ has had a completion. One Wait at a time. Errors: ErrClosed, ctx's error.
func (c *CQ) Wait(ctx context.Context) error { return c.events.wait(ctx) }

// Close closes the CQ and ends its Wait.
func (c *CQ) Close() error {
	return c.close(func() error {
		if C.nv_cq_busy(c.cq) != 0 {
			return busy("ibv_destroy_cq")
		}
		c.events.close()
		return failure(C.nv_cq_close(c.cq))
	})
}

// QP is one end of a reliable connection.
type QP struct {
	object
	qp     *C.struct_nv_qp
	number uint32
}

// maxDepth bounds the depth of queues below what overflows an int of C; adapters allow far less.
const maxDepth = 1 << 24

// NewQP makes a QP of type RC in the state QPReset.
func (p *PD) NewQP(cq *CQ, o PairOptions) (*QP, error) {
	if err := p.use(); err != nil {
		return nil, err
	}
	defer p.mu.RUnlock()
	if err := cq.use(); err != nil {
		return nil, err
	}
	defer cq.mu.RUnlock()
	if o.Depth < 1 || o.Depth > maxDepth || o.Receives < 0 || o.Receives > maxDepth {
		return nil, invalid("ibv_create_qp")
	}
	q := &QP{}
	depths := C.struct_nv_depths{works: C.int32_t(o.Depth), receives: C.int32_t(o.Receives)}
	if err := failure(C.nv_qp_open(p.pd, cq.cq, depths, &q.qp)); err != nil {
		return nil, err
	}
	q.number = uint32(C.nv_qp_number(q.qp))
	return q, nil
}

// Number is the QP's number, 24 bits.
func (q *QP) Number() uint32 { return q.number }

// State asks for the state.
func (q *QP) State() (QPState, error) {
	if err := q.use(); err != nil {
		return 0, err
	}
	defer q.mu.RUnlock()
	var state C.int32_t
	if err := failure(C.nv_qp_state(q.qp, &state)); err != nil {
		return 0, err
	}
	return QPState(state), nil
}

// Init takes the QP from QPReset to QPInit.
func (q *QP) Init(p Path) error { return q.change(QPInit, p, Peer{}) }

// Receive takes it to QPReady: from now on it answers the peer.
func (q *QP) Receive(p Path, peer Peer) error { return q.change(QPReady, p, peer) }

// Send takes it to QPSend: Post may be called.
func (q *QP) Send(p Path, peer Peer) error { return q.change(QPSend, p, peer) }

// Fail takes it to QPError from any state but QPReset: what is posted completes as StatusFlushed, and what the peer
// sends is thrown away.
func (q *QP) Fail() error { return q.change(QPError, Path{}, Peer{}) }

// Reset takes it to QPReset from any state. Completions of it that were not polled may still come.
func (q *QP) Reset() error { return q.change(QPReset, Path{}, Peer{}) }

func (q *QP) change(to QPState, path Path, peer Peer) error {
	if err := q.use(); err != nil {
		return err
	}
	defer q.mu.RUnlock()
	if !fits(path, peer) {
		return invalid("ibv_modify_qp")
	}
	c := C.struct_nv_path{
		peer_qpn:      C.uint32_t(peer.QPN),
		peer_psn:      C.uint32_t(peer.PSN),
		psn:           C.uint32_t(path.PSN),
		mtu:           C.int32_t(peer.MTU),
		gid_index:     C.int32_t(path.GIDIndex),
		access:        C.int32_t(path.Access),
		peer_lid:      C.uint16_t(peer.LID),
		port:          C.uint8_t(path.Port),
		reads:         C.uint8_t(peer.Reads),
		hop_limit:     C.uint8_t(path.HopLimit),
		traffic_class: C.uint8_t(path.TrafficClass),
		timeout:       C.uint8_t(path.Timeout),
		retries:       C.uint8_t(path.Retries),
		rnr_retries:   C.uint8_t(path.RNRRetries),
		min_rnr_timer: C.uint8_t(path.MinRNRTimer),
	}
	*(*[16]byte)(unsafe.Pointer(&c.peer_gid)) = peer.GID
	switch to {
	case QPInit:
		return failure(C.nv_qp_to_init(q.qp, &c))
	case QPReady:
		return failure(C.nv_qp_to_receive(q.qp, &c))
	case QPSend:
		return failure(C.nv_qp_to_send(q.qp, &c))
	case QPError:
		return failure(C.nv_qp_to_error(q.qp))
	default:
		return failure(C.nv_qp_to_reset(q.qp))
	}
}

// fits reports whether the numbers keep their values in the structs of C.
func fits(path Path, peer Peer) bool {
	const bits24 = 1<<24 - 1
	byteSized := func(n int) bool { return n >= 0 && n <= 255 }
	return byteSized(path.Port) && byteSized(path.GIDIndex) && byteSized(peer.Reads) && peer.MTU >= 0 &&
		peer.MTU <= 4096 && peer.QPN <= bits24 && peer.PSN <= bits24 && path.PSN <= bits24 &&
		path.Retries <= 7 && path.RNRRetries <= 7 && path.Timeout <= 31 && path.MinRNRTimer <= 31
}

// Post posts work requests in one call. Of n < len(work) the first n are posted, and the error says why the next one
// was not. Where the library does not say which one it refused, n includes all that it may have taken.
func (q *QP) Post(work []Work) (n int, err error) {
	if err := q.use(); err != nil {
		return 0, err
	}
	defer q.mu.RUnlock()
	if len(work) == 0 {
		return 0, nil
	}
	list := (*C.struct_nv_work)(unsafe.Pointer(unsafe.SliceData(work)))
	var posted C.int32_t
	err = failure(C.nv_qp_post(q.qp, list, C.int32_t(min(len(work), maxDepth)), &posted))
	return int(posted), err
}

// PostReceive posts a receive without memory, from QPInit on: the peer's next OpWriteImm that has arrived ends it with
// its immediate and the number of its bytes. One that finds no receive is tried again after MinRNRTimer of this end.
func (q *QP) PostReceive(id uint64) error {
	if err := q.use(); err != nil {
		return err
	}
	defer q.mu.RUnlock()
	return failure(C.nv_qp_post_receive(q.qp, C.uint64_t(id)))
}

// Close destroys the QP.
func (q *QP) Close() error { return q.close(func() error { return failure(C.nv_qp_close(q.qp)) }) }
