package awsrdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/penstock-store/penstock/client"
)

// rangeBytes is how long the answer to a Range header can be; 0: not known from the header.
func rangeBytes(h http.Header) int64 {
	span, ok := strings.CutPrefix(h.Get("Range"), "bytes=")
	first, last, dash := strings.Cut(span, "-")
	if !ok || !dash || last == "" {
		return 0
	}
	to, err := strconv.ParseInt(last, 10, 64)
	if err != nil || to < 0 {
		return 0
	}
	if first == "" {
		return to // the last bytes of the object
	}
	from, err := strconv.ParseInt(first, 10, 64)
	if err != nil || from < 0 || to < from {
		return 0
	}
	return to - from + 1
}

// attemptGet asks for the payload by the fabric and, where that is declined, by an ordinary request.
func (op *operation) attemptGet(
	ctx context.Context, req *smithyhttp.Request, next middleware.FinalizeHandler,
) (middleware.FinalizeOutput, middleware.Metadata, error) {
	known := rangeBytes(req.Header)
	size := known
	if known == 0 || known > op.session.options.MaxBytes {
		size = op.session.guess.Load()
	}
	if op.buffer != nil {
		size = min(op.buffer.window.Bytes, client.MaxWindowBytes)
	} else if known > 0 && known < op.session.options.MinBytes {
		op.result.Reason = ReasonSmall
		return op.getByHTTP(ctx, req, next)
	}
	grown := false
	for reopened := 0; ; {
		t, err := op.getTry(ctx, size)
		var out middleware.FinalizeOutput
		var md middleware.Metadata
		if err == nil {
			out, md, err = t.exchange(ctx, req.Clone(), next)
			t.release()
		}
		if err == nil && t.result.Moved {
			op.moved(t, known == 0)
			return out, md, nil
		}
		if t.abandonedBefore(err) && reopened < maxReopened {
			reopened++
			continue
		}
		d := t.declined(err)
		if d == nil {
			return out, md, err
		}
		need := t.result.Need
		switch {
		case d.Reason == ReasonTooLarge && op.buffer != nil && need > op.buffer.window.Bytes:
			return out, md, fmt.Errorf("awsrdma: %w: object %d bytes, window %d", client.ErrTooSmall, need, size)
		case d.Reason == ReasonTooLarge && op.buffer == nil && need > size && need <= op.session.options.MaxBytes && !grown:
			grown, size = true, need
			continue
		case d.Reason == client.ReasonNoSession && reopened < maxReopened:
			reopened++
			continue
		}
		if err := op.refuse(d); err != nil {
			return out, md, err
		}
		return op.getByHTTP(ctx, req, next)
	}
}

// getTry finds memory for one request.
func (op *operation) getTry(ctx context.Context, size int64) (*try, error) {
	t := &try{op: op}
	if op.buffer != nil {
		t.window = op.buffer.window
		t.window.Bytes = size
		return t, nil
	}
	if err := op.session.client.Ready(ctx); err != nil {
		return t, err
	}
	l, err := op.session.pool.get(ctx, size)
	if err != nil {
		return t, err
	}
	t.lent, t.window = l, l.region.Window(0, min(int64(len(l.region.Bytes())), client.MaxWindowBytes))
	return t, nil
}

// release gives memory back that no body has taken over.
func (t *try) release() {
	if t.lent != nil {
		t.lent.giveBack()
		t.lent = nil
	}
}

// declined is why the payload did not move though nothing failed; nil when err says what failed, or the
// answer is an S3 error.
func (t *try) declined(err error) *client.DeclinedError {
	if errors.Is(err, errNotMoved) {
		return &client.DeclinedError{Reason: t.result.Reason}
	}
	if err == nil || t.settled {
		return nil
	}
	return declineOf(err)
}

func (op *operation) moved(t *try, learn bool) {
	n := t.result.Bytes
	op.result.Path, op.result.Reason, op.result.Bytes = t.loan.Fabric(), "", n
	if n == 0 {
		op.result.Path, op.result.Reason = client.PathHTTP, client.ReasonEmpty
	}
	if learn {
		op.session.learn(n)
	}
}

// getByHTTP is the ordinary request. The caller's window gets its bytes all the same.
func (op *operation) getByHTTP(
	ctx context.Context, req *smithyhttp.Request, next middleware.FinalizeHandler,
) (out middleware.FinalizeOutput, md middleware.Metadata, err error) {
	out, md, err = next.HandleFinalize(ctx, middleware.FinalizeInput{Request: req})
	o, ok := out.Result.(*s3.GetObjectOutput)
	if err != nil || !ok {
		return out, md, err
	}
	if o.ContentLength != nil {
		op.result.Bytes = *o.ContentLength
	}
	if op.buffer != nil {
		err = op.land(o)
	}
	return out, md, err
}

// land reads the body of an answer into the caller's window.
func (op *operation) land(o *s3.GetObjectOutput) error {
	defer o.Body.Close()
	w, n := op.buffer.window, op.result.Bytes
	if n < 0 || n > w.Bytes {
		return fmt.Errorf("awsrdma: %w: object %d bytes, window %d", client.ErrTooSmall, n, w.Bytes)
	}
	if _, err := io.ReadFull(o.Body, memoryOf(w)[:n]); err != nil {
		return fmt.Errorf("awsrdma: read body: %w", err)
	}
	if _, err := io.ReadFull(o.Body, make([]byte, 1)); !errors.Is(err, io.EOF) { // the SDK compares checksums here
		return fmt.Errorf("awsrdma: end of body: %w", errors.Join(err, client.ErrProtocol))
	}
	o.Body = newWindowBody(w, n)
	return nil
}
