//go:build !cgo

package fakeverbs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
)

// NIC is a fake adapter. Without cgo there is none.
type NIC struct{}

// Supported tells whether New makes one, instead of skipping the test.
func Supported() bool { return false }

// New skips the test.
func New(t testing.TB, _ Options) *NIC {
	t.Helper()
	t.Skip(&native.UnavailableError{Reason: native.ReasonNoCgo})
	return nil
}

// Library is the adapter as the program sees it.
func (n *NIC) Library() *native.Library { return nil }

// Table is the address of the functions.
func (n *NIC) Table() uintptr { return 0 }

// Step does the next thing that is due.
func (n *NIC) Step() bool { return false }

// Run does everything until nothing is under way.
func (n *NIC) Run() int { return 0 }

// Advance does what is due within a time.
func (n *NIC) Advance(time.Duration) int { return 0 }

// Now is the adapter's clock.
func (n *NIC) Now() time.Duration { return 0 }

// Busy says whether something is under way.
func (n *NIC) Busy() bool { return false }

// Await waits until the condition holds.
func (n *NIC) Await(string, func() bool) {}

// Fault is a Rule that was injected.
type Fault struct{}

// Inject adds a rule.
func (n *NIC) Inject(Rule) *Fault { return nil }

// Hits is how often it applied.
func (f *Fault) Hits() int { return 0 }

// Await waits until it has applied so often.
func (f *Fault) Await(int) {}

// Release ends the rule and lets go of what it holds.
func (f *Fault) Release() {}

// Remove ends the rule.
func (f *Fault) Remove() {}

// PortDown takes a device's port down.
func (n *NIC) PortDown(string) {}

// PortUp takes it up again.
func (n *NIC) PortUp(string) {}

// SetAddr changes the address of a device.
func (n *NIC) SetAddr(string, netip.Addr) {}

// Kill loses a device.
func (n *NIC) Kill(string) {}

// FailQP takes a queue pair to its error state.
func (n *NIC) FailQP(uint32) {}

// Owned says whether the adapter owns any of these bytes.
func (n *NIC) Owned([]byte) bool { return false }

// Mark is this moment, for Touched.
func (n *NIC) Mark() uint64 { return 0 }

// Touched lists the accesses to these bytes since a Mark.
func (n *NIC) Touched([]byte, uint64) []Access { return nil }

// Violations lists what the program did that it must not.
func (n *NIC) Violations() []string { return nil }

// Counters reads the counters.
func (n *NIC) Counters() Counters { return Counters{} }

// QP reads the counters of a queue pair.
func (n *NIC) QP(uint32) (QPCounters, bool) { return QPCounters{}, false }
