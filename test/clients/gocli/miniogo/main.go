// Command miniogo carries out orders with minio-go and its defaults.
//
// Called by: the driver in test/clients, as a process: one order per line in, one answer per line out.
//
// What it does not do: anything that a user of the library would not write.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/penstock-store/penstock/test/clients/gocli/orders"
)

type library struct {
	c    *minio.Client
	core minio.Core
}

func main() {
	endpoint, err := url.Parse(os.Getenv("AWS_ENDPOINT_URL"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lookup := minio.BucketLookupAuto
	if os.Getenv("E2E_VIRTUAL") != "" {
		lookup = minio.BucketLookupDNS
	}
	c, err := minio.New(endpoint.Host, &minio.Options{
		Creds: credentials.NewEnvAWS(), Secure: endpoint.Scheme == "https", TrailingHeaders: true, BucketLookup: lookup,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	l := library{c, minio.Core{Client: c}}
	orders.Serve(map[string]orders.Handler{
		"mkbucket": l.makeBucket, "rmbucket": l.removeBucket, "put": l.put, "get": l.get, "head": l.head,
		"upload": l.upload, "download": l.download, "copy": l.copy, "list": l.list, "delete": l.delete,
		"deletemany": l.deleteMany, "presignget": l.presign, "presignput": l.presign, "mpstart": l.start,
		"mplist": l.uploads, "mpabort": l.abort,
	}, refusal)
}

func refusal(err error, a *orders.Answer) {
	r := minio.ToErrorResponse(err)
	a.Status, a.Code = r.StatusCode, r.Code
}

func (l library) makeBucket(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	return l.c.MakeBucket(ctx, o.Bucket, minio.MakeBucketOptions{})
}

func (l library) removeBucket(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	return l.c.RemoveBucket(ctx, o.Bucket)
}

func algorithm(name string) minio.ChecksumType {
	switch name {
	case "CRC32":
		return minio.ChecksumCRC32
	case "CRC32C":
		return minio.ChecksumCRC32C
	case "SHA1":
		return minio.ChecksumSHA1
	case "SHA256":
		return minio.ChecksumSHA256
	case "CRC64NVME":
		return minio.ChecksumCRC64NVME
	}
	return minio.ChecksumNone
}

func (l library) put(ctx context.Context, o orders.Order, a *orders.Answer) error {
	f, err := os.Open(o.File)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	opts := minio.PutObjectOptions{
		UserMetadata: o.Meta, ContentType: o.Type, ContentEncoding: o.Encoding, CacheControl: o.Cache,
		DisableMultipart: true, Checksum: algorithm(o.Algo),
	}
	if o.Sum != "" { // the way to state a sum that is known already
		opts.Checksum = minio.ChecksumNone
		opts.UserMetadata = map[string]string{algorithm(o.Algo).Key(): o.Sum}
	}
	if o.IfMatch != "" {
		opts.SetMatchETag(strings.Trim(o.IfMatch, `"`))
	}
	if o.IfNoneMatch != "" {
		opts.SetMatchETagExcept(o.IfNoneMatch)
	}
	out, err := l.c.PutObject(ctx, o.Bucket, o.Key, f, info.Size(), opts)
	a.ETag = out.ETag
	return err
}

// setRange turns the forms that the cases use into the library's: a-b, a- and -n.
func setRange(opts *minio.GetObjectOptions, text string) error {
	from, to, _ := strings.Cut(strings.TrimPrefix(text, "bytes="), "-")
	if from == "" {
		n, err := strconv.ParseInt(to, 10, 64)
		if err != nil {
			return err
		}
		return opts.SetRange(0, -n)
	}
	first, err := strconv.ParseInt(from, 10, 64)
	if err != nil {
		return err
	}
	if to == "" {
		return opts.SetRange(first, 0)
	}
	last, err := strconv.ParseInt(to, 10, 64)
	if err != nil {
		return err
	}
	return opts.SetRange(first, last)
}

func (l library) get(ctx context.Context, o orders.Order, a *orders.Answer) error {
	var opts minio.GetObjectOptions
	var err error
	if o.Range != "" {
		err = setRange(&opts, o.Range)
	}
	if o.IfMatch != "" {
		err = opts.SetMatchETag(strings.Trim(o.IfMatch, `"`))
	}
	if o.IfNoneMatch != "" {
		err = opts.SetMatchETagExcept(strings.Trim(o.IfNoneMatch, `"`))
	}
	if o.IfModified != 0 {
		err = opts.SetModified(time.Unix(o.IfModified, 0))
	}
	if o.IfUnmodified != 0 {
		err = opts.SetUnmodified(time.Unix(o.IfUnmodified, 0))
	}
	if err != nil {
		return err
	}
	body, info, _, err := l.core.GetObject(ctx, o.Bucket, o.Key, opts)
	if err != nil {
		return err
	}
	defer body.Close()
	f, err := os.Create(o.File)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, body); err != nil {
		return err
	}
	describe(info, a)
	return f.Close()
}

func describe(info minio.ObjectInfo, a *orders.Answer) {
	a.Size, a.ETag, a.Type = info.Size, info.ETag, info.ContentType
	a.Encoding, a.Cache = info.Metadata.Get("Content-Encoding"), info.Metadata.Get("Cache-Control")
	a.Meta = map[string]string{}
	for k, v := range info.UserMetadata {
		a.Meta[strings.ToLower(k)] = v
	}
	a.Sums = map[string]string{
		"CRC32": info.ChecksumCRC32, "CRC32C": info.ChecksumCRC32C, "SHA1": info.ChecksumSHA1,
		"SHA256": info.ChecksumSHA256, "CRC64NVME": info.ChecksumCRC64NVME,
	}
}

func (l library) head(ctx context.Context, o orders.Order, a *orders.Answer) error {
	info, err := l.c.StatObject(ctx, o.Bucket, o.Key, minio.StatObjectOptions{Checksum: true})
	if err == nil {
		describe(info, a)
	}
	return err
}

func (l library) upload(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	_, err := l.c.FPutObject(ctx, o.Bucket, o.Key, o.File, minio.PutObjectOptions{})
	return err
}

func (l library) download(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	return l.c.FGetObject(ctx, o.Bucket, o.Key, o.File, minio.GetObjectOptions{})
}

// copy by parts when a part size is given: two ranges of the source are composed.
func (l library) copy(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	dst := minio.CopyDestOptions{Bucket: o.Bucket, Object: o.Key}
	src := minio.CopySrcOptions{Bucket: o.FromBucket, Object: o.FromKey}
	if o.Part == 0 {
		if o.Meta != nil {
			dst.ReplaceMetadata, dst.UserMetadata, dst.ContentType = true, o.Meta, o.Type
		}
		_, err := l.c.CopyObject(ctx, dst, src)
		return err
	}
	info, err := l.c.StatObject(ctx, o.FromBucket, o.FromKey, minio.StatObjectOptions{})
	if err != nil {
		return err
	}
	var pieces []minio.CopySrcOptions
	for at := int64(0); at < info.Size; at += o.Part {
		piece := src
		piece.MatchRange, piece.Start, piece.End = true, at, min(at+o.Part, info.Size)-1
		pieces = append(pieces, piece)
	}
	_, err = l.c.ComposeObject(ctx, dst, pieces...)
	return err
}

func (l library) list(ctx context.Context, o orders.Order, a *orders.Answer) error {
	if o.Delimiter != "" && o.Delimiter != "/" {
		return orders.CannotError("the only delimiter of a listing is /")
	}
	opts := minio.ListObjectsOptions{Prefix: o.Prefix, Recursive: o.Delimiter == ""}
	for info := range l.c.ListObjects(ctx, o.Bucket, opts) {
		switch {
		case info.Err != nil:
			return info.Err
		case o.Delimiter != "" && info.ETag == "" && strings.HasSuffix(info.Key, "/"):
			a.Prefixes = append(a.Prefixes, info.Key)
		default:
			a.Items = append(a.Items, orders.Item{Key: info.Key, Size: info.Size, ETag: info.ETag})
		}
	}
	return nil
}

func (l library) delete(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	return l.c.RemoveObject(ctx, o.Bucket, o.Key, minio.RemoveObjectOptions{})
}

func (l library) deleteMany(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	keys := make(chan minio.ObjectInfo, len(o.Keys))
	for _, k := range o.Keys {
		keys <- minio.ObjectInfo{Key: k}
	}
	close(keys)
	var all []error
	for e := range l.c.RemoveObjects(ctx, o.Bucket, keys, minio.RemoveObjectsOptions{}) {
		all = append(all, e.Err)
	}
	return errors.Join(all...)
}

func (l library) presign(ctx context.Context, o orders.Order, a *orders.Answer) error {
	var u *url.URL
	var err error
	if o.Op == "presignget" {
		u, err = l.c.PresignedGetObject(ctx, o.Bucket, o.Key, time.Hour, nil)
	} else {
		u, err = l.c.PresignedPutObject(ctx, o.Bucket, o.Key, time.Hour)
	}
	if err == nil {
		a.URL = u.String()
	}
	return err
}

// start begins an upload and sends its first part.
func (l library) start(ctx context.Context, o orders.Order, a *orders.Answer) error {
	f, err := os.Open(o.File)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if a.ID, err = l.core.NewMultipartUpload(ctx, o.Bucket, o.Key, minio.PutObjectOptions{}); err != nil {
		return err
	}
	_, err = l.core.PutObjectPart(ctx, o.Bucket, o.Key, a.ID, 1, f, info.Size(), minio.PutObjectPartOptions{})
	return err
}

func (l library) uploads(ctx context.Context, o orders.Order, a *orders.Answer) error {
	for u := range l.c.ListIncompleteUploads(ctx, o.Bucket, "", true) {
		if u.Err != nil {
			return u.Err
		}
		a.Uploads = append(a.Uploads, orders.Upload{Key: u.Key, ID: u.UploadID})
	}
	return nil
}

func (l library) abort(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	return l.core.AbortMultipartUpload(ctx, o.Bucket, o.Key, o.ID)
}
