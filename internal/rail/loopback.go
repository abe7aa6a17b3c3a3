package rail

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/penstock-store/penstock/native"
)

// LoopbackOptions say what a loopback transfer does.
type LoopbackOptions struct {
	Size   int           // bytes of one operation of the timed runs; 0 means DefaultLoopbackSize
	Budget time.Duration // of the timed run of each direction; 0: only the fixed sizes are moved, once each

	// The rest is as in the paths of a node, and 0 means the same as there.
	Timeout      uint8
	Retries      uint8
	HopLimit     uint8
	TrafficClass uint8
}

// Limits and defaults of a loopback transfer.
const (
	DefaultLoopbackSize = 1 << 20
	MaxLoopbackSize     = 64 << 20 // three buffers of it are pinned
	ProbeBytes          = 4 << 20  // what one of the default size pins, rounded up
	// loopbackTime ends a loopback when the caller's context does not: an adapter gives a silent peer up within 2 s, and
	// emulated ones are slow.
	loopbackTime = 20 * time.Second

	loopbackDepth = 8 // operations of a timed run under way: enough to hide the way to the adapter and back
	guardBytes    = 64
)

// Step is what a loopback was doing.
type Step string

// Steps of a loopback, in their order.
const (
	StepPort     Step = "port"     // the rail is up
	StepMemory   Step = "memory"   // this process gets memory
	StepQueues   Step = "queues"   // protection domain, completion queue, queue pairs
	StepRegister Step = "register" // the memory is pinned and known to the adapter
	StepConnect  Step = "connect"  // the queue pairs reach each other
	StepWrite    Step = "write"    // RDMA WRITE
	StepRead     Step = "read"     // RDMA READ
	StepCompare  Step = "compare"  // what arrived is what was sent, and nothing else changed
	StepRelease  Step = "release"  // the adapter lets go of everything
)

// ErrMismatch says that a transfer was reported as done and the memory holds something else.
var ErrMismatch = errors.New("rail: wrong bytes")

// LoopbackError is why a loopback failed.
type LoopbackError struct {
	Rail string // name
	Step Step
	Size int // bytes of the operation, where the step is one
	Err  error
}

// Error names the rail, the step and the cause.
func (e *LoopbackError) Error() string {
	if e.Size > 0 {
		return fmt.Sprintf("rail %s: loopback %s of %d bytes: %v", e.Rail, e.Step, e.Size, e.Err)
	}
	return fmt.Sprintf("rail %s: loopback %s: %v", e.Rail, e.Step, e.Err)
}

// Unwrap gives the cause.
func (e *LoopbackError) Unwrap() error { return e.Err }

// DownError is a rail that is not up.
type DownError struct{ Reason string }

// Error is the reason.
func (e *DownError) Error() string { return e.Reason }

// CompletionError is a work request that the adapter reported as failed.
type CompletionError struct {
	Status native.Status
	Vendor uint32 // the adapter's own word
}

// Error says the status in words.
func (e *CompletionError) Error() string {
	return fmt.Sprintf("%s (adapter's code %#x)", statusWords(e.Status), e.Vendor)
}

func statusWords(s native.Status) string {
	switch s {
	case native.StatusLocal:
		return "local length, protection or queue pair error"
	case native.StatusFlushed:
		return "queue pair went into its error state"
	case native.StatusRemoteAccess:
		return "address or key refused"
	case native.StatusRemoteOther:
		return "refused by the other end"
	case native.StatusRetry:
		return "no acknowledgement"
	}
	return "failed"
}

// Remedy says what to do about an error of Loopback or of opening a device.
func Remedy(err error) string {
	var down *DownError
	var failed *LoopbackError
	var completion *CompletionError
	switch {
	case errors.As(err, &down) && down.Reason == ReasonNoAddress:
		return remedyAddress
	case errors.As(err, &down):
		return remedyPort
	case errors.Is(err, syscall.ENOMEM):
		return remedyMemlock
	case errors.Is(err, fs.ErrPermission):
		return remedyAccess
	case errors.As(err, &failed) && failed.Step == StepConnect:
		return "the rail's own address is not reached: is it still on its network device, and that device up?"
	case errors.As(err, &completion) && completion.Status == native.StatusRetry:
		return "packets do not come back: let UDP port 4791 pass the firewall of this machine, also to itself"
	}
	return "look at the kernel's log (dmesg) for the adapter"
}

// Transfer is what was moved in one direction.
type Transfer struct {
	Bytes    int64
	Works    int
	Duration time.Duration // from the first post to the last completion
}

// GBps is the rate in 10⁹ bytes per second; 0 when nothing was timed.
func (t Transfer) GBps() float64 {
	if t.Duration <= 0 {
		return 0
	}
	return float64(t.Bytes) / float64(t.Duration)
}

// Report is what a loopback that passed has found.
type Report struct {
	Size        int           // bytes of one operation of the timed runs
	Latency     time.Duration // of a WRITE of 1 byte, and a READ of it: the best of those that were done
	Write, Read Transfer      // the timed runs
	Compared    []int         // sizes of the operations whose bytes were compared
}

// loopbackCase is an operation whose bytes are compared.
type loopbackCase struct{ size, offset int }

// loopbackCases are the smallest message, a page, several packets, and one that is aligned to nothing and does not
// end with a packet.
func loopbackCases(r Rail, o LoopbackOptions) []loopbackCase {
	cases := []loopbackCase{{1, 0}, {4096, 0}, {1 << 20, 0}, {65537, 3}}
	if o.Size != 1<<20 {
		cases = append(cases, loopbackCase{o.Size, 0})
	}
	return slices.DeleteFunc(cases, func(c loopbackCase) bool {
		return r.MaxMessage > 0 && uint64(c.size) > uint64(r.MaxMessage)
	})
}

func (o LoopbackOptions) withDefaults(r Rail) LoopbackOptions {
	set := func(v *uint8, to uint8) {
		if *v == 0 {
			*v = to
		}
	}
	set(&o.Timeout, 14)
	set(&o.Retries, 6) // soft-RoCE takes 7 for "without end"
	set(&o.HopLimit, 64)
	if o.Size == 0 {
		o.Size = DefaultLoopbackSize
	}
	o.Size = min(o.Size, MaxLoopbackSize)
	if r.MaxMessage > 0 && uint64(o.Size) > uint64(r.MaxMessage) {
		o.Size = int(r.MaxMessage)
	}
	return o
}

// Loopback connects two queue pairs of the rail to each other, and moves bytes from one buffer into another and back
// by RDMA WRITE and READ: small, large and unaligned ones, whose bytes and surroundings are compared, then as many of
// one size as the budget allows. The rail works as far as this machine goes; cables, switches and the other end's MTU
// are not tried, since adapters do this by themselves. It blocks until the adapter has let go of the memory, which it
// pins: three buffers of the size, or of 1 MiB where that is more.
// Errors: *LoopbackError.
func Loopback(ctx context.Context, d *native.Device, r Rail, o LoopbackOptions) (Report, error) {
	o = o.withDefaults(r)
	ctx, cancel := context.WithTimeout(ctx, loopbackTime)
	defer cancel()
	l := &loop{device: d, rail: r, options: o}
	report, err := l.run(ctx)
	if closing := l.close(); err == nil && closing != nil {
		err = l.failed(StepRelease, 0, closing)
	}
	if err != nil {
		return Report{}, err
	}
	return report, nil
}

func (l *loop) run(ctx context.Context) (Report, error) {
	if !l.rail.Up {
		return Report{}, l.failed(StepPort, 0, &DownError{Reason: l.rail.Reason})
	}
	report := Report{Size: l.options.Size}
	cases := loopbackCases(l.rail, l.options)
	if err := l.open(cases); err != nil {
		return report, err
	}
	for _, c := range cases {
		if err := l.compare(ctx, c); err != nil {
			return report, err
		}
		report.Compared = append(report.Compared, c.size)
	}
	var err error
	if report.Latency, err = l.latency(ctx); err != nil || l.options.Budget <= 0 {
		return report, err
	}
	if report.Write, err = l.timed(ctx, native.OpWrite); err != nil {
		return report, err
	}
	report.Read, err = l.timed(ctx, native.OpRead)
	return report, err
}

// latencyTries are enough for one that nothing else disturbs.
const latencyTries = 16

func (l *loop) latency(ctx context.Context) (best time.Duration, err error) {
	for i := range latencyTries {
		began := time.Now()
		if err := l.there(ctx, guardBytes, 1); err != nil {
			return 0, err
		}
		if took := time.Since(began); i == 0 || took < best {
			best = took
		}
	}
	return best, nil
}

// there writes from the source, and returns when the bytes are in the peer's memory: an acknowledged WRITE is in the
// adapter, a READ behind it is answered from memory.
func (l *loop) there(ctx context.Context, at, size int) error {
	if err := l.do(ctx, native.OpWrite, partSource, at, size); err != nil {
		return err
	}
	return l.do(ctx, native.OpRead, partBack, at, 1)
}

// compare moves the bytes of a case over and back, and looks at what arrived.
func (l *loop) compare(ctx context.Context, c loopbackCase) error {
	if err := ctx.Err(); err != nil {
		return l.failed(StepWrite, c.size, err)
	}
	sent, arrived, back := l.part(partSource), l.part(partPeer), l.part(partBack)
	pattern(sent)
	fill(arrived, 0xa5)
	at := guardBytes + c.offset
	if err := l.there(ctx, at, c.size); err != nil {
		return err
	}
	if err := surrounded(arrived, sent, at, c.size, 0xa5); err != nil {
		return l.failed(StepCompare, c.size, fmt.Errorf("write: %w", err))
	}
	fill(back, 0x5a)
	if err := l.do(ctx, native.OpRead, partBack, at, c.size); err != nil {
		return err
	}
	if err := surrounded(back, sent, at, c.size, 0x5a); err != nil {
		return l.failed(StepCompare, c.size, fmt.Errorf("read: %w", err))
	}
	return nil
}

// pattern fills b with bytes that repeat nowhere and never.
func pattern(b []byte) {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], rand.Uint64())
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
}

func fill(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

// surrounded tells whether got holds n bytes of want at its place, and is untouched elsewhere.
func surrounded(got, want []byte, at, n int, untouched byte) error {
	if !bytes.Equal(got[at:at+n], want[at:at+n]) {
		i := 0
		for got[at+i] == want[at+i] {
			i++
		}
		return fmt.Errorf("%w: byte %d of %d differs", ErrMismatch, i, n)
	}
	around := len(got) - n
	same := bytes.Count(got[:at], []byte{untouched}) + bytes.Count(got[at+n:], []byte{untouched})
	if same != around {
		return fmt.Errorf("%w: %d bytes around the %d were changed", ErrMismatch, around-same, n)
	}
	return nil
}
