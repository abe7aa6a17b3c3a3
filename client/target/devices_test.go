package target

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestLooksAreShared: sessions that want to know at the same time look once, and nobody gets a look that is older than
// asked for. Each look of its own would cost a machine with hundreds of sessions a processor.
func TestLooksAreShared(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	d, err := OpenDevices(nic.Library(), nil)
	if errors.Is(err, native.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	at := func(since time.Time) (began time.Time, up bool) {
		rails, _, err := d.rails(since)
		if err != nil || len(rails) == 0 {
			t.Errorf("%d rails: %v", len(rails), err)
			return began, false
		}
		d.looking.Lock()
		defer d.looking.Unlock()
		return d.last.began, rails[0].Up
	}
	first, up := at(time.Time{})
	if !up {
		t.Fatal("the rail is down")
	}
	name := d.last.rails[0].Device
	nic.PortDown(name)
	if again, up := at(first); again != first || !up {
		t.Error("a look that is young enough was not taken")
	}
	since := time.Now()
	begins := make([]time.Time, 16)
	var all sync.WaitGroup
	for i := range begins {
		all.Go(func() {
			began, up := at(since)
			if up {
				t.Error("an old look was taken")
			}
			begins[i] = began
		})
	}
	all.Wait()
	for _, b := range begins {
		if b.Before(since) || b != begins[0] {
			t.Errorf("looks at %v, asked since %v", begins, since)
			break
		}
	}
	nic.PortUp(name)
	if err := d.Usable(); err != nil {
		t.Errorf("usable: %v", err)
	}
}

// TestChangesAskForAYoungEnoughLook: of several changes the one counts that wants the youngest look.
func TestChangesAskForAYoungEnoughLook(t *testing.T) {
	p := &paths{rails: []frame.Rail{}}
	begin := time.Now()
	p.change(time.Hour)
	p.change(0)
	p.change(time.Minute)
	if since, may := p.mayOffer(); !may || since.Before(begin) {
		t.Errorf("may offer %v, with a look since %v, want since %v", may, since, begin)
	}
	if _, may := p.mayOffer(); may {
		t.Error("one change is looked at twice")
	}
	p.change(time.Hour)
	if since, may := p.mayOffer(); !may || since.After(begin) {
		t.Errorf("may offer %v, with a look since %v: an old one will do", may, since)
	}
}

// TestPortsAreLookedAtSeldomWhenNothingIsMissing.
func TestPortsAreLookedAtSeldomWhenNothingIsMissing(t *testing.T) {
	p := &paths{
		rails: []frame.Rail{{Index: 0, Up: true}, {Index: 1, Up: true}, {Index: 2}},
		live:  map[uint64]*path{1: {pair: pairing{rail: 0}}},
	}
	if wait := p.nextLook(); wait != idleLook {
		t.Errorf("a rail has no path: the next look is in %v", wait)
	}
	p.live[2] = &path{pair: pairing{rail: 1}}
	if wait := p.nextLook(); wait != steadyLook {
		t.Errorf("all rails have paths: the next look is in %v", wait)
	}
}
