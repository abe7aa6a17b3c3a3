package rdma

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

const (
	// margin is memory before and behind a window that must not change. It is odd: windows begin anywhere.
	margin = 4096 + 13
	// firstPart is what S3 asks of all parts but the last.
	firstPart = 5 << 20
)

// huge is the largest transfer, in one request.
func huge() int64 {
	if given() || long() {
		return 300 << 20
	}
	return 30 << 20
}

// sizer moves objects of one size both ways by both clients.
type sizer struct {
	*node
	client *client.Client
	region *client.Region
	svc    *s3.Client
	sum    map[string]int64 // payload bytes by operation, as they should be counted
	calls  int
}

// TestEverySize: GET, ranged GET, PUT and UploadPart of sizes around the limits of values, blocks, buffers and chunks,
// by both clients, into and out of odd addresses. The oracles are patterns in the objects and around the windows, and
// the node's counters: no payload travels in a body.
func TestEverySize(t *testing.T) {
	each(t, "tcp,shm", func(t *testing.T, fabric string) {
		n := startNode(t, fabric)
		s := &sizer{node: n, client: n.connect(fabric), sum: map[string]int64{}}
		s.region = alloc(t, s.client, huge()+2*margin)
		session := awsrdma.New(s.client, awsrdma.Options{Strict: true})
		t.Cleanup(func() {
			if err := session.Close(); err != nil {
				t.Errorf("close session: %v", err)
			}
		})
		transport := &http.Transport{DisableCompression: true}
		t.Cleanup(transport.CloseIdleConnections)
		s.svc = s3.New(s3.Options{
			Region: "us-east-1", BaseEndpoint: aws.String(n.Endpoint), UsePathStyle: true, RetryMaxAttempts: 1,
			Credentials: credentials.NewStaticCredentialsProvider(n.AccessKey, n.SecretKey, ""),
			HTTPClient:  &http.Client{Transport: transport},
		}, awsrdma.Enable(session))
		before := map[string]int64{}
		for _, op := range []string{"GetObject", "PutObject", "UploadPart"} {
			before[op] = n.payload(op, fabric)
			before[op+" http"] = n.payload(op, client.PathHTTP)
		}
		for i, size := range []int64{0, 1, 4095, 65537, 4<<20 + 1} {
			s.all(uint64(i), size)
		}
		start := time.Now()
		s.huge()
		t.Logf("%d MiB both ways by both clients: %v", huge()>>20, time.Since(start))
		for _, op := range []string{"GetObject", "PutObject", "UploadPart"} {
			if got := n.payload(op, fabric) - before[op]; got != s.sum[op] {
				t.Errorf("%s by %s: %d bytes counted, want %d", op, fabric, got, s.sum[op])
			}
			if got := n.payload(op, client.PathHTTP) - before[op+" http"]; got != 0 {
				t.Errorf("%s: %d payload bytes travelled in bodies", op, got)
			}
		}
		for _, r := range n.requests(s.calls) {
			if r.Status == http.StatusRequestedRangeNotSatisfiable && strings.HasSuffix(r.Key, "-0") {
				continue // our client asks for the window's length, and an object of no bytes has no range
			}
			if r.BytesIn != 0 || r.BytesOut != 0 || r.Status/100 != 2 {
				t.Errorf("body of a transfer: %+v", r)
			}
		}
	})
}

func (s *sizer) count(op string, n int64) {
	s.sum[op] += n
	s.calls++
}

// window is n bytes of the region with a margin on both sides, all painted. load fills the window and paints the rest.
func (s *sizer) window(n int64) client.Window {
	paint(s.region.Bytes()[:n+2*margin], 0xA5)
	return s.region.Window(margin, n)
}

func (s *sizer) load(p *pattern, off, n int64) client.Window {
	mem := s.region.Bytes()
	paint(mem[:margin], 0xA5)
	p.fill(mem[margin:margin+n], off)
	paint(mem[margin+n:][:margin], 0xA5)
	return s.region.Window(margin, n)
}

// holds checks the window and its margins.
func (s *sizer) holds(what string, p *pattern, off, n int64) {
	s.t.Helper()
	mem := s.region.Bytes()
	if !p.is(mem[margin:margin+n], off) {
		s.t.Errorf("%s: other bytes", what)
	}
	if !painted(mem[:margin], 0xA5) || !painted(mem[margin+n:][:margin], 0xA5) {
		s.t.Errorf("%s: bytes outside the window changed", what)
	}
}

// went checks that n bytes moved by the fabric.
func (s *sizer) went(what string, n int64, res client.Result, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	if res.Bytes != n || (n > 0 && (res.Path != s.fabric || res.FabricBytes != n)) {
		s.t.Errorf("%s: %d bytes, %d of them by fabric, path %s (%s)", what, res.Bytes, res.FabricBytes, res.Path,
			res.Reason)
	}
}

func (s *sizer) all(seed uint64, size int64) {
	s.t.Helper()
	p := newPattern(seed)
	own, sdk := fmt.Sprintf("own-%d", size), fmt.Sprintf("sdk-%d", size)
	s.putOwn(p, own, size)
	s.putSDK(p, sdk, size)
	s.getOwn(p, sdk, size)
	s.getSDK(p, own, size)
	if size > 2 {
		s.rangeOwn(p, sdk, size/3, size/2)
		s.rangeSDK(p, own, size/3+1, size/2)
	}
	s.partOwn(p, "part-"+own, size)
	s.partSDK(p, "part-"+sdk, size)
}

func (s *sizer) putOwn(p *pattern, key string, size int64) {
	s.t.Helper()
	res, err := s.client.PutFrom(s.t.Context(), s.load(p, 0, size), bucket, key, client.PutOptions{})
	s.went("put "+key, size, res, err)
	s.holds("put "+key, p, 0, size)
	s.count("PutObject", size)
}

func (s *sizer) getOwn(p *pattern, key string, size int64) {
	s.t.Helper()
	w := s.window(max(size, 1)) // an object of no bytes needs a window all the same
	res, err := s.client.GetInto(s.t.Context(), w, bucket, key, client.GetOptions{})
	s.went("get "+key, size, res, err)
	s.holds("get "+key, p, 0, size)
	s.count("GetObject", size)
}

func (s *sizer) rangeOwn(p *pattern, key string, off, n int64) {
	s.t.Helper()
	res, err := s.client.GetInto(s.t.Context(), s.window(n), bucket, key, client.GetOptions{
		Range: &client.Range{Offset: off, Bytes: n},
	})
	s.went("ranged get "+key, n, res, err)
	s.holds("ranged get "+key, p, off, n)
	s.count("GetObject", n)
}

// plain is the pattern as a Go program has it.
func plain(p *pattern, size int64) []byte {
	b := make([]byte, size)
	p.fill(b, 0)
	return b
}

func (s *sizer) putSDK(p *pattern, key string, size int64) {
	s.t.Helper()
	_, err := s.svc.PutObject(s.t.Context(), &s3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String(key), Body: bytes.NewReader(plain(p, size)),
	})
	if err != nil {
		s.t.Fatalf("sdk put %s: %v", key, err)
	}
	s.count("PutObject", size)
}

func (s *sizer) getSDK(p *pattern, key string, size int64) {
	s.t.Helper()
	s.fetch(p, key, 0, size, nil)
}

func (s *sizer) rangeSDK(p *pattern, key string, off, n int64) {
	s.t.Helper()
	s.fetch(p, key, off, n, aws.String(fmt.Sprintf("bytes=%d-%d", off, off+n-1)))
}

func (s *sizer) fetch(p *pattern, key string, off, n int64, span *string) {
	s.t.Helper()
	out, err := s.svc.GetObject(s.t.Context(), &s3.GetObjectInput{
		Bucket: aws.String(bucket), Key: aws.String(key), Range: span,
	})
	if err != nil {
		s.t.Fatalf("sdk get %s: %v", key, err)
	}
	defer out.Body.Close()
	got, err := io.ReadAll(out.Body)
	if err != nil || int64(len(got)) != n || !p.is(got, off) {
		s.t.Errorf("sdk get %s: %d bytes, or other ones: %v", key, len(got), err)
	}
	s.moved("sdk get "+key, n, out.ResultMetadata)
	s.count("GetObject", n)
}

// begin makes an upload whose first part is long enough for another one.
func (s *sizer) begin(p *pattern, key string) (id *string, parts []types.CompletedPart) {
	s.t.Helper()
	u, err := s.svc.CreateMultipartUpload(s.t.Context(), &s3.CreateMultipartUploadInput{
		Bucket: aws.String(bucket), Key: aws.String(key),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := s.client.PutPart(s.t.Context(), s.load(p, 0, firstPart), client.PartName{
		Bucket: bucket, Key: key, UploadID: *u.UploadId, Number: 1,
	})
	s.went("first part of "+key, firstPart, res, err)
	s.count("UploadPart", firstPart)
	return u.UploadId, []types.CompletedPart{{ETag: aws.String(res.Object.ETag), PartNumber: aws.Int32(1)}}
}

func (s *sizer) complete(key string, id *string, parts []types.CompletedPart) {
	s.t.Helper()
	if _, err := s.svc.CompleteMultipartUpload(s.t.Context(), &s3.CompleteMultipartUploadInput{
		Bucket: aws.String(bucket), Key: aws.String(key), UploadId: id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	}); err != nil {
		s.t.Fatalf("complete %s: %v", key, err)
	}
}

func (s *sizer) partOwn(p *pattern, key string, size int64) {
	s.t.Helper()
	id, parts := s.begin(p, key)
	part := client.PartName{Bucket: bucket, Key: key, UploadID: *id, Number: 2}
	if size > 0 { // the client has no parts of no bytes
		res, err := s.client.PutPart(s.t.Context(), s.load(p, firstPart, size), part)
		s.went("part of "+key, size, res, err)
		s.count("UploadPart", size)
		parts = append(parts, types.CompletedPart{ETag: aws.String(res.Object.ETag), PartNumber: aws.Int32(2)})
	}
	s.complete(key, id, parts)
	s.getOwn(p, key, firstPart+size)
}

func (s *sizer) partSDK(p *pattern, key string, size int64) {
	s.t.Helper()
	id, parts := s.begin(p, key)
	body := make([]byte, size)
	p.fill(body, firstPart)
	out, err := s.svc.UploadPart(s.t.Context(), &s3.UploadPartInput{
		Bucket: aws.String(bucket), Key: aws.String(key), UploadId: id, PartNumber: aws.Int32(2),
		Body: bytes.NewReader(body),
	})
	if err != nil {
		s.t.Fatalf("sdk part of %s: %v", key, err)
	}
	s.moved("sdk part of "+key, size, out.ResultMetadata)
	s.count("UploadPart", size)
	s.complete(key, id, append(parts, types.CompletedPart{ETag: out.ETag, PartNumber: aws.Int32(2)}))
	s.getOwn(p, key, firstPart+size)
}
