package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/test/realnode"
)

func crashRounds() int {
	if long() {
		return 40
	}
	return 4
}

// TestCrash kills a node while clients of all paths work on shared keys and upload parts. After each
// restart the answers before and after must have an explanation in which an operation without an
// answer took effect before the kill or never, and every acknowledged part must be there.
func TestCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("kills real processes")
	}
	binary, dir := realnode.Build(t), t.TempDir()
	n := realnode.Start(t, binary, dir)
	defer func() { // also when a check has ended the test
		if err := n.Stop(); err != nil {
			t.Errorf("graceful end: %v", err)
		}
	}()
	first := realnode.Connect(t, n, client.HTTP, partBytes)
	if err := first.CreateBucket(t.Context(), "crash"); err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 5))
	l := newLoad(t, "crash", 6)
	ups := &uploads{bucket: "crash"}
	answered := 0
	for round := range crashRounds() {
		life := time.Duration(200+random.IntN(1200)) * time.Millisecond
		ok := crashRound(t, n, l, ups, seed+uint64(round), life)
		answered += ok
		l.crashed()
		n = realnode.Start(t, binary, dir)
		t.Run(fmt.Sprint("after ", round), func(t *testing.T) {
			l.t = t
			workers := crashWorkers(t, n, l, seed)
			l.check(l.held(t.Context(), workers))
			parts := ups.check(t, n, workers)
			t.Logf("killed after %v: %d operations answered, %d parts kept", life, ok, parts)
		})
		if t.Failed() {
			return
		}
	}
	if answered == 0 {
		t.Error("nothing was answered: the rounds show nothing")
	}
}

func crashWorkers(t *testing.T, n *bench.Node, l *load, seed uint64) []*worker {
	sizes := []int{0, 1000, 20 << 10, 200 << 10, 1 << 20, partBytes + 1000}
	var workers []*worker
	for i := range 2 * len(paths) {
		path := i % len(paths)
		c := realnode.Connect(t, n, paths[path], partBytes)
		t.Cleanup(func() { _ = c.Close() }) // its node may be dead, so fences may fail
		workers = append(workers, newWorker(l, c, path, sizes, seed+uint64(i)))
	}
	return workers
}

// crashRound runs the load, kills the node in the middle and returns how many operations were answered.
func crashRound(t *testing.T, n *bench.Node, l *load, ups *uploads, seed uint64, life time.Duration) (ok int) {
	t.Run("load", func(t *testing.T) {
		l.t = t
		workers := crashWorkers(t, n, l, seed)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for _, w := range workers {
			group.Go(func() {
				for ctx.Err() == nil && w.step(ctx) {
				}
			})
		}
		group.Go(func() { ups.run(ctx, endpointOf(n).sdk(t), workers[seed%uint64(len(workers))], seed) })
		<-time.NewTimer(life).C
		realnode.Kill(t, n)
		cancel()
		group.Wait()
		for _, w := range workers {
			ok += w.ok
		}
	})
	return ok
}

func endpointOf(n *bench.Node) endpoint { return endpoint{n.Endpoint, n.AccessKey, n.SecretKey} }

// oneUpload is a multipart upload whose parts are contents of its key.
type oneUpload struct {
	key, id string
	parts   []types.CompletedPart // acknowledged
	values  []uint64
	asked   bool // to be completed
}

// uploads are those of all rounds that are not settled yet.
type uploads struct {
	bucket string
	open   []*oneUpload
	made   int
}

// run makes uploads of up to three parts until ctx ends, and asks for the end of every second one.
func (u *uploads) run(ctx context.Context, sdk *awss3.Client, w *worker, seed uint64) {
	c := w.client
	region, err := c.Alloc(partBytes)
	if err != nil {
		w.t.Error(err)
		return
	}
	defer func() { _ = region.Close() }()
	random := rand.New(rand.NewPCG(seed, 6))
	for ctx.Err() == nil {
		u.made++
		one := &oneUpload{key: fmt.Sprintf("upload/%d", u.made)}
		out, err := sdk.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{Bucket: &u.bucket, Key: &one.key})
		if err != nil {
			continue
		}
		one.id = *out.UploadId
		u.open = append(u.open, one)
		for number := range 1 + random.IntN(3) {
			value := uint64(number + 1)
			contents(one.key, value, region.Bytes())
			name := client.PartName{Bucket: u.bucket, Key: one.key, UploadID: one.id, Number: number + 1}
			res, err := c.PutPart(ctx, region.All(), name)
			if err != nil {
				break
			}
			part := types.CompletedPart{PartNumber: aws.Int32(int32(number + 1)), ETag: aws.String(res.Object.ETag)}
			one.parts, one.values = append(one.parts, part), append(one.values, value)
		}
		if ctx.Err() == nil && len(one.parts) > 0 && random.IntN(2) == 0 {
			one.asked = true
			_ = u.complete(ctx, sdk, one) // whether it is answered or not, it can be repeated
		}
	}
}

func (u *uploads) complete(ctx context.Context, sdk *awss3.Client, one *oneUpload) error {
	_, err := sdk.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
		Bucket: &u.bucket, Key: &one.key, UploadId: &one.id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: one.parts},
	})
	return err
}

// check completes what was open, or repeats what was asked for, and compares every byte.
func (u *uploads) check(t *testing.T, n *bench.Node, workers []*worker) (parts int) {
	t.Helper()
	sdk := endpointOf(n).sdk(t)
	for i, one := range u.open {
		if len(one.parts) == 0 {
			continue
		}
		if !one.asked {
			list, err := sdk.ListParts(t.Context(), &awss3.ListPartsInput{
				Bucket: &u.bucket, Key: &one.key, UploadId: &one.id,
			})
			if err != nil || len(list.Parts) < len(one.parts) {
				t.Errorf("%s: %d parts were acknowledged, listed: %+v, %v", one.key, len(one.parts), list, err)
			}
		}
		if err := u.complete(t.Context(), sdk, one); err != nil {
			t.Errorf("complete %s with %d acknowledged parts: %v", one.key, len(one.parts), err)
			continue
		}
		parts += len(one.parts)
		w := workers[i%len(workers)]
		window := w.memory.window(len(one.parts) * partBytes)
		res, err := w.client.GetInto(t.Context(), window, u.bucket, one.key, client.GetOptions{})
		if err != nil {
			t.Errorf("read %s: %v", one.key, err)
			continue
		}
		got, want := w.memory.region.Bytes()[window.Offset:window.Offset+res.Bytes], []byte{}
		for _, value := range one.values {
			p := make([]byte, partBytes)
			contents(one.key, value, p)
			want = append(want, p...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s by %s: %d bytes are not those of its %d parts", one.key, res.Path, len(got), len(one.parts))
		}
		if err := w.memory.settle(window, res.Bytes); err != nil {
			t.Error(err)
		}
	}
	u.open = nil
	return parts
}

// TestMemoryOfManyReaders reads 1 GiB 64 times at once, by HTTP and by fabrics, and watches the memory
// of the node's process.
func TestMemoryOfManyReaders(t *testing.T) {
	if !long() {
		t.Skip("moves 64 GiB; PENSTOCK_TEST_LONG=1 runs it")
	}
	const size, window, readers, most = 1 << 30, 128 << 20, 64, 1 << 30
	n := realnode.Start(t, realnode.Build(t), t.TempDir())
	defer func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	}()
	var clients [len(paths)]*client.Client
	for i, f := range paths {
		clients[i] = endpointOf(n).connect(t, f)
	}
	if err := clients[0].CreateBucket(t.Context(), "memory"); err != nil {
		t.Fatal(err)
	}
	regions := map[int]*client.Region{}
	for i := 1; i < len(paths); i++ { // 4 GiB together
		r, err := clients[i].Alloc(readers / 4 * window)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		regions[i] = r
	}
	contents("key", 1, regions[2].Bytes()[:size])
	whole := regions[2].Window(0, size)
	if _, err := clients[2].PutFrom(t.Context(), whole, "memory", "key", client.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	peak := make(chan int64, 1)
	go func() { peak <- watchMemory(ctx, n.PID()) }()
	var group sync.WaitGroup
	for i := range readers {
		group.Go(func() {
			path := []int{0, 1, 0, 2}[i%4]
			if err := readAll(t.Context(), clients[path], regions[path], i/4*window, size, window); err != nil {
				t.Errorf("by %s: %v", paths[path], err)
			}
		})
	}
	group.Wait()
	stop()
	if got := <-peak; got == 0 || got >= most {
		t.Errorf("the node's own memory grew to %d bytes, want less than %d", got, most)
	} else {
		t.Logf("the node's own memory: at most %d MiB", got>>20)
	}
}

// readAll reads the object: over HTTP to nowhere, else by one window after the other.
func readAll(ctx context.Context, c *client.Client, r *client.Region, at, size, window int) error {
	if r == nil {
		s, err := c.Get(ctx, "memory", "key", client.GetOptions{})
		if err != nil {
			return err
		}
		defer s.Close()
		if n, err := io.Copy(io.Discard, s); err != nil || n != int64(size) {
			return fmt.Errorf("stream of %d bytes ended at %d: %w", s.Bytes, n, err)
		}
		return nil
	}
	for off := 0; off < size; off += window {
		w := r.Window(int64(at), int64(window))
		_, err := c.GetInto(ctx, w, "memory", "key", client.GetOptions{
			Range: &client.Range{Offset: int64(off), Bytes: int64(window)},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// watchMemory returns the most of VmRSS − RssShmem that it saw until ctx ended.
func watchMemory(ctx context.Context, pid int) (most int64) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		<-ticker.C
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0
		}
		var rss, shared int64
		for line := range strings.Lines(string(text)) {
			_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &rss) // other lines do not match
			_, _ = fmt.Sscanf(line, "RssShmem: %d kB", &shared)
		}
		most = max(most, (rss-shared)<<10)
	}
	return most
}
