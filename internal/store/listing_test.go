package store_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
	"github.com/penstock-store/penstock/internal/store"
)

// touching is a kv engine that counts the records that scans show and the jumps they make.
type touching struct {
	kv.Engine
	touched, jumps atomic.Int64
}

func (e *touching) Snapshot(ctx context.Context) (kv.Snap, error) {
	s, err := e.Engine.Snapshot(ctx)
	return touchingSnap{s, e}, err
}

type touchingSnap struct {
	kv.Snap
	e *touching
}

func (s touchingSnap) Scan(
	ctx context.Context, from, to []byte, fn func(key, value []byte) (kv.Next, error),
) error {
	return s.Snap.Scan(ctx, from, to, func(key, value []byte) (kv.Next, error) {
		s.e.touched.Add(1)
		next, err := fn(key, value)
		if next.Seek != nil {
			s.e.jumps.Add(1)
		}
		return next, err
	})
}

// touches is how many records fn made the store look at.
func (e *touching) touches(fn func()) int64 {
	before := e.touched.Load()
	fn()
	return e.touched.Load() - before
}

// listingFixture counts what listings touch.
func listingFixture(t *testing.T) (*fixture, *touching) {
	t.Helper()
	f := newFixture(t)
	e := &touching{Engine: f.kv}
	f.kv = e
	f.start(t, f.mem)
	return f, e
}

// heads writes the record of an object that was put under many keys, without their payload's detour.
func (f *fixture) heads(t *testing.T, keys func(yield func(string) bool)) {
	t.Helper()
	f.put(t, "~sample", []byte("payload"))
	ctx := t.Context()
	var batch []string
	flush := func() {
		check(t, f.kv.Txn(ctx, func(tx kv.Tx) error {
			b, err := meta.GetBucket(ctx, tx, bucket)
			if err != nil {
				return err
			}
			h, err := meta.GetHead(ctx, tx, b.Id, "~sample")
			for _, key := range batch {
				if err == nil {
					err = meta.PutHead(tx, b.Id, key, h)
				}
			}
			return err
		}))
		batch = batch[:0]
	}
	for key := range keys {
		if batch = append(batch, key); len(batch) == 2000 {
			flush()
		}
	}
	flush()
	check(t, f.Delete(ctx, store.DeleteRequest{Bucket: bucket, Key: "~sample"}))
}

// TestDelimiterTouchesNoKeyBelow: of many keys below ten prefixes, a listing with a delimiter looks at a
// few per prefix. Oracle: the prefixes as they were made, and the number of records that the engine
// showed.
func TestDelimiterTouchesNoKeyBelow(t *testing.T) {
	f, e := listingFixture(t)
	const prefixes = 10
	per := 5_000
	if os.Getenv("PENSTOCK_TEST_LONG") != "" {
		per = 100_000
	}
	var want []string
	f.heads(t, func(yield func(string) bool) {
		for p := range prefixes {
			want = append(want, fmt.Sprintf("p%02d/", p))
			for i := range per {
				if !yield(fmt.Sprintf("p%02d/sub%d/k%08d", p, i*4/per, i)) {
					return
				}
			}
		}
	})
	subs := []string{"p04/sub0/", "p04/sub1/", "p04/sub2/", "p04/sub3/"}
	for _, c := range []struct {
		name         string
		from         store.ListRequest
		want         []string
		perPage, per int64 // records that may be touched
	}{
		{"delimiter", store.ListRequest{Delimiter: "/"}, want, 3, 1},
		{"prefix and delimiter", store.ListRequest{Prefix: "p04/", Delimiter: "/"}, subs, 3, 1},
		{"prefix without its end", store.ListRequest{Prefix: "p0", Delimiter: "/"}, want, 3, 1},
		{"long delimiter", store.ListRequest{Delimiter: "/sub"}, eachPlus(want, "sub"), 3, 1},
		{"marker inside", store.ListRequest{Delimiter: "/", StartAfter: "p04/sub2/k"}, want[5:], 3, 1},
		{"marker is a prefix", store.ListRequest{Delimiter: "/", StartAfter: "p04/"}, want[5:], 3, 1},
		{"marker is a key", store.ListRequest{Delimiter: "/", StartAfter: "p04/sub0/k00000007"}, want[5:], 3, 1},
		{"marker before", store.ListRequest{Delimiter: "/", StartAfter: "p04"}, want[4:], 3, 1},
		{"marker inside, prefix", store.ListRequest{Prefix: "p04/", Delimiter: "/", StartAfter: "p04/sub1/x"},
			subs[2:], 3, 1},
	} {
		for _, limit := range []int{1, 3, 1000} {
			r := c.from
			r.Bucket, r.Limit = bucket, limit
			pages := int64(0)
			var got []string
			touched := e.touches(func() {
				for {
					page, err := f.List(t.Context(), r)
					check(t, err)
					if len(page.Objects) != 0 {
						t.Fatalf("%s: objects %v", c.name, page.Objects)
					}
					got = append(got, page.Prefixes...)
					pages++
					if r.StartAfter = page.Last; !page.Truncated {
						return
					}
				}
			})
			if !slices.Equal(got, c.want) {
				t.Errorf("%s, pages of %d: %q, want %q", c.name, limit, got, c.want)
			}
			if most := c.perPage*pages + c.per*int64(len(c.want)); touched > most {
				t.Errorf("%s, pages of %d: %d records touched for %d prefixes on %d pages, at most %d wanted",
					c.name, limit, touched, len(c.want), pages, most)
			}
		}
	}
}

func eachPlus(list []string, tail string) []string {
	out := slices.Clone(list)
	for i := range out {
		out[i] += tail
	}
	return out
}

// TestPageTouchesItsKeys: a page costs its entries and one record more, wherever it begins.
func TestPageTouchesItsKeys(t *testing.T) {
	f, e := listingFixture(t)
	const total = 50_000
	f.heads(t, func(yield func(string) bool) {
		for i := range total {
			if !yield(fmt.Sprintf("k%08d", i)) {
				return
			}
		}
	})
	for _, c := range []struct {
		r    store.ListRequest
		want int
	}{
		{store.ListRequest{Limit: 1}, 1}, {store.ListRequest{Limit: 1000}, 1000},
		{store.ListRequest{StartAfter: "k00025000", Limit: 1000}, 1000},
		{store.ListRequest{Prefix: "k000499", Limit: 1000}, 100},
		{store.ListRequest{Prefix: "k0004", StartAfter: "k00049998", Limit: 7}, 1},
		{store.ListRequest{StartAfter: "k00049999", Limit: 1000}, 0},
		{store.ListRequest{Delimiter: "#", Limit: 500}, 500}, {store.ListRequest{Limit: 0}, 0},
	} {
		r := c.r
		r.Bucket = bucket
		touched := e.touches(func() {
			page, err := f.List(t.Context(), r)
			check(t, err)
			if len(page.Objects) != c.want {
				t.Errorf("%+v: %d objects, want %d", r, len(page.Objects), c.want)
			}
		})
		if touched > int64(c.want)+1 {
			t.Errorf("%+v: %d records touched for %d entries", r, touched, c.want)
		}
	}
}

// TestUploadAndPartPages: pages of 10,000 parts and of many uploads touch what they answer, and all pages
// together are everything in order. Oracle: the numbers and ids that were written.
func TestUploadAndPartPages(t *testing.T) {
	f, e := listingFixture(t)
	ctx := t.Context()
	up, err := f.CreateUpload(ctx, store.UploadRequest{Bucket: bucket, Key: "parts"})
	check(t, err)
	id, _ := meta.ParseID(up.ID)
	uploads := 20_000
	if os.Getenv("PENSTOCK_TEST_LONG") != "" {
		uploads = 100_000
	}
	write := func(n int, put func(tx kv.Tx, bucket uint64, i int) error) {
		for from := 0; from < n; from += 2000 {
			check(t, f.kv.Txn(ctx, func(tx kv.Tx) error {
				b, err := meta.GetBucket(ctx, tx, bucket)
				for i := from; err == nil && i < min(from+2000, n); i++ {
					err = put(tx, b.Id, i)
				}
				return err
			}))
		}
	}
	write(store.MaxParts, func(tx kv.Tx, _ uint64, i int) error {
		p := &metapb.Part{Size: int64(i), Etag: "etag", ModifiedNs: 1, Payload: &metapb.Payload{}}
		return meta.PutPart(tx, id, i+1, meta.Part{Part: p})
	})
	write(uploads, func(tx kv.Tx, bucket uint64, i int) error {
		u := &metapb.Upload{InitiatedNs: int64(i), Owner: "root"}
		return meta.PutUpload(tx, bucket, fmt.Sprintf("u%06d", i/4), meta.NewUploadID(int64(i)), u)
	})
	next := 1
	for r := (store.PartListRequest{Bucket: bucket, Key: "parts", UploadID: up.ID, Limit: 1000}); ; {
		var page store.PartListPage
		touched := e.touches(func() {
			page, err = f.ListParts(ctx, r)
			check(t, err)
		})
		for _, p := range page.Parts {
			if p.Number != next {
				t.Fatalf("part %d, want %d", p.Number, next)
			}
			next++
		}
		if touched > 1001 {
			t.Fatalf("%d records touched for %d parts", touched, len(page.Parts))
		}
		if r.After = page.Next; !page.Truncated {
			break
		}
	}
	if next != store.MaxParts+1 {
		t.Errorf("parts end at %d", next)
	}
	seen, last := 0, ""
	for r := (store.UploadListRequest{Bucket: bucket, Prefix: "u", Limit: 999}); ; {
		var page store.UploadListPage
		touched := e.touches(func() {
			page, err = f.ListUploads(ctx, r)
			check(t, err)
		})
		for _, u := range page.Uploads {
			if at := u.Key + "\x00" + u.ID; at <= last || u.Key != fmt.Sprintf("u%06d", seen/4) {
				t.Fatalf("upload %d is %q, %q after %q", seen, u.Key, u.ID, last)
			} else {
				last = at
			}
			seen++
		}
		if touched > 1000 {
			t.Fatalf("%d records touched for %d uploads", touched, len(page.Uploads))
		}
		r.KeyMarker, r.UploadIDMarker = page.NextKeyMarker, page.NextUploadIDMarker
		if !page.Truncated {
			break
		}
	}
	if seen != uploads {
		t.Errorf("%d uploads, want %d", seen, uploads)
	}
}

// TestEveryByteOrders: keys with every byte value at every place around the bytes that escapes are made
// of, and keys of 1,024 bytes. Oracle: sort of the strings.
func TestEveryByteOrders(t *testing.T) {
	f, _ := listingFixture(t)
	set := map[string]bool{}
	for b := range 256 {
		c := string([]byte{byte(b)})
		for _, around := range []string{"", "a", "\x00", "\x01", "\x02", "\xfe", "\xff", "\x00\xff", "\x00\x01"} {
			set[around+c] = true
			set[c+around] = true
			set[around+c+around] = true
			set["m"+around+c+"z"] = true
		}
		set[strings.Repeat(c, store.MaxKeyBytes)] = true
		set[strings.Repeat(c, store.MaxKeyBytes-1)] = true
		set[strings.Repeat("\x00", store.MaxKeyBytes-1)+c] = true
		set[strings.Repeat("\xff", store.MaxKeyBytes-1)+c] = true
	}
	var want []string
	for key := range set {
		want = append(want, key)
	}
	slices.Sort(want)
	f.heads(t, slices.Values(want))
	for _, limit := range []int{1000, 997} {
		if got := listAll(t, f, store.ListRequest{Limit: limit}); !slices.Equal(got, want) {
			t.Fatalf("pages of %d: %d keys out of order or missing, want %d", limit, len(got), len(want))
		}
	}
	// Every key of the largest length also as prefix, as what a page starts after, and as a delimiter.
	for i, key := range want {
		if len(key) < store.MaxKeyBytes-1 {
			continue
		}
		page, err := f.List(t.Context(), store.ListRequest{Bucket: bucket, Prefix: key, Limit: 1})
		check(t, err)
		if len(page.Objects) != 1 || page.Objects[0].Key != key {
			t.Fatalf("prefix of %d × %x finds %v", len(key), key[0], page.Objects)
		}
		page, err = f.List(t.Context(), store.ListRequest{Bucket: bucket, StartAfter: key, Limit: 1})
		check(t, err)
		if i+1 < len(want) && (len(page.Objects) != 1 || page.Objects[0].Key != want[i+1]) {
			t.Fatalf("after %d × %x comes %v", len(key), key[0], page.Objects)
		}
		page, err = f.List(t.Context(), store.ListRequest{Bucket: bucket, Delimiter: key, Prefix: "", Limit: 1000,
			StartAfter: justBefore(key)})
		check(t, err)
		if !slices.Contains(page.Prefixes, key) {
			t.Fatalf("delimiter of %d × %x rolls up %q", len(key), key[0], page.Prefixes)
		}
	}
}

// justBefore is a string below key with nothing of the test between.
func justBefore(key string) string {
	if n := len(key) - 1; key[n] == 0 {
		return key[:n]
	}
	return key[:len(key)-1] + string([]byte{key[len(key)-1] - 1})
}

// listAll is a listing page by page; of common prefixes it has their text too.
func listAll(t interface {
	Context() context.Context
	Fatal(...any)
}, f *fixture, r store.ListRequest) []string {
	var all []string
	for r.Bucket = cmp.Or(r.Bucket, bucket); ; {
		page, err := f.List(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		var merged []string
		for _, o := range page.Objects {
			merged = append(merged, o.Key)
		}
		merged = append(merged, page.Prefixes...)
		slices.Sort(merged)
		if all = append(all, merged...); !page.Truncated {
			return all
		}
		if len(merged) != r.Limit || page.Last != merged[len(merged)-1] || page.Last <= r.StartAfter {
			t.Fatal(fmt.Sprintf("a page of %d entries, wanted %d, ends at %q after %q",
				len(merged), r.Limit, page.Last, r.StartAfter))
		}
		r.StartAfter = page.Last
	}
}

// expectedListing is a listing by the rules, of sorted keys.
func expectedListing(keys []string, r store.ListRequest) (entries []string) {
	last := ""
	for _, key := range keys {
		if !strings.HasPrefix(key, r.Prefix) || key <= r.StartAfter {
			continue
		}
		entry := key
		if i := strings.Index(key[len(r.Prefix):], r.Delimiter); r.Delimiter != "" && i >= 0 {
			entry = key[:len(r.Prefix)+i+len(r.Delimiter)]
			if entry <= r.StartAfter || entry == last {
				continue
			}
		}
		last = entry
		entries = append(entries, entry)
	}
	return entries
}

// TestListingModel compares listings of random keys, prefixes, delimiters, starts and page sizes with
// sorted strings.
func TestListingModel(t *testing.T) {
	pieces := []string{"\x00", "\x00\xff", "\x00\x01", "\x01", "\x02", "\xfe", "\xff", "\xff\xff", "a", "b", "/", "//",
		"é", "\U0010ffff", strings.Repeat("k", 300), strings.Repeat("\x00", 300), strings.Repeat("\xff", 300)}
	text := func(least, most int) *rapid.Generator[string] {
		return rapid.Map(rapid.SliceOfN(rapid.SampledFrom(pieces), least, most), func(p []string) string {
			s := strings.Join(p, "")
			return s[:min(len(s), store.MaxKeyBytes)]
		})
	}
	f := newFixture(t)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		name := fmt.Sprintf("run-%06d", run)
		_, err := f.CreateBucket(t.Context(), store.BucketInfo{Name: name, Owner: "root"})
		check(t, err)
		keys := rapid.SliceOfNDistinct(text(1, 5), 0, 40, rapid.ID[string]).Draw(rt, "keys")
		check(t, f.kv.Txn(t.Context(), func(tx kv.Tx) error {
			b, err := meta.GetBucket(t.Context(), tx, name)
			for _, key := range keys {
				if err == nil {
					h := &metapb.Head{Current: &metapb.Version{Etag: "e"}}
					err = meta.PutHead(tx, b.Id, key, meta.Head{Head: h})
				}
			}
			return err
		}))
		slices.Sort(keys)
		for range 8 {
			r := store.ListRequest{
				Bucket: name, Prefix: text(0, 2).Draw(rt, "prefix"), Delimiter: text(0, 2).Draw(rt, "delimiter"),
				StartAfter: text(0, 3).Draw(rt, "start after"), Limit: rapid.IntRange(1, 12).Draw(rt, "limit"),
			}
			if len(keys) > 0 && rapid.Bool().Draw(rt, "start at a key") {
				r.StartAfter = rapid.SampledFrom(keys).Draw(rt, "key")
			}
			if got, want := listAll(rt, f, r), expectedListing(keys, r); !slices.Equal(got, want) {
				rt.Fatalf("%+v\nof %+q\ngives %+q\nwant  %+q", r, keys, got, want)
			}
		}
	})
}
