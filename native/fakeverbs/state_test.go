package fakeverbs_test

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, native.ErrVerbs) || !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// lenient options: the test looks at violations itself.
func lenient(o fakeverbs.Options) fakeverbs.Options {
	o.Lenient = true
	return o
}

// TestStates: the changes of state that ibv_modify_qp(3) has for RC, and no others; posts are refused before QPSend.
func TestStates(t *testing.T) {
	nic := fakeverbs.New(t, lenient(fakeverbs.Options{}))
	b := newEnd(t, nic, endOptions{memAccess: all})
	to := func(e *end, s native.QPState) error {
		switch s {
		case native.QPInit:
			return e.qp.Init(e.path)
		case native.QPReady:
			return e.qp.Receive(e.path, e.peer)
		case native.QPSend:
			return e.qp.Send(e.path, e.peer)
		case native.QPError:
			return e.qp.Fail()
		default:
			return e.qp.Reset()
		}
	}
	states := []native.QPState{native.QPReset, native.QPInit, native.QPReady, native.QPSend, native.QPError}
	legal := map[native.QPState][]native.QPState{
		native.QPReset: {native.QPReset, native.QPInit},
		native.QPInit:  {native.QPReset, native.QPInit, native.QPReady, native.QPError},
		native.QPReady: {native.QPReset, native.QPSend, native.QPError},
		native.QPSend:  {native.QPReset, native.QPError},
		native.QPError: {native.QPReset, native.QPError},
	}
	ways := map[native.QPState][]native.QPState{
		native.QPReset: {},
		native.QPInit:  {native.QPInit},
		native.QPReady: {native.QPInit, native.QPReady},
		native.QPSend:  {native.QPInit, native.QPReady, native.QPSend},
		native.QPError: {native.QPInit, native.QPError},
	}
	a := newEnd(t, nic, endOptions{memAccess: native.LocalWrite})
	a.meet(b)
	for _, from := range states {
		for _, next := range states {
			for _, s := range append([]native.QPState{native.QPReset}, ways[from]...) {
				if err := to(a, s); err != nil {
					t.Fatalf("on the way to %d, to %d: %v", from, s, err)
				}
			}
			n, err := a.qp.Post([]native.Work{write(1, a, b, 8)})
			if posted := from == native.QPSend || from == native.QPError; posted != (n == 1) {
				t.Errorf("post in state %d: %d %v", from, n, err)
			} else if !posted {
				wantErrno(t, "post", err, syscall.EINVAL)
			}
			err = to(a, next)
			if !slices.Contains(legal[from], next) {
				wantErrno(t, "change of state", err, syscall.EINVAL)
				a.state(from)
			} else if err != nil {
				t.Errorf("from %d to %d: %v", from, next, err)
			} else {
				a.state(next)
			}
		}
	}
}

// TestAttributes: each value that a change of state must not have is refused, and nothing changes.
func TestAttributes(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{{MTU: 2048, MaxReads: 8}}})
	a := newEnd(t, nic, endOptions{memAccess: all})
	a.meet(a)
	good, path := a.peer, a.path
	refuse := func(what string, err error) {
		t.Helper()
		wantErrno(t, what, err, syscall.EINVAL)
	}
	path.Port = 2
	refuse("port 2", a.qp.Init(path))
	if err := a.qp.Init(a.path); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*native.Path, *native.Peer){
		"mtu over the port's":  func(_ *native.Path, p *native.Peer) { p.MTU = 4096 },
		"no mtu":               func(_ *native.Path, p *native.Peer) { p.MTU = 1000 },
		"qpn of 25 bits":       func(_ *native.Path, p *native.Peer) { p.QPN = 1 << 24 },
		"psn of 25 bits":       func(_ *native.Path, p *native.Peer) { p.PSN = 1 << 24 },
		"empty GID index":      func(p *native.Path, _ *native.Peer) { p.GIDIndex = 9 },
		"GID index too large":  func(p *native.Path, _ *native.Peer) { p.GIDIndex = 99 },
		"no GID":               func(_ *native.Path, p *native.Peer) { p.GID = [16]byte{} },
		"more reads":           func(_ *native.Path, p *native.Peer) { p.Reads = 9 },
		"timer of six bits":    func(p *native.Path, _ *native.Peer) { p.MinRNRTimer = 32 },
		"port of another kind": func(p *native.Path, _ *native.Peer) { p.Port = 0 },
	} {
		path, peer := a.path, good
		change(&path, &peer)
		refuse(what, a.qp.Receive(path, peer))
		a.state(native.QPInit)
	}
	if err := a.qp.Receive(a.path, good); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*native.Path, *native.Peer){
		"own psn of 25 bits":   func(p *native.Path, _ *native.Peer) { p.PSN = 1 << 24 },
		"timeout of six bits":  func(p *native.Path, _ *native.Peer) { p.Timeout = 32 },
		"eight retries":        func(p *native.Path, _ *native.Peer) { p.Retries = 8 },
		"eight rnr retries":    func(p *native.Path, _ *native.Peer) { p.RNRRetries = 8 },
		"more reads than able": func(_ *native.Path, p *native.Peer) { p.Reads = 9 },
	} {
		path, peer := a.path, good
		change(&path, &peer)
		refuse(what, a.qp.Send(path, peer))
		a.state(native.QPReady)
	}
}

// TestDepth: a queue pair takes as many work requests as it is deep until completions are polled, whether they
// completed or not.
func TestDepth(t *testing.T) {
	nic := fakeverbs.New(t, lenient(fakeverbs.Options{}))
	b := newEnd(t, nic, endOptions{memAccess: all, qpAccess: native.RemoteWrite})
	a := newEnd(t, nic, endOptions{memAccess: native.LocalWrite, depth: 8})
	connect(a, b)
	var works []native.Work
	for i := range 10 {
		works = append(works, write(uint64(i), a, b, 8))
	}
	n, err := a.qp.Post(works)
	if n != 8 {
		t.Fatalf("posted %d", n)
	}
	wantErrno(t, "post", err, syscall.ENOMEM)
	nic.Await("all to be done", func() bool { return !nic.Busy() })
	if n, _ := a.qp.Post(works); n != 0 {
		t.Errorf("posted %d before a poll", n)
	}
	var two [2]native.Completion
	if n, err := a.cq.Poll(two[:]); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if n, _ := a.qp.Post(works); n != 2 {
		t.Errorf("posted %d after two were polled", n)
	}
	if len(nic.Violations()) != 3 {
		t.Errorf("violations: %q", nic.Violations())
	}
}

// TestOverrun: a completion queue without room is lost, with an event, and its queue pairs with it.
func TestOverrun(t *testing.T) {
	nic := fakeverbs.New(t, lenient(fakeverbs.Options{}))
	b := newEnd(t, nic, endOptions{memAccess: all, qpAccess: native.RemoteWrite})
	a := newEnd(t, nic, endOptions{memAccess: native.LocalWrite, cqDepth: 3})
	connect(a, b)
	for i := range 4 {
		a.post(write(uint64(i), a, b, 8))
	}
	if e, err := a.dev.NextEvent(t.Context()); err != nil || e.Type != native.EventDeviceFatal {
		t.Errorf("event %+v %v", e, err)
	}
	a.state(native.QPError)
	var list [8]native.Completion
	if _, err := a.cq.Poll(list[:]); !errors.Is(err, native.ErrVerbs) {
		t.Errorf("poll of a broken queue: %v", err)
	}
	if len(nic.Violations()) != 1 {
		t.Errorf("violations: %q", nic.Violations())
	}
}

// TestNotification: an event comes for what is added after arming, once.
func TestNotification(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	a, b := pair(t, nic)
	silent := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if err := a.cq.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	completed := func(n uint64) {
		t.Helper()
		nic.Await("a completion", func() bool { return nic.Counters().Completions == n })
	}
	a.post(write(1, a, b, 8))
	completed(1)
	silent("not armed")
	if err := a.cq.Arm(); err != nil {
		t.Fatal(err)
	}
	silent("armed after the completion")
	a.post(write(2, a, b, 8), write(3, a, b, 8))
	if err := a.cq.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	completed(3)
	silent("armed once")
	a.expect(a.poll(), ok(1), ok(2), ok(3))
}

// TestBusy: objects that others use are not destroyed.
func TestBusy(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	a, _ := pair(t, nic)
	for _, o := range []interface{ Close() error }{a.dev, a.pd, a.cq} {
		wantErrno(t, "close", o.Close(), syscall.EBUSY)
	}
	c := nic.Counters()
	if c.Contexts != 2 || c.PDs != 2 || c.CQs != 2 || c.Channels != 2 || c.QPs != 2 || c.MRs != 2 || c.Open() != 12 {
		t.Errorf("counters %+v", c)
	}
}

// TestLimits: a device makes as many objects as it says, and as deep.
func TestLimits(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{
		Devices: []fakeverbs.Device{{MaxQP: 1, MaxMR: 1, MaxCQDepth: 300, MaxQPDepth: 64}}})
	a := newEnd(t, nic, endOptions{memAccess: all})
	_, err := a.pd.NewQP(a.cq, native.PairOptions{Depth: 1})
	wantErrno(t, "second queue pair", err, syscall.ENOMEM)
	_, err = a.pd.Register(a.mem, 0)
	wantErrno(t, "second region", err, syscall.ENOMEM)
	_, err = a.dev.NewCQ(301)
	wantErrno(t, "deep queue", err, syscall.EINVAL)
	_, err = a.pd.NewQP(a.cq, native.PairOptions{Depth: 65})
	wantErrno(t, "deep queue pair", err, syscall.EINVAL)
	i := a.dev.Info()
	if i.MaxQP != 1 || i.MaxMR != 1 || i.MaxCQDepth != 300 || i.MaxQPDepth != 64 {
		t.Errorf("info %+v", i)
	}
}

// TestRegister: what ibv_reg_mr(3) refuses.
func TestRegister(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	a := newEnd(t, nic, endOptions{memAccess: all})
	_, err := a.pd.Register(a.mem, native.RemoteWrite)
	wantErrno(t, "remote write without local write", err, syscall.EINVAL)
	hole, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Munmap(hole); err != nil {
		t.Fatal(err)
	}
	_, err = a.pd.Register(hole, native.LocalWrite)
	wantErrno(t, "memory that is not there", err, syscall.EFAULT)
}
