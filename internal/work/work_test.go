package work_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/chunk/chunkmem"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/kv/pebble"
	"github.com/penstock-store/penstock/internal/meta/metapb"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/work"
	"github.com/penstock-store/penstock/test/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errTest = errors.New("test: injected")

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// faulty fails deletions while broken is set.
type faulty struct {
	*chunkmem.Engine
	broken func(chunk.Ref) bool
}

func (f *faulty) Delete(ctx context.Context, ref chunk.Ref) error {
	if f.broken != nil && f.broken(ref) {
		return errTest
	}
	return f.Engine.Delete(ctx, ref)
}

type fixture struct {
	kv     kv.Engine
	chunks *faulty
	share  *arena.Share
	now    time.Time
	store  *store.Store
	direct model.Direct
	work   *work.Collector
}

const bufferBytes = arena.BlockSize

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{chunks: &faulty{Engine: chunkmem.New()}, now: time.Unix(1e9, 0)}
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "all", Buffers: 8, BufferBytes: bufferBytes}}})
	check(t, err)
	f.share = a.Share("all")
	f.kv, err = pebble.Open(pebble.Config{FS: crashfs.New(crashfs.Options{}), Dir: "meta"})
	check(t, err)
	t.Cleanup(func() { check(t, errors.Join(f.kv.Close(), a.Close())) })
	f.restart(t)
	_, err = f.store.CreateBucket(t.Context(), store.BucketInfo{Name: "bucket"})
	check(t, err)
	return f
}

// restart does what a new process does.
func (f *fixture) restart(t *testing.T) {
	t.Helper()
	now := func() time.Time { return f.now }
	s, err := store.New(t.Context(), store.Options{
		KV: f.kv, Chunks: f.chunks, ChunkBytes: bufferBytes, MinPart: 1, Now: now, InlineBytes: -1,
		OnGarbage: func() {
			if f.work != nil {
				f.work.Wake()
			}
		},
	})
	check(t, err)
	f.store = s
	f.direct = model.Direct{Store: s, Bucket: "bucket", Share: f.share}
	f.work = work.New(work.Options{
		KV: f.kv, Chunks: f.chunks, Epoch: s.Epoch(), Now: now, Interval: time.Hour,
	})
}

func (f *fixture) put(t *testing.T, key string, chunks int) {
	t.Helper()
	_, err := f.direct.Put(t.Context(), model.Put{Key: key, Body: make([]byte, chunks*bufferBytes)})
	check(t, err)
}

func (f *fixture) count(t *testing.T) (n int) {
	t.Helper()
	check(t, f.chunks.Walk(t.Context(), func(chunk.Ref, chunk.Owner) error {
		n++
		return nil
	}))
	return n
}

func (f *fixture) wantChunks(t *testing.T, n int) {
	t.Helper()
	if got := f.count(t); got != n {
		t.Fatalf("%d chunks, want %d", got, n)
	}
}

// queued is how many entries the queue has, whenever they are due.
func (f *fixture) queued(t *testing.T) int {
	t.Helper()
	s, err := f.kv.Snapshot(t.Context())
	check(t, err)
	entries, err := meta.DueGarbage(t.Context(), s, 1<<62, nil, 1<<20)
	check(t, errors.Join(err, s.Close()))
	return len(entries)
}

// TestFailedDeletionStays: an entry whose chunk cannot be deleted stays; others go; it goes later.
func TestFailedDeletionStays(t *testing.T) {
	f := newFixture(t)
	for i := range 200 { // several batches
		f.put(t, fmt.Sprint("key-", i), 1)
	}
	for i := range 200 {
		check(t, f.direct.Delete(t.Context(), fmt.Sprint("key-", i)))
	}
	n := 0
	f.chunks.broken = func(chunk.Ref) bool { n++; return n == 70 || n == 130 }
	_, err := f.work.RunOnce(t.Context())
	if !errors.Is(err, errTest) {
		t.Fatal(err)
	}
	f.wantChunks(t, 2)
	if q := f.queued(t); q != 2 {
		t.Fatalf("%d entries", q)
	}
	f.chunks.broken = nil
	stats, err := f.work.RunOnce(t.Context())
	check(t, err)
	if stats.Entries != 2 || stats.Chunks != 2 || stats.Bytes != 2*bufferBytes || f.queued(t) != 0 {
		t.Fatalf("%+v", stats)
	}
	f.wantChunks(t, 0)
}

// TestUploadOfManyParts: parts are worked off in batches; a failure in the middle is taken up again.
func TestUploadOfManyParts(t *testing.T) {
	f := newFixture(t)
	id, err := f.direct.Create(t.Context(), "key", "")
	check(t, err)
	for n := range 250 {
		_, err := f.direct.PutPart(t.Context(), "key", id, model.Part{Number: n + 1, Body: make([]byte, 10)})
		check(t, err)
	}
	check(t, f.direct.Abort(t.Context(), "key", id))
	n := 0
	f.chunks.broken = func(chunk.Ref) bool { n++; return n == 170 }
	if _, err := f.work.RunOnce(t.Context()); !errors.Is(err, errTest) {
		t.Fatal(err)
	}
	if f.count(t) == 0 || f.queued(t) != 1 {
		t.Fatalf("%d chunks, %d entries", f.count(t), f.queued(t))
	}
	f.restart(t)
	_, err = f.work.RunOnce(t.Context())
	check(t, err)
	f.wantChunks(t, 0)
	if q := f.queued(t); q != 0 {
		t.Fatalf("%d entries", q)
	}
}

// TestBucketWithUploads: deleting a bucket ends its uploads.
func TestBucketWithUploads(t *testing.T) {
	f := newFixture(t)
	for i := range 150 {
		key := fmt.Sprint("key-", i)
		id, err := f.direct.Create(t.Context(), key, "")
		check(t, err)
		_, err = f.direct.PutPart(t.Context(), key, id, model.Part{Number: 1, Body: make([]byte, 10)})
		check(t, err)
	}
	check(t, f.store.DeleteBucket(t.Context(), "bucket"))
	_, err := f.work.RunOnce(t.Context())
	check(t, err)
	f.wantChunks(t, 0)
	if q := f.queued(t); q != 0 {
		t.Fatalf("%d entries", q)
	}
}

// TestCompletedIsForgotten: a repeated Complete is answered for as long as was promised, then the record
// goes.
func TestCompletedIsForgotten(t *testing.T) {
	f := newFixture(t)
	id, err := f.direct.Create(t.Context(), "key", "")
	check(t, err)
	etag, err := f.direct.PutPart(t.Context(), "key", id, model.Part{Number: 1, Body: []byte("x")})
	check(t, err)
	list := []model.Part{{Number: 1, ETag: etag}}
	complete := func() error {
		_, err := f.work.RunOnce(t.Context())
		check(t, err)
		_, err = f.direct.Complete(t.Context(), "key", id, list)
		return err
	}
	check(t, complete())
	check(t, f.direct.Delete(t.Context(), "key"))
	f.now = f.now.Add(store.CompletedKept - time.Second)
	check(t, complete())
	f.wantChunks(t, 0)
	f.now = f.now.Add(2 * time.Second)
	if err := complete(); !errors.Is(err, store.ErrNoSuchUpload) {
		t.Fatal(err)
	}
	if q := f.queued(t); q != 0 {
		t.Fatalf("%d entries", q)
	}
}

// write stores a chunk that no record refers to.
func (f *fixture) write(t *testing.T, o chunk.Owner) {
	t.Helper()
	_, err := f.chunks.Write(t.Context(), o, chunk.Scheme{}, arena.NewBytesSource(f.share, []byte("x")))
	check(t, err)
}

// TestOrphans: only chunks of a dead epoch without an owner go, and what the queue names is left to it.
func TestOrphans(t *testing.T) {
	f := newFixture(t)
	for i := range 300 {
		f.write(t, chunk.Owner{ID: meta.NewID(), Epoch: f.store.Epoch()})
		f.put(t, fmt.Sprint("key-", i), 1)
	}
	id, err := f.direct.Create(t.Context(), "upload", "")
	check(t, err)
	_, err = f.direct.PutPart(t.Context(), "upload", id, model.Part{Number: 1, Body: make([]byte, 10)})
	check(t, err)
	page := &metapb.ChunkPage{Epoch: f.store.Epoch()}
	check(t, f.kv.Txn(t.Context(), func(tx kv.Tx) error {
		return errors.Join(meta.PutChunkPage(tx, meta.ID{9}, 0, page), meta.PutChunkPage(tx, meta.ID{9}, 1, page))
	}))
	for range 2 {
		stats, err := f.work.CheckOrphans(t.Context())
		check(t, err)
		if stats.Orphans != 0 {
			t.Fatal("orphans of the running epoch")
		}
		f.wantChunks(t, 601)
	}
	f.put(t, "key-0", 1)
	check(t, f.direct.Delete(t.Context(), "key-0"))
	f.restart(t)
	f.write(t, chunk.Owner{ID: meta.NewID(), Epoch: f.store.Epoch()})
	stats, err := f.work.CheckOrphans(t.Context())
	check(t, err)
	if stats.Orphans != 302 {
		t.Fatalf("%d orphans, want 300 chunks and 2 pages", stats.Orphans)
	}
	_, err = f.work.RunOnce(t.Context())
	check(t, err)
	f.wantChunks(t, 299+1+1)
	if stats, err = f.work.CheckOrphans(t.Context()); err != nil || stats.Orphans != 0 {
		t.Fatalf("%+v, %v", stats, err)
	}
	for i := 1; i < 300; i++ {
		o, err := f.direct.Get(t.Context(), model.Get{Key: fmt.Sprint("key-", i), Len: -1})
		check(t, err)
		if len(o.Body) != bufferBytes {
			t.Fatal("an object is not whole")
		}
	}
}

// TestForeignMetadata: metadata that are older than the chunks delete nothing.
func TestForeignMetadata(t *testing.T) {
	f := newFixture(t)
	f.write(t, chunk.Owner{ID: meta.NewID(), Epoch: f.store.Epoch()})
	f.write(t, chunk.Owner{ID: meta.NewID(), Epoch: f.store.Epoch() + 2})
	f.restart(t)
	if _, err := f.work.CheckOrphans(t.Context()); !errors.Is(err, work.ErrForeignMetadata) {
		t.Fatal(err)
	}
	_, err := f.work.RunOnce(t.Context())
	check(t, err)
	f.wantChunks(t, 2)
}

// TestRun: orphans at start, garbage on a wake, and an end.
func TestRun(t *testing.T) {
	f := newFixture(t)
	f.write(t, chunk.Owner{ID: meta.NewID(), Epoch: f.store.Epoch()})
	f.put(t, "key", 1)
	f.restart(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() { ended <- f.work.Run(ctx) }()
	f.waitForChunks(t, 1)
	check(t, f.direct.Delete(t.Context(), "key")) // wakes it
	f.waitForChunks(t, 0)
	cancel(errTest)
	if err := <-ended; !errors.Is(err, errTest) {
		t.Fatal(err)
	}
}

func (f *fixture) waitForChunks(t *testing.T, n int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for f.count(t) != n {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d chunks after 10 s, want %d", f.count(t), n)
		}
	}
}
