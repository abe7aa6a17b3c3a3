package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/token"
)

// PutOptions of PutFrom, PutReader and Upload.
type PutOptions struct {
	ContentType        string
	ContentEncoding    string
	ContentDisposition string
	ContentLanguage    string
	CacheControl       string
	Metadata           map[string]string // sent as x-amz-meta-*, names in lower case
	Conditions         Conditions        // a conditional PUT is never repeated when it may have been done
	// PartBytes, MultipartBytes and Concurrency override the configuration.
	PartBytes      int64
	MultipartBytes int64
	Concurrency    int
}

func (o PutOptions) header() http.Header {
	h := http.Header{}
	for name, value := range map[string]string{
		"Content-Type": o.ContentType, "Content-Encoding": o.ContentEncoding,
		"Content-Disposition": o.ContentDisposition, "Content-Language": o.ContentLanguage,
		"Cache-Control": o.CacheControl,
	} {
		if value != "" {
			h.Set(name, value)
		}
	}
	for name, value := range o.Metadata {
		h.Set("X-Amz-Meta-"+name, value)
	}
	return h
}

// PutFrom stores the window as an object: by one request up to MultipartBytes, else as a multipart
// upload whose parts are windows of PartBytes. On success the object is durable. It blocks until
// nothing can read the window any more, also when ctx ends: up to the fence limit of 10 s then.
//
// Errors: *Error (ErrPrecondition …), ErrDeclined when no fabric carried it and HTTP is not allowed;
// after ErrNoAnswer and ErrProtocol the object may or may not have been stored. A decline for reason
// "no-reply" comes from a server that does not know tokens: one that ignores checksums too may have
// stored an empty object.
func (c *Client) PutFrom(ctx context.Context, w Window, bucket, key string, opts PutOptions) (Result, error) {
	if err := checkNames(bucket, key, true); err != nil {
		return Result{}, err
	}
	if w.Bytes == 0 {
		return c.putEmpty(ctx, bucket, key, opts)
	}
	release, err := w.Hold()
	if err != nil {
		return Result{}, err
	}
	defer release()
	var res Result
	if w.Bytes <= min(orDefault(opts.MultipartBytes, c.cfg.MultipartBytes), token.MaxWindow) {
		h := opts.header()
		opts.Conditions.set(h)
		res, err = c.putPart(ctx, putCall{
			window: w, bucket: bucket, key: key, header: h, once: !opts.Conditions.empty(),
		})
	} else {
		res, err = c.putParts(ctx, w, ObjectName{bucket, key}, opts)
	}
	if err != nil {
		return Result{}, fmt.Errorf("client: put %s/%s: %w", bucket, key, err)
	}
	return res, nil
}

// putEmpty stores an object of no bytes, for which no fabric is needed.
func (c *Client) putEmpty(ctx context.Context, bucket, key string, opts PutOptions) (Result, error) {
	h := opts.header()
	opts.Conditions.set(h)
	crc := checksum.Base64(checksum.Sum(nil))
	h.Set(headerCRC, crc)
	resp, err := c.request(ctx, &call{
		method: http.MethodPut, bucket: bucket, key: key, header: h, once: !opts.Conditions.empty(),
	})
	if err != nil {
		return Result{}, fmt.Errorf("client: put %s/%s: %w", bucket, key, err)
	}
	drain(resp.Body)
	return Result{
		Path: PathHTTP, Reason: ReasonEmpty, Parts: 1, Verified: resp.Header.Get(headerCRC) == crc,
		Object: ObjectInfo{ETag: unquote(resp.Header.Get("Etag")), Checksum: crc},
	}, nil
}

// putCall is one PutObject or UploadPart from one window.
type putCall struct {
	window      Window
	bucket, key string
	query       url.Values // of UploadPart
	header      http.Header
	once        bool
}

// putPart stores one window by one request per attempt: by the fabric, or by HTTP where allowed.
func (c *Client) putPart(ctx context.Context, p putCall) (Result, error) {
	crc := checksum.Base64(checksum.Sum(p.window.mem()))
	p.header.Set(headerCRC, crc)
	return c.run(ctx, transfer{
		region: p.window.Region,
		once:   p.once,
		byFabric: func(ctx context.Context, l *lease) (Result, verdict, error) {
			return c.putByFabric(ctx, l, p, crc)
		},
		byHTTP: func(ctx context.Context) (Result, error) { return c.putByHTTP(ctx, p, crc) },
	})
}

func (c *Client) putByFabric(ctx context.Context, l *lease, p putCall, crc string) (Result, verdict, error) {
	resp, err := l.exchange(ctx, c, p.window, &call{
		method: http.MethodPut, bucket: p.bucket, key: p.key, query: p.query, header: p.header.Clone(),
	})
	if err != nil {
		return Result{}, verdict{}, err
	}
	v := judgePut(resp.StatusCode, resp.Header, p.window.Bytes, crc)
	switch v.outcome {
	case outcomeRefused:
		return Result{}, v, readError(resp)
	case outcomeDone:
		res := p.result(resp.Header, crc)
		res.Path, res.FabricBytes = l.fabric(), p.window.Bytes
		return res, v, nil
	}
	return Result{}, v, nil
}

func (p putCall) result(h http.Header, crc string) Result {
	return Result{
		Bytes: p.window.Bytes, Path: PathHTTP, Parts: 1, Verified: h.Get(headerCRC) == crc,
		Object: ObjectInfo{Bytes: p.window.Bytes, ETag: unquote(h.Get("Etag")), Checksum: crc},
	}
}

func (c *Client) putByHTTP(ctx context.Context, p putCall, crc string) (Result, error) {
	body := &windowBody{Reader: bytes.NewReader(p.window.mem()), closed: make(chan struct{})}
	resp, err := c.exchange(ctx, &call{
		method: http.MethodPut, bucket: p.bucket, key: p.key, query: p.query, header: p.header.Clone(),
		payload: body.take, bytes: p.window.Bytes,
	})
	body.wait()
	if err != nil {
		return Result{}, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		return Result{}, readError(resp)
	}
	drain(resp.Body)
	if echoed := resp.Header.Get(headerCRC); echoed != "" && echoed != crc {
		return Result{}, fmt.Errorf("%w: server stored %s, sent %s", ErrChecksum, echoed, crc)
	}
	return p.result(resp.Header, crc), nil
}

// windowBody is a request body over a window. The transport may still read it after the answer has
// come, so whoever gives the window back waits for its Close.
type windowBody struct {
	*bytes.Reader
	used   bool
	once   sync.Once
	closed chan struct{}
}

// take hands the body to a request, which closes it in any case.
func (b *windowBody) take() io.ReadCloser {
	b.used = true
	return b
}

// Close implements io.Closer.
func (b *windowBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

func (b *windowBody) wait() {
	if b.used {
		<-b.closed
	}
}

// Source is a payload of known length. A Reader that is an io.ReaderAt is read from its offset 0 by
// several goroutines.
type Source struct {
	Reader io.Reader
	Bytes  int64
}

// PutReader stores what the source yields, through a scratch region of its own; see Upload.
func (c *Client) PutReader(ctx context.Context, src Source, bucket, key string, opts PutOptions) (Result, error) {
	if src.Bytes == 0 {
		return c.putEmpty(ctx, bucket, key, opts)
	}
	stageBytes := orDefault(opts.PartBytes, c.cfg.PartBytes)
	if src.Bytes <= stageBytes {
		stageBytes = src.Bytes
	}
	r, err := c.Alloc(stageBytes)
	if err != nil {
		return Result{}, err
	}
	defer r.Close()
	return c.Upload(ctx, r.All(), src, ObjectName{bucket, key}, opts)
}
