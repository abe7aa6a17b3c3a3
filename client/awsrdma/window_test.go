package awsrdma_test

import (
	"bytes"
	"errors"
	"net/http"
	"sync"
	"syscall"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// A region that is closed under an operation stays until the operation is over, over HTTP too.
func TestRegionClosedUnderAnOperation(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	want := randomBytes(1, 4<<20)
	for _, path := range append(allFabrics(), client.PathHTTP) {
		c := n.client(path, func(c *client.Config) { c.Endpoint = p.URL })
		s := awsrdma.New(c, awsrdma.Options{})
		svc := s3.New(n.options(p.URL), awsrdma.Enable(s))
		key := aws.String("k-" + path)
		for _, put := range []bool{true, false} {
			r, err := c.Alloc(4 << 20)
			if err != nil {
				t.Fatal(err)
			}
			if put {
				copy(r.Bytes(), want)
			}
			closed := make(chan error, 1)
			var once sync.Once
			p.set(func(w http.ResponseWriter, req *http.Request, forward http.Handler) {
				once.Do(func() { go func() { closed <- r.Close() }() })
				forward.ServeHTTP(w, req)
			})
			ctx := awsrdma.WithBuffer(t.Context(), r.All())
			if put {
				_, err = svc.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("bkt"), Key: key})
			} else {
				_, err = svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
			}
			if err != nil && !errors.Is(err, client.ErrClosed) {
				t.Errorf("%s put %v: %v", path, put, err)
			}
			if closeErr := <-closed; closeErr != nil {
				t.Errorf("%s put %v: close: %v", path, put, closeErr)
			}
			p.set(nil)
			if put && err == nil {
				same(t, path, n.object(*key), want)
			} else if put { // for the GET that follows
				if _, err := n.plain().PutObject(t.Context(), &s3.PutObjectInput{
					Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want),
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A window longer than a token can say serves a GET with what a token can say.
func TestWindowLongerThanTokens(t *testing.T) {
	n := startNode(t)
	c := n.client(client.PathTCP)
	s := awsrdma.New(c, awsrdma.Options{Strict: true, MaxBytes: 64 << 30})
	defer s.Close()
	svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s))
	want := randomBytes(1, 1<<20)
	if _, _, err := roundTrip(t, svc, want); err != nil {
		t.Fatal(err)
	}
	mem, err := syscall.Mmap(-1, 0, 5<<30, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	out, err := svc.GetObject(awsrdma.WithBuffer(t.Context(), r.All()), &s3.GetObjectInput{
		Bucket: aws.String("bkt"), Key: aws.String("k"),
	})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "window", mem[:1<<20], want)
	same(t, "body", readAll(t, out.Body), want)
	if err := errors.Join(r.Close(), syscall.Munmap(mem)); err != nil {
		t.Error(err)
	}
}
