package gateway

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-store/penstock/internal/accesslog"
	"github.com/penstock-store/penstock/internal/front"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/token"
)

// sessionDigits of a session's id are in the access log: enough to tell sessions apart, too few to name a
// window of client memory.
const sessionDigits = 4

// counted is the answer of a call, with what the access log says of it.
type counted struct {
	http.ResponseWriter
	bytes int64     // of the body
	first time.Time // when the header went out
	err   error     // of the write that failed first
}

// WriteHeader implements http.ResponseWriter.
func (a *counted) WriteHeader(status int) {
	if status >= http.StatusOK && a.first.IsZero() {
		a.first = time.Now()
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (a *counted) Write(p []byte) (int, error) {
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	if err != nil && a.err == nil {
		a.err = err
	}
	return n, err
}

// Unwrap is for http.ResponseController.
func (a *counted) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// ended counts and records the call, once its answer is given or cut off.
func (c *call) ended() {
	if c.g.o.Access != nil {
		c.record()
	}
	c.g.metrics.observe(c)
}

func (c *call) record() {
	e := accesslog.Entry{
		Time: c.start, RequestID: c.id, Remote: c.r.RemoteAddr, Method: c.r.Method, Operation: c.op.String(),
		Bucket: c.target.Bucket, Key: c.target.Key, Status: c.status, Code: c.code, Reason: c.cut,
		BytesIn: c.taken, BytesOut: c.answer.bytes, Payload: c.moved, Declined: c.reason,
		Total: time.Since(c.start), UserAgent: c.r.UserAgent(),
	}
	if c.query != nil {
		e.Version = c.query.Get("versionId")
	}
	if c.path != pathNone {
		e.Path = pathNames[c.path]
	}
	if !c.answer.first.IsZero() {
		e.FirstByte = c.answer.first.Sub(c.start)
	}
	if c.identity != nil {
		e.Principal, e.AccessKey = c.identity.Principal, c.identity.AccessKey
	}
	if c.window.Kind == token.Session {
		e.Session = hex.EncodeToString(c.window.SessionID[:sessionDigits])
	}
	if referer := c.r.Referer(); referer != "" {
		if i := strings.IndexAny(referer, "?#"); i >= 0 { // it may be a presigned URL
			referer = referer[:i]
		}
		e.Referer = referer
	}
	if t := c.r.TLS; t != nil {
		e.TLS, e.Subject = tls.VersionName(t.Version), c.subject()
	}
	c.g.o.Access.Record(&e)
}

// subject names the client's certificate, when one was given and verified. It is put together once per
// connection.
func (c *call) subject() string {
	if len(c.r.TLS.VerifiedChains) == 0 {
		return ""
	}
	own := connOf(c.r.Context())
	if own == nil {
		return c.r.TLS.PeerCertificates[0].Subject.String()
	}
	if own.subject == "" {
		own.subject = c.r.TLS.PeerCertificates[0].Subject.String()
	}
	return own.subject
}

// Words of the access log for answers that were cut off.
const (
	cutGone    = "client-gone"
	cutStalled = "client-stalled"
	cutPanic   = "panic"
	cutLinger  = "memory-in-use" // an operation on client memory did not end in time
	cutFailed  = "failed"
)

// cutWord looks at the failed write first: net/http cancels the request's context after it, which would
// hide the difference.
func (c *call) cutWord(err error) string {
	if c.unsafe {
		return cutLinger
	}
	if c.answer.err != nil {
		err = c.answer.err
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return cutStalled
	case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET), errors.Is(err, context.Canceled):
		return cutGone
	}
	return cutFailed
}

// Refuse answers a request that net/http could not read, in S3's form.
func (g *Gateway) Refuse(r front.Refusal) []byte {
	start := g.o.Now()
	id := g.ids.Next()
	e := refusalError(r).Complete("", id)
	e.HostID = g.o.Node
	body := e.AppendXML(nil)
	g.log.Debug("request refused unread", "request_id", id, "remote", r.Remote, "status", e.Status, "reason", r.Reason)
	g.metrics.requests[opNone][min(e.Status/100, classes-1)].Inc()
	if g.o.Access != nil {
		entry := accesslog.Entry{
			Time: start, RequestID: id, Remote: r.Remote, Operation: opNone.String(), Status: e.Status,
			Code: string(e.Code), BytesOut: int64(len(body)),
		}
		if r.TLS != nil {
			entry.TLS = tls.VersionName(r.TLS.Version)
		}
		g.o.Access.Record(&entry)
	}
	head := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nX-Amz-Request-Id: %s\r\nX-Amz-Id-2: %s\r\nServer: %s\r\nDate: %s\r\n"+
		"Content-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", e.Status, http.StatusText(e.Status), id,
		g.o.Node, serverHeader[0], start.UTC().Format(http.TimeFormat), xmlType[0], len(body))
	return append(head, body...)
}

// refusalError is the S3 error for a status of net/http's own.
func refusalError(r front.Refusal) *s3.Error {
	message := ""
	if r.Reason != "" {
		message = "The request could not be understood: " + r.Reason + "."
	}
	switch r.Status {
	case http.StatusBadRequest:
		return s3.New(s3.BadRequest, message)
	case http.StatusRequestHeaderFieldsTooLarge:
		return s3.New(s3.RequestHeaderSectionTooLarge, "")
	case http.StatusNotImplemented:
		return s3.New(s3.NotImplemented, "The transfer encoding is not known here.")
	case http.StatusExpectationFailed:
		return &s3.Error{Code: "ExpectationFailed", Status: r.Status, Message: "Only 100-continue can be expected."}
	case http.StatusHTTPVersionNotSupported:
		return &s3.Error{Code: "HttpVersionNotSupported", Status: r.Status, Message: "This version of HTTP is not spoken."}
	}
	code := s3.Code(strings.ReplaceAll(http.StatusText(r.Status), " ", ""))
	return &s3.Error{Code: code, Status: r.Status, Message: message}
}
