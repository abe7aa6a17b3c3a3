package rails

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// farEngine is a rail that reaches a peer, or not.
type farEngine struct {
	fakeEngine
	index   int
	reaches bool
}

func (e *farEngine) From([16]byte) (initiator.Source, error) {
	if !e.reaches {
		return initiator.Source{}, initiator.ErrUnreached
	}
	return initiator.Source{Index: e.index}, nil
}

// TestToward: of the rails that are up and reach the peer it is the one of docs/operations.md. Oracle: that rule, step
// by step, each keeping the best of what is left.
func TestToward(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 1))
	for range 5000 {
		var all []Opened
		loads := make([]int64, 1+random.IntN(4))
		for i := range loads {
			loads[i] = int64(random.IntN(3))
			all = append(all, Opened{
				Rail: rail.Rail{Port: i, NUMANode: random.IntN(3) - 1, Up: random.IntN(4) > 0,
					Link: native.LinkEthernet, GID: addressOf(i).As16()},
				Engine: &farEngine{index: i, reaches: random.IntN(4) > 0},
			})
		}
		set := newSet(all, slog.New(slog.DiscardHandler))
		var left []int
		anyUp := false
		for i, k := range set.list {
			k.Carry(loads[i])
			anyUp = anyUp || all[i].Rail.Up
			if all[i].Rail.Up && all[i].Engine.(*farEngine).reaches {
				left = append(left, i)
			}
		}
		keep := func(wanted func(int) bool) {
			if some := slices.DeleteFunc(slices.Clone(left), func(i int) bool { return !wanted(i) }); len(some) > 0 {
				left = some
			}
		}
		for load := range int64(3) {
			if slices.ContainsFunc(left, func(i int) bool { return loads[i] == load }) {
				keep(func(i int) bool { return loads[i] == load })
				break
			}
		}
		var local netip.Addr
		if at := random.IntN(len(loads)+1) - 1; at >= 0 {
			local = addressOf(at)
			keep(func(i int) bool { return i == at })
			if node := all[at].Rail.NUMANode; node >= 0 {
				keep(func(i int) bool { return all[i].Rail.NUMANode == node })
			}
		}
		got, from, err := set.Toward([16]byte{1}, local)
		switch {
		case len(left) == 0 && !anyUp && !errors.Is(err, ErrDown):
			t.Fatalf("none is up: %v", err)
		case len(left) == 0 && anyUp && !errors.Is(err, initiator.ErrUnreached):
			t.Fatalf("none reaches it: %v", err)
		case len(left) > 0 && (err != nil || got != set.list[left[0]] || from.Index != left[0]):
			t.Fatalf("rails %+v, loads %v: %+v %v, want %d", all, loads, from, err, left[0])
		}
	}
}

// addressOf is that of a rail.
func addressOf(index int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(index + 1)}) }

// TestLinkLocalPeers: a link-local peer is reached by the rail of the link that its connection came in by, or by the
// one whose own address it is, and by no other; other peers by all. One of this machine, whose connection came in by
// the loopback device, is reached by the rail whose network device has the address. Oracle: the table.
func TestLinkLocalPeers(t *testing.T) {
	var all []Opened
	for i, own := range []string{"10.0.0.1", "fe80::1", "169.254.0.3"} {
		all = append(all, Opened{Engine: &farEngine{index: i, reaches: true}, Rail: rail.Rail{Link: native.LinkEthernet,
			Network: "eth" + string(rune('0'+i)), GID: netip.MustParseAddr(own).As16(), Up: true}})
	}
	all = append(all, Opened{Engine: &farEngine{index: 3, reaches: true}, Rail: rail.Rail{Link: native.LinkInfiniBand,
		GID: netip.MustParseAddr("fe80::77").As16(), Up: true}})
	set := newSet(all, slog.New(slog.DiscardHandler))
	set.onDevice = func(gid [16]byte, device string) bool {
		return device == "eth0" && gid == netip.MustParseAddr("fe80::42").As16()
	}
	for _, c := range []struct {
		peer, local string
		want        []int
	}{
		{"10.0.0.9", "10.0.0.1", []int{0, 1, 2, 3}},
		{"2001:db8::9", "", []int{0, 1, 2, 3}},
		{"fe80::9", "fe80::5%eth0", []int{0, 3}},
		{"fe80::9", "fe80::1%eth1", []int{1, 3}},
		{"fe80::9", "fe80::5%eth2", []int{2, 3}},
		{"fe80::9", "fe80::5%eth7", []int{3}},
		{"fe80::9", "10.0.0.1", []int{0, 3}},
		{"fe80::9", "192.0.2.1", []int{3}},
		{"fe80::9", "", []int{3}},
		{"fe80::1", "127.0.0.1", []int{1, 3}},
		{"fe80::42", "127.0.0.1", []int{0, 3}}, // of the network device of rail 0, besides
		{"fe80::42", "::ffff:127.0.0.1", []int{0, 3}},
		{"fe80::42", "::1", []int{0, 3}},
		{"fe80::42", "192.0.2.1", []int{3}},
		{"fe80::42", "fe80::1%eth1", []int{1, 3}}, // another machine's, on another link
		{"fe80::9", "127.0.0.1", []int{3}},
		{"169.254.0.9", "169.254.0.3", []int{2, 3}},
		{"169.254.0.9", "::ffff:169.254.0.3", []int{2, 3}},
		{"169.254.0.9", "169.254.0.4", []int{3}},
	} {
		peer, local := netip.MustParseAddr(c.peer).As16(), netip.Addr{}
		if c.local != "" {
			local = netip.MustParseAddr(c.local)
		}
		var got []int
		for i, k := range set.list {
			if k.Links(peer, local) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s by %s: rails %v, want %v", c.peer, c.local, got, c.want)
		}
		toward, _, err := set.Toward(peer, local)
		if err != nil || !slices.Contains(c.want, int(toward.index)) {
			t.Errorf("%s by %s: %v %v", c.peer, c.local, toward, err)
		}
	}
	all[3].Rail.Up = false
	set = newSet(all, slog.New(slog.DiscardHandler))
	_, _, err := set.Toward(netip.MustParseAddr("fe80::9").As16(), netip.Addr{})
	if !errors.Is(err, initiator.ErrUnreached) {
		t.Errorf("by no link: %v", err)
	}
}
