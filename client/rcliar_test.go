package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// liar stands between a client and its node. It passes requests with a token on, and answers them as it likes.
type liar struct {
	*httptest.Server
	forward http.Handler
	passed  sync.WaitGroup

	mu   sync.Mutex
	lie  func(w http.ResponseWriter, r *http.Request)
	wait <-chan struct{}
}

func newLiar(t *testing.T, n *node) *liar {
	t.Helper()
	to, err := url.Parse(n.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	tr := http.DefaultTransport.(*http.Transport).Clone()
	l := &liar{forward: &httputil.ReverseProxy{
		Transport: tr,
		ErrorLog:  log.New(io.Discard, "", 0), // clients give up on purpose
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it is signed
		},
	}}
	l.Server = httptest.NewServer(l)
	t.Cleanup(func() {
		l.Close()
		l.passed.Wait()
		tr.CloseIdleConnections()
	})
	return l
}

// pass sends the request on. What becomes of it does not depend on who waits for the answer.
func (l *liar) pass(r *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	l.forward.ServeHTTP(rec, r.Clone(context.WithoutCancel(r.Context())))
	return rec
}

// tell makes it lie, after wait, about requests with a token; nil: it does not.
func (l *liar) tell(wait <-chan struct{}, lie func(w http.ResponseWriter, r *http.Request)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lie, l.wait = lie, wait
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	lie, wait := l.lie, l.wait
	l.mu.Unlock()
	if lie == nil || r.Header.Get("X-Amz-Rdma-Token") == "" {
		l.forward.ServeHTTP(w, r)
		return
	}
	r.Body = http.NoBody
	l.passed.Go(func() { l.pass(r) })
	select {
	case <-wait:
		lie(w, r)
	case <-r.Context().Done():
	}
}

// raw writes bytes that need not be an answer, and hangs up.
func raw(text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		nc, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = nc.Write([]byte(text))
		_ = nc.Close()
	}
}

// failing is an answer of the node's own with that status, or of something on the way.
func failing(status int, byNode bool) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		if byNode {
			w.Header().Set("X-Amz-Request-Id", "1")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "<Error><Code>SomeError</Code></Error>")
	}
}

// moved says that all of the object was moved, with changes.
func moved(sum string, size int, change map[string]string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Etag", `"x"`)
		h.Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", size-1, size))
		h.Set("X-Amz-Rdma-Reply", "206")
		h.Set("X-Amz-Rdma-Bytes-Transferred", strconv.Itoa(size))
		h.Set("X-Penstock-Rdma-Checksum", "CRC64NVME "+sum)
		for name, value := range change {
			h.Set(name, value)
		}
		w.WriteHeader(http.StatusPartialContent)
	}
}

// TestRCAnswersThatAreNotTrue: the payload is in the network when the answer comes, and the answer is wrong, broken, of
// somebody else, or missing. The call fails, and when it has returned the packets arrive and change nothing: the
// memory is in other use by then. Oracle: the paint, and the adapter's log.
func TestRCAnswersThatAreNotTrue(t *testing.T) {
	const size = 1<<20 + 3
	n := startRCNode(t, fakeverbs.Options{})
	l := newLiar(t, n)
	c := n.client(client.PathRC, once, func(cfg *client.Config) { cfg.Endpoint = l.URL })
	r := rcBucket(t, c, size)
	sum := client.SumChecksum(randomBytes(3, size))
	but := func(name, value string) func(http.ResponseWriter, *http.Request) {
		return moved(sum, size, map[string]string{name: value})
	}
	type lie struct {
		gets, puts bool
		tell       func(http.ResponseWriter, *http.Request)
		want       error // nil: an *Error
	}
	lies := map[string]lie{
		"moved, and it is not":     {true, false, moved(sum, size, nil), client.ErrChecksum},
		"moved less":               {true, false, but("X-Amz-Rdma-Bytes-Transferred", "7"), client.ErrProtocol},
		"moved, with no decimal":   {true, false, but("X-Amz-Rdma-Reply", "206ok"), client.ErrProtocol},
		"another range":            {true, false, but("Content-Range", "bytes 5-9/10"), client.ErrProtocol},
		"moved, with other sums":   {true, false, moved("AAAAAAAAAAA=", size, nil), client.ErrChecksum},
		"failed":                   {true, true, failing(500, true), nil},
		"busy":                     {true, true, failing(503, true), nil},
		"timed out":                {true, true, failing(408, true), nil},
		"failed on the way":        {true, true, failing(502, false), client.ErrNoAnswer},
		"timed out on the way":     {true, true, failing(504, false), client.ErrNoAnswer},
		"broken off":               {true, true, raw(""), client.ErrNoAnswer},
		"broken off in the middle": {true, true, raw("HTTP/1.1 200 OK\r\nX-Amz-Rdma-Reply: 2"), client.ErrNoAnswer},
		"no HTTP":                  {true, true, raw("SSH-2.0-x\r\n\r\n"), client.ErrNoAnswer},
		"sent twice": {true, true, func(w http.ResponseWriter, r *http.Request) {
			second := l.pass(r)
			if second.Code != http.StatusForbidden || !strings.Contains(second.Body.String(), "RDMATokenReplayed") {
				t.Errorf("the copy was answered %d", second.Code)
			}
			w.WriteHeader(second.Code)
			_, _ = w.Write(second.Body.Bytes())
		}, client.ErrNoAnswer},
	}
	for name, x := range lies {
		for _, put := range []bool{false, true} {
			if put && !x.puts || !put && !x.gets {
				continue
			}
			t.Run(fmt.Sprintf("%s, put %v", name, put), func(t *testing.T) {
				at := fakeverbs.AtWritePacket
				paint(r.Bytes(), 0xA5)
				if put {
					at = fakeverbs.AtReadRequest
					copy(r.Bytes(), randomBytes(3, size))
				}
				held := n.adapters.Inject(fakeverbs.Rule{At: at, Do: fakeverbs.Hold, Times: fakeverbs.Always})
				t.Cleanup(held.Release)
				underWay := make(chan struct{})
				l.tell(underWay, x.tell)
				ended := make(chan error, 1)
				go func() {
					var err error
					if put {
						_, err = c.PutFrom(t.Context(), r.All(), "rails", "new", client.PutOptions{})
					} else {
						_, err = c.GetInto(t.Context(), r.All(), "rails", "k", client.GetOptions{})
					}
					ended <- err
				}()
				held.Await(1)
				close(underWay)
				err := <-ended
				if errors.Is(err, client.ErrRegionAbandoned) || (x.want != nil && !errors.Is(err, x.want)) ||
					(x.want == nil && !errors.As(err, new(*client.Error))) {
					t.Errorf("%v", err)
				}
				paint(r.Bytes(), 0x5A)
				mark, dropped := n.adapters.Mark(), n.adapters.Counters().Dropped
				held.Release()
				n.adapters.Await("late packets", func() bool { return n.adapters.Counters().Dropped > dropped })
				n.adapters.Await("the node to let go", func() bool { return !n.adapters.Busy() })
				if touched := n.adapters.Touched(r.Bytes(), mark); len(touched) != 0 || !painted(r.Bytes(), 0x5A) {
					t.Errorf("memory was touched: %d times, first %+v", len(touched), touched[:min(1, len(touched))])
				}
				l.tell(nil, nil)
				l.passed.Wait()
				if _, err := c.Head(t.Context(), "rails", "new"); !errors.Is(err, client.ErrNotFound) {
					t.Errorf("a failed PUT: %v", err)
				}
				res, err := c.GetInto(t.Context(), r.All(), "rails", "k", client.GetOptions{})
				if err != nil || res.Path != client.PathRC || client.SumChecksum(r.Bytes()) != sum {
					t.Errorf("the next request: %+v %v", res, err)
				}
			})
		}
	}
}
