package gateway_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

func randomBytes(n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 7))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func etagOf(p []byte) string {
	sum := md5.Sum(p)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// wantCode checks the S3 code of an SDK error.
func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != code {
		t.Fatalf("got %v, want %s", err, code)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func makeBucket(t testing.TB, c *awss3.Client, name string) {
	t.Helper()
	in := &awss3.CreateBucketInput{Bucket: &name, CreateBucketConfiguration: &types.CreateBucketConfiguration{
		LocationConstraint: testRegion,
	}}
	if _, err := c.CreateBucket(context.Background(), in); err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, c *awss3.Client, bucket, key string, p []byte) *awss3.PutObjectOutput {
	t.Helper()
	in := &awss3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(p)}
	return must(c.PutObject(context.Background(), in))(t)
}

func get(t testing.TB, c *awss3.Client, bucket, key string) []byte {
	t.Helper()
	out := must(c.GetObject(context.Background(), &awss3.GetObjectInput{Bucket: &bucket, Key: &key}))(t)
	defer out.Body.Close()
	return must(io.ReadAll(out.Body))(t)
}

// TestSDKObjects drives whole objects of every kind of storage (inline, one chunk, several chunks)
// through the SDK with its default checksums, and checks the bytes, MD5 ETags and metadata.
func TestSDKObjects(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "objects")
	for _, size := range []int{0, 1, 4096, 16 << 10, 16<<10 + 1, 64 << 10, 64<<10 + 1, 1<<20 + 7, 9<<20 + 3} {
		key, p := fmt.Sprintf("dir/%d and ü+%%.bin", size), randomBytes(size)
		in := &awss3.PutObjectInput{
			Bucket: aws.String("objects"), Key: &key, Body: bytes.NewReader(p), ContentType: aws.String("x/y"),
			CacheControl: aws.String("no-cache"), Metadata: map[string]string{"color": "blue", "x-y": "1 2"},
		}
		out := must(c.PutObject(ctx, in))(t)
		if *out.ETag != etagOf(p) {
			t.Errorf("%d bytes: ETag %s, want %s", size, *out.ETag, etagOf(p))
		}
		if out.ChecksumCRC32 == nil {
			t.Errorf("%d bytes: the SDK's CRC32 is not echoed", size)
		}
		got := must(c.GetObject(ctx, &awss3.GetObjectInput{
			Bucket: aws.String("objects"), Key: &key, ChecksumMode: types.ChecksumModeEnabled,
		}))(t)
		body := must(io.ReadAll(got.Body))(t)
		got.Body.Close()
		if !bytes.Equal(body, p) {
			t.Errorf("%d bytes: read back %d others", size, len(body))
		}
		if *got.ContentType != "x/y" || *got.CacheControl != "no-cache" || got.Metadata["color"] != "blue" ||
			got.Metadata["x-y"] != "1 2" || *got.ETag != etagOf(p) || *got.ContentLength != int64(size) {
			t.Errorf("%d bytes: headers %+v", size, got)
		}
		if got.ChecksumCRC32 == nil || *got.ChecksumCRC32 != *out.ChecksumCRC32 {
			t.Errorf("%d bytes: stored checksum %v", size, got.ChecksumCRC32)
		}
		head := must(c.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: aws.String("objects"), Key: &key}))(t)
		if *head.ContentLength != int64(size) || *head.ETag != *out.ETag ||
			!head.LastModified.Equal(*got.LastModified) {
			t.Errorf("%d bytes: head %+v", size, head)
		}
	}
	_, err := c.GetObject(ctx, &awss3.GetObjectInput{Bucket: aws.String("objects"), Key: aws.String("nope")})
	wantCode(t, err, "NoSuchKey")
	_, err = c.GetObject(ctx, &awss3.GetObjectInput{Bucket: aws.String("nobucket"), Key: aws.String("nope")})
	wantCode(t, err, "NoSuchBucket")
	_, err = c.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: aws.String("objects"), Key: aws.String("nope")})
	wantCode(t, err, "NotFound")
}

// TestSDKChecksums sends every algorithm, right and wrong.
func TestSDKChecksums(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "sums")
	p := randomBytes(100_000)
	for _, a := range types.ChecksumAlgorithm("").Values() {
		key := string(a)
		in := &awss3.PutObjectInput{
			Bucket: aws.String("sums"), Key: &key, Body: bytes.NewReader(p), ChecksumAlgorithm: a,
		}
		_, err := c.PutObject(ctx, in)
		if err != nil {
			switch a {
			case "CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256":
				t.Errorf("%s: %v", a, err)
			}
			continue // the SDK does not compute it
		}
		if got := get(t, c, "sums", key); !bytes.Equal(got, p) {
			t.Errorf("%s: other bytes", a)
		}
	}
	wrong := &awss3.PutObjectInput{
		Bucket: aws.String("sums"), Key: aws.String("wrong"), Body: bytes.NewReader(p),
		ChecksumCRC32: aws.String("AAAAAA=="),
	}
	_, err := c.PutObject(ctx, wrong)
	wantCode(t, err, "BadDigest")
	wrong = &awss3.PutObjectInput{
		Bucket: aws.String("sums"), Key: aws.String("wrong"), Body: bytes.NewReader(p),
		ContentMD5: aws.String("1B2M2Y8AsgTpgAmY7PhCfg=="),
	}
	_, err = c.PutObject(ctx, wrong)
	wantCode(t, err, "BadDigest")
	_, err = c.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: aws.String("sums"), Key: aws.String("wrong")})
	wantCode(t, err, "NotFound")
}

func TestSDKBuckets(t *testing.T) {
	n := newNode(t)
	root, alice, ctx := n.root(), n.alice(), context.Background()
	makeBucket(t, root, "roots")
	makeBucket(t, alice, "alices")
	_, err := alice.CreateBucket(ctx, &awss3.CreateBucketInput{Bucket: aws.String("roots")})
	wantCode(t, err, "BucketAlreadyExists")
	_, err = alice.CreateBucket(ctx, &awss3.CreateBucketInput{Bucket: aws.String("alices")})
	wantCode(t, err, "BucketAlreadyOwnedByYou")
	_, err = root.CreateBucket(ctx, &awss3.CreateBucketInput{Bucket: aws.String("Bad_Name")})
	wantCode(t, err, "InvalidBucketName")

	names := func(c *awss3.Client) string {
		out := must(c.ListBuckets(ctx, &awss3.ListBucketsInput{}))(t)
		var all []string
		for _, b := range out.Buckets {
			all = append(all, *b.Name)
		}
		return strings.Join(all, " ")
	}
	if got := names(alice); got != "alices" {
		t.Errorf("alice sees %q", got)
	}
	if got := names(root); got != "alices roots" {
		t.Errorf("root sees %q", got)
	}
	page := must(root.ListBuckets(ctx, &awss3.ListBucketsInput{MaxBuckets: aws.Int32(1)}))(t)
	if len(page.Buckets) != 1 || page.ContinuationToken == nil {
		t.Fatalf("page of one: %+v", page)
	}
	page = must(root.ListBuckets(ctx, &awss3.ListBucketsInput{ContinuationToken: page.ContinuationToken}))(t)
	if len(page.Buckets) != 1 || *page.Buckets[0].Name != "roots" || page.ContinuationToken != nil {
		t.Errorf("second page: %+v", page)
	}

	put(t, alice, "alices", "k", []byte("x"))
	if got := get(t, root, "alices", "k"); string(got) != "x" {
		t.Errorf("root reads %q", got)
	}
	_, err = alice.GetObject(ctx, &awss3.GetObjectInput{Bucket: aws.String("roots"), Key: aws.String("k")})
	wantCode(t, err, "AccessDenied")
	_, err = alice.DeleteBucket(ctx, &awss3.DeleteBucketInput{Bucket: aws.String("roots")})
	wantCode(t, err, "AccessDenied")
	_, err = alice.CopyObject(ctx, &awss3.CopyObjectInput{
		Bucket: aws.String("alices"), Key: aws.String("c"), CopySource: aws.String("roots/k"),
	})
	wantCode(t, err, "AccessDenied")

	loc := must(alice.GetBucketLocation(ctx, &awss3.GetBucketLocationInput{Bucket: aws.String("alices")}))(t)
	if loc.LocationConstraint != testRegion {
		t.Errorf("location %q", loc.LocationConstraint)
	}
	head := must(alice.HeadBucket(ctx, &awss3.HeadBucketInput{Bucket: aws.String("alices")}))(t)
	if aws.ToString(head.BucketRegion) != testRegion {
		t.Errorf("region %v", head.BucketRegion)
	}
	_, err = alice.DeleteBucket(ctx, &awss3.DeleteBucketInput{Bucket: aws.String("alices")})
	wantCode(t, err, "BucketNotEmpty")
	must(alice.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: aws.String("alices"), Key: aws.String("k")}))(t)
	must(alice.DeleteBucket(ctx, &awss3.DeleteBucketInput{Bucket: aws.String("alices")}))(t)
	_, err = alice.HeadBucket(ctx, &awss3.HeadBucketInput{Bucket: aws.String("alices")})
	wantCode(t, err, "NotFound")
}
