package store_test

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/chunk/chunkmem"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/kv/pebble"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/work"
	"github.com/penstock-store/penstock/test/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bucket is the one that most tests use.
const bucket = "bucket"

// fixture is a store on Pebble and chunkmem, both in memory, with chunks of two buffers and parts of
// at least one, so that little data reaches every path.
type fixture struct {
	*store.Store
	kv      kv.Engine
	mem     *chunkmem.Engine
	share   *arena.Share
	direct  model.Direct
	garbage *work.Collector

	// Of newFaultFixture and prepare.
	counting *counting
	doneID   string
	doneList []model.Part
}

const (
	bufferBytes = arena.BlockSize
	chunkBytes  = 2 * bufferBytes
	minPart     = bufferBytes
)

type change func(*store.Options)

func newFixture(t testing.TB, changes ...change) *fixture {
	t.Helper()
	f := &fixture{mem: chunkmem.New()}
	a, err := arena.New(arena.Options{
		Shares: []arena.ShareOption{{Name: "all", Buffers: 64, BufferBytes: bufferBytes}},
	})
	check(t, err)
	f.share = a.Share("all")
	e, err := pebble.Open(pebble.Config{FS: crashfs.New(crashfs.Options{}), Dir: "meta"})
	check(t, err)
	f.kv = e
	t.Cleanup(func() { check(t, errors.Join(e.Close(), a.Close())) }) // a.Close: no buffer leaked
	f.start(t, f.mem, changes...)
	_, err = f.CreateBucket(t.Context(), store.BucketInfo{Name: bucket, Owner: "root"})
	check(t, err)
	return f
}

// start makes a store and a collector on the engines, as a new process would.
func (f *fixture) start(t testing.TB, chunks chunk.Engine, changes ...change) {
	t.Helper()
	o := store.Options{
		KV: f.kv, Chunks: chunks, ChunkBytes: chunkBytes, MinPart: minPart, CopyShare: f.share,
	}
	for _, c := range changes {
		c(&o)
	}
	s, err := store.New(t.Context(), o)
	check(t, err)
	f.Store = s
	f.direct = model.Direct{Store: s, Bucket: bucket, Share: f.share}
	f.garbage = work.New(work.Options{KV: f.kv, Chunks: chunks, Epoch: s.Epoch(), Now: o.Now})
}

// collect works off the garbage and then compares the chunks that are left with those that objects
// and open uploads need.
func (f *fixture) collect(t testing.TB) work.Stats {
	t.Helper()
	stats, err := f.garbage.RunOnce(t.Context())
	check(t, err)
	return stats
}

// chunkCount is how many chunks the engine holds.
func (f *fixture) chunkCount(t testing.TB) (n int) {
	t.Helper()
	check(t, f.mem.Walk(t.Context(), func(chunk.Ref, chunk.Owner) error {
		n++
		return nil
	}))
	return n
}

func (f *fixture) put(t testing.TB, key string, body []byte) {
	t.Helper()
	_, err := f.direct.Put(t.Context(), model.Put{Key: key, Body: body})
	check(t, err)
}

// get returns nil when there is no such key.
func (f *fixture) get(t testing.TB, key string) []byte {
	t.Helper()
	o, err := f.direct.Get(t.Context(), model.Get{Key: key, Len: -1})
	if errors.Is(err, store.ErrNoSuchKey) {
		return nil
	}
	check(t, err)
	return append([]byte{}, o.Body...)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// pattern is n bytes that differ from those of other seeds everywhere.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed ^ byte(i*131>>3)
	}
	return b
}

func canceled(parent context.Context) context.Context {
	ctx, cancel := context.WithCancel(parent)
	cancel()
	return ctx
}
