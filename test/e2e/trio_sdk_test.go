package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/test/model"
)

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// renew copies an object onto itself with the metadata that it has.
func (o *trio) renew(ctx context.Context, name client.ObjectName) (string, error) {
	head, err := o.sdk.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: &name.Bucket, Key: &name.Key})
	if err != nil {
		var missing *types.NotFound // HEAD has no body to name the code
		if errors.As(err, &missing) {
			err = &model.Error{Code: model.NoSuchKey}
		}
		return "", err
	}
	if aws.ToString(head.ContentType) == "binary/octet-stream" {
		head.ContentType = nil
	}
	out, err := o.sdk.CopyObject(ctx, &awss3.CopyObjectInput{
		Bucket: &name.Bucket, Key: &name.Key, ContentType: head.ContentType, Metadata: head.Metadata,
		CopySource:        aws.String(name.Bucket + "/" + strings.ReplaceAll(url.QueryEscape(name.Key), "+", "%20")),
		MetadataDirective: types.MetadataDirectiveReplace,
	})
	if err != nil {
		return "", err
	}
	return strings.Trim(*out.CopyObjectResult.ETag, `"`), nil
}

// List implements model.Objects: one page by the SDK, v1 and v2 in turn, and the same entries by the
// client, which follows pages.
func (o *trio) List(ctx context.Context, l model.List) (model.Page, error) {
	o.turn++
	var all [len(paths)]model.Page
	for i := range paths {
		var err error
		if o.turn%2 == 0 {
			all[i], err = o.listV2(ctx, i, l)
		} else {
			all[i], err = o.listV1(ctx, i, l)
		}
		if err == nil && l.Limit > 0 {
			err = o.listByClient(ctx, i, l, all[i])
		}
		if err != nil {
			return model.Page{}, fmt.Errorf("list %+v: %w", l, coded(err))
		}
		a, b := all[i], all[0]
		if !slices.Equal(a.Entries, b.Entries) || !slices.Equal(a.Prefixes, b.Prefixes) || a.Truncated != b.Truncated {
			return model.Page{}, fmt.Errorf("list %+v: %+v after %s, %+v after http", l, a, paths[i], b)
		}
	}
	return all[0], nil
}

func (o *trio) listV2(ctx context.Context, i int, l model.List) (model.Page, error) {
	out, err := o.sdk.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{
		Bucket: &o.buckets[i], Prefix: optional(l.Prefix), Delimiter: optional(l.Delimiter),
		StartAfter: optional(l.After), MaxKeys: aws.Int32(int32(l.Limit)), EncodingType: types.EncodingTypeUrl,
	})
	if err != nil {
		return model.Page{}, err
	}
	if n := len(out.Contents) + len(out.CommonPrefixes); int(*out.KeyCount) != n {
		return model.Page{}, fmt.Errorf("KeyCount %d of %d entries", *out.KeyCount, n)
	}
	if *out.IsTruncated != (aws.ToString(out.NextContinuationToken) != "") {
		return model.Page{}, fmt.Errorf("truncated %v, next token %v", *out.IsTruncated, out.NextContinuationToken)
	}
	return o.page(i, out.Contents, out.CommonPrefixes, *out.IsTruncated)
}

func (o *trio) listV1(ctx context.Context, i int, l model.List) (model.Page, error) {
	out, err := o.sdk.ListObjects(ctx, &awss3.ListObjectsInput{
		Bucket: &o.buckets[i], Prefix: optional(l.Prefix), Delimiter: optional(l.Delimiter),
		Marker: optional(l.After), MaxKeys: aws.Int32(int32(l.Limit)), EncodingType: types.EncodingTypeUrl,
	})
	if err != nil {
		return model.Page{}, err
	}
	page, err := o.page(i, out.Contents, out.CommonPrefixes, *out.IsTruncated)
	if err == nil && page.Truncated && l.Delimiter != "" {
		next, err := url.QueryUnescape(aws.ToString(out.NextMarker))
		if err != nil || next != page.Last {
			return page, fmt.Errorf("next marker %q (%w) after a page up to %q", next, err, page.Last)
		}
	}
	return page, err
}

// page translates the SDK's entries into the model's.
func (o *trio) page(
	i int, objects []types.Object, prefixes []types.CommonPrefix, truncated bool,
) (model.Page, error) {
	page := model.Page{Truncated: truncated}
	for _, c := range objects {
		key, err := url.QueryUnescape(*c.Key)
		if err != nil {
			return page, err
		}
		page.Entries = append(page.Entries, o.entry(i, key, strings.Trim(*c.ETag, `"`), *c.Size))
		page.Last = max(page.Last, key)
	}
	for _, c := range prefixes {
		prefix, err := url.QueryUnescape(*c.Prefix)
		if err != nil {
			return page, err
		}
		page.Prefixes = append(page.Prefixes, prefix)
		page.Last = max(page.Last, prefix)
	}
	return page, nil
}

func (o *trio) entry(i int, key, etag string, size int64) model.Entry {
	if k := o.objects[key]; k != nil && k.own[i] == etag {
		etag = k.etag
	}
	return model.Entry{Key: key, ETag: etag, Size: size}
}

// listByClient compares the page with the first entries that the client lists, in small pages.
func (o *trio) listByClient(ctx context.Context, i int, l model.List, page model.Page) error {
	var entries []model.Entry
	var prefixes []string
	more := false
	opts := client.ListOptions{
		Prefix: l.Prefix, Delimiter: l.Delimiter, StartAfter: l.After, PageKeys: min(l.Limit, 3),
	}
	last := ""
	for e, err := range o.clients[i].List(ctx, o.buckets[i], opts) {
		if err != nil {
			return err
		}
		if more = len(entries)+len(prefixes) == l.Limit; more {
			break
		}
		if cmp.Compare(e.Key, last) <= 0 {
			return fmt.Errorf("client lists %q after %q", e.Key, last)
		}
		last = e.Key
		if e.IsPrefix {
			prefixes = append(prefixes, e.Key)
			continue
		}
		entries = append(entries, o.entry(i, e.Key, e.ETag, e.Bytes))
	}
	if !slices.Equal(entries, page.Entries) || !slices.Equal(prefixes, page.Prefixes) || more != page.Truncated {
		return fmt.Errorf("client lists %+v %+v, the SDK %+v", entries, prefixes, page)
	}
	return nil
}

// Create implements model.Uploads.
func (o *trio) Create(ctx context.Context, key, contentType string) (string, error) {
	u := &knownUpload{etags: map[int]string{}, own: map[int][len(paths)]string{}, sizes: map[int]int{}}
	for i := range paths {
		out, err := o.sdk.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
			Bucket: &o.buckets[i], Key: &key, ContentType: optional(contentType),
		})
		if err != nil {
			return "", coded(err)
		}
		u.ids[i] = *out.UploadId
	}
	id := fmt.Sprintf("upload %06d", len(o.uploads))
	o.uploads[id] = u
	return id, nil
}

// PutPart implements model.Uploads.
func (o *trio) PutPart(ctx context.Context, key, id string, p model.Part) (string, error) {
	u := o.uploads[id]
	var errs [len(paths)]error
	var own [len(paths)]string
	for i := range paths {
		own[i], errs[i] = o.putPart(ctx, i, client.PartName{
			Bucket: o.buckets[i], Key: key, UploadID: u.ids[i], Number: p.Number,
		}, p.Body)
	}
	if err := agree("put part", errs); err != nil {
		return "", err
	}
	u.etags[p.Number], u.own[p.Number], u.sizes[p.Number] = own[0], own, len(p.Body)
	return own[0], nil
}

func (o *trio) putPart(ctx context.Context, i int, part client.PartName, body []byte) (string, error) {
	if len(body) == 0 { // no window has no bytes
		out, err := o.sdk.UploadPart(ctx, &awss3.UploadPartInput{
			Bucket: &part.Bucket, Key: &part.Key, UploadId: &part.UploadID,
			PartNumber: aws.Int32(int32(part.Number)), Body: bytes.NewReader(nil),
		})
		if err != nil {
			return "", coded(err)
		}
		return strings.Trim(*out.ETag, `"`), nil
	}
	m := o.room(i, len(body))
	w := m.load(body)
	res, err := o.clients[i].PutPart(ctx, w, part)
	if touched := m.sent(w, body); touched != nil {
		return "", touched
	}
	if err != nil {
		return "", coded(err)
	}
	o.moved.part[i].Add(int64(len(body)))
	return res.Object.ETag, errors.Join(checkPath(i, res, len(body)), checkETag(res.Path, res.Object.ETag, body))
}

// Complete implements model.Uploads.
func (o *trio) Complete(ctx context.Context, key, id string, list []model.Part) (string, error) {
	u := o.uploads[id]
	var errs [len(paths)]error
	k := &known{parts: true}
	for i := range paths {
		var doc types.CompletedMultipartUpload
		var raw []byte
		for _, p := range list {
			etag := p.ETag
			if etag == u.etags[p.Number] {
				etag = u.own[p.Number][i]
			}
			digits, err := hex.DecodeString(etag[:32])
			if err != nil {
				return "", err
			}
			raw = append(raw, digits...)
			doc.Parts = append(doc.Parts, types.CompletedPart{PartNumber: aws.Int32(int32(p.Number)), ETag: aws.String(etag)})
			k.size += u.sizes[p.Number]
		}
		out, err := o.sdk.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
			Bucket: &o.buckets[i], Key: &key, UploadId: &u.ids[i], MultipartUpload: &doc,
		})
		if err != nil {
			errs[i] = coded(err)
			continue
		}
		k.own[i] = strings.Trim(*out.ETag, `"`)
		if want := fmt.Sprintf("%s-%d", md5Of(raw), len(list)); k.own[i] != want {
			return "", fmt.Errorf("complete after %s: ETag %s, want %s", paths[i], k.own[i], want)
		}
	}
	if err := agree("complete", errs); err != nil {
		return "", err
	}
	k.etag = k.own[0]
	k.size /= len(paths) // counted once per path
	if !u.done {         // a repeated one changes nothing
		u.done = true
		o.objects[key] = k
	}
	return k.etag, nil
}

// Abort implements model.Uploads. Over the wire, an abort of an upload that is gone succeeds, as its
// answer may have been lost; the model says that there is none.
func (o *trio) Abort(ctx context.Context, key, id string) error {
	var errs [len(paths)]error
	for i := range paths {
		_, err := o.sdk.AbortMultipartUpload(ctx, &awss3.AbortMultipartUploadInput{
			Bucket: &o.buckets[i], Key: &key, UploadId: &o.uploads[id].ids[i],
		})
		errs[i] = coded(err)
	}
	if err := agree("abort", errs); err != nil || !o.uploads[id].done {
		return err
	}
	return &model.Error{Code: model.NoSuchUpload}
}
