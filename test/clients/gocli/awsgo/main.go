// Command awsgo carries out orders with the AWS SDK for Go v2: the plain client, the transfer
// manager and the older manager, each with its defaults.
//
// Called by: the driver in test/clients, as a process: one order per line in, one answer per line out.
//
// What it does not do: retries, checksums, signing and addressing of its own: all that is the SDK's.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/penstock-store/penstock/test/clients/gocli/orders"
)

type sdk struct{ c *s3.Client }

func main() {
	cfg, err := config.LoadDefaultConfig(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := sdk{s3.NewFromConfig(cfg)}
	orders.Serve(map[string]orders.Handler{
		"mkbucket": s.makeBucket, "rmbucket": s.removeBucket, "put": s.put, "get": s.get,
		"head": s.head, "upload": s.upload, "download": s.download, "copy": s.copy, "list": s.list,
		"delete": s.delete, "deletemany": s.deleteMany, "presignget": s.presign, "presignput": s.presign,
		"mpstart": s.start, "mplist": s.uploads, "mpabort": s.abort,
	}, refusal)
}

func refusal(err error, a *orders.Answer) {
	var response *awshttp.ResponseError
	if errors.As(err, &response) {
		a.Status = response.HTTPStatusCode()
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		a.Code = api.ErrorCode()
	}
}

func (s sdk) makeBucket(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	_, err := s.c.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &o.Bucket})
	return err
}

func (s sdk) removeBucket(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	_, err := s.c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: &o.Bucket})
	return err
}

// text is nil for "".
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func moment(seconds int64) *time.Time {
	if seconds == 0 {
		return nil
	}
	t := time.Unix(seconds, 0)
	return &t
}

func (s sdk) put(ctx context.Context, o orders.Order, a *orders.Answer) error {
	f, err := os.Open(o.File)
	if err != nil {
		return err
	}
	defer f.Close()
	in := &s3.PutObjectInput{
		Bucket: &o.Bucket, Key: &o.Key, Body: f, Metadata: o.Meta, ContentType: text(o.Type),
		ContentEncoding: text(o.Encoding), CacheControl: text(o.Cache), IfMatch: text(o.IfMatch),
		IfNoneMatch: text(o.IfNoneMatch), ChecksumAlgorithm: types.ChecksumAlgorithm(o.Algo),
	}
	switch {
	case o.Sum == "":
	case o.Algo == "CRC32":
		in.ChecksumCRC32 = &o.Sum
	case o.Algo == "CRC32C":
		in.ChecksumCRC32C = &o.Sum
	case o.Algo == "SHA1":
		in.ChecksumSHA1 = &o.Sum
	case o.Algo == "SHA256":
		in.ChecksumSHA256 = &o.Sum
	case o.Algo == "CRC64NVME":
		in.ChecksumCRC64NVME = &o.Sum
	}
	out, err := s.c.PutObject(ctx, in)
	if err != nil {
		return err
	}
	a.ETag = aws.ToString(out.ETag)
	return nil
}

func (s sdk) get(ctx context.Context, o orders.Order, a *orders.Answer) error {
	out, err := s.c.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &o.Bucket, Key: &o.Key, Range: text(o.Range), IfMatch: text(o.IfMatch), IfNoneMatch: text(o.IfNoneMatch),
		IfModifiedSince: moment(o.IfModified), IfUnmodifiedSince: moment(o.IfUnmodified),
	})
	if err != nil {
		return err
	}
	defer out.Body.Close()
	f, err := os.Create(o.File)
	if err != nil {
		return err
	}
	defer f.Close()
	if a.Size, err = io.Copy(f, out.Body); err != nil {
		return err
	}
	a.ETag, a.Meta, a.Type = aws.ToString(out.ETag), out.Metadata, aws.ToString(out.ContentType)
	a.Encoding, a.Cache = aws.ToString(out.ContentEncoding), aws.ToString(out.CacheControl)
	return f.Close()
}

func (s sdk) head(ctx context.Context, o orders.Order, a *orders.Answer) error {
	out, err := s.c.HeadObject(ctx, &s3.HeadObjectInput{
		Bucket: &o.Bucket, Key: &o.Key, ChecksumMode: types.ChecksumModeEnabled,
	})
	if err != nil {
		return err
	}
	a.Size = aws.ToInt64(out.ContentLength)
	a.ETag, a.Meta, a.Type = aws.ToString(out.ETag), out.Metadata, aws.ToString(out.ContentType)
	a.Encoding, a.Cache = aws.ToString(out.ContentEncoding), aws.ToString(out.CacheControl)
	a.Sums = map[string]string{
		"CRC32": aws.ToString(out.ChecksumCRC32), "CRC32C": aws.ToString(out.ChecksumCRC32C),
		"SHA1": aws.ToString(out.ChecksumSHA1), "SHA256": aws.ToString(out.ChecksumSHA256),
		"CRC64NVME": aws.ToString(out.ChecksumCRC64NVME),
	}
	return nil
}

func (s sdk) upload(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	f, err := os.Open(o.File)
	if err != nil {
		return err
	}
	defer f.Close()
	if o.Way == "manager" {
		//lint:ignore SA1019 the older manager is under test, too
		_, err = manager.NewUploader(s.c).Upload(ctx, &s3.PutObjectInput{Bucket: &o.Bucket, Key: &o.Key, Body: f})
		return err
	}
	_, err = transfermanager.New(s.c).UploadObject(ctx, &transfermanager.UploadObjectInput{
		Bucket: &o.Bucket, Key: &o.Key, Body: f,
	})
	return err
}

func (s sdk) download(ctx context.Context, o orders.Order, _ *orders.Answer) error {
	f, err := os.Create(o.File)
	if err != nil {
		return err
	}
	defer f.Close()
	if o.Way == "manager" {
		//lint:ignore SA1019 the older manager is under test, too
		_, err = manager.NewDownloader(s.c).Download(ctx, f, &s3.GetObjectInput{Bucket: &o.Bucket, Key: &o.Key})
		return errors.Join(err, f.Close())
	}
	_, err = transfermanager.New(s.c).DownloadObject(ctx, &transfermanager.DownloadObjectInput{
		Bucket: &o.Bucket, Key: &o.Key, WriterAt: f,
	})
	return errors.Join(err, f.Close())
}
