package verbs

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// liar is a rail whose paths report one move as done that moved nothing, and then fail: what soft-RoCE does when its
// state of a READ is broken.
type liar struct {
	engine
	lies *atomic.Bool // the next move is one
}

// NewPath makes a path that may lie.
func (l liar) NewPath() (lane, error) {
	made, err := l.engine.NewPath()
	if err != nil {
		return nil, err
	}
	return liarLane{made, l.lies}, nil
}

type liarLane struct {
	lane
	lies *atomic.Bool
}

// Move lies once.
func (l liarLane) Move(m initiator.Move) error {
	if l.lies.CompareAndSwap(true, false) {
		l.Fail()
		return nil
	}
	return l.lane.Move(m)
}

// TestReportedThenFailed: what an adapter reported as done before it failed is not done, for either direction. The next
// transfer goes by a new path. Oracle: the memory, which the lie left as it was.
func TestReportedThenFailed(t *testing.T) {
	nic := fakeNIC(t, fakeverbs.Options{})
	devices := fakeDevices(t, nic)
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 2, BufferBytes: 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Ledger: fabric.NewLedger(fabric.Limits{}), Address: "127.0.0.1:0", Library: nic.Library(),
		Networks: fakeNetworks(), Memory: a.Memory(),
	}
	var lies atomic.Bool
	rails := openEngines(o, discover(t, nic, rail0))
	for i := range rails {
		rails[i].engine = liar{rails[i].engine, &lies}
	}
	f, err := newFabric(o, rails)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), a.Close()); err != nil {
			t.Error(err)
		}
	})
	offer, err := f.NewSession(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	c, err := fabrictest.DialDevices(devices)(t.Context(), offer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Fence(t.Context()), c.Free()); err != nil {
			t.Error(err)
		}
	})
	r, err := c.Register(t.Context(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		for _, lie := range []bool{true, false} {
			lies.Store(lie)
			if err := transferOnce(t, f, a, r, d); lie != errors.Is(err, fabric.ErrTransfer) || !lie && err != nil {
				t.Errorf("direction %d, lie %v: %v", d, lie, err)
			}
		}
	}
}

// transferOnce moves a MiB one way and closes the window.
func transferOnce(t *testing.T, f *Fabric, a *arena.Arena, r fabrictest.Region, d fabric.Direction) error {
	t.Helper()
	const size = 1 << 20
	w, err := r.Grant(0, size, d)
	if err != nil {
		t.Fatal(err)
	}
	remote, err := f.Open(t.Context(), w.Descriptor(), fabric.Grant{
		Principal: "p", Direction: d, Bytes: size, Deadline: time.Now().Add(20 * time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := a.Share("fabric").Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	move := remote.Write
	if d == fabric.ForPut {
		move = remote.Read
	}
	return errors.Join(move(t.Context(), 0, b), remote.Close(), w.EndContext(t.Context()))
}
