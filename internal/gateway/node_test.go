package gateway_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/chunk/chunkmem"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/front"
	"github.com/penstock-store/penstock/internal/gateway"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv/pebble"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Keys of the test node.
const (
	rootID, rootSecret   = "PSROOTROOTROOTROOTRO", "root-secret-for-tests-0123456789"
	aliceID, aliceSecret = "PSALICEALICEALICEALI", "alice-secret-for-tests-012345678"
	testRegion           = "eu-test-1"
)

// node is a gateway over a real store on memory engines, behind a real net/http server on loopback.
type node struct {
	t        testing.TB
	url      string
	host     string
	g        *gateway.Gateway
	store    *store.Store
	kv       *steppedKV
	chunks   *chunkmem.Engine
	arena    *arena.Arena
	keys     *iam.Keys
	fabric   *fakeFabric
	gate     *gate // of writes to the engines
	listener *gateway.Listener
	signer   *s3.Signer
	client   *http.Client
}

// tweak changes the options of a node before it starts.
type (
	tweak        func(*tweakOptions)
	tweakOptions = gateway.Options
)

func newNode(t testing.TB, tweaks ...tweak) *node {
	t.Helper()
	return newNodeOf(t, 0, tweaks...)
}

// newNodeOf is newNode with a lower limit of parts.
func newNodeOf(t testing.TB, minPart int64, tweaks ...tweak) *node {
	t.Helper()
	ctx := context.Background()
	engine, err := pebble.Open(pebble.Config{FS: crashfs.New(crashfs.Options{}), Dir: "/meta"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, engine.Close()) })
	pool, err := arena.New(arena.Options{Wait: 50 * time.Millisecond, Shares: []arena.ShareOption{
		{Name: gateway.ShareFabric, Buffers: 8, BufferBytes: gateway.FabricBufferBytes},
		{Name: gateway.ShareHTTP, Buffers: 16, BufferBytes: gateway.HTTPBufferBytes},
		{Name: gateway.ShareSmall, Buffers: 32, BufferBytes: gateway.SmallBufferBytes},
	}})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, arena: pool, chunks: chunkmem.New(), signer: s3.NewSigner(), fabric: newFakeFabric(),
		gate: &gate{}}
	n.kv = &steppedKV{Engine: engine}
	t.Cleanup(func() { closed(t, pool.Close()) }) // also finds buffers that are still out
	n.store, err = store.New(ctx, store.Options{
		KV: gatedKV{n.kv, n.gate}, Chunks: gatedChunks{n.chunks, n.gate},
		CopyShare: pool.Share(gateway.ShareHTTP), AWSRegion: testRegion,
		ChunkBytes: 4 << 20, MinPart: minPart,
	})
	if err != nil {
		t.Fatal(err)
	}
	storage := meta.AccessKeys{KV: engine}
	if err := storage.Put(ctx, iam.Key{ID: aliceID, Secret: aliceSecret, Principal: "alice"}); err != nil {
		t.Fatal(err)
	}
	n.keys, err = iam.Open(ctx, iam.Options{
		Storage: storage, Root: iam.Key{ID: rootID, Secret: rootSecret, Principal: iam.Root},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := gateway.Options{
		Store: n.store, Keys: n.keys, Arena: pool,
		Fabrics: fabric.NewManager(fabric.NewLedger(fabric.Limits{}), n.fabric),
		Node:    "test-node", Host: "test-host", AWSRegion: testRegion, Domains: []string{"s3.test"},
		Limits: gateway.Limits{
			HeaderBytes: 32 << 10, Requests: 64, DocumentBytes: 32 << 20, Stall: 5 * time.Second, MinRate: 1024,
			KeepAlive: 10 * time.Second,
		},
		RDMA: gateway.RDMA{Enabled: true, Deadline: 8 * time.Second, SessionDeadline: 300 * time.Second},
	}
	for _, change := range tweaks {
		change(&o)
	}
	n.g, err = gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	n.listen(o.Limits.Stall)
	return n
}

func closed(t testing.TB, err error) {
	if err != nil {
		t.Errorf("close: %v", err)
	}
}

func (n *node) listen(stall time.Duration) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	n.listener = gateway.NewListener(inner, 32, stall)
	srv := &http.Server{
		Handler: n.g, ConnContext: gateway.ConnContext, ConnState: gateway.ConnState, MaxHeaderBytes: 1 << 20,
		ReadHeaderTimeout:            5 * time.Second,
		DisableGeneralOptionsHandler: true,
	}
	open := front.Attach(srv)
	watched := front.NewListener(n.listener, front.Options{Refuse: n.g.Refuse})
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(watched) })
	n.host = inner.Addr().String()
	n.url = "http://" + n.host
	n.client = &http.Client{Transport: &http.Transport{DisableCompression: true}}
	n.t.Cleanup(func() {
		n.client.CloseIdleConnections()
		if err := srv.Close(); err != nil {
			n.t.Errorf("close server: %v", err)
		}
		wg.Wait()
		deadline := time.Now().Add(5 * time.Second)
		for tick := time.NewTicker(time.Millisecond); n.g.InFlight() > 0 || open.Load() > 0; <-tick.C {
			if time.Now().After(deadline) {
				n.t.Errorf("%d requests are still in flight, %d connections open", n.g.InFlight(), open.Load())
				break
			}
		}
	})
}

// sdk is an independent client: the oracle of what users send and how they judge answers.
func (n *node) sdk(id, secret string, tweaks ...func(*awss3.Options)) *awss3.Client {
	transport := &http.Transport{DisableCompression: true}
	n.t.Cleanup(transport.CloseIdleConnections)
	return awss3.New(awss3.Options{
		Region: testRegion, BaseEndpoint: aws.String(n.url), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(id, secret, ""),
		HTTPClient:  &http.Client{Transport: transport}, RetryMaxAttempts: 1,
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported, // as LoadDefaultConfig sets it
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
	}, tweaks...)
}

func (n *node) root() *awss3.Client  { return n.sdk(rootID, rootSecret) }
func (n *node) alice() *awss3.Client { return n.sdk(aliceID, aliceSecret) }

// request is one signed request of the tests' own client.
type request struct {
	method, path string // path with query, encoded as it goes out
	header       map[string]string
	unsigned     map[string]string // added after signing
	body         io.Reader
	length       int64
	hash         string // payload hash; "" is UNSIGNED-PAYLOAD
	id, secret   string // default: root
	anonymous    bool
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
	length int64
}

func (n *node) send(r request) answer {
	n.t.Helper()
	resp, err := n.try(r)
	if err != nil {
		n.t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	return resp
}

func (n *node) try(r request) (answer, error) {
	req, err := http.NewRequest(r.method, n.url+r.path, r.body)
	if err != nil {
		return answer{}, err
	}
	if r.body != nil {
		req.ContentLength = r.length
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
		req.Header.Del("Host")
	}
	if !r.anonymous {
		cred := s3.Credentials{AccessKey: rootID, SecretKey: rootSecret}
		if r.id != "" {
			cred = s3.Credentials{AccessKey: r.id, SecretKey: r.secret}
		}
		o := s3.SignOptions{Credentials: cred, Region: testRegion, Time: time.Now(), PayloadHash: r.hash}
		if err := n.signer.Sign(req, o); err != nil {
			return answer{}, err
		}
	}
	for k, v := range r.unsigned {
		req.Header.Set(k, v)
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, text, resp.ContentLength}, err
}

// chunkIDs lists the chunks that are stored.
func (n *node) chunkIDs() (ids []chunk.ID) {
	err := n.chunks.Walk(context.Background(), func(r chunk.Ref, _ chunk.Owner) error {
		ids = append(ids, r.ID)
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return ids
}
