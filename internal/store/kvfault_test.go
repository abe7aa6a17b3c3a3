package store_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/test/model"
)

// counting is a kv engine whose n-th operation fails.
type counting struct {
	kv.Engine
	failAt atomic.Int64 // counts down; the operation that reaches 0 fails
}

func (c *counting) op() error {
	if c.failAt.Add(-1) == 0 {
		return errTest
	}
	return nil
}

func (c *counting) Snapshot(ctx context.Context) (kv.Snap, error) {
	if err := c.op(); err != nil {
		return nil, err
	}
	s, err := c.Engine.Snapshot(ctx)
	return countingSnap{countingReader{s, c}, s}, err
}

func (c *counting) Txn(ctx context.Context, fn func(kv.Tx) error) error {
	if err := c.op(); err != nil {
		return err
	}
	return c.Engine.Txn(ctx, func(tx kv.Tx) error { return fn(countingTx{countingReader{tx, c}, tx}) })
}

type countingReader struct {
	r kv.Reader
	c *counting
}

func (r countingReader) Get(ctx context.Context, key []byte) ([]byte, error) {
	if err := r.c.op(); err != nil {
		return nil, err
	}
	return r.r.Get(ctx, key)
}

func (r countingReader) Scan(
	ctx context.Context, from, to []byte, fn func(key, value []byte) (kv.Next, error),
) error {
	if err := r.c.op(); err != nil {
		return err
	}
	return r.r.Scan(ctx, from, to, fn)
}

type countingSnap struct {
	countingReader
	snap kv.Snap
}

func (s countingSnap) Close() error { return errors.Join(s.c.op(), s.snap.Close()) }

type countingTx struct {
	countingReader
	tx kv.Tx
}

func (t countingTx) Put(key, value []byte) error {
	if err := t.c.op(); err != nil {
		return err
	}
	return t.tx.Put(key, value)
}

func (t countingTx) Delete(key []byte) error {
	if err := t.c.op(); err != nil {
		return err
	}
	return t.tx.Delete(key)
}

func (t countingTx) Lock(ctx context.Context, key []byte, mode kv.LockMode) error {
	if err := t.c.op(); err != nil {
		return err
	}
	return t.tx.Lock(ctx, key, mode)
}

// method is one call of a method, on what prepare made.
type method func(f *fixture, id string) error

func everyMethod(ctx context.Context) map[string]method {
	large := pattern(3*chunkBytes, 1)
	completeAll := func(f *fixture, id string, n int) error {
		var list []model.Part
		for i := range n {
			number := 2*i + 1
			list = append(list, model.Part{Number: number, ETag: etagOf(pattern(minPart+i, byte(i)))})
		}
		_, err := f.direct.Complete(ctx, "parts", id, list)
		return err
	}
	return map[string]method{
		"create bucket": func(f *fixture, _ string) error {
			_, err := f.CreateBucket(ctx, store.BucketInfo{Name: "new"})
			return err
		},
		"delete bucket": func(f *fixture, _ string) error { return f.DeleteBucket(ctx, "uploads-only") },
		"head bucket": func(f *fixture, _ string) error {
			_, err := f.HeadBucket(ctx, bucket)
			return err
		},
		"list buckets": func(f *fixture, _ string) error {
			_, err := f.ListBuckets(ctx, store.ListBucketsRequest{})
			return err
		},
		"put": func(f *fixture, _ string) error {
			_, err := f.direct.Put(ctx, model.Put{Key: "large", Body: large, IfMatch: "*"})
			return err
		},
		"get": func(f *fixture, _ string) error {
			_, err := f.direct.Get(ctx, model.Get{Key: "large", Len: -1})
			return err
		},
		"get parts": func(f *fixture, _ string) error {
			_, err := f.direct.Get(ctx, model.Get{Key: "done", Len: -1})
			return err
		},
		"stat part": func(f *fixture, _ string) error {
			_, err := f.Stat(ctx, store.OpenRequest{Bucket: bucket, Key: "done", Part: 3})
			return err
		},
		"attributes": func(f *fixture, _ string) error {
			_, err := f.Attributes(ctx, store.AttributesRequest{Bucket: bucket, Key: "done", Limit: 9})
			return err
		},
		"delete": func(f *fixture, _ string) error { return f.direct.Delete(ctx, "large") },
		"copy":   func(f *fixture, _ string) error { _, err := f.direct.Copy(ctx, "done", "large"); return err },
		"list":   func(f *fixture, _ string) error { _, err := f.direct.List(ctx, model.List{Limit: 9}); return err },
		"create": func(f *fixture, _ string) error { _, err := f.direct.Create(ctx, "key", ""); return err },
		"upload": func(f *fixture, id string) error { _, err := f.Upload(ctx, bucket, "parts", id); return err },
		"abort":  func(f *fixture, id string) error { return f.Abort(ctx, bucket, "parts", id) },
		"part": func(f *fixture, id string) error {
			_, err := f.direct.PutPart(ctx, "parts", id, model.Part{Number: 1, Body: large})
			return err
		},
		"copy part": func(f *fixture, id string) error {
			_, err := f.CopyPart(ctx, store.CopyPartRequest{
				SourceBucket: bucket, SourceKey: "large", Len: -1,
				Bucket: bucket, Key: "parts", UploadID: id, Number: 1,
			})
			return err
		},
		"list parts": func(f *fixture, id string) error {
			_, err := f.ListParts(ctx, store.PartListRequest{Bucket: bucket, Key: "parts", UploadID: id, Limit: 9})
			return err
		},
		"list uploads": func(f *fixture, _ string) error {
			_, err := f.ListUploads(ctx, store.UploadListRequest{Bucket: bucket, Limit: 9})
			return err
		},
		"complete": func(f *fixture, id string) error { return completeAll(f, id, 2) },
		"complete with pages": func(f *fixture, id string) error {
			return completeAll(f, id, meta.RunsInHead+1)
		},
		"repeated complete": func(f *fixture, _ string) error {
			_, err := f.direct.Complete(ctx, "done", f.doneID, f.doneList)
			return err
		},
		"start": func(f *fixture, _ string) error {
			_, err := store.New(ctx, store.Options{KV: f.counting, Chunks: f.mem})
			return err
		},
	}
}

// TestEveryMetadataError fails every operation on the metadata of every method, one at a time. The error
// comes back, and what clients see is as before.
func TestEveryMetadataError(t *testing.T) {
	for name, act := range everyMethod(t.Context()) {
		t.Run(name, func(t *testing.T) {
			f := newFaultFixture(t)
			id := f.prepare(t)
			before := f.look(t)
			for n := int64(1); ; n++ {
				f.counting.failAt.Store(n)
				err := act(f, id)
				failed := f.counting.failAt.Swap(0) <= 0
				if !failed {
					check(t, err)
					t.Logf("%d operations", n-1)
					break
				}
				if n > 1000 {
					t.Fatal("no end")
				}
				if err == nil {
					continue // it was in cleaning up after a success
				}
				wantError(t, err, errTest)
				if after := f.look(t); after != before {
					t.Fatalf("operation %d failed, but\n%s\nbefore\n%s", n, after, before)
				}
			}
			f.collect(t)
		})
	}
}

func etagOf(body []byte) string {
	digest, _ := model.SealMD5(body)(context.Background(), store.Payload{})
	return digest.ETag
}

func newFaultFixture(t *testing.T) *fixture {
	f := newFixture(t)
	f.counting = &counting{Engine: f.kv}
	f.start(t, f.mem, func(o *store.Options) { o.KV = f.counting })
	return f
}

// prepare makes something of everything, and returns an open upload of odd parts of different sizes.
func (f *fixture) prepare(t *testing.T) (id string) {
	t.Helper()
	f.put(t, "large", pattern(2*chunkBytes, 7))
	f.put(t, "parts", []byte("before"))
	var err error
	f.doneID, f.doneList = f.upload(t, "done", 3)
	f.doneList = f.doneList[1:]
	_, err = f.direct.Complete(t.Context(), "done", f.doneID, f.doneList)
	check(t, err)
	_, err = f.CreateBucket(t.Context(), store.BucketInfo{Name: "uploads-only"})
	check(t, err)
	other := f.direct
	other.Bucket = "uploads-only"
	_, err = other.Create(t.Context(), "key", "")
	check(t, err)
	id, err = f.direct.Create(t.Context(), "parts", "")
	check(t, err)
	for i := range meta.RunsInHead + 1 {
		p := model.Part{Number: 2*i + 1, Body: pattern(minPart+i, byte(i))}
		_, err := f.direct.PutPart(t.Context(), "parts", id, p)
		check(t, err)
	}
	_, err = f.direct.PutPart(t.Context(), "parts", id, model.Part{Number: 9999, Body: []byte("not listed")})
	check(t, err)
	return id
}

// look is what clients see, as text.
func (f *fixture) look(t *testing.T) string {
	t.Helper()
	m := &machine{store: f.Store, direct: f.direct}
	text, err := m.look(t.Context())
	check(t, err)
	page, err := f.ListBuckets(t.Context(), store.ListBucketsRequest{})
	check(t, err)
	for _, b := range page.Buckets {
		text += "\nbucket " + b.Name
	}
	return text
}

// TestCorruptRecords: records that do not fit together are reported as that.
func TestCorruptRecords(t *testing.T) {
	id := make([]byte, 16)
	ref := &metapb.Chunk{Id: id, Length: 100}
	version := func(change func(v *metapb.Version)) meta.Head {
		v := &metapb.Version{Size: 100, Payload: &metapb.Payload{Owner: id, Chunks: []*metapb.Chunk{ref}}}
		change(v)
		return meta.Head{Head: &metapb.Head{Current: v}, Inline: make([]byte, 100)}
	}
	chunkOf := func(c *metapb.Chunk) meta.Head {
		return version(func(v *metapb.Version) { v.Payload.Chunks[0] = c })
	}
	manifest := func(m *metapb.Manifest) meta.Head {
		return version(func(v *metapb.Version) { v.Payload, v.Manifest = nil, m })
	}
	for name, head := range map[string]meta.Head{
		"no version":     {Head: &metapb.Head{}},
		"wrong sum":      version(func(v *metapb.Version) { v.Payload, v.Crc64Nvme = nil, 1 }),
		"inline length":  version(func(v *metapb.Version) { v.Payload, v.Size = nil, 99 }),
		"chunk is gone":  version(func(*metapb.Version) {}),
		"too few chunks": version(func(v *metapb.Version) { v.Size = 101 }),
		"chunk id":       chunkOf(&metapb.Chunk{Id: id[:15], Length: 100}),
		"chunk length":   chunkOf(&metapb.Chunk{Id: id, Length: chunk.MaxBytes + 1}),
		"chunk of 0":     chunkOf(&metapb.Chunk{Id: id}),
		"scheme":         chunkOf(&metapb.Chunk{Id: id, Length: 100, Data: 256}),
		"page is gone":   version(func(v *metapb.Version) { v.Payload.Chunks, v.Payload.Pages = nil, 1 }),
		"owner of pages": version(func(v *metapb.Version) { v.Payload.Owner, v.Payload.Pages = id[:3], 1 }),
		"upload id":      manifest(&metapb.Manifest{Upload: id[:3]}),
		"uneven lists":   manifest(&metapb.Manifest{Upload: id, First: []uint32{1}}),
		"parts are gone": manifest(&metapb.Manifest{
			Upload: id, First: []uint32{1}, Count: []uint32{2}, Size: []int64{50},
		}),
		"manifest page is gone": manifest(&metapb.Manifest{Upload: id, Pages: 1}),
		"no run":                manifest(&metapb.Manifest{Upload: id}),
		"part of another size": manifest(&metapb.Manifest{
			Upload: append(id[:15:15], 1), First: []uint32{1}, Count: []uint32{1}, Size: []int64{100},
		}),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.put(t, "good", []byte("good"))
			check(t, f.kv.Txn(t.Context(), func(tx kv.Tx) error {
				b, err := meta.GetBucket(t.Context(), tx, bucket)
				if err != nil {
					return err
				}
				part := meta.Part{Part: &metapb.Part{Size: 99}, Inline: make([]byte, 99)}
				if err := meta.PutPart(tx, meta.ID{15: 1}, 1, part); err != nil {
					return err
				}
				return meta.PutHead(tx, b.Id, "bad", head)
			}))
			_, err := f.direct.Get(t.Context(), model.Get{Key: "bad", Len: -1})
			wantError(t, err, store.ErrCorrupt)
			if f.get(t, "good") == nil {
				t.Fatal("another object suffers")
			}
			if name == "no version" {
				_, err := f.direct.List(t.Context(), model.List{Limit: 9})
				wantError(t, err, store.ErrCorrupt)
				return
			}
			_, err = f.Stat(t.Context(), store.OpenRequest{Bucket: bucket, Key: "bad", Part: 1})
			if head.Current.Manifest != nil && err == nil && !strings.Contains(name, "size") {
				t.Fatal("a part of a broken manifest was found")
			}
			f.put(t, "bad", []byte("replaced"))
			if got := f.get(t, "bad"); string(got) != "replaced" {
				t.Fatalf("%q", got)
			}
		})
	}
}
