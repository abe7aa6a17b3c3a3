package rails

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestPoolsTakeTurns: a principal that names ports which do not answer holds no more threads of the kernel than its
// share of the rail's turns, and those that have given up meanwhile are not looked for. The turns are all given back.
func TestPoolsTakeTurns(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{{Name: fakeRail}, {Name: fakeClient}}})
	memory := make([]byte, 1<<16)
	opened, err := Open(Options{Library: nic.Library(), Devices: []string{fakeRail}, Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	set, err := New(opened, nil)
	if err != nil {
		t.Fatal(err)
	}
	pools, err := set.Pools(initiator.PoolOptions{Lanes: 2})
	if err != nil {
		t.Fatal(err)
	}
	const share = maxConnects / connectShare
	slow := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtCreateAddress, Do: fakeverbs.Hold, Times: fakeverbs.Always})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	move := func(owner string, port byte) {
		now := time.Now()
		m := initiator.DCMove{
			Move:  initiator.Move{Op: native.OpWrite, Remote: 4096, Local: []initiator.Segment{memory[:10]}},
			Owner: owner, Window: initiator.Window{Addr: 4096, Size: 10}, Stop: now.Add(patience), Expire: now.Add(patience),
			Target: initiator.DCTarget{Port: native.PeerPort{HasGID: true,
				GID: netip.AddrFrom4([4]byte{10, 99, 7, port}).As16()}},
		}
		all.Go(func() {
			if err := pools[0].Move(ctx, m); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, port %d: %v", owner, port, err)
			}
		})
	}
	for i := range 3 * share {
		move("eve", byte(i))
	}
	slow.Await(share)
	move("alice", 200)
	slow.Await(share + 1)
	cancel()
	all.Wait()
	if n := slow.Hits(); n != share+1 {
		t.Errorf("%d addresses are being made, want %d", n, share+1)
	}
	slow.Release()
	slow.Remove()
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	if n := slow.Hits(); n != share+1 {
		t.Errorf("%d addresses were made, want %d", n, share+1)
	}
	k := set.list[0].connects
	if n := len(k.all) + len(k.lines); n != 0 {
		t.Errorf("%d turns or lines are left", n)
	}
}
