package awsrdma_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// fabrics are those of every node.
var fabrics = []string{client.PathSHM, client.PathTCP}

// Every length goes up and down by each fabric, and comes down through a client without the option: the
// oracle is the bytes themselves and the server's own counters.
func TestEveryLength(t *testing.T) {
	for _, path := range allFabrics() {
		t.Run(path, func(t *testing.T) {
			n := startNode(t)
			s := n.session(path, awsrdma.Options{Strict: true})
			svc, plain := s3.New(n.options(n.endpoint), awsrdma.Enable(s)), n.plain()
			var total int64
			for i, length := range []int{1, 4095, 16 << 10, 16<<10 + 1, 64 << 10, 256<<10 + 1, 1 << 20, 5<<20 + 7, 20 << 20} {
				want := randomBytes(uint64(i), length)
				key := aws.String(fmt.Sprintf("k/%d", length))
				put, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
					Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want),
				})
				if err != nil {
					t.Fatal(err)
				}
				wantResult(t, put.ResultMetadata, awsrdma.Result{
					Operation: "PutObject", Path: path, Bytes: int64(length), Tokens: 1,
				})
				if aws.ToString(put.ChecksumCRC32) == "" {
					t.Errorf("%d bytes: the answer has no CRC32", length)
				}
				got, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
				if err != nil {
					t.Fatal(err)
				}
				if aws.ToInt64(got.ContentLength) != int64(length) || aws.ToString(got.ETag) != aws.ToString(put.ETag) ||
					aws.ToString(got.ChecksumCRC32) != aws.ToString(put.ChecksumCRC32) {
					t.Errorf("%d bytes: length %d, ETag %s", length, aws.ToInt64(got.ContentLength), aws.ToString(got.ETag))
				}
				if r, _ := awsrdma.ResultOf(got.ResultMetadata); r.Path != path || r.Bytes != int64(length) || r.Reason != "" {
					t.Errorf("%d bytes: %+v", length, r)
				}
				same(t, "by the fabric", readAll(t, got.Body), want)
				check, err := plain.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
				if err != nil {
					t.Fatal(err)
				}
				same(t, "over HTTP", readAll(t, check.Body), want)
				total += int64(length)
			}
			for series, want := range map[[2]string]int64{
				{"PutObject", path}: total, {"PutObject", client.PathHTTP}: 0,
				{"GetObject", path}: total, {"GetObject", client.PathHTTP}: total, // the second of plain
			} {
				if got := n.payloadBytes(series[0], series[1]); got != want {
					t.Errorf("server: %d bytes of %v, want %d", got, series, want)
				}
			}
			st := s.Stats()
			if st.FabricPutBytes != total || st.FabricGetBytes != total || st.HTTPGets+st.HTTPPuts != 0 {
				t.Errorf("client: %+v", st)
			}
		})
	}
}

func readAll(t testing.TB, body io.ReadCloser) []byte {
	t.Helper()
	defer body.Close()
	got, err := io.ReadAll(body)
	if err != nil {
		t.Error(err)
	}
	return got
}

func TestRangesAndParts(t *testing.T) {
	n := startNode(t)
	for _, path := range allFabrics() {
		s := n.session(path, awsrdma.Options{Strict: true})
		svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s))
		const size = 3<<20 + 123
		want := randomBytes(3, size)
		key := aws.String("ranges-" + path)
		if _, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want),
		}); err != nil {
			t.Fatal(err)
		}
		for text, span := range map[string][2]int{
			"bytes=0-0": {0, 1}, "bytes=1-65536": {1, 65537}, "bytes=65535-": {65535, size}, "bytes=-77": {size - 77, size},
			"bytes=0-99999999": {0, size}, "bytes=1000000-2999999": {1000000, 3000000},
		} {
			got, err := svc.GetObject(t.Context(), &s3.GetObjectInput{
				Bucket: aws.String("bkt"), Key: key, Range: aws.String(text),
			})
			if err != nil {
				t.Fatalf("%s %s: %v", path, text, err)
			}
			if r, _ := awsrdma.ResultOf(got.ResultMetadata); r.Path != path || r.Bytes != int64(span[1]-span[0]) {
				t.Errorf("%s %s: %+v", path, text, r)
			}
			if cr := fmt.Sprintf("bytes %d-%d/%d", span[0], span[1]-1, size); aws.ToString(got.ContentRange) != cr {
				t.Errorf("%s %s: content range %q", path, text, aws.ToString(got.ContentRange))
			}
			same(t, path+" "+text, readAll(t, got.Body), want[span[0]:span[1]])
		}
		part, err := svc.GetObject(t.Context(), &s3.GetObjectInput{
			Bucket: aws.String("bkt"), Key: key, PartNumber: aws.Int32(1),
		})
		if err != nil {
			t.Fatal(err)
		}
		same(t, "part", readAll(t, part.Body), want)
		if n.payloadBytes("GetObject", client.PathHTTP) != 0 {
			t.Error("payload in an HTTP body")
		}
	}
}

// The SDK's typed errors come out as without the option, and nothing is taken for a decline.
func TestErrorsAreTheSDKs(t *testing.T) {
	n := startNode(t)
	for _, path := range allFabrics() {
		svc := s3.New(n.options(n.endpoint), awsrdma.Enable(n.session(path, awsrdma.Options{MinBytes: -1})))
		ctx := t.Context()
		_, err := svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("missing")})
		if !errors.As(err, new(*types.NoSuchKey)) {
			t.Errorf("get: %v", err)
		}
		_, err = svc.PutObject(ctx, &s3.PutObjectInput{
			Bucket: aws.String("nobucket"), Key: aws.String("k"), Body: bytes.NewReader([]byte("x")),
		})
		wantCode(t, err, "NoSuchBucket")
		put, err := svc.PutObject(ctx, &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader([]byte("xyz")),
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = svc.PutObject(ctx, &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader([]byte("x")), IfNoneMatch: aws.String("*"),
		})
		wantCode(t, err, "PreconditionFailed")
		_, err = svc.GetObject(ctx, &s3.GetObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), IfNoneMatch: put.ETag,
		})
		wantCode(t, err, "NotModified")
		_, err = svc.GetObject(ctx, &s3.GetObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), Range: aws.String("bytes=3-9"),
		})
		wantCode(t, err, "InvalidRange")
		_, err = svc.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), UploadId: aws.String("none"), PartNumber: aws.Int32(1),
			Body: bytes.NewReader([]byte("x")),
		})
		if !errors.As(err, new(*types.NoSuchUpload)) {
			wantCode(t, err, "NoSuchUpload")
		}
	}
}
