package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/penstock-store/penstock/internal/accesslog"
	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/requestid"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
)

// Names of the arena's shares, their buffer sizes and how many buffers one transfer reserves: while
// one buffer is on the wire, the next is filled. A fabric transfer also overlaps checks and posts.
const (
	ShareFabric = "fabric"
	ShareHTTP   = "http"
	ShareSmall  = "small"

	FabricBufferBytes = 1 << 20
	HTTPBufferBytes   = 512 << 10
	SmallBufferBytes  = 64 << 10

	fabricDepth = 4
	httpDepth   = 2
	smallDepth  = 1
)

// ControlPrefix is the path below which nothing is a bucket: no bucket name begins with a dot.
const ControlPrefix = "/.penstock/"

// Limits of what clients can make the gateway hold.
type Limits struct {
	HeaderBytes   int64
	Requests      int64 // in flight
	DocumentBytes int64 // XML bodies in flight
	Stall         time.Duration
	MinRate       int64         // bytes per second of a request body, after Stall
	KeepAlive     time.Duration // longest silence of a long answer
}

// RDMA are the switches of one-sided transfers.
type RDMA struct {
	Enabled         bool
	Deadline        time.Duration // from arrival; hard cap 8 s
	SessionDeadline time.Duration // most that a ps1 token may ask for
	// SpecDecline answers a decline with 2xx: GET by its body, PUT without storing anything.
	SpecDecline bool
	// Aliases are other headers that tokens are taken from: "x-rdma-info", "cuobj".
	Aliases []string
	// UnsignedConnect lets requests of nobody make and end the connections of `rc:` tokens.
	UnsignedConnect bool
}

// Signed answers a signed request below ControlPrefix. The body is read already and bounded.
type Signed func(ctx context.Context, r SignedRequest) (status int, body []byte, err error)

// SignedRequest is what a Signed sees: JSON in, JSON out.
type SignedRequest struct {
	Method, Path string
	RawQuery     string
	Principal    string
	Body         []byte
}

// Options of a Gateway. All parts stay the caller's.
type Options struct {
	Store   *store.Store
	Keys    *iam.Keys
	Arena   *arena.Arena
	Fabrics *fabric.Manager
	// Exchange is hipobj-rc-v2; nil: not offered.
	Exchange fabric.Exchange

	Node string // id of this node
	Host string // id of this machine, for clients that look for shm

	AWSRegion string
	Domains   []string // of virtual-host style requests
	TLS       bool     // for the Location of completed uploads
	Limits    Limits
	RDMA      RDMA
	Connector fabric.Connector // nil: none makes connections for `rc:` tokens

	// AnonymousBucket is the one bucket that requests without a signature may use, for tests; "": none.
	AnonymousBucket string

	// Extra answers signed requests for paths with these prefixes, below ControlPrefix.
	Extra map[string]Signed

	Ready   func() error // nil: ready
	Metrics *Metrics
	Access  *accesslog.Log // nil: none
	Log     *slog.Logger
	Now     func() time.Time // nil: time.Now
}

// Gateway is an http.Handler for S3.
type Gateway struct {
	o         Options
	verifier  *s3.Verifier
	documents *semaphore.Weighted
	metrics   *Metrics
	log       *slog.Logger

	inFlight atomic.Int64
	bodies   atomic.Int64 // answers whose payload goes out over HTTP now
	cores    int
	draining atomic.Bool
	ids      *requestid.Source
}

var _ http.Handler = (*Gateway)(nil)

// New returns a Gateway.
func New(o Options) (*Gateway, error) {
	for _, name := range []string{ShareFabric, ShareHTTP, ShareSmall} {
		if o.Arena.Share(name) == nil {
			return nil, fmt.Errorf("gateway: arena has no share %q", name)
		}
	}
	if o.AnonymousBucket != "" {
		if err := s3.CheckBucketName(o.AnonymousBucket); err != nil {
			return nil, fmt.Errorf("gateway: anonymous bucket %q: %w", o.AnonymousBucket, err)
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{o: o, documents: semaphore.NewWeighted(o.Limits.DocumentBytes), metrics: o.Metrics, log: o.Log,
		cores: runtime.GOMAXPROCS(0), ids: requestid.NewSource()}
	g.verifier = s3.NewVerifier(s3.VerifierConfig{Lookup: g.secret, Regions: []string{o.AWSRegion}, Now: o.Now})
	return g, nil
}

// secret is the Verifier's view of the access keys.
func (g *Gateway) secret(_ context.Context, accessKey string) (s3.Secret, bool, error) {
	k, err := g.o.Keys.Lookup(accessKey)
	if errors.Is(err, iam.ErrNoSuchKey) {
		return s3.Secret{}, false, nil
	}
	if err != nil {
		return s3.Secret{}, false, err
	}
	return s3.Secret{SecretKey: string(k.Secret), Principal: k.Principal}, true, nil
}

// Drain makes every further request 503, and readyz say no. Requests in flight go on.
func (g *Gateway) Drain() { g.draining.Store(true) }

// InFlight is the number of requests under way.
func (g *Gateway) InFlight() int64 { return g.inFlight.Load() }

// ServeHTTP answers one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := g.inFlight.Add(1)
	defer g.inFlight.Add(-1)
	own := connOf(r.Context())
	if !own.enter() {
		panic(http.ErrAbortHandler) // the connection is closed at this moment
	}
	defer own.exit()
	id := g.ids.Next()
	r = r.WithContext(requestid.NewContext(r.Context(), id)) // for log lines of what works for the request
	c := &call{g: g, r: r, id: id, start: g.o.Now(), request: s3.FromHTTP(r)}
	c.answer.ResponseWriter = w
	c.w = &c.answer
	h := w.Header()
	h["X-Amz-Request-Id"] = []string{c.id}
	h["X-Amz-Id-2"] = []string{g.o.Node}
	h["Server"] = serverHeader
	defer c.recovered()

	err := c.admit(n)
	if err != nil {
		c.claimRefused()
	} else {
		err = c.serve()
	}
	if err != nil {
		c.fail(err)
	}
	c.ended()
	c.drainEarly()
}

// serverHeader is shared by all answers; net/http only reads it.
var serverHeader = []string{"Penstock"}

// admit refuses what is over a limit, before anything costly.
func (c *call) admit(inFlight int64) error {
	switch own := connOf(c.r.Context()); {
	case c.g.draining.Load():
		c.w.Header().Set("Connection", "close")
		return retriable(s3.New(s3.ServiceUnavailable, "The server is shutting down."))
	case own != nil && own.over:
		c.w.Header().Set("Connection", "close")
		return slowDown("Too many connections.")
	case inFlight > c.g.o.Limits.Requests:
		return slowDown("Too many requests in flight.")
	case requestHeaderBytes(c.r) > c.g.o.Limits.HeaderBytes:
		return s3.New(s3.RequestHeaderSectionTooLarge, "")
	}
	return nil
}

func requestHeaderBytes(r *http.Request) int64 {
	n := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return int64(n)
}

// recovered turns a panic into 500 and a log entry, so that one request cannot end the process.
// http.ErrAbortHandler goes on: it is how an answer under way is cut off.
func (c *call) recovered() {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		c.ended()
		panic(p)
	}
	c.g.log.Error("request panicked", "request_id", c.id, "op", c.op.String(), "panic", fmt.Sprint(p),
		"stack", string(debug.Stack()))
	if c.wrote {
		c.status, c.cut = 0, cutPanic
		c.ended()
		panic(http.ErrAbortHandler)
	}
	c.fail(s3.New(s3.InternalError, ""))
	c.ended()
}
