package awsrdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/penstock-store/penstock/client"
)

// operation is one PutObject, UploadPart or GetObject, with all its attempts.
type operation struct {
	session *Session
	put     bool
	buffer  *buffer // of the caller; nil: the pool's memory is used
	result  Result
	given   io.Closer // body of the last answer, which is the caller's when the operation succeeds

	// Of a put, once staged:
	window client.Window // Region nil: the payload goes over HTTP
	lent   *lent
	body   *upload
	sums   http.Header // checksum of the payload; empty: the request has one
	asked  bool        // the SDK would have computed it too
}

// summed adds the payload's checksum to a request.
func (op *operation) summed(req *smithyhttp.Request) *smithyhttp.Request {
	for name, values := range op.sums {
		req.Header[name] = values
	}
	return req
}

// release ends the use of staged memory.
func (op *operation) release() {
	if op.body != nil {
		op.body.cutOff()
	}
	if op.lent != nil {
		op.lent.giveBack()
	}
}

// dropBody closes a body that no caller will see: a later step has made an error of its answer.
func (op *operation) dropBody() {
	if op.given != nil {
		_ = op.given.Close() // it gives memory back and cannot fail
		op.given = nil
	}
}

// refuse notes why HTTP will carry the payload; in strict mode it is the error of the operation.
func (op *operation) refuse(d *client.DeclinedError) error {
	if op.session.options.Strict {
		return &refusal{d}
	}
	op.result.Path, op.result.Reason = client.PathHTTP, d.Reason
	return nil
}

// try is one request with one token.
type try struct {
	op      *operation
	loan    *client.Loan
	window  client.Window
	lent    *lent // of a get out of the pool
	asked   http.Header
	filled  bool // by answerStep, which is in the stack
	settled bool
	result  client.Settlement
}

type tryKey struct{}

func tryOf(ctx context.Context) *try {
	t, _ := middleware.GetStackValue(ctx, tryKey{}).(*try)
	return t
}

// errNotMoved ends a request whose payload did not move: the attempt goes on without a token.
var errNotMoved = errors.New("awsrdma: declined")

// maxReopened bounds how often an attempt goes on with another session, after the node has lost one or
// another operation's fence has ended it: beyond that there is a reason that HTTP does not share.
const maxReopened = 3

// noBody is the body of a request with a token. Its length counts as unknown, so that the transport does
// not take the request for one that it may replay on another connection.
type noBody struct{}

func (noBody) Read([]byte) (int, error) { return 0, io.EOF }

// exchange sends the request with a token for the window.
func (t *try) exchange(
	ctx context.Context, req *smithyhttp.Request, next middleware.FinalizeHandler,
) (out middleware.FinalizeOutput, md middleware.Metadata, err error) {
	t.loan, err = t.op.session.client.Lend(ctx, t.window, req.Method)
	if err != nil {
		return out, md, err
	}
	defer func() {
		if !t.settled { // it did not get as far as the HTTP client
			_, _ = t.loan.Settle(nil, errNotMoved) // not sent, so there is no fence that could fail
		}
	}()
	t.op.result.Tokens++
	req, err = req.SetStream(noBody{})
	if err != nil {
		return out, md, fmt.Errorf("awsrdma: request: %w", err)
	}
	req.ContentLength = -1
	if req.Method == http.MethodPut {
		req.ContentLength = 0
		req.Header.Del("Expect")
	}
	t.loan.SetHeader(req.Header)
	t.asked = req.Header
	ctx = v4.SetPayloadHash(ctx, "UNSIGNED-PAYLOAD")
	return next.HandleFinalize(middleware.WithStackValue(ctx, tryKey{}, t), middleware.FinalizeInput{Request: req})
}

// mayLeave holds a token back that must not be sent.
func (t *try) mayLeave(req *smithyhttp.Request) error {
	switch {
	case !t.op.session.serves(req.URL):
		t.result.Reason = ReasonOtherEndpoint
	case !strings.Contains(req.Header.Get("Authorization"), strings.ToLower(headerToken)):
		t.result.Reason = ReasonUnsigned
	default:
		return nil
	}
	return errNotMoved
}

// unanswered is a request that ended without an answer and was fenced, or whose region of the pool nobody
// uses again: another attempt, with another token, is safe. Without saying so, a deadline of the request
// would pass for the caller's.
type unanswered struct{ cause error }

func (u *unanswered) Error() string { return "awsrdma: " + u.cause.Error() }

// Is matches client.ErrNoAnswer, and client.ErrRegionAbandoned, only: the cause may name a cancelled context
// that is not the caller's.
func (u *unanswered) Is(target error) bool {
	return target == client.ErrNoAnswer || (target == client.ErrRegionAbandoned && errors.Is(u.cause, target))
}

// RetryableError is asked by the SDK's retryer.
func (u *unanswered) RetryableError() bool { return true }

// settle ends the loan. Its error takes the place of the transport's. ctx is the operation's.
func (t *try) settle(ctx context.Context, raw any, err error) error {
	var resp *http.Response
	if r, ok := raw.(*smithyhttp.Response); ok && err == nil {
		resp = r.Response
	} else if err == nil {
		err = fmt.Errorf("awsrdma: answer of type %T", raw)
	}
	if resp != nil && resp.Request != nil && resp.Request.URL != nil && !t.op.session.serves(resp.Request.URL) {
		// An HTTP client followed a redirect all the same: the fence makes its token worthless.
		_ = resp.Body.Close() // whose answer it is does not matter
		resp, err = nil, fmt.Errorf("%w: answer of another host", client.ErrProtocol)
	}
	t.settled = true
	t.result, err = t.loan.Settle(resp, err)
	switch {
	case errors.Is(err, client.ErrProtocol):
		return err
	case errors.Is(err, client.ErrNoAnswer) && ctx.Err() == nil &&
		(t.op.buffer == nil || !errors.Is(err, client.ErrRegionAbandoned)):
		return &unanswered{err}
	case err != nil:
		return err
	case !t.result.Moved && t.result.Reason == "" && redirects(resp.StatusCode):
		t.result.Reason = ReasonRedirected
	}
	if t.result.Reason != "" {
		return errNotMoved
	}
	if t.op.put && t.result.Moved {
		return t.compareEcho(resp.Header)
	}
	return nil
}

// compareEcho compares the checksums that the answer of an upload names with those that were sent.
func (t *try) compareEcho(answer http.Header) error {
	for _, a := range algorithms {
		sent, stored := t.asked.Get(checksumHeader(a)), answer.Get(checksumHeader(a))
		if sent != "" && stored != "" && sent != stored {
			return fmt.Errorf("awsrdma: %w: stored %s %s, sent %s", client.ErrChecksum, a, stored, sent)
		}
	}
	return nil
}

// abandonedBefore tells whether err says that memory of the pool was abandoned before anything was sent:
// other memory will do.
func (t *try) abandonedBefore(err error) bool {
	return t.op.buffer == nil && !t.settled && errors.Is(err, client.ErrRegionAbandoned)
}

// fill gives the answer of a moved GET the payload that its HTTP body does not have.
func (t *try) fill(raw any) error {
	resp, ok := raw.(*smithyhttp.Response)
	if !ok || !t.result.Moved || t.op.put {
		return nil
	}
	n := t.result.Bytes
	sum := sumOf(t.asked, resp.Header, t.loan.Fabric())
	if t.lent != nil {
		resp.Body = newBody(t.lent, n, sum, t.loan)
		t.lent = nil // the body's now
	} else {
		mem := memoryOf(t.window)[:n]
		for at := 0; at < len(mem); at += pieceBytes {
			sum.add(mem[at:min(at+pieceBytes, len(mem))])
		}
		if err := sum.check(); err != nil {
			return t.loan.Distrust(err)
		}
		resp.Body = newWindowBody(t.window, n)
	}
	t.op.dropBody()
	t.op.given = resp.Body
	resp.ContentLength = n
	resp.Header.Set("Content-Length", strconv.FormatInt(n, 10))
	return nil
}

// declineOf is why Lend or the pool had nothing to offer; nil when err is another matter.
func declineOf(err error) *client.DeclinedError {
	var d *client.DeclinedError
	switch {
	case errors.As(err, &d):
		return d
	case errors.Is(err, errPoolBusy):
		return &client.DeclinedError{Reason: ReasonPoolBusy, Cause: err}
	case errors.Is(err, errPoolClosed), errors.Is(err, client.ErrClosed):
		return &client.DeclinedError{Reason: client.ReasonNoSession, Cause: client.ErrClosed}
	}
	return nil
}
