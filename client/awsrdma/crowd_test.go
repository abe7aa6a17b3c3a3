package awsrdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// Parts of a multipart upload with the option are taken or refused as without it, whatever checksum the
// upload was announced with, and the object is the same.
func TestMultipartChecksumsLookTheSame(t *testing.T) {
	n := startNode(t)
	want := randomBytes(1, 100_000) // the last part may be short
	one := func(svc *s3.Client, key string, announced, part types.ChecksumAlgorithm) string {
		up, err := svc.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{
			Bucket: aws.String("bkt"), Key: &key, ChecksumAlgorithm: announced,
		})
		if err != nil {
			return "create: " + faceOf(t, nil, nil, err)["error"]
		}
		out, err := svc.UploadPart(t.Context(), &s3.UploadPartInput{
			Bucket: aws.String("bkt"), Key: &key, UploadId: up.UploadId, PartNumber: aws.Int32(1),
			Body: bytes.NewReader(want), ChecksumAlgorithm: part,
		})
		if err != nil {
			return "part: " + faceOf(t, nil, nil, err)["error"]
		}
		_, err = svc.CompleteMultipartUpload(t.Context(), &s3.CompleteMultipartUploadInput{
			Bucket: aws.String("bkt"), Key: &key, UploadId: up.UploadId,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{{
				ETag: out.ETag, PartNumber: aws.Int32(1), ChecksumCRC32: out.ChecksumCRC32,
				ChecksumSHA256: out.ChecksumSHA256, ChecksumCRC64NVME: out.ChecksumCRC64NVME,
			}}},
		})
		if err != nil {
			return "complete: " + faceOf(t, nil, nil, err)["error"]
		}
		same(t, key, n.object(key), want)
		return "stored"
	}
	s := n.session(client.PathSHM, awsrdma.Options{Strict: true})
	for _, calculation := range []aws.RequestChecksumCalculation{
		aws.RequestChecksumCalculationWhenSupported, aws.RequestChecksumCalculationWhenRequired,
	} {
		o := n.options(n.endpoint)
		o.RequestChecksumCalculation = calculation
		with, without := s3.New(o, awsrdma.Enable(s)), s3.New(o)
		algorithms := []types.ChecksumAlgorithm{"", "CRC32", "SHA256", "CRC64NVME"}
		for _, announced := range algorithms {
			for _, part := range algorithms {
				what := fmt.Sprintf("%d announced %q part %q", calculation, announced, part)
				got, plain := one(with, what, announced, part), one(without, what, announced, part)
				if got != plain {
					t.Errorf("%s: %s, without the option %s", what, got, plain)
				}
			}
		}
	}
}

// An object that is replaced under a managed download is no mixture of the two.
func TestReplacedUnderADownload(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	const span, size = 1 << 20, 4 << 20
	first, second := randomBytes(1, size), randomBytes(2, size)
	for _, path := range allFabrics() {
		s := awsrdma.New(n.client(path, func(c *client.Config) { c.Endpoint = p.URL }), awsrdma.Options{})
		svc := s3.New(n.options(p.URL), awsrdma.Enable(s))
		store := func(want []byte) {
			if _, err := n.plain().PutObject(context.Background(), &s3.PutObjectInput{
				Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(want),
			}); err != nil {
				t.Error(err)
			}
		}
		tm := transfermanager.New(svc, func(o *transfermanager.Options) {
			o.PartSizeBytes, o.Concurrency, o.GetObjectType = span, 1, "RANGES"
		})
		for after := range int64(4) {
			p.set(nil)
			store(first)
			var gets atomic.Int64
			p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
				if r.Method == http.MethodGet && gets.Add(1) == after+1 {
					store(second)
				}
				forward.ServeHTTP(w, r)
			})
			into := manager.NewWriteAtBuffer(nil)
			_, err := tm.DownloadObject(t.Context(), &transfermanager.DownloadObjectInput{
				Bucket: aws.String("bkt"), Key: aws.String("k"), WriterAt: into,
			})
			if err == nil && !bytes.Equal(into.Bytes(), first) && !bytes.Equal(into.Bytes(), second) {
				t.Errorf("%s: a mixture after %d requests", path, after)
			}
		}
		p.set(nil)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A crowd with a pool for few, slow answers, short deadlines, bodies that nobody reads to the end or
// closes, and a busy garbage collector: nobody hangs, and whoever gets bytes gets the right ones.
func TestCrowd(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	goroutines, rounds := 64, 3
	if testing.Short() {
		goroutines, rounds = 16, 3
	}
	for _, path := range allFabrics() {
		c := n.client(path, func(c *client.Config) { c.Endpoint = p.URL })
		s := awsrdma.New(c, awsrdma.Options{PoolBytes: 24 << 20, MaxBytes: 4 << 20, PoolWait: 5 * time.Millisecond})
		svc := s3.New(n.options(p.URL), awsrdma.Enable(s), quick)
		wants := map[int][]byte{}
		for _, size := range []int{32<<10 - 1, 32 << 10, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3 << 20, 4 << 20, 4<<20 + 1} {
			wants[size] = randomBytes(uint64(size), size)
			if _, err := n.plain().PutObject(t.Context(), &s3.PutObjectInput{
				Bucket: aws.String("bkt"), Key: aws.String(fmt.Sprint(size)), Body: bytes.NewReader(wants[size]),
			}); err != nil {
				t.Fatal(err)
			}
		}
		var requests atomic.Int64
		p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
			switch requests.Add(1) % 13 {
			case 0:
				<-time.After(20 * time.Millisecond)
			case 5:
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			forward.ServeHTTP(w, r)
		})
		one := func(i int) error {
			for size, want := range wants { // in any order
				patience := time.Minute
				if i%7 == 0 {
					patience = time.Duration(i%70) * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				out, err := svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String(fmt.Sprint(size))})
				if err == nil && i%5 != 0 {
					got, readErr := io.ReadAll(out.Body)
					_ = out.Body.Close()
					if readErr == nil && !bytes.Equal(got, want) {
						cancel()
						return fmt.Errorf("%d bytes: others", size)
					}
				}
				key := aws.String(fmt.Sprintf("%d-%d", i%8, size))
				_, err = svc.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want)})
				cancel()
				if errors.Is(err, client.ErrRegionAbandoned) || errors.Is(err, client.ErrChecksum) {
					return err
				}
				if i%3 == 0 {
					runtime.GC()
				}
				break
			}
			return nil
		}
		var crowd sync.WaitGroup
		for g := range goroutines {
			crowd.Go(func() {
				for r := range rounds {
					if err := one(g*rounds + r); err != nil {
						t.Errorf("%s: %v", path, err)
					}
				}
			})
		}
		crowd.Wait()
		p.set(nil)
		for i := range 8 {
			for size, want := range wants {
				out, err := n.plain().GetObject(t.Context(), &s3.GetObjectInput{
					Bucket: aws.String("bkt"), Key: aws.String(fmt.Sprintf("%d-%d", i, size)),
				})
				if err == nil { // stored: whole or not at all
					same(t, "stored", readAll(t, out.Body), want)
				}
			}
		}
		t.Logf("%s: %+v", path, s.Stats())
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
