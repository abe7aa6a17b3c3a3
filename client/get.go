package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/token"
)

// Range is a span of an object in bytes.
type Range struct {
	Offset int64
	Bytes  int64 // > 0
}

// Verify says whether received bytes are compared with the checksum that the server sends.
type Verify int

// Choices of verification.
const (
	VerifyDefault Verify = iota // on for rc, tcp and http, off for shm, where the server checked this very memory
	VerifyOn                    // on; an answer without a checksum is an error
	VerifyOff
)

// GetOptions of GetInto. The zero value reads the whole object.
type GetOptions struct {
	Range      *Range // nil: the whole object; a range beyond the end is cut, as in S3
	Conditions Conditions
	Verify     Verify
	// PartBytes and Concurrency override the configuration: a transfer longer than PartBytes is
	// read as parallel ranges of one version of the object, held together by If-Match.
	PartBytes   int64
	Concurrency int
}

// GetInto reads an object, or a range of it, into the start of the window. On success exactly
// Result.Bytes bytes of the window hold the object's bytes and the rest is unchanged; after an error
// the window is undefined. It blocks until nothing can touch the window any more, also when ctx ends:
// up to the fence limit of 10 s then.
//
// Errors: *Error (ErrNotFound, ErrPrecondition, ErrNotModified …), ErrTooSmall when the whole object
// is larger than the window, ErrDeclined when no fabric carried it and HTTP is not allowed,
// ErrProtocol, ErrChecksum, ErrNoAnswer, ErrRegionAbandoned, ErrWindow.
func (c *Client) GetInto(ctx context.Context, w Window, bucket, key string, opts GetOptions) (Result, error) {
	if err := checkNames(bucket, key, true); err != nil {
		return Result{}, err
	}
	release, err := w.Hold()
	if err != nil {
		return Result{}, err
	}
	defer release()
	g := getCall{
		window: w, bucket: bucket, key: key, span: Range{Bytes: w.Bytes}, whole: opts.Range == nil,
		cond: opts.Conditions, verify: opts.Verify,
	}
	if opts.Range != nil {
		g.span = *opts.Range
		if g.span.Offset < 0 || g.span.Bytes <= 0 || g.span.Bytes > w.Bytes {
			return Result{}, fmt.Errorf("%w: range of %d bytes at %d into %d bytes", ErrWindow,
				g.span.Bytes, g.span.Offset, w.Bytes)
		}
		g.window.Bytes = g.span.Bytes
	}
	partBytes := min(orDefault(opts.PartBytes, c.cfg.PartBytes), token.MaxWindow)
	var res Result
	if g.span.Bytes <= partBytes {
		res, err = c.getPart(ctx, g)
	} else {
		res, err = c.getParts(ctx, g, partBytes, orDefault(opts.Concurrency, c.cfg.Concurrency))
	}
	if err != nil {
		return Result{}, fmt.Errorf("client: get %s/%s: %w", bucket, key, err)
	}
	return res, nil
}

// getCall is one ranged read into one window.
type getCall struct {
	window      Window
	bucket, key string
	span        Range
	whole       bool // the span stands for the whole object: its end is not known
	cond        Conditions
	verify      Verify
}

// getParts reads a long span as parallel ranges of the version that HEAD saw.
func (c *Client) getParts(ctx context.Context, g getCall, partBytes int64, concurrency int) (Result, error) {
	info, err := c.headFor(ctx, g)
	if err != nil {
		return Result{}, err
	}
	span, err := g.clip(info.Bytes)
	if err != nil {
		return Result{}, err
	}
	if span.Bytes <= partBytes {
		g.cond.IfMatch = firstOf(g.cond.IfMatch, info.ETag)
		return c.getPart(ctx, g)
	}
	var sum tally
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for at := int64(0); at < span.Bytes && gctx.Err() == nil; at += partBytes {
		part := g
		part.whole = false
		part.cond = Conditions{IfMatch: info.ETag}
		part.span = Range{Offset: span.Offset + at, Bytes: min(partBytes, span.Bytes-at)}
		part.window = g.window.section(at, part.span.Bytes)
		group.Go(func() error {
			res, err := c.getPart(gctx, part)
			if err == nil && res.Bytes != part.span.Bytes {
				err = fmt.Errorf("%w: part of %d bytes, expected %d", ErrProtocol, res.Bytes, part.span.Bytes)
			}
			if err != nil {
				return err
			}
			sum.add(res)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return Result{}, err
	}
	res := sum.result()
	res.Object = info
	return res, nil
}

// headFor is HEAD under the conditions of the read.
func (c *Client) headFor(ctx context.Context, g getCall) (ObjectInfo, error) {
	h := http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}
	g.cond.set(h)
	resp, err := c.request(ctx, &call{method: http.MethodHead, bucket: g.bucket, key: g.key, header: h})
	if err != nil {
		return ObjectInfo{}, err
	}
	resp.Body.Close()
	info := objectInfo(resp.Header)
	info.Bytes = resp.ContentLength
	if info.Bytes < 0 || info.ETag == "" {
		return ObjectInfo{}, fmt.Errorf("%w: HEAD without length or ETag", ErrProtocol)
	}
	return info, nil
}

// clip cuts the span to the object's length.
func (g getCall) clip(total int64) (Range, error) {
	if g.whole {
		if total > g.window.Bytes {
			return Range{}, fmt.Errorf("%w: object %d bytes, window %d", ErrTooSmall, total, g.window.Bytes)
		}
		return Range{Bytes: total}, nil
	}
	if g.span.Offset >= total {
		return Range{}, &Error{Code: "InvalidRange", Status: http.StatusRequestedRangeNotSatisfiable,
			Message: fmt.Sprintf("range starts at %d, object has %d bytes", g.span.Offset, total)}
	}
	return Range{g.span.Offset, min(g.span.Bytes, total-g.span.Offset)}, nil
}

// getPart reads one span by one request per attempt: by the fabric, or by HTTP where allowed.
func (c *Client) getPart(ctx context.Context, g getCall) (Result, error) {
	res, err := c.run(ctx, transfer{
		region: g.window.Region,
		byFabric: func(ctx context.Context, l *lease) (Result, verdict, error) {
			return c.getByFabric(ctx, l, g)
		},
		byHTTP: func(ctx context.Context) (Result, error) { return c.getByHTTP(ctx, g) },
	})
	if err != nil {
		return c.emptyObject(ctx, g, err)
	}
	return res, nil
}

// emptyObject turns the 416 that a range of an empty object gets into a read of zero bytes.
func (c *Client) emptyObject(ctx context.Context, g getCall, err error) (Result, error) {
	var s3err *Error
	if !g.whole || !errors.As(err, &s3err) || s3err.Status != http.StatusRequestedRangeNotSatisfiable {
		return Result{}, err
	}
	info, headErr := c.headFor(ctx, g)
	if headErr != nil {
		return Result{}, headErr
	}
	if info.Bytes != 0 {
		return Result{}, err
	}
	return Result{Path: PathHTTP, Reason: ReasonEmpty, Parts: 1, Verified: true, Object: info}, nil
}

func (g getCall) header() http.Header {
	h := http.Header{}
	g.cond.set(h)
	h.Set("Range", "bytes="+strconv.FormatInt(g.span.Offset, 10)+"-"+
		strconv.FormatInt(g.span.Offset+g.span.Bytes-1, 10))
	return h
}

// expected returns the byte count that the answer's own Content-Range promises, checked against
// what was asked for; total is the object's length.
func (g getCall) expected(status int, h http.Header) (n, total int64, err error) {
	if status == http.StatusOK {
		// The server ignored the range: only a whole object that fills the span is unambiguous.
		return g.span.Bytes, g.span.Offset + g.span.Bytes, nil
	}
	cr, ok := parseContentRange(h.Get("Content-Range"))
	if !ok || cr.total < 0 || cr.first != g.span.Offset || cr.last != min(g.span.Offset+g.span.Bytes, cr.total)-1 {
		return 0, 0, fmt.Errorf("%w: content range %q does not answer %d bytes at %d", ErrProtocol,
			h.Get("Content-Range"), g.span.Bytes, g.span.Offset)
	}
	if g.whole && cr.total > g.window.Bytes {
		return 0, 0, fmt.Errorf("%w: object %d bytes, window %d", ErrTooSmall, cr.total, g.window.Bytes)
	}
	return cr.last - cr.first + 1, cr.total, nil
}

// getByFabric makes one attempt with one token.
func (c *Client) getByFabric(ctx context.Context, l *lease, g getCall) (Result, verdict, error) {
	resp, err := l.exchange(ctx, c, g.window, &call{
		method: http.MethodGet, bucket: g.bucket, key: g.key, header: g.header(),
	})
	if err != nil {
		return Result{}, verdict{}, err
	}
	var want, total int64
	var rangeErr error
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
		want, total, rangeErr = g.expected(resp.StatusCode, resp.Header)
	}
	v := judgeGet(resp.StatusCode, resp.Header, want, resp.ContentLength)
	switch {
	case v.outcome == outcomeRefused:
		return Result{}, v, readError(resp)
	case v.outcome == outcomeDeclined:
		return Result{}, v, nil
	case rangeErr != nil && !errors.Is(rangeErr, ErrTooSmall):
		return Result{}, verdict{outcome: outcomeBroken, err: rangeErr}, nil
	case rangeErr != nil:
		return Result{}, verdict{outcome: outcomeDone}, rangeErr
	case v.outcome == outcomeBroken:
		return Result{}, v, nil
	}
	res := Result{Bytes: want, Path: l.fabric(), FabricBytes: want, Parts: 1, Object: objectInfo(resp.Header)}
	res.Object.Bytes = total
	if verifyOn(g.verify, l.fabric()) {
		res.Verified, err = checkMoved(g.window.mem()[:want], resp.Header, g.verify == VerifyOn)
	}
	return res, v, err
}

func verifyOn(v Verify, path string) bool {
	return v == VerifyOn || (v == VerifyDefault && path != PathSHM)
}

// checkMoved compares mem with x-penstock-rdma-checksum. must: an answer without one is an error.
func checkMoved(mem []byte, h http.Header, must bool) (bool, error) {
	sum, ok := strings.CutPrefix(h.Get(headerMoved), "CRC64NVME ")
	if !ok {
		if must {
			return false, fmt.Errorf("%w: the answer carries none", ErrChecksum)
		}
		return false, nil
	}
	if got := checksum.Base64(checksum.Sum(mem)); got != sum {
		return false, fmt.Errorf("%w: got %s, server sent %s", ErrChecksum, got, sum)
	}
	return true, nil
}

// readBytes is how much of a body is read and summed at once: it stays in the second-level cache.
const readBytes = 256 << 10

// readBody fills mem from the body, straight from the socket, and sums it while it is in the cache.
func readBody(mem []byte, body io.Reader, sum bool) (crc uint64, err error) {
	for len(mem) > 0 {
		piece := mem[:min(readBytes, len(mem))]
		if _, err := io.ReadFull(body, piece); err != nil {
			return 0, fmt.Errorf("client: read body: %w", err)
		}
		if sum {
			crc = checksum.Update(crc, piece)
		}
		mem = mem[len(piece):]
	}
	return crc, nil
}

// getByHTTP makes one attempt over HTTP: the body is read straight into the window.
func (c *Client) getByHTTP(ctx context.Context, g getCall) (Result, error) {
	h := g.header()
	if g.whole {
		h.Del("Range") // the whole object comes with its checksum, a range does not
	}
	h.Set("X-Amz-Checksum-Mode", "ENABLED")
	resp, err := c.exchange(ctx, &call{method: http.MethodGet, bucket: g.bucket, key: g.key, header: h})
	if err != nil {
		return Result{}, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		return Result{}, readError(resp)
	}
	defer resp.Body.Close()
	n, total := resp.ContentLength, resp.ContentLength
	if !g.whole {
		if n, total, err = g.expected(resp.StatusCode, resp.Header); err != nil {
			return Result{}, err
		}
	}
	if n > g.window.Bytes {
		return Result{}, fmt.Errorf("%w: object %d bytes, window %d", ErrTooSmall, n, g.window.Bytes)
	}
	if n < 0 || n != resp.ContentLength {
		return Result{}, fmt.Errorf("%w: body of %d bytes, expected %d", ErrProtocol, resp.ContentLength, n)
	}
	res := Result{Bytes: n, Path: PathHTTP, Parts: 1, Object: objectInfo(resp.Header)}
	res.Object.Bytes = total
	verify := n == total && g.verify != VerifyOff && res.Object.Checksum != ""
	crc, err := readBody(g.window.mem()[:n], resp.Body, verify)
	if err != nil {
		return Result{}, err
	}
	if got := checksum.Base64(crc); verify && got != res.Object.Checksum {
		return Result{}, fmt.Errorf("%w: got %s, server sent %s", ErrChecksum, got, res.Object.Checksum)
	}
	res.Verified = verify
	if g.verify == VerifyOn && !res.Verified {
		return Result{}, fmt.Errorf("%w: the answer carries none", ErrChecksum)
	}
	return res, nil
}
