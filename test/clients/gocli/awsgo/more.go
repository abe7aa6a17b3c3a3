package main

import (
	"context"
	"fmt"
	"net/url"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/test/clients/gocli/orders"
)

// source is the value of x-amz-copy-source, which the SDK leaves to its caller to encode: as a query,
// since a plus would be a space.
func source(o orders.Order) *string {
	s := url.QueryEscape(o.FromBucket) + "/" + url.QueryEscape(o.FromKey)
	return &s
}

// copy by parts when a part size is given: the SDK has no manager for that.
func (s sdk) copy(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	if o.Part != 0 {
		return s.copyParts(ctx, o)
	}
	in := &s3.CopyObjectInput{Bucket: &o.Bucket, Key: &o.Key, CopySource: source(o)}
	if o.Meta != nil {
		in.MetadataDirective, in.Metadata, in.ContentType = types.MetadataDirectiveReplace, o.Meta, text(o.Type)
	}
	_, err := s.c.CopyObject(ctx, in)
	return err
}

func (s sdk) copyParts(ctx context.Context, o orders.Order) error {
	head, err := s.c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &o.FromBucket, Key: &o.FromKey})
	if err != nil {
		return err
	}
	up, err := s.c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &o.Bucket, Key: &o.Key})
	if err != nil {
		return err
	}
	var parts []types.CompletedPart
	for at, size := int64(0), aws.ToInt64(head.ContentLength); at < size; at += o.Part {
		number := int32(len(parts) + 1)
		span := fmt.Sprintf("bytes=%d-%d", at, min(at+o.Part, size)-1)
		out, err := s.c.UploadPartCopy(ctx, &s3.UploadPartCopyInput{
			Bucket: &o.Bucket, Key: &o.Key, UploadId: up.UploadId, PartNumber: &number, CopySource: source(o),
			CopySourceRange: &span,
		})
		if err != nil {
			return err
		}
		r := out.CopyPartResult
		parts = append(parts, types.CompletedPart{
			PartNumber: &number, ETag: r.ETag, ChecksumCRC32: r.ChecksumCRC32, ChecksumCRC64NVME: r.ChecksumCRC64NVME,
		})
	}
	_, err = s.c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &o.Bucket, Key: &o.Key, UploadId: up.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	return err
}

func (s sdk) list(ctx context.Context, o orders.Order, a *orders.Answer) error {
	pages := s3.NewListObjectsV2Paginator(s.c, &s3.ListObjectsV2Input{
		Bucket: &o.Bucket, Prefix: text(o.Prefix), Delimiter: text(o.Delimiter),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, c := range page.Contents {
			a.Items = append(a.Items, orders.Item{
				Key: aws.ToString(c.Key), Size: aws.ToInt64(c.Size), ETag: aws.ToString(c.ETag),
			})
		}
		for _, p := range page.CommonPrefixes {
			a.Prefixes = append(a.Prefixes, aws.ToString(p.Prefix))
		}
	}
	return nil
}

func (s sdk) delete(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	_, err := s.c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &o.Bucket, Key: &o.Key})
	return err
}

func (s sdk) deleteMany(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	var ids []types.ObjectIdentifier
	for i := range o.Keys {
		ids = append(ids, types.ObjectIdentifier{Key: &o.Keys[i]})
	}
	out, err := s.c.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &o.Bucket, Delete: &types.Delete{Objects: ids}})
	if err == nil && len(out.Errors) != 0 {
		err = fmt.Errorf("delete %q: %s", aws.ToString(out.Errors[0].Key), aws.ToString(out.Errors[0].Code))
	}
	return err
}

func (s sdk) presign(ctx context.Context, o orders.Order, a *orders.Answer) error {
	p := s3.NewPresignClient(s.c)
	if o.Op == "presignget" {
		r, err := p.PresignGetObject(ctx, &s3.GetObjectInput{Bucket: &o.Bucket, Key: &o.Key})
		if err == nil {
			a.URL = r.URL
		}
		return err
	}
	r, err := p.PresignPutObject(ctx, &s3.PutObjectInput{Bucket: &o.Bucket, Key: &o.Key})
	if err == nil {
		a.URL = r.URL
	}
	return err
}

// start begins an upload and sends its first part.
func (s sdk) start(ctx context.Context, o orders.Order, a *orders.Answer) error {
	f, err := os.Open(o.File)
	if err != nil {
		return err
	}
	defer f.Close()
	up, err := s.c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &o.Bucket, Key: &o.Key})
	if err != nil {
		return err
	}
	a.ID = aws.ToString(up.UploadId)
	_, err = s.c.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: &o.Bucket, Key: &o.Key, UploadId: up.UploadId, PartNumber: aws.Int32(1), Body: f,
	})
	return err
}

func (s sdk) uploads(ctx context.Context, o orders.Order, a *orders.Answer) error {
	pages := s3.NewListMultipartUploadsPaginator(s.c, &s3.ListMultipartUploadsInput{Bucket: &o.Bucket})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, u := range page.Uploads {
			a.Uploads = append(a.Uploads, orders.Upload{Key: aws.ToString(u.Key), ID: aws.ToString(u.UploadId)})
		}
	}
	return nil
}

func (s sdk) abort(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	_, err := s.c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: &o.Bucket, Key: &o.Key, UploadId: &o.ID,
	})
	return err
}
