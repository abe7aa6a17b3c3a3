package awsrdma_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// quick retries without the SDK's seconds of backoff.
func quick(o *s3.Options) {
	o.Retryer = retry.NewStandard(func(r *retry.StandardOptions) {
		r.MaxAttempts = 4
		r.RateLimiter = ratelimit.None
		r.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return time.Millisecond, nil })
	})
}

// Whatever ends an attempt, the SDK's next one has a token of its own, and the payload arrives once more
// from the same memory: before the request was forwarded, after its answer was lost, and after a 5xx.
func TestRetriesMintTokens(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	faults := map[string]func(http.ResponseWriter, *http.Request, http.Handler){
		"lost request": func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) },
		"lost answer": func(_ http.ResponseWriter, r *http.Request, forward http.Handler) {
			forward.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		},
		"500": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusInternalServerError)
		},
		"503": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusServiceUnavailable)
		},
	}
	for _, path := range allFabrics() {
		for name, fault := range faults {
			c := n.client(path, func(c *client.Config) { c.Endpoint = p.URL })
			s := awsrdma.New(c, awsrdma.Options{Strict: true})
			svc := s3.New(n.options(p.URL), awsrdma.Enable(s), quick)
			var left atomic.Int64
			p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
				if hasToken(r) && left.Add(-1) >= 0 {
					fault(w, r, forward)
					return
				}
				forward.ServeHTTP(w, r)
			})
			want := randomBytes(5, 1<<20)
			key := aws.String(path + name)
			p.seen()
			left.Store(2)
			put, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
				Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want),
			})
			if err != nil {
				t.Fatalf("%s %s: put: %v", path, name, err)
			}
			wantTokens(t, path+" "+name+" put", p.seen())
			if r, _ := awsrdma.ResultOf(put.ResultMetadata); r.Tokens != 3 || r.Path != path {
				t.Errorf("%s %s: %+v", path, name, r)
			}
			left.Store(2)
			got, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
			if err != nil {
				t.Fatalf("%s %s: get: %v", path, name, err)
			}
			wantTokens(t, path+" "+name+" get", p.seen())
			same(t, path+" "+name, readAll(t, got.Body), want)
			if st := s.Stats(); st.PoolUsedBytes != 0 || st.Tokens != 6 || st.Errors != 0 {
				t.Errorf("%s %s: %+v", path, name, st)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if p.bodies != 0 {
		t.Errorf("%d bytes in bodies beside tokens", p.bodies)
	}
}

func wantTokens(t *testing.T, what string, tokens []string) {
	t.Helper()
	n := len(tokens)
	slices.Sort(tokens)
	if n != 3 || len(slices.Compact(tokens)) != n {
		t.Errorf("%s: %d tokens, not all different", what, n)
	}
}

// A caller that gives up in flight gets its error only when its memory is safe: the next operations use the
// same pool, and find their own bytes.
func TestCancelInFlight(t *testing.T) {
	n := startNode(t)
	for _, path := range allFabrics() {
		s := n.session(path, awsrdma.Options{Strict: true, PoolBytes: 32 << 20, MaxBytes: 32 << 20})
		svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s), quick)
		want := randomBytes(6, 24<<20)
		key := aws.String("cancel-" + path)
		put := &s3.PutObjectInput{Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want)}
		if _, err := svc.PutObject(t.Context(), put); err != nil {
			t.Fatal(err)
		}
		cancelled := 0
		for i := range 16 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*100*time.Microsecond)
			out, err := svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
			cancel()
			if err != nil {
				cancelled++
				if errors.Is(err, client.ErrRegionAbandoned) {
					t.Fatalf("%s: %v", path, err)
				}
			} else {
				same(t, path+" survivor", readAll(t, out.Body), want)
			}
			ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i*i)*100*time.Microsecond)
			_, _ = svc.PutObject(ctx, &s3.PutObjectInput{
				Bucket: aws.String("bkt"), Key: aws.String("other"), Body: bytes.NewReader(want[:20<<20]),
			})
			cancel()
		}
		if cancelled == 0 {
			t.Errorf("%s: nothing was cancelled in flight", path)
		}
		out, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
		if err != nil {
			t.Fatal(err)
		}
		same(t, path+" after the fences", readAll(t, out.Body), want)
	}
}

// Who is cancelled costs the others a session, but no operation: whatever they were doing is repeated.
func TestCancelLeavesOthersAlone(t *testing.T) {
	n := startNode(t)
	for _, path := range allFabrics() {
		s := n.session(path, awsrdma.Options{Strict: true, PoolWait: time.Minute})
		svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s), quick, func(o *s3.Options) { o.RetryMaxAttempts = 50 })
		want := randomBytes(3, 6<<20)
		put := func(ctx context.Context, key string) error {
			_, err := svc.PutObject(ctx, &s3.PutObjectInput{
				Bucket: aws.String("bkt"), Key: aws.String(key), Body: bytes.NewReader(want),
			})
			return err
		}
		if err := put(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 4)
		for i := range 4 {
			go func() {
				errs <- func() error {
					for range 8 {
						if err := put(t.Context(), path+string(rune('a'+i))); err != nil {
							return err
						}
						out, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String(path)})
						if err != nil {
							return err
						}
						if got, err := io.ReadAll(out.Body); err != nil || !bytes.Equal(got, want) {
							return errors.Join(err, errors.New("other bytes"))
						}
					}
					return nil
				}()
			}()
		}
		for i := range 10 { // each ends the session of all
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*500*time.Microsecond)
			_ = put(ctx, "cancelled")
			cancel()
		}
		for range 4 {
			if err := <-errs; err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

// An answer that comes before its transfer has ended, or that contradicts itself, is no success.
func TestBrokenAnswersAreErrors(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	c := n.client(client.PathSHM, func(c *client.Config) { c.Endpoint = p.URL })
	s := awsrdma.New(c, awsrdma.Options{})
	defer s.Close()
	svc := s3.New(n.options(p.URL), awsrdma.Enable(s), quick)
	want := randomBytes(7, 1<<20)
	put := func() error {
		_, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(want),
		})
		return err
	}
	get := func() error {
		_, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")})
		return err
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(http.Header){
		func(h http.Header) { h.Set("X-Amz-Rdma-Bytes-Transferred", "1048577") },
		func(h http.Header) { h.Set("X-Amz-Rdma-Bytes-Transferred", "99999999999") },
		func(h http.Header) { h.Set("X-Amz-Rdma-Bytes-Transferred", "1e3") },
		func(h http.Header) { h.Set("X-Amz-Rdma-Reply", "200xyz") },
	} {
		p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) { rewritten(forward, w, r, change) })
		if err := put(); !errors.Is(err, client.ErrProtocol) {
			t.Errorf("put: %v", err)
		}
		if err := get(); err != nil && !errors.Is(err, client.ErrProtocol) {
			t.Errorf("get: %v", err)
		}
	}
	p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
		rewritten(forward, w, r, func(h http.Header) { h.Set("X-Amz-Checksum-Crc32", "AAAAAA==") })
	})
	if err := put(); !errors.Is(err, client.ErrChecksum) {
		t.Errorf("stored with another checksum: %v", err)
	}
	p.set(nil)
	if err := get(); err != nil {
		t.Errorf("after broken answers: %v", err)
	}
}

// Sixteen at a time, with a pool for five: all wait their turn, none goes over HTTP.
func TestConcurrency(t *testing.T) {
	n := startNode(t)
	for _, path := range allFabrics() {
		s := n.session(path, awsrdma.Options{
			Strict: true, PoolBytes: 10 << 20, MaxBytes: 2 << 20, PoolWait: time.Minute,
		})
		svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s))
		errs := make(chan error, 16)
		for i := range 16 {
			go func() {
				errs <- func() error {
					for round := range 6 {
						want := randomBytes(uint64(i*100+round), 1<<20+i*1000+round)
						key := aws.String(string(rune('a' + i)))
						if _, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
							Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want),
						}); err != nil {
							return err
						}
						out, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
						if err != nil {
							return err
						}
						got, err := io.ReadAll(out.Body)
						if err = errors.Join(err, out.Body.Close()); err != nil {
							return err
						}
						if !bytes.Equal(got, want) {
							return errors.New("other bytes")
						}
					}
					return nil
				}()
			}()
		}
		for range 16 {
			if err := <-errs; err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		if st := s.Stats(); st.PoolBytes > 10<<20 {
			t.Errorf("%s: pool of %d bytes", path, st.PoolBytes)
		}
	}
	n.wantNoHTTP("PutObject")
}
