package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// miniServer is the least server that uses the package as the gateway does: objects in a map.
type miniServer struct {
	v       *Verifier
	mu      sync.Mutex
	objects map[Target][]byte
	spec    BodySpec // of the last PUT
}

func (m *miniServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := m.serve(w, r); err != nil {
		e := AsError(err).Complete(r.URL.Path, "id")
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(e.Status)
		if HasBody(r.Method, e.Status) {
			w.Write(e.AppendXML(nil))
		}
	}
}

func (m *miniServer) serve(w http.ResponseWriter, r *http.Request) error {
	req := FromHTTP(r)
	id, err := m.v.Verify(r.Context(), &req)
	if err != nil {
		return err
	}
	target, err := ParseTarget(req.RawPath, SplitHost(req.Host, []string{"s3.test"}))
	if err != nil {
		return err
	}
	switch r.Method {
	case http.MethodPut:
		return m.put(w, r, &req, id, target)
	case http.MethodPost:
		body, err := m.body(r, &req, id)
		if err != nil {
			return err
		}
		d, err := ReadDelete(bytes.NewReader(body))
		if err != nil {
			return err
		}
		var out DeleteResult
		for _, o := range d.Objects {
			out.Deleted = append(out.Deleted, Deleted{Key: o.Key})
		}
		w.Write(Marshal(out))
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if target.Key == "" {
		l := ListV2Result{Bucket: target.Bucket, EncodeURL: strings.Contains(req.RawQuery, "encoding-type=url")}
		for t, p := range m.objects {
			l.Objects = append(l.Objects, ObjectEntry{Key: t.Key, Size: int64(len(p)), ETag: "e", Modified: time.Now()})
		}
		w.Write(Marshal(l))
		return nil
	}
	p, ok := m.objects[target]
	if !ok {
		return New(NoSuchKey, "")
	}
	w.Write(p)
	return nil
}

func (m *miniServer) body(r *http.Request, req *Request, id *Identity) ([]byte, error) {
	spec, err := ParseBodySpec(req, id)
	if err != nil {
		return nil, err
	}
	if spec.Size < 0 {
		return nil, New(MissingContentLength, "")
	}
	m.spec = spec
	d, err := ParseDeclared(r.Header)
	if err != nil {
		return nil, err
	}
	b := NewBody(spec, id, r.Body)
	g := NewDigester(d, DigestOptions{MD5: true})
	p := make([]byte, spec.Size)
	if _, err := io.ReadFull(io.TeeReader(b, g), p); err != nil {
		return nil, err
	}
	if err := b.Finish(); err != nil {
		return nil, err
	}
	_, err = g.Finish(Final{Trailer: b.Trailer()})
	return p, err
}

func (m *miniServer) put(w http.ResponseWriter, r *http.Request, req *Request, id *Identity, target Target) error {
	p, err := m.body(r, req, id)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.objects[target] = p
	m.mu.Unlock()
	w.Header().Set("ETag", `"e"`)
	return nil
}

func sdkClient(t *testing.T, server *httptest.Server, change ...func(*sdk.Options)) *sdk.Client {
	t.Helper()
	return sdk.New(sdk.Options{
		BaseEndpoint: aws.String(server.URL), Region: "eu-central-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(testKey, testSecret, ""),
		HTTPClient:  server.Client(), RetryMaxAttempts: 1,
	}, change...)
}

// TestS3_01/02/10/25/32: the AWS SDK as it comes, through real connections, plain and TLS: every key,
// default checksums in headers and trailers, every algorithm, presigned, listings.
func TestS3_01_SDK(t *testing.T) {
	m := &miniServer{objects: map[Target][]byte{}, v: NewVerifier(VerifierConfig{Regions: []string{"eu-central-1"},
		Lookup: func(_ context.Context, k string) (Secret, bool, error) {
			return Secret{SecretKey: testSecret, Principal: "alice"}, k == testKey, nil
		}})}
	plain, tls := httptest.NewServer(m), httptest.NewTLSServer(m)
	defer plain.Close()
	defer tls.Close()
	ctx := context.Background()
	rnd := rand.New(rand.NewPCG(11, 11))
	algorithms := append(types.ChecksumAlgorithm("").Values()[:5], "")
	modes := map[PayloadMode]int{}
	for i := range 120 {
		c := sdkClient(t, []*httptest.Server{plain, tls}[i%2])
		key := randomKey(rnd)
		if i%7 == 0 {
			key = []string{"/", "//a", "a//b/", ".", "..", "./a/../b", "a/.", "+"}[i/7%8]
		}
		payload := randomPayload(rnd, []int{0, 1, rnd.IntN(300000)}[rnd.IntN(3)])
		in := &sdk.PutObjectInput{Bucket: aws.String("bucket"), Key: aws.String(key),
			Body: bytes.NewReader([]byte(payload)), Metadata: map[string]string{"a": "b  c"},
			ChecksumAlgorithm: algorithms[i%6]}
		if in.ChecksumAlgorithm == types.ChecksumAlgorithmCrc64nvme || rnd.IntN(3) == 0 {
			in.ChecksumAlgorithm = ""
		}
		if _, err := c.PutObject(ctx, in); err != nil {
			t.Fatalf("put %q: %v", key, err)
		}
		modes[m.spec.Mode]++
		if got := m.objects[Target{"bucket", key}]; string(got) != payload {
			t.Fatalf("put %q: %d of %d bytes", key, len(got), len(payload))
		}
		out, err := c.GetObject(ctx, &sdk.GetObjectInput{Bucket: in.Bucket, Key: in.Key, Range: aws.String("bytes=0-")})
		if err != nil {
			t.Fatalf("get %q: %v", key, err)
		}
		got, err := io.ReadAll(out.Body)
		if err != nil || string(got) != payload {
			t.Fatalf("get %q: %d bytes, %v", key, len(got), err)
		}
		out.Body.Close()
		u, err := sdk.NewPresignClient(c).PresignGetObject(ctx, &sdk.GetObjectInput{Bucket: in.Bucket, Key: in.Key})
		if err != nil {
			t.Fatal(err)
		}
		res, err := plain.Client().Get(strings.Replace(u.URL, tls.URL, plain.URL, 1))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if wrongHost := i%2 == 1; wrongHost != (res.StatusCode == 403) { // signed for the port of the TLS server
			t.Fatalf("presigned %q: %d", key, res.StatusCode)
		}
	}
	if modes[PayloadChunkedUnsignedTrailer] == 0 || modes[PayloadLiteral]+modes[PayloadUnsigned] == 0 {
		t.Errorf("payload modes seen: %v", modes)
	}
	c := sdkClient(t, plain)
	list, err := c.ListObjectsV2(ctx, &sdk.ListObjectsV2Input{Bucket: aws.String("bucket")})
	if err != nil || len(list.Contents) != len(m.objects) {
		t.Error(err)
	}
	for _, o := range list.Contents {
		if _, ok := m.objects[Target{"bucket", *o.Key}]; !ok {
			t.Errorf("listed %q", *o.Key)
		}
	}
	del, err := c.DeleteObjects(ctx, &sdk.DeleteObjectsInput{Bucket: aws.String("bucket"), Delete: &types.Delete{
		Objects: []types.ObjectIdentifier{{Key: aws.String(" a&b<\u00e4> ")}}}})
	if err != nil || len(del.Deleted) != 1 || *del.Deleted[0].Key != " a&b<\u00e4> " {
		t.Error(del, err)
	}
	var api smithy.APIError
	_, err = c.GetObject(ctx, &sdk.GetObjectInput{Bucket: aws.String("bucket"), Key: aws.String("missing")})
	if !errors.As(err, &api) || api.ErrorCode() != "NoSuchKey" {
		t.Error(err)
	}
	_, err = sdkClient(t, plain, func(o *sdk.Options) { o.Region = "us-west-2" }).GetObject(ctx,
		&sdk.GetObjectInput{Bucket: aws.String("bucket"), Key: aws.String("k")})
	if !errors.As(err, &api) || api.ErrorCode() != "AuthorizationHeaderMalformed" {
		t.Error(err)
	}
}

// TestS3_18: what net/http's server makes of a PUT without any length.
func TestS3_18_OverHTTP(t *testing.T) {
	m := &miniServer{objects: map[Target][]byte{}, v: testVerifier(testNow)}
	s := httptest.NewServer(m)
	defer s.Close()
	r, err := http.NewRequest(http.MethodPut, s.URL+"/b/k", io.NopCloser(strings.NewReader("abc")))
	if err != nil {
		t.Fatal(err)
	}
	if err := NewSigner().Sign(r, testOptions()); err != nil {
		t.Fatal(err)
	}
	res, err := s.Client().Do(r) // Transfer-Encoding: chunked
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if e := ReadError(res.StatusCode, res.Body); e.Code != MissingContentLength || e.Status != 411 {
		t.Error(e)
	}
}
