package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/test/model"
)

var errTest = errors.New("test: injected")

// hooked is the chunk engine of a fixture with faults.
type hooked struct {
	chunk.Engine
	chunk.Pinner
	write  func() error // before each Write
	pin    func()       // before each Pin
	read   func() error // before each Read
	remove func() error // before each Delete
}

func (h *hooked) Write(ctx context.Context, o chunk.Owner, s chunk.Scheme, src arena.Source) (chunk.Ref, error) {
	if h.write != nil {
		if err := h.write(); err != nil {
			return chunk.Ref{}, err
		}
	}
	return h.Engine.Write(ctx, o, s, src)
}

func (h *hooked) Read(ctx context.Context, ref chunk.Ref, r chunk.Range, dst arena.Sink) error {
	if h.read != nil {
		if err := h.read(); err != nil {
			return err
		}
	}
	return h.Engine.Read(ctx, ref, r, dst)
}

func (h *hooked) Delete(ctx context.Context, ref chunk.Ref) error {
	if h.remove != nil {
		if err := h.remove(); err != nil {
			return err
		}
	}
	return h.Engine.Delete(ctx, ref)
}

func (h *hooked) Pin(ctx context.Context, refs ...chunk.Ref) (func(), error) {
	if h.pin != nil {
		h.pin()
	}
	return h.Pinner.Pin(ctx, refs...)
}

// hook puts faults under the store of a fixture.
func (f *fixture) hook(t testing.TB) *hooked {
	t.Helper()
	h := &hooked{Engine: f.mem, Pinner: f.mem}
	f.start(t, h)
	return h
}

// brokenSource yields n bytes of size and then fails, or calls then.
type brokenSource struct {
	share   *arena.Share
	size, n int64
	err     error
	then    func()
}

func (s *brokenSource) Size() int64 { return s.size }

func (s *brokenSource) Next(ctx context.Context) (arena.Buffer, error) {
	if s.n == 0 {
		if s.then != nil {
			s.then()
		}
		return arena.Buffer{}, s.err
	}
	b, err := s.share.Alloc(ctx)
	if err != nil {
		return b, err
	}
	b = b.Slice(0, int(min(int64(b.Cap()), s.n)))
	clear(b.Bytes())
	s.n -= int64(b.Len())
	return b, nil
}

// TestFailedWriteLeavesNothing fails a PUT and a part at every step.
func TestFailedWriteLeavesNothing(t *testing.T) {
	const size = 3*chunkBytes + 5
	for name, inject := range map[string]func(f *fixture, h *hooked, r *store.PutRequest) (want error){
		"source at once": func(f *fixture, _ *hooked, r *store.PutRequest) error {
			r.Source = &brokenSource{share: f.share, size: size, err: errTest}
			return errTest
		},
		"source in the second chunk": func(f *fixture, _ *hooked, r *store.PutRequest) error {
			r.Source = &brokenSource{share: f.share, size: size, n: chunkBytes + bufferBytes, err: errTest}
			return errTest
		},
		"source after its last byte": func(f *fixture, _ *hooked, r *store.PutRequest) error {
			r.Source = &brokenSource{share: f.share, size: size, n: size, err: errTest}
			return errTest
		},
		"source ends early": func(f *fixture, _ *hooked, r *store.PutRequest) error {
			r.Source = &brokenSource{share: f.share, size: size, n: 2 * chunkBytes, err: io.EOF}
			return io.ErrUnexpectedEOF
		},
		"inline source ends early": func(f *fixture, _ *hooked, r *store.PutRequest) error {
			r.Source = &brokenSource{share: f.share, size: 10, n: 9, err: io.EOF}
			return io.ErrUnexpectedEOF
		},
		"inline source is too long": func(f *fixture, _ *hooked, r *store.PutRequest) error {
			r.Source = &brokenSource{share: f.share, size: 10, n: 11, err: io.EOF}
			return store.ErrSizeMismatch
		},
		"inline source fails": func(f *fixture, _ *hooked, r *store.PutRequest) error {
			r.Source = &brokenSource{share: f.share, size: 10, n: 5, err: errTest}
			return errTest
		},
		"negative size": func(f *fixture, _ *hooked, r *store.PutRequest) error {
			r.Source = &brokenSource{share: f.share, size: -1}
			return store.ErrTooLarge
		},
		"third chunk finds no space": func(_ *fixture, h *hooked, _ *store.PutRequest) error {
			n := 0
			h.write = func() error {
				if n++; n == 3 {
					return chunk.ErrNoSpace
				}
				return nil
			}
			return store.ErrNoSpace
		},
		"no drive": func(_ *fixture, h *hooked, _ *store.PutRequest) error {
			h.write = func() error { return chunk.ErrUnavailable }
			return store.ErrUnavailable
		},
		"seal refuses": func(_ *fixture, _ *hooked, r *store.PutRequest) error {
			r.Seal = func(context.Context, store.Payload) (store.Digest, error) { return store.Digest{}, errTest }
			return errTest
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.put(t, "key", []byte("before"))
			id, _ := f.upload(t, "up", 1)
			before := f.chunkCount(t)
			h := f.hook(t)
			body := pattern(size, 1)
			request := func() store.PutRequest {
				return store.PutRequest{
					Bucket: bucket, Key: "key", Source: arena.NewBytesSource(f.share, body), Seal: model.SealMD5(body),
				}
			}
			r := request()
			want := inject(f, h, &r)
			_, err := f.Put(t.Context(), r)
			wantError(t, err, want)
			r = request()
			want = inject(f, h, &r)
			_, err = f.PutPart(t.Context(), store.PartRequest{
				Bucket: bucket, Key: "up", UploadID: id, Number: 2, Source: r.Source, Seal: r.Seal,
			})
			wantError(t, err, want)
			if got := f.chunkCount(t); got != before {
				t.Fatalf("%d chunks, before %d", got, before)
			}
			if !bytes.Equal(f.get(t, "key"), []byte("before")) {
				t.Fatal("the object changed")
			}
			parts, err := f.ListParts(t.Context(), store.PartListRequest{
				Bucket: bucket, Key: "up", UploadID: id, Limit: 9,
			})
			check(t, err)
			if len(parts.Parts) != 1 {
				t.Fatalf("%d parts", len(parts.Parts))
			}
		})
	}
}

// TestNoCommitOnceTheContextEnded: the deadline passes, or the peer goes, between the last payload byte
// and the commit.
func TestNoCommitOnceTheContextEnded(t *testing.T) {
	for _, size := range []int64{10, 3 * chunkBytes} {
		f := newFixture(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		body := make([]byte, size)
		_, err := f.Put(ctx, store.PutRequest{
			Bucket: bucket, Key: "key", Source: arena.NewBytesSource(f.share, body),
			Seal: func(context.Context, store.Payload) (store.Digest, error) {
				cancel(errTest)
				return store.Digest{ETag: "x"}, nil
			},
		})
		if !errors.Is(err, errTest) && !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		if f.get(t, "key") != nil {
			t.Fatal("the object is there")
		}
		if n := f.chunkCount(t); n != 0 {
			t.Fatalf("%d chunks are left", n)
		}
	}
}

// doubtful is a kv engine whose commits succeed, or not, and then report that nobody knows.
type doubtful struct {
	kv.Engine
	commit, armed bool
	died          func() error // makes the report; nil: kv.ErrClosed
}

func (d *doubtful) Txn(ctx context.Context, fn func(kv.Tx) error) error {
	if !d.armed {
		return d.Engine.Txn(ctx, fn)
	}
	err := d.Engine.Txn(ctx, func(tx kv.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		if !d.commit {
			return errTest
		}
		return nil
	})
	if err == nil || errors.Is(err, errTest) {
		if d.died != nil {
			return d.died()
		}
		return kv.ErrClosed
	}
	return err
}

// TestUnknownOutcomeKeepsChunks: when the engine dies in a commit, that may have taken place; then its
// chunks must stay.
func TestUnknownOutcomeKeepsChunks(t *testing.T) {
	for _, committed := range []bool{true, false} {
		f := newFixture(t)
		d := &doubtful{Engine: f.kv, commit: committed}
		f.start(t, f.mem, func(o *store.Options) { o.KV = d })
		d.armed = true
		body := pattern(3*chunkBytes, 1)
		_, err := f.direct.Put(t.Context(), model.Put{Key: "key", Body: body})
		wantError(t, err, store.ErrUnavailable)
		if n := f.chunkCount(t); n != 3 {
			t.Fatalf("%d chunks", n)
		}
		f.start(t, f.mem) // the next process
		_, err = f.garbage.CheckOrphans(t.Context())
		check(t, err)
		f.collect(t)
		if committed {
			if !bytes.Equal(f.get(t, "key"), body) {
				t.Fatal("the object is lost")
			}
		} else if n := f.chunkCount(t); n != 0 || f.get(t, "key") != nil {
			t.Fatalf("%d chunks", n)
		}
	}
}

// TestUnknownOutcomeAfterTheContext: the engine died in the commit while the request ended, even with an
// error that looks like the cause of that end. Not knowing comes first.
func TestUnknownOutcomeAfterTheContext(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	d := &doubtful{Engine: f.kv, commit: true}
	f.start(t, f.mem, func(o *store.Options) { o.KV = d })
	d.armed = true
	d.died = func() error {
		cancel(errTest)
		return fmt.Errorf("%w: %w", kv.ErrClosed, errTest)
	}
	body := pattern(chunkBytes, 1)
	_, err := f.direct.Put(ctx, model.Put{Key: "key", Body: body})
	wantError(t, err, store.ErrUnavailable)
	f.start(t, f.mem) // the next process
	if !bytes.Equal(f.get(t, "key"), body) {
		t.Fatal("the object is lost")
	}
}

// TestDeadEpochCommitsNothing: another process took over; what this one still writes must not become
// visible, since its chunks may be taken for orphans.
func TestDeadEpochCommitsNothing(t *testing.T) {
	f := newFixture(t)
	old := f.direct
	f.start(t, f.mem)
	_, err := old.Put(t.Context(), model.Put{Key: "key", Body: pattern(chunkBytes, 1)})
	wantError(t, err, store.ErrUnavailable)
	if n := f.chunkCount(t); n != 0 || f.get(t, "key") != nil {
		t.Fatalf("%d chunks", n)
	}
}

// TestOpenResolvesAgain: the version that Open found is replaced and collected before it is pinned.
func TestOpenResolvesAgain(t *testing.T) {
	f := newFixture(t)
	h := f.hook(t)
	f.put(t, "key", pattern(chunkBytes, 0))
	replace := func(times int) func() {
		n := 0
		return func() {
			if n++; n <= times {
				f.put(t, "key", pattern(chunkBytes, byte(n)))
				f.settle()
			}
		}
	}
	h.pin = replace(2)
	if !bytes.Equal(f.get(t, "key"), pattern(chunkBytes, 2)) {
		t.Fatal("not the last version")
	}
	h.pin = replace(3)
	_, err := f.direct.Get(t.Context(), model.Get{Key: "key", Len: -1})
	wantError(t, err, store.ErrCorrupt)
	h.pin = func() { check(t, f.Delete(t.Context(), store.DeleteRequest{Bucket: bucket, Key: "key"})); f.settle() }
	_, err = f.direct.Get(t.Context(), model.Get{Key: "key", Len: -1})
	wantError(t, err, store.ErrNoSuchKey)
}

// TestPinnedVersionStays: an opened object is read to its end although it was deleted and collected.
func TestPinnedVersionStays(t *testing.T) {
	f := newFixture(t)
	body := pattern(3*chunkBytes, 1)
	f.put(t, "key", body)
	o, err := f.Open(t.Context(), store.OpenRequest{Bucket: bucket, Key: "key"})
	check(t, err)
	check(t, f.Delete(t.Context(), store.DeleteRequest{Bucket: bucket, Key: "key"}))
	f.collect(t)
	sink := model.NewCollector(f.share, o.Len)
	check(t, o.Read(t.Context(), 0, o.Len, sink))
	if !bytes.Equal(sink.Bytes(), body) {
		t.Fatal("other bytes")
	}
	o.Close()
	o.Close()
	f.emptyBucket(t)
}

// TestReadErrors: what an engine reports arrives as what it is.
func TestReadErrors(t *testing.T) {
	f := newFixture(t)
	h := f.hook(t)
	f.put(t, "key", pattern(chunkBytes, 0))
	for _, c := range []struct{ below, want error }{
		{chunk.ErrCorrupt, store.ErrCorrupt},
		{chunk.ErrNotFound, store.ErrCorrupt}, // it was pinned
		{chunk.ErrUnavailable, store.ErrUnavailable},
		{errTest, errTest},
	} {
		h.read = func() error { return c.below }
		_, err := f.direct.Get(t.Context(), model.Get{Key: "key", Len: -1})
		wantError(t, err, c.want)
		_, err = f.direct.Copy(t.Context(), "key", "copy")
		wantError(t, err, c.want)
	}
	if n := f.chunkCount(t); n != 1 || f.get(t, "copy") != nil {
		t.Fatalf("%d chunks", n)
	}
}

// TestDiscardFails: a drive that fails a write and then the clean-up leaves an orphan, which the next
// process finds.
func TestDiscardFails(t *testing.T) {
	f := newFixture(t)
	h := f.hook(t)
	n := 0
	h.write = func() error {
		if n++; n == 3 {
			return errTest
		}
		return nil
	}
	h.remove = func() error { return errTest }
	_, err := f.direct.Put(t.Context(), model.Put{Key: "key", Body: pattern(3*chunkBytes, 1)})
	wantError(t, err, errTest)
	if n := f.chunkCount(t); n != 2 {
		t.Fatalf("%d chunks", n)
	}
	stats, err := f.garbage.CheckOrphans(t.Context())
	check(t, err)
	if stats.Orphans != 0 {
		t.Fatal("orphans of a living epoch")
	}
	f.start(t, f.mem)
	stats, err = f.garbage.CheckOrphans(t.Context())
	check(t, err)
	f.collect(t)
	if n := f.chunkCount(t); n != 0 || stats.Orphans != 2 {
		t.Fatalf("%d chunks, %d orphans", n, stats.Orphans)
	}
}
