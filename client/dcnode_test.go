package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
	"github.com/penstock-store/penstock/test/onenode"
)

// dcKey is the access key of these tests.
const dcKey = "0x1122334455667788"

// startDCNode is startRCNode with the dc fabric: adapter fake0 is the node's, fake1 and fake2 are for clients.
func startDCNode(t *testing.T, o fakeverbs.Options) *node {
	t.Helper()
	o.Devices = []fakeverbs.Device{{}, {}, {}}
	n := nodeOf(t, onenode.StartRC(t, o, func(c *config.Config) {
		c.RDMA.DC, c.RDMA.DCKey, c.RDMA.Devices = true, dcKey, []string{"fake0"}
	}))
	n.change = func(c *client.Config) { c.DCKey, c.RDMADevices = dcKey, []string{"fake1", "fake2"} }
	return n
}

func TestNodeEveryLengthOverDC(t *testing.T) {
	everyLength(t, startDCNode(t, fakeverbs.Options{}), []string{client.PathDC, client.PathHTTP})
}

func TestNodeRangesInBatchesOverDC(t *testing.T) {
	rangesInBatches(t, startDCNode(t, fakeverbs.Options{Seed: 1}), []string{client.PathDC})
}

// dcBucket has one object of n random bytes, and a region of its length holds them.
func dcBucket(t *testing.T, c *client.Client, n int64) *client.Region {
	t.Helper()
	if err := c.CreateBucket(t.Context(), "targets"); err != nil {
		t.Fatal(err)
	}
	r := alloc(t, c, n)
	copy(r.Bytes(), randomBytes(3, n))
	res, err := c.PutFrom(t.Context(), r.All(), "targets", "k", client.PutOptions{})
	if err != nil || res.Path != client.PathDC || !res.Verified {
		t.Fatalf("%+v %v", res, err)
	}
	return r
}

// TestDCNothingToMove: an object of no bytes needs no fabric, either way.
func TestDCNothingToMove(t *testing.T) {
	n := startDCNode(t, fakeverbs.Options{})
	c := n.client(client.PathDC, once)
	r := dcBucket(t, c, 100)
	res, err := c.PutFrom(t.Context(), r.Window(0, 0), "targets", "empty", client.PutOptions{})
	if err != nil || res.Reason != client.ReasonEmpty {
		t.Errorf("%+v %v", res, err)
	}
	res, err = c.GetInto(t.Context(), r.All(), "targets", "empty", client.GetOptions{})
	if err != nil || res.Bytes != 0 || res.Reason != client.ReasonEmpty || !bytes.Equal(r.Bytes(), randomBytes(3, 100)) {
		t.Errorf("%+v %v", res, err)
	}
}

// TestDCManyAtOnce: 1 to 16 goroutines of one client, each with windows of its own of one region, odd offsets.
func TestDCManyAtOnce(t *testing.T) {
	const size, margin = 300_001, 77
	n := startDCNode(t, fakeverbs.Options{Seed: 5, PacketTime: 100})
	c := n.client(client.PathDC, once)
	dcBucket(t, c, size)
	want := randomBytes(3, size)
	r := alloc(t, c, 16*(size+margin)+margin)
	for _, workers := range []int{1, 4, 16} {
		paint(r.Bytes(), 0xA5)
		var all sync.WaitGroup
		for w := range workers {
			at := int64(margin + w*(size+margin))
			all.Go(func() {
				for i := range 3 {
					win := r.Window(at, size)
					res, err := c.GetInto(t.Context(), win, "targets", "k", client.GetOptions{})
					if err != nil || res.Path != client.PathDC || !bytes.Equal(r.Bytes()[at:at+size], want) {
						t.Errorf("get: %+v %v", res, err)
					}
					key := fmt.Sprintf("%d/%d", w, i%2)
					res, err = c.PutFrom(t.Context(), win, "targets", key, client.PutOptions{})
					if err != nil || res.Path != client.PathDC || res.Object.Checksum != client.SumChecksum(want) {
						t.Errorf("put: %+v %v", res, err)
					}
				}
			})
		}
		all.Wait()
		for w := range workers + 1 {
			if gap := r.Bytes()[w*(size+margin):][:margin]; !painted(gap, 0xA5) {
				t.Errorf("%d workers: bytes between windows changed", workers)
			}
		}
	}
}

// TestDCRefusedTransfer: what the client's adapter refuses fails the request with its code, the region gets other keys,
// and the next request works. The targets stay. Nothing of the PUT is visible.
func TestDCRefusedTransfer(t *testing.T) {
	const size = 3<<20 + 5
	n := startDCNode(t, fakeverbs.Options{})
	c := n.client(client.PathDC, once)
	r := dcBucket(t, c, size)
	for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
		before := n.adapters.Counters()
		n.adapters.Inject(fakeverbs.Rule{
			At: fakeverbs.AtWork, Do: fakeverbs.Fail, Op: op, Skip: 1, Status: fakeverbs.RemoteAccess, Bytes: 4096,
		})
		var err error
		if op == native.OpWrite {
			_, err = c.GetInto(t.Context(), r.All(), "targets", "k", client.GetOptions{})
		} else {
			_, err = c.PutFrom(t.Context(), r.All(), "targets", "new", client.PutOptions{})
		}
		var s3err *client.Error
		if !errors.As(err, &s3err) || s3err.Code != "RDMATransferFailed" || r.Abandoned() {
			t.Errorf("operation %d: %v, abandoned %v", op, err, r.Abandoned())
		}
		n.untouched(r.Bytes(), func() {})
		res, err := c.GetInto(t.Context(), r.All(), "targets", "k", client.GetOptions{})
		if err != nil || res.Path != client.PathDC || !bytes.Equal(r.Bytes(), randomBytes(3, size)) {
			t.Errorf("operation %d: the next request: %+v %v", op, res, err)
		}
		if now := n.adapters.Counters(); now.MRs != before.MRs || now.QPs != before.QPs {
			t.Errorf("operation %d: %d registrations and %d queue pairs, before %d and %d", op, now.MRs, now.QPs, before.MRs,
				before.QPs)
		}
	}
	if _, err := c.Head(t.Context(), "targets", "new"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a failed PUT: %v", err)
	}
}

// untouched paints memory that is in other use now, and looks that nothing gets there.
func (n *node) untouched(mem []byte, release func()) {
	n.t.Helper()
	paint(mem, 0x5A)
	mark := n.adapters.Mark()
	release()
	n.adapters.Await("the node to let go", func() bool { return !n.adapters.Busy() })
	if touched := n.adapters.Touched(mem, mark); len(touched) != 0 || !painted(mem, 0x5A) {
		n.t.Errorf("memory was touched: %+v", touched)
	}
}

// TestRF_35_DCLatePackets: a GET that is given up while its payload is in the network; the packets come when the memory
// is in other use, under keys that are dead. Requests on other memory of the client go on (RF-35, RF-42).
func TestRF_35_DCLatePackets(t *testing.T) {
	const size = 2 << 20
	n := startDCNode(t, fakeverbs.Options{})
	c := n.client(client.PathDC, once)
	r := dcBucket(t, c, size)
	for range 2 {
		held := n.adapters.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold, Times: 64})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := c.GetInto(ctx, r.All(), "targets", "k", client.GetOptions{})
			ended <- err
		}()
		held.Await(1)
		cancel()
		if err := <-ended; !errors.Is(err, client.ErrNoAnswer) || errors.Is(err, client.ErrRegionAbandoned) {
			t.Fatalf("%v", err)
		}
		n.untouched(r.Bytes(), held.Release)
		res, err := c.GetInto(t.Context(), r.All(), "targets", "k", client.GetOptions{})
		if err != nil || res.Path != client.PathDC || !bytes.Equal(r.Bytes(), randomBytes(3, size)) {
			t.Errorf("the next request: %+v %v", res, err)
		}
	}
}

// TestDCFenceDisturbsNobody: while one request is given up, others on the same region go on to their good end, and
// those that come later do not wait for it.
func TestDCFenceDisturbsNobody(t *testing.T) {
	const size = 256 << 10
	n := startDCNode(t, fakeverbs.Options{})
	l := newLiar(t, n)
	c := n.client(client.PathDC, once, func(cfg *client.Config) { cfg.Endpoint = l.URL })
	dcBucket(t, c, size)
	want := randomBytes(3, size)
	r := alloc(t, c, 3*size)
	held := n.adapters.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold})
	slow := make(chan error, 1)
	go func() {
		_, err := c.GetInto(t.Context(), r.Window(0, size), "targets", "k", client.GetOptions{})
		slow <- err
	}()
	held.Await(1)
	none := make(chan struct{})
	close(none)
	l.tell(none, raw(""))
	failed := make(chan error, 1)
	go func() {
		_, err := c.GetInto(t.Context(), r.Window(size, size), "targets", "k", client.GetOptions{})
		failed <- err
	}()
	n.adapters.Await("the other transfer to be over", func() bool {
		return len(n.adapters.Touched(r.Bytes()[2*size-1:2*size], 0)) > 0
	})
	l.tell(nil, nil)
	l.passed.Wait()
	later := r.Window(2*size, size)
	res, err := c.GetInto(t.Context(), later, "targets", "k", client.GetOptions{})
	if err != nil || res.Path != client.PathDC || !bytes.Equal(r.Bytes()[2*size:], want) {
		t.Errorf("a later request: %+v %v", res, err)
	}
	select {
	case err := <-failed:
		t.Errorf("the fence did not wait for the transfer under way: %v", err)
	default:
	}
	held.Release()
	if err := <-slow; err != nil || !bytes.Equal(r.Bytes()[:size], want) {
		t.Errorf("the transfer under way: %v", err)
	}
	if err := <-failed; !errors.Is(err, client.ErrNoAnswer) || errors.Is(err, client.ErrRegionAbandoned) {
		t.Errorf("%v", err)
	}
}

// TestDCWrongKey: with another access key than the node's nothing arrives, and nothing is taken for moved.
func TestDCWrongKey(t *testing.T) {
	const size = 100_000
	n := startDCNode(t, fakeverbs.Options{})
	c := n.client(client.PathDC, once)
	dcBucket(t, c, size)
	wrong := n.client(client.PathDC, once, func(cfg *client.Config) { cfg.DCKey = "0x1122334455667789" })
	r := alloc(t, wrong, size)
	var s3err *client.Error
	_, err := wrong.GetInto(t.Context(), r.All(), "targets", "k", client.GetOptions{})
	if !errors.As(err, &s3err) || s3err.Code != "RDMATransferFailed" {
		t.Errorf("get: %v", err)
	}
	_, err = wrong.PutFrom(t.Context(), r.All(), "targets", "new", client.PutOptions{})
	if !errors.As(err, &s3err) || s3err.Code != "RDMATransferFailed" {
		t.Errorf("put: %v", err)
	}
	if !painted(r.Bytes(), 0) {
		t.Error("bytes arrived")
	}
	if _, err := c.Head(t.Context(), "targets", "new"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a failed PUT: %v", err)
	}
}

// TestDCPorts: a port that goes down is left; without any the client says so, and comes back with them.
func TestDCPorts(t *testing.T) {
	const size = 100_000
	n := startDCNode(t, fakeverbs.Options{})
	c := n.client(client.PathDC, once)
	r := dcBucket(t, c, size)
	get := func() error {
		t.Helper()
		clear(r.Bytes())
		res, err := c.GetInto(t.Context(), r.All(), "targets", "k", client.GetOptions{})
		if err == nil && (res.Path != client.PathDC || !bytes.Equal(r.Bytes(), randomBytes(3, size))) {
			t.Errorf("%+v", res)
		}
		return err
	}
	n.adapters.PortDown("fake1")
	inRow := 0
	n.soon("the port to be left", func() bool {
		if inRow++; get() != nil {
			inRow = 0
		}
		return inRow == 4
	})
	n.adapters.PortDown("fake2")
	var refused *client.DeclinedError
	n.soon("a decline", func() bool { return errors.As(get(), &refused) && refused.Reason == "port-down" })
	n.adapters.PortUp("fake2")
	n.soon("the port to be taken again", func() bool { return get() == nil })
}

func (n *node) soon(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(end) {
			n.t.Fatalf("not within 30 s: %s", what)
		}
		select {
		case <-n.t.Context().Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestDCToOthers: what this client sends to a server that it does not know: nothing but requests of S3, with a token of
// 81 characters.
func TestDCToOthers(t *testing.T) {
	const size = 5000
	n := startDCNode(t, fakeverbs.Options{})
	l := newLiar(t, n)
	var mu sync.Mutex
	var tokens []string
	seen := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if tok := r.Header.Get("X-Amz-Rdma-Token"); tok != "" {
			tokens = append(tokens, tok)
			if r.Header.Get("X-Amz-Content-Sha256") != "UNSIGNED-PAYLOAD" || r.ContentLength > 0 {
				t.Errorf("%s with %q", r.Method, r.Header)
			}
			if r.Method == http.MethodPut && r.Header.Get("X-Amz-Checksum-Crc64nvme") == "" ||
				r.Method == http.MethodGet && r.Header.Get("Range") == "" {
				t.Errorf("%s with %q", r.Method, r.Header)
			}
		} else if r.URL.Path == "/.penstock/fabric/v1" {
			t.Error("the control plane was asked")
		}
		mu.Unlock()
		l.forward.ServeHTTP(w, r)
	})
	l.Config.Handler = seen
	c := n.client(client.PathDC, once, func(cfg *client.Config) { cfg.Endpoint = l.URL })
	r := dcBucket(t, c, size)
	if _, err := c.GetInto(t.Context(), r.Window(7, 1000), "targets", "k", client.GetOptions{
		Range: &client.Range{Offset: 5, Bytes: 1000},
	}); err != nil || !bytes.Equal(r.Bytes()[7:1007], randomBytes(3, size)[5:1005]) {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(tokens) != 2 {
		t.Fatalf("%d tokens", len(tokens))
	}
	for _, tok := range tokens {
		if len(tok) != 81 {
			t.Errorf("a token of %d characters", len(tok))
		}
	}
}
