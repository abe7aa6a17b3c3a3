package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/client/target"
)

// Loan lets one request use one window. It mints the request's token and settles what became of the
// window. GetInto and PutFrom use it, and code that signs and sends requests by itself, as an SDK does.
//
// Order: Lend, SetHeader before signing, send under Context, Settle once, in any case. Until Settle has
// returned, the window belongs to the node.
type Loan struct {
	client    *Client
	session   *session
	at        announced
	window    Window
	direction target.Direction
	limit     time.Duration
	grant     grant
	release   func() // ends the hold on the region; of loans by Lend
	crc       string // CRC64NVME that the request declares; empty: none
	own       bool   // sent by this package, whose transport tells whether it got as far as a connection

	handed  atomic.Bool // to somebody who may have sent the request
	reached atomic.Bool // a transport that tells
	sent    atomic.Bool // it had a connection
}

// Lend opens a loan of the window for one request: a PUT, whose payload the window is, or else a GET,
// which fills it. Errors: *DeclinedError when no fabric reaches the window, ErrRegionAbandoned, ErrWindow,
// ErrClosed, ctx's.
func (c *Client) Lend(ctx context.Context, w Window, method string) (*Loan, error) {
	if c.isClosed() {
		return nil, ErrClosed
	}
	release, err := w.Hold()
	if err != nil {
		return nil, err
	}
	found, refused := c.fabrics.lease(ctx, w.Region)
	if refused != nil {
		release()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("client: lend window: %w", ctx.Err())
		}
		return nil, refused
	}
	l, err := found.lend(c, w, method)
	if err != nil {
		release()
		return nil, err
	}
	l.release, l.own = release, false
	return l, nil
}

// Ready opens a session unless there is one: nil when some fabric can be used, before any memory is set
// aside for it. Errors: *DeclinedError with the reason, ErrClosed.
func (c *Client) Ready(ctx context.Context) error {
	if c.isClosed() {
		return ErrClosed
	}
	refused := &DeclinedError{Reason: ReasonConfigured}
	for _, s := range c.fabrics.slots {
		if _, refused = s.get(ctx); refused == nil {
			return nil
		}
	}
	return refused
}

func (l *lease) lend(c *Client, w Window, method string) (*Loan, error) {
	direction := target.ForGet
	if method == http.MethodPut {
		direction = target.ForPut
	}
	g, err := l.at.Grant(w.Offset, w.Bytes, direction)
	if errors.Is(err, target.ErrSpent) {
		l.session.forget() // the next attempt opens another
	}
	if errors.Is(err, target.ErrSpent) || errors.Is(err, target.ErrClosed) { // by another's fence, a moment ago
		return nil, &DeclinedError{Reason: ReasonNoSession, Cause: err}
	}
	if err != nil {
		return nil, fmt.Errorf("client: grant window: %w", err)
	}
	return &Loan{
		client: c, session: l.session, at: l.at, window: w, direction: direction, grant: g, limit: l.deadline(c),
		release: func() {}, own: true,
	}, nil
}

// Fabric is "shm", "rc", "tcp" or "dc".
func (l *Loan) Fabric() string { return l.session.name }

// SetHeader adds the token and the deadline, which have to be signed. The payload's checksum, if any, is
// in h already.
func (l *Loan) SetHeader(h http.Header) {
	h.Set(headerToken, l.grant.Token())
	h.Set(headerDeadlineMS, strconv.FormatInt(l.limit.Milliseconds(), 10))
	l.crc = h.Get(headerCRC)
}

// Context is for sending the request: it ends a grace after the loan's deadline, and it tells the loan
// whether the request may have been sent: with a transport that does not say so, or that gets another
// context, every request passes for sent. The request must have a body that the transport cannot replay:
// a token is good for one attempt. The answer's body is read by Settle, so cancel may follow it.
func (l *Loan) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	l.handed.Store(true)
	ctx, cancel := context.WithTimeout(ctx, l.limit+answerGrace)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { l.reached.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { l.sent.Store(true) },
	}), cancel
}

// maybeSent tells whether a request without an answer may be on its way.
func (l *Loan) maybeSent() bool {
	if l.own || l.reached.Load() {
		return l.sent.Load()
	}
	return l.handed.Load()
}

// Settlement is what an answer says about the window.
type Settlement struct {
	// Moved: the fabric carried the payload, exactly Bytes. Otherwise Reason is that of a decline, or
	// empty when the answer is an S3 error, which its status and body say.
	Moved  bool
	Bytes  int64
	Reason string
	Need   int64 // of a decline for reason "too-large": the length that a window must have; 0 unknown
}

// Settle ends the loan after the answer came or, with a nil resp, after the request ended with err. When
// it returns, nothing touches the window any more, or its region is abandoned. The answer's body is
// replaced by what of it fits into an error document. It blocks up to the fence limit.
//
// Errors: ErrNoAnswer and err, ErrProtocol, each after a fence; with ErrRegionAbandoned when the fence was
// not acknowledged. err alone when the request was not sent.
func (l *Loan) Settle(resp *http.Response, err error) (Settlement, error) {
	defer l.release()
	if err := l.end(resp, err); err != nil {
		return Settlement{}, err
	}
	v, n := l.judge(resp)
	switch v.outcome {
	case outcomeBroken:
		// The answer cannot be trusted, so neither can its claim that the transfer is over.
		return Settlement{}, l.quarantine(v.err)
	case outcomeDone:
		return Settlement{Moved: true, Bytes: n}, nil
	case outcomeDeclined:
		if v.reason == ReasonNoSession {
			l.session.forget()
		}
		need, _ := parseDecimal(resp.Header.Get(headerNeed))
		return Settlement{Reason: v.reason, Need: need}, nil
	}
	return Settlement{}, nil
}

func (l *Loan) quarantine(cause error) error {
	return l.client.quarantine(l.window.Region, l.session, l.at, cause)
}

// Distrust is for a GET that Settle said had moved, and whose bytes are not those that the answer spoke of: some may
// still be on their way. When it returns, nothing touches the window any more, or its region is abandoned. It blocks up
// to the fence limit. It returns cause, joined with ErrRegionAbandoned when the fence was not acknowledged.
func (l *Loan) Distrust(cause error) error {
	return l.quarantine(cause)
}

// judge also returns the bytes that moved.
func (l *Loan) judge(resp *http.Response) (verdict, int64) {
	h := resp.Header
	if l.direction == target.ForPut {
		return judgePut(resp.StatusCode, h, l.window.Bytes, l.crc), l.window.Bytes
	}
	want, known := movedBytes(h) // the whole object: how long it is, only the answer says
	if resp.StatusCode == http.StatusPartialContent {
		cr, ok := parseContentRange(h.Get("Content-Range"))
		want, known = cr.last-cr.first+1, ok
	}
	if !known {
		want = -1
	}
	v := judgeGet(resp.StatusCode, h, want, resp.ContentLength)
	if v.outcome == outcomeDone && want > l.window.Bytes {
		return broken("GET moved %d bytes into a window of %d", want, l.window.Bytes), 0
	}
	return v, want
}

// end takes the grant back. A nil resp: there is no answer, and err says why. When it returns, the window
// is safe: the request was answered (on rc and dc: without a failure), was never sent, or its session is fenced (or
// else the region is abandoned, and the error says so). The answer's body is buffered.
func (l *Loan) end(resp *http.Response, err error) error {
	code := ""
	if resp != nil {
		code = buffered(resp)
	}
	endErr := l.grant.End()
	switch {
	case code == codeReplayed:
		// Something on the way sent the request twice. The other copy was not answered, and may be under way.
		err = errors.New("another copy of it arrived before")
	case resp != nil && !ofNode(resp):
		// The transfer goes on until the node notices that nobody waits for it.
		err = fmt.Errorf("status %d of something on the way", resp.StatusCode)
	case resp != nil && endErr == nil && byAdapter(l.session.name) && failure(resp.StatusCode) &&
		!(resp.StatusCode == http.StatusServiceUnavailable && code == codeSlowDown):
		// The adapter takes what comes for any announced memory: only a dead queue pair, or key, makes sure that
		// nothing does.
		return l.quarantine(nil)
	case resp != nil && endErr == nil:
		return nil
	case resp != nil && (resp.StatusCode > 299 || l.session.over()):
		// The session ended under the request, by another's fence perhaps. The answer says no more than that.
		err = endErr
	case resp != nil:
		// Answered while the transfer was still under way: the answer was not true.
		return l.quarantine(fmt.Errorf(
			"%w: answered before its transfer ended: %w", ErrProtocol, endErr))
	case !l.maybeSent():
		return err
	}
	return l.quarantine(fmt.Errorf("%w: %w", ErrNoAnswer, err))
}

// ofNode tells whether an answer may be the node's own. A proxy that has waited long enough for the node says
// 504 in its own name; a node, like every S3 server, names the request.
func ofNode(resp *http.Response) bool {
	return !failure(resp.StatusCode) || resp.Header.Get(headerRequestID) != ""
}

// failure tells whether a status says that the request broke off somewhere: neither was it refused, nor declined.
func failure(status int) bool {
	return status == http.StatusRequestTimeout ||
		(status >= http.StatusInternalServerError && status != http.StatusNotImplemented)
}
