package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/test/model"
)

var tokens = []string{"a", "b", "/", "a/", "//", "\x00", "\x00\xff", "é", "\xff"}

var sizes = []int{0, 100, store.DefaultInlineBytes, bufferBytes, chunkBytes, 3*chunkBytes + 1000}

// TestModel does random operations on the store and on a map.
func TestModel(t *testing.T) {
	f := newFixture(t)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		model.New(model.Options{
			Objects: f.direct, Uploads: f.direct, Prefix: fmt.Sprintf("%06d/", run),
			Tokens: tokens, Sizes: sizes, MinPart: minPart,
			Settle: f.settle,
		}).Run(rt)
	})
	f.emptyBucket(t)
}

// emptyBucket deletes everything and checks that no chunk is left.
func (f *fixture) emptyBucket(t *testing.T) {
	t.Helper()
	for {
		page, err := f.List(t.Context(), store.ListRequest{Bucket: bucket, Limit: 1000})
		check(t, err)
		for _, o := range page.Objects {
			check(t, f.Delete(t.Context(), store.DeleteRequest{Bucket: bucket, Key: o.Key}))
		}
		if !page.Truncated {
			break
		}
	}
	for {
		page, err := f.ListUploads(t.Context(), store.UploadListRequest{Bucket: bucket, Limit: 1000})
		check(t, err)
		for _, u := range page.Uploads {
			check(t, f.Abort(t.Context(), bucket, u.Key, u.ID))
		}
		if !page.Truncated {
			break
		}
	}
	f.collect(t)
	if n := f.chunkCount(t); n != 0 {
		t.Fatalf("%d chunks are left in an empty bucket", n)
	}
}

// TestModelConcurrent lets several clients work on one bucket, each below its own prefix, while
// garbage is collected.
func TestModelConcurrent(t *testing.T) {
	f := newFixture(t)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		// Every client gets its own sequence out of the one that rapid draws.
		seeds := rapid.SliceOfN(rapid.Uint64(), 4, 4).Draw(rt, "seeds")
		var clients sync.WaitGroup
		for i, seed := range seeds {
			clients.Go(func() {
				client := rapid.Custom(func(ct *rapid.T) bool {
					model.New(model.Options{
						Objects: f.direct, Uploads: f.direct, Prefix: fmt.Sprintf("%06d/%d/", run, i),
						Tokens: tokens, Sizes: sizes, MinPart: minPart,
						Settle: f.settle,
					}).Run(ct)
					return true
				})
				client.Example(int(seed >> 1))
			})
		}
		clients.Wait()
	})
	f.emptyBucket(t)
}

// settle collects garbage from any goroutine.
func (f *fixture) settle() {
	if _, err := f.garbage.RunOnce(context.Background()); err != nil {
		panic(err)
	}
}
