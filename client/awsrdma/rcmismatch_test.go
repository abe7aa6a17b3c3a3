package awsrdma_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// An answer says that all has moved while the payload is still in the network. The bytes that the program gets are an
// error, at the latest at their end, and then the packets arrive and change nothing: neither the window of the caller
// nor a region of the pool, which somebody else has by then. Oracle: canaries, and the adapter's log.
func TestMovedAndNotThereOverRC(t *testing.T) {
	n := startNode(t)
	if n.adapters == nil {
		t.Skip("no faked adapters")
	}
	p := n.proxy(t)
	for _, size := range []int{40_000, 1<<20 + 7} { // bodies have a copy of small payloads
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes, window %v", size, own), func(t *testing.T) {
				c := n.client(client.PathRC, func(c *client.Config) { c.Endpoint = p.URL })
				s := awsrdma.New(c, awsrdma.Options{Strict: true, PoolBytes: 2 << 20, MaxBytes: 2 << 20, PoolWait: -1})
				o := n.options(p.URL)
				o.RetryMaxAttempts = 1
				svc := s3.New(o, awsrdma.Enable(s))
				want := randomBytes(4, size)
				key := aws.String("k")
				if _, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
					Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want),
				}); err != nil {
					t.Fatal(err)
				}
				held := n.adapters.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold, Times: fakeverbs.Always})
				t.Cleanup(held.Release)
				underWay, passed := make(chan struct{}), make(chan struct{})
				p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
					go func() {
						defer close(passed)
						forward.ServeHTTP(httptest.NewRecorder(), r.Clone(n.t.Context()))
					}()
					<-underWay
					w.Header().Set("Etag", `"x"`)
					w.Header().Set("X-Amz-Rdma-Reply", "200")
					w.Header().Set("X-Amz-Rdma-Bytes-Transferred", strconv.Itoa(size))
					w.Header().Set("X-Penstock-Rdma-Checksum", "CRC64NVME "+client.SumChecksum(want))
				})
				ctx := t.Context()
				window, err := c.Alloc(2 << 20)
				if err != nil {
					t.Fatal(err)
				}
				if own {
					ctx = awsrdma.WithBuffer(ctx, window.All())
				}
				ended := make(chan error, 1)
				go func() {
					out, err := svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
					if err == nil {
						_, err = new(bytes.Buffer).ReadFrom(out.Body)
						err = errors.Join(err, out.Body.Close())
					}
					ended <- err
				}()
				held.Await(1)
				close(underWay)
				if err := <-ended; !errors.Is(err, client.ErrChecksum) || errors.Is(err, client.ErrRegionAbandoned) {
					t.Errorf("%v", err)
				}
				clean := bytes.Repeat([]byte{0xA5}, 2<<20)
				copy(window.Bytes(), clean)
				written, dropped := n.adapters.Counters().WriteBytes, n.adapters.Counters().Dropped
				held.Release()
				n.adapters.Await("late packets", func() bool { return n.adapters.Counters().Dropped > dropped })
				n.adapters.Await("the node to let go", func() bool { return !n.adapters.Busy() })
				if now := n.adapters.Counters().WriteBytes; now != written {
					t.Errorf("%d bytes were written afterwards", now-written)
				}
				same(t, "window", window.Bytes(), clean)
				<-passed
				p.set(nil)
				if _, get, err := roundTrip(t, svc, want); err != nil || get.Path != client.PathRC {
					t.Errorf("the next operation: %+v %v", get, err)
				}
				if used := s.Stats().PoolUsedBytes; used != 0 {
					t.Errorf("%d bytes of the pool are in use", used)
				}
				if err := errors.Join(window.Close(), s.Close()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
