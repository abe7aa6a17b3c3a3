package model

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/store"
)

// Direct is a bucket of a store.Store as a store under test.
type Direct struct {
	Store  *store.Store
	Bucket string
	Share  *arena.Share // buffers of payloads on their way
}

var (
	_ Objects = Direct{}
	_ Uploads = Direct{}
)

// codeOf maps the store's sentinels to S3's codes.
func codeOf(err error) error {
	for _, c := range []struct {
		err  error
		code string
	}{
		{store.ErrNoSuchKey, NoSuchKey}, {store.ErrNoSuchUpload, NoSuchUpload},
		{store.ErrPrecondition, Precondition}, {store.ErrNotModified, NotModified},
		{store.ErrInvalidPart, InvalidPart}, {store.ErrPartTooSmall, EntityTooTiny},
		{store.ErrRange, InvalidRange},
	} {
		if errors.Is(err, c.err) {
			return fmt.Errorf("%w: %w", &Error{c.code}, err)
		}
	}
	return err
}

// SealMD5 names a payload by its MD5, as the gateway does for a PUT over HTTP.
func SealMD5(body []byte) store.Seal {
	return func(context.Context, store.Payload) (store.Digest, error) {
		sum := md5.Sum(body)
		return store.Digest{ETag: hex.EncodeToString(sum[:])}, nil
	}
}

// Put implements Objects.
func (d Direct) Put(ctx context.Context, p Put) (string, error) {
	info, err := d.Store.Put(ctx, store.PutRequest{
		Bucket: d.Bucket, Key: p.Key, Meta: store.ObjectMeta{ContentType: p.Type, User: p.User},
		If:     store.Conditions{IfMatch: p.IfMatch, IfNoneMatch: p.IfNoneMatch},
		Source: arena.NewBytesSource(d.Share, p.Body), Seal: SealMD5(p.Body),
	})
	return info.ETag, codeOf(err)
}

// Get implements Objects.
func (d Direct) Get(ctx context.Context, g Get) (Object, error) {
	o, err := d.Store.Open(ctx, store.OpenRequest{
		Bucket: d.Bucket, Key: g.Key, Part: g.Part,
		If: store.Conditions{IfMatch: g.IfMatch, IfNoneMatch: g.IfNoneMatch},
		Range: func(_ *store.ObjectInfo, size int64) (int64, int64, error) {
			if g.Len < 0 {
				return g.Off, size - g.Off, nil
			}
			return g.Off, g.Len, nil
		},
	})
	if err != nil {
		return Object{}, codeOf(err)
	}
	defer o.Close()
	sink := NewCollector(d.Share, o.Len)
	err = o.Read(ctx, 0, o.Len, sink)
	if err := errors.Join(err, sink.Done(ctx)); err != nil {
		return Object{}, codeOf(err)
	}
	return Object{Body: sink.Bytes(), ETag: o.Info.ETag, Type: o.Info.Meta.ContentType, User: o.Info.Meta.User}, nil
}

// Delete implements Objects.
func (d Direct) Delete(ctx context.Context, keys ...string) error {
	if len(keys) == 1 {
		return codeOf(d.Store.Delete(ctx, store.DeleteRequest{Bucket: d.Bucket, Key: keys[0]}))
	}
	rs := make([]store.DeleteRequest, len(keys))
	for i, key := range keys {
		rs[i].Key = key
	}
	return codeOf(errors.Join(d.Store.DeleteMany(ctx, d.Bucket, rs)...))
}

// Copy implements Objects.
func (d Direct) Copy(ctx context.Context, from, to string) (string, error) {
	info, err := d.Store.Copy(ctx, store.CopyRequest{
		SourceBucket: d.Bucket, SourceKey: from, Bucket: d.Bucket, Key: to,
	})
	return info.ETag, codeOf(err)
}

// List implements Objects.
func (d Direct) List(ctx context.Context, l List) (Page, error) {
	got, err := d.Store.List(ctx, store.ListRequest{
		Bucket: d.Bucket, Prefix: l.Prefix, Delimiter: l.Delimiter, StartAfter: l.After, Limit: l.Limit,
	})
	page := Page{Prefixes: got.Prefixes, Truncated: got.Truncated, Last: got.Last}
	for _, o := range got.Objects {
		page.Entries = append(page.Entries, Entry{o.Key, o.ETag, o.Size})
	}
	return page, codeOf(err)
}

// Create implements Uploads.
func (d Direct) Create(ctx context.Context, key, contentType string) (string, error) {
	u, err := d.Store.CreateUpload(ctx, store.UploadRequest{
		Bucket: d.Bucket, Key: key, Meta: store.ObjectMeta{ContentType: contentType},
	})
	return u.ID, codeOf(err)
}

// PutPart implements Uploads.
func (d Direct) PutPart(ctx context.Context, key, id string, p Part) (string, error) {
	info, err := d.Store.PutPart(ctx, store.PartRequest{
		Bucket: d.Bucket, Key: key, UploadID: id, Number: p.Number,
		Source: arena.NewBytesSource(d.Share, p.Body), Seal: SealMD5(p.Body),
	})
	return info.ETag, codeOf(err)
}

// Complete implements Uploads.
func (d Direct) Complete(ctx context.Context, key, id string, list []Part) (string, error) {
	r := store.CompleteRequest{Bucket: d.Bucket, Key: key, UploadID: id, ObjectSize: -1}
	for _, p := range list {
		r.Parts = append(r.Parts, store.CompletePart{Number: p.Number, ETag: `"` + p.ETag + `"`})
	}
	info, err := d.Store.Complete(ctx, r)
	return info.ETag, codeOf(err)
}

// Abort implements Uploads.
func (d Direct) Abort(ctx context.Context, key, id string) error {
	return codeOf(d.Store.Abort(ctx, d.Bucket, key, id))
}

// Collector is a Sink that keeps what it is given. A byte that is delivered twice or out of order is
// an error.
type Collector struct {
	from arena.Allocator
	mu   sync.Mutex
	buf  []byte
	size int64
}

var _ arena.Sink = (*Collector)(nil)

// NewCollector collects exactly size bytes.
func NewCollector(from arena.Allocator, size int64) *Collector {
	return &Collector{from: from, size: size}
}

// Alloc implements arena.Sink.
func (c *Collector) Alloc(ctx context.Context) (arena.Buffer, error) { return c.from.Alloc(ctx) }

// Deliver implements arena.Sink.
func (c *Collector) Deliver(_ context.Context, off int64, b arena.Buffer) error {
	defer b.Release()
	c.mu.Lock()
	defer c.mu.Unlock()
	if off != int64(len(c.buf)) {
		return fmt.Errorf("model: delivery at %d after %d bytes", off, len(c.buf))
	}
	c.buf = append(c.buf, b.Bytes()...)
	return nil
}

// Done implements arena.Sink.
func (c *Collector) Done(context.Context) error {
	if int64(len(c.buf)) != c.size {
		return fmt.Errorf("model: %d bytes delivered instead of %d", len(c.buf), c.size)
	}
	return nil
}

// Bytes is what was delivered.
func (c *Collector) Bytes() []byte { return c.buf }
