package gateway_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/internal/s3"
)

func TestSDKListings(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "list")
	var keys []string
	for i := range 25 {
		keys = append(keys, fmt.Sprintf("a/%02d", i), fmt.Sprintf("b c+%%/x/%02d", i))
	}
	keys = append(keys, "top", "zäh\x01")
	for _, k := range keys {
		put(t, c, "list", k, []byte(k))
	}
	slices.Sort(keys)

	var v2, v1 []string
	pages := awss3.NewListObjectsV2Paginator(c, &awss3.ListObjectsV2Input{
		Bucket: aws.String("list"), MaxKeys: aws.Int32(7), FetchOwner: aws.Bool(true),
		EncodingType: types.EncodingTypeUrl,
	})
	for pages.HasMorePages() {
		page := must(pages.NextPage(ctx))(t)
		for _, o := range page.Contents {
			v2 = append(v2, decodeKey(t, *o.Key))
			if *o.Size != int64(len(decodeKey(t, *o.Key))) || *o.Owner.ID != "root" {
				t.Errorf("entry %+v", o)
			}
		}
	}
	if !slices.Equal(v2, keys) {
		t.Errorf("version 2: %q\nwant %q", v2, keys)
	}
	marker := ""
	for {
		page := must(c.ListObjects(ctx, &awss3.ListObjectsInput{
			Bucket: aws.String("list"), MaxKeys: aws.Int32(7), Marker: &marker, EncodingType: types.EncodingTypeUrl,
		}))(t)
		for _, o := range page.Contents {
			v1 = append(v1, decodeKey(t, *o.Key))
		}
		if !*page.IsTruncated {
			break
		}
		marker = v1[len(v1)-1]
	}
	if !slices.Equal(v1, keys) {
		t.Errorf("version 1: %q\nwant %q", v1, keys)
	}

	out := must(c.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{
		Bucket: aws.String("list"), Delimiter: aws.String("/"), StartAfter: aws.String("a"),
	}))(t)
	var got []string
	for _, p := range out.CommonPrefixes {
		got = append(got, *p.Prefix)
	}
	if !slices.Equal(got, []string{"a/", "b c+%/"}) || *out.KeyCount != 4 {
		t.Errorf("prefixes %q, count %d", got, *out.KeyCount)
	}
	one := must(c.ListObjects(ctx, &awss3.ListObjectsInput{
		Bucket: aws.String("list"), Delimiter: aws.String("/"), MaxKeys: aws.Int32(1),
	}))(t)
	if aws.ToString(one.NextMarker) != "a/" {
		t.Errorf("NextMarker %v, want a/", one.NextMarker)
	}
	_, err := c.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{
		Bucket: aws.String("list"), ContinuationToken: aws.String("!"),
	})
	wantCode(t, err, "InvalidArgument")
	_, err = c.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{Bucket: aws.String("nothere")})
	wantCode(t, err, "NoSuchBucket")
	none := must(c.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{Bucket: aws.String("list"), MaxKeys: aws.Int32(0)}))(t)
	if *none.KeyCount != 0 || *none.IsTruncated {
		t.Errorf("max-keys 0: %+v", none)
	}
}

func decodeKey(t *testing.T, s string) string {
	t.Helper()
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '+':
			b.WriteByte(' ')
		case '%':
			p, err := hex.DecodeString(s[i+1 : i+3])
			if err != nil {
				t.Fatal(err)
			}
			b.Write(p)
			i += 2
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func TestSDKMultipart(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "multi")
	for _, algorithm := range []types.ChecksumAlgorithm{"", "CRC32", "CRC64NVME", "SHA256"} {
		t.Run("algorithm "+string(algorithm), func(t *testing.T) {
			key := "big" + string(algorithm)
			up := must(c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
				Bucket: aws.String("multi"), Key: &key, ChecksumAlgorithm: algorithm,
				Metadata: map[string]string{"m": "1"},
			}))(t)
			parts := [][]byte{randomBytes(5 << 20), randomBytes(6<<20 + 1), randomBytes(33)}
			numbers := []int32{1, 7, 10000}
			var done []types.CompletedPart
			var sums []byte
			for i, p := range parts {
				out := must(c.UploadPart(ctx, &awss3.UploadPartInput{
					Bucket: aws.String("multi"), Key: &key, UploadId: up.UploadId, PartNumber: &numbers[i],
					Body: bytes.NewReader(p), ChecksumAlgorithm: algorithm,
				}))(t)
				sum := md5.Sum(p)
				sums = append(sums, sum[:]...)
				done = append(done, types.CompletedPart{
					PartNumber: &numbers[i], ETag: out.ETag, ChecksumCRC32: out.ChecksumCRC32,
					ChecksumCRC64NVME: out.ChecksumCRC64NVME, ChecksumSHA256: out.ChecksumSHA256,
				})
			}
			listed := must(c.ListParts(ctx, &awss3.ListPartsInput{
				Bucket: aws.String("multi"), Key: &key, UploadId: up.UploadId, MaxParts: aws.Int32(2),
			}))(t)
			if len(listed.Parts) != 2 || !*listed.IsTruncated || aws.ToString(listed.NextPartNumberMarker) != "7" {
				t.Errorf("parts: %+v", listed)
			}
			in := &awss3.CompleteMultipartUploadInput{
				Bucket: aws.String("multi"), Key: &key, UploadId: up.UploadId,
				MultipartUpload: &types.CompletedMultipartUpload{Parts: done},
			}
			fin := must(c.CompleteMultipartUpload(ctx, in))(t)
			all := md5.Sum(sums)
			if want := `"` + hex.EncodeToString(all[:]) + `-3"`; *fin.ETag != want {
				t.Errorf("ETag %s, want %s", *fin.ETag, want)
			}
			again := must(c.CompleteMultipartUpload(ctx, in))(t) // TestS3_21
			if *again.ETag != *fin.ETag {
				t.Errorf("repeated: ETag %s", *again.ETag)
			}
			whole := slices.Concat(parts...)
			got := must(c.GetObject(ctx, &awss3.GetObjectInput{
				Bucket: aws.String("multi"), Key: &key, ChecksumMode: types.ChecksumModeEnabled,
			}))(t)
			body := must(io.ReadAll(got.Body))(t)
			got.Body.Close()
			if !bytes.Equal(body, whole) || got.Metadata["m"] != "1" {
				t.Errorf("%d bytes came back, metadata %v", len(body), got.Metadata)
			}
			part := n.send(request{method: "GET", path: "/multi/" + key + "?partNumber=7"})
			if part.status != 206 || !bytes.Equal(part.body, parts[1]) ||
				part.header.Get("X-Amz-Mp-Parts-Count") != "3" {
				t.Errorf("part 7: %d, %d bytes, %v", part.status, len(part.body), part.header)
			}
			want := fmt.Sprintf("bytes 5242880-%d/%d", 5<<20+6<<20, len(whole))
			if got := part.header.Get("Content-Range"); got != want {
				t.Errorf("part 7: %q, want %q", got, want)
			}
		})
	}
}

func TestSDKMultipartErrors(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "multi")
	key := "k"
	up := must(c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
		Bucket: aws.String("multi"), Key: &key,
	}))(t)
	part := func(number int32, p []byte) types.CompletedPart {
		out := must(c.UploadPart(ctx, &awss3.UploadPartInput{
			Bucket: aws.String("multi"), Key: &key, UploadId: up.UploadId, PartNumber: &number,
			Body: bytes.NewReader(p),
		}))(t)
		return types.CompletedPart{PartNumber: &number, ETag: out.ETag}
	}
	small, last := part(1, []byte("small")), part(2, []byte("last"))
	complete := func(id *string, parts ...types.CompletedPart) error {
		_, err := c.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
			Bucket: aws.String("multi"), Key: &key, UploadId: id,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
		})
		return err
	}
	wantCode(t, complete(up.UploadId, small, last), "EntityTooSmall")
	wantCode(t, complete(up.UploadId, last, small), "InvalidPartOrder")
	wantCode(t, complete(up.UploadId, types.CompletedPart{PartNumber: aws.Int32(3), ETag: small.ETag}), "InvalidPart")
	wantCode(t, complete(aws.String("nonsense"), small), "NoSuchUpload")
	_, err := c.UploadPart(ctx, &awss3.UploadPartInput{
		Bucket: aws.String("multi"), Key: &key, UploadId: aws.String("gone"), PartNumber: aws.Int32(1),
		Body: strings.NewReader("x"),
	})
	wantCode(t, err, "NoSuchUpload")
	_, err = c.UploadPart(ctx, &awss3.UploadPartInput{
		Bucket: aws.String("multi"), Key: &key, UploadId: up.UploadId, PartNumber: aws.Int32(10001),
		Body: strings.NewReader("x"),
	})
	wantCode(t, err, "InvalidArgument")
	list := must(c.ListMultipartUploads(ctx, &awss3.ListMultipartUploadsInput{Bucket: aws.String("multi")}))(t)
	if len(list.Uploads) != 1 || *list.Uploads[0].UploadId != *up.UploadId || *list.Uploads[0].Key != key {
		t.Errorf("uploads: %+v", list.Uploads)
	}
	in := &awss3.AbortMultipartUploadInput{Bucket: aws.String("multi"), Key: &key, UploadId: up.UploadId}
	must(c.AbortMultipartUpload(ctx, in))(t)
	wantCode(t, complete(up.UploadId, small), "NoSuchUpload")
	list = must(c.ListMultipartUploads(ctx, &awss3.ListMultipartUploadsInput{Bucket: aws.String("multi")}))(t)
	if len(list.Uploads) != 0 {
		t.Errorf("uploads after the abort: %+v", list.Uploads)
	}
}

func TestSDKCopies(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "from")
	makeBucket(t, c, "into")
	p := randomBytes(9 << 20)
	key := "a b+c/ü"
	must(c.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: aws.String("from"), Key: &key, Body: bytes.NewReader(p), Metadata: map[string]string{"m": "old"},
	}))(t)
	source := aws.String("from/a%20b%2Bc/%C3%BC")
	out := must(c.CopyObject(ctx, &awss3.CopyObjectInput{
		Bucket: aws.String("into"), Key: aws.String("c"), CopySource: source,
	}))(t)
	if *out.CopyObjectResult.ETag != etagOf(p) || !bytes.Equal(get(t, c, "into", "c"), p) {
		t.Error("the copy differs")
	}
	_, err := c.CopyObject(ctx, &awss3.CopyObjectInput{Bucket: aws.String("from"), Key: &key, CopySource: source})
	wantCode(t, err, "InvalidRequest")
	must(c.CopyObject(ctx, &awss3.CopyObjectInput{
		Bucket: aws.String("from"), Key: &key, CopySource: source, MetadataDirective: types.MetadataDirectiveReplace,
		Metadata: map[string]string{"m": "new"}, ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
	}))(t)
	head := must(c.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: aws.String("from"), Key: &key}))(t)
	if head.Metadata["m"] != "new" {
		t.Errorf("metadata %v", head.Metadata)
	}
	_, err = c.CopyObject(ctx, &awss3.CopyObjectInput{
		Bucket: aws.String("into"), Key: aws.String("d"), CopySource: source, CopySourceIfMatch: aws.String(`"x"`),
	})
	wantCode(t, err, "PreconditionFailed")
	_, err = c.CopyObject(ctx, &awss3.CopyObjectInput{
		Bucket: aws.String("into"), Key: aws.String("d"), CopySource: source,
		CopySourceIfNoneMatch: aws.String(etagOf(p)),
	})
	wantCode(t, err, "PreconditionFailed")
	_, err = c.CopyObject(ctx, &awss3.CopyObjectInput{
		Bucket: aws.String("into"), Key: aws.String("d"), CopySource: aws.String("from/nothing"),
	})
	wantCode(t, err, "NoSuchKey")

	up := must(c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
		Bucket: aws.String("into"), Key: aws.String("m"), ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c,
	}))(t)
	var parts []types.CompletedPart
	for i, r := range []string{"bytes=0-5242879", "bytes=5242880-9437183"} {
		part := must(c.UploadPartCopy(ctx, &awss3.UploadPartCopyInput{
			Bucket: aws.String("into"), Key: aws.String("m"), UploadId: up.UploadId,
			PartNumber: aws.Int32(int32(i + 1)),
			CopySource: source, CopySourceRange: &r,
		}))(t)
		if part.CopyPartResult.ChecksumCRC32C == nil { // TestS3_09
			t.Error("no checksum in CopyPartResult")
		}
		parts = append(parts, types.CompletedPart{
			PartNumber: aws.Int32(int32(i + 1)), ETag: part.CopyPartResult.ETag,
			ChecksumCRC32C: part.CopyPartResult.ChecksumCRC32C,
		})
	}
	_, err = c.UploadPartCopy(ctx, &awss3.UploadPartCopyInput{
		Bucket: aws.String("into"), Key: aws.String("m"), UploadId: up.UploadId, PartNumber: aws.Int32(3),
		CopySource: source, CopySourceRange: aws.String("bytes=9437183-9437184"),
	})
	wantCode(t, err, "InvalidArgument")
	must(c.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
		Bucket: aws.String("into"), Key: aws.String("m"), UploadId: up.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	}))(t)
	if !bytes.Equal(get(t, c, "into", "m"), p) {
		t.Error("the copy by parts differs")
	}
}

func TestSDKDeletes(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "del")
	var ids []types.ObjectIdentifier
	for i := range 50 {
		key := fmt.Sprintf("k%02d <&>", i)
		put(t, c, "del", key, []byte("x"))
		ids = append(ids, types.ObjectIdentifier{Key: &key})
	}
	ids = append(ids, types.ObjectIdentifier{Key: aws.String("never was")},
		types.ObjectIdentifier{Key: aws.String("k00"), VersionId: aws.String("v1")})
	out := must(c.DeleteObjects(ctx, &awss3.DeleteObjectsInput{
		Bucket: aws.String("del"), Delete: &types.Delete{Objects: ids},
	}))(t)
	if len(out.Deleted) != 51 || len(out.Errors) != 1 || *out.Errors[0].Code != "NoSuchVersion" {
		t.Errorf("%d deleted, errors %+v", len(out.Deleted), out.Errors)
	}
	left := must(c.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{Bucket: aws.String("del")}))(t)
	if *left.KeyCount != 0 {
		t.Errorf("%d keys left", *left.KeyCount)
	}
	must(c.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: aws.String("del"), Key: aws.String("never was")}))(t)
}

func TestSDKConditions(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "cond")
	bucket, key := aws.String("cond"), aws.String("k")
	p := []byte("first")
	out := must(c.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: bucket, Key: key, Body: bytes.NewReader(p), IfNoneMatch: aws.String("*"),
	}))(t)
	_, err := c.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: bucket, Key: key, Body: bytes.NewReader(p), IfNoneMatch: aws.String("*"),
	})
	wantCode(t, err, "PreconditionFailed")
	_, err = c.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: bucket, Key: aws.String("none"), Body: bytes.NewReader(p), IfMatch: out.ETag,
	})
	wantCode(t, err, "NoSuchKey")
	_, err = c.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: bucket, Key: key, Body: bytes.NewReader(p), IfMatch: aws.String(`"00000000000000000000000000000000"`),
	})
	wantCode(t, err, "PreconditionFailed")
	must(c.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: bucket, Key: key, Body: bytes.NewReader(p), IfMatch: out.ETag,
	}))(t)

	_, err = c.GetObject(ctx, &awss3.GetObjectInput{Bucket: bucket, Key: key, IfMatch: aws.String(`"no"`)})
	wantCode(t, err, "PreconditionFailed")
	_, err = c.GetObject(ctx, &awss3.GetObjectInput{Bucket: bucket, Key: key, IfNoneMatch: out.ETag})
	wantCode(t, err, "NotModified")
	_, err = c.GetObject(ctx, &awss3.GetObjectInput{
		Bucket: bucket, Key: key, IfModifiedSince: aws.Time(time.Now().Add(time.Hour)),
	})
	wantCode(t, err, "NotModified")
	_, err = c.GetObject(ctx, &awss3.GetObjectInput{
		Bucket: bucket, Key: key, IfUnmodifiedSince: aws.Time(time.Now().Add(-time.Hour)),
	})
	wantCode(t, err, "PreconditionFailed")
}

func TestPresigned(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "pre")
	put(t, c, "pre", "k +ü", []byte("hello"))
	pre := awss3.NewPresignClient(c)
	u := must(pre.PresignGetObject(ctx, &awss3.GetObjectInput{
		Bucket: aws.String("pre"), Key: aws.String("k +ü"), ResponseContentType: aws.String("text/x"),
	}))(t)
	resp := must(n.client.Get(u.URL))(t)
	body := must(io.ReadAll(resp.Body))(t)
	resp.Body.Close()
	if resp.StatusCode != 200 || string(body) != "hello" || resp.Header.Get("Content-Type") != "text/x" {
		t.Errorf("GET: %d %q %v", resp.StatusCode, body, resp.Header)
	}
	w := must(pre.PresignPutObject(ctx, &awss3.PutObjectInput{Bucket: aws.String("pre"), Key: aws.String("new")}))(t)
	req := must(http.NewRequest(http.MethodPut, w.URL, strings.NewReader("body")))(t)
	resp = must(n.client.Do(req))(t)
	resp.Body.Close()
	if resp.StatusCode != 200 || string(get(t, c, "pre", "new")) != "body" {
		t.Errorf("PUT: %d", resp.StatusCode)
	}
	bad := strings.Replace(u.URL, "X-Amz-Signature=", "X-Amz-Signature=0", 1)
	resp = must(n.client.Get(bad))(t)
	resp.Body.Close()
	if resp.StatusCode != 403 {
		t.Errorf("forged: %d", resp.StatusCode)
	}
}

// TestPresignedUploadKeepsItsAlgorithm: an upload that a browser begins by a URL has the checksums that the URL
// asks for.
func TestPresignedUploadKeepsItsAlgorithm(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "pre")
	r := &http.Request{Method: http.MethodPost, Host: n.host, Header: http.Header{}, URL: &url.URL{Scheme: "http",
		Host: n.host, Path: "/pre/k", RawQuery: "uploads=&x-amz-checksum-algorithm=CRC32C&x-amz-checksum-type=FULL_OBJECT"}}
	u := must(n.signer.Presign(r, s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: rootID, SecretKey: rootSecret},
		Region:      testRegion, Time: time.Now(), Expires: time.Minute,
	}))(t)
	resp := must(n.client.Post(u.String(), "", nil))(t)
	resp.Body.Close()
	algorithm, kind := resp.Header.Get("X-Amz-Checksum-Algorithm"), resp.Header.Get("X-Amz-Checksum-Type")
	if resp.StatusCode != 200 || algorithm != "CRC32C" || kind != "FULL_OBJECT" {
		t.Errorf("%d, algorithm %q, type %q", resp.StatusCode, algorithm, kind)
	}
}

func TestVirtualHostStyle(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "vhost")
	host := map[string]string{"Host": "vhost.s3.test:9000"}
	if got := n.send(request{
		method: "PUT", path: "/k", header: host, body: strings.NewReader("v"), length: 1,
	}); got.status != 200 {
		t.Fatalf("PUT: %d %s", got.status, got.body)
	}
	if got := n.send(request{method: "GET", path: "/vhost/k"}); string(got.body) != "v" {
		t.Errorf("path style reads %q", got.body)
	}
	// Keys that look like the control plane's paths are keys.
	for _, key := range []string{"/.penstock/livez", "/.penstock/fabric/v1", "/.hipobj-rc/prepare"} {
		r := request{method: "PUT", path: key, header: host, body: strings.NewReader("c"), length: 1}
		if got := n.send(r); got.status != 200 {
			t.Errorf("%s: %d %s", key, got.status, got.body)
		}
		if got := n.send(request{method: "GET", path: key, header: host}); string(got.body) != "c" {
			t.Errorf("%s: %d %q", key, got.status, got.body)
		}
	}
	if got := n.send(request{
		method: "GET", path: "/?list-type=2", header: host,
	}); !bytes.Contains(got.body, []byte("<Key>k</Key>")) {
		t.Errorf("list: %s", got.body)
	}
}

// TestSDKMultipartComposite: the checksum that a client declares with CompleteMultipartUpload may be a
// composite. Oracle: SHA-256 of the parts' SHA-256, computed here.
func TestSDKMultipartComposite(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "composite")
	bucket, key := aws.String("composite"), aws.String("k")
	p := randomBytes(1000)
	sum := sha256.Sum256(p)
	all := sha256.Sum256(sum[:])
	right := base64.StdEncoding.EncodeToString(all[:]) + "-1"
	wrong := base64.StdEncoding.EncodeToString(sum[:]) + "-1"
	up := must(c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
		Bucket: bucket, Key: key, ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
	}))(t)
	part := must(c.UploadPart(ctx, &awss3.UploadPartInput{
		Bucket: bucket, Key: key, UploadId: up.UploadId, PartNumber: aws.Int32(1), Body: bytes.NewReader(p),
		ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
	}))(t)
	in := &awss3.CompleteMultipartUploadInput{
		Bucket: bucket, Key: key, UploadId: up.UploadId, ChecksumSHA256: &wrong,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{
			{PartNumber: aws.Int32(1), ETag: part.ETag, ChecksumSHA256: part.ChecksumSHA256},
		}},
	}
	_, err := c.CompleteMultipartUpload(ctx, in)
	wantCode(t, err, "BadDigest")
	in.ChecksumSHA256 = &right
	out := must(c.CompleteMultipartUpload(ctx, in))(t)
	if got := aws.ToString(out.ChecksumSHA256); got != right {
		t.Errorf("checksum %s, want %s", got, right)
	}
}

// TestConditionsOfSeveralLines: a header that comes in two lines is one list (RFC 9110 §5.3), also for a
// write.
func TestConditionsOfSeveralLines(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "lines")
	etag := sendPut(n, "/lines/k", []byte("x"), nil).header.Get("Etag")
	n.wantRefused(n.raw(request{method: "PUT", path: "/lines/k", unsigned: map[string]string{
		"Content-Length": "0", "If-None-Match": "\"other\"\r\nIf-None-Match: " + etag,
	}}), 412, "PreconditionFailed")
}
