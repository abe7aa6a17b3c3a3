package fabric

import (
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

// pretender is a connection of some origin.
type pretender struct {
	net.Conn
	name   string
	closed bool
}

func (p *pretender) Close() error {
	p.closed = true
	return nil
}

// TestDoorIsShared: a flood from one origin pushes out its own connections and not those of others; a flood
// from everywhere pushes out whoever came first. Oracle: who was closed.
func TestDoorIsShared(t *testing.T) {
	defer goleak.VerifyNone(t)
	var refused atomic.Int64
	d := NewDoor(nil, nil, &refused, slog.New(slog.DiscardHandler))
	var all []*pretender
	arrive := func(origin string) *pretender {
		p := &pretender{name: fmt.Sprint(origin, len(all))}
		if !d.admit(p, origin) {
			t.Fatalf("%s is refused", p.name)
		}
		all = append(all, p)
		return p
	}
	honest := []*pretender{arrive("a"), arrive("b"), arrive("b"), arrive("")}
	for range 3 * MaxHandshakes {
		arrive("flood")
	}
	for _, p := range honest {
		if p.closed {
			t.Errorf("%s was pushed out by another's flood", p.name)
		}
	}
	for i, p := range all[len(honest):] {
		if gone := i < 3*MaxHandshakes-(MaxHandshakes-len(honest)); p.closed != gone {
			t.Errorf("connection %d of the flood: closed %v, want %v", i, p.closed, gone)
		}
	}
	if n := d.Waiting(); n != MaxHandshakes {
		t.Errorf("%d wait, want %d", n, MaxHandshakes)
	}
	for _, p := range all {
		d.Proved(p)
		d.Proved(p)
	}
	if d.Waiting() != 0 || len(d.origins) != 0 {
		t.Errorf("%d wait, %d origins", d.Waiting(), len(d.origins))
	}
	first := arrive("x")
	for i := range MaxHandshakes - 1 {
		arrive(fmt.Sprint("y", i))
	}
	if arrive("z"); !first.closed {
		t.Error("the first of all was not pushed out")
	}
}
