package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-store/penstock/internal/checksum"
)

// Stream is the body of a Get over HTTP. The caller closes it.
type Stream struct {
	Info  ObjectInfo
	Bytes int64 // length of the body

	body io.ReadCloser
	left int64
	crc  uint64
	want string // CRC64NVME of the body, empty when unknown
}

// Get reads an object or a range as a stream, over HTTP. A whole object is verified: the Read that
// would return io.EOF returns ErrChecksum when its CRC64NVME does not match.
// Errors: *Error, ErrProtocol.
func (c *Client) Get(ctx context.Context, bucket, key string, opts GetOptions) (*Stream, error) {
	if err := checkNames(bucket, key, true); err != nil {
		return nil, err
	}
	h := http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}
	opts.Conditions.set(h)
	if r := opts.Range; r != nil {
		h.Set("Range", "bytes="+strconv.FormatInt(r.Offset, 10)+"-"+strconv.FormatInt(r.Offset+r.Bytes-1, 10))
	}
	resp, err := c.request(ctx, &call{method: http.MethodGet, bucket: bucket, key: key, header: h})
	if err != nil {
		return nil, fmt.Errorf("client: get %s/%s: %w", bucket, key, err)
	}
	s := &Stream{Info: objectInfo(resp.Header), Bytes: resp.ContentLength, left: resp.ContentLength, body: resp.Body}
	if resp.ContentLength < 0 {
		resp.Body.Close()
		return nil, fmt.Errorf("client: get %s/%s: %w: no length", bucket, key, ErrProtocol)
	}
	if resp.StatusCode == http.StatusOK {
		s.Info.Bytes = resp.ContentLength
		if opts.Verify != VerifyOff {
			s.want = s.Info.Checksum
		}
	} else if cr, ok := parseContentRange(resp.Header.Get("Content-Range")); ok {
		s.Info.Bytes = cr.total
	}
	return s, nil
}

// Read implements io.Reader.
func (s *Stream) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	s.left -= int64(n)
	if s.want != "" {
		s.crc = checksum.Update(s.crc, p[:n])
	}
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if s.left != 0 {
		return n, io.ErrUnexpectedEOF
	}
	if got := checksum.Base64(s.crc); s.want != "" && got != s.want {
		return n, fmt.Errorf("%w: got %s, server sent %s", ErrChecksum, got, s.want)
	}
	return n, err
}

// Close ends the stream.
func (s *Stream) Close() error { return s.body.Close() }

// Download reads a whole object into dst, part by part through the stage, which is registered memory
// that the call has for itself. Parts are written in any order. All of them are of one version of
// the object. Errors: as GetInto, and those of dst.
func (c *Client) Download(
	ctx context.Context, stage Window, name ObjectName, dst io.WriterAt, opts GetOptions,
) (Result, error) {
	release, err := stage.Hold()
	if err != nil {
		return Result{}, err
	}
	defer release()
	g := getCall{window: stage, bucket: name.Bucket, key: name.Key, whole: true, cond: opts.Conditions}
	info, err := c.headFor(ctx, g)
	if err != nil {
		return Result{}, fmt.Errorf("client: get %s/%s: %w", name.Bucket, name.Key, err)
	}
	if info.Bytes == 0 {
		return Result{Path: PathHTTP, Reason: ReasonEmpty, Parts: 1, Verified: true, Object: info}, nil
	}
	partBytes := min(orDefault(opts.PartBytes, c.cfg.PartBytes), stage.Bytes)
	slots := stage.split(partBytes, orDefault(opts.Concurrency, c.cfg.Concurrency))
	part := GetOptions{Verify: opts.Verify, Conditions: Conditions{IfMatch: info.ETag}, PartBytes: partBytes}
	var sum tally
	group, gctx := errgroup.WithContext(ctx)
	for at := int64(0); at < info.Bytes && gctx.Err() == nil; at += partBytes {
		slot := <-slots
		group.Go(func() error {
			defer func() { slots <- slot }()
			n := min(partBytes, info.Bytes-at)
			w, o := slot.section(0, n), part
			if n < info.Bytes {
				o.Range = &Range{Offset: at, Bytes: n}
			}
			res, err := c.GetInto(gctx, w, name.Bucket, name.Key, o)
			if err != nil {
				return err
			}
			if res.Bytes != n {
				return fmt.Errorf("%w: part of %d bytes, expected %d", ErrProtocol, res.Bytes, n)
			}
			if _, err := dst.WriteAt(w.mem(), at); err != nil {
				return fmt.Errorf("client: write %s/%s: %w", name.Bucket, name.Key, err)
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
