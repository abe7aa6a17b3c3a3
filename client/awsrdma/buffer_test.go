package awsrdma_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// A window of the caller takes the place of the pool both ways, by a fabric and over HTTP; what lies
// beside it stays what it was.
func TestBuffer(t *testing.T) {
	n := startNode(t)
	for _, path := range []string{client.PathSHM, client.PathTCP, client.PathHTTP} {
		c := n.client(path)
		s := awsrdma.New(c, awsrdma.Options{Strict: path != client.PathHTTP, PoolWait: -1})
		svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s))
		const size, margin = 1<<20 + 11, 4096
		r, err := c.Alloc(size + 2*margin)
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.Bytes() {
			r.Bytes()[i] = 0xA5
		}
		mem := r.Bytes()[margin : margin+size]
		want := randomBytes(1, size)
		copy(mem, want)
		ctx := awsrdma.WithBuffer(t.Context(), r.Window(margin, size))
		key := aws.String("buffer-" + path)
		put, err := svc.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("bkt"), Key: key})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := awsrdma.ResultOf(put.ResultMetadata); got.Path != path || got.Bytes != size {
			t.Errorf("%s: %+v", path, got)
		}
		same(t, path+" stored", n.object(*key), want)
		clear(mem)
		get, err := svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
		if err != nil {
			t.Fatal(err)
		}
		same(t, path+" window", mem, want) // before anyone has read the body
		same(t, path+" body", readAll(t, get.Body), want)
		if got, _ := awsrdma.ResultOf(get.ResultMetadata); got.Path != path || got.Bytes != size {
			t.Errorf("%s: %+v", path, got)
		}
		ranged, err := svc.GetObject(ctx, &s3.GetObjectInput{
			Bucket: aws.String("bkt"), Key: key, Range: aws.String("bytes=100-199"),
		})
		if err != nil {
			t.Fatal(err)
		}
		same(t, path+" range", mem[:100], want[100:200])
		same(t, path+" behind the range", mem[100:], want[100:])
		same(t, path+" margins", append(bytes.Clone(r.Bytes()[:margin]), r.Bytes()[margin+size:]...),
			bytes.Repeat([]byte{0xA5}, 2*margin))

		// What cannot work says so.
		_, err = svc.PutObject(ctx, &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("both"), Body: bytes.NewReader(want),
		})
		if !errors.Is(err, awsrdma.ErrBuffer) {
			t.Errorf("%s: a Body beside a window: %v", path, err)
		}
		small := awsrdma.WithBuffer(t.Context(), r.Window(0, 100))
		_, err = svc.GetObject(small, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
		if !errors.Is(err, client.ErrTooSmall) {
			t.Errorf("%s: window of 100 bytes: %v", path, err)
		}
		// A closed region is no memory any more: its body fails instead of touching it.
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadAll(ranged.Body); !errors.Is(err, client.ErrClosed) {
			t.Errorf("%s: body over a closed region: %v", path, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := n.payloadBytes("PutObject", "http"); got != 1<<20+11 { // that of the session over HTTP
		t.Errorf("%d bytes of PUTs in HTTP bodies", got)
	}
}

// One window serves one operation at a time: a second one is refused before anything is sent.
func TestBufferServesOneOperation(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	c := n.client(client.PathSHM, func(c *client.Config) { c.Endpoint = p.URL })
	s := awsrdma.New(c, awsrdma.Options{Strict: true})
	defer s.Close()
	svc := s3.New(n.options(p.URL), awsrdma.Enable(s))
	r, err := c.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx := awsrdma.WithBuffer(t.Context(), r.All())
	arrived, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
		once.Do(func() { close(arrived) })
		<-leave
		forward.ServeHTTP(w, r)
	})
	put := func() error {
		_, err := svc.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")})
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- put() }()
	<-arrived
	if err := put(); !errors.Is(err, awsrdma.ErrBuffer) {
		t.Errorf("a second operation: %v", err)
	}
	close(leave)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := put(); err != nil {
		t.Errorf("after the first: %v", err)
	}
	if st := s.Stats(); st.Errors != 1 || st.FabricPuts != 2 {
		t.Errorf("%+v", st)
	}
}
