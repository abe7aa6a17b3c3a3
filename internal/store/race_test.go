package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/test/model"
)

// all runs fn n times at once.
func all(n int, fn func(i int)) {
	var group sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		group.Go(func() {
			<-start
			fn(i)
		})
	}
	close(start)
	group.Wait()
}

// TestS3_68_ConditionalCreate: of 64 clients that create a key if it does not exist, one wins.
func TestS3_68_ConditionalCreate(t *testing.T) {
	f := newFixture(t)
	for _, size := range []int{10, 2 * store.DefaultInlineBytes} {
		key := fmt.Sprint("key-", size)
		var winner atomic.Int64
		winner.Store(-1)
		all(64, func(i int) {
			body := pattern(size, byte(i))
			_, err := f.direct.Put(t.Context(), model.Put{Key: key, Body: body, IfNoneMatch: "*"})
			switch {
			case err == nil:
				if !winner.CompareAndSwap(-1, int64(i)) {
					t.Errorf("%d won besides %d", i, winner.Load())
				}
			case !errors.Is(err, store.ErrPrecondition) && !errors.Is(err, store.ErrConditionConflict):
				t.Errorf("%d lost with %v", i, err)
			}
		})
		if w := winner.Load(); w < 0 || !bytes.Equal(f.get(t, key), pattern(size, byte(w))) {
			t.Fatalf("the object is not the winner's, %d", w)
		}
	}
	f.collect(t)
	if n := f.chunkCount(t); n != 1 {
		t.Fatalf("%d chunks, want the winner's", n)
	}
}

// TestConditionalReplace: of 16 clients that replace the version they saw, one wins.
func TestConditionalReplace(t *testing.T) {
	f := newFixture(t)
	etag, err := f.direct.Put(t.Context(), model.Put{Key: "key", Body: []byte("before")})
	check(t, err)
	var won atomic.Int64
	all(16, func(i int) {
		_, err := f.direct.Put(t.Context(), model.Put{Key: "key", Body: pattern(9, byte(i)), IfMatch: `"` + etag + `"`})
		if err == nil {
			won.Add(1)
		} else if !errors.Is(err, store.ErrPrecondition) && !errors.Is(err, store.ErrConditionConflict) {
			t.Errorf("lost with %v", err)
		}
	})
	if won.Load() != 1 {
		t.Fatalf("%d clients won", won.Load())
	}
}

// upload starts an upload with the parts 1..n, each of minPart bytes.
func (f *fixture) upload(t testing.TB, key string, n int) (id string, list []model.Part) {
	t.Helper()
	id, err := f.direct.Create(t.Context(), key, "")
	check(t, err)
	for i := range n {
		p := model.Part{Number: i + 1, Body: pattern(minPart, byte(i))}
		p.ETag, err = f.direct.PutPart(t.Context(), key, id, p)
		check(t, err)
		list = append(list, model.Part{Number: p.Number, ETag: p.ETag})
	}
	return id, list
}

// TestCompleteAgainstAbort: one of them wins, and nothing is left behind either way.
func TestCompleteAgainstAbort(t *testing.T) {
	f := newFixture(t)
	for round := range 20 {
		key := fmt.Sprint("key-", round)
		id, list := f.upload(t, key, 3)
		var errs [2]error
		all(2, func(i int) {
			if i == 0 {
				_, errs[0] = f.direct.Complete(t.Context(), key, id, list)
			} else {
				errs[1] = f.direct.Abort(t.Context(), key, id)
			}
		})
		for _, err := range errs {
			if err != nil && !errors.Is(err, store.ErrNoSuchUpload) {
				t.Fatal(err)
			}
		}
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("complete: %v, abort: %v", errs[0], errs[1])
		}
		if exists := f.get(t, key) != nil; exists != (errs[0] == nil) {
			t.Fatalf("object exists: %v, complete: %v", exists, errs[0])
		}
	}
	f.emptyBucket(t)
}

// TestCompleteAgainstPutPart: the object has the part that was listed, or Complete fails since it was
// replaced; a part that comes too late is refused, and no chunk is lost or left.
func TestCompleteAgainstPutPart(t *testing.T) {
	f := newFixture(t)
	for round := range 20 {
		key := fmt.Sprint("key-", round)
		id, list := f.upload(t, key, 2)
		var completed error
		all(5, func(i int) {
			if i == 0 {
				_, completed = f.direct.Complete(t.Context(), key, id, list)
				return
			}
			p := model.Part{Number: 1 + i%3, Body: pattern(minPart, byte(100+i))}
			_, err := f.direct.PutPart(t.Context(), key, id, p)
			if err != nil && !errors.Is(err, store.ErrNoSuchUpload) {
				t.Errorf("put part: %v", err)
			}
		})
		want := append(pattern(minPart, 0), pattern(minPart, 1)...)
		switch {
		case completed == nil:
			if !bytes.Equal(f.get(t, key), want) {
				t.Fatal("the object does not consist of the listed parts")
			}
		case errors.Is(completed, store.ErrInvalidPart):
			if f.get(t, key) != nil {
				t.Fatal("an object came out of a Complete that failed")
			}
		default:
			t.Fatal(completed)
		}
	}
	f.emptyBucket(t)
}

// TestDeleteBucketAgainstPut: a bucket that is deleted has no object, and one made again under its name
// is empty.
func TestDeleteBucketAgainstPut(t *testing.T) {
	f := newFixture(t)
	const name = "other"
	direct := f.direct
	direct.Bucket = name
	for round := range 30 {
		_, err := f.CreateBucket(t.Context(), store.BucketInfo{Name: name, Owner: "root"})
		check(t, err)
		size := []int{10, 2 * store.DefaultInlineBytes}[round%2]
		var put, made, removed error
		var id string
		all(3, func(i int) {
			switch i {
			case 0:
				_, put = direct.Put(t.Context(), model.Put{Key: "key", Body: pattern(size, 1)})
			case 1:
				removed = f.DeleteBucket(t.Context(), name)
			case 2:
				id, made = direct.Create(t.Context(), "upload", "")
			}
		})
		if removed == nil {
			wantError(t, put, store.ErrNoSuchBucket)
			if made != nil {
				wantError(t, made, store.ErrNoSuchBucket)
			}
			_, err := f.CreateBucket(t.Context(), store.BucketInfo{Name: name, Owner: "root"})
			check(t, err)
			if made == nil {
				_, err := direct.PutPart(t.Context(), "upload", id, model.Part{Number: 1, Body: pattern(minPart, 1)})
				wantError(t, err, store.ErrNoSuchUpload)
			}
		} else {
			wantError(t, removed, store.ErrBucketNotEmpty)
			check(t, put)
			check(t, direct.Delete(t.Context(), "key"))
		}
		page, err := f.List(t.Context(), store.ListRequest{Bucket: name, Limit: 10})
		check(t, err)
		if len(page.Objects) != 0 {
			t.Fatalf("the bucket has %d objects", len(page.Objects))
		}
		check(t, f.DeleteBucket(t.Context(), name))
	}
	f.collect(t)
	if n := f.chunkCount(t); n != 0 {
		t.Fatalf("%d chunks are left", n)
	}
}

// TestOverwriteAgainstReader: a reader sees one whole version while the object is replaced and the
// garbage collected under it.
func TestOverwriteAgainstReader(t *testing.T) {
	f := newFixture(t)
	version := func(i int) []byte { return pattern(2*chunkBytes+i%7*bufferBytes+i, byte(i)) }
	f.put(t, "key", version(0))
	const writes = 60
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				f.settle()
			}
		}
	})
	for range 3 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				o, err := f.direct.Get(t.Context(), model.Get{Key: "key", Len: -1})
				if err != nil {
					t.Errorf("get: %v", err)
					return
				}
				whole := false
				for i := range writes + 1 {
					whole = whole || bytes.Equal(o.Body, version(i))
				}
				if !whole {
					t.Errorf("%d bytes are no version", len(o.Body))
					return
				}
			}
		})
	}
	for i := range writes {
		f.put(t, "key", version(i+1))
	}
	close(stop)
	others.Wait()
	f.emptyBucket(t)
}
