package meta_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/kv/pebble"
	"github.com/penstock-store/penstock/internal/meta/metapb"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newEngine(t *testing.T) kv.Engine {
	t.Helper()
	e, err := pebble.Open(pebble.Config{FS: crashfs.New(crashfs.Options{}), Dir: "meta"})
	check(t, err)
	t.Cleanup(func() { check(t, e.Close()) })
	return e
}

// FuzzKeyOrder: escaping keeps order and prefixes, and every key is read back. Oracle: the unescaped
// strings.
func FuzzKeyOrder(f *testing.F) {
	for _, s := range [][2]string{
		{"", "a"}, {"a", "a\x00"}, {"a\x00", "a\x00\x00"}, {"a\x00\x01", "a\x01"}, {"\x00\xff", "\x00"},
		{"a/", "a/b"}, {"\xff\xff", "\xff"}, {"é", "e\u0301"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ka, kb := meta.HeadKey(7, a), meta.HeadKey(7, b)
		if got, want := bytes.Compare(ka, kb), strings.Compare(a, b); got != want {
			t.Fatalf("%q, %q: order %d, want %d", a, b, got, want)
		}
		heads := meta.Heads(7)
		in := bytes.Compare(ka, heads.First(b)) >= 0 && bytes.Compare(ka, heads.End(b)) < 0
		if in != strings.HasPrefix(a, b) {
			t.Fatalf("%q in the range of prefix %q: %v", a, b, in)
		}
		if got, want := bytes.Compare(ka, heads.After(b)) < 0, a <= b; got != want {
			t.Fatalf("%q before what follows %q: %v", a, b, got)
		}
		key, _, err := heads.Key(ka)
		if err != nil || key != a {
			t.Fatalf("%q read as %q, %v", a, key, err)
		}
		id := meta.NewID()
		key, upload, err := meta.Uploads(7).Key(meta.UploadKey(7, b, id))
		if err != nil || key != b || upload != id {
			t.Fatalf("%q read as %q, %v", b, key, err)
		}
	})
}

// FuzzKeyParse: no bytes make the parser panic, and what it accepts is what HeadKey writes.
func FuzzKeyParse(f *testing.F) {
	f.Add(meta.HeadKey(1, "a\x00b"))
	f.Add([]byte("h12345678a\x00"))
	f.Add([]byte("h12345678a\x00\x02"))
	f.Add([]byte("h12345678a\x00\x01rest"))
	f.Add([]byte("u"))
	f.Fuzz(func(t *testing.T, k []byte) {
		for _, p := range []meta.Prefix{meta.Heads(1), meta.Uploads(1)} {
			key, _, err := p.Key(k)
			if err != nil && !errors.Is(err, meta.ErrCorrupt) {
				t.Fatal(err)
			}
			if err == nil && !bytes.HasPrefix(k[9:], p.First(key)[9:]) {
				t.Fatalf("%x read as %q", k, key)
			}
		}
	})
}

// FuzzDecodeHead: no bytes make the decoder panic or read outside of the value.
func FuzzDecodeHead(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0})
	f.Add([]byte{2, 8, 1, 'x'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, value []byte) {
		h, err := meta.DecodeHead(value)
		if err != nil {
			if !errors.Is(err, meta.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.HasSuffix(value, h.Inline) {
			t.Fatal("the payload is not behind the record")
		}
	})
}

// FuzzDecodeEntry: what a listing reads of a head is what the whole decoder reads of it, and no bytes
// make it panic. Oracle: DecodeHead.
func FuzzDecodeEntry(f *testing.F) {
	for _, h := range []*metapb.Head{
		{Sequence: 1, Current: &metapb.Version{}},
		{Sequence: 1 << 40, Current: &metapb.Version{
			Size: 5 << 40, Etag: "0123456789abcdef0123456789abcdef-12", ModifiedNs: 1 << 60, Crc64Nvme: 1<<63 | 5,
			Checksums: []*metapb.Checksum{{Algorithm: "CRC32C", Value: "yZRlqg=="}, {Algorithm: "SHA1", Composite: true}},
			Meta: &metapb.ObjectMeta{ContentType: "text/plain", StorageClass: "GLACIER\xff",
				User: map[string]string{"a": "b", "storage_class": "8"}},
			Manifest: &metapb.Manifest{Parts: 10000, First: []uint32{1}, Count: []uint32{10000}, Size: []int64{5}},
		}},
		{Current: &metapb.Version{Size: -1, ModifiedNs: -5, Payload: &metapb.Payload{Owner: make([]byte, 16)}}},
	} {
		record, err := proto.Marshal(h)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(binary.AppendUvarint(nil, uint64(len(record))), record...))
		f.Add(append(binary.AppendUvarint(nil, uint64(2*len(record))), append(record, record...)...))
	}
	f.Add([]byte{0})
	f.Add([]byte{4, 18, 2, 11, 12})
	f.Fuzz(func(t *testing.T, value []byte) {
		e, err := meta.DecodeEntry(value)
		if err != nil && !errors.Is(err, meta.ErrCorrupt) {
			t.Fatal(err)
		}
		h, whole := meta.DecodeHead(value)
		if whole != nil {
			return // what Entry steps over is not checked
		}
		if err != nil {
			t.Fatalf("%v of a head that can be read", err)
		}
		v := h.Current
		if e.Size != v.Size || e.ETag != v.Etag || e.ModifiedNs != v.ModifiedNs || e.CRC64NVME != v.Crc64Nvme ||
			e.StorageClass != v.GetMeta().GetStorageClass() || e.Parts != v.GetManifest().GetParts() ||
			!slices.EqualFunc(e.Checksums, v.Checksums, func(a, b *metapb.Checksum) bool { return proto.Equal(a, b) }) {
			t.Fatalf("%+v of %v", e, v)
		}
	})
}

func txn(t *testing.T, e kv.Engine, fn func(tx kv.Tx) error) {
	t.Helper()
	check(t, e.Txn(t.Context(), fn))
}

func snapshot(t *testing.T, e kv.Engine) kv.Snap {
	t.Helper()
	s, err := e.Snapshot(t.Context())
	check(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// TestUnknownFieldsSurvive: a head that a newer binary wrote is rewritten by this one.
func TestUnknownFieldsSurvive(t *testing.T) {
	e := newEngine(t)
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 42)
	head := &metapb.Head{Sequence: 1, Current: &metapb.Version{Size: 3}}
	head.ProtoReflect().SetUnknown(unknown)
	txn(t, e, func(tx kv.Tx) error {
		return meta.PutHead(tx, 1, "key", meta.Head{Head: head, Inline: []byte("abc")})
	})
	txn(t, e, func(tx kv.Tx) error {
		h, err := meta.GetHead(t.Context(), tx, 1, "key")
		if err != nil {
			return err
		}
		h.Sequence++
		return meta.PutHead(tx, 1, "key", h)
	})
	h, err := meta.GetHead(t.Context(), snapshot(t, e), 1, "key")
	check(t, err)
	if h.Sequence != 2 || string(h.Inline) != "abc" || !bytes.Equal(h.ProtoReflect().GetUnknown(), unknown) {
		t.Fatalf("%v, %q", h.Head, h.Inline)
	}
}

// TestStringsHoldAnyByte: header values need not be UTF-8.
func TestStringsHoldAnyByte(t *testing.T) {
	m := &metapb.ObjectMeta{ContentType: "\xff\x00", User: map[string]string{"\xfe": "\xe4"}}
	b, err := proto.Marshal(m)
	check(t, err)
	got := &metapb.ObjectMeta{}
	check(t, proto.Unmarshal(b, got))
	if got.ContentType != m.ContentType || got.User["\xfe"] != "\xe4" {
		t.Fatalf("%v", got)
	}
}

// TestRecordsFitTheirLimits: the largest records stay below kv.MaxValueBytes, and the largest keys
// below kv.MaxKeyBytes.
func TestRecordsFitTheirLimits(t *testing.T) {
	p := &metapb.Payload{Owner: make([]byte, 16)}
	for range meta.ChunksPerPage {
		p.Chunks = append(p.Chunks, &metapb.Chunk{
			Id: make([]byte, 16), Length: 1 << 26, Crc64Nvme: 1 << 63, Data: 10, Parity: 4,
		})
	}
	if n := proto.Size(p); n > 40<<10 {
		t.Errorf("a full list of chunks has %d bytes", n)
	}
	if n := len(meta.UploadKey(1<<63, strings.Repeat("\x00", 1024), meta.NewID())); n > kv.MaxKeyBytes {
		t.Errorf("the largest key has %d bytes", n)
	}
	e := newEngine(t)
	var runs []meta.Run
	for i := range 5000 {
		runs = meta.AppendRun(runs, 2*i+1, 5<<30-int64(i))
	}
	var m *metapb.Manifest
	txn(t, e, func(tx kv.Tx) (err error) {
		m, err = meta.PutManifest(tx, meta.ID{1}, runs)
		return err
	})
	if m.Pages != 2 || m.Parts != 5000 || len(m.First) != 0 {
		t.Fatalf("%v", m)
	}
	got, err := meta.Runs(t.Context(), snapshot(t, e), m)
	check(t, err)
	if !slices.Equal(got, runs) {
		t.Fatal("other runs")
	}
	txn(t, e, func(tx kv.Tx) error { return meta.DeleteManifestPages(t.Context(), tx, meta.ID{1}) })
	if _, err := meta.Runs(t.Context(), snapshot(t, e), m); !errors.Is(err, kv.ErrNotFound) {
		t.Fatal(err)
	}
}

func TestRuns(t *testing.T) {
	var runs []meta.Run
	for _, p := range []struct {
		n    int
		size int64
	}{{1, 5}, {2, 5}, {3, 6}, {5, 6}, {6, 6}, {7, 1}} {
		runs = meta.AppendRun(runs, p.n, p.size)
	}
	want := []meta.Run{{1, 2, 5}, {3, 1, 6}, {5, 2, 6}, {7, 1, 1}}
	if !slices.Equal(runs, want) {
		t.Fatalf("%v", runs)
	}
	if _, err := meta.Runs(t.Context(), nil, &metapb.Manifest{First: []uint32{1}}); !errors.Is(err, meta.ErrCorrupt) {
		t.Fatal(err)
	}
}

func TestIDs(t *testing.T) {
	id := meta.NewUploadID(1 << 40)
	got, ok := meta.ParseID(id.String())
	if !ok || got != id {
		t.Fatal("an id is not read back")
	}
	for _, s := range []string{"", "x", strings.Repeat("0", 31), strings.Repeat("g", 32), strings.Repeat("A", 32)} {
		if _, ok := meta.ParseID(s); ok {
			t.Errorf("%q is read as an id", s)
		}
	}
	if later := meta.NewUploadID(1<<40 + 1); later.String() <= id.String() {
		t.Error("ids do not sort by time")
	}
	if _, err := meta.IDFrom([]byte("short")); !errors.Is(err, meta.ErrCorrupt) {
		t.Error(err)
	}
}

// TestOpen: every start has a new epoch and ends the one before; another layout is refused.
func TestOpen(t *testing.T) {
	e := newEngine(t)
	for want := uint64(1); want <= 3; want++ {
		epoch, err := meta.Open(t.Context(), e, 1)
		check(t, err)
		if epoch != want {
			t.Fatalf("epoch %d, want %d", epoch, want)
		}
		for i := range want + 2 {
			alive, err := meta.EpochAlive(t.Context(), snapshot(t, e), i)
			check(t, err)
			if alive != (i == want) {
				t.Fatalf("epoch %d is alive: %v", i, alive)
			}
		}
	}
	txn(t, e, func(tx kv.Tx) error {
		b, err := proto.Marshal(&metapb.Format{Version: 99})
		if err != nil {
			return err
		}
		return tx.Put([]byte("f"), b)
	})
	if _, err := meta.Open(t.Context(), e, 1); !errors.Is(err, meta.ErrFormat) {
		t.Fatal(err)
	}
}

func TestAccessKeys(t *testing.T) {
	a := meta.AccessKeys{KV: newEngine(t)}
	ctx := t.Context()
	k := meta.AccessKey{
		ID: "AK2", Secret: "hush", Principal: "root", Created: time.Unix(1e9, 5).UTC(), Description: "d",
	}
	check(t, a.Put(ctx, k))
	check(t, a.Put(ctx, meta.AccessKey{ID: "AK1"}))
	got, err := a.Get(ctx, "AK2")
	check(t, err)
	if got != k {
		t.Fatalf("%+v", got)
	}
	all, err := a.List(ctx)
	check(t, err)
	if len(all) != 2 || all[0].ID != "AK1" || all[1] != k {
		t.Fatalf("%+v", all)
	}
	check(t, a.Delete(ctx, "AK2"))
	if _, err := a.Get(ctx, "AK2"); !errors.Is(err, meta.ErrNotFound) {
		t.Fatal(err)
	}
	if err := a.Delete(ctx, "AK2"); !errors.Is(err, meta.ErrNotFound) {
		t.Fatal(err)
	}
	for _, id := range []string{"", strings.Repeat("x", meta.MaxAccessKeyBytes+1)} {
		if err := a.Put(ctx, meta.AccessKey{ID: id}); !errors.Is(err, kv.ErrTooLarge) {
			t.Fatal(err)
		}
	}
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%+v %#v %s", k, k, k.Secret), k.Secret.LogValue().String()} {
		if strings.Contains(s, "hush") {
			t.Fatalf("the secret is printed: %s", s)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := a.Get(ended, "AK1"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestDueGarbage: the queue is read in the order of the due times, and not before.
func TestDueGarbage(t *testing.T) {
	e := newEngine(t)
	txn(t, e, func(tx kv.Tx) error {
		for _, due := range []int64{30, 10, 20, 40, 10} {
			g := &metapb.Garbage{What: &metapb.Garbage_Bucket{Bucket: uint64(due)}}
			if err := meta.PutGarbage(tx, due, g); err != nil {
				return err
			}
		}
		return nil
	})
	var got []uint64
	var after []byte
	for {
		entries, err := meta.DueGarbage(t.Context(), snapshot(t, e), 30, after, 2)
		check(t, err)
		if len(entries) == 0 {
			break
		}
		for _, entry := range entries {
			got = append(got, entry.GetBucket())
			after = entry.Key
		}
	}
	if !slices.Equal(got, []uint64{10, 10, 20, 30}) {
		t.Fatalf("%v", got)
	}
}

// TestPages: a long chunk list is read in order, over its pages.
func TestPages(t *testing.T) {
	e := newEngine(t)
	owner := meta.ID{1}
	p := &metapb.Payload{Owner: owner[:], Pages: 2, Chunks: []*metapb.Chunk{{Length: 1}}}
	txn(t, e, func(tx kv.Tx) error {
		for i := range uint32(2) {
			page := &metapb.ChunkPage{Epoch: 7, Chunks: []*metapb.Chunk{{Length: int64(i) + 2}, {Length: 9}}}
			if err := meta.PutChunkPage(tx, owner, i, page); err != nil {
				return err
			}
		}
		return meta.PutChunkPage(tx, meta.ID{2}, 0, &metapb.ChunkPage{Epoch: 8})
	})
	s := snapshot(t, e)
	var got []int64
	check(t, meta.ScanChunks(t.Context(), s, p, func(c *metapb.Chunk) error {
		got = append(got, c.Length)
		return nil
	}))
	if !slices.Equal(got, []int64{1, 2, 9, 3, 9}) {
		t.Fatalf("%v", got)
	}
	p.Pages = 3
	err := meta.ScanChunks(t.Context(), s, p, func(*metapb.Chunk) error { return nil })
	if !errors.Is(err, kv.ErrNotFound) {
		t.Fatal(err)
	}
	var owners []meta.PageOwner
	check(t, meta.ScanPageOwners(t.Context(), s, nil, func(o meta.PageOwner) (kv.Next, error) {
		owners = append(owners, o)
		return kv.Next{}, nil
	}))
	if !slices.Equal(owners, []meta.PageOwner{{owner, 7}, {meta.ID{2}, 8}}) {
		t.Fatalf("%v", owners)
	}
	n, err := meta.CountChunkPages(t.Context(), s, owner)
	check(t, err)
	if n != 2 {
		t.Fatalf("%d pages", n)
	}
}
