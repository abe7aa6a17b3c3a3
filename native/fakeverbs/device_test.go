package fakeverbs_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// another is an end on the same adapter.
func (e *end) another(o endOptions) *end {
	e.t.Helper()
	if e.nic != nil {
		return newEnd(e.t, e.nic, o)
	}
	return realEnd(e.t, o)
}

// realEnd is an end on the first real adapter whose port is active.
func realEnd(t testing.TB, o endOptions) *end {
	t.Helper()
	library, err := native.Open(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	infos, err := library.Devices()
	if err != nil || len(infos) == 0 {
		t.Fatalf("devices: %v %v", infos, err)
	}
	for _, i := range infos {
		o.device = i.Name
		d, err := library.OpenDevice(i.Name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := d.Port(1)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err != nil || p.State != native.PortActive {
			continue
		}
		e := openEnd(t, nil, library, o)
		for _, g := range p.GIDs {
			if g.Type == native.GIDRoCEv2 && bytes.HasPrefix(g.Raw[:], []byte{10: 0xff, 11: 0xff}) {
				e.path.GIDIndex = g.Index
			}
		}
		e.path.Timeout = 16 // emulation is slow
		return e
	}
	t.Fatalf("no active port on %+v", infos)
	return nil
}

// onBoth runs a test on the fake, and on a real adapter where the machine is said to have one: what holds on both is
// what the fake is trusted for.
func onBoth(t *testing.T, test func(t *testing.T, open func(endOptions) *end)) {
	t.Helper()
	t.Run("fake", func(t *testing.T) {
		nic := fakeverbs.New(t, fakeverbs.Options{Lenient: true})
		test(t, func(o endOptions) *end { return newEnd(t, nic, o) })
	})
	t.Run("device", func(t *testing.T) {
		if os.Getenv("PENSTOCK_TEST_VERBS") != "device" {
			t.Skip("no device: PENSTOCK_TEST_VERBS is not set")
		}
		test(t, func(o endOptions) *end { return realEnd(t, o) })
	})
}

func TestDeviceTransfers(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(endOptions) *end) {
		a := open(endOptions{memAccess: native.LocalWrite, psn: 0xfffff0})
		b := open(endOptions{memAccess: all, qpAccess: qpAll, psn: 77})
		connect(a, b)
		for _, n := range []int{0, 1, 1023, 1024, 1025, 4095, 65536} {
			fill(a.mem, n)
			fill(b.mem, n+100)
			want := append(bytes.Clone(a.mem[:n]), b.mem[n:]...)
			a.post(write(1, a, b, n))
			a.expect(a.wait(1), ok(1))
			if !bytes.Equal(b.mem, want) {
				t.Fatalf("WRITE of %d: memory differs", n)
			}
			fill(b.mem, n+200)
			want = append(bytes.Clone(b.mem[:n]), a.mem[n:]...)
			a.post(read(2, a, b, n))
			got := a.wait(1)
			a.expect(got, ok(2))
			if got[0].Bytes != uint32(n) || !bytes.Equal(a.mem, want) {
				t.Fatalf("READ of %d: %+v, or memory differs", n, got)
			}
		}
	})
}

func TestDeviceRemoteChecks(t *testing.T) {
	for _, c := range remoteChecks() {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, open func(endOptions) *end) {
				a := open(endOptions{memAccess: native.LocalWrite})
				b := open(endOptions{memAccess: c.memory, qpAccess: c.pair})
				connect(a, b)
				refused(t, a, b, c)
			})
		})
	}
}

func TestDeviceLocalChecks(t *testing.T) {
	for _, c := range localChecks() {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, open func(endOptions) *end) {
				a := open(endOptions{memAccess: c.memory})
				b := open(endOptions{memAccess: all, qpAccess: qpAll})
				connect(a, b)
				there := bytes.Clone(b.mem)
				a.post(c.work(a, b), write(2, a, b, 100))
				a.expect(a.wait(2), ended(1, native.StatusLocal), ended(2, native.StatusFlushed))
				if !bytes.Equal(b.mem, there) {
					t.Error("memory changed")
				}
			})
		})
	}
}

// TestDeviceStates: posts before QPSend are refused, and after Fail flushed; changes of state that skip one are
// refused; after a reset everything begins again.
func TestDeviceStates(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(endOptions) *end) {
		a := open(endOptions{memAccess: native.LocalWrite, psn: 5})
		b := open(endOptions{memAccess: all, qpAccess: qpAll, psn: 6})
		refuse := func(what string, err error) {
			t.Helper()
			wantErrno(t, what, err, syscall.EINVAL)
		}
		post := func(state string) {
			t.Helper()
			// Soft-RoCE fails after it has taken the chain: how many that were is not told.
			_, err := a.qp.Post([]native.Work{write(1, a, b, 8)})
			refuse("post in "+state, err)
		}
		a.meet(b)
		b.meet(a)
		post("reset")
		refuse("reset to error", a.qp.Fail())
		refuse("reset to receive", a.qp.Receive(a.path, a.peer))
		if err := a.qp.Init(a.path); err != nil {
			t.Fatal(err)
		}
		post("init")
		refuse("init to send", a.qp.Send(a.path, a.peer))
		if err := a.qp.Receive(a.path, a.peer); err != nil {
			t.Fatal(err)
		}
		post("receive")
		refuse("receive to init", a.qp.Init(a.path))
		if err := a.qp.Reset(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			connect(a, b)
			a.post(write(1, a, b, 8))
			a.expect(a.wait(1), ok(1))
			if err := a.qp.Fail(); err != nil {
				t.Fatal(err)
			}
			quiet := write(2, a, b, 8)
			quiet.Signal = false
			a.post(quiet, read(3, a, b, 8))
			a.expect(a.wait(2), ended(2, native.StatusFlushed), ended(3, native.StatusFlushed))
			for _, e := range []*end{a, b} {
				if err := e.qp.Reset(); err != nil {
					t.Fatal(err)
				}
				e.state(native.QPReset)
			}
		}
	})
}

// TestDeviceOrder: a READ behind a WRITE sees what it wrote, and completions come in the order of posts.
func TestDeviceOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(endOptions) *end) {
		a := open(endOptions{memAccess: native.LocalWrite})
		b := open(endOptions{memAccess: all, qpAccess: qpAll})
		connect(a, b)
		for round := range 20 {
			fill(a.mem[:20000], round)
			back := read(2, a, b, 20000)
			back.Local += 30000
			a.post(write(1, a, b, 20000), back, write(3, a, b, 1))
			a.expect(a.wait(3), ok(1), ok(2), ok(3))
			if !bytes.Equal(a.mem[:20000], a.mem[30000:50000]) {
				t.Fatal("the READ did not see the WRITE")
			}
		}
	})
}

// TestDeviceRevoked: a key opens nothing any more when its region is closed, also to a peer that used it before.
func TestDeviceRevoked(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(endOptions) *end) {
		a := open(endOptions{memAccess: native.LocalWrite})
		b := open(endOptions{memAccess: all, qpAccess: qpAll})
		connect(a, b)
		m, err := b.pd.Register(b.mem, all)
		if err != nil {
			t.Fatal(err)
		}
		w := write(1, a, b, 5000)
		w.RKey = m.RKey()
		a.post(w)
		a.expect(a.wait(1), ok(1))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		fill(a.mem, 9)
		there := bytes.Clone(b.mem)
		a.post(w)
		a.expect(a.wait(1), ended(1, native.StatusRemoteAccess))
		if !bytes.Equal(b.mem, there) {
			t.Error("memory changed")
		}
	})
}

// TestDeviceFence: nothing reaches a queue pair that has failed or was reset; its peer gives up.
func TestDeviceFence(t *testing.T) {
	for name, fence := range map[string]func(*end) error{
		"fail":  func(b *end) error { return b.qp.Fail() },
		"reset": func(b *end) error { return b.qp.Reset() },
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, open func(endOptions) *end) {
				a := open(endOptions{memAccess: native.LocalWrite})
				b := open(endOptions{memAccess: all, qpAccess: qpAll})
				a.path.Timeout, a.path.Retries = 12, 2
				connect(a, b)
				fill(a.mem, 1)
				if err := fence(b); err != nil {
					t.Fatal(err)
				}
				a.post(write(1, a, b, 5000), read(2, a, b, 1))
				a.expect(a.wait(2), ended(1, native.StatusRetry), ended(2, native.StatusFlushed))
				if !bytes.Equal(b.mem, make([]byte, len(b.mem))) {
					t.Error("memory changed")
				}
			})
		})
	}
}

// TestDeviceNotification: an armed queue wakes once, for what comes after arming.
func TestDeviceNotification(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(endOptions) *end) {
		a := open(endOptions{memAccess: native.LocalWrite})
		b := open(endOptions{memAccess: all, qpAccess: qpAll})
		connect(a, b)
		for i := range uint64(20) {
			if err := a.cq.Arm(); err != nil {
				t.Fatal(err)
			}
			a.expect(a.poll())
			a.post(write(i, a, b, 8))
			if err := a.cq.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			a.expect(a.wait(1), ok(i))
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if err := a.cq.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("woke twice: %v", err)
			}
			cancel()
		}
	})
}

// TestDeviceZeroLength: no key is looked at when no byte moves.
func TestDeviceZeroLength(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(endOptions) *end) {
		a := open(endOptions{memAccess: native.LocalWrite})
		b := open(endOptions{memAccess: all, qpAccess: qpAll})
		connect(a, b)
		w, r := write(1, a, b, 0), read(2, a, b, 0)
		w.RKey, w.LKey, w.Remote = 1, 2, 3
		r.RKey, r.LKey, r.Remote = 1, 2, 3
		a.post(w, r)
		a.expect(a.wait(2), ok(1), ok(2))
	})
}
