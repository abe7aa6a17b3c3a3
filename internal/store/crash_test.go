package store_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/chunk/local"
	"github.com/penstock-store/penstock/internal/drive"
	"github.com/penstock-store/penstock/internal/meta/kv/pebble"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/internal/work"
	"github.com/penstock-store/penstock/test/model"
)

// The crash test runs a script on a file system that models power loss, under the drive and under
// Pebble. After every mutating operation of the file system it takes images of what a machine might
// find when the power returns, opens each as a new process would, with orphan check and collection,
// and compares the whole visible state with the script's: every acknowledged step is there, the step
// under way is there wholly or not at all, and no chunk is stored that nothing refers to.
//
// One image in so many is also crashed while it recovers, at every operation of that. PENSTOCK_TEST_LONG=1
// does that more often and tries more seeds; -short takes one image for each operation instead of three.

// crashSegmentBytes is as small as a drive allows, so that segments are filled and sealed.
const crashSegmentBytes = drive.MinSegmentBytes

// machine is a process on a crashfs: drive, metadata, store, collector.
type machine struct {
	fs     *crashfs.FS
	share  *arena.Share
	drive  *drive.Drive
	chunks *local.Engine
	kv     *pebble.Engine
	store  *store.Store
	direct model.Direct
	work   *work.Collector
}

func driveConfig(fs *crashfs.FS) drive.Config {
	return drive.Config{
		FS: fs, Dir: "drive", Set: drive.UUID{1}, SegmentBytes: crashSegmentBytes, NoReserve: true, Grace: -1,
	}
}

// boot starts a process. What it opened is in m also after an error.
func boot(ctx context.Context, fs *crashfs.FS, share *arena.Share) (m *machine, err error) {
	m = &machine{fs: fs, share: share}
	if m.drive, err = drive.Open(ctx, driveConfig(fs)); err != nil {
		return m, err
	}
	m.chunks = local.New(local.Options{Drive: m.drive, StuckAfter: time.Minute})
	if m.kv, err = pebble.Open(pebble.Config{FS: fs, Dir: "meta", CacheBytes: 1 << 20}); err != nil {
		return m, err
	}
	m.store, err = store.New(ctx, store.Options{
		KV: m.kv, Chunks: m.chunks, ChunkBytes: chunkBytes, MinPart: minPart, CopyShare: share,
	})
	if err != nil {
		return m, err
	}
	m.direct = model.Direct{Store: m.store, Bucket: bucket, Share: share}
	m.work = work.New(work.Options{KV: m.kv, Chunks: m.chunks, Epoch: m.store.Epoch()})
	_, err = m.work.CheckOrphans(ctx)
	return m, err
}

// format makes a node and starts its first process.
func format(t *testing.T, fs *crashfs.FS, share *arena.Share) *machine {
	t.Helper()
	_, err := drive.Format(driveConfig(fs))
	check(t, err)
	m, err := boot(t.Context(), fs, share)
	check(t, err)
	return m
}

// stop closes what is open; on a machine that is off that fails, which does not matter.
func (m *machine) stop() error {
	var errs []error
	if m.kv != nil {
		errs = append(errs, m.kv.Close())
	}
	if m.chunks != nil {
		errs = append(errs, m.chunks.Close(context.Background()))
	}
	if m.drive != nil {
		errs = append(errs, m.drive.Close())
	}
	return errors.Join(errs...)
}

// visible is everything that clients can see, one line for each thing, and how many chunks that needs.
type visible struct {
	text   string
	chunks int
}

func chunksOf(n int) int {
	if n <= store.DefaultInlineBytes {
		return 0
	}
	return (n + chunkBytes - 1) / chunkBytes
}

// look reads all that is visible. Reading verifies it.
func (m *machine) look(ctx context.Context) (string, error) {
	var lines []string
	if _, err := m.store.HeadBucket(ctx, bucket); errors.Is(err, store.ErrNoSuchBucket) {
		return "", nil
	}
	lines = append(lines, "bucket")
	page, err := m.direct.List(ctx, model.List{Limit: 1000})
	if err != nil {
		return "", err
	}
	for _, e := range page.Entries {
		o, err := m.direct.Get(ctx, model.Get{Key: e.Key, Len: -1})
		if err != nil {
			return "", fmt.Errorf("listed key %q: %w", e.Key, err)
		}
		if o.ETag != e.ETag || int64(len(o.Body)) != e.Size {
			return "", fmt.Errorf("listed key %q reads as another version", e.Key)
		}
		lines = append(lines, objectLine(e.Key, o.ETag, o.Body))
	}
	uploads, err := m.store.ListUploads(ctx, store.UploadListRequest{Bucket: bucket, Limit: 1000})
	if err != nil {
		return "", err
	}
	for _, u := range uploads.Uploads {
		parts, err := m.store.ListParts(ctx, store.PartListRequest{
			Bucket: bucket, Key: u.Key, UploadID: u.ID, Limit: 1000,
		})
		if err != nil {
			return "", fmt.Errorf("listed upload of %q: %w", u.Key, err)
		}
		line := "upload " + u.Key
		for _, p := range parts.Parts {
			line += fmt.Sprintf(" %d:%s", p.Number, p.ETag)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n"), nil
}

func objectLine(key, etag string, body []byte) string {
	return fmt.Sprintf("object %q %s %x %d", key, etag, md5.Sum(body), len(body))
}

// script drives a machine and knows what must be visible.
type script struct {
	t      *testing.T
	m      *machine
	state  *model.State
	exists bool           // the bucket
	pieces map[string]int // chunks by object key, where an object was made of parts
	step   int

	now atomic.Pointer[expectation]
}

// expectation is what may be visible after a crash: one of the two.
type expectation struct {
	step          int
	before, after visible
}

func (s *script) visible() visible {
	if !s.exists {
		return visible{}
	}
	v := visible{}
	lines := []string{"bucket"}
	for _, key := range slices.Sorted(maps.Keys(s.state.Objects)) {
		o := s.state.Objects[key]
		lines = append(lines, objectLine(key, o.ETag, o.Body))
		if n, ok := s.pieces[key]; ok {
			v.chunks += n
		} else {
			v.chunks += chunksOf(len(o.Body))
		}
	}
	var uploads []string
	for _, u := range s.state.Uploads {
		line := "upload " + u.Key
		for _, n := range slices.Sorted(maps.Keys(u.Parts)) {
			line += fmt.Sprintf(" %d:%s", n, u.Parts[n].ETag)
			v.chunks += chunksOf(len(u.Parts[n].Body))
		}
		uploads = append(uploads, line)
	}
	slices.Sort(uploads)
	v.text = strings.Join(append(lines, uploads...), "\n")
	return v
}

// do runs one step: change says what it does to the model, act does it. Between the two both states are
// fine.
func (s *script) do(change func(), act func() error) {
	s.t.Helper()
	s.step++
	before := s.visible()
	change()
	after := s.visible()
	s.now.Store(&expectation{s.step, before, after})
	if err := act(); err != nil {
		s.t.Fatalf("step %d: %v", s.step, err)
	}
	s.now.Store(&expectation{s.step, after, after})
}

func (s *script) put(key string, n int, seed byte) {
	s.t.Helper()
	body := pattern(n, seed)
	s.do(func() {
		delete(s.pieces, key)
		_, err := s.state.Put(model.Put{Key: key, Body: body})
		check(s.t, err)
	}, func() error {
		_, err := s.m.direct.Put(s.t.Context(), model.Put{Key: key, Body: body})
		return err
	})
}

func (s *script) remove(keys ...string) {
	s.t.Helper()
	s.do(func() {
		for _, key := range keys {
			delete(s.state.Objects, key)
			delete(s.pieces, key)
		}
	}, func() error { return s.m.direct.Delete(s.t.Context(), keys...) })
}

func (s *script) copy(from, to string) {
	s.t.Helper()
	s.do(func() {
		delete(s.pieces, to)
		_, err := s.state.Copy(from, to)
		check(s.t, err)
	}, func() error {
		_, err := s.m.direct.Copy(s.t.Context(), from, to)
		return err
	})
}

func (s *script) create(key string) (id string) {
	s.t.Helper()
	// The id is not known before; the state shows the key only.
	u := &model.Upload{Key: key, Parts: map[int]model.Part{}}
	s.do(func() { s.state.Uploads["new"] = u }, func() (err error) {
		id, err = s.m.direct.Create(s.t.Context(), key, "")
		return err
	})
	delete(s.state.Uploads, "new")
	s.state.Uploads[id] = u
	return id
}

func (s *script) part(id string, number, n int, seed byte) {
	s.t.Helper()
	body := pattern(n, seed)
	u := s.state.Uploads[id]
	p := model.Part{Number: number, Body: body, ETag: fmt.Sprintf("%x", md5.Sum(body))}
	s.do(func() { u.Parts[number] = p }, func() error {
		_, err := s.m.direct.PutPart(s.t.Context(), u.Key, id, p)
		return err
	})
}

func (s *script) complete(id string, numbers ...int) {
	s.t.Helper()
	u := s.state.Uploads[id]
	var list []model.Part
	pieces := 0
	for _, n := range numbers {
		list = append(list, model.Part{Number: n, ETag: u.Parts[n].ETag})
		pieces += chunksOf(len(u.Parts[n].Body))
	}
	s.do(func() {
		_, err := s.state.Complete(id, list, minPart)
		check(s.t, err)
		s.pieces[u.Key] = pieces
	}, func() error {
		_, err := s.m.direct.Complete(s.t.Context(), u.Key, id, list)
		return err
	})
}

func (s *script) abort(id string) {
	s.t.Helper()
	u := s.state.Uploads[id]
	s.do(func() { delete(s.state.Uploads, id) }, func() error {
		return s.m.direct.Abort(s.t.Context(), u.Key, id)
	})
}

// collect works off the garbage and lets the drive punch.
func (s *script) collect() {
	s.t.Helper()
	s.do(func() {}, func() error {
		_, err := s.m.work.RunOnce(s.t.Context())
		return errors.Join(err, s.m.drive.Reclaim(s.t.Context()))
	})
}

// restart ends the process in good order and starts the next one.
func (s *script) restart() {
	s.t.Helper()
	s.do(func() {}, func() error {
		if err := s.m.stop(); err != nil {
			return err
		}
		m, err := boot(s.t.Context(), s.m.fs, s.m.share)
		s.m = m
		return err
	})
}

// run is the script.
func (s *script) run() {
	s.do(func() { s.exists = true }, func() error {
		_, err := s.m.store.CreateBucket(s.t.Context(), store.BucketInfo{Name: bucket})
		return err
	})
	s.put("small", 100, 1)
	s.put("large", 2*chunkBytes+777, 2)
	s.put("small", 200, 3)          // inline over inline
	s.put("large", chunkBytes+1, 4) // chunks over chunks
	s.put("small", bufferBytes, 5)  // chunks over inline
	s.put("large", 10, 6)           // inline over chunks
	s.put("a/b\x00c", bufferBytes, 7)
	s.collect()
	s.copy("small", "copy")
	s.remove("large")
	s.restart()
	id := s.create("parts")
	s.part(id, 2, minPart, 8)
	s.part(id, 1, chunkBytes+9, 9)
	s.part(id, 2, minPart+5, 10) // again
	s.part(id, 3, minPart, 11)   // will not be listed
	s.part(id, 9, 50, 12)        // inline
	s.complete(id, 1, 2, 9)
	s.collect()
	other := s.create("other")
	s.part(other, 1, bufferBytes, 13)
	s.put("parts", 30, 14) // over an object of parts
	s.abort(other)
	s.remove("copy", "small", "none", "a/b\x00c")
	s.collect()
	s.put("full", 5*chunkBytes, 15)
	s.put("full-2", 5*chunkBytes, 16)
	s.remove("full")
	s.collect()
	s.restart()
	s.put("last", bufferBytes, 17)
}

// crash is an image to look at.
type crash struct {
	name   string
	fs     *crashfs.FS
	expect *expectation
}

// recover opens an image as the next process and compares.
func (c crash) recover(ctx context.Context, share *arena.Share) error {
	m, err := boot(ctx, c.fs, share)
	defer func() { _ = m.stop() }()
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	if err := c.compare(ctx, m); err != nil {
		return err
	}
	return c.write(ctx, m)
}

// recoverTwice crashes again at every operation of the recovery, garbage collection included. What is
// visible must not change by that.
func (c crash) recoverTwice(ctx context.Context, share *arena.Share) error {
	var again []crash
	c.fs.Hook(func(p crashfs.Point) {
		mode := []crashfs.Mode{crashfs.LoseAll, crashfs.KeepAll, crashfs.KeepSome}[p.N%3]
		name := fmt.Sprintf("%s; recovery, operation %d (%s %s), %s", c.name, p.N, p.Op, p.Name, mode)
		again = append(again, crash{name, p.Image(mode, p.N), c.expect})
	})
	m, err := boot(ctx, c.fs, share)
	if err == nil {
		err = c.compare(ctx, m)
	}
	_ = m.stop()
	c.fs.Hook(nil)
	for _, second := range again {
		if err != nil {
			return err
		}
		if err = second.recover(ctx, share); err != nil {
			err = fmt.Errorf("%s: %w", second.name, err)
		}
	}
	return err
}

func (c crash) compare(ctx context.Context, m *machine) error {
	got, err := m.look(ctx)
	if err != nil {
		return err
	}
	want := c.expect.after
	if got != want.text {
		want = c.expect.before
	}
	if got != want.text {
		return fmt.Errorf("visible is\n%s\nwant\n%s\nor\n%s", got, c.expect.before.text, c.expect.after.text)
	}
	if _, err := m.work.RunOnce(ctx); err != nil {
		return fmt.Errorf("collect: %w", err)
	}
	again, err := m.look(ctx)
	if err != nil {
		return fmt.Errorf("after collecting: %w", err)
	}
	if again != got {
		return fmt.Errorf("after collecting visible is\n%s\nbefore\n%s", again, got)
	}
	n := 0
	err = m.chunks.Walk(ctx, func(chunk.Ref, chunk.Owner) error {
		n++
		return nil
	})
	if err == nil && n != want.chunks {
		err = fmt.Errorf("%d chunks are stored, want %d", n, want.chunks)
	}
	return err
}

// write checks that the store works on.
func (c crash) write(ctx context.Context, m *machine) error {
	if c.expect.before.text == "" {
		return nil // there may be no bucket
	}
	body := pattern(bufferBytes, 99)
	if _, err := m.direct.Put(ctx, model.Put{Key: "after", Body: body}); err != nil {
		return fmt.Errorf("put after recovery: %w", err)
	}
	o, err := m.direct.Get(ctx, model.Get{Key: "after", Len: -1})
	if err == nil && !bytes.Equal(o.Body, body) {
		err = errors.New("other bytes after recovery")
	}
	return err
}

func TestCrash(t *testing.T) {
	long := os.Getenv("PENSTOCK_TEST_LONG") != ""
	twice := int64(150) // one image in so many crashes again
	if long {
		twice = 10
	}
	a, err := arena.New(arena.Options{
		Shares: []arena.ShareOption{{Name: "all", Buffers: 256, BufferBytes: bufferBytes}},
	})
	check(t, err)
	defer func() { check(t, a.Close()) }()
	share := a.Share("all")
	fs := crashfs.New(crashfs.Options{})
	m := format(t, fs, share)
	s := &script{t: t, m: m, state: model.NewState(), pieces: map[string]int{}}
	s.now.Store(&expectation{})

	crashes := make(chan crash) // taken while the file system stands still, so it is not buffered
	var failures, done atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for c := range crashes {
				if failures.Load() > 3 {
					continue
				}
				recover := c.recover
				if done.Add(1)%twice == 0 {
					recover = c.recoverTwice
				}
				if err := recover(context.Background(), share); err != nil {
					failures.Add(1)
					t.Errorf("%s: %v", c.name, err)
				}
			}
		})
	}
	fs.Hook(func(p crashfs.Point) {
		expect := s.now.Load()
		take := func(mode crashfs.Mode, seed uint64) {
			name := fmt.Sprintf("step %d, operation %d (%s %s), %s %d", expect.step, p.N, p.Op, p.Name, mode, seed)
			crashes <- crash{name, p.Image(mode, seed), expect}
		}
		modes := []crashfs.Mode{crashfs.LoseAll, crashfs.KeepAll, crashfs.KeepSome}
		if testing.Short() {
			modes = modes[p.N%3:][:1]
		}
		for _, mode := range modes {
			take(mode, p.N)
		}
		if long {
			for seed := range uint64(8) {
				take(crashfs.KeepSome, p.N+seed<<32)
			}
		}
	})
	started := time.Now()
	s.run()
	fs.Hook(nil)
	close(crashes)
	workers.Wait()
	t.Logf("%d steps, %d operations, %d crashes, %v", s.step, fs.Ops(), done.Load(), time.Since(started))
	check(t, s.m.stop())
}

// lasting is a bucket on a machine that crashes now and then.
type lasting struct{ model.Direct }

// TestModelWithCrashes does random operations on the store and on a map, and pulls the plug between
// some of them. Everything acknowledged is there afterwards.
func TestModelWithCrashes(t *testing.T) {
	a, err := arena.New(arena.Options{
		Shares: []arena.ShareOption{{Name: "all", Buffers: 64, BufferBytes: bufferBytes}},
	})
	check(t, err)
	defer func() { check(t, a.Close()) }()
	share := a.Share("all")
	m := format(t, crashfs.New(crashfs.Options{}), share)
	_, err = m.store.CreateBucket(t.Context(), store.BucketInfo{Name: bucket})
	check(t, err)
	bucketOf := &lasting{m.direct}
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		model.New(model.Options{
			Objects: bucketOf, Uploads: bucketOf, Prefix: fmt.Sprintf("%06d/", run),
			Tokens: tokens, Sizes: sizes, MinPart: minPart,
			Settle: func() {
				modes := []crashfs.Mode{crashfs.LoseAll, crashfs.KeepAll, crashfs.KeepSome}
				mode := rapid.SampledFrom(modes).Draw(rt, "mode")
				image := m.fs.Image(mode, rapid.Uint64().Draw(rt, "image"))
				if err := m.stop(); err != nil {
					rt.Fatal(err)
				}
				next, err := boot(context.Background(), image, share)
				m = next
				if err == nil {
					_, err = m.work.RunOnce(context.Background())
				}
				if err != nil {
					rt.Fatal(err)
				}
				bucketOf.Direct = m.direct
			},
		}).Run(rt)
	})
	check(t, m.stop())
}
