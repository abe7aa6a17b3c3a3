package awsrdma

import (
	"context"
	"maps"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/smithy-go/middleware"

	"github.com/penstock-store/penstock/client"
)

// Defaults of Options.
const (
	// DefaultMinBytes is the payload length below which HTTP is used at once: both ways take one HTTP
	// request, and below this length the work for a window costs more than the copy that it saves.
	DefaultMinBytes = 32 << 10
	// DefaultMaxBytes is the longest payload that the pool takes: four chunks of a node. Longer objects
	// are the business of the transfer managers, whose parts are shorter.
	DefaultMaxBytes = 256 << 20
	// DefaultPoolBytes bounds the pool: eight payloads of 64 MiB.
	DefaultPoolBytes = 512 << 20
	// DefaultPoolWait is how long an operation waits for memory of the pool. A program that holds many
	// unread bodies waits in vain, and should not wait for long.
	DefaultPoolWait = time.Second
	// firstGuess is the window of the first GET of unknown length: the parts of the transfer managers.
	// An object that is longer costs one more request.
	firstGuess = 8 << 20
)

// Options of a Session. The zero value has the defaults.
type Options struct {
	// Strict makes an operation fail with client.ErrDeclined that would have moved its payload over HTTP.
	// MinBytes is not used then. Payloads of no bytes are no payloads.
	Strict bool
	// MinBytes: payloads that are known to be shorter go over HTTP at once. Negative: none do.
	MinBytes int64
	// MaxBytes: longer payloads go over HTTP, unless the caller brings the window. At most
	// client.MaxWindowBytes.
	MaxBytes  int64
	PoolBytes int64         // memory of all regions; at least MaxBytes
	PoolWait  time.Duration // for memory of the pool. Negative: none
	// OnResult is called at the end of each PutObject, UploadPart and GetObject, with the operation's
	// context. It must not block.
	OnResult func(context.Context, Result)
}

func (o Options) resolved() Options {
	o.MinBytes = orDefault(o.MinBytes, DefaultMinBytes)
	if o.Strict {
		o.MinBytes = 0
	}
	o.MaxBytes = min(orDefault(o.MaxBytes, DefaultMaxBytes), client.MaxWindowBytes)
	o.PoolBytes = max(orDefault(o.PoolBytes, DefaultPoolBytes), o.MaxBytes, minRegion)
	o.PoolWait = orDefault(o.PoolWait, DefaultPoolWait)
	return o
}

func orDefault[T int64 | time.Duration](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}

// Session is a client with a pool of regions and counters. It is safe for concurrent use.
type Session struct {
	client   *client.Client
	endpoint *url.URL
	options  Options
	pool     *pool
	guess    atomic.Int64 // length of the window for a GET of unknown length

	mu    sync.Mutex
	stats Stats
}

// New makes a session of the client, whose endpoint must be the one that the SDK uses. Close the session
// before the client.
func New(c *client.Client, o Options) *Session {
	o = o.resolved()
	endpoint, err := url.Parse(c.Endpoint())
	if err != nil {
		endpoint = &url.URL{} // cannot be: the client has parsed it
	}
	s := &Session{client: c, endpoint: endpoint, options: o, pool: newPool(c, o.PoolBytes, o.PoolWait)}
	s.guess.Store(min(firstGuess, o.MaxBytes))
	return s
}

// Close gives the memory of the pool back. That of bodies which are still open follows when they are
// closed; operations that come later use HTTP.
func (s *Session) Close() error { return s.pool.close() }

// Reasons of a Result, beside those of package client and of the server.
const (
	ReasonSmall         = "small"          // shorter than Options.MinBytes
	ReasonTooLarge      = "too-large"      // longer than Options.MaxBytes
	ReasonPoolBusy      = "pool-busy"      // no memory of the pool came free in time
	ReasonUnknownLength = "unknown-length" // an upload whose length is not known
	ReasonContentMD5    = "content-md5"    // an upload with Content-MD5, which only a body can have
	ReasonChecksum      = "checksum"       // a checksum algorithm that is not among S3's first five
	ReasonOtherEndpoint = "other-endpoint" // the request does not go to the session's endpoint
	ReasonUnsigned      = "unsigned"       // the request's signature does not cover the token
	ReasonRedirected    = "redirected"     // the endpoint points elsewhere, where no token goes
)

// Result says how the payload of one operation moved.
type Result struct {
	Operation string // PutObject, UploadPart or GetObject
	Path      string // client.PathSHM, client.PathRC, client.PathTCP or client.PathHTTP
	Reason    string // why no fabric carried it; empty when one did
	Bytes     int64  // of payload; -1 when the answer does not say
	Tokens    int    // minted for the operation, by all its attempts
	Err       error  // of the operation; only for OnResult
}

type resultKey struct{}

// ResultOf reads the result from the ResultMetadata of an output; false when the operation is none that
// moves payload, or its client was not made with Enable.
func ResultOf(m middleware.Metadata) (Result, bool) {
	r, ok := m.Get(resultKey{}).(Result)
	return r, ok
}

// Stats counts operations that ended without an error, and what the others ended in.
type Stats struct {
	FabricGets, FabricPuts         int64
	FabricGetBytes, FabricPutBytes int64
	HTTPGets, HTTPPuts             int64
	HTTPGetBytes, HTTPPutBytes     int64
	HTTPByReason                   map[string]int64 // operations
	Errors                         int64
	Tokens                         int64
	PoolBytes                      int64 // of regions, in use and idle
	PoolUsedBytes                  int64 // of regions in use
}

// Stats returns the counters.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	st := s.stats
	st.HTTPByReason = maps.Clone(s.stats.HTTPByReason)
	s.mu.Unlock()
	st.PoolBytes, st.PoolUsedBytes = s.pool.usage()
	return st
}

func (s *Session) record(ctx context.Context, r Result, put bool) {
	s.mu.Lock()
	st := &s.stats
	st.Tokens += int64(r.Tokens)
	n := max(r.Bytes, 0)
	switch {
	case r.Err != nil:
		st.Errors++
	case r.Path != client.PathHTTP && put:
		st.FabricPuts++
		st.FabricPutBytes += n
	case r.Path != client.PathHTTP:
		st.FabricGets++
		st.FabricGetBytes += n
	default:
		if st.HTTPByReason == nil {
			st.HTTPByReason = map[string]int64{}
		}
		st.HTTPByReason[r.Reason]++
		if put {
			st.HTTPPuts++
			st.HTTPPutBytes += n
		} else {
			st.HTTPGets++
			st.HTTPGetBytes += n
		}
	}
	s.mu.Unlock()
	if s.options.OnResult != nil {
		s.options.OnResult(ctx, r)
	}
}

// learn adapts the guess to the lengths seen: up at once, down slowly, since a window that is too long
// only occupies memory for a moment.
func (s *Session) learn(n int64) {
	const slowness = 8
	old := s.guess.Load()
	next := n
	if n < old {
		next = old - (old-n)/slowness
	}
	s.guess.CompareAndSwap(old, max(minRegion, min(next, s.options.MaxBytes))) // a lost race loses a hint
}

// serves tells whether a request to u reaches the session's node, path style or virtual-host style.
func (s *Session) serves(u *url.URL) bool {
	own := s.endpoint
	if u.Scheme != own.Scheme || portOf(u) != portOf(own) {
		return false
	}
	host, want := strings.ToLower(u.Hostname()), strings.ToLower(own.Hostname())
	return host == want || strings.HasSuffix(host, "."+want)
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// refusal is a decline in strict mode. The SDK asks it whether another attempt may help.
type refusal struct{ *client.DeclinedError }

func (r *refusal) Error() string { return "awsrdma: payload not moved: " + r.DeclinedError.Error() }

// Unwrap returns the decline.
func (r *refusal) Unwrap() error { return r.DeclinedError }

// RetryableError is asked by the SDK's retryer.
func (r *refusal) RetryableError() bool {
	switch r.Reason {
	case ReasonPoolBusy, client.ReasonNoSession, client.ReasonArenaBusy:
		return true
	}
	return false
}
