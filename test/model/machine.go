package model

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// Objects is a store under test: one bucket of it. Errors that S3 defines are *Error.
type Objects interface {
	Put(ctx context.Context, p Put) (etag string, err error)
	Get(ctx context.Context, g Get) (Object, error)
	Delete(ctx context.Context, keys ...string) error // several: one DeleteObjects
	Copy(ctx context.Context, from, to string) (etag string, err error)
	List(ctx context.Context, l List) (Page, error)
}

// Uploads is the multipart side of it.
type Uploads interface {
	Create(ctx context.Context, key, contentType string) (id string, err error)
	PutPart(ctx context.Context, key, id string, p Part) (etag string, err error)
	Complete(ctx context.Context, key, id string, list []Part) (etag string, err error)
	Abort(ctx context.Context, key, id string) error
}

// Options of a Machine.
type Options struct {
	Objects Objects
	Uploads Uploads  // nil: no multipart uploads
	Prefix  string   // of all keys
	Tokens  []string // keys are made of one to four of these
	Sizes   []int    // sizes of payloads; some are varied by a byte
	MinPart int      // smallest part but the last
	Settle  func()   // called between operations at random, e.g. to collect garbage; may be nil
}

// Machine does random operations on a store and on the model, and fails t where they differ.
type Machine struct {
	o     Options
	state *State
	done  []finished // uploads that were completed
}

type finished struct {
	key, id, etag string
	list          []Part
}

// New returns a Machine; the keys with Options.Prefix do not exist yet.
func New(o Options) *Machine { return &Machine{o: o, state: NewState()} }

// Run does random operations until rapid has enough.
func (m *Machine) Run(t *rapid.T) {
	actions := map[string]func(*rapid.T){
		"put": m.put, "putIf": m.putIf, "get": m.get, "getIf": m.getIf, "delete": m.remove,
		"deleteMany": m.removeMany, "copy": m.copy, "list": m.list, "pages": m.pages, "": m.check,
	}
	if m.o.Uploads != nil {
		maps.Copy(actions, map[string]func(*rapid.T){
			"create": m.create, "part": m.part, "part2": m.part, "complete": m.complete,
			"repeat": m.repeat, "abort": m.abort,
		})
	}
	if m.o.Settle != nil {
		actions["settle"] = func(*rapid.T) { m.o.Settle() }
	}
	t.Repeat(actions)
	m.Verify(t)
}

// State is the model, e.g. to compare it with a store that was opened again.
func (m *Machine) State() *State { return m.state }

// Verify reads every object whole.
func (m *Machine) Verify(t *rapid.T) {
	for key := range m.state.Objects {
		m.compareGet(t, Get{Key: key, Len: -1})
	}
}

func (m *Machine) key(t *rapid.T) string {
	if known := slices.Sorted(maps.Keys(m.state.Objects)); len(known) > 0 && rapid.Bool().Draw(t, "known") {
		return rapid.SampledFrom(known).Draw(t, "key")
	}
	tokens := rapid.SliceOfN(rapid.SampledFrom(m.o.Tokens), 1, 4).Draw(t, "tokens")
	return m.o.Prefix + strings.Join(tokens, "")
}

func (m *Machine) body(t *rapid.T) []byte {
	n := rapid.SampledFrom(m.o.Sizes).Draw(t, "size")
	n = max(n+rapid.IntRange(-1, 1).Draw(t, "vary"), 0)
	b := make([]byte, n)
	seed := rapid.Uint64().Draw(t, "seed")
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func code(err error) string {
	var e *Error
	switch {
	case err == nil:
		return "OK"
	case errors.As(err, &e):
		return e.Code
	}
	return err.Error()
}

// same compares the outcomes of one operation.
func same(t *rapid.T, what string, got, want error) bool {
	if code(got) != code(want) {
		t.Fatalf("%s: got %s, want %s", what, code(got), code(want))
	}
	return want == nil
}

func (m *Machine) put(t *rapid.T) { m.comparePut(t, Put{}) }

func (m *Machine) putIf(t *rapid.T) {
	p := Put{Key: m.key(t)}
	etag := m.someETag(t, p.Key)
	if rapid.Bool().Draw(t, "match") {
		p.IfMatch = etag
	} else {
		p.IfNoneMatch = etag
	}
	m.comparePut(t, p)
}

// someETag is "*", the current ETag of the key or another one.
func (m *Machine) someETag(t *rapid.T, key string) string {
	choices := []string{"*", `"00000000000000000000000000000000"`}
	if o, ok := m.state.Objects[key]; ok {
		choices = append(choices, `"`+o.ETag+`"`)
	}
	return rapid.SampledFrom(choices).Draw(t, "etag")
}

func (m *Machine) comparePut(t *rapid.T, p Put) {
	if p.Key == "" {
		p.Key = m.key(t)
	}
	p.Body = m.body(t)
	p.Type = rapid.SampledFrom([]string{"", "text/plain"}).Draw(t, "type")
	if rapid.Bool().Draw(t, "user") {
		p.User = map[string]string{"color": "blue"}
	}
	got, err := m.o.Objects.Put(t.Context(), p)
	want, wantErr := m.state.Put(p)
	if same(t, "put", err, wantErr) && got != want {
		t.Fatalf("put %q: ETag %s, want %s", p.Key, got, want)
	}
}

func (m *Machine) get(t *rapid.T) {
	g := Get{Key: m.key(t), Len: -1}
	if o, ok := m.state.Objects[g.Key]; ok && len(o.Body) > 0 && rapid.Bool().Draw(t, "range") {
		g.Off = rapid.Int64Range(0, int64(len(o.Body))-1).Draw(t, "off")
		g.Len = rapid.Int64Range(1, int64(len(o.Body))-g.Off).Draw(t, "len")
	}
	m.compareGet(t, g)
}

func (m *Machine) getIf(t *rapid.T) {
	g := Get{Key: m.key(t), Len: -1}
	etag := m.someETag(t, g.Key)
	if rapid.Bool().Draw(t, "match") {
		g.IfMatch = etag
	} else {
		g.IfNoneMatch = etag
	}
	m.compareGet(t, g)
}

func (m *Machine) compareGet(t *rapid.T, g Get) {
	got, err := m.o.Objects.Get(t.Context(), g)
	want, wantErr := m.state.Get(g)
	if !same(t, "get", err, wantErr) {
		return
	}
	if !bytes.Equal(got.Body, want.Body) {
		t.Fatalf("get %q [%d, +%d): %d bytes differ from %d", g.Key, g.Off, g.Len, len(got.Body), len(want.Body))
	}
	if got.ETag != want.ETag || got.Type != want.Type || !maps.Equal(got.User, want.User) {
		got.Body, want.Body = nil, nil
		t.Fatalf("get %q: %+v, want %+v", g.Key, got, want)
	}
}

func (m *Machine) remove(t *rapid.T) {
	key := m.key(t)
	if err := m.o.Objects.Delete(t.Context(), key); err != nil {
		t.Fatalf("delete %q: %v", key, err)
	}
	delete(m.state.Objects, key)
}

func (m *Machine) removeMany(t *rapid.T) {
	var keys []string
	for range rapid.IntRange(2, 5).Draw(t, "keys") {
		keys = append(keys, m.key(t))
	}
	if err := m.o.Objects.Delete(t.Context(), keys...); err != nil {
		t.Fatalf("delete %q: %v", keys, err)
	}
	for _, key := range keys {
		delete(m.state.Objects, key)
	}
}

func (m *Machine) copy(t *rapid.T) {
	from, to := m.key(t), m.key(t)
	got, err := m.o.Objects.Copy(t.Context(), from, to)
	want, wantErr := m.state.Copy(from, to)
	if same(t, "copy", err, wantErr) && got != want {
		t.Fatalf("copy %q to %q: ETag %s, want %s", from, to, got, want)
	}
}

func (m *Machine) list(t *rapid.T) {
	m.compareList(t, List{
		Prefix:    m.o.Prefix + rapid.SampledFrom(append(m.o.Tokens, "")).Draw(t, "prefix"),
		Delimiter: rapid.SampledFrom([]string{"", "/", "//", "a/"}).Draw(t, "delimiter"),
		After:     rapid.SampledFrom([]string{"", m.key(t)}).Draw(t, "after"),
		Limit:     rapid.SampledFrom([]int{0, 1, 2, 3, 1000}).Draw(t, "limit"),
	})
}

func (m *Machine) compareList(t *rapid.T, l List) Page {
	got, err := m.o.Objects.List(t.Context(), l)
	if err != nil {
		t.Fatalf("list %+v: %v", l, err)
	}
	want := m.state.List(l)
	if !slices.Equal(got.Entries, want.Entries) || !slices.Equal(got.Prefixes, want.Prefixes) ||
		got.Truncated != want.Truncated {
		t.Fatalf("list %#v:\n got %+v\nwant %+v", l, got, want)
	}
	return got
}

// pages follows a listing to its end.
func (m *Machine) pages(t *rapid.T) {
	l := List{
		Prefix:    m.o.Prefix,
		Delimiter: rapid.SampledFrom([]string{"", "/"}).Draw(t, "delimiter"),
		Limit:     rapid.IntRange(1, 4).Draw(t, "limit"),
	}
	for {
		page := m.compareList(t, l)
		if !page.Truncated {
			return
		}
		if page.Last <= l.After {
			t.Fatalf("list does not move on from %q", l.After)
		}
		l.After = page.Last
	}
}

func (m *Machine) check(t *rapid.T) { m.compareList(t, List{Prefix: m.o.Prefix, Limit: 1000}) }

func (m *Machine) create(t *rapid.T) {
	key := m.key(t)
	contentType := rapid.SampledFrom([]string{"", "text/plain"}).Draw(t, "type")
	id, err := m.o.Uploads.Create(t.Context(), key, contentType)
	if err != nil {
		t.Fatalf("create upload of %q: %v", key, err)
	}
	m.state.Uploads[id] = &Upload{Key: key, Type: contentType, Parts: map[int]Part{}}
}

// upload picks an open upload, in an order that does not depend on the ids.
func (m *Machine) upload(t *rapid.T) (string, *Upload) {
	ids := slices.Sorted(maps.Keys(m.state.Uploads))
	if len(ids) == 0 {
		t.Skip("no upload is open")
	}
	id := ids[rapid.IntRange(0, len(ids)-1).Draw(t, "upload")]
	return id, m.state.Uploads[id]
}

func (m *Machine) part(t *rapid.T) {
	id, u := m.upload(t)
	p := Part{Number: rapid.SampledFrom([]int{1, 2, 3, 7, 10000}).Draw(t, "number"), Body: m.body(t)}
	if rapid.Bool().Draw(t, "large") {
		p.Body = append(p.Body, make([]byte, m.o.MinPart)...)
	}
	var err error
	if p.ETag, err = m.o.Uploads.PutPart(t.Context(), u.Key, id, p); err != nil {
		t.Fatalf("put part %d: %v", p.Number, err)
	}
	u.Parts[p.Number] = p
}

func (m *Machine) complete(t *rapid.T) {
	id, u := m.upload(t)
	var list []Part
	for _, n := range slices.Sorted(maps.Keys(u.Parts)) {
		if rapid.IntRange(0, 3).Draw(t, "listed") > 0 {
			list = append(list, Part{Number: n, ETag: u.Parts[n].ETag})
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "wrong") == 0 && len(list) > 0 {
		list[0].ETag = "00000000000000000000000000000000"
	}
	if len(list) == 0 {
		t.Skip("no part is listed")
	}
	got, err := m.o.Uploads.Complete(t.Context(), u.Key, id, list)
	want, wantErr := m.state.Complete(id, list, m.o.MinPart)
	if !same(t, "complete", err, wantErr) {
		return
	}
	if got != want {
		t.Fatalf("complete %q: ETag %s, want %s", u.Key, got, want)
	}
	m.done = append(m.done, finished{u.Key, id, got, list})
}

// repeat completes once more what was completed: the answer is the same and nothing changes.
func (m *Machine) repeat(t *rapid.T) {
	if len(m.done) == 0 {
		t.Skip("nothing was completed")
	}
	d := m.done[rapid.IntRange(0, len(m.done)-1).Draw(t, "which")]
	got, err := m.o.Uploads.Complete(t.Context(), d.key, d.id, d.list)
	if err != nil || got != d.etag {
		t.Fatalf("complete %q again: %s, %v; want %s", d.key, got, err, d.etag)
	}
	if err := m.o.Uploads.Abort(t.Context(), d.key, d.id); code(err) != NoSuchUpload {
		t.Fatalf("abort of a completed upload: %v", err)
	}
}

func (m *Machine) abort(t *rapid.T) {
	id, u := m.upload(t)
	if err := m.o.Uploads.Abort(t.Context(), u.Key, id); err != nil {
		t.Fatalf("abort: %v", err)
	}
	delete(m.state.Uploads, id)
}
