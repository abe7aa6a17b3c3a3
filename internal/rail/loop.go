package rail

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/native"
)

// The three parts of a loop's memory, of l.span bytes each.
const (
	partSource = iota // what is written
	partBack          // where what is read lands
	partPeer          // what the other queue pair gives access to
	parts
)

// loop is the two queue pairs of one loopback and what they need. All of its operations go from near to far.
type loop struct {
	device  *native.Device
	rail    Rail
	options LoopbackOptions

	memory      []byte
	span        int
	pd          *native.PD
	cq          *native.CQ
	own, peer   *native.MR
	near, far   *native.QP
	completions [loopbackDepth]native.Completion
	next        uint64 // id of the next work
}

func (l *loop) failed(s Step, size int, err error) error {
	return &LoopbackError{Rail: l.rail.Name(), Step: s, Size: size, Err: err}
}

func (l *loop) part(i int) []byte { return l.memory[i*l.span : (i+1)*l.span] }

// open makes everything; close undoes what was made, also after an error.
func (l *loop) open(cases []loopbackCase) error {
	for _, c := range cases {
		l.span = max(l.span, c.offset+c.size+2*guardBytes)
	}
	page := unix.Getpagesize()
	l.span = (l.span + page - 1) / page * page
	var err error
	l.memory, err = unix.Mmap(-1, 0, parts*l.span, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return l.failed(StepMemory, 0, fmt.Errorf("map %d bytes: %w", parts*l.span, err))
	}
	if err := l.makeQueues(); err != nil {
		return l.failed(StepQueues, 0, err)
	}
	if err := l.register(); err != nil {
		return l.failed(StepRegister, 0, fmt.Errorf("%d bytes: %w", parts*l.span, err))
	}
	if err := l.connect(); err != nil {
		return l.failed(StepConnect, 0, err)
	}
	return nil
}

func (l *loop) makeQueues() (err error) {
	if l.pd, err = l.device.NewPD(); err != nil {
		return err
	}
	if l.cq, err = l.device.NewCQ(2 * loopbackDepth); err != nil {
		return err
	}
	if l.near, err = l.pd.NewQP(l.cq, native.PairOptions{Depth: loopbackDepth}); err != nil {
		return err
	}
	l.far, err = l.pd.NewQP(l.cq, native.PairOptions{Depth: 1})
	return err
}

func (l *loop) register() (err error) {
	if l.own, err = l.pd.Register(l.memory[:partPeer*l.span], native.LocalWrite); err != nil {
		return err
	}
	l.peer, err = l.pd.Register(l.part(partPeer), native.LocalWrite|native.RemoteWrite|native.RemoteRead)
	return err
}

// connect takes both queue pairs to each other: ready to receive first, so that nothing is sent to one that is not.
func (l *loop) connect() error {
	o, r, info := l.options, l.rail, l.device.Info()
	reads := max(1, min(info.MaxReads, info.MaxIssued, loopbackDepth))
	psn := func() uint32 { return rand.Uint32() & (1<<24 - 1) }
	path := native.Path{
		Port: r.Port, GIDIndex: r.GIDIndex, HopLimit: o.HopLimit, TrafficClass: o.TrafficClass,
		PSN: psn(), Timeout: o.Timeout, Retries: o.Retries, RNRRetries: 7, MinRNRTimer: 12,
	}
	farPath := path
	farPath.PSN, farPath.Access = psn(), native.RemoteWrite|native.RemoteRead
	peer := func(q *native.QP, p native.Path) native.Peer {
		return native.Peer{QPN: q.Number(), PSN: p.PSN, GID: r.GID, LID: r.LID, MTU: r.MTU, Reads: reads}
	}
	ends := []struct {
		name string
		qp   *native.QP
		path native.Path
		peer native.Peer
	}{
		{"first", l.near, path, peer(l.far, farPath)},
		{"second", l.far, farPath, peer(l.near, path)},
	}
	for _, e := range ends {
		if err := e.qp.Init(e.path); err != nil {
			return fmt.Errorf("%s queue pair: init: %w", e.name, err)
		}
	}
	for _, e := range ends {
		if err := e.qp.Receive(e.path, e.peer); err != nil {
			return fmt.Errorf("%s queue pair: ready to receive: %w", e.name, err)
		}
	}
	for _, e := range ends {
		if err := e.qp.Send(e.path, e.peer); err != nil {
			return fmt.Errorf("%s queue pair: ready to send: %w", e.name, err)
		}
	}
	return nil
}

// close takes the queue pairs down first: after that the adapter uses no memory for them, and it may be unmapped. What
// the adapter does not give back stays mapped for the rest of the process.
func (l *loop) close() error {
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	for _, q := range []*native.QP{l.near, l.far} {
		if q != nil {
			add(q.Close())
		}
	}
	if errors.Join(errs...) != nil {
		return errors.Join(errs...)
	}
	for _, m := range []*native.MR{l.own, l.peer} {
		if m != nil {
			add(m.Close())
		}
	}
	if l.cq != nil {
		add(l.cq.Close())
	}
	if l.pd != nil {
		add(l.pd.Close())
	}
	if errors.Join(errs...) == nil && l.memory != nil {
		add(unix.Munmap(l.memory))
		l.memory = nil
	}
	return errors.Join(errs...)
}

func step(op native.Opcode) Step {
	if op == native.OpRead {
		return StepRead
	}
	return StepWrite
}

// work is an operation between size bytes at an offset of one of our parts, and of the peer's.
func (l *loop) work(op native.Opcode, part, at, size int) native.Work {
	l.next++
	return native.Work{
		ID: l.next, Op: op, Signal: true, Length: uint32(size), LKey: l.own.LKey(), RKey: l.peer.RKey(),
		Local: l.own.Addr() + uint64(part*l.span+at), Remote: l.peer.Addr() + uint64(at),
	}
}

// do posts one operation and waits for it.
func (l *loop) do(ctx context.Context, op native.Opcode, part, at, size int) error {
	w := l.work(op, part, at, size)
	if _, err := l.near.Post([]native.Work{w}); err != nil {
		return l.failed(step(op), size, err)
	}
	n, err := l.wait(ctx, op, size)
	if err == nil && (n != 1 || l.completions[0].ID != w.ID) {
		err = fmt.Errorf("%d completions, the first for work %d of %d", n, l.completions[0].ID, w.ID)
	}
	if err != nil {
		return l.failed(step(op), size, err)
	}
	return nil
}

// spinTime is how long wait polls before it sleeps: longer than most adapters take for a small operation.
const spinTime = 100 * time.Microsecond

// wait returns the number of completions that came, all of them good.
func (l *loop) wait(ctx context.Context, op native.Opcode, size int) (int, error) {
	for spin := time.Now(); time.Since(spin) < spinTime; runtime.Gosched() {
		if n, err := l.poll(op, size); n > 0 || err != nil {
			return n, err
		}
	}
	for {
		if err := l.cq.Arm(); err != nil {
			return 0, err
		}
		if n, err := l.poll(op, size); n > 0 || err != nil {
			return n, err
		}
		if err := l.cq.Wait(ctx); err != nil {
			return 0, fmt.Errorf("no completion: %w", err)
		}
	}
}

func (l *loop) poll(op native.Opcode, size int) (int, error) {
	n, err := l.cq.Poll(l.completions[:])
	if err != nil {
		return 0, err
	}
	for _, c := range l.completions[:n] {
		switch {
		case c.Status != native.StatusOK:
			return 0, &CompletionError{Status: c.Status, Vendor: c.Vendor}
		case c.QPN != l.near.Number():
			return 0, fmt.Errorf("completion of queue pair %d, want %d", c.QPN, l.near.Number())
		case op == native.OpRead && c.Bytes != uint32(size):
			return 0, fmt.Errorf("%w: %d of %d bytes read", ErrMismatch, c.Bytes, size)
		}
	}
	return n, nil
}

// timed moves as much as the budget allows, always with several operations under way.
func (l *loop) timed(ctx context.Context, op native.Opcode) (Transfer, error) {
	part, size := partSource, l.options.Size
	if op == native.OpRead {
		part = partBack
	}
	var t Transfer
	began := time.Now()
	for pending := 0; ; {
		for pending < loopbackDepth && (t.Works == 0 || time.Since(began) < l.options.Budget) {
			if _, err := l.near.Post([]native.Work{l.work(op, part, guardBytes, size)}); err != nil {
				return t, l.failed(step(op), size, err)
			}
			pending++
		}
		if pending == 0 {
			return t, nil
		}
		n, err := l.wait(ctx, op, size)
		if err != nil {
			return t, l.failed(step(op), size, err)
		}
		pending -= n
		t.Works, t.Bytes, t.Duration = t.Works+n, t.Bytes+int64(n)*int64(size), time.Since(began)
	}
}
