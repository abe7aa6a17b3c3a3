//go:build cgo

package native_test

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// faked makes a pair on a faked adapter.
func faked(t *testing.T, o fakeverbs.Options) (*fakeverbs.NIC, *pair) {
	t.Helper()
	nic := fakeverbs.New(t, o)
	d, port, gid := deviceOf(t, nic.Library())
	return nic, newPairOn(t, d, port, gid, all)
}

// TestRF_38_CallsThatFail: each call's errno comes through as an ErrVerbs with the call's name, nothing is left open,
// and the next try works.
func TestRF_38_CallsThatFail(t *testing.T) {
	nic, p := faked(t, fakeverbs.Options{})
	spare := p.newEnd(t, all, 0)
	memory := mapMemory(t, 4096)
	peer := native.Peer{QPN: p.far.qp.Number(), GID: p.gid.Raw, MTU: 1024, Reads: 1}
	closing := func(object interface{ Close() error }, err error) error {
		if err == nil {
			closes(t, object.Close())
		}
		return err
	}
	cases := []struct {
		at   fakeverbs.Point
		call string
		do   func() error
	}{
		{fakeverbs.AtOpenDevice, "ibv_open_device", func() error { return closing(nic.Library().OpenDevice("fake0")) }},
		{fakeverbs.AtQueryPort, "ibv_query_port", func() error { _, err := p.device.Port(1); return err }},
		{fakeverbs.AtAllocPD, "ibv_alloc_pd", func() error { return closing(p.device.NewPD()) }},
		{fakeverbs.AtRegMR, "ibv_reg_mr", func() error { return closing(p.pd.Register(memory, all)) }},
		{fakeverbs.AtCreateChannel, "ibv_create_comp_channel", func() error { return closing(p.device.NewCQ(8)) }},
		{fakeverbs.AtCreateCQ, "ibv_create_cq", func() error { return closing(p.device.NewCQ(8)) }},
		{fakeverbs.AtCreateQP, "ibv_create_qp", func() error {
			return closing(p.pd.NewQP(p.near.cq, native.PairOptions{Depth: 8}))
		}},
		{fakeverbs.AtInit, "ibv_modify_qp", func() error { return spare.qp.Init(spare.path) }},
		{fakeverbs.AtReceive, "ibv_modify_qp", func() error { return spare.qp.Receive(spare.path, peer) }},
		{fakeverbs.AtSend, "ibv_modify_qp", func() error { return spare.qp.Send(spare.path, peer) }},
		{fakeverbs.AtError, "ibv_modify_qp", func() error { return spare.qp.Fail() }},
		{fakeverbs.AtReset, "ibv_modify_qp", func() error { return spare.qp.Reset() }},
		{fakeverbs.AtNotify, "ibv_req_notify_cq", func() error { return p.near.cq.Arm() }},
		{fakeverbs.AtDestroyQP, "ibv_destroy_qp", func() error { return spare.qp.Close() }},
		{fakeverbs.AtDeregMR, "ibv_dereg_mr", func() error { return spare.mr.Close() }},
	}
	for _, c := range cases {
		for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EPERM} {
			open := nic.Counters().Open()
			fault := nic.Inject(fakeverbs.Rule{At: c.at, Errno: errno})
			err := c.do()
			var call *native.CallError
			if !errors.As(err, &call) || call.Call != c.call || !errors.Is(err, errno) || !errors.Is(err, native.ErrVerbs) {
				t.Errorf("%s %v: %v", c.call, errno, err)
			}
			if now := nic.Counters().Open(); now != open || fault.Hits() != 1 {
				t.Errorf("%s: %d objects, before %d; %d hits", c.call, now, open, fault.Hits())
			}
		}
		if err := c.do(); err != nil {
			t.Errorf("%s after its failures: %v", c.call, err)
		}
	}
}

// TestPostFails: of a batch the requests before the one refused are posted and complete, wherever that is.
func TestPostFails(t *testing.T) {
	nic, p := faked(t, fakeverbs.Options{})
	const count = 50 // two chains
	for at := range count {
		works := make([]native.Work, count)
		for i := range works {
			works[i] = p.work(uint64(i), native.OpWrite, i*8, 8)
		}
		// A rule takes Batch of a chain at its Skip-th hit: chains are of 32.
		nic.Inject(fakeverbs.Rule{At: fakeverbs.AtPost, Skip: at / 32, Batch: at % 32, Errno: syscall.EIO})
		n, err := p.near.qp.Post(works)
		if n != at || !errors.Is(err, syscall.EIO) {
			t.Fatalf("%d posted, want %d: %v", n, at, err)
		}
		for i := range at {
			p.near.want(uint64(i), native.StatusOK)
		}
	}
	p.near.take()
	if len(p.near.pending) != 0 {
		t.Errorf("completions of what was not posted: %v", p.near.pending)
	}
}

// TestPollFails: a failed poll is an error, and what completes is found by the next.
func TestPollFails(t *testing.T) {
	nic, p := faked(t, fakeverbs.Options{})
	nic.Inject(fakeverbs.Rule{At: fakeverbs.AtPoll, Errno: syscall.EIO})
	p.near.post(p.work(1, native.OpWrite, 0, 8))
	var got [4]native.Completion
	if n, err := p.near.cq.Poll(got[:]); n != 0 || !errors.Is(err, native.ErrVerbs) {
		t.Errorf("%d %v", n, err)
	}
	p.near.want(1, native.StatusOK)
}

// TestStatuses: each status of the library that an adapter gives comes as its kind, with the adapter's own word.
func TestStatuses(t *testing.T) {
	kinds := map[fakeverbs.Status]native.Status{
		fakeverbs.LocalLength: native.StatusLocal, fakeverbs.LocalOperation: native.StatusLocal,
		fakeverbs.LocalProtection: native.StatusLocal, fakeverbs.RemoteInvalid: native.StatusRemoteOther,
		fakeverbs.RemoteAccess: native.StatusRemoteAccess, fakeverbs.RemoteOperation: native.StatusRemoteOther,
		fakeverbs.RetryExceeded: native.StatusRetry, fakeverbs.RNRRetryExceeded: native.StatusRetry,
		fakeverbs.GeneralError: native.StatusOther, fakeverbs.FatalError: native.StatusOther,
	}
	for from, want := range kinds {
		nic, p := faked(t, fakeverbs.Options{})
		nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Status: from, Vendor: 77})
		p.near.post(p.work(1, native.OpWrite, 0, 8), p.work(2, native.OpWrite, 8, 8))
		if c := p.near.want(1, want); c.Vendor != 77 {
			t.Errorf("status %d: vendor %d", from, c.Vendor)
		}
		p.near.want(2, native.StatusFlushed)
	}
}

// TestShortRead: a READ that moved less than asked for says how much.
func TestShortRead(t *testing.T) {
	nic, p := faked(t, fakeverbs.Options{})
	nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Short, Bytes: 40})
	p.near.post(p.work(1, native.OpRead, 0, 100))
	if c := p.near.want(1, native.StatusOK); c.Bytes != 40 {
		t.Errorf("%d bytes", c.Bytes)
	}
}

// TestInfiniBand: on an InfiniBand port packets go by LID, and GIDs have that type.
func TestInfiniBand(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{{InfiniBand: true}}})
	d, port, gid := deviceOf(t, nic.Library())
	if port.Link != native.LinkInfiniBand || port.LID == 0 || gid.Type != native.GIDInfiniBand {
		t.Fatalf("port %+v", port)
	}
	p := newPairOn(t, d, port, gid, all)
	fill(p.near.memory, 1)
	p.near.post(p.work(1, native.OpWrite, 0, 5000))
	p.near.want(1, native.StatusOK)
	p.near.post(p.work(2, native.OpRead, 6000, 1))
	p.near.want(2, native.StatusOK)
	wantBytes(t, "far", p.far.memory[:5000], p.near.memory[:5000])
}

// TestCloseWaitsForCalls: what runs in the library when an object is closed ends first; the adapter's checks find a use
// of something destroyed.
func TestCloseWaitsForCalls(t *testing.T) {
	nic, p := faked(t, fakeverbs.Options{})
	e := p.newEnd(t, all, 0)
	holds := []struct {
		at     fakeverbs.Point
		call   func() error
		object interface{ Close() error }
	}{
		{fakeverbs.AtPost, func() error {
			_, err := p.near.qp.Post([]native.Work{p.work(1, native.OpWrite, 0, 1)})
			return err
		}, p.near.qp},
		{fakeverbs.AtInit, func() error { return e.qp.Init(e.path) }, e.qp},
		{fakeverbs.AtNotify, e.cq.Arm, e.cq},
	}
	for _, h := range holds {
		fault := nic.Inject(fakeverbs.Rule{At: h.at, Do: fakeverbs.Hold})
		called, closed := make(chan error, 1), make(chan error, 1)
		go func() { called <- h.call() }()
		fault.Await(1)
		go func() { closed <- h.object.Close() }()
		select {
		case err := <-closed:
			t.Errorf("closed during a call: %v", err)
		default:
		}
		fault.Release()
		if err := <-called; err != nil {
			t.Errorf("call: %v", err)
		}
		closes(t, <-closed)
	}
}

// TestManyAtOnce: posts, failures, resets, waits and closes by many goroutines; the race detector and the adapter's
// checks are the oracle.
func TestManyAtOnce(t *testing.T) {
	nic, p := faked(t, fakeverbs.Options{Lenient: true})
	var wg sync.WaitGroup
	for range 8 {
		e := p.newEnd(t, all, 0)
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			for e.cq.Wait(ctx) == nil {
			}
		})
		wg.Go(func() {
			var got [8]native.Completion
			for range 200 {
				if _, err := e.cq.Poll(got[:]); errors.Is(err, native.ErrClosed) {
					return
				}
				_ = e.cq.Arm()
			}
		})
		wg.Go(func() {
			for range 200 {
				if _, err := e.qp.Post([]native.Work{p.work(1, native.OpWrite, 0, 1)}); errors.Is(err, native.ErrClosed) {
					return
				}
			}
		})
		wg.Go(func() {
			for range 20 {
				_ = e.qp.Init(e.path)
				_ = e.qp.Fail()
				_ = e.qp.Reset()
			}
			for _, err := e.qp.State(); err == nil; _, err = e.qp.State() {
				_ = e.qp.Close()
			}
			closes(t, e.cq.Close())
			cancel()
		})
	}
	wg.Wait()
	if c := nic.Counters(); c.QPs != 2 || c.CQs != 2 {
		t.Errorf("left: %+v", c)
	}
}
