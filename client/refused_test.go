package client

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
)

// Closing a region that a session refused costs the session nothing: others move their payload by it. Oracle: the fake
// node's counts.
func TestRefusedRegionCostsNoSession(t *testing.T) {
	for _, fabric := range []string{PathSHM, PathTCP, PathRC} {
		n := newFakeNode(t, fabric)
		n.objects["/b/k"] = []byte("payload")
		c := n.client(nil)
		r := region(t, c, 7)
		if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); err != nil {
			t.Fatal(err)
		}
		n.announceErr = errors.New("fake: not pinned")
		refused, err := c.Alloc(7)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.GetInto(t.Context(), refused.All(), "b", "k", GetOptions{}); !errors.Is(err, ErrDeclined) {
			t.Errorf("%s: %v", fabric, err)
		}
		if err := refused.Close(); err != nil {
			t.Errorf("%s: %v", fabric, err)
		}
		if f := n.count("fence"); f != 0 {
			t.Errorf("%s: %d fences", fabric, f)
		}
	}
}

// A session that another caller's fence is ending refuses a region because it ends, whether or not the fence is done:
// the reason is one for which callers try again.
func TestRegionOfASessionThatEnds(t *testing.T) {
	for _, fabric := range []string{PathSHM, PathTCP, PathRC} {
		n := newFakeNode(t, fabric)
		n.objects["/b/k"] = []byte("payload")
		c := n.client(nil)
		n.announceErr = fmt.Errorf("%w: fenced", target.ErrClosed)
		var declined *DeclinedError
		err := c.Probe(t.Context(), region(t, c, 7))
		if !errors.As(err, &declined) || declined.Reason != ReasonNoSession {
			t.Errorf("%s: %v", fabric, err)
		}
	}
}

// A driver that does not return while a session is opened holds up nobody for longer than the limit, whatever their
// contexts allow; later requests do not wait at all, and the next fabric carries them.
func TestOpeningThatHangs(t *testing.T) {
	n := newFakeNode(t, PathTCP)
	n.host = "other"
	n.listed = []frame.FabricInfo{{Name: PathSHM, Up: true}, {Name: PathRC, Up: true}, {Name: PathTCP, Up: true}}
	n.objects["/b/k"] = []byte("payload")
	c := n.client(func(cfg *Config) { cfg.Fabric = Auto })
	c.fabrics.openLimit = 50 * time.Millisecond
	returns := make(chan struct{})
	c.fabrics.local = func(fabric string) *DeclinedError {
		if fabric == PathRC {
			<-returns
		}
		return nil
	}
	r := region(t, c, 7)
	for range 3 {
		res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
		if err != nil || res.Path != PathTCP || res.Reason != ReasonNoSession {
			t.Errorf("%+v %v", res, err)
		}
	}
	close(returns)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); err != nil || res.Path == PathRC {
			return
		}
	}
	t.Error("the driver has returned, and rc is not used")
}
