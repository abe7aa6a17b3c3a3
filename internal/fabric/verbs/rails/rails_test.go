package rails

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// The fake adapter's devices: a rail, and a client's.
const (
	fakeRail, fakeClient = "fake0", "fake1"

	patience = 30 * time.Second
	shortly  = 200 * time.Millisecond
)

// railsOf are rails of the addresses 10.0.0.1 and on, on NUMA nodes.
func railsOf(numa ...int) *Set {
	var all []Opened
	for i, node := range numa {
		all = append(all, Opened{Engine: &fakeEngine{}, Rail: rail.Rail{
			Link: native.LinkEthernet, Network: fmt.Sprint("eth", i), NUMANode: node, Up: true,
			GID: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}).As16(),
		}})
	}
	return newSet(all, slog.New(slog.DiscardHandler))
}

// TestNearRail is which rail an address of this node means.
func TestNearRail(t *testing.T) {
	set := railsOf(0, 0, 1)
	info := set.list[2].info
	info.GID = netip.MustParseAddr("fe80::7").As16()
	set.list[2].note(info)
	for _, c := range []struct {
		at   string
		want int
	}{
		{"10.0.0.1", 0}, {"10.0.0.2", 1}, {"10.0.0.3", -1}, {"::ffff:10.0.0.2", 1}, {"127.0.0.1", -1},
		{"fe80::7", 2}, {"fe80::7%eth2", 2}, {"fe80::7%eth1", 1}, {"fe80::9%eth2", 2}, {"fe80::7%eth9", -1},
	} {
		got := set.Near(netip.MustParseAddr(c.at))
		if c.want < 0 && got != nil || c.want >= 0 && got != set.list[max(c.want, 0)] {
			t.Errorf("%s: %+v", c.at, got)
		}
	}
	if set.Near(netip.Addr{}) != nil {
		t.Error("no address means a rail")
	}
}

// TestTooManyRails: those that are up are used first, and both lists stay in order.
func TestTooManyRails(t *testing.T) {
	for _, c := range []struct{ states, used string }{
		{"u", "u"}, {"d", "d"}, {"uuuuuuuu", "uuuuuuuu"}, {"uuuuuuuuu", "uuuuuuuu-"}, {"duuuuuuuu", "-uuuuuuuu"},
		{"dddddddddu", "ddddddd--u"}, {"dduuuuuuud", "d-uuuuuuu-"}, {"ududududududu", "udu-u-u-u-u-u"}, {"", ""},
	} {
		var found []rail.Rail
		for i, s := range c.states {
			found = append(found, rail.Rail{Device: "mlx5", Port: i, Up: s == 'u'})
		}
		used, left := fit(found)
		got := []byte(c.states)
		for _, r := range left {
			got[r.Port] = '-'
		}
		if string(got) != c.used || len(used)+len(left) != len(found) || len(used) > frame.MaxRails ||
			!slices.IsSortedFunc(used, func(a, b rail.Rail) int { return a.Port - b.Port }) {
			t.Errorf("%s: %s, want %s", c.states, got, c.used)
		}
	}
}

// openFake is the rail of a fake adapter, with its keeper.
func openFake(t *testing.T, o fakeverbs.Options) (*fakeverbs.NIC, *Set) {
	t.Helper()
	if o.Devices == nil {
		o.Devices = []fakeverbs.Device{{Name: fakeRail}, {Name: fakeClient}}
	}
	nic := fakeverbs.New(t, o)
	opened, err := Open(Options{Library: nic.Library(), Devices: []string{fakeRail}, Memory: make([]byte, 1<<16)})
	if err != nil {
		t.Fatal(err)
	}
	set, err := New(opened, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	return nic, set
}

// soon waits for something that must come.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.NewTimer(patience)
	defer end.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end.C:
			t.Fatalf("not soon: %s", what)
		case <-tick.C:
		}
	}
}

// TestADriverThatHangsKeepsNoNode: the node's end does not wait for ever for a look at a port, and closes the rails
// when it is asked again.
func TestADriverThatHangsKeepsNoNode(t *testing.T) {
	nic, set := openFake(t, fakeverbs.Options{})
	set.closeWait = shortly
	hang := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtQueryPort, Do: fakeverbs.Hold, Device: fakeRail})
	nic.PortDown(fakeRail)
	hang.Await(1)
	if err := set.Close(); !errors.Is(err, initiator.ErrStuck) {
		t.Errorf("closed while a driver hangs: %v", err)
	}
	hang.Release()
	soon(t, "the rails are closed", func() bool { return set.Close() == nil })
}

// TestNoRail: what could not be opened is the cause, and a machine without a device says so.
func TestNoRail(t *testing.T) {
	cause := errors.New("cause")
	if _, err := New([]Opened{{Err: cause}}, nil); !errors.Is(err, ErrNoRail) || !errors.Is(err, cause) {
		t.Errorf("a rail that did not open: %v", err)
	}
	if _, err := New(nil, nil); !errors.Is(err, ErrNoRail) || Reason(err) != ReasonNoRail {
		t.Errorf("no rail: %v", err)
	}
	nic := fakeverbs.New(t, fakeverbs.Options{})
	if _, err := Open(Options{Library: nic.Library(), Devices: []string{"none"}}); !errors.Is(err, rail.ErrUnknown) {
		t.Errorf("unknown device: %v", err)
	}
}

// TestWatchers: all fabrics hear of a change, each until it stops to watch, also while others are told.
func TestWatchers(t *testing.T) {
	set := railsOf(0)
	k := set.list[0]
	var heard [2]int
	var stop func()
	stop = set.Watch(func() {
		heard[0]++
		stop()
	})
	set.Watch(func() { heard[1]++ })
	k.lower("a test's", nil)
	k.lower("a test's", nil)
	k.raise()
	stop()
	if heard != [2]int{1, 2} {
		t.Errorf("told %v times", heard)
	}
	if up, reason := set.State(); !up || reason != "" || !set.AnyUp() {
		t.Errorf("state %v %q", up, reason)
	}
}

// user makes uses of one rail by queue pairs of clients.
type user struct {
	rail   *Rail
	failed map[*Use]int
}

func newUser(k *Rail) *user { return &user{k, make(map[*Use]int)} }

func (x *user) use(owner string, far End) *Use {
	u := &Use{Rail: x.rail, Owner: owner, Far: far}
	u.Fail = func() { x.failed[u]++ }
	return u
}

// TestQueuePairsOfOthersOnOneNode: what one fabric found out about a client's queue pair holds for all: it belongs to
// the principal to whom it answered, and no use leads to this node's own. Nothing is remembered of uses that left.
func TestQueuePairsOfOthersOnOneNode(t *testing.T) {
	_, set := openFake(t, fakeverbs.Options{})
	k := set.list[0]
	x := newUser(k)
	far := End{GID: [16]byte{1}, QPN: 7}
	honest, liar, namesake := x.use("p", far), x.use("q", far), x.use("p", far)
	for _, u := range []*Use{honest, liar, namesake} {
		if err := u.Join(); err != nil {
			t.Fatal(err) // none has answered yet
		}
	}
	honest.Moved()
	honest.Moved()
	if x.failed[liar] != 1 || x.failed[honest]+x.failed[namesake] != 0 {
		t.Errorf("failed: %v", x.failed)
	}
	if err := x.use("q", far).Join(); !errors.Is(err, ErrTaken) {
		t.Errorf("a queue pair that has answered to another: %v", err)
	}
	made, err := honest.NewPath()
	if err != nil {
		t.Fatal(err)
	}
	own := End{GID: made.Local().GID, QPN: made.Local().QPN}
	if err := x.use("p", own).Join(); !errors.Is(err, ErrTaken) {
		t.Errorf("a queue pair of this node: %v", err)
	}
	early := x.use("p", End{GID: own.GID, QPN: own.QPN + 1}) // the number of the next one
	if err := early.Join(); err != nil {
		t.Fatal(err)
	}
	next, err := namesake.NewPath()
	if err != nil {
		t.Fatal(err)
	}
	if got := next.Local().QPN; got == own.QPN+1 && x.failed[early] != 1 {
		t.Errorf("a use that leads to queue pair %d of this node goes on", got)
	} else if got != own.QPN+1 {
		t.Logf("queue pair %d after %d: one half of the test did not run", got, own.QPN)
	}
	for _, u := range []*Use{honest, liar, namesake, early} {
		u.Leave()
	}
	if err := errors.Join(made.Close(), next.Close()); err != nil {
		t.Error(err)
	}
	if n := len(set.ends.uses) + len(set.ends.own) + len(k.uses) + len(k.holders); n != 0 {
		t.Errorf("%d things are remembered", n)
	}
}

// TestSharesOfARail: a principal has half of a rail's uses, by whichever fabric, and a rail that is down takes none.
func TestSharesOfARail(t *testing.T) {
	const pairs = 6 // of the adapter
	_, set := openFake(t, fakeverbs.Options{Devices: []fakeverbs.Device{{Name: fakeRail, MaxQP: pairs}}})
	x := newUser(set.list[0])
	var joined []*Use
	for i := range pairs / 2 {
		u := x.use("p", End{QPN: uint32(i)})
		if err := u.Join(); err != nil {
			t.Fatal(err)
		}
		joined = append(joined, u)
	}
	more, other := x.use("p", End{QPN: 100}), x.use("q", End{QPN: 101})
	if err := more.Join(); !errors.Is(err, ErrShare) {
		t.Errorf("more than its share: %v", err)
	}
	if err := other.Join(); err != nil {
		t.Errorf("another: %v", err)
	}
	joined[0].Leave()
	if err := more.Join(); err != nil {
		t.Errorf("after one has left: %v", err)
	}
	set.list[0].lower("a test's", nil)
	for _, u := range append(joined[1:], more, other) {
		if x.failed[u] != 1 {
			t.Errorf("a use of a rail that went down was told %d times", x.failed[u])
		}
	}
	if err := joined[0].Join(); !errors.Is(err, ErrDown) {
		t.Errorf("a rail that is down: %v", err)
	}
	if n := set.Stats()[0].Refused; n != 1 {
		t.Errorf("%d refused", n)
	}
}

// TestTurns: a principal has its share of those who connect at once, all together have their bound, who stops waiting
// leaves no turn taken, and nothing is left at the end.
func TestTurns(t *testing.T) {
	turns := newTurns()
	stopped := make(chan struct{})
	close(stopped)
	var leave []func()
	for p := range connectShare {
		owner := fmt.Sprint("p", p)
		for range maxConnects / connectShare {
			leave = append(leave, turns.take(owner, nil))
		}
		for range 10 {
			if got := turns.take(owner, stopped); got != nil {
				t.Fatal("more than a share, or a turn for one that has stopped")
			}
		}
	}
	for range 10 {
		if turns.take("q", stopped) != nil {
			t.Fatal("more than there are")
		}
	}
	waits := make(chan func())
	go func() { waits <- turns.take("q", nil) }()
	leave[0]()
	leave[0] = <-waits
	for _, l := range leave {
		l()
	}
	if n := len(turns.all) + len(turns.lines); n != 0 {
		t.Errorf("%d turns or lines are left", n)
	}
}
