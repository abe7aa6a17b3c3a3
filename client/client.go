package client

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/penstock-store/penstock/internal/s3"
)

// Client talks to one node (or to any S3 store, over HTTP). It is safe for concurrent use.
type Client struct {
	cfg    Config
	base   *url.URL
	http   *http.Client
	signer *s3.Signer

	fabrics fabricSet

	mu     sync.Mutex
	closed bool
}

// New checks the configuration; it sends nothing. Errors: ErrConfig.
func New(cfg Config) (*Client, error) {
	cfg, base, err := cfg.resolved()
	if err != nil {
		return nil, err
	}
	security, err := cfg.tlsConfig(base)
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg:    cfg,
		base:   base,
		http:   &http.Client{Transport: newTransport(security), CheckRedirect: keepRedirect},
		signer: s3.NewSigner(),
	}
	c.fabrics.init(c)
	return c, nil
}

// newTransport is tuned for few long-lived connections and large bodies: a body read larger than
// the read buffer goes from the socket straight into the caller's memory.
func newTransport(security *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		MaxIdleConnsPerHost:   maxIdleConns,
		IdleConnTimeout:       idleConnTimeout,
		TLSClientConfig:       security,
		TLSHandshakeTimeout:   tlsTimeout,
		ExpectContinueTimeout: continueWait,
		DisableCompression:    true, // ranges and checksums are of the stored bytes
		WriteBufferSize:       socketBuffer,
		ReadBufferSize:        readBuffer,
	}
}

// keepRedirect hands redirects to the caller: a signature is valid for one host and path only.
func keepRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Endpoint returns the configured endpoint.
func (c *Client) Endpoint() string { return c.cfg.Endpoint }

// Close fences all sessions and drops idle connections. Regions must be closed by whoever
// allocated them; their registrations end here. It waits up to the fence limit. Every Client must be
// closed. Where a driver of an adapter does not return, Close says so after 5 s, and what the driver has is let go
// when it returns: Config.Verbs must stay open until then.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	err := c.fabrics.close()
	c.http.CloseIdleConnections()
	return err
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// checkNames refuses names that would address something else.
func checkNames(bucket, key string, wantKey bool) error {
	switch {
	case bucket == "" || strings.ContainsAny(bucket, "/?#"):
		return errors.New("client: bucket name empty or with a slash: " + bucket)
	case wantKey && key == "":
		return errors.New("client: empty key")
	}
	return nil
}
