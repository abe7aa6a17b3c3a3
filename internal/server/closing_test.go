package server

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/token"
)

// heldFabric does not close until the rails have, as one whose adapter does not reset a queue pair.
type heldFabric struct {
	door   *fabric.Door
	rails  *error // nil: not closed yet
	closes int
}

func (*heldFabric) Name() string { return "held" }

func (*heldFabric) Open(context.Context, token.Descriptor, fabric.Grant) (fabric.Remote, error) {
	return nil, fabric.ErrNoSession
}

func (*heldFabric) Rails() []fabric.Rail { return nil }

func (f *heldFabric) Close() error {
	f.closes++
	err := f.door.Shut()
	if f.rails == nil || *f.rails != nil {
		return errors.Join(err, fabric.ErrStuck)
	}
	return err
}

// poorListener does not close well.
type poorListener struct {
	net.Listener
	failure error
}

func (l poorListener) Close() error { return l.failure }

// TestFabricsThatWaitForTheirRails: what an adapter holds up ends with the rails, and is no error then; where the rails
// do not close either, both say so, and neither is asked for ever. What else went wrong is said in any case. It is the
// same for a node that drains, which closes them before the requests that they hold up have ended, and once more in the
// order of all.
func TestFabricsThatWaitForTheirRails(t *testing.T) {
	errListener := errors.New("listener does not close")
	for name, c := range map[string]struct {
		rails    error
		listener error
		none     bool // no rail
		want     []error
		closes   int
	}{
		"the rails close":    {closes: 2},
		"they are stuck too": {rails: initiator.ErrStuck, want: []error{fabric.ErrStuck, initiator.ErrStuck}, closes: 1},
		"the listener fails": {listener: errListener, want: []error{errListener}, closes: 2},
		"there is none":      {none: true, want: []error{fabric.ErrStuck}, closes: 1},
	} {
		held := func(t *testing.T, drains bool) {
			f := &heldFabric{door: fabric.NewDoor(poorListener{failure: c.listener}, nil, nil, nil)}
			s := &Server{fabrics: fabric.NewManager(fabric.NewLedger(fabric.Limits{}), f)}
			asked := 0
			if !c.none {
				s.ownRails(&rails.Set{}, func() error {
					asked++
					f.rails = &c.rails
					return c.rails
				})
			}
			s.onClose("fabrics", s.closeFabrics)
			closes := c.closes
			if drains {
				if closes++; c.listener != nil {
					closes++ // an error is no sign that asking again is of use, but it costs nothing
				}
				if err := s.closeFabrics(); (err == nil) != (len(c.want) == 0) {
					t.Errorf("drain: %v", err)
				}
			}
			err := s.Close()
			if len(c.want) == 0 && err != nil {
				t.Errorf("close: %v", err)
			}
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("close: %v is no %v", err, want)
				}
			}
			if f.closes != closes || asked > 1 {
				t.Errorf("closed the fabrics %d times, the rails %d times", f.closes, asked)
			}
		}
		t.Run(name, func(t *testing.T) { held(t, false) })
		t.Run(name+", draining", func(t *testing.T) { held(t, true) })
	}
}
