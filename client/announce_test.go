package client

import (
	"context"
	"errors"
	"runtime"
	"testing"
)

// TestImpatientAnnouncer: who begins an announcement and gives up costs nobody else anything: the session lives,
// and those who wait for the same announcement get it. Oracle: the fake node's counts.
func TestImpatientAnnouncer(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	c := n.client(nil)
	n.objects["/b/k"] = []byte("payload")
	first, second := region(t, c, 7), region(t, c, 7)
	if _, err := c.GetInto(t.Context(), first.All(), "b", "k", GetOptions{}); err != nil {
		t.Fatal(err)
	}
	n.announceGate = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := c.GetInto(ctx, second.All(), "b", "k", GetOptions{})
		gone <- err
	}()
	for n.count("announce") < 2 {
		runtime.Gosched()
	}
	patient := make(chan error, 1)
	go func() {
		res, err := c.GetInto(t.Context(), second.All(), "b", "k", GetOptions{})
		if err == nil && res.Path != PathSHM {
			err = errors.New("moved by " + res.Path)
		}
		patient <- err
	}()
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the one who gave up: %v", err)
	}
	close(n.announceGate)
	if err := <-patient; err != nil {
		t.Errorf("the one who waited: %v", err)
	}
	if s, a, f := n.count("session"), n.count("announce"), n.count("fence"); s != 1 || a != 2 || f != 0 {
		t.Errorf("%d sessions, %d announcements, %d fences", s, a, f)
	}
}
