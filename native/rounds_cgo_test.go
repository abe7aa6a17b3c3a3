//go:build cgo

package native_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// descriptors counts those of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

// TestRoundsKeepNoDescriptor: whatever is opened and closed, and whatever fails to open, leaves no descriptor and
// nothing of the adapter. Oracle: /proc/self/fd, and the adapter's account.
func TestRoundsKeepNoDescriptor(t *testing.T) {
	rounds := 10_000
	if testing.Short() || onDevice() {
		rounds = 200
	}
	var nic *fakeverbs.NIC
	var library *native.Library
	if onDevice() {
		library = open(t)
	} else {
		nic = fakeverbs.New(t, fakeverbs.Options{Log: 16})
		library = nic.Library()
	}
	memory := mapMemory(t, 4096)
	name := func() string {
		infos, err := library.Devices()
		if err != nil || len(infos) == 0 {
			t.Fatalf("%v, %v", infos, err)
		}
		return infos[0].Name
	}()
	round := func() error {
		d, err := library.OpenDevice(name)
		if err != nil {
			return err
		}
		defer func() { closes(t, d.Close()) }()
		pd, err := d.NewPD()
		if err != nil {
			return err
		}
		defer func() { closes(t, pd.Close()) }()
		mr, err := pd.Register(memory, all)
		if err != nil {
			return err
		}
		defer func() { closes(t, mr.Close()) }()
		cq, err := d.NewCQ(8)
		if err != nil {
			return err
		}
		defer func() { closes(t, cq.Close()) }()
		qp, err := pd.NewQP(cq, native.PairOptions{Depth: 8})
		if err != nil {
			return err
		}
		return qp.Close()
	}
	if err := round(); err != nil { // what a first one makes for good: the poller's descriptors
		t.Fatal(err)
	}
	before := descriptors(t)
	points := []fakeverbs.Point{
		fakeverbs.AtOpenDevice, fakeverbs.AtAllocPD, fakeverbs.AtRegMR, fakeverbs.AtCreateChannel, fakeverbs.AtCreateCQ,
		fakeverbs.AtCreateQP,
	}
	for i := range rounds {
		if nic != nil && i%2 == 1 {
			f := nic.Inject(fakeverbs.Rule{At: points[i/2%len(points)], Errno: syscall.ENOMEM})
			if err := round(); !errors.Is(err, syscall.ENOMEM) {
				t.Fatalf("round %d: %v", i, err)
			}
			f.Remove()
			continue
		}
		if err := round(); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors after %d rounds, before %d", after, rounds, before)
	}
	if nic != nil && nic.Counters().Open() != 0 {
		t.Errorf("left: %+v", nic.Counters())
	}
}

// roomFor is the limit of descriptors that leaves room for n more: a new one is the lowest that is free.
func roomFor(n int) uint64 {
	for fd := 0; ; fd++ {
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0); errno == 0 {
			continue
		}
		if n--; n < 0 {
			return uint64(fd)
		}
	}
}

// TestNoDescriptorLeft: where the process may have no more descriptors, what needs one fails and takes back all that it
// made.
func TestNoDescriptorLeft(t *testing.T) {
	if onDevice() {
		t.Skip("for the fake adapter only")
	}
	nic := fakeverbs.New(t, fakeverbs.Options{})
	d, _, _ := deviceOf(t, nic.Library())
	open, used := nic.Counters().Open(), descriptors(t)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	type closer interface{ Close() error }
	for name, make := range map[string]func() (closer, error){
		"device": func() (closer, error) { return nic.Library().OpenDevice("fake0") },
		"CQ":     func() (closer, error) { return d.NewCQ(8) },
	} {
		failed := 0
		for room := range 4 { // each needs two: the adapter's, and the one that is waited for
			limit := was
			limit.Cur = roomFor(room)
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
				t.Fatal(err)
			}
			object, err := make()
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
				t.Fatal(err)
			}
			switch {
			case err == nil:
				closes(t, object.Close())
			case errors.Is(err, syscall.EMFILE) && errors.Is(err, native.ErrVerbs):
				failed++
			default:
				t.Errorf("%s, room for %d: %v", name, room, err)
			}
			if now := nic.Counters().Open(); now != open {
				t.Errorf("%s, room for %d: %d objects are open, before %d", name, room, now, open)
			}
		}
		if failed != 2 {
			t.Errorf("%s: %d of 4 failed, want 2", name, failed)
		}
	}
	if now := descriptors(t); now != used {
		t.Errorf("%d descriptors, before %d", now, used)
	}
}

// TestCallsWhileClosing: every method of every object, from many goroutines, while the objects are closed in their
// order: each call works or says that the object is closed, and none reaches what is gone. Oracle: the adapter's
// checks, and the race detector.
func TestCallsWhileClosing(t *testing.T) {
	if onDevice() {
		t.Skip("for the fake adapter only")
	}
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for range rounds {
		_, p := faked(t, fakeverbs.Options{})
		e, memory := p.near, mapMemory(t, 4096)
		made := func(o interface{ Close() error }, err error) error {
			if err == nil {
				err = o.Close()
			}
			return err
		}
		var posted atomic.Int64 // and not polled
		post := func() error {
			if posted.Load() == depth {
				_, err := e.qp.State()
				return err
			}
			n, err := e.qp.Post([]native.Work{p.work(1, native.OpWrite, 0, 1)})
			posted.Add(int64(n))
			return err
		}
		poll := func() error {
			n, err := e.cq.Poll(make([]native.Completion, 4))
			posted.Add(int64(-n))
			return err
		}
		var calls sync.WaitGroup
		for _, call := range []func() error{
			post, poll, e.cq.Arm, e.qp.Fail,
			func() error { return e.cq.Wait(context.Background()) },
			func() error { _, err := e.qp.State(); return err },
			func() error { _, err := p.device.Port(1); return err },
			func() error { _, err := p.device.PortEntry(1, 1); return err },
			func() error { _, err := p.device.NextEvent(context.Background()); return err },
			func() error { return made(p.device.NewPD()) },
			func() error { return made(p.device.NewCQ(4)) },
			func() error { return made(p.pd.Register(memory, all)) },
			func() error { return made(p.pd.NewQP(e.cq, native.PairOptions{Depth: 1})) },
		} {
			calls.Go(func() {
				for !errors.Is(call(), native.ErrClosed) {
					runtime.Gosched()
				}
			})
		}
		for _, object := range []interface{ Close() error }{
			e.qp, p.far.qp, e.mr, p.far.mr, e.cq, p.far.cq, p.pd, p.device,
		} {
			for err := object.Close(); err != nil; err = object.Close() {
				if !errors.Is(err, syscall.EBUSY) {
					t.Fatal(err)
				}
			}
		}
		calls.Wait()
	}
}

// TestWaitsEndWhileUsersClose: an adapter and a completion queue that are closed at the moment when the last of their
// objects goes end their waits too.
func TestWaitsEndWhileUsersClose(t *testing.T) {
	if onDevice() {
		t.Skip("for the fake adapter only")
	}
	library := fakeverbs.New(t, fakeverbs.Options{}).Library()
	rounds := 2000
	if testing.Short() {
		rounds = 500
	}
	closing := func(object, last interface{ Close() error }, wait func(context.Context) error) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- wait(context.Background()) }()
		closed := make(chan error, 1)
		go func() { closed <- last.Close() }()
		for err := object.Close(); err != nil; err = object.Close() {
			if !errors.Is(err, syscall.EBUSY) {
				t.Fatal(err)
			}
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, native.ErrClosed) {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a wait does not end")
		}
	}
	for range rounds {
		device, err := library.OpenDevice("fake0")
		if err != nil {
			t.Fatal(err)
		}
		pd, err := device.NewPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := device.NewCQ(4)
		if err != nil {
			t.Fatal(err)
		}
		qp, err := pd.NewQP(cq, native.PairOptions{Depth: 1})
		if err != nil {
			t.Fatal(err)
		}
		closing(cq, qp, cq.Wait)
		closing(device, pd, func(ctx context.Context) error {
			_, err := device.NextEvent(ctx)
			return err
		})
	}
}
