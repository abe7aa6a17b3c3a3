package awsrdma_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
	"github.com/penstock-store/penstock/internal/config"
)

// roundTrip stores and reads and says which paths the operations report.
func roundTrip(t *testing.T, svc *s3.Client, want []byte) (put, get awsrdma.Result, err error) {
	t.Helper()
	key := aws.String("k")
	p, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(want),
	})
	if err != nil {
		return put, get, err
	}
	g, err := svc.GetObject(t.Context(), &s3.GetObjectInput{
		Bucket: aws.String("bkt"), Key: key,
	})
	if err != nil {
		return put, get, err
	}
	same(t, "round trip", readAll(t, g.Body), want)
	put, _ = awsrdma.ResultOf(p.ResultMetadata)
	get, _ = awsrdma.ResultOf(g.ResultMetadata)
	return put, get, nil
}

// declineCase is a reason why HTTP carries the payload.
type declineCase struct {
	node   *node
	setUp  func(*testing.T, *node) (*client.Client, string)
	change func(*awsrdma.Options)
	put    string
	get    string
}

func (c declineCase) run(t *testing.T) {
	n := *c.node
	n.t = t
	var o awsrdma.Options
	if c.change != nil {
		c.change(&o)
	}
	var mu sync.Mutex
	var reported []awsrdma.Result
	o.OnResult = func(_ context.Context, r awsrdma.Result) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, r)
	}
	want := randomBytes(4, 2<<20)
	cl, endpoint := c.setUp(t, &n)
	s := awsrdma.New(cl, o)
	defer s.Close()
	put, get, err := roundTrip(t, s3.New(n.options(endpoint), awsrdma.Enable(s)), want)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []awsrdma.Result{put, get} {
		reason := c.put
		if r.Operation == "GetObject" {
			reason = c.get
		}
		if r.Path != client.PathHTTP || r.Reason != reason || r.Bytes != 2<<20 {
			t.Errorf("%+v, want http because of %q", r, reason)
		}
	}
	st := s.Stats()
	if st.HTTPPuts != 1 || st.HTTPGets != 1 || st.HTTPByReason[c.put]+st.HTTPByReason[c.get] < 2 ||
		st.HTTPPutBytes != 2<<20 || st.HTTPGetBytes != 2<<20 {
		t.Errorf("%+v", st)
	}
	if len(reported) != 2 || reported[0] != put || reported[1] != get {
		t.Errorf("reported %+v", reported)
	}
	o.Strict = true
	strict := awsrdma.New(cl, o)
	defer strict.Close()
	svc := s3.New(n.options(endpoint), awsrdma.Enable(strict), quick)
	_, err = svc.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String("bkt"), Key: aws.String("strict"), Body: bytes.NewReader(want),
	})
	wantDeclined(t, err, c.put)
	_, err = svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")})
	wantDeclined(t, err, c.get)
	if _, err = c.node.plain().HeadObject(t.Context(), &s3.HeadObjectInput{
		Bucket: aws.String("bkt"), Key: aws.String("strict"),
	}); err == nil {
		t.Error("strict mode stored over HTTP")
	}
}

// Whatever keeps the payload from a fabric, HTTP carries it and says why; in strict mode it is an error
// that names the same reason, and nothing is stored.
func TestDeclinesAreVisible(t *testing.T) {
	up := startNode(t)
	off := startNode(t, func(c *config.Config) { c.RDMA.Enabled = false })
	alone := func(_ *testing.T, n *node) (*client.Client, string) { return n.client(client.PathSHM), n.endpoint }
	for name, c := range map[string]declineCase{
		"off": {node: off, setUp: alone, put: client.ReasonNoFabric, get: client.ReasonNoFabric},
		"too large": {node: up, setUp: alone, change: func(o *awsrdma.Options) { o.MaxBytes = 1 << 20 },
			put: awsrdma.ReasonTooLarge, get: awsrdma.ReasonTooLarge},
		"configured": {node: up, setUp: func(_ *testing.T, n *node) (*client.Client, string) {
			return n.client(client.PathHTTP), n.endpoint
		}, put: client.ReasonConfigured, get: client.ReasonConfigured},
		"other endpoint": {node: up, setUp: func(t *testing.T, n *node) (*client.Client, string) {
			return n.client(client.PathSHM), n.proxy(t).URL
		}, put: awsrdma.ReasonOtherEndpoint, get: awsrdma.ReasonOtherEndpoint},
		"closed client": {node: up, setUp: func(t *testing.T, n *node) (*client.Client, string) {
			c := n.client(client.PathSHM)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			return c, n.endpoint
		}, put: client.ReasonNoSession, get: client.ReasonNoSession},
		"declined by the server": {node: up, setUp: func(t *testing.T, n *node) (*client.Client, string) {
			p := n.proxy(t)
			p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
				if !hasToken(r) {
					forward.ServeHTTP(w, r)
					return
				}
				w.Header().Set("X-Amz-Rdma-Reply", "501")
				w.Header().Set("X-Penstock-Rdma-Reason", "arena-busy")
				w.WriteHeader(501)
			})
			return n.client(client.PathTCP, func(c *client.Config) { c.Endpoint = p.URL }), p.URL
		}, put: "arena-busy", get: "arena-busy"},
		"token ignored": {node: up, setUp: func(t *testing.T, n *node) (*client.Client, string) {
			p := n.proxy(t)
			p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
				if !hasToken(r) {
					forward.ServeHTTP(w, r)
					return
				}
				w.Header().Set("Etag", `"d41d8cd98f00b204e9800998ecf8427e"`) // of the empty body
			})
			return n.client(client.PathTCP, func(c *client.Config) { c.Endpoint = p.URL }), p.URL
		}, put: client.ReasonNoReply, get: client.ReasonNoReply},
	} {
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func wantDeclined(t *testing.T, err error, reason string) {
	t.Helper()
	var d *client.DeclinedError
	if !errors.Is(err, client.ErrDeclined) || !errors.As(err, &d) || d.Reason != reason {
		t.Errorf("%v, want a decline because of %q", err, reason)
	}
}

// Short payloads whose length is known go over HTTP at once.
func TestSmallPayloads(t *testing.T) {
	n := startNode(t)
	s := n.session(client.PathSHM, awsrdma.Options{MinBytes: 1000})
	svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s))
	for length, path := range map[int]string{999: "http", 1000: client.PathSHM} {
		put, _, err := roundTrip(t, svc, randomBytes(1, length))
		if err != nil || put.Path != path || (path == "http") != (put.Reason == awsrdma.ReasonSmall) {
			t.Errorf("%d bytes: %+v %v", length, put, err)
		}
	}
	for span, path := range map[string]string{"bytes=0-998": "http", "bytes=0-999": client.PathSHM} {
		out, err := svc.GetObject(t.Context(), &s3.GetObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), Range: aws.String(span),
		})
		if err != nil {
			t.Fatal(err)
		}
		readAll(t, out.Body)
		if r, _ := awsrdma.ResultOf(out.ResultMetadata); r.Path != path {
			t.Errorf("%s: %+v", span, r)
		}
	}
}

// The window of a GET of unknown length is a guess. One that is too short costs one request more, and the
// next of its kind none.
func TestGuessOfLengths(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	c := n.client(client.PathSHM, func(c *client.Config) { c.Endpoint = p.URL })
	s := awsrdma.New(c, awsrdma.Options{Strict: true})
	defer s.Close()
	svc := s3.New(n.options(p.URL), awsrdma.Enable(s))
	want := randomBytes(1, 40<<20)
	for i, tokens := range []int{2, 1, 1} {
		_, get, err := roundTrip(t, svc, want)
		if err != nil || get.Tokens != tokens || get.Path != client.PathSHM {
			t.Errorf("%d: %+v %v, want %d tokens", i, get, err, tokens)
		}
	}
}

// A node that has lost the session costs another session, not the fabric.
func TestLostSessionIsReplaced(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	for _, path := range allFabrics() {
		s := awsrdma.New(n.client(path, func(c *client.Config) { c.Endpoint = p.URL }), awsrdma.Options{Strict: true})
		svc := s3.New(n.options(p.URL), awsrdma.Enable(s))
		lost := map[string]bool{}
		var mu sync.Mutex
		p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
			mu.Lock()
			first := hasToken(r) && !lost[r.Method]
			lost[r.Method] = true
			mu.Unlock()
			if !first {
				forward.ServeHTTP(w, r)
				return
			}
			w.Header().Set("X-Amz-Rdma-Reply", "501")
			w.Header().Set("X-Penstock-Rdma-Reason", "no-session")
			w.WriteHeader(501)
		})
		put, get, err := roundTrip(t, svc, randomBytes(1, 1<<20))
		if err != nil || put.Path != path || get.Path != path || put.Tokens != 2 || get.Tokens != 2 {
			t.Errorf("%s: %+v %+v %v", path, put, get, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An S3 store that is no node gets ordinary requests, and never a token.
func TestOtherStores(t *testing.T) {
	var mu sync.Mutex
	var stored []byte
	tokens := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if hasToken(r) {
			tokens++
		}
		switch {
		case strings.HasPrefix(r.URL.Path, "/.penstock/"):
			http.Error(w, "<Error><Code>NoSuchBucket</Code></Error>", http.StatusNotFound)
		case r.Method == http.MethodPut:
			stored, _ = io.ReadAll(r.Body)
			w.Header().Set("Etag", `"x"`)
		default:
			_, _ = w.Write(stored)
		}
	}))
	defer other.Close()
	creds := client.Credentials{AccessKey: "A", SecretKey: "B", SessionToken: "C"}
	c, err := client.New(client.Config{Endpoint: other.URL, Credentials: creds})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := awsrdma.New(c, awsrdma.Options{})
	defer s.Close()
	svc := s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(other.URL), UsePathStyle: true, HTTPClient: transport(t),
		Credentials: credentials.NewStaticCredentialsProvider(creds.AccessKey, creds.SecretKey, creds.SessionToken),
	}, awsrdma.Enable(s))
	put, get, err := roundTrip(t, svc, randomBytes(1, 1<<20))
	if err != nil || put.Reason != client.ReasonNoFabric || get.Reason != client.ReasonNoFabric || tokens != 0 {
		t.Errorf("%+v %+v %v, %d tokens", put, get, err, tokens)
	}
}

// Beside an HTTPS endpoint the payload moves by the fabric all the same.
func TestHTTPS(t *testing.T) {
	n := startNode(t, withTLS)
	for _, path := range allFabrics() {
		svc := s3.New(n.options(n.endpoint), awsrdma.Enable(n.session(path, awsrdma.Options{Strict: true})))
		put, get, err := roundTrip(t, svc, randomBytes(1, 1<<20))
		if err != nil || put.Path != path || get.Path != path {
			t.Errorf("%s: %+v %+v %v", path, put, get, err)
		}
	}
	n.wantNoHTTP("PutObject")
	// Without a fabric the SDK's trailers work as ever, also for a body that cannot be rewound.
	svc := s3.New(n.options(n.endpoint), awsrdma.Enable(n.session(client.PathHTTP, awsrdma.Options{})))
	put, _, err := roundTrip(t, svc, randomBytes(1, 1<<20))
	if err != nil || put.Path != client.PathHTTP {
		t.Errorf("%+v %v", put, err)
	}
}

// A body that cannot be rewound becomes one that can: it is read once, into the region.
func TestUnseekableBody(t *testing.T) {
	n := startNode(t)
	svc := s3.New(n.options(n.endpoint), awsrdma.Enable(n.session(client.PathSHM, awsrdma.Options{Strict: true})), quick)
	want := randomBytes(1, 1<<20)
	put := func(length int64) error {
		_, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), Body: struct{ io.Reader }{bytes.NewReader(want)},
			ContentLength: aws.Int64(length),
		})
		return err
	}
	if err := put(1 << 20); err != nil {
		t.Fatal(err)
	}
	same(t, "stored", n.object("k"), want)
	if err := put(1<<20 + 1); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a body shorter than its length: %v", err)
	}
	if err := put(1<<20 - 1); err == nil {
		t.Error("a body longer than its length was stored")
	}
	_, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String("bkt"), Key: aws.String("k"), Body: struct{ io.Reader }{bytes.NewReader(want)},
	})
	wantDeclined(t, err, awsrdma.ReasonUnknownLength)
}

// Presigned URLs and other operations are what they are without the option.
func TestUntouched(t *testing.T) {
	n := startNode(t)
	s := n.session(client.PathSHM, awsrdma.Options{Strict: true})
	o := n.options(n.endpoint)
	svc, plain := s3.New(o, awsrdma.Enable(s)), s3.New(o)
	want := randomBytes(1, 100000)
	at := func(o *s3.PresignOptions) { o.Expires = time.Hour }
	for range 3 { // both within one second, at the latest the third time
		a, err := s3.NewPresignClient(svc, at).PresignPutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(want),
		})
		if err != nil {
			t.Fatal(err)
		}
		b, err := s3.NewPresignClient(plain, at).PresignPutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(want),
		})
		if err != nil {
			t.Fatal(err)
		}
		if a.URL == b.URL && len(a.SignedHeader) == len(b.SignedHeader) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, a.URL, bytes.NewReader(want))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = a.SignedHeader.Clone()
			resp, err := transport(t).Do(req)
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("presigned PUT: %v %v", resp, err)
			}
			_ = resp.Body.Close()
			same(t, "presigned", n.object("k"), want)
			if _, err := svc.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String("bkt")}); err != nil {
				t.Error(err)
			}
			if st := s.Stats(); st.Tokens != 0 || st.HTTPGets+st.HTTPPuts != 0 {
				t.Errorf("%+v", st)
			}
			return
		}
	}
	t.Error("presigned URLs differ")
}

// A request without a signature carries no token: memory is lent to nobody in particular then.
func TestUnsignedRequestsCarryNoToken(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	s := awsrdma.New(n.client(client.PathSHM, func(c *client.Config) { c.Endpoint = p.URL }), awsrdma.Options{})
	defer s.Close()
	o := n.options(p.URL)
	o.Credentials = aws.AnonymousCredentials{}
	svc := s3.New(o, awsrdma.Enable(s))
	_, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")})
	wantCode(t, err, "AccessDenied")
	_, err = svc.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String("bkt"), Key: aws.String("k"), Body: bytes.NewReader(randomBytes(1, 100000)),
	})
	wantCode(t, err, "AccessDenied")
	if tokens := p.seen(); len(tokens) != 0 {
		t.Errorf("%d tokens were sent", len(tokens))
	}
	if used := s.Stats().PoolUsedBytes; used != 0 {
		t.Errorf("%d bytes in use", used)
	}
}

// renamed is a step of the SDK under another name.
type renamed struct {
	middleware.DeserializeMiddleware
}

func (renamed) ID() string { return "Renamed" }

// A stack without retries, and one whose deserializer has another name, cost speed at most.
func TestOtherStacks(t *testing.T) {
	n := startNode(t)
	s := n.session(client.PathSHM, awsrdma.Options{Strict: true})
	for name, change := range map[string]func(*middleware.Stack) error{
		"no retries": func(stack *middleware.Stack) error {
			_, err := stack.Finalize.Remove("Retry")
			return err
		},
		"renamed": func(stack *middleware.Stack) error {
			m, ok := stack.Deserialize.Get("OperationDeserializer")
			if !ok {
				return errors.New("no OperationDeserializer")
			}
			_, err := stack.Deserialize.Swap("OperationDeserializer", renamed{m})
			return err
		},
	} {
		o := n.options(n.endpoint)
		o.APIOptions = append(o.APIOptions, change)
		put, get, err := roundTrip(t, s3.New(o, awsrdma.Enable(s)), randomBytes(1, 1<<20))
		if err != nil || put.Path != client.PathSHM || get.Path != client.PathSHM {
			t.Errorf("%s: %+v %+v %v", name, put, get, err)
		}
	}
}

// The SDK's request log shows no token.
func TestTokensAreNotLogged(t *testing.T) {
	n := startNode(t)
	p := n.proxy(t)
	c := n.client(client.PathSHM, func(c *client.Config) { c.Endpoint = p.URL })
	s := awsrdma.New(c, awsrdma.Options{Strict: true})
	defer s.Close()
	var log bytes.Buffer
	o := n.options(p.URL)
	o.ClientLogMode = aws.LogSigning | aws.LogRequestWithBody | aws.LogResponseWithBody | aws.LogRetries
	o.Logger = logging.NewStandardLogger(&log)
	if _, _, err := roundTrip(t, s3.New(o, awsrdma.Enable(s)), randomBytes(1, 100000)); err != nil {
		t.Fatal(err)
	}
	tokens := p.seen()
	if len(tokens) != 2 || !strings.Contains(log.String(), "redacted") {
		t.Fatalf("%d tokens, log of %d bytes", len(tokens), log.Len())
	}
	for _, token := range tokens {
		if strings.Contains(log.String(), token) {
			t.Error("a token is in the log")
		}
	}
}
