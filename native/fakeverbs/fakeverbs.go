// Package fakeverbs is an RDMA adapter made of memory copies, for tests: the function table of package native,
// filled with functions that execute RDMA WRITE and READ between the queue pairs of this process. What runs on it is
// the whole program, the C core included, on any machine with a C compiler and infiniband/verbs.h, and under the
// race detector.
//
// Called by: tests.
//
// It behaves as ibv_*(3) and the InfiniBand specification say: states of queue pairs and what each change of state
// must name, order and completions of work requests, PSNs, keys, access rights and bounds, resending, flushing,
// asynchronous events, notification of completions. Where adapters differ it takes the behaviour that is
// hardest on the program, or an option chooses. Dynamically connected queue pairs are as rdma-core's documentation of
// mlx5 has them; what a wrong access key leads to is not in it, and is taken as silence here.
//
// Invariants:
//  1. From the post of a work request until the program has polled a completion that covers it, or a reset or destroy
//     of its queue pair has returned, the adapter owns the local buffer. After that it never touches it.
//  2. Data moves in packets, and what left a queue pair is in the network: it arrives also when its sender has been
//     reset, and is taken by whatever queue pair has the number, the peer's address and the PSN that fit.
//  3. Time is simulated: a timeout never expires because the machine is slow. With Options.Stepped nothing moves but
//     by Step, Run and Advance, and what happens depends only on the calls and the seed.
//  4. What a correct program never does is a violation, and fails the test: a queue that overflows, objects destroyed
//     too early or used too late, memory let go while it is owned. So does an object that is open at the end.
//
// Lock order: one lock, of the C part; no Go code runs under it.
//
// What it does not do: SEND and RECV, atomics, inline data, more than one piece of memory for a work request, more
// than one port, congestion.
package fakeverbs

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/penstock-store/penstock/native"
)

// ErrOptions says that a device cannot be as asked for.
var ErrOptions = errors.New("fakeverbs: invalid options")

// Options of New. The zero value is an adapter "fake0" at 10.99.0.1 whose network takes no time.
type Options struct {
	Devices []Device

	// Seed not 0 shuffles what is due at the same time, and sets the delays. The same calls give the same order again,
	// as far as the program's own threads allow.
	Seed       uint64
	Latency    time.Duration // of the network, one way
	Jitter     time.Duration // at most added to it; packets of one queue pair keep their order
	PacketTime time.Duration // between two packets of a queue pair
	FlushTime  time.Duration // from the error state to the flushed completions
	// TimeoutScale multiplies acknowledgement timeouts; 0 means 1/50, so exponent 14 with 7 retries gives up after 11 ms.
	TimeoutScale float64

	Stepped bool // nothing moves by itself
	// Poison fills the target of a READ at its post, and finds changes that the program makes to owned memory.
	Poison bool
	// KeepCompletions: a reset leaves the queue pair's completions in the queue, as soft-RoCE does.
	KeepCompletions bool
	// ReuseNumbers gives the number of a destroyed queue pair to the next one.
	ReuseNumbers bool
	Log          int // accesses that Touched can find; 0 means DefaultLog

	// Lenient: violations and open objects do not fail the test.
	Lenient bool
}

// DefaultLog is 64 MiB of accesses by packets of 1 KiB.
const DefaultLog = 1 << 16

// Device is an adapter with one port.
type Device struct {
	Name string // empty: "fake" and its index
	// Addr is the address of its network device; the zero value means 10.99.0.1 and on. The table of GIDs has a
	// link-local RoCEv1 entry at 0, the address as RoCEv2 at 1 and a link-local RoCEv2 entry at 2.
	Addr       netip.Addr
	More       []netip.Addr // further addresses, at 3 and on
	NetDevice  string       // empty: "fk" and its index
	NUMA       int
	MTU        int  // bytes; 0 means 1024
	InfiniBand bool // addressed by LID, which is the index + 1
	MaxQP      int  // 0 means 65536
	MaxCQDepth int  // 0 means 4194303
	MaxQPDepth int  // 0 means 32768
	MaxMR      int  // 0 means 65536
	MaxReads   int  // 0 means 16
	MaxMessage int  // bytes; 0 means 1 GiB
	NoDC       bool // it has no dynamically connected queue pairs
}

// Point is where a Rule applies. Up to AtDestroyAddress they are calls of the library; AtInit to AtError are
// ibv_modify_qp to that state.
type Point int

// Points.
const (
	AtOpenDevice Point = iota
	AtQueryPort
	AtAllocPD
	AtRegMR
	AtDeregMR
	AtCreateChannel
	AtCreateCQ
	AtCreateQP
	AtDestroyQP
	AtReset
	AtInit
	AtReceive
	AtSend
	AtError
	AtPost
	AtPoll
	AtNotify
	AtCreateAddress
	AtDestroyAddress
	AtWork         // the adapter takes up a work request
	AtWritePacket  // a packet of a WRITE leaves the requester
	AtReadRequest  // the packet that asks for a READ leaves the requester
	AtReadResponse // a packet that answers a READ leaves the responder
	AtAck          // an acknowledgement, or a refusal, leaves the responder
)

// Effect is what a Rule does.
type Effect int

// Effects.
const (
	// Fail: a call returns Errno; AtPost the first Batch requests of the chain are taken, at most all but one, or all
	// with WholeBatch; of a DCI's none. A work request ends with Status and Vendor, after the whole packets of Bytes have
	// moved. A packet is lost.
	Fail Effect = iota
	// Hold: a call waits (and then returns Errno, or goes on), the completion of a work request is kept back, a packet
	// stays in the network, until Release. Completions of the queue pair that come later wait too, unless Overtake.
	Hold
	// Short: a READ completes well, but only Bytes bytes have moved.
	Short
	// Lose: a work request is executed and never completes.
	Lose
	// Twice: two completions of a work request, or two copies of a packet.
	Twice
	// Lie: a work request is reported as done after the whole packets of Bytes have moved; then its queue pair fails.
	Lie
)

// Status is an enum ibv_wc_status, for Rule.
type Status uint32

// Statuses of the library, by its numbers.
const (
	LocalLength      Status = 1
	LocalOperation   Status = 2
	LocalProtection  Status = 4
	Flushed          Status = 5
	BadResponse      Status = 7
	RemoteInvalid    Status = 9
	RemoteAccess     Status = 10
	RemoteOperation  Status = 11
	RetryExceeded    Status = 12
	RNRRetryExceeded Status = 13
	RemoteAborted    Status = 16
	FatalError       Status = 19
	ResponseTimeout  Status = 20
	GeneralError     Status = 21
)

// WholeBatch as Rule.Batch: the chain is taken and executed, and the call fails without naming a request: soft-RoCE
// puts requests into the queue first, and then fails to say so to the kernel.
const WholeBatch = -1

// Always as Rule.Times: for ever.
const Always = -1

// Rule is a fault. It applies to the events at its point that match Device, QPN and Op: the first Skip are spared, the
// next Times are hit. Of several rules the one that was injected first applies.
type Rule struct {
	At     Point
	Do     Effect
	Device string        // empty: any
	QPN    uint32        // 0: any; of packets the sender's
	Op     native.Opcode // 0: any; AtWork only
	Skip   int
	Times  int // 0 means 1

	Errno    syscall.Errno
	Batch    int
	Status   Status
	Vendor   uint32
	Bytes    int
	Late     bool // a completion that is held comes also when its queue pair was reset meanwhile
	Overtake bool
}

// Access is a piece of memory that the adapter read or wrote.
type Access struct {
	Addr, Len uint64
	Write     bool
	Remote    bool   // for a peer, by its key; else for a work request of this end
	QPN       uint32 // of the queue pair at this end
	Work      uint64 // ID of the work request, when not Remote
}

// Counters of an adapter with all of its devices.
type Counters struct {
	Posts, Works, Polls, Completions uint64
	Packets, Retries                 uint64
	NotReady                         uint64 // times that a requester was told to wait for a receive
	Duplicates, Dropped              uint64 // requests that came again; packets that met nobody
	WriteBytes, ReadBytes            uint64 // that reached memory
	GIDs                             uint64 // entries of ports' tables that were read

	// Open objects.
	Contexts, PDs, MRs, Channels, CQs, QPs, Addresses, SRQs uint64
}

// Open is the number of open objects.
func (c Counters) Open() uint64 {
	return c.Contexts + c.PDs + c.MRs + c.Channels + c.CQs + c.QPs + c.Addresses + c.SRQs
}

// QPCounters of a queue pair.
type QPCounters struct {
	Works      uint64
	WriteBytes uint64 // that peers wrote
	ReadBytes  uint64 // that its own READs brought
	Owned      uint64 // work requests whose buffers the adapter owns now
	State      native.QPState
}
