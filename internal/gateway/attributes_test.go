package gateway_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

func sha256Text(p []byte) string {
	sum := sha256.Sum256(p)
	return b64(sum[:])
}

// upload makes a multipart object through the SDK.
func upload(t *testing.T, c *awss3.Client, in *awss3.CreateMultipartUploadInput, parts map[int32][]byte) {
	t.Helper()
	ctx := context.Background()
	up := must(c.CreateMultipartUpload(ctx, in))(t)
	var done []types.CompletedPart
	for number := int32(1); number <= 10000; number++ {
		p, ok := parts[number]
		if !ok {
			continue
		}
		out := must(c.UploadPart(ctx, &awss3.UploadPartInput{
			Bucket: in.Bucket, Key: in.Key, UploadId: up.UploadId, PartNumber: &number, Body: bytes.NewReader(p),
			ChecksumAlgorithm: in.ChecksumAlgorithm,
		}))(t)
		done = append(done, types.CompletedPart{
			PartNumber: aws.Int32(number), ETag: out.ETag, ChecksumCRC32: out.ChecksumCRC32,
			ChecksumCRC64NVME: out.ChecksumCRC64NVME, ChecksumSHA256: out.ChecksumSHA256,
		})
	}
	must(c.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
		Bucket: in.Bucket, Key: in.Key, UploadId: up.UploadId, ChecksumType: in.ChecksumType,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: done},
	}))(t)
}

// TestSDKObjectAttributes reads all attributes of objects of every kind. Oracles: the payload's own sums and
// the list of parts that was uploaded.
func TestSDKObjectAttributes(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "attr")
	bucket := aws.String("attr")
	p := randomBytes(70_000)
	put(t, c, "attr", "one", p)
	all := types.ObjectAttributes("").Values()
	one := must(c.GetObjectAttributes(ctx, &awss3.GetObjectAttributesInput{
		Bucket: bucket, Key: aws.String("one"), ObjectAttributes: all,
	}))(t)
	if aws.ToString(one.ETag) != strings.Trim(etagOf(p), `"`) || aws.ToInt64(one.ObjectSize) != 70_000 ||
		one.StorageClass != types.StorageClassStandard || one.ObjectParts != nil || one.LastModified == nil ||
		aws.ToString(one.Checksum.ChecksumCRC32) != crc32Text(p) ||
		one.Checksum.ChecksumType != types.ChecksumTypeFullObject {
		t.Errorf("in one piece: %+v %+v", one, one.Checksum)
	}
	one = must(c.GetObjectAttributes(ctx, &awss3.GetObjectAttributesInput{
		Bucket: bucket, Key: aws.String("one"), ObjectAttributes: all[:1],
	}))(t)
	if one.ETag == nil || one.ObjectSize != nil || one.Checksum != nil || one.StorageClass != "" {
		t.Errorf("only the ETag was asked for: %+v", one)
	}

	parts := map[int32][]byte{1: randomBytes(5 << 20), 2: randomBytes(5 << 20), 7: randomBytes(6 << 20), 9999: []byte("x")}
	upload(t, c, &awss3.CreateMultipartUploadInput{
		Bucket: bucket, Key: aws.String("composite"), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
	}, parts)
	head := must(c.HeadObject(ctx, &awss3.HeadObjectInput{
		Bucket: bucket, Key: aws.String("composite"), ChecksumMode: types.ChecksumModeEnabled,
	}))(t)
	var seen []int32
	marker := "0"
	for pages := 1; ; pages++ {
		out := must(c.GetObjectAttributes(ctx, &awss3.GetObjectAttributesInput{
			Bucket: bucket, Key: aws.String("composite"), ObjectAttributes: all, MaxParts: aws.Int32(3),
			PartNumberMarker: &marker,
		}))(t)
		if got := aws.ToString(out.Checksum.ChecksumSHA256); got+"-4" != aws.ToString(head.ChecksumSHA256) ||
			out.Checksum.ChecksumType != types.ChecksumTypeComposite {
			t.Errorf("composite %s, HEAD says %s", got, aws.ToString(head.ChecksumSHA256))
		}
		o := out.ObjectParts
		if aws.ToInt32(o.TotalPartsCount) != 4 || aws.ToInt32(o.MaxParts) != 3 ||
			aws.ToString(o.PartNumberMarker) != marker {
			t.Errorf("page %d: %+v", pages, o)
		}
		for _, part := range o.Parts {
			want := parts[*part.PartNumber]
			if aws.ToInt64(part.Size) != int64(len(want)) || aws.ToString(part.ChecksumSHA256) != sha256Text(want) {
				t.Errorf("part %d: %+v", *part.PartNumber, part)
			}
			seen = append(seen, *part.PartNumber)
		}
		if !aws.ToBool(o.IsTruncated) {
			break
		}
		marker = aws.ToString(o.NextPartNumberMarker)
	}
	if len(seen) != 4 || seen[3] != 9999 {
		t.Errorf("parts %v", seen)
	}
}

// TestObjectAttributesRefused: what is wrong with a request, and conditions.
func TestObjectAttributesRefused(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "attr")
	etag := sendPut(n, "/attr/k", []byte("x"), nil).header.Get("Etag")
	get := func(header ...string) answer {
		h := map[string]string{}
		for i := 0; i+1 < len(header); i += 2 {
			h[header[i]] = header[i+1]
		}
		return n.send(request{method: "GET", path: "/attr/k?attributes", header: h})
	}
	const name = "X-Amz-Object-Attributes"
	wantError(t, get(), 400, "InvalidRequest")
	wantError(t, get(name, "Etag"), 400, "InvalidArgument")
	wantError(t, get(name, "ObjectParts", "X-Amz-Max-Parts", "-1"), 400, "InvalidArgument")
	wantError(t, get(name, "ObjectParts", "X-Amz-Part-Number-Marker", "x"), 400, "InvalidArgument")
	wantError(t, get(name, "ETag", "If-Match", `"no"`), 412, "PreconditionFailed")
	if got := get(name, "ETag", "If-None-Match", etag); got.status != 304 {
		t.Errorf("%d", got.status)
	}
	got := get(name, "ETag, ObjectSize,StorageClass")
	if got.status != 200 || !bytes.Contains(got.body, []byte("<ETag>"+strings.Trim(etag, `"`)+"</ETag>")) ||
		!bytes.Contains(got.body, []byte("<ObjectSize>1</ObjectSize>")) ||
		!bytes.Contains(got.body, []byte("<GetObjectAttributesResponse xmlns=")) {
		t.Errorf("%d %s", got.status, got.body)
	}
	missing := request{method: "GET", path: "/attr/none?attributes", header: map[string]string{name: "ETag"}}
	wantError(t, n.send(missing), 404, "NoSuchKey")
	missing.path, missing.id, missing.secret = "/attr/k?attributes", aliceID, aliceSecret
	wantError(t, n.send(missing), 403, "AccessDenied")
}
