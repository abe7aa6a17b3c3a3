package client

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/penstock-store/penstock/internal/s3"
)

const (
	unsignedPayload = "UNSIGNED-PAYLOAD"

	// maxAnswerXML bounds a listing or result document: 1,000 keys of 1 KiB, escaped, fit thrice.
	maxAnswerXML = 16 << 20
)

// call is one S3 request, sendable several times.
type call struct {
	method, bucket, key string
	path                string // instead of bucket and key: an absolute path of plain characters
	query               url.Values
	header              http.Header
	body                []byte               // a document
	payload             func() io.ReadCloser // instead of body, once; it is closed in any case
	bytes               int64                // length of the payload
	hash                string               // x-amz-content-sha256; empty: UNSIGNED-PAYLOAD
	once                bool                 // must not be repeated after it may have arrived
	fabric              bool                 // carries a token: not even the transport may repeat it
}

// userAgent names this package in the access logs of servers.
const userAgent = "penstock-go"

// emptyBody makes the transport take a request for one that it cannot replay on another connection:
// a token is good for one attempt.
type emptyBody struct{}

func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }
func (emptyBody) Close() error             { return nil }

func (c *Client) build(ctx context.Context, k *call) (*http.Request, error) {
	u := *c.base
	u.Path, u.RawPath = targetPath(c.base.Path, k.bucket, k.key)
	if k.path != "" {
		u.Path, u.RawPath = strings.TrimSuffix(c.base.Path, "/")+k.path, ""
	}
	u.RawQuery = encodeQuery(k.query)
	req, err := http.NewRequestWithContext(ctx, k.method, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("client: request %s %s: %w", k.method, u.Path, err)
	}
	req.Header["User-Agent"] = []string{userAgent}
	req.URL = &u // NewRequest may have changed how the path is escaped
	for name, values := range k.header {
		req.Header[name] = slices.Clone(values)
	}
	switch {
	case k.payload != nil:
		req.Body, req.ContentLength = k.payload(), k.bytes
	case len(k.body) > 0:
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(k.body)), int64(len(k.body))
	case k.fabric && k.method == http.MethodGet:
		req.Body = emptyBody{}
	case k.method == http.MethodPut || k.method == http.MethodPost:
		req.Body = http.NoBody // sends Content-Length: 0
	}
	hash := unsignedPayload
	if k.hash != "" {
		hash = k.hash
	}
	creds := c.cfg.Credentials
	if err := c.signer.Sign(req, s3.SignOptions{
		Credentials: s3.Credentials{
			AccessKey: creds.AccessKey, SecretKey: creds.SecretKey, SessionToken: creds.SessionToken,
		},
		Region: c.cfg.AWSRegion, Time: time.Now(), PayloadHash: hash,
	}); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // nothing was read from it
		}
		return nil, fmt.Errorf("client: sign request: %w", err)
	}
	return req, nil
}

// targetPath returns the decoded and the escaped path of bucket and key below the base path.
func targetPath(base, bucket, key string) (path, raw string) {
	base = strings.TrimSuffix(base, "/")
	if bucket == "" {
		return base + "/", ""
	}
	path, raw = base+"/"+bucket, base+"/"+escape(bucket, false)
	if key != "" {
		path, raw = path+"/"+key, raw+"/"+escape(key, true)
	}
	return path, raw
}

// escape percent-encodes all but RFC 3986's unreserved characters, as SigV4 wants it.
func escape(s string, keepSlash bool) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		ch := s[i]
		switch {
		case 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9',
			ch == '-', ch == '.', ch == '_', ch == '~', ch == '/' && keepSlash:
			b.WriteByte(ch)
		default:
			b.WriteByte('%')
			b.WriteByte(hexDigits[ch>>4])
			b.WriteByte(hexDigits[ch&15])
		}
	}
	return b.String()
}

// encodeQuery writes the query sorted and with %20 for spaces, so that it is canonical already.
func encodeQuery(q url.Values) string {
	names := make([]string, 0, len(q))
	for name := range q {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		for _, v := range q[name] {
			if b.Len() > 0 {
				b.WriteByte('&')
			}
			b.WriteString(escape(name, false) + "=" + escape(v, false))
		}
	}
	return b.String()
}

// exchange sends the call once. The answer may have any status.
func (c *Client) exchange(ctx context.Context, k *call) (*http.Response, error) {
	if c.isClosed() {
		return nil, ErrClosed
	}
	req, err := c.build(ctx, k)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("client: request %s: %w", k.method, err)
	}
	if resp.StatusCode >= http.StatusBadRequest { // not a warning: a look whether a key exists ends here
		c.cfg.Logger.Debug("request answered with an error", "request_id", resp.Header.Get("x-amz-request-id"),
			"method", k.method, "status", resp.StatusCode)
	}
	return resp, nil
}

// request sends the call, repeating it as allowed, and returns a 2xx answer. Errors: *Error.
func (c *Client) request(ctx context.Context, k *call) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		resp, err := c.exchange(ctx, k)
		if err == nil && resp.StatusCode >= 200 && resp.StatusCode <= 299 {
			return resp, nil
		}
		if err == nil {
			err = readError(resp)
		}
		if attempt >= c.cfg.MaxAttempts || !repeatable(err, k.once) {
			return nil, err
		}
		if waitErr := backoff(ctx, attempt, err); waitErr != nil {
			return nil, errors.Join(err, waitErr)
		}
	}
}

// repeatable tells whether the call may be sent again after err. once: only when the server says
// that it has not done anything.
func repeatable(err error, once bool) bool {
	var s3err *Error
	if errors.As(err, &s3err) {
		switch s3err.Status {
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			return true
		case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout,
			http.StatusRequestTimeout:
			return !once
		}
		return s3err.Code == "RequestTimeout" && !once
	}
	var refused *DeclinedError
	if errors.As(err, &refused) {
		return refused.Reason == ReasonArenaBusy || refused.Reason == ReasonNoSession
	}
	for _, final := range []error{
		context.Canceled, ErrClosed, ErrConfig, ErrRegionAbandoned, ErrProtocol, ErrTooSmall, ErrWindow,
	} {
		if errors.Is(err, final) {
			return false
		}
	}
	return !once
}

// backoff waits before the attempt after the given one: exponential with full jitter, or what
// Retry-After asks for.
func backoff(ctx context.Context, attempt int, err error) error {
	limit := min(baseBackoff<<(attempt-1), maxBackoff)
	wait := rand.N(limit) + limit/8
	var s3err *Error
	if errors.As(err, &s3err) && s3err.RetryAfter > 0 {
		wait = s3err.RetryAfter + rand.N(limit)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// document sends the call and decodes the XML answer into out (nil: the body is dropped).
func (c *Client) document(ctx context.Context, k *call, out any) (http.Header, error) {
	resp, err := c.request(ctx, k)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerXML))
	if err != nil {
		return nil, fmt.Errorf("client: answer %s: %w", k.method, err)
	}
	if out == nil {
		return resp.Header, nil
	}
	// CompleteMultipartUpload and CopyObject may answer 200 and still carry an error document.
	e := &Error{Status: http.StatusInternalServerError, RequestID: resp.Header.Get("x-amz-request-id")}
	if e.fromXML(body); e.Code != "" {
		return nil, e
	}
	if err := xml.Unmarshal(body, out); err != nil {
		return nil, fmt.Errorf("%w: %s answer is not the expected XML: %w", ErrProtocol, k.method, err)
	}
	return resp.Header, nil
}

// drain reads what is left of a body, so that its connection can be used again.
func drain(body io.ReadCloser) {
	_, _ = io.Copy(io.Discard, io.LimitReader(body, maxErrorBody)) // best effort: a new connection works too
	_ = body.Close()                                               // the answer has been read
}
