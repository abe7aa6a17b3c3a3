package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// rcBucket has one object of n random bytes, and a region of its length holds them.
func rcBucket(t *testing.T, c *client.Client, n int64) *client.Region {
	t.Helper()
	if err := c.CreateBucket(t.Context(), "rails"); err != nil {
		t.Fatal(err)
	}
	r := alloc(t, c, n)
	copy(r.Bytes(), randomBytes(3, n))
	res, err := c.PutFrom(t.Context(), r.All(), "rails", "k", client.PutOptions{})
	if err != nil || res.Path != client.PathRC {
		t.Fatalf("%+v %v", res, err)
	}
	return r
}

func once(cfg *client.Config) {
	cfg.MaxAttempts, cfg.PartBytes, cfg.MultipartBytes = 1, 64<<20, 64<<20
}

// TestRCFailureCostsTheSessionOnly: what the client's adapter refuses fails the request with its code, after a fence;
// the next one opens a session and works, both ways. Nothing of the PUT is visible.
func TestRCFailureCostsTheSessionOnly(t *testing.T) {
	const size = 3<<20 + 5
	n := startRCNode(t, fakeverbs.Options{})
	c := n.client(client.PathRC, once)
	r := rcBucket(t, c, size)
	for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
		n.adapters.Inject(fakeverbs.Rule{
			At: fakeverbs.AtWork, Do: fakeverbs.Fail, Op: op, Skip: 1, Status: fakeverbs.RemoteAccess, Bytes: 4096,
		})
		before := n.adapters.Counters()
		var err error
		if op == native.OpWrite {
			_, err = c.GetInto(t.Context(), r.All(), "rails", "k", client.GetOptions{})
		} else {
			_, err = c.PutFrom(t.Context(), r.All(), "rails", "new", client.PutOptions{})
		}
		var s3err *client.Error
		if !errors.As(err, &s3err) || s3err.Code != "RDMATransferFailed" || r.Abandoned() {
			t.Errorf("operation %d: %v, abandoned %v", op, err, r.Abandoned())
		}
		paint(r.Bytes(), 0xA5)
		mark := n.adapters.Mark()
		n.adapters.Await("the node to let go", func() bool { return !n.adapters.Busy() })
		if touched := n.adapters.Touched(r.Bytes(), mark); len(touched) != 0 || !painted(r.Bytes(), 0xA5) {
			t.Errorf("operation %d: memory was touched afterwards: %+v", op, touched)
		}
		res, err := c.GetInto(t.Context(), r.All(), "rails", "k", client.GetOptions{})
		if err != nil || res.Path != client.PathRC || !bytes.Equal(r.Bytes(), randomBytes(3, size)) {
			t.Errorf("operation %d: the next request: %+v %v", op, res, err)
		}
		// Queue pairs are not compared: those of the session that ended may still be on their way out.
		if now := n.adapters.Counters(); now.MRs != before.MRs || now.PDs != before.PDs {
			t.Errorf("operation %d: %d registrations and %d domains, before %d and %d", op, now.MRs, now.PDs, before.MRs,
				before.PDs)
		}
	}
	if _, err := c.Head(t.Context(), "rails", "new"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a failed PUT: %v", err)
	}
}

// TestRF_35_RCLatePackets: a GET that is given up while its payload is in the network; the packets come when the
// memory is in other use (RF-35, RF-42).
func TestRF_35_RCLatePackets(t *testing.T) {
	const size = 2 << 20
	n := startRCNode(t, fakeverbs.Options{})
	c := n.client(client.PathRC, once)
	r := rcBucket(t, c, size)
	for range 3 {
		held := n.adapters.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold, Times: fakeverbs.Always})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := c.GetInto(ctx, r.All(), "rails", "k", client.GetOptions{})
			ended <- err
		}()
		held.Await(1)
		cancel()
		if err := <-ended; !errors.Is(err, client.ErrNoAnswer) || errors.Is(err, client.ErrRegionAbandoned) {
			t.Fatalf("%v", err)
		}
		paint(r.Bytes(), 0x5A)
		mark := n.adapters.Mark()
		dropped := n.adapters.Counters().Dropped
		held.Release()
		n.adapters.Await("late packets", func() bool { return n.adapters.Counters().Dropped > dropped })
		n.adapters.Await("the node to let go", func() bool { return !n.adapters.Busy() })
		if touched := n.adapters.Touched(r.Bytes(), mark); len(touched) != 0 || !painted(r.Bytes(), 0x5A) {
			t.Errorf("memory was touched: %+v", touched)
		}
		res, err := c.GetInto(t.Context(), r.All(), "rails", "k", client.GetOptions{})
		if err != nil || res.Path != client.PathRC || !bytes.Equal(r.Bytes(), randomBytes(3, size)) {
			t.Errorf("the next request: %+v %v", res, err)
		}
	}
}

// TestRCGoesOnWithoutARail: ports go down and up under load; every transfer ends well, by rc, with its own bytes.
func TestRCGoesOnWithoutARail(t *testing.T) {
	const size, workers = 1<<20 + 3, 4
	n := startRCNode(t, fakeverbs.Options{PacketTime: 100})
	defer http.DefaultClient.CloseIdleConnections()
	c := n.client(client.PathRC, once)
	rcBucket(t, c, size)
	want := randomBytes(3, size)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	moved := make(chan struct{}, workers)
	for w := range workers {
		r := alloc(t, c, size)
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				clear(r.Bytes())
				res, err := c.GetInto(t.Context(), r.All(), "rails", "k", client.GetOptions{})
				if err != nil || res.Path != client.PathRC || !bytes.Equal(r.Bytes(), want) {
					t.Errorf("get: %+v %v", res, err)
				}
				res, err = c.PutFrom(t.Context(), r.All(), "rails", fmt.Sprintf("%d/%d", w, i%2), client.PutOptions{})
				if err != nil || res.Path != client.PathRC {
					t.Errorf("put: %+v %v", res, err)
				}
				moved <- struct{}{}
			}
		})
	}
	few := func() {
		for range 2 * workers {
			<-moved
		}
	}
	for range 2 {
		for _, device := range []string{"fake0", "fake1"} {
			few()
			n.adapters.PortDown(device)
			few()
			n.adapters.PortUp(device)
			n.adapters.Await("both rails", func() bool { return n.rails() == 2 }) // the node tries a rail before it uses it
		}
	}
	stop()
	go func() {
		for range moved {
		}
	}()
	all.Wait()
	close(moved)
}

// rails counts the node's rails that are up and have a path.
func (n *node) rails() int {
	up, err1 := bench.Counters(n.t.Context(), n.metrics, "penstock_rdma_rail_up")
	paths, err2 := bench.Counters(n.t.Context(), n.metrics, "penstock_rdma_paths")
	if err := errors.Join(err1, err2); err != nil {
		n.t.Fatal(err)
	}
	count := 0
	for rail := range up {
		if up[rail] == 1 && paths[rail] > 0 {
			count++
		}
	}
	return count
}

// TestRCMemoryThatCannotBePinned: the request says why, and auto goes on with tcp.
func TestRCMemoryThatCannotBePinned(t *testing.T) {
	n := startRCNode(t, fakeverbs.Options{})
	c := n.client(client.PathRC)
	rcBucket(t, c, 100_000)
	n.adapters.Inject(fakeverbs.Rule{At: fakeverbs.AtRegMR, Times: fakeverbs.Always, Errno: syscall.ENOMEM})
	late := alloc(t, c, 100_000)
	var refused *client.DeclinedError
	_, err := c.GetInto(t.Context(), late.All(), "rails", "k", client.GetOptions{})
	if !errors.As(err, &refused) || refused.Reason != client.ReasonMemlock {
		t.Errorf("%v", err)
	}
	// shm cannot be the answer for a heap that the node may not trace; where it may, it comes before rc.
	auto := n.client(string(client.Auto))
	r, err := auto.Register(make([]byte, 100_000))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	res, err := auto.GetInto(t.Context(), r.All(), "rails", "k", client.GetOptions{})
	if err != nil || res.Path == client.PathRC || !bytes.Equal(r.Bytes(), randomBytes(3, 100_000)) {
		t.Errorf("%+v %v", res, err)
	}
}
