package awsrdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/penstock-store/penstock/client/awsrdma"
)

// faceOf is all that a caller sees of an outcome, but for what the path may change: metadata of the request.
func faceOf(t *testing.T, out any, body io.ReadCloser, err error) map[string]string {
	t.Helper()
	face := map[string]string{}
	if err != nil {
		face["error"] = "other"
		if api := smithy.APIError(nil); errors.As(err, &api) {
			face["error"] = api.ErrorCode()
		}
		return face
	}
	v := reflect.ValueOf(out).Elem()
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		if !v.Type().Field(i).IsExported() || name == "Body" || f.Type() == reflect.TypeFor[middleware.Metadata]() {
			continue
		}
		if f.Kind() == reflect.Pointer && !f.IsNil() {
			f = f.Elem()
		}
		face[name] = fmt.Sprint(f.Interface())
	}
	if body != nil {
		got, err := io.ReadAll(body)
		face["body"] = fmt.Sprintf("%d %v %s", len(got), err, sumOf(types.ChecksumAlgorithmSha256, got))
		_ = body.Close()
	}
	return face
}

func compareFaces(t *testing.T, what string, got, want map[string]string, but ...string) {
	t.Helper()
	for _, name := range but {
		delete(got, name)
		delete(want, name)
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: %s is %q, without the option %q", what, name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %v, without the option %v", what, got, want)
	}
}

// A GET gives its caller what it gives without the option: every member of the output, the bytes, the error.
func TestGetsLookTheSame(t *testing.T) {
	n := startNode(t)
	plain := n.plain()
	want := randomBytes(1, 11<<20)
	put := &s3.PutObjectInput{
		Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(want), ContentType: aws.String("a/b"),
		ContentEncoding: aws.String("gzip"), CacheControl: aws.String("no-store"), Expires: aws.Time(time.Unix(2e9, 0)),
		ContentDisposition: aws.String("attachment"), ContentLanguage: aws.String("tlh"),
		Metadata: map[string]string{"a": "b", "c": "d e"},
	}
	stored, err := plain.PutObject(t.Context(), put)
	if err != nil {
		t.Fatal(err)
	}
	multipart(t, plain, "parts", want)
	etag, before, after := stored.ETag, aws.Time(time.Now().Add(-time.Hour)), aws.Time(time.Now().Add(time.Hour))
	spans := func(spans ...string) (all []s3.GetObjectInput) {
		for _, span := range spans {
			all = append(all, s3.GetObjectInput{Range: &span})
		}
		return all
	}
	inputs := append(spans("bytes=0-0", "bytes=0-99999", "bytes=1-", "bytes=-100000", "bytes=-1", "bytes=-0",
		"bytes=11000000-99999999", "bytes=0-9223372036854775807", "bytes=99999999-", "bytes=5-4", "bytes=0-1,5-6",
		"bytes=a-b", "octets=0-5", "bytes=-99999999999", ""),
		[]s3.GetObjectInput{
			{}, {IfMatch: etag}, {IfMatch: aws.String(`"no"`)}, {IfNoneMatch: etag}, {IfNoneMatch: aws.String(`"no"`)},
			{IfModifiedSince: before}, {IfModifiedSince: after}, {IfUnmodifiedSince: before}, {IfUnmodifiedSince: after},
			{PartNumber: aws.Int32(1)}, {PartNumber: aws.Int32(2)}, {PartNumber: aws.Int32(9)}, {PartNumber: aws.Int32(0)},
			{ChecksumMode: types.ChecksumModeEnabled}, {Key: aws.String("none")}, {Bucket: aws.String("no-such-bucket")},
			{ExpectedBucketOwner: aws.String("111122223333")}, {VersionId: aws.String("null")},
			{PartNumber: aws.Int32(1), Range: aws.String("bytes=0-5")},
			{IfMatch: aws.String(`"no"`), Range: aws.String("bytes=0-99999")},
			{
				ResponseCacheControl: aws.String("x"), ResponseContentDisposition: aws.String("y"),
				ResponseContentEncoding: aws.String("identity"), ResponseContentLanguage: aws.String("de"),
				ResponseContentType: aws.String("c/d"), ResponseExpires: aws.Time(time.Unix(1e9, 0)),
			},
		}...)
	for _, path := range allFabrics() {
		s := n.session(path, awsrdma.Options{MinBytes: -1})
		for _, validation := range []aws.ResponseChecksumValidation{
			aws.ResponseChecksumValidationWhenSupported, aws.ResponseChecksumValidationWhenRequired,
		} {
			o := n.options(n.endpoint)
			o.ResponseChecksumValidation = validation
			with, without := s3.New(o, awsrdma.Enable(s)), s3.New(o)
			for i, in := range inputs {
				for _, key := range []string{"k", "parts"} {
					get := func(svc *s3.Client) map[string]string {
						one := in
						one.Bucket, one.Key = aws.String(aws.ToString(one.Bucket)), aws.String(key)
						if *one.Bucket == "" {
							one.Bucket = aws.String("bkt")
						}
						if in.Key != nil {
							one.Key = in.Key
						}
						out, err := svc.GetObject(t.Context(), &one)
						if err != nil {
							return faceOf(t, nil, nil, err)
						}
						return faceOf(t, out, out.Body, nil)
					}
					compareFaces(t, fmt.Sprintf("%s %d %s", path, i, key), get(with), get(without))
				}
			}
		}
		if st := s.Stats(); st.FabricGets == 0 {
			t.Errorf("%+v", st)
		}
	}
}

// multipart stores an object of two parts.
func multipart(t *testing.T, svc *s3.Client, key string, payload []byte) {
	t.Helper()
	up, err := svc.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{
		Bucket: aws.String("bkt"), Key: &key,
	})
	if err != nil {
		t.Fatal(err)
	}
	var parts []types.CompletedPart
	for i, p := range [][]byte{payload[:6<<20], payload[6<<20:]} {
		number := aws.Int32(int32(i + 1))
		out, err := svc.UploadPart(t.Context(), &s3.UploadPartInput{
			Bucket: aws.String("bkt"), Key: &key, UploadId: up.UploadId, PartNumber: number, Body: bytes.NewReader(p),
		})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, types.CompletedPart{ETag: out.ETag, PartNumber: number, ChecksumCRC32: out.ChecksumCRC32})
	}
	if _, err := svc.CompleteMultipartUpload(t.Context(), &s3.CompleteMultipartUploadInput{
		Bucket: aws.String("bkt"), Key: &key, UploadId: up.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	}); err != nil {
		t.Fatal(err)
	}
}

// A PUT stores what it stores without the option: the bytes, all that a HEAD says, and the error. ETags are
// the exception, which are no MD5 of what a fabric moved.
func TestPutsLookTheSame(t *testing.T) {
	n := startNode(t)
	plain := n.plain()
	body := func() *bytes.Reader { return bytes.NewReader(randomBytes(1, 300_001)) }
	inputs := map[string]func() *s3.PutObjectInput{
		"nothing": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{}
		},
		"headers": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{
				Body: body(), ContentType: aws.String("a/b"), ContentEncoding: aws.String("gzip"),
				CacheControl: aws.String("no-store"), ContentLanguage: aws.String("tlh"),
				ContentDisposition: aws.String("inline"), Expires: aws.Time(time.Unix(2e9, 0)),
				Metadata: map[string]string{"a": "b", "c": "d e"}, Tagging: aws.String("x=y"),
			}
		},
		"if none match": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), IfNoneMatch: aws.String("*")}
		},
		"if match": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), IfMatch: aws.String(`"x"`)}
		},
		"empty": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: bytes.NewReader(nil)}
		},
		"wrong MD5": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), ContentMD5: aws.String("AAAAAAAAAAAAAAAAAAAAAA==")}
		},
		"malformed sum": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), ChecksumCRC32: aws.String("x")}
		},
		"wrong sum": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), ChecksumCRC32: aws.String("AAAAAA==")}
		},
		"sha256": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), ChecksumAlgorithm: "SHA256"}
		},
		"storage class": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), StorageClass: "STANDARD"}
		},
		"bad storage class": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), StorageClass: "NONSENSE"}
		},
		"no bucket": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), Bucket: aws.String("no-such-bucket")}
		},
		"ContentLength": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{Body: body(), ContentLength: aws.Int64(300_000)}
		},
		"customer's key": func() *s3.PutObjectInput {
			return &s3.PutObjectInput{
				Body: body(), SSECustomerAlgorithm: aws.String("AES256"),
				SSECustomerKey: aws.String("0123456789abcdef0123456789abcdef"),
			}
		},
	}
	for _, path := range allFabrics() {
		s := n.session(path, awsrdma.Options{MinBytes: -1})
		for _, calculation := range []aws.RequestChecksumCalculation{
			aws.RequestChecksumCalculationWhenSupported, aws.RequestChecksumCalculationWhenRequired,
		} {
			o := n.options(n.endpoint)
			o.RequestChecksumCalculation = calculation
			with, without := s3.New(o, awsrdma.Enable(s), quick), s3.New(o, quick)
			for name, input := range inputs {
				put := func(svc *s3.Client, key string) (map[string]string, map[string]string) {
					in := input()
					in.Key = &key
					if in.Bucket == nil {
						in.Bucket = aws.String("bkt")
					}
					out, err := svc.PutObject(t.Context(), in)
					head, headErr := plain.HeadObject(context.Background(), &s3.HeadObjectInput{
						Bucket: aws.String("bkt"), Key: &key, ChecksumMode: types.ChecksumModeEnabled,
					})
					stored := faceOf(t, head, nil, headErr)
					if headErr == nil {
						stored["bytes"] = sumOf(types.ChecksumAlgorithmSha256, n.object(key))
					}
					return faceOf(t, out, nil, err), stored
				}
				key := fmt.Sprintf("%s %s %d", name, path, calculation)
				outWith, headWith := put(with, key+" with")
				outWithout, headWithout := put(without, key+" without")
				but := []string{"ETag", "LastModified"}
				if calculation == aws.RequestChecksumCalculationWhenRequired { // the option adds one then
					but = append(but, "ChecksumCRC64NVME", "ChecksumType")
				}
				compareFaces(t, key+": output", outWith, outWithout, but...)
				compareFaces(t, key+": head", headWith, headWithout, but...)
			}
		}
		if st := s.Stats(); st.FabricPuts == 0 {
			t.Errorf("%+v", st)
		}
	}
}
