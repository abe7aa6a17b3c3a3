package client

import (
	"context"
	"testing"

	"github.com/penstock-store/penstock/client/target"
)

// hungConn is one whose driver does not return: nothing is forgotten or fenced, and the memory is told nothing.
type hungConn struct{ conn }

func (hungConn) Fence(context.Context) error  { return target.ErrNotFenced }
func (hungConn) Forget(context.Context) error { return context.DeadlineExceeded }
func (hungConn) Done() <-chan struct{}        { done := make(chan struct{}); close(done); return done }

func (hungConn) Grant(int64, int64, target.Direction) (grant, error) { return nil, target.ErrClosed }

// TestCloseTellsOfMemoryInReach: memory of the caller that an adapter may still reach after Close is abandoned.
func TestCloseTellsOfMemoryInReach(t *testing.T) {
	for _, fabric := range []string{PathRC, PathDC} {
		n := newFakeNode(t, fabric)
		c := n.client(func(*Config) {})
		r, err := c.Register(make([]byte, 100))
		if err != nil {
			t.Fatal(err)
		}
		s := &session{name: fabric, conn: hungConn{}, slot: c.fabrics.slots[0], fenced: make(chan struct{})}
		a := &announcement{ready: make(chan struct{}), at: hungConn{}}
		close(a.ready)
		r.announced[s] = a
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if !r.Abandoned() {
			t.Errorf("%s: the caller may use memory that an adapter can write to", fabric)
		}
	}
}
