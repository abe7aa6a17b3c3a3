package verbs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestReportedThenFailed: what an adapter reports as done before it fails is done again by another path, for either
// direction. Oracle: the memory, byte by byte.
func TestReportedThenFailed(t *testing.T) {
	nic := fakeNIC(t, fakeverbs.Options{})
	devices := fakeDevices(t, nic)
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 2, BufferBytes: 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	o := fakeSetup(nic, fabric.NewLedger(fabric.Limits{}), a.Memory())
	o.Devices = []string{rail0}
	f, err := o.open()
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
		if err := errors.Join(c.Fence(context.Background()), c.Free()); err != nil {
			t.Error(err)
		}
	})
	r, err := c.Register(t.Context(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		for at := range 3 { // the last one finds no request to lie about
			lie := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Lie, Device: rail0, Skip: at, Bytes: 8192})
			transferOnce(t, f, a, r, d)
			if lie.Hits() != min(1, 2-at) {
				t.Errorf("direction %d, request %d: %d lies", d, at, lie.Hits())
			}
			lie.Remove()
		}
	}
}

// transferOnce moves a MiB one way, closes the window and compares.
func transferOnce(t *testing.T, f *railed, a *arena.Arena, r fabrictest.Region, d fabric.Direction) {
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
	move, from, to := remote.Write, b.Bytes(), r.Bytes()
	if d == fabric.ForPut {
		move, from, to = remote.Read, to, from
	}
	_, _ = rand.Read(from) // never fails
	clear(to)
	if err := errors.Join(move(t.Context(), 0, b), remote.Close(), w.EndContext(t.Context())); err != nil {
		t.Errorf("direction %d: %v", d, err)
	}
	if !bytes.Equal(from, to) {
		t.Errorf("direction %d: the bytes differ", d)
	}
}
