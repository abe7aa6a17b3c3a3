package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// transfer is one part of a GET or PUT: how to move it either way.
type transfer struct {
	region   *Region
	byFabric func(context.Context, *lease) (Result, verdict, error)
	byHTTP   func(context.Context) (Result, error)
	once     bool // must not be repeated when it may have taken effect
}

// run moves the part, with a bounded number of attempts.
func (c *Client) run(ctx context.Context, t transfer) (Result, error) {
	for attempt := 1; ; attempt++ {
		res, err := c.attempt(ctx, t)
		if err == nil {
			return res, nil
		}
		if ctx.Err() != nil || attempt >= c.cfg.MaxAttempts || !repeatable(err, t.once) {
			return Result{}, err
		}
		if waitErr := backoff(ctx, attempt, err); waitErr != nil {
			return Result{}, errors.Join(err, waitErr)
		}
	}
}

// attempt tries the fabric once and, where that is declined and allowed, HTTP once.
func (c *Client) attempt(ctx context.Context, t transfer) (Result, error) {
	if t.region.Abandoned() {
		return Result{}, ErrRegionAbandoned
	}
	l, refused := c.fabrics.lease(ctx, t.region)
	if l != nil {
		res, v, err := t.byFabric(ctx, l)
		switch {
		case v.outcome == outcomeBroken:
			// The answer cannot be trusted, so neither can its claim that the transfer is over.
			return Result{}, c.quarantine(t.region, l.session, l.at, v.err)
		case errors.Is(err, ErrChecksum):
			// Not all of the bytes are there that the answer speaks of: some may still be on their way.
			return Result{}, c.quarantine(t.region, l.session, l.at, err)
		case err != nil:
			return Result{}, err
		case v.outcome == outcomeDone:
			res.Reason = l.skipped
			return res, nil
		}
		refused = &DeclinedError{Reason: v.reason}
		if v.reason == ReasonNoSession {
			l.session.forget()
		}
	}
	if ctx.Err() != nil {
		return Result{}, errors.Join(refused, ctx.Err())
	}
	if c.cfg.Fabric != HTTP && !c.cfg.AllowHTTPFallback {
		return Result{}, refused
	}
	res, err := t.byHTTP(ctx)
	if err != nil {
		return Result{}, err
	}
	res.Reason = refused.Reason
	return res, nil
}

// quarantine fences the session, or on dc the region's keys, after a request on it ended without a trustworthy
// answer. It returns cause (nil: the answer itself), joined with ErrRegionAbandoned when the fence was not
// acknowledged.
func (c *Client) quarantine(r *Region, s *session, at announced, cause error) error {
	if err := s.fenceFor(r, at); err != nil {
		r.abandon()
		return errors.Join(ErrRegionAbandoned, cause, err)
	}
	return cause
}

// exchange sends the call with a fresh token for the window. When it returns, the window is safe; see
// Loan.
func (l *lease) exchange(ctx context.Context, c *Client, w Window, k *call) (*http.Response, error) {
	loan, err := l.lend(c, w, k.method)
	if err != nil {
		return nil, err
	}
	reqCtx, cancel := loan.Context(ctx)
	defer cancel() // answers to tokens have no body but errors, which are read before
	k.fabric = true
	if k.header == nil {
		k.header = http.Header{}
	}
	loan.SetHeader(k.header)
	resp, err := c.exchange(reqCtx, k)
	if err := loan.end(resp, err); err != nil {
		return nil, err
	}
	return resp, nil
}

// deadline is the time the server gets: the configured one, cut by the node's limit. The context's
// end is not part of it: a server that runs into a deadline in the middle of a copy must cut the session
// off, while a client that gives up can have it drained.
func (l *lease) deadline(c *Client) time.Duration {
	limit := c.cfg.TransferTimeout
	if most := time.Duration(l.session.limits.MaxDeadlineMillis) * time.Millisecond; most > 0 {
		limit = min(limit, most)
	}
	return limit
}

// buffered replaces the answer's body by what of it fits into an error document, so that nothing of
// the request is left open. The answer itself has arrived with its headers: a body that breaks off
// changes nothing about it. code is that of an answer whose code decides about the window.
func buffered(resp *http.Response) (code string) {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusServiceUnavailable {
		var e Error
		e.fromXML(body)
		code = e.Code
	}
	return code
}
