package awsrdma_test

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// sums are the standard library's, the oracle: also of CRC64NVME, by its polynomial.
var sums = map[types.ChecksumAlgorithm]func() hash.Hash{
	types.ChecksumAlgorithmCrc32:  func() hash.Hash { return crc32.NewIEEE() },
	types.ChecksumAlgorithmCrc32c: func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
	types.ChecksumAlgorithmSha1:   sha1.New,
	types.ChecksumAlgorithmSha256: sha256.New,
	types.ChecksumAlgorithmCrc64nvme: func() hash.Hash {
		return crc64.New(crc64.MakeTable(0x9a6c9329ac4bc9b5))
	},
}

func sumOf(a types.ChecksumAlgorithm, p []byte) string {
	h := sums[a]()
	_, _ = h.Write(p)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// five are the members of an input or output that hold a checksum.
type five struct{ crc32, crc32c, sha1, sha256, crc64 *string }

func (f five) of(a types.ChecksumAlgorithm) string {
	return aws.ToString(map[types.ChecksumAlgorithm]*string{
		types.ChecksumAlgorithmCrc32: f.crc32, types.ChecksumAlgorithmCrc32c: f.crc32c,
		types.ChecksumAlgorithmSha1: f.sha1, types.ChecksumAlgorithmSha256: f.sha256,
		types.ChecksumAlgorithmCrc64nvme: f.crc64,
	}[a])
}

func withSum(in *s3.PutObjectInput, a types.ChecksumAlgorithm, value string) *s3.PutObjectInput {
	switch a {
	case types.ChecksumAlgorithmCrc32:
		in.ChecksumCRC32 = &value
	case types.ChecksumAlgorithmCrc32c:
		in.ChecksumCRC32C = &value
	case types.ChecksumAlgorithmSha1:
		in.ChecksumSHA1 = &value
	case types.ChecksumAlgorithmSha256:
		in.ChecksumSHA256 = &value
	case types.ChecksumAlgorithmCrc64nvme:
		in.ChecksumCRC64NVME = &value
	}
	return in
}

// Each algorithm, asked for by name or given by value, covers the payload that the fabric moved: the server
// stores the value that the standard library finds, and refuses another one.
func TestChecksumsCoverThePayload(t *testing.T) {
	n := startNode(t)
	want := randomBytes(9, 3<<20+5)
	for _, path := range allFabrics() {
		s := n.session(path, awsrdma.Options{Strict: true})
		svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s))
		for a := range sums {
			key := aws.String(path + "/" + string(a))
			input := func() *s3.PutObjectInput {
				return &s3.PutObjectInput{Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want)}
			}
			wrong := withSum(input(), a, sumOf(a, want[1:]))
			if _, err := svc.PutObject(t.Context(), wrong); err == nil {
				t.Errorf("%s: a wrong value was stored", *key)
			} else {
				wantCode(t, err, "BadDigest")
			}
			_, err := svc.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String("bkt"), Key: key})
			if !errors.As(err, new(*types.NotFound)) {
				t.Errorf("%s: after a wrong value: %v", *key, err)
			}
			for _, in := range []*s3.PutObjectInput{
				{Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want), ChecksumAlgorithm: a},
				withSum(input(), a, sumOf(a, want)),
			} {
				put, err := svc.PutObject(t.Context(), in)
				if err != nil {
					t.Fatalf("%s: %v", *key, err)
				}
				got := five{put.ChecksumCRC32, put.ChecksumCRC32C, put.ChecksumSHA1, put.ChecksumSHA256, put.ChecksumCRC64NVME}
				if got.of(a) != sumOf(a, want) {
					t.Errorf("%s: the server has %q, want %s", *key, got.of(a), sumOf(a, want))
				}
			}
			out, err := svc.GetObject(t.Context(), &s3.GetObjectInput{
				Bucket: aws.String("bkt"), Key: key, ChecksumMode: types.ChecksumModeEnabled,
			})
			if err != nil {
				t.Fatal(err)
			}
			got := five{out.ChecksumCRC32, out.ChecksumCRC32C, out.ChecksumSHA1, out.ChecksumSHA256, out.ChecksumCRC64NVME}
			if got.of(a) != sumOf(a, want) {
				t.Errorf("%s: GET answers %q", *key, got.of(a))
			}
			same(t, *key, readAll(t, out.Body), want)
		}
	}
	if n.payloadBytes("PutObject", "http") != 0 || n.payloadBytes("GetObject", "http") != 0 {
		t.Error("payload in HTTP bodies")
	}
}

// Without checksums of the SDK an upload still carries one, so that nobody can store the empty body.
func TestUploadsAlwaysCarryAChecksum(t *testing.T) {
	n := startNode(t)
	o := n.options(n.endpoint)
	o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
	svc := s3.New(o, awsrdma.Enable(n.session(client.PathSHM, awsrdma.Options{Strict: true})))
	want := randomBytes(1, 100000)
	put, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(want),
	})
	if err != nil || aws.ToString(put.ChecksumCRC64NVME) != sumOf(types.ChecksumAlgorithmCrc64nvme, want) {
		t.Errorf("%+v %v", put, err)
	}
}

// What came by the fabric is compared with what the server says: a value that was changed on the way is
// found at the end of the body, by Read, WriteTo and a caller's window alike.
func TestDownloadsAreCompared(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	want := randomBytes(2, 1<<20+1)
	for _, path := range allFabrics() {
		c := n.client(path, func(c *client.Config) { c.Endpoint = p.URL })
		s := awsrdma.New(c, awsrdma.Options{Strict: true})
		defer s.Close()
		o := n.options(p.URL)
		svc := s3.New(o, awsrdma.Enable(s))
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		lax := s3.New(o, awsrdma.Enable(s))
		in := &s3.PutObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(want)}
		if _, err := svc.PutObject(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		r, err := c.Alloc(2 << 20)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for name, c := range map[string]struct {
			svc    *s3.Client
			header string
			span   *string
			fails  bool
		}{
			"whole":           {svc, "X-Penstock-Rdma-Checksum", nil, true},
			"range":           {svc, "X-Penstock-Rdma-Checksum", aws.String("bytes=1-1000000"), true},
			"object's":        {svc, "X-Amz-Checksum-Crc32", nil, true},
			"nobody asked":    {lax, "X-Penstock-Rdma-Checksum", nil, path != client.PathSHM},
			"nobody compares": {lax, "X-Amz-Checksum-Crc32", nil, false},
		} {
			p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
				rewritten(forward, w, r, func(h http.Header) {
					if v := h.Get(c.header); v != "" {
						h.Set(c.header, v[:len(v)-4]+"AAA=") // another value, of the same length
					}
					if c.header == "X-Amz-Checksum-Crc32" { // a server that does not say what it moved
						h.Del("X-Penstock-Rdma-Checksum")
					}
				})
			})
			get := &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k"), Range: c.span}
			out, err := c.svc.GetObject(t.Context(), get)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(out.Body); errors.Is(err, client.ErrChecksum) != c.fails {
				t.Errorf("%s %s: read: %v", path, name, err)
			}
			if out, err = c.svc.GetObject(t.Context(), get); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(struct{ io.Writer }{io.Discard}, out.Body); errors.Is(err, client.ErrChecksum) != c.fails {
				t.Errorf("%s %s: write to: %v", path, name, err)
			}
			_, err = c.svc.GetObject(awsrdma.WithBuffer(t.Context(), r.All()), get)
			if errors.Is(err, client.ErrChecksum) != c.fails {
				t.Errorf("%s %s: window: %v", path, name, err)
			}
		}
		p.set(nil)
	}
}

// Content-MD5 is of a body, so such an upload has one.
func TestContentMD5GoesOverHTTP(t *testing.T) {
	n := startNode(t)
	svc := s3.New(n.options(n.endpoint), awsrdma.Enable(n.session(client.PathSHM, awsrdma.Options{})))
	want := randomBytes(1, 100000)
	sum := md5.Sum(want)
	put, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(want),
		ContentMD5: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, put.ResultMetadata, awsrdma.Result{
		Operation: "PutObject", Path: "http", Reason: awsrdma.ReasonContentMD5, Bytes: 100000,
	})
}
