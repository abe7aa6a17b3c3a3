package gateway_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// TestDeleteOnly: a delete by size and date happens exactly when the object has both, by DeleteObject
// and by DeleteObjects; of a key that does not exist it is a success. The oracle is which of the given
// values are the object's.
func TestDeleteOnly(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "only")
	bucket, key := aws.String("only"), aws.String("k")
	code := func(err error) string {
		var e smithy.APIError
		if errors.As(err, &e) {
			return e.ErrorCode()
		}
		return ""
	}
	one := func(size *int64, modified *time.Time) string {
		_, err := c.DeleteObject(ctx, &awss3.DeleteObjectInput{
			Bucket: bucket, Key: key, IfMatchSize: size, IfMatchLastModifiedTime: modified,
		})
		return code(err)
	}
	many := func(size *int64, modified *time.Time) string {
		out := must(c.DeleteObjects(ctx, &awss3.DeleteObjectsInput{Bucket: bucket, Delete: &types.Delete{
			Objects: []types.ObjectIdentifier{{Key: key, Size: size, LastModifiedTime: modified}},
		}}))(t)
		if len(out.Errors) > 0 {
			return *out.Errors[0].Code
		}
		return ""
	}
	for name, del := range map[string]func(*int64, *time.Time) string{"DeleteObject": one, "DeleteObjects": many} {
		for _, size := range []*int64{nil, aws.Int64(3), aws.Int64(4), aws.Int64(0)} {
			for _, shift := range []time.Duration{-1, 0, -time.Second, time.Second} { // -1: not given
				put(t, c, "only", "k", []byte("abc"))
				var modified *time.Time
				if shift != -1 {
					head := must(c.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: bucket, Key: key}))(t)
					modified = aws.Time(head.LastModified.Add(shift))
				}
				want := ""
				if size != nil && *size != 3 || shift == time.Second || shift == -time.Second {
					want = "PreconditionFailed"
				}
				got := del(size, modified)
				_, err := c.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: bucket, Key: key})
				if got != want || (err == nil) != (want != "") {
					t.Errorf("%s size %v, date %v: %q, then %v", name, size, shift, got, err)
				}
			}
		}
		must(c.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: bucket, Key: key}))(t)
		if got := del(aws.Int64(9), aws.Time(time.Unix(1e9, 0))); got != "" {
			t.Errorf("%s of a missing key: %q", name, got)
		}
	}
	sendPut(n, "/only/k", []byte("x"), nil)
	for _, h := range []string{"X-Amz-If-Match-Size", "X-Amz-If-Match-Last-Modified-Time"} {
		got := n.send(request{method: "DELETE", path: "/only/k", header: map[string]string{h: "soon"}})
		wantError(t, got, 400, "InvalidArgument")
	}
	if got := n.send(request{method: "HEAD", path: "/only/k"}); got.status != 200 {
		t.Errorf("a delete that was refused deleted: %d", got.status)
	}
}
