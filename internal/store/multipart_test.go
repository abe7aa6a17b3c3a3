package store_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/test/model"
)

// TestManyParts completes every other one of 10,000 parts of different sizes, so that the manifest needs
// pages and the parts that are left out as many runs as there can be.
func TestManyParts(t *testing.T) {
	f := newFixture(t, func(o *store.Options) { o.MinPart = 1 })
	id, err := f.direct.Create(t.Context(), "key", "")
	check(t, err)
	var list []model.Part
	var want []byte
	offsets := map[int]int{}
	all(8, func(client int) {
		for n := client + 1; n <= store.MaxParts; n += 8 {
			_, err := f.direct.PutPart(t.Context(), "key", id, model.Part{Number: n, Body: pattern(1+n%251, byte(n))})
			if err != nil {
				t.Error(err)
			}
		}
	})
	for n := 2; n <= store.MaxParts; n += 2 {
		body := pattern(1+n%251, byte(n))
		list = append(list, model.Part{Number: n, ETag: fmt.Sprintf("%x", md5.Sum(body))})
		offsets[n] = len(want)
		want = append(want, body...)
	}
	etag, err := f.direct.Complete(t.Context(), "key", id, list)
	check(t, err)
	f.collect(t)
	if !bytes.Equal(f.get(t, "key"), want) {
		t.Fatal("other bytes")
	}
	info, err := f.Stat(t.Context(), store.OpenRequest{Bucket: bucket, Key: "key", Part: 7532})
	check(t, err)
	if info.ETag != etag || info.PartCount != 5000 || info.Size != int64(len(want)) ||
		info.CRC64NVME != checksum.Sum(want) ||
		info.Part.Number != 7532 || info.Part.Offset != int64(offsets[7532]) || info.Part.Size != 1+7532%251 {
		t.Fatalf("%+v, part %+v", info, info.Part)
	}
	for _, g := range []model.Get{
		{Off: 0, Len: 1}, {Off: 1000, Len: 100_000}, {Off: int64(len(want)) - 1, Len: 1}, {Off: 300_001, Len: 777},
	} {
		g.Key = "key"
		o, err := f.direct.Get(t.Context(), g)
		check(t, err)
		if !bytes.Equal(o.Body, want[g.Off:g.Off+g.Len]) {
			t.Fatalf("other bytes at %+v", g)
		}
	}
	o, err := f.direct.Get(t.Context(), model.Get{Key: "key", Part: 7532, Off: 1, Len: -1})
	check(t, err)
	if !bytes.Equal(o.Body, pattern(1+7532%251, 7532%256)[1:]) {
		t.Fatal("other bytes of a part")
	}
	f.pageThrough(t, list, offsets)
	for _, n := range []int{-1, 1, 7531, 10001} {
		_, err = f.Stat(t.Context(), store.OpenRequest{Bucket: bucket, Key: "key", Part: n})
		wantError(t, err, store.ErrNoSuchPart)
	}
	check(t, f.direct.Delete(t.Context(), "key"))
	f.collect(t)
	f.onlyRecords(t, id)
}

// pageThrough checks the parts that Attributes tells of "key", in pages of several sizes.
func (f *fixture) pageThrough(t *testing.T, want []model.Part, offsets map[int]int) {
	t.Helper()
	for _, limit := range []int{999, 1000, 1250, 5000} {
		after, at := 0, 0
		for more := true; more; {
			a, err := f.Attributes(t.Context(), store.AttributesRequest{
				Bucket: bucket, Key: "key", After: after, Limit: limit,
			})
			check(t, err)
			if n := min(limit, store.MaxListLimit, len(want)-at); len(a.Parts) != n {
				t.Fatalf("pages of %d: %d parts after %d, want %d", limit, len(a.Parts), after, n)
			}
			for _, p := range a.Parts {
				w := want[at]
				if p.Number != w.Number || p.ETag != w.ETag || p.Size != int64(1+w.Number%251) ||
					p.Offset != int64(offsets[w.Number]) {
					t.Fatalf("part %+v, want %d at %d", p, w.Number, offsets[w.Number])
				}
				after, at = p.Number, at+1
			}
			if more = a.Truncated; more != (at < len(want)) {
				t.Fatalf("pages of %d: truncated %v after %d of %d", limit, more, at, len(want))
			}
		}
	}
	a, err := f.Attributes(t.Context(), store.AttributesRequest{Bucket: bucket, Key: "key"})
	check(t, err)
	if len(a.Parts) != 0 || a.Truncated || a.Info.PartCount != len(want) {
		t.Fatalf("without a limit: %d parts of %d", len(a.Parts), a.Info.PartCount)
	}
}

// onlyRecords checks that nothing of an upload is left.
func (f *fixture) onlyRecords(t *testing.T, id string) {
	t.Helper()
	snap, err := f.kv.Snapshot(t.Context())
	check(t, err)
	defer snap.Close()
	upload, _ := meta.ParseID(id)
	for n := range 10 {
		if _, err := meta.GetPart(t.Context(), snap, upload, n*1000+2); err == nil {
			t.Fatalf("part %d is left", n)
		}
	}
	if n := f.chunkCount(t); n != 0 {
		t.Fatalf("%d chunks are left", n)
	}
}

// TestLongChunkList writes an object whose chunk list needs pages.
func TestLongChunkList(t *testing.T) {
	f := newFixture(t, func(o *store.Options) { o.ChunkBytes = bufferBytes })
	lengths := []int{meta.ChunksPerPage, meta.ChunksPerPage + 1, 2*meta.ChunksPerPage + 1}
	if testing.Short() {
		lengths = lengths[1:2]
	}
	for _, chunks := range lengths {
		body := pattern(chunks*bufferBytes-5, byte(chunks))
		f.put(t, "key", body)
		if !bytes.Equal(f.get(t, "key"), body) {
			t.Fatal("other bytes")
		}
		off := int64(len(body) - bufferBytes - 3)
		o, err := f.direct.Get(t.Context(), model.Get{Key: "key", Off: off, Len: bufferBytes})
		check(t, err)
		if !bytes.Equal(o.Body, body[off:off+bufferBytes]) {
			t.Fatal("other bytes in the last page")
		}
	}
	f.emptyBucket(t)
}

// TestPagesOfAFailedWrite: pages that were written before a failure are removed, or found as orphans.
func TestPagesOfAFailedWrite(t *testing.T) {
	for _, works := range []bool{true, false} {
		f := newFixture(t)
		h := &hooked{Engine: f.mem, Pinner: f.mem}
		small := func(o *store.Options) { o.ChunkBytes = bufferBytes }
		f.start(t, h, small)
		if !works {
			h.remove = func() error { return errTest }
		}
		const size = (2*meta.ChunksPerPage + 1) * bufferBytes
		_, err := f.Put(t.Context(), store.PutRequest{
			Bucket: bucket, Key: "key",
			Source: &brokenSource{share: f.share, size: size, n: size, err: errTest},
		})
		wantError(t, err, errTest)
		if f.pageOwners(t) != 0 {
			t.Fatal("pages are left")
		}
		if works && f.chunkCount(t) != 0 {
			t.Fatal("chunks are left")
		}
	}
}

func (f *fixture) pageOwners(t *testing.T) (n int) {
	t.Helper()
	snap, err := f.kv.Snapshot(t.Context())
	check(t, err)
	defer snap.Close()
	check(t, meta.ScanPageOwners(t.Context(), snap, nil, func(meta.PageOwner) (kv.Next, error) {
		n++
		return kv.Next{}, nil
	}))
	return n
}

// TestCompleteChecks: what Complete refuses, and that a refusal changes nothing.
func TestCompleteChecks(t *testing.T) {
	f := newFixture(t)
	id, list := f.upload(t, "key", 3)
	small, err := f.direct.PutPart(t.Context(), "key", id, model.Part{Number: 4, Body: []byte("small")})
	check(t, err)
	whole := bytes.Join([][]byte{pattern(minPart, 0), pattern(minPart, 1), pattern(minPart, 2)}, nil)
	crc := checksum.Base64(checksum.Sum(whole))
	parts := func(ps ...model.Part) (out []store.CompletePart) {
		for _, p := range ps {
			out = append(out, store.CompletePart{Number: p.Number, ETag: p.ETag})
		}
		return out
	}
	good := func() store.CompleteRequest {
		return store.CompleteRequest{Bucket: bucket, Key: "key", UploadID: id, Parts: parts(list...), ObjectSize: -1}
	}
	type request = store.CompleteRequest
	sums := func(algorithm, value string) []store.Checksum {
		return []store.Checksum{{Algorithm: algorithm, Value: value}}
	}
	zero := strings.Repeat("0", 32)
	for name, k := range map[string]struct {
		change func(r *request)
		want   error
	}{
		"no part":      {func(r *request) { r.Parts = nil }, store.ErrInvalidPart},
		"order":        {func(r *request) { r.Parts = parts(list[1], list[0]) }, store.ErrPartOrder},
		"twice":        {func(r *request) { r.Parts = parts(list[1], list[1]) }, store.ErrPartOrder},
		"number 0":     {func(r *request) { r.Parts[0].Number = 0 }, store.ErrInvalidPart},
		"number 10001": {func(r *request) { r.Parts[2].Number = 10001 }, store.ErrInvalidPart},
		"missing last": {func(r *request) { r.Parts[2].Number = 9 }, store.ErrInvalidPart},
		"missing": {func(r *request) {
			r.Parts = parts(list[0], model.Part{Number: 3, ETag: list[1].ETag}, model.Part{Number: 4, ETag: small})
		}, store.ErrInvalidPart},
		"etag":  {func(r *request) { r.Parts[1].ETag = zero }, store.ErrInvalidPart},
		"small": {func(r *request) { r.Parts = append(r.Parts, bigPart(f, t, id)...) }, store.ErrPartTooSmall},
		"size":  {func(r *request) { r.ObjectSize = 1 }, store.ErrSizeMismatch},
		"crc":   {func(r *request) { r.Checksums = sums("CRC64NVME", "AAAAAAAAAAA=") }, store.ErrChecksumMismatch},
		"crc of a part": {func(r *request) {
			r.Parts[0].Checksums = sums("CRC64NVME", crc)
		}, store.ErrInvalidPart},
		"unknown sum of a part": {func(r *request) {
			r.Parts[0].Checksums = sums("SHA1", "x")
		}, store.ErrInvalidPart},
		"unknown sum": {func(r *request) { r.Checksums = sums("SHA1", "x") }, store.ErrChecksumMismatch},
		"seal":        {func(r *request) { r.Seal = refuse }, errTest},
		"if-match":    {func(r *request) { r.If.IfMatch = "*" }, store.ErrNoSuchKey},
		"bucket":      {func(r *request) { r.Bucket = "none" }, store.ErrNoSuchBucket},
		"key":         {func(r *request) { r.Key = "other" }, store.ErrNoSuchUpload},
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			k.change(&r)
			_, err := f.Complete(t.Context(), r)
			wantError(t, err, k.want)
			if f.get(t, "key") != nil {
				t.Fatal("the object is there")
			}
		})
	}
	r := good()
	r.Checksums = []store.Checksum{{"CRC64NVME", crc, false}, {"SHA256", "made-2", true}}
	r.Parts[0].Checksums = []store.Checksum{{"CRC64NVME", checksum.Base64(checksum.Sum(pattern(minPart, 0))), false}}
	r.ObjectSize = 3 * minPart
	r.If.IfNoneMatch = "*"
	r.Parts[1].ETag = `"` + strings.ToUpper(r.Parts[1].ETag) + `"`
	r.Seal = func(u store.UploadInfo, ps []store.PartInfo, p store.Payload) ([]store.Checksum, error) {
		if u.ID != id || len(ps) != 3 || ps[2].Offset != 2*minPart || p.Size != 3*minPart ||
			p.CRC64NVME != checksum.Sum(whole) {
			t.Errorf("%+v %+v %+v", u, ps, p)
		}
		return []store.Checksum{{"SHA256", "made-2", true}}, nil
	}
	info, err := f.Complete(t.Context(), r)
	check(t, err)
	again, err := f.Complete(t.Context(), r) // S3_21, although there is an object now
	check(t, err)
	if fmt.Sprintf("%+v", info) != fmt.Sprintf("%+v", again) || !info.Checksums[0].Composite || info.PartCount != 3 {
		t.Fatalf("%+v\n%+v", info, again)
	}
	r.Parts = r.Parts[:2]
	_, err = f.Complete(t.Context(), r)
	wantError(t, err, store.ErrNoSuchUpload)
	if !bytes.Equal(f.get(t, "key"), whole) {
		t.Fatal("other bytes")
	}
	f.emptyBucket(t)
}

func refuse(store.UploadInfo, []store.PartInfo, store.Payload) ([]store.Checksum, error) {
	return nil, errTest
}

// bigPart adds the small part 4 and one behind it.
func bigPart(f *fixture, t *testing.T, id string) []store.CompletePart {
	etag, err := f.direct.PutPart(t.Context(), "key", id, model.Part{Number: 5, Body: []byte("last")})
	check(t, err)
	small := md5.Sum([]byte("small"))
	return []store.CompletePart{{Number: 4, ETag: hex.EncodeToString(small[:])}, {Number: 5, ETag: etag}}
}

// TestRDMAPartETag: of a part that was written by RDMA the 16 raw bytes count, not the suffix.
func TestRDMAPartETag(t *testing.T) {
	f := newFixture(t)
	id, err := f.direct.Create(t.Context(), "key", "")
	check(t, err)
	const raw = "00112233445566778899aabbccddeeff"
	_, err = f.PutPart(t.Context(), store.PartRequest{
		Bucket: bucket, Key: "key", UploadID: id, Number: 1, Source: arena.NewBytesSource(f.share, []byte("x")),
		Seal: func(context.Context, store.Payload) (store.Digest, error) { return store.Digest{ETag: raw + "-1"}, nil },
	})
	check(t, err)
	etag, err := f.direct.Complete(t.Context(), "key", id, []model.Part{{Number: 1, ETag: raw + "-1"}})
	check(t, err)
	b, err := hex.DecodeString(raw)
	check(t, err)
	if want := fmt.Sprintf("%x-1", md5.Sum(b)); etag != want {
		t.Fatalf("%s, want %s", etag, want)
	}
}

// TestPartNumbers: part 1 of an object written in one piece is the whole, others do not exist.
func TestPartNumbers(t *testing.T) {
	f := newFixture(t)
	f.put(t, "key", []byte("0123456789"))
	o, err := f.direct.Get(t.Context(), model.Get{Key: "key", Part: 1, Len: -1})
	check(t, err)
	if string(o.Body) != "0123456789" {
		t.Fatalf("%q", o.Body)
	}
	_, err = f.Open(t.Context(), store.OpenRequest{Bucket: bucket, Key: "key", Part: 2})
	wantError(t, err, store.ErrNoSuchPart)
	id, _ := f.upload(t, "up", 1)
	for _, n := range []int{-1, 0, 10001} {
		_, err := f.direct.PutPart(t.Context(), "up", id, model.Part{Number: n})
		wantError(t, err, store.ErrInvalidPart)
	}
}

// TestCopyPart copies ranges that line up with nothing, of an object of several parts.
func TestCopyPart(t *testing.T) {
	f := newFixture(t)
	id, list := f.upload(t, "source", 3)
	_, err := f.direct.Complete(t.Context(), "source", id, list)
	check(t, err)
	source := f.get(t, "source")
	id, err = f.direct.Create(t.Context(), "key", "")
	check(t, err)
	var want []byte
	var parts []store.CompletePart
	for i, c := range []struct{ off, n int64 }{{0, -1}, {1, minPart + 1}, {minPart - 3, 2 * minPart}, {7, 9}} {
		hash := md5.New()
		r := store.CopyPartRequest{
			SourceBucket: bucket, SourceKey: "source", Off: c.off, Len: c.n,
			Bucket: bucket, Key: "key", UploadID: id, Number: i + 1,
		}
		if i == 1 {
			r.Hash = hash
			r.Seal = func(context.Context, store.Payload) (store.Digest, error) {
				return store.Digest{ETag: hex.EncodeToString(hash.Sum(nil))}, nil
			}
		}
		info, err := f.CopyPart(t.Context(), r)
		check(t, err)
		body := source[c.off:]
		if c.n >= 0 {
			body = body[:c.n]
		}
		if want := fmt.Sprintf("%x", md5.Sum(body)); info.ETag != want || info.CRC64NVME != checksum.Sum(body) {
			t.Fatalf("part %d: %+v", i+1, info)
		}
		want = append(want, body...)
		parts = append(parts, store.CompletePart{Number: i + 1, ETag: info.ETag})
	}
	for _, c := range []struct{ off, n int64 }{{int64(len(source)) + 1, -1}, {0, int64(len(source)) + 1}, {-1, 1}} {
		_, err := f.CopyPart(t.Context(), store.CopyPartRequest{
			SourceBucket: bucket, SourceKey: "source", Off: c.off, Len: c.n,
			Bucket: bucket, Key: "key", UploadID: id, Number: 9,
		})
		wantError(t, err, store.ErrRange)
	}
	_, err = f.Complete(t.Context(), store.CompleteRequest{
		Bucket: bucket, Key: "key", UploadID: id, Parts: parts, ObjectSize: int64(len(want)),
	})
	check(t, err)
	if !bytes.Equal(f.get(t, "key"), want) {
		t.Fatal("other bytes")
	}
	f.emptyBucket(t)
}

// TestCopyRefused: no buffers, a hash that fails, a seal that refuses.
func TestCopyRefused(t *testing.T) {
	f := newFixture(t)
	f.put(t, "key", pattern(3*chunkBytes, 1))
	request := store.CopyRequest{SourceBucket: bucket, SourceKey: "key", Bucket: bucket, Key: "copy"}
	r := request
	r.Seal = func(context.Context, store.Payload) (store.Digest, error) { return store.Digest{}, errTest }
	_, err := f.Copy(t.Context(), r)
	wantError(t, err, errTest)
	r = request
	r.Seal, r.Hash = model.SealMD5(nil), brokenHash{}
	_, err = f.Copy(t.Context(), r)
	wantError(t, err, errTest)
	f.start(t, f.mem, func(o *store.Options) { o.CopyShare = nil })
	_, err = f.Copy(t.Context(), request)
	wantError(t, err, store.ErrUnavailable)
	if n := f.chunkCount(t); n != 3 {
		t.Fatalf("%d chunks", n)
	}
}

// TestBeforeCommit: the last question before a copy is committed is asked after all bytes were written; its error
// stores nothing.
func TestBeforeCommit(t *testing.T) {
	f := newFixture(t)
	f.put(t, "source", pattern(3*chunkBytes, 1))
	id, err := f.direct.Create(t.Context(), "parts", "")
	check(t, err)
	for _, want := range []error{errTest, nil} {
		chunks := f.chunkCount(t)
		asked := 0
		before := func() error {
			if asked++; f.chunkCount(t) != chunks+3 {
				t.Errorf("asked with %d chunks, %d before the copy", f.chunkCount(t), chunks)
			}
			return want
		}
		_, err := f.Copy(t.Context(), store.CopyRequest{
			SourceBucket: bucket, SourceKey: "source", Bucket: bucket, Key: "copy", BeforeCommit: before,
		})
		wantError(t, err, want)
		if got := f.get(t, "copy"); (got != nil) != (want == nil) {
			t.Errorf("%v: a copy of %d bytes", want, len(got))
		}
		chunks = f.chunkCount(t)
		_, err = f.CopyPart(t.Context(), store.CopyPartRequest{
			SourceBucket: bucket, SourceKey: "source", Len: -1, Bucket: bucket, Key: "parts", UploadID: id, Number: 1,
			BeforeCommit: before,
		})
		wantError(t, err, want)
		page, err := f.ListParts(t.Context(), store.PartListRequest{Bucket: bucket, Key: "parts", UploadID: id, Limit: 9})
		check(t, err)
		if (len(page.Parts) == 1) != (want == nil) || asked != 2 {
			t.Errorf("%v: %d parts, asked %d times", want, len(page.Parts), asked)
		}
	}
}

type brokenHash struct{}

func (brokenHash) Write([]byte) (int, error) { return 0, errTest }

var _ io.Writer = brokenHash{}

// TestS3_71_ListUploads pages through uploads and parts.
func TestS3_71_ListUploads(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	f := newFixture(t, c.option)
	var want []string
	names := map[string]string{}
	for _, key := range []string{"a", "a", "a", "b/1", "b/2", "c", "\x00"} {
		u, err := f.CreateUpload(t.Context(), store.UploadRequest{Bucket: bucket, Key: key, Owner: "root"})
		check(t, err)
		names[u.ID] = key + fmt.Sprint(c.now.Unix()-1e9)
		c.now = c.now.Add(time.Second)
	}
	want = []string{"\x006", "a0", "a1", "a2", "b/13", "b/24", "c5"} // by key, then by time
	for limit := 1; limit < 9; limit++ {
		var got []string
		r := store.UploadListRequest{Bucket: bucket, Limit: limit}
		for {
			page, err := f.ListUploads(t.Context(), r)
			check(t, err)
			for _, u := range page.Uploads {
				got = append(got, names[u.ID])
			}
			if !page.Truncated {
				break
			}
			if len(page.Uploads) != limit {
				t.Fatalf("a page of %d", len(page.Uploads))
			}
			r.KeyMarker, r.UploadIDMarker = page.NextKeyMarker, page.NextUploadIDMarker
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Fatalf("limit %d: %q", limit, got)
		}
	}
	list := func(r store.UploadListRequest) (store.UploadListPage, error) { return f.ListUploads(t.Context(), r) }
	page, err := list(store.UploadListRequest{Bucket: bucket, Delimiter: "/", KeyMarker: "a", Limit: 1})
	check(t, err)
	if len(page.Uploads) != 0 || page.Prefixes[0] != "b/" || !page.Truncated || page.NextKeyMarker != "b/" {
		t.Fatalf("%+v", page)
	}
	page, err = list(store.UploadListRequest{Bucket: bucket, Delimiter: "/", KeyMarker: "b/", Limit: 9})
	check(t, err)
	if len(page.Uploads) != 1 || len(page.Prefixes) != 0 || page.Truncated {
		t.Fatalf("%+v", page)
	}
	_, err = list(store.UploadListRequest{Bucket: bucket, KeyMarker: "a", UploadIDMarker: "x", Limit: 9})
	wantError(t, err, store.ErrInvalidMarker)
	_, err = list(store.UploadListRequest{Bucket: "none", Limit: 9})
	wantError(t, err, store.ErrNoSuchBucket)
}

func TestS3_71_ListParts(t *testing.T) {
	f := newFixture(t)
	u, err := f.CreateUpload(t.Context(), store.UploadRequest{
		Bucket: bucket, Key: "key", Owner: "root", ChecksumAlgorithm: "CRC32", ChecksumType: "COMPOSITE",
		Meta: store.ObjectMeta{StorageClass: "STANDARD"},
	})
	check(t, err)
	for _, n := range []int{10000, 5, 1} { // any order, gaps
		_, err := f.direct.PutPart(t.Context(), "key", u.ID, model.Part{Number: n, Body: pattern(n, 1)})
		check(t, err)
	}
	_, err = f.direct.PutPart(t.Context(), "key", u.ID, model.Part{Number: 5, Body: pattern(6, 1)}) // again
	check(t, err)
	for _, k := range []struct {
		after, limit int
		want         string
	}{
		{0, 9, "1:1 5:6 10000:10000 false"}, {0, 2, "1:1 5:6 true"}, {5, 2, "10000:10000 false"},
		{1, 1, "5:6 true"}, {10000, 1, "false"}, {1 << 40, 1, "false"}, {-5, 1, "1:1 true"}, {0, 0, "false"},
	} {
		page, err := f.ListParts(t.Context(), store.PartListRequest{
			Bucket: bucket, Key: "key", UploadID: u.ID, After: k.after, Limit: k.limit,
		})
		check(t, err)
		var got []string
		for _, p := range page.Parts {
			got = append(got, fmt.Sprintf("%d:%d", p.Number, p.Size))
		}
		if s := strings.Join(append(got, fmt.Sprint(page.Truncated)), " "); s != k.want {
			t.Errorf("%+v: %s", k, s)
		}
		if page.Upload != u {
			t.Errorf("%+v, want %+v", page.Upload, u)
		}
	}
	info, err := f.Upload(t.Context(), bucket, "key", u.ID)
	check(t, err)
	if info != u {
		t.Fatalf("%+v, want %+v", info, u)
	}
}
