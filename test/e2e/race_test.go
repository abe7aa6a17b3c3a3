package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/test/model"
)

// racers are clients of every path with memory for several requests at a time.
type racers struct {
	*node
	t       *testing.T
	sdk     *awss3.Client
	clients [len(paths)]*client.Client
	regions [len(paths)]*client.Region
}

const (
	lanes     = 64      // requests at a time
	laneBytes = 2 << 20 // memory of each

	// spread is about what the longest of the racing requests takes.
	spread = 8 * time.Millisecond
)

func newRacers(t *testing.T, buckets ...string) *racers {
	t.Helper()
	r := &racers{node: startNode(t), t: t}
	r.sdk = r.node.sdk(t)
	for i, f := range paths {
		r.clients[i] = r.connect(t, f)
		region, err := r.clients[i].Alloc(lanes * laneBytes)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := region.Close(); err != nil {
				t.Errorf("close region: %v", err)
			}
		})
		r.regions[i] = region
	}
	for _, b := range buckets {
		if err := r.clients[0].CreateBucket(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// put stores size bytes of contents(key, value) through the memory of lane i, by the path of i.
func (r *racers) put(i int, bucket, key string, value uint64, size int, cond client.Conditions) (string, error) {
	p := i % len(paths)
	w := r.regions[p].Window(int64(i)*laneBytes, int64(size))
	contents(key, value, r.regions[p].Bytes()[w.Offset:w.Offset+w.Bytes])
	res, err := r.clients[p].PutFrom(r.t.Context(), w, bucket, key, client.PutOptions{Conditions: cond})
	return res.Object.ETag, err
}

// get reads the object by the path of lane i; 0: absent.
func (r *racers) get(i int, bucket, key string) (uint64, error) {
	p := i % len(paths)
	w := r.regions[p].Window(int64(i)*laneBytes, laneBytes)
	res, err := r.clients[p].GetInto(r.t.Context(), w, bucket, key, client.GetOptions{})
	if errors.Is(err, client.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return valueIn(key, r.regions[p].Bytes()[w.Offset:w.Offset+res.Bytes])
}

// together runs all functions at about the same time and returns their errors. Each begins at random
// within the spread, so that none is the first one always.
func together(spread time.Duration, tasks ...func() error) []error {
	errs := make([]error, len(tasks))
	start := make(chan struct{})
	var group sync.WaitGroup
	for i, task := range tasks {
		delay := time.NewTimer(rand.N(spread + 1))
		group.Go(func() {
			<-start
			<-delay.C
			errs[i] = task()
		})
	}
	close(start)
	group.Wait()
	return errs
}

func code(err error) string {
	var e *model.Error
	if err = coded(err); err == nil {
		return "OK"
	}
	if errors.As(err, &e) {
		return e.Code
	}
	return err.Error()
}

func repeats() int {
	switch {
	case long():
		return 100
	case testing.Short():
		return 3
	}
	return 10
}

// TestConditionalCreates lets 64 requests by all paths, multipart uploads among them, create one key.
func TestConditionalCreates(t *testing.T) {
	r := newRacers(t, "create")
	sizes := []int{100, 17 << 10, 100 << 10, 1<<20 + 5}
	for round := range len(sizes) * max(1, repeats()/5) {
		key, size := fmt.Sprintf("key %d", round), sizes[round%len(sizes)]
		var tasks []func() error
		for i := range lanes {
			if i%8 == 7 {
				id, parts := r.upload(i, "create", key, uint64(i+1), size)
				tasks = append(tasks, func() error { return r.complete("create", key, id, parts, aws.String("*")) })
				continue
			}
			tasks = append(tasks, func() error {
				_, err := r.put(i, "create", key, uint64(i+1), size, client.Conditions{IfNoneMatch: "*"})
				return err
			})
		}
		winner := uint64(0)
		for i, err := range together(0, tasks...) {
			switch c := code(err); {
			case c == "OK" && winner == 0:
				winner = uint64(i + 1)
			case c == "OK":
				t.Errorf("%d bytes: both %d and %d created the key", size, winner, i+1)
			case c != "PreconditionFailed" && c != "ConditionalRequestConflict":
				t.Errorf("%d bytes: request %d: %v", size, i+1, err)
			}
		}
		for i := range paths {
			got, err := r.get(i, "create", key)
			if err != nil || got != winner || winner == 0 {
				t.Errorf("%d bytes: %s reads what %d wrote (%v), the winner is %d", size, paths[i], got, err, winner)
			}
		}
	}
}

// upload creates an upload and stores contents(key, value) as its only part.
func (r *racers) upload(i int, bucket, key string, value uint64, size int) (string, []types.CompletedPart) {
	r.t.Helper()
	out, err := r.sdk.CreateMultipartUpload(r.t.Context(), &awss3.CreateMultipartUploadInput{Bucket: &bucket, Key: &key})
	if err != nil {
		r.t.Fatal(err)
	}
	etag, err := r.part(i, client.PartName{Bucket: bucket, Key: key, UploadID: *out.UploadId, Number: 1}, value, size)
	if err != nil {
		r.t.Fatal(err)
	}
	return *out.UploadId, []types.CompletedPart{{PartNumber: aws.Int32(1), ETag: &etag}}
}

func (r *racers) part(i int, name client.PartName, value uint64, size int) (string, error) {
	p := i % len(paths)
	w := r.regions[p].Window(int64(i)*laneBytes, int64(size))
	contents(name.Key, value, r.regions[p].Bytes()[w.Offset:w.Offset+w.Bytes])
	res, err := r.clients[p].PutPart(r.t.Context(), w, name)
	return res.Object.ETag, err
}

func (r *racers) complete(bucket, key, id string, parts []types.CompletedPart, ifNoneMatch *string) error {
	_, err := r.sdk.CompleteMultipartUpload(r.t.Context(), &awss3.CompleteMultipartUploadInput{
		Bucket: &bucket, Key: &key, UploadId: &id, IfNoneMatch: ifNoneMatch,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	return err
}

// TestCompleteAgainstAbort: either there is an object and no upload, or neither.
func TestCompleteAgainstAbort(t *testing.T) {
	r := newRacers(t, "abort")
	var won [2]int
	for round := range 4 * repeats() {
		key := fmt.Sprintf("key %d", round)
		id, parts := r.upload(round%lanes, "abort", key, 1, 100<<10)
		errs := together(spread,
			func() error { return r.complete("abort", key, id, parts, nil) },
			func() error {
				_, err := r.sdk.AbortMultipartUpload(t.Context(), &awss3.AbortMultipartUploadInput{
					Bucket: aws.String("abort"), Key: &key, UploadId: &id,
				})
				return err
			},
			func() error { return r.complete("abort", key, id, parts, nil) }, // a repeated one
		)
		got, err := r.get(round%lanes, "abort", key)
		if err != nil {
			t.Fatal(err)
		}
		want := map[uint64]string{0: "NoSuchUpload", 1: "OK"}[got]
		if first, again := code(errs[0]), code(errs[2]); first != want || again != want {
			t.Errorf("complete answers %s and %s, the object is %d", first, again, got)
		}
		if errs[1] != nil { // also when there is nothing to abort any more
			t.Errorf("abort: %v", errs[1])
		}
		won[got]++
		_, err = r.sdk.ListParts(t.Context(), &awss3.ListPartsInput{
			Bucket: aws.String("abort"), Key: &key, UploadId: &id,
		})
		if code(err) != "NoSuchUpload" {
			t.Errorf("the upload is still there: %v", err)
		}
	}
	t.Logf("abort won %d times, complete %d times", won[0], won[1])
}

// TestCompleteAgainstPart overwrites a part while it is made an object: exactly one of the two works,
// and the object has the bytes that the request to complete named.
func TestCompleteAgainstPart(t *testing.T) {
	r := newRacers(t, "part")
	var won [2]int
	for round := range 4 * repeats() {
		key := fmt.Sprintf("key %d", round)
		id, parts := r.upload(round%lanes, "part", key, 1, 100<<10)
		var etag string
		errs := together(spread,
			func() error { return r.complete("part", key, id, parts, nil) },
			func() (err error) {
				name := client.PartName{Bucket: "part", Key: key, UploadID: id, Number: 1}
				etag, err = r.part((round+1)%lanes, name, 2, 100<<10)
				return err
			},
		)
		want := uint64(1)
		switch c := [2]string{code(errs[0]), code(errs[1])}; c {
		case [2]string{"OK", "NoSuchUpload"}:
		case [2]string{"InvalidPart", "OK"}:
			want = 2
			parts[0].ETag = &etag
			if err := r.complete("part", key, id, parts, nil); err != nil {
				t.Errorf("complete with the new part: %v", err)
			}
		default:
			t.Errorf("complete and upload part answer %q", c)
		}
		won[want-1]++
		if got, err := r.get(round%lanes, "part", key); err != nil || got != want {
			t.Errorf("the object is %d (%v), want %d", got, err, want)
		}
	}
	t.Logf("complete won %d times, upload part %d times", won[0], won[1])
}

// TestDeleteBucketAgainstPut: a bucket goes only if no object is in it, and no object is acknowledged
// into a bucket that is gone.
func TestDeleteBucketAgainstPut(t *testing.T) {
	r := newRacers(t)
	var gone, stayed int
	for round := range 4 * repeats() {
		bucket := fmt.Sprintf("bucket-%d", round)
		if err := r.clients[0].CreateBucket(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
		tasks := []func() error{func() error { return r.clients[0].DeleteBucket(t.Context(), bucket) }}
		for i := range 4 {
			tasks = append(tasks, func() error {
				_, err := r.put(i, bucket, fmt.Sprintf("key %d", i), uint64(i+1), 16+i*(40<<10), client.Conditions{})
				return err
			})
		}
		errs := together(spread, tasks...)
		stored := 0
		for i, err := range errs[1:] {
			switch code(err) {
			case "OK":
				stored++
				if got, err := r.get(i, bucket, fmt.Sprintf("key %d", i)); err != nil || got != uint64(i+1) {
					t.Errorf("put %d was acknowledged, read back: %d, %v", i, got, err)
				}
			case "NoSuchBucket":
			default:
				t.Errorf("put %d: %v", i, err)
			}
		}
		switch c := code(errs[0]); {
		case c == "OK" && stored == 0:
			gone++
			if err := r.clients[0].CreateBucket(t.Context(), bucket); err != nil {
				t.Errorf("create again: %v", err)
			}
			for e, err := range r.clients[0].List(t.Context(), bucket, client.ListOptions{}) {
				t.Errorf("a new bucket lists %+v, %v", e, err)
			}
		case c == "BucketNotEmpty" && stored > 0:
			stayed++
			if stored != 4 {
				t.Errorf("the bucket stayed, %d of 4 objects were stored", stored)
			}
		default:
			t.Errorf("delete bucket answers %s with %d objects stored", c, stored)
		}
	}
	t.Logf("the bucket went %d times and stayed %d times", gone, stayed)
}

// TestOverwriteAgainstReader replaces an object again and again while clients of every path read it
// whole in three ranges each: a read is one whole version, or says that there is another one now.
func TestOverwriteAgainstReader(t *testing.T) {
	const size = 11 << 20
	n := startNode(t)
	c := n.connect(t, client.HTTP)
	if err := c.CreateBucket(t.Context(), "over"); err != nil {
		t.Fatal(err)
	}
	put := n.connect(t, client.SHM)
	source, err := put.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	store := func(value uint64) error {
		contents("key", value, source.Bytes())
		_, err := put.PutFrom(t.Context(), source.All(), "over", "key", client.PutOptions{})
		return err
	}
	if err := store(1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	var reads, changed [len(paths)]int
	for i, f := range paths {
		reader := n.connect(t, f)
		m := newMemory(t, reader, patternOf(size+8192), uint64(i))
		group.Go(func() {
			for ctx.Err() == nil {
				w := m.window(size)
				res, err := reader.GetInto(t.Context(), w, "over", "key", client.GetOptions{PartBytes: partBytes})
				switch {
				case err == nil:
					reads[i]++
					if _, err := valueIn("key", m.region.Bytes()[w.Offset:w.Offset+res.Bytes]); err != nil {
						t.Errorf("by %s: %v", f, err)
					}
				case errors.Is(err, client.ErrPrecondition):
					changed[i]++
				default:
					t.Errorf("by %s: %v", f, err)
				}
				if err := m.settle(w, w.Bytes); err != nil {
					t.Errorf("by %s: %v", f, err)
				}
			}
		})
	}
	for value := range 3 * repeats() {
		if err := store(uint64(value + 2)); err != nil {
			t.Error(err)
		}
	}
	cancel()
	group.Wait()
	t.Logf("whole reads %v, changed meanwhile %v", reads, changed)
}

// TestStreamKeepsItsVersion reads an object slowly over HTTP while it is replaced and deleted.
func TestStreamKeepsItsVersion(t *testing.T) {
	const size = 12 << 20 // more than sockets and buffers hold
	n := startNode(t)
	c := n.connect(t, client.SHM)
	if err := c.CreateBucket(t.Context(), "stream"); err != nil {
		t.Fatal(err)
	}
	r, err := c.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	contents("key", 1, r.Bytes())
	first := bytes.Clone(r.Bytes())
	if _, err := c.PutFrom(t.Context(), r.All(), "stream", "key", client.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := c.Get(t.Context(), "stream", "key", client.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := make([]byte, size)
	read := 0
	for step := range 4 {
		n, err := s.Read(got[read : read+1000])
		if read += n; err != nil {
			t.Fatal(err)
		}
		contents("key", uint64(step+2), r.Bytes())
		if _, err := c.PutFrom(t.Context(), r.All(), "stream", "key", client.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Delete(t.Context(), "stream", "key"); err != nil {
		t.Fatal(err)
	}
	rest := bytes.NewBuffer(got[:read])
	if _, err := rest.ReadFrom(s); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(rest.Bytes(), first) {
		t.Error("the stream is not the version that it began with")
	}
	if !strings.HasSuffix(s.Info.ETag, "-1") {
		t.Errorf("ETag %s of an object that came by a fabric", s.Info.ETag)
	}
}
