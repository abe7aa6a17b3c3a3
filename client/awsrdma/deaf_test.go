package awsrdma_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// deaf is an HTTP client of the application that gives up on requests which are still on their way, and
// does not pass on what the context has to say.
type deaf struct {
	inner   *http.Client
	arrived <-chan struct{}
	ended   sync.WaitGroup
}

var errDeaf = errors.New("gave up")

func (d *deaf) Do(r *http.Request) (*http.Response, error) {
	if !hasToken(r) {
		return d.inner.Do(r)
	}
	d.ended.Go(func() {
		if resp, err := d.inner.Do(r.Clone(context.Background())); err == nil {
			_ = resp.Body.Close()
		}
	})
	<-d.arrived
	return nil, errDeaf
}

// Whatever HTTP client the application has: when an operation has returned, a request of it that is still
// under way touches no memory, and stores nothing.
func TestLateRequestsOfAnyHTTPClient(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	want := randomBytes(1, 1<<20)
	for _, path := range allFabrics() {
		c := n.client(path, func(c *client.Config) { c.Endpoint = p.URL })
		s := awsrdma.New(c, awsrdma.Options{Strict: true})
		o := n.options(p.URL)
		o.RetryMaxAttempts = 1
		if _, err := s3.New(o, awsrdma.Enable(s)).PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(want),
		}); err != nil {
			t.Fatal(err)
		}
		arrived, leave := make(chan struct{}), make(chan struct{})
		p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
			if hasToken(r) {
				arrived <- struct{}{}
				<-leave
			}
			forward.ServeHTTP(w, r)
		})
		d := &deaf{inner: transport(t), arrived: arrived}
		o.HTTPClient = d
		svc := s3.New(o, awsrdma.Enable(s))
		r, err := c.Alloc(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		clean := bytes.Repeat([]byte{0xA5}, 1<<20)
		copy(r.Bytes(), clean)
		ctx := awsrdma.WithBuffer(t.Context(), r.All())
		_, err = svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")})
		if err == nil {
			t.Errorf("%s: GET without an answer", path)
		}
		key := aws.String("late-" + path)
		if _, err = svc.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("bkt"), Key: key}); err == nil {
			t.Errorf("%s: PUT without an answer", path)
		}
		close(leave)
		d.ended.Wait()
		same(t, path+" window", r.Bytes(), clean)
		_, err = n.plain().HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String("bkt"), Key: key})
		if !errors.As(err, new(*types.NotFound)) {
			t.Errorf("%s: %v", path, err)
		}
		p.set(nil)
		if err := errors.Join(r.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
}
