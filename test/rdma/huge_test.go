package rdma

import (
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// moved checks the SDK's own account of a transfer.
func (s *sizer) moved(what string, n int64, md middleware.Metadata) {
	s.t.Helper()
	res, ok := awsrdma.ResultOf(md)
	if !ok || (n > 0 && (res.Path != s.fabric || res.Bytes != n)) {
		s.t.Errorf("%s: %+v, want %d bytes by %s", what, res, n, s.fabric)
	}
}

// huge moves the largest size by each operation in one request. The SDK's payload lies in a window of the program, as
// it would at such sizes; the short form takes each operation once, by one of the clients.
func (s *sizer) huge() {
	s.t.Helper()
	p := newPattern(99)
	s.putOwn(p, "huge", huge())
	s.hugeGetSDK(p, "huge", 0, huge())
	s.remove("huge")
	if long() {
		s.hugePutSDK(p, "huge")
		s.getOwn(p, "huge", huge())
		s.remove("huge")
	}
	for i := range 2 {
		if i == 1 && !long() {
			break
		}
		s.hugeParts(p, "huge-parts", i == 0)
		s.rangeOwn(p, "huge-parts", 12345, huge()-12345)
		if long() {
			s.hugeGetSDK(p, "huge-parts", 54321, huge()-54321)
		}
		s.remove("huge-parts")
	}
}

func (s *sizer) remove(key string) {
	s.t.Helper()
	if err := s.client.Delete(s.t.Context(), bucket, key); err != nil {
		s.t.Error(err)
	}
}

func (s *sizer) hugeGetSDK(p *pattern, key string, off, n int64) {
	s.t.Helper()
	in := &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)}
	if off > 0 {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	}
	out, err := s.svc.GetObject(awsrdma.WithBuffer(s.t.Context(), s.window(n)), in)
	if err != nil {
		s.t.Fatalf("sdk get %s: %v", key, err)
	}
	if err := out.Body.Close(); err != nil {
		s.t.Error(err)
	}
	s.holds("sdk get "+key, p, off, n)
	s.moved("sdk get "+key, n, out.ResultMetadata)
	s.count("GetObject", n)
}

func (s *sizer) hugePutSDK(p *pattern, key string) {
	s.t.Helper()
	w := s.load(p, 0, huge())
	out, err := s.svc.PutObject(awsrdma.WithBuffer(s.t.Context(), w), &s3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String(key),
	})
	if err != nil {
		s.t.Fatalf("sdk put %s: %v", key, err)
	}
	s.holds("sdk put "+key, p, 0, huge())
	s.moved("sdk put "+key, huge(), out.ResultMetadata)
	s.count("PutObject", huge())
}

// hugeParts uploads one part of the largest size, by the SDK or our client.
func (s *sizer) hugeParts(p *pattern, key string, sdk bool) {
	s.t.Helper()
	u, err := s.svc.CreateMultipartUpload(s.t.Context(), &s3.CreateMultipartUploadInput{
		Bucket: aws.String(bucket), Key: aws.String(key),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	w := s.load(p, 0, huge())
	var etag *string
	if sdk {
		out, err := s.svc.UploadPart(awsrdma.WithBuffer(s.t.Context(), w), &s3.UploadPartInput{
			Bucket: aws.String(bucket), Key: aws.String(key), UploadId: u.UploadId, PartNumber: aws.Int32(1),
		})
		if err != nil {
			s.t.Fatalf("sdk part of %s: %v", key, err)
		}
		s.moved("sdk part of "+key, huge(), out.ResultMetadata)
		etag = out.ETag
	} else {
		res, err := s.client.PutPart(s.t.Context(), w, client.PartName{
			Bucket: bucket, Key: key, UploadID: *u.UploadId, Number: 1,
		})
		s.went("part of "+key, huge(), res, err)
		etag = aws.String(res.Object.ETag)
	}
	s.count("UploadPart", huge())
	s.complete(key, u.UploadId, []types.CompletedPart{{ETag: etag, PartNumber: aws.Int32(1)}})
}
