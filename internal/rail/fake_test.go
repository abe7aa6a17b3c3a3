package rail_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// fakes are a machine with a bit of everything.
func fakes(t *testing.T, o fakeverbs.Options) *fakeverbs.NIC {
	o.Devices = []fakeverbs.Device{
		{Name: "rxe0", Addr: netip.MustParseAddr("10.1.0.1"), NetDevice: "eth0", NUMA: 1, MTU: 4096, MaxMessage: 8 << 20},
		{Name: "ib0", InfiniBand: true, MTU: 2048, NUMA: -1},
		{Name: "rxe1", Addr: netip.MustParseAddr("2001:db8::1"), NetDevice: "eth1",
			More: []netip.Addr{netip.MustParseAddr("10.1.1.1")}},
	}
	return fakeverbs.New(t, o)
}

// TestDiscoverOnFakes has the devices' own description as its oracle.
func TestDiscoverOnFakes(t *testing.T) {
	nic := fakes(t, fakeverbs.Options{})
	rails, skipped, err := rail.Discover(nic.Library(), rail.Options{})
	if err != nil || len(skipped) != 0 || len(rails) != 3 {
		t.Fatalf("%v %v %v", rails, skipped, err)
	}
	ib, four, six := rails[0], rails[1], rails[2]
	if ib.Name() != "ib0/1" || ib.LID != 2 || ib.GIDIndex != 0 || ib.Address().IsValid() ||
		ib.Link != native.LinkInfiniBand || ib.MTU != 2048 || ib.NUMANode != -1 {
		t.Errorf("InfiniBand: %+v", ib)
	}
	if four.Name() != "rxe0/1" || four.Address().String() != "10.1.0.1" || four.GIDIndex != 1 || four.Network != "eth0" ||
		four.NUMANode != 1 || four.MTU != 4096 || four.MaxMessage != 8<<20 || !four.Up {
		t.Errorf("IPv4: %+v", four)
	}
	if six.Name() != "rxe1/1" || six.Address().String() != "10.1.1.1" || six.GIDIndex != 3 {
		t.Errorf("IPv6 with a further IPv4 address: %+v", six)
	}
	_, _, err = rail.Discover(nic.Library(), rail.Options{Devices: []string{"rxe2"}})
	if !errors.Is(err, rail.ErrUnknown) {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestDiscoverFollowsTheMachine(t *testing.T) {
	nic := fakes(t, fakeverbs.Options{})
	d, err := nic.Library().OpenDevice("rxe0")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	find := func() rail.Rail {
		rails, _, err := rail.Discover(nic.Library(), rail.Options{Devices: []string{"rxe0"}})
		if err != nil || len(rails) != 1 {
			t.Fatalf("%v %v", rails, err)
		}
		return rails[0]
	}
	same := func(what string, was rail.Rail) rail.Rail {
		t.Helper()
		now, err := rail.Refresh(d, was)
		if err != nil || now != find() {
			t.Errorf("%s: refreshed %+v %v, discovered %+v", what, now, err, find())
		}
		return now
	}
	r := same("at first", find())
	nic.PortDown("rxe0")
	if r = same("down", r); r.Up || r.Reason != rail.ReasonPortDown {
		t.Errorf("down: %+v", r)
	}
	nic.PortUp("rxe0")
	if r = same("up", r); !r.Up || r.Reason != "" {
		t.Errorf("up: %+v", r)
	}
	nic.SetAddr("rxe0", netip.MustParseAddr("10.1.0.77"))
	if now := find(); now.Address().String() != "10.1.0.77" {
		t.Errorf("another address: %+v", now)
	}
	nic.SetAddr("rxe0", netip.Addr{})
	if now, err := rail.Refresh(d, r); err != nil || now.GIDIndex != 2 || !now.Address().IsLinkLocalUnicast() {
		t.Errorf("no address: %+v %v", now, err)
	}
}

// TestRefreshReadsOneEntry while the rail's GID is in its place, whatever the port's state, and the table otherwise.
func TestRefreshReadsOneEntry(t *testing.T) {
	nic := fakes(t, fakeverbs.Options{})
	d, r := opened(t, nic, "rxe0")
	refresh := func() uint64 {
		t.Helper()
		before := nic.Counters().GIDs
		var err error
		if r, err = rail.Refresh(d, r); err != nil {
			t.Fatal(err)
		}
		return nic.Counters().GIDs - before
	}
	if n := refresh(); n != 1 || !r.Up {
		t.Errorf("unchanged: %d entries were read, %+v", n, r)
	}
	nic.PortDown("rxe0")
	if n := refresh(); n != 1 || r.Up {
		t.Errorf("down: %d entries were read, %+v", n, r)
	}
	nic.PortUp("rxe0")
	nic.SetAddr("rxe0", netip.MustParseAddr("10.1.0.77"))
	if n := refresh(); n < 3 || !r.Up || r.Address().String() != "10.1.0.77" {
		t.Errorf("another address: %d entries were read, %+v", n, r)
	}
	if n := refresh(); n != 1 {
		t.Errorf("afterwards: %d entries were read", n)
	}
}

// TestDiscoverSkipsWhatFails: one device that fails hides no other.
func TestDiscoverSkipsWhatFails(t *testing.T) {
	for _, c := range []struct {
		at     fakeverbs.Point
		errno  syscall.Errno
		reason string
	}{
		{fakeverbs.AtOpenDevice, syscall.EACCES, "access to /dev/infiniband"},
		{fakeverbs.AtOpenDevice, syscall.ENODEV, "kernel's log"},
		{fakeverbs.AtQueryPort, syscall.EIO, "kernel's log"},
	} {
		nic := fakes(t, fakeverbs.Options{})
		nic.Inject(fakeverbs.Rule{At: c.at, Device: "rxe0", Errno: c.errno, Times: fakeverbs.Always})
		rails, skipped, err := rail.Discover(nic.Library(), rail.Options{})
		if err != nil || len(rails) != 2 || len(skipped) != 1 || !strings.HasPrefix(skipped[0].Name, "rxe0") ||
			!strings.Contains(skipped[0].Reason, c.reason) || !strings.Contains(skipped[0].Reason, c.errno.Error()) {
			t.Errorf("%v: rails %v, skipped %v, %v", c.errno, rails, skipped, err)
		}
	}
}

// opened is a rail of the fakes with its device.
func opened(t *testing.T, nic *fakeverbs.NIC, device string) (*native.Device, rail.Rail) {
	t.Helper()
	rails, _, err := rail.Discover(nic.Library(), rail.Options{Devices: []string{device}})
	if err != nil || len(rails) != 1 {
		t.Fatalf("%v %v", rails, err)
	}
	d, err := nic.Library().OpenDevice(device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, rails[0]
}

// TestLoopbackOnFakes has the adapter's own counters as its oracle; the adapter shuffles what may be shuffled.
func TestLoopbackOnFakes(t *testing.T) {
	for _, device := range []string{"rxe0", "rxe1", "ib0"} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s-%d", device, seed), func(t *testing.T) {
				nic := fakes(t, fakeverbs.Options{Seed: seed})
				d, r := opened(t, nic, device)
				report, err := rail.Loopback(t.Context(), d, r, rail.LoopbackOptions{Size: 12345, Budget: time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				c := nic.Counters()
				if report.Write.Works < 1 || report.Write.Bytes != 12345*int64(report.Write.Works) || report.Latency <= 0 ||
					report.Write.GBps() <= 0 || report.Read.GBps() <= 0 ||
					!slices.Equal(report.Compared, []int{1, 4096, 1 << 20, 65537, 12345}) {
					t.Errorf("%+v", report)
				}
				least := uint64(report.Write.Bytes) + 1 + 4096 + 1<<20 + 65537 + 12345
				if c.WriteBytes < least || c.QPs+c.CQs+c.MRs+c.PDs+c.Channels != 0 {
					t.Errorf("%+v", c)
				}
			})
		}
	}
}

// TestLoopbackLeavesOwnedMemoryAlone: the adapter fills the target of a READ and watches it while it owns it. The timed
// READs share one buffer, so they are left out.
func TestLoopbackLeavesOwnedMemoryAlone(t *testing.T) {
	nic := fakes(t, fakeverbs.Options{Poison: true, Latency: 10 * time.Microsecond, KeepCompletions: true})
	for _, device := range []string{"rxe0", "rxe1", "ib0"} {
		d, r := opened(t, nic, device)
		if report, err := rail.Loopback(t.Context(), d, r, rail.LoopbackOptions{}); err != nil || report.Write.Works != 0 {
			t.Errorf("%+v %v", report, err)
		}
	}
}

// TestLoopbackNamesTheStepThatFailed injects a fault at each point: the step is named, nothing stays open, and the next
// loopback works.
func TestLoopbackNamesTheStepThatFailed(t *testing.T) {
	call := func(at fakeverbs.Point, skip int) fakeverbs.Rule {
		return fakeverbs.Rule{At: at, Skip: skip, Errno: syscall.EIO}
	}
	work := func(op native.Opcode, skip int, s fakeverbs.Status) fakeverbs.Rule {
		return fakeverbs.Rule{At: fakeverbs.AtWork, Op: op, Skip: skip, Status: s, Vendor: 0x77}
	}
	const write, read = native.OpWrite, native.OpRead
	for name, c := range map[string]struct {
		rule   fakeverbs.Rule
		step   rail.Step
		cause  error // may be nil
		remedy string
	}{
		"pd":               {call(fakeverbs.AtAllocPD, 0), rail.StepQueues, syscall.EIO, "dmesg"},
		"channel":          {call(fakeverbs.AtCreateChannel, 0), rail.StepQueues, syscall.EIO, "dmesg"},
		"cq":               {call(fakeverbs.AtCreateCQ, 0), rail.StepQueues, syscall.EIO, "dmesg"},
		"first qp":         {call(fakeverbs.AtCreateQP, 0), rail.StepQueues, native.ErrVerbs, "dmesg"},
		"second qp":        {call(fakeverbs.AtCreateQP, 1), rail.StepQueues, native.ErrVerbs, "dmesg"},
		"first mr":         {call(fakeverbs.AtRegMR, 0), rail.StepRegister, syscall.EIO, "dmesg"},
		"second mr":        {call(fakeverbs.AtRegMR, 1), rail.StepRegister, syscall.EIO, "dmesg"},
		"init":             {call(fakeverbs.AtInit, 1), rail.StepConnect, syscall.EIO, "address"},
		"ready to receive": {call(fakeverbs.AtReceive, 0), rail.StepConnect, syscall.EIO, "address"},
		"ready to send":    {call(fakeverbs.AtSend, 1), rail.StepConnect, syscall.EIO, "address"},
		"first post":       {call(fakeverbs.AtPost, 0), rail.StepWrite, syscall.EIO, "dmesg"},
		"second post":      {call(fakeverbs.AtPost, 1), rail.StepRead, syscall.EIO, "dmesg"},
		"poll":             {call(fakeverbs.AtPoll, 0), rail.StepWrite, native.ErrVerbs, "dmesg"},
		"locked memory": {fakeverbs.Rule{At: fakeverbs.AtRegMR, Errno: syscall.ENOMEM}, rail.StepRegister,
			syscall.ENOMEM, "ulimit -l"},
		"write refused":  {work(write, 1, fakeverbs.RemoteAccess), rail.StepWrite, nil, "dmesg"},
		"write given up": {work(write, 2, fakeverbs.RetryExceeded), rail.StepWrite, nil, "4791"},
		"timed write":    {work(write, 25, fakeverbs.RetryExceeded), rail.StepWrite, nil, "4791"},
		"read refused":   {work(read, 1, fakeverbs.LocalProtection), rail.StepRead, nil, "dmesg"},
		"packets lost": {fakeverbs.Rule{At: fakeverbs.AtWritePacket, Times: fakeverbs.Always}, rail.StepWrite, nil,
			"4791"},
		"answers lost": {fakeverbs.Rule{At: fakeverbs.AtReadResponse, Times: fakeverbs.Always}, rail.StepRead, nil,
			"4791"},
		"short read": {fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Short, Op: read, Skip: 1, Bytes: 0},
			rail.StepRead, rail.ErrMismatch, "dmesg"},
	} {
		t.Run(name, func(t *testing.T) {
			nic := fakes(t, fakeverbs.Options{})
			d, r := opened(t, nic, "rxe0")
			fault := nic.Inject(c.rule)
			o := rail.LoopbackOptions{Budget: time.Millisecond}
			report, err := rail.Loopback(t.Context(), d, r, o)
			var failed *rail.LoopbackError
			if !errors.As(err, &failed) || failed.Step != c.step || failed.Rail != "rxe0/1" || report.Size != 0 ||
				c.cause != nil && !errors.Is(err, c.cause) || !strings.Contains(rail.Remedy(err), c.remedy) {
				t.Errorf("%v (%s), want %s, %v, %q", err, rail.Remedy(err), c.step, c.cause, c.remedy)
			}
			if fault.Hits() == 0 {
				t.Error("the fault was not met")
			}
			fault.Release()
			if n := nic.Counters(); n.PDs+n.MRs+n.Channels+n.CQs+n.QPs != 0 {
				t.Errorf("open objects: %+v", n)
			}
			if _, err := rail.Loopback(t.Context(), d, r, o); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// canceled runs a loopback and cancels it when the fault was met.
func canceled(t *testing.T, d *native.Device, r rail.Rail, fault *fakeverbs.Fault) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := rail.Loopback(ctx, d, r, rail.LoopbackOptions{})
		ended <- err
	}()
	fault.Await(1)
	cancel()
	return <-ended
}

// TestLoopbackEndsWithItsContext: a completion that never comes costs no more than the caller allows.
func TestLoopbackEndsWithItsContext(t *testing.T) {
	for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
		nic := fakes(t, fakeverbs.Options{})
		d, r := opened(t, nic, "rxe0")
		lost := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Lose, Op: op, Skip: 1})
		if err := canceled(t, d, r, lost); !errors.Is(err, context.Canceled) {
			t.Errorf("%v: %v", op, err)
		}
	}
}

// TestLoopbackOnADeadPort: the state may be older than the port's.
func TestLoopbackOnADeadPort(t *testing.T) {
	nic := fakes(t, fakeverbs.Options{})
	d, r := opened(t, nic, "rxe0")
	nic.PortDown("rxe0")
	wantStep(t, d, r, rail.StepConnect, rail.StepWrite)
	nic.PortUp("rxe0")
	if _, err := rail.Loopback(t.Context(), d, r, rail.LoopbackOptions{}); err != nil {
		t.Error(err)
	}
}

// TestLoopbackKeepsMemoryThatTheAdapterMayUse: a queue pair that is not destroyed may still have packets under way,
// which must not meet memory that is something else by now. Unmapped memory would end the test's process.
func TestLoopbackKeepsMemoryThatTheAdapterMayUse(t *testing.T) {
	nic := fakes(t, fakeverbs.Options{Lenient: true, TimeoutScale: 1e6}) // nothing is sent again
	d, r := opened(t, nic, "rxe0")
	packet := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold, Skip: 1})
	for _, at := range []fakeverbs.Point{fakeverbs.AtDestroyQP, fakeverbs.AtReset, fakeverbs.AtError} {
		nic.Inject(fakeverbs.Rule{At: at, Errno: syscall.EIO, Times: fakeverbs.Always})
	}
	if err := canceled(t, d, r, packet); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if c := nic.Counters(); c.QPs == 0 || c.MRs == 0 {
		t.Errorf("nothing was kept: %+v", c)
	}
	before := nic.Counters().WriteBytes
	packet.Release()
	nic.Await("the packet", func() bool { return nic.Counters().WriteBytes > before })
}
