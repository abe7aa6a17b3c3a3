package store_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/test/model"
)

// clock is a time that a test sets.
type clock struct{ now time.Time }

func (c *clock) option(o *store.Options) { o.Now = func() time.Time { return c.now } }

// TestConditions: the outcome of every precondition on a GET and on a PUT, as a table made by hand from
// RFC 9110 §13 and S3's documentation.
func TestConditions(t *testing.T) {
	modified := time.Date(2026, 3, 1, 12, 0, 0, 500e6, time.UTC)
	second := modified.Truncate(time.Second)
	c := &clock{modified}
	f := newFixture(t, c.option)
	etag, err := f.direct.Put(t.Context(), model.Put{Key: "key", Body: []byte("x")})
	check(t, err)
	tag := `"` + etag + `"`
	other := `"00000000000000000000000000000000"`
	type cond = store.Conditions
	for _, k := range []struct {
		name            string
		cond            cond
		read, write     error // on the key that exists
		missing         error // a write of one that does not
		skipWriteCommit bool
	}{
		{name: "none"},
		{name: "match", cond: cond{IfMatch: tag}, missing: store.ErrNoSuchKey},
		{name: "match without quotes", cond: cond{IfMatch: etag}, missing: store.ErrNoSuchKey},
		{name: "match in a list", cond: cond{IfMatch: other + " , " + tag}, missing: store.ErrNoSuchKey},
		{name: "match after a tag with a comma", cond: cond{IfMatch: `"a,b" , ` + tag}, missing: store.ErrNoSuchKey},
		{name: "match any", cond: cond{IfMatch: "*"}, missing: store.ErrNoSuchKey},
		{name: "match other", cond: cond{IfMatch: other}, read: store.ErrPrecondition,
			write: store.ErrPrecondition, missing: store.ErrNoSuchKey},
		{name: "match weak", cond: cond{IfMatch: "W/" + tag}, read: store.ErrPrecondition,
			write: store.ErrPrecondition, missing: store.ErrNoSuchKey},
		{name: "match unclosed", cond: cond{IfMatch: `"` + etag}, read: store.ErrPrecondition,
			write: store.ErrPrecondition, missing: store.ErrNoSuchKey},
		{name: "match after something unclosed", cond: cond{IfMatch: tag + `, "x`}, read: store.ErrPrecondition,
			write: store.ErrPrecondition, missing: store.ErrNoSuchKey},
		{name: "match with more behind it", cond: cond{IfMatch: tag + "x"}, read: store.ErrPrecondition,
			write: store.ErrPrecondition, missing: store.ErrNoSuchKey},
		{name: "match any in a list", cond: cond{IfMatch: other + ", *"}, read: store.ErrPrecondition,
			write: store.ErrPrecondition, missing: store.ErrNoSuchKey},
		{name: "match with empty elements", cond: cond{IfMatch: ", ," + tag + ",,"}, missing: store.ErrNoSuchKey},
		{name: "none match unclosed", cond: cond{IfNoneMatch: `"` + etag}, write: store.ErrPrecondition},
		{name: "none match any in a list", cond: cond{IfNoneMatch: other + ", *"}, write: store.ErrPrecondition},
		{name: "none match", cond: cond{IfNoneMatch: tag}, read: store.ErrNotModified, write: store.ErrPrecondition},
		{name: "none match weak", cond: cond{IfNoneMatch: "W/" + tag}, read: store.ErrNotModified,
			write: store.ErrPrecondition},
		{name: "none match any", cond: cond{IfNoneMatch: "*"}, read: store.ErrNotModified,
			write: store.ErrPrecondition},
		{name: "none match other", cond: cond{IfNoneMatch: other}},
		{name: "modified since the same second", cond: cond{IfModifiedSince: second}, read: store.ErrNotModified},
		{name: "modified since before", cond: cond{IfModifiedSince: second.Add(-time.Second)}},
		{name: "modified since, but none match decides",
			cond: cond{IfModifiedSince: second, IfNoneMatch: other}},
		{name: "unmodified since the same second", cond: cond{IfUnmodifiedSince: second}},
		{name: "unmodified since before", cond: cond{IfUnmodifiedSince: second.Add(-time.Second)},
			read: store.ErrPrecondition, write: store.ErrPrecondition},
		{name: "unmodified since before, but match decides",
			cond: cond{IfUnmodifiedSince: second.Add(-time.Second), IfMatch: tag}, missing: store.ErrNoSuchKey},
		{name: "match and none match", cond: cond{IfMatch: tag, IfNoneMatch: tag},
			read: store.ErrNotModified, write: store.ErrPrecondition, missing: store.ErrNoSuchKey},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, err := f.Stat(t.Context(), store.OpenRequest{Bucket: bucket, Key: "key", If: k.cond})
			wantError(t, err, k.read)
			o, err := f.Open(t.Context(), store.OpenRequest{Bucket: bucket, Key: "key", If: k.cond})
			wantError(t, err, k.read)
			if err == nil {
				o.Close()
			}
			source := k.read
			if source != nil {
				source = store.ErrPrecondition
			}
			_, err = f.Copy(t.Context(), store.CopyRequest{
				SourceBucket: bucket, SourceKey: "key", SourceIf: k.cond, Bucket: bucket, Key: "copy",
			})
			wantError(t, err, source)
			put := func(key string) error {
				body := []byte("x")
				read := false
				_, err := f.Put(t.Context(), store.PutRequest{
					Bucket: bucket, Key: key, If: k.cond, Seal: model.SealMD5(body),
					Source: seen{arena.NewBytesSource(f.share, body), &read},
				})
				if read != (err == nil) {
					t.Errorf("payload was read: %v, but %v", read, err)
				}
				return err
			}
			wantError(t, put("key"), k.write)
			wantError(t, put("missing"), k.missing)
			err = f.Delete(t.Context(), store.DeleteRequest{Bucket: bucket, Key: "missing-2", If: k.cond})
			wantError(t, err, k.missing)
			check(t, f.Delete(t.Context(), store.DeleteRequest{Bucket: bucket, Key: "missing"}))
		})
	}
}

// seen tells whether a source was asked for bytes.
type seen struct {
	arena.Source
	read *bool
}

func (s seen) Next(ctx context.Context) (arena.Buffer, error) {
	*s.read = true
	return s.Source.Next(ctx)
}

func TestMissingThings(t *testing.T) {
	f := newFixture(t)
	_, err := f.HeadBucket(t.Context(), "none")
	wantError(t, err, store.ErrNoSuchBucket)
	wantError(t, f.DeleteBucket(t.Context(), "none"), store.ErrNoSuchBucket)
	_, err = f.Open(t.Context(), store.OpenRequest{Bucket: "none", Key: "key"})
	wantError(t, err, store.ErrNoSuchBucket)
	_, err = f.Open(t.Context(), store.OpenRequest{Bucket: bucket, Key: "key"})
	wantError(t, err, store.ErrNoSuchKey)
	_, err = f.Stat(t.Context(), store.OpenRequest{Bucket: bucket, Key: "key"})
	wantError(t, err, store.ErrNoSuchKey)
	_, err = f.List(t.Context(), store.ListRequest{Bucket: "none", Limit: 1})
	wantError(t, err, store.ErrNoSuchBucket)
	_, err = f.direct.Copy(t.Context(), "key", "to")
	wantError(t, err, store.ErrNoSuchKey)
	for _, err := range f.DeleteMany(t.Context(), "none", make([]store.DeleteRequest, 3)) {
		if err == nil {
			t.Fatal("deleted from a bucket that does not exist")
		}
	}
	for _, key := range []string{"", strings.Repeat("k", store.MaxKeyBytes+1)} {
		_, err := f.direct.Put(t.Context(), model.Put{Key: key})
		wantError(t, err, store.ErrTooLarge)
	}
	f.put(t, strings.Repeat("\x00", store.MaxKeyBytes), []byte("the longest key there is"))
	_, err = f.direct.Put(t.Context(), model.Put{
		Key: "key", User: map[string]string{"big": strings.Repeat("x", store.MaxMetaBytes)},
	})
	wantError(t, err, store.ErrTooLarge)
	for _, id := range []string{"", "x", strings.Repeat("0", 32), strings.Repeat("A", 32)} {
		_, err = f.Upload(t.Context(), bucket, "key", id)
		wantError(t, err, store.ErrNoSuchUpload)
		wantError(t, f.Abort(t.Context(), bucket, "key", id), store.ErrNoSuchUpload)
		_, err = f.direct.PutPart(t.Context(), "key", id, model.Part{Number: 1})
		wantError(t, err, store.ErrNoSuchUpload)
		_, err = f.direct.Complete(t.Context(), "key", id, []model.Part{{Number: 1}})
		wantError(t, err, store.ErrNoSuchUpload)
	}
	_, err = f.HeadBucket(canceled(t.Context()), bucket)
	wantError(t, err, context.Canceled)
}

// TestMetadataIsKept: every byte of every field.
func TestMetadataIsKept(t *testing.T) {
	c := &clock{time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)}
	f := newFixture(t, c.option)
	m := store.ObjectMeta{
		ContentType: "text/plain; charset=latin-1", ContentEncoding: "gzip", ContentDisposition: "attachment",
		ContentLanguage: "de", CacheControl: "no-cache", Expires: "never", WebsiteRedirect: "/x",
		StorageClass: "STANDARD", User: map[string]string{"a": "\xe4\xff", "": ""},
		Tags: map[string]string{"k": "v"},
	}
	sums := []store.Checksum{{"CRC32C", "yZRlqg==", false}}
	body := []byte("hello")
	put, err := f.Put(t.Context(), store.PutRequest{
		Bucket: bucket, Key: "key", Meta: m, Source: arena.NewBytesSource(f.share, body),
		Seal: func(_ context.Context, p store.Payload) (store.Digest, error) {
			if p.Size != 5 || p.CRC64NVME != checksum.Sum(body) {
				t.Errorf("payload %+v", p)
			}
			return store.Digest{ETag: "etag", Checksums: sums}, nil
		},
	})
	check(t, err)
	got, err := f.Stat(t.Context(), store.OpenRequest{Bucket: bucket, Key: "key"})
	check(t, err)
	want := store.ObjectInfo{
		Bucket: bucket, Key: "key", Size: 5, ETag: "etag", Modified: c.now, Meta: m,
		CRC64NVME: checksum.Sum(body), Checksums: sums,
	}
	for _, info := range []store.ObjectInfo{put, got} {
		if fmt.Sprintf("%#v", info) != fmt.Sprintf("%#v", want) {
			t.Fatalf("got %#v\nwant %#v", info, want)
		}
	}
	copied, err := f.Copy(t.Context(), store.CopyRequest{
		SourceBucket: bucket, SourceKey: "key", Bucket: bucket, Key: "copy",
		Replace: true, Meta: store.ObjectMeta{ContentType: "other"},
	})
	check(t, err)
	if copied.ETag != "etag" || copied.Checksums[0] != sums[0] || copied.Meta.ContentType != "other" ||
		copied.Meta.User != nil {
		t.Fatalf("%+v", copied)
	}
	if !bytes.Equal(f.get(t, "copy"), body) {
		t.Fatal("other bytes")
	}
}

// TestInline: small payloads come without a buffer; wrong stored bytes are not served.
func TestInline(t *testing.T) {
	f := newFixture(t)
	f.put(t, "small", []byte("0123456789"))
	f.put(t, "large", pattern(store.DefaultInlineBytes+1, 1))
	f.put(t, "empty", nil)
	open := func(key string, off, n int64) *store.Object {
		o, err := f.Open(t.Context(), store.OpenRequest{
			Bucket: bucket, Key: key,
			Range: func(*store.ObjectInfo, int64) (int64, int64, error) { return off, n, nil },
		})
		check(t, err)
		t.Cleanup(o.Close)
		return o
	}
	for _, c := range []struct {
		key    string
		off, n int64
		want   string
		ok     bool
	}{
		{"small", 0, 10, "0123456789", true}, {"small", 3, 4, "3456", true}, {"small", 10, 0, "", true},
		{"large", 0, 5, "", false}, {"empty", 0, 0, "", true},
	} {
		b, ok, err := open(c.key, c.off, c.n).Inline()
		check(t, err)
		if string(b) != c.want || ok != c.ok {
			t.Errorf("%+v: %q, %v", c, b, ok)
		}
	}
	for _, c := range []struct{ off, n int64 }{{-1, 1}, {0, -1}, {0, 11}, {11, 0}, {1, 1<<63 - 1}} {
		_, err := f.Open(t.Context(), store.OpenRequest{
			Bucket: bucket, Key: "small",
			Range: func(*store.ObjectInfo, int64) (int64, int64, error) { return c.off, c.n, nil },
		})
		wantError(t, err, store.ErrRange)
		sink := model.NewCollector(f.share, 0)
		wantError(t, open("small", 0, 10).Read(t.Context(), c.off, c.n, sink), store.ErrRange)
	}
	_, err := f.Open(t.Context(), store.OpenRequest{
		Bucket: bucket, Key: "small",
		Range: func(*store.ObjectInfo, int64) (int64, int64, error) { return 0, 0, errTest },
	})
	wantError(t, err, errTest)
}

// TestReadInPieces reads an object in steps that do not line up with chunks.
func TestReadInPieces(t *testing.T) {
	f := newFixture(t)
	body := pattern(3*chunkBytes+77, 1)
	f.put(t, "key", body)
	o, err := f.Open(t.Context(), store.OpenRequest{
		Bucket: bucket, Key: "key",
		Range: func(_ *store.ObjectInfo, size int64) (int64, int64, error) { return 100, size - 150, nil },
	})
	check(t, err)
	defer o.Close()
	body = body[100 : len(body)-50]
	for off := int64(0); off < o.Len; off += 99_999 {
		n := min(99_999, o.Len-off)
		sink := model.NewCollector(f.share, n)
		check(t, o.Read(t.Context(), off, n, sink))
		check(t, sink.Done(t.Context()))
		if !bytes.Equal(sink.Bytes(), body[off:off+n]) {
			t.Fatalf("other bytes at %d", off)
		}
	}
}

func TestBuckets(t *testing.T) {
	c := &clock{time.Unix(1e9, 0).UTC()}
	f := newFixture(t, c.option, func(o *store.Options) { o.AWSRegion = "us-east-1" })
	for i := range 5 {
		_, err := f.CreateBucket(t.Context(), store.BucketInfo{Name: fmt.Sprint("b-", i), Owner: fmt.Sprint(i % 2)})
		check(t, err)
	}
	_, err := f.CreateBucket(t.Context(), store.BucketInfo{Name: "b-0", Owner: "0"})
	wantError(t, err, store.ErrBucketOwned)
	_, err = f.CreateBucket(t.Context(), store.BucketInfo{Name: "b-0", Owner: "1"})
	wantError(t, err, store.ErrBucketExists)
	for _, name := range []string{"", strings.Repeat("b", 64)} {
		_, err = f.CreateBucket(t.Context(), store.BucketInfo{Name: name})
		wantError(t, err, store.ErrTooLarge)
	}
	b, err := f.HeadBucket(t.Context(), "b-3")
	check(t, err)
	b.ID = 0 // its own test
	if (b != store.BucketInfo{Name: "b-3", Created: c.now, Owner: "1", AWSRegion: "us-east-1"}) {
		t.Fatalf("%+v", b)
	}
	for _, k := range []struct {
		r    store.ListBucketsRequest
		want string
	}{
		{store.ListBucketsRequest{}, "b-0 b-1 b-2 b-3 b-4 bucket false"},
		{store.ListBucketsRequest{Owner: "1"}, "b-1 b-3 false"},
		{store.ListBucketsRequest{Owner: "0", Limit: 2}, "b-0 b-2 true"},
		{store.ListBucketsRequest{Owner: "0", Limit: 2, After: "b-2"}, "b-4 false"},
		{store.ListBucketsRequest{Prefix: "b-", After: "b-3"}, "b-4 false"},
		{store.ListBucketsRequest{Prefix: "b-", After: "a"}, "b-0 b-1 b-2 b-3 b-4 false"},
		{store.ListBucketsRequest{Prefix: "b-", After: "bucket"}, "false"},
		{store.ListBucketsRequest{Prefix: "b-", After: "c"}, "false"},
	} {
		page, err := f.ListBuckets(t.Context(), k.r)
		check(t, err)
		var got []string
		for _, b := range page.Buckets {
			got = append(got, b.Name)
		}
		if s := strings.Join(append(got, fmt.Sprint(page.Truncated)), " "); s != k.want {
			t.Errorf("%+v: %s, want %s", k.r, s, k.want)
		}
	}
	f.put(t, "key", []byte("x"))
	wantError(t, f.DeleteBucket(t.Context(), bucket), store.ErrBucketNotEmpty)
}

// TestDeleteMany deletes 1,000 keys, with preconditions among them.
func TestDeleteMany(t *testing.T) {
	f := newFixture(t)
	var rs []store.DeleteRequest
	for i := range 1000 {
		key := fmt.Sprint("key-", i)
		if i%2 == 0 {
			f.put(t, key, []byte(key))
		}
		r := store.DeleteRequest{Key: key}
		switch i % 8 {
		case 2:
			r.If.IfMatch = `"wrong"`
		case 3:
			r.If.IfMatch = "*" // there is none
		case 4:
			r.If.IfMatch = fmt.Sprintf("%q", fmt.Sprintf("%x", md5.Sum([]byte(key))))
		}
		rs = append(rs, r)
	}
	rs = append(rs, store.DeleteRequest{Key: strings.Repeat("k", 5000)}, store.DeleteRequest{Key: "key-0"})
	for i, err := range f.DeleteMany(t.Context(), bucket, rs) {
		var want error
		switch {
		case i == 1000:
			want = store.ErrTooLarge
		case i < 1000 && i%8 == 2:
			want = store.ErrPrecondition
		case i < 1000 && i%8 == 3:
			want = store.ErrNoSuchKey
		}
		if !errors.Is(err, want) {
			t.Errorf("%d: got %v, want %v", i, err, want)
		}
	}
	page, err := f.List(t.Context(), store.ListRequest{Bucket: bucket, Limit: 1000})
	check(t, err)
	if len(page.Objects) != 125 {
		t.Fatalf("%d objects are left, want those that were refused", len(page.Objects))
	}
}
