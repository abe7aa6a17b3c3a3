package awsrdma_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// wrapped is an HTTP client that this module knows nothing about.
type wrapped struct{ inner *http.Client }

func (w wrapped) Do(r *http.Request) (*http.Response, error) { return w.inner.Do(r) }

// elsewhere is another host, which counts what gets there.
type elsewhere struct {
	*httptest.Server
	mu               sync.Mutex
	requests, tokens int
}

func (e *elsewhere) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests++
	if hasToken(r) {
		e.tokens++
		w.Header().Set("X-Amz-Rdma-Reply", "200") // what it says must not count
		w.Header().Set("X-Amz-Rdma-Bytes-Transferred", fmt.Sprint(1<<20))
		w.Header().Set("Etag", `"x"`)
	} else {
		w.WriteHeader(http.StatusForbidden)
	}
}

func (e *elsewhere) seen() (requests, tokens int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	requests, tokens = e.requests, e.tokens
	e.requests, e.tokens = 0, 0
	return requests, tokens
}

// A redirect does not take a token elsewhere, whatever HTTP client follows it: the SDK does then what it
// would have done without the option. With a client that cannot be kept from it, the other host's answer is
// an error, and its token is worth nothing.
func TestRedirectsTakeNoToken(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	other := &elsewhere{}
	other.Server = httptest.NewServer(other)
	defer other.Server.Close()
	want := randomBytes(1, 1<<20)
	known := awshttp.NewBuildableClient()
	defer known.GetTransport().CloseIdleConnections()
	frozen, _ := known.Freeze().(*http.Client)
	defer frozen.CloseIdleConnections()
	for name, hc := range map[string]s3.HTTPClient{
		"net/http": transport(t), "sdk": frozen, "wrapped": wrapped{transport(t)}, "wrapped sdk": wrapped{frozen},
	} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			p.set(nil)
			s := awsrdma.New(n.client(client.PathSHM, func(c *client.Config) { c.Endpoint = p.URL }), awsrdma.Options{})
			o := n.options(p.URL)
			o.HTTPClient = hc
			svc := s3.New(o, awsrdma.Enable(s), quick)
			put := func(key string) error {
				_, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
					Bucket: aws.String("bkt"), Key: &key, Body: bytes.NewReader(want),
				})
				return err
			}
			if err := put("k"); err != nil {
				t.Fatal(err)
			}
			p.set(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
				http.Redirect(w, r, other.URL+r.URL.Path, status)
			})
			what := fmt.Sprintf("%s %d", name, status)
			if err := put("k"); err == nil {
				t.Errorf("%s: PUT succeeded", what)
			}
			_, tokens := other.seen()
			if tokens > 1 || tokens != 0 && (name != "wrapped" || status > 303) {
				t.Errorf("%s: PUT took %d tokens away", what, tokens)
			}
			out, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")})
			if err == nil {
				t.Errorf("%s: GET succeeded: %d", what, aws.ToInt64(out.ContentLength))
			}
			if _, tokens := other.seen(); tokens > 1 || tokens != 0 && name != "wrapped" {
				t.Errorf("%s: GET took %d tokens away", what, tokens)
			}
			p.set(nil)
			if err := put("k"); err != nil {
				t.Errorf("%s: after it: %v", what, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
