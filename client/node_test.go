package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/native/fakeverbs"
	"github.com/penstock-store/penstock/test/onenode"
)

// node is a real server in this process.
type node struct {
	t        *testing.T
	endpoint string
	metrics  string
	creds    client.Credentials
	stop     func()
	adapters *fakeverbs.NIC // faked ones, of node and clients
	change   func(*client.Config)
}

func startNode(t *testing.T) *node {
	t.Helper()
	return nodeOf(t, onenode.Start(t))
}

// startRCNode skips the test where there cannot be faked adapters.
func startRCNode(t *testing.T, o fakeverbs.Options) *node {
	t.Helper()
	return nodeOf(t, onenode.StartRC(t, o))
}

func nodeOf(t *testing.T, n *onenode.Node) *node {
	return &node{
		t: t, endpoint: n.Endpoint, metrics: n.Metrics, creds: n.Credentials, stop: n.Stop, adapters: n.Adapters,
	}
}

// client returns a client over one path, which never falls back.
func (n *node) client(path string, change ...func(*client.Config)) *client.Client {
	n.t.Helper()
	cfg := client.Config{
		Endpoint: n.endpoint, AWSRegion: "us-east-1", Credentials: n.creds, Fabric: client.Fabric(path),
		PartBytes: client.MinPartBytes, MultipartBytes: client.MinPartBytes,
	}
	if n.adapters != nil {
		cfg.Verbs = n.adapters.Library()
	}
	if n.change != nil {
		n.change(&cfg)
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := client.New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			n.t.Errorf("close client: %v", err)
		}
	})
	return c
}

func alloc(t *testing.T, c *client.Client, n int64) *client.Region {
	t.Helper()
	r, err := c.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close region: %v", err)
		}
	})
	return r
}

// paint fills the memory with one byte; painted tells whether it still holds nothing else.
func paint(mem []byte, v byte) {
	if len(mem) > 0 {
		mem[0] = v
		for n := 1; n < len(mem); n *= 2 {
			copy(mem[n:], mem[:n])
		}
	}
}

func painted(mem []byte, v byte) bool {
	return len(mem) == 0 || (mem[0] == v && bytes.Equal(mem[1:], mem[:len(mem)-1]))
}

func randomBytes(seed uint64, n int64) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// Every length around the limits of blocks, inline values, parts and chunks goes up and down over
// every path; the oracle is the bytes themselves, and the neighbours of the window.
func TestNodeEveryLengthOverEveryPath(t *testing.T) {
	everyLength(t, startNode(t), []string{client.PathSHM, client.PathTCP, client.PathHTTP})
}

func TestNodeEveryLengthOverRC(t *testing.T) {
	everyLength(t, startRCNode(t, fakeverbs.Options{}), []string{client.PathRC, client.PathHTTP})
}

func everyLength(t *testing.T, n *node, paths []string) {
	admin := n.client(client.PathHTTP)
	if err := admin.CreateBucket(t.Context(), "lengths"); err != nil {
		t.Fatal(err)
	}
	lengths := []int64{1, 15, 4095, 4096, 16 << 10, 16<<10 + 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 + 7,
		client.MinPartBytes, client.MinPartBytes + 1, 3*client.MinPartBytes - 1}
	const margin = 4096
	for _, put := range paths {
		cp := n.client(put)
		src := alloc(t, cp, lengths[len(lengths)-1])
		for i, length := range lengths {
			want := randomBytes(uint64(i), length)
			copy(src.Bytes(), want)
			key := fmt.Sprintf("%s/%d", put, length)
			res, err := cp.PutFrom(t.Context(), src.Window(0, length), "lengths", key, client.PutOptions{})
			if err != nil || res.Path != put || res.Bytes != length || !res.Verified {
				t.Fatalf("put %s: %+v %v", key, res, err)
			}
			if res.Object.Checksum != client.SumChecksum(want) {
				t.Errorf("put %s: checksum %s", key, res.Object.Checksum)
			}
		}
	}
	for _, get := range paths {
		cg := n.client(get)
		dst := alloc(t, cg, lengths[len(lengths)-1]+2*margin)
		for _, put := range paths {
			for i, length := range lengths {
				mem := dst.Bytes()
				paint(mem[:margin+length+margin], 0xA5)
				key := fmt.Sprintf("%s/%d", put, length)
				res, err := cg.GetInto(t.Context(), dst.Window(margin, length), "lengths", key, client.GetOptions{})
				if err != nil || res.Path != get || res.Bytes != length {
					t.Fatalf("get %s by %s: %+v %v", key, get, res, err)
				}
				if !bytes.Equal(mem[margin:margin+length], randomBytes(uint64(i), length)) {
					t.Errorf("get %s by %s: other bytes", key, get)
				}
				if !painted(mem[:margin], 0xA5) || !painted(mem[margin+length:][:margin], 0xA5) {
					t.Errorf("get %s by %s: bytes outside the window changed", key, get)
				}
			}
		}
	}
}

func TestNodeRangesInBatches(t *testing.T) {
	rangesInBatches(t, startNode(t), []string{client.PathSHM, client.PathTCP, client.PathHTTP})
}

func TestNodeRangesInBatchesOverRC(t *testing.T) {
	rangesInBatches(t, startRCNode(t, fakeverbs.Options{Seed: 1}), []string{client.PathRC})
}

func rangesInBatches(t *testing.T, n *node, paths []string) {
	for _, path := range paths {
		c := n.client(path)
		if err := c.CreateBucket(t.Context(), "ranges-"+path); err != nil {
			t.Fatal(err)
		}
		const size = 4 << 20
		whole := randomBytes(42, size)
		r := alloc(t, c, size)
		copy(r.Bytes(), whole)
		if _, err := c.PutFrom(t.Context(), r.All(), "ranges-"+path, "k", client.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		clear(r.Bytes())
		rng := rand.New(rand.NewPCG(1, 2))
		var reqs []client.GetRequest
		var at int64
		for at < size-70000 {
			n := 1 + rng.Int64N(65000)
			reqs = append(reqs, client.GetRequest{
				Window: r.Window(at, n), Bucket: "ranges-" + path, Key: "k",
				Options: client.GetOptions{Range: &client.Range{Offset: rng.Int64N(size - n), Bytes: n}},
			})
			at += n
		}
		for i, o := range c.GetMany(t.Context(), reqs, 8) {
			rq := reqs[i]
			want := whole[rq.Options.Range.Offset:][:rq.Options.Range.Bytes]
			got := r.Bytes()[rq.Window.Offset:][:rq.Window.Bytes]
			if o.Err != nil || o.Result.Path != path || !bytes.Equal(got, want) {
				t.Fatalf("%s %d: %+v %v", path, i, o.Result, o.Err)
			}
		}
	}
}

// After a cancelled call has returned, nothing changes its memory: the test fills a pattern and
// watches it while the server still has work (RF-35).
func TestRF_35_NodeCancelledReadsLeaveMemoryAlone(t *testing.T) {
	cancelledReads(t, startNode(t), []string{client.PathSHM, client.PathTCP})
}

func TestRF_35_NodeCancelledReadsOverRC(t *testing.T) {
	n := startRCNode(t, fakeverbs.Options{PacketTime: 2 * time.Microsecond, Latency: 20 * time.Microsecond})
	cancelledReads(t, n, []string{client.PathRC})
}

func cancelledReads(t *testing.T, n *node, paths []string) {
	for _, path := range paths {
		c := n.client(path, func(cfg *client.Config) { cfg.PartBytes = 64 << 20; cfg.MultipartBytes = 64 << 20 })
		bucket := "cancel-" + path
		if err := c.CreateBucket(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
		const size = 24 << 20
		r := alloc(t, c, size)
		copy(r.Bytes(), randomBytes(5, size))
		if _, err := c.PutFrom(t.Context(), r.All(), bucket, "k", client.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		cancelled := 0
		for i := range 12 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*100*time.Microsecond)
			_, err := c.GetInto(ctx, r.All(), bucket, "k", client.GetOptions{})
			cancel()
			if errors.Is(err, client.ErrRegionAbandoned) {
				t.Fatalf("%s: the node did not acknowledge a fence: %v", path, err)
			}
			if err == nil {
				continue
			}
			cancelled++
			mem := r.Bytes()
			paint(mem, 0x5A)
			ticker := time.NewTicker(5 * time.Millisecond)
			for range 6 {
				<-ticker.C
				if !painted(mem, 0x5A) {
					t.Fatalf("%s: memory changed after the call returned (%v)", path, err)
				}
			}
			ticker.Stop()
		}
		if cancelled == 0 {
			t.Errorf("%s: no call was cancelled in flight", path)
		}
		res, err := c.GetInto(t.Context(), r.All(), bucket, "k", client.GetOptions{})
		if err != nil || res.Path != path || !bytes.Equal(r.Bytes(), randomBytes(5, size)) {
			t.Errorf("%s: after the fences: %+v %v", path, res, err)
		}
	}
}

// A key that is revoked ends the sessions opened with it; the error is a refusal, not a decline.
func TestNodeRevokedKey(t *testing.T) { revokedKey(t, startNode(t), client.PathTCP) }

func TestNodeRevokedKeyOverRC(t *testing.T) {
	revokedKey(t, startRCNode(t, fakeverbs.Options{}), client.PathRC)
}

func revokedKey(t *testing.T, n *node, path string) {
	root := n.client(client.PathHTTP)
	if err := root.CreateBucket(t.Context(), "revoked"); err != nil {
		t.Fatal(err)
	}
	var key struct {
		AccessKey string `json:"access_key"`
		SecretKey string `json:"secret_key"`
	}
	err := root.Control(t.Context(), "POST", "/.penstock/admin/v1/keys", map[string]string{"principal": "root"}, &key)
	if err != nil {
		t.Fatal(err)
	}
	c := n.client(path, func(cfg *client.Config) {
		cfg.Credentials = client.Credentials{AccessKey: key.AccessKey, SecretKey: key.SecretKey}
	})
	r := alloc(t, c, 1<<20)
	if _, err := c.PutFrom(t.Context(), r.All(), "revoked", "k", client.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := root.Control(t.Context(), "DELETE", "/.penstock/admin/v1/keys/"+key.AccessKey, nil, nil); err != nil {
		t.Fatal(err)
	}
	_, err = c.GetInto(t.Context(), r.All(), "revoked", "k", client.GetOptions{})
	if !errors.Is(err, client.ErrAccessDenied) {
		t.Errorf("%v", err)
	}
}

// The server goes away: calls fail in bounded time, the client closes cleanly.
func TestNodeGone(t *testing.T) { nodeGone(t, startNode(t), client.PathSHM) }

func TestNodeGoneOverRC(t *testing.T) {
	nodeGone(t, startRCNode(t, fakeverbs.Options{}), client.PathRC)
}

func nodeGone(t *testing.T, n *node, path string) {
	c := n.client(path, func(cfg *client.Config) { cfg.MaxAttempts = 2 })
	if err := c.CreateBucket(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	r := alloc(t, c, 1<<20)
	if _, err := c.PutFrom(t.Context(), r.All(), "gone", "k", client.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	n.stop()
	if _, err := c.GetInto(t.Context(), r.All(), "gone", "k", client.GetOptions{}); err == nil {
		t.Error("a read succeeded without a server")
	}
}

func TestNodeUploadDownloadThroughSmallStages(t *testing.T) {
	smallStages(t, startNode(t), client.PathSHM)
}

func TestNodeUploadDownloadThroughSmallStagesOverRC(t *testing.T) {
	smallStages(t, startRCNode(t, fakeverbs.Options{}), client.PathRC)
}

func smallStages(t *testing.T, n *node, path string) {
	c := n.client(path)
	if err := c.CreateBucket(t.Context(), "stage"); err != nil {
		t.Fatal(err)
	}
	const size = 3*client.MinPartBytes + 777
	want := randomBytes(77, size)
	stage := alloc(t, c, client.MinPartBytes)
	name := client.ObjectName{Bucket: "stage", Key: "k"}
	for _, src := range []io.Reader{bytes.NewReader(want), struct{ io.Reader }{bytes.NewReader(want)}} {
		res, err := c.Upload(t.Context(), stage.All(), client.Source{Reader: src, Bytes: size}, name, client.PutOptions{})
		if err != nil || res.Parts != 4 || res.FabricBytes != size {
			t.Fatalf("%+v %v", res, err)
		}
		var got writerAt
		if res, err = c.Download(t.Context(), stage.All(), name, &got, client.GetOptions{Concurrency: 1}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) || res.Object.Checksum != client.SumChecksum(want) {
			t.Errorf("%+v: other bytes", res)
		}
	}
	for _, wrong := range []int64{size - 1, size + 1} {
		_, err := c.Upload(t.Context(), stage.All(), client.Source{Reader: bytes.NewReader(want), Bytes: wrong},
			client.ObjectName{Bucket: "stage", Key: "wrong"}, client.PutOptions{})
		if err == nil {
			t.Errorf("a source of %d bytes passed for %d", size, wrong)
		}
	}
	if _, err := c.Head(t.Context(), "stage", "wrong"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a broken source left an object: %v", err)
	}
}

type writerAt []byte

func (w *writerAt) WriteAt(p []byte, off int64) (int, error) {
	if need := int(off) + len(p); need > len(*w) {
		*w = append(*w, make([]byte, need-len(*w))...)
	}
	return copy((*w)[off:], p), nil
}

func TestNodeConditionsListingAndCopies(t *testing.T) {
	n := startNode(t)
	c := n.client(client.PathTCP)
	ctx := t.Context()
	if err := c.CreateBucket(ctx, "objects"); err != nil {
		t.Fatal(err)
	}
	r := alloc(t, c, 100)
	once := client.PutOptions{Conditions: client.Conditions{IfNoneMatch: "*"}, ContentType: "text/plain",
		Metadata: map[string]string{"colour": "blue"}}
	put, err := c.PutFrom(ctx, r.All(), "objects", "a b/ü+%", once)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.PutFrom(ctx, r.All(), "objects", "a b/ü+%", once); !errors.Is(err, client.ErrPrecondition) {
		t.Errorf("second conditional create: %v", err)
	}
	info, err := c.Head(ctx, "objects", "a b/ü+%")
	if err != nil || info.Bytes != 100 || info.ETag != put.Object.ETag || info.ContentType != "text/plain" ||
		info.Metadata["colour"] != "blue" {
		t.Errorf("%+v %v", info, err)
	}
	_, err = c.GetInto(ctx, r.All(), "objects", "a b/ü+%",
		client.GetOptions{Conditions: client.Conditions{IfNoneMatch: info.ETag}})
	if !errors.Is(err, client.ErrNotModified) {
		t.Errorf("If-None-Match: %v", err)
	}
	_, err = c.GetInto(ctx, r.All(), "objects", "a b/ü+%", client.GetOptions{Conditions: client.Conditions{IfMatch: "x"}})
	if !errors.Is(err, client.ErrPrecondition) {
		t.Errorf("If-Match: %v", err)
	}
	if _, err := c.CopyObject(ctx, client.ObjectName{Bucket: "objects", Key: "a b/ü+%"},
		client.ObjectName{Bucket: "objects", Key: "copy"}); err != nil {
		t.Errorf("copy: %v", err)
	}
	for i := range 25 {
		src := client.Source{Reader: strings.NewReader("x"), Bytes: 1}
		if _, err := c.PutReader(ctx, src, "objects", fmt.Sprintf("many/%02d", i), client.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var keys []string
	for e, err := range c.List(ctx, "objects", client.ListOptions{Delimiter: "/", PageKeys: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	if !slices.Equal(keys, []string{"a b/", "copy", "many/"}) {
		t.Errorf("listing %q", keys)
	}
	var all []string
	for e, err := range c.List(ctx, "objects", client.ListOptions{PageKeys: 7}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Key)
	}
	if len(all) != 27 || !slices.IsSorted(all) {
		t.Errorf("%d keys: %q", len(all), all)
	}
	failures, err := c.DeleteMany(ctx, "objects", all)
	if err != nil || len(failures) != 0 {
		t.Errorf("delete: %v %v", failures, err)
	}
	if err := c.DeleteBucket(ctx, "objects"); err != nil {
		t.Error(err)
	}
}
