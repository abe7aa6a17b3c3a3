package awsrdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
	"github.com/penstock-store/penstock/test/realnode"
)

// mortal is a node in a process of its own, which can be killed and started again at the same addresses.
type mortal struct {
	t      *testing.T
	binary string
	dir    string
	*bench.Node
}

func startMortal(t *testing.T) *mortal {
	t.Helper()
	m := &mortal{t: t, binary: realnode.Build(t)}
	var err error
	if m.dir, err = bench.TempDir(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	m.start()
	t.Cleanup(func() { _ = m.Stop() })
	if _, err := s3.New(m.options(m.Endpoint)).CreateBucket(t.Context(), &s3.CreateBucketInput{
		Bucket: aws.String("bkt"),
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mortal) start() {
	n, err := bench.StartNode(context.Background(), bench.NodeOptions{Binary: m.binary, Dir: m.dir, Again: m.Node,
		Flags: []string{"--storage-segment", "128MiB", "--storage-reserve", "64MiB", "--storage-grace", "1s"}})
	if err != nil {
		m.t.Error(err)
		return
	}
	m.Node = n
}

func (m *mortal) restart() {
	realnode.Kill(m.t, m.Node)
	m.start()
}

func (m *mortal) options(endpoint string) s3.Options {
	return s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint), UsePathStyle: true, HTTPClient: transport(m.t),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
		Credentials:                credentials.NewStaticCredentialsProvider(m.AccessKey, m.SecretKey, ""),
	}
}

func (m *mortal) session(endpoint, path string, o awsrdma.Options) *awsrdma.Session {
	m.t.Helper()
	c, err := client.New(client.Config{Endpoint: endpoint, Fabric: client.Fabric(path), AWSRegion: "us-east-1",
		Credentials: client.Credentials{AccessKey: m.AccessKey, SecretKey: m.SecretKey}})
	if err != nil {
		m.t.Fatal(err)
	}
	s := awsrdma.New(c, o)
	m.t.Cleanup(func() {
		if used := s.Stats().PoolUsedBytes; used != 0 {
			m.t.Errorf("%s: %d bytes of the pool were not given back", path, used)
		}
		_ = s.Close() // regions of a killed node's sessions are abandoned, and say so
		_ = c.Close()
	})
	return s
}

// A node that dies under requests leaves abandoned memory behind. The pool gives none of it out again: an
// upload goes on from other memory, a download into other memory, within the same operation.
func TestAbandonedMemoryIsReplaced(t *testing.T) {
	m := startMortal(t)
	p := (&node{t: t, endpoint: m.Endpoint}).proxy(t)
	want := randomBytes(1, 3<<20)
	for _, path := range fabrics {
		s := m.session(p.URL, path, awsrdma.Options{Strict: true})
		svc := s3.New(m.options(p.URL), awsrdma.Enable(s), quick)
		key := aws.String(path)
		put := func() (awsrdma.Result, error) {
			out, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
				Bucket: aws.String("bkt"), Key: key, Body: struct{ io.Reader }{bytes.NewReader(want)},
				ContentLength: aws.Int64(int64(len(want))),
			})
			if err != nil {
				return awsrdma.Result{}, err
			}
			r, _ := awsrdma.ResultOf(out.ResultMetadata)
			return r, nil
		}
		get := func() (io.ReadCloser, awsrdma.Result, error) {
			out, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
			if err != nil {
				return nil, awsrdma.Result{}, err
			}
			r, _ := awsrdma.ResultOf(out.ResultMetadata)
			return out.Body, r, nil
		}
		if _, err := put(); err != nil {
			t.Fatal(err)
		}
		var bodies []io.ReadCloser // open at once: as many regions, idle then
		for range 4 {
			b, _, err := get()
			if err != nil {
				t.Fatal(err)
			}
			bodies = append(bodies, b)
		}
		for _, b := range bodies {
			same(t, path, readAll(t, b), want)
		}
		dying := func() {
			var once sync.Once
			p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
				dead := false
				once.Do(func() {
					m.restart()
					dead = true
				})
				if dead {
					panic(http.ErrAbortHandler)
				}
				forward.ServeHTTP(w, r)
			})
		}
		dying()
		r, err := put()
		if err != nil || r.Path != path || r.Tokens < 2 {
			t.Errorf("%s: PUT under which the node died: %+v %v", path, r, err)
		}
		dying()
		b, r, err := get()
		if err != nil || r.Path != path || r.Tokens < 2 {
			t.Fatalf("%s: GET under which the node died: %+v %v", path, r, err)
		}
		same(t, path+" after", readAll(t, b), want)
		p.set(nil)
		m.restart() // while all is idle
		for i := range 6 {
			if _, err := put(); err != nil {
				t.Errorf("%s: PUT %d after a restart: %v", path, i, err)
			}
			b, _, err := get()
			if err != nil {
				t.Errorf("%s: GET %d after a restart: %v", path, i, err)
				continue
			}
			same(t, path, readAll(t, b), want)
		}
	}
}

// patient outlasts restarts.
func patient(o *s3.Options) {
	o.Retryer = retry.NewStandard(func(r *retry.StandardOptions) {
		r.MaxAttempts = 400
		r.RateLimiter = ratelimit.None
		r.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 50 * time.Millisecond, nil })
	})
}

// Managers whose node is killed under them, several times: what they call stored is stored, and what they
// call read are the object's bytes.
func TestManagersOutliveTheirNode(t *testing.T) {
	m := startMortal(t)
	const size = 3*partBytes + 123
	rounds, kills := 6, 3
	if testing.Short() {
		rounds, kills = 3, 1
	}
	for _, path := range fabrics {
		s := m.session(m.Endpoint, path, awsrdma.Options{})
		svc := s3.New(m.options(m.Endpoint), awsrdma.Enable(s), patient)
		tm := transfermanager.New(svc, func(o *transfermanager.Options) {
			o.PartSizeBytes, o.MultipartUploadThreshold, o.Concurrency = partBytes, partBytes, 3
		})
		var stored, read, failed atomic.Int64
		var workers sync.WaitGroup
		var over atomic.Bool
		for w := range 3 {
			workers.Go(func() {
				for i := 0; i < rounds || !over.Load(); i++ {
					seed := uint64(w*100 + i%50)
					key := aws.String(fmt.Sprintf("%s/%d", path, seed))
					want := randomBytes(seed, size)
					if _, err := tm.UploadObject(t.Context(), &transfermanager.UploadObjectInput{
						Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want),
					}); err != nil {
						failed.Add(1)
						t.Logf("%s: up: %v", path, err)
						continue
					}
					stored.Add(1)
					into := manager.NewWriteAtBuffer(nil)
					_, err := tm.DownloadObject(t.Context(), &transfermanager.DownloadObjectInput{
						Bucket: aws.String("bkt"), Key: key, WriterAt: into,
					})
					if errors.Is(err, client.ErrChecksum) {
						t.Errorf("%s: %v", *key, err)
					}
					if err != nil { // a body over HTTP that breaks off is no manager's to repeat
						failed.Add(1)
						t.Logf("%s: down: %v", path, err)
						continue
					}
					read.Add(1)
					same(t, *key, into.Bytes(), want)
				}
			})
		}
		for i := range kills {
			for stored.Load()+read.Load()+failed.Load() < int64(4*(i+1)) {
				<-time.After(5 * time.Millisecond)
			}
			m.restart()
		}
		over.Store(true)
		workers.Wait()
		if stored.Load() == 0 || read.Load() == 0 {
			t.Errorf("%s: nothing moved: %d failed", path, failed.Load())
		}
		t.Logf("%s: %d stored, %d read, %d failed; %+v", path, stored.Load(), read.Load(), failed.Load(), s.Stats())
	}
}
