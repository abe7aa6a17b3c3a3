package client

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/token"
)

// abortTimeout bounds the attempt to clean up after a failed upload.
const abortTimeout = 10 * time.Second

// upload is one multipart upload. stored may be called from several goroutines.
type upload struct {
	client *Client
	name   ObjectName
	id     string
	opts   PutOptions
	total  int64
	sum    tally

	mu    sync.Mutex
	parts []uploadedPart // by part number − 1
}

type uploadedPart struct {
	etag, crc string
	bytes     int64
}

// PartName says which part of which open multipart upload.
type PartName struct {
	Bucket, Key, UploadID string
	Number                int // 1..MaxParts
}

// PutPart stores the window as one part of a multipart upload that the caller creates, completes and
// aborts with a client of its choice. Result.Object.ETag names the part in the list that completes
// the upload. Blocking and errors: as PutFrom.
func (c *Client) PutPart(ctx context.Context, w Window, part PartName) (Result, error) {
	if err := checkNames(part.Bucket, part.Key, true); err != nil {
		return Result{}, err
	}
	if part.Number < 1 || part.Number > MaxParts || part.UploadID == "" || w.Bytes > token.MaxWindow {
		return Result{}, fmt.Errorf("%w: part %d of %d bytes", ErrWindow, part.Number, w.Bytes)
	}
	release, err := w.Hold()
	if err != nil {
		return Result{}, err
	}
	defer release()
	res, err := c.putPart(ctx, partCall(w, part))
	if err != nil {
		return Result{}, fmt.Errorf("client: put part %d of %s/%s: %w", part.Number, part.Bucket, part.Key, err)
	}
	return res, nil
}

func partCall(w Window, part PartName) putCall {
	return putCall{
		window: w, bucket: part.Bucket, key: part.Key, header: http.Header{},
		query: url.Values{"partNumber": {strconv.Itoa(part.Number)}, "uploadId": {part.UploadID}},
	}
}

// planParts returns the length of the parts for a payload: the wanted one, longer when there would
// be more than MaxParts.
func planParts(total, wanted int64) (partBytes int64, err error) {
	partBytes = min(max(wanted, MinPartBytes, (total+MaxParts-1)/MaxParts), token.MaxWindow)
	if (total+partBytes-1)/partBytes > MaxParts {
		return 0, fmt.Errorf("%w: %d bytes do not fit into %d parts", ErrWindow, total, MaxParts)
	}
	return partBytes, nil
}

// putParts stores one window as a multipart upload.
func (c *Client) putParts(ctx context.Context, w Window, name ObjectName, opts PutOptions) (Result, error) {
	partBytes, err := planParts(w.Bytes, orDefault(opts.PartBytes, c.cfg.PartBytes))
	if err != nil {
		return Result{}, err
	}
	u, err := c.create(ctx, name, w.Bytes, partBytes, opts)
	if err != nil {
		return Result{}, err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(orDefault(opts.Concurrency, c.cfg.Concurrency))
	for i := range u.parts {
		at := int64(i) * partBytes
		part := w.section(at, min(partBytes, w.Bytes-at))
		group.Go(func() error { return u.put(gctx, i, part) })
	}
	return u.finish(ctx, group.Wait())
}

func (c *Client) create(
	ctx context.Context, name ObjectName, total, partBytes int64, opts PutOptions,
) (*upload, error) {
	h := opts.header()
	h.Set("X-Amz-Checksum-Algorithm", "CRC64NVME")
	h.Set(headerCRCType, "FULL_OBJECT")
	var out struct {
		UploadID string `xml:"UploadId"`
	}
	_, err := c.document(ctx, &call{
		method: http.MethodPost, bucket: name.Bucket, key: name.Key, query: url.Values{"uploads": {""}}, header: h,
	}, &out)
	if err != nil {
		return nil, fmt.Errorf("create upload: %w", err)
	}
	if out.UploadID == "" {
		return nil, fmt.Errorf("%w: upload without an id", ErrProtocol)
	}
	return &upload{
		client: c, name: name, id: out.UploadID, opts: opts, total: total,
		parts: make([]uploadedPart, (total+partBytes-1)/partBytes),
	}, nil
}

// put stores the window as part i, counted from 0.
func (u *upload) put(ctx context.Context, i int, w Window) error {
	res, err := u.client.putPart(ctx, partCall(w, PartName{u.name.Bucket, u.name.Key, u.id, i + 1}))
	if err != nil {
		return fmt.Errorf("part %d: %w", i+1, err)
	}
	if res.Object.ETag == "" {
		return fmt.Errorf("%w: part %d without an ETag", ErrProtocol, i+1)
	}
	u.mu.Lock()
	u.parts[i] = uploadedPart{etag: res.Object.ETag, crc: res.Object.Checksum, bytes: w.Bytes}
	u.mu.Unlock()
	u.sum.add(res)
	return nil
}

type completeXML struct {
	XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUpload"`
	Part    []completePartXML
}

type completePartXML struct {
	PartNumber        int
	ETag              string
	ChecksumCRC64NVME string
}

// finish completes the upload, or aborts it when err is not nil or completing fails for good.
func (u *upload) finish(ctx context.Context, err error) (Result, error) {
	if err == nil {
		var res Result
		if res, err = u.complete(ctx); err == nil {
			return res, nil
		}
	}
	abortCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	abortErr := u.client.plain(abortCtx, &call{
		method: http.MethodDelete, bucket: u.name.Bucket, key: u.name.Key, query: url.Values{"uploadId": {u.id}},
	})
	if abortErr != nil && !errors.Is(abortErr, ErrNotFound) {
		err = errors.Join(err, fmt.Errorf("abort upload %s: %w", u.id, abortErr))
	}
	return Result{}, err
}

func (u *upload) complete(ctx context.Context) (Result, error) {
	doc := completeXML{}
	crc := checksum.Sum(nil)
	for i, p := range u.parts {
		sum, err := checksum.ParseBase64(p.crc)
		if err != nil {
			return Result{}, fmt.Errorf("%w: part %d without a checksum: %w", ErrProtocol, i+1, err)
		}
		crc = checksum.Combine(crc, sum, p.bytes)
		doc.Part = append(doc.Part, completePartXML{i + 1, quote(p.etag), p.crc})
	}
	body, err := xml.Marshal(doc)
	if err != nil {
		return Result{}, fmt.Errorf("complete upload: %w", err)
	}
	whole := checksum.Base64(crc)
	h := http.Header{
		"Content-Type": {"application/xml"}, headerCRC: {whole}, headerCRCType: {"FULL_OBJECT"},
		"X-Amz-Mp-Object-Size": {strconv.FormatInt(u.total, 10)},
	}
	u.opts.Conditions.set(h)
	var out struct {
		ETag              string
		ChecksumCRC64NVME string
	}
	_, err = u.client.document(ctx, &call{
		method: http.MethodPost, bucket: u.name.Bucket, key: u.name.Key, query: url.Values{"uploadId": {u.id}},
		header: h, body: body, once: !u.opts.Conditions.empty(),
	}, &out)
	if err != nil {
		return Result{}, fmt.Errorf("complete upload: %w", err)
	}
	if out.ChecksumCRC64NVME != "" && out.ChecksumCRC64NVME != whole {
		return Result{}, fmt.Errorf("%w: server stored %s, sent %s", ErrChecksum, out.ChecksumCRC64NVME, whole)
	}
	res := u.sum.result()
	res.Object = ObjectInfo{Bytes: u.total, ETag: unquote(out.ETag), Checksum: whole}
	return res, nil
}

// Upload stores what the source yields, part by part through the stage, which is registered memory
// that the call has for itself. A stage of Concurrency × PartBytes keeps that many parts in flight;
// a small one still works. A source that ends early or has more than Bytes is an error and stores
// nothing. Errors: as PutFrom, and the source's.
func (c *Client) Upload(
	ctx context.Context, stage Window, src Source, name ObjectName, opts PutOptions,
) (Result, error) {
	if err := checkNames(name.Bucket, name.Key, true); err != nil {
		return Result{}, err
	}
	if src.Bytes == 0 {
		return c.putEmpty(ctx, name.Bucket, name.Key, opts)
	}
	release, err := stage.Hold()
	if err != nil {
		return Result{}, err
	}
	defer release()
	if src.Bytes <= min(stage.Bytes, orDefault(opts.MultipartBytes, c.cfg.MultipartBytes)) {
		w := stage.section(0, src.Bytes)
		if err := src.fill(w, 0, true); err != nil {
			return Result{}, fmt.Errorf("client: put %s/%s: %w", name.Bucket, name.Key, err)
		}
		return c.PutFrom(ctx, w, name.Bucket, name.Key, opts)
	}
	res, err := c.uploadParts(ctx, stage, src, name, opts)
	if err != nil {
		return Result{}, fmt.Errorf("client: put %s/%s: %w", name.Bucket, name.Key, err)
	}
	return res, nil
}

func (c *Client) uploadParts(
	ctx context.Context, stage Window, src Source, name ObjectName, opts PutOptions,
) (Result, error) {
	partBytes, err := planParts(src.Bytes, min(orDefault(opts.PartBytes, c.cfg.PartBytes), stage.Bytes))
	if err != nil {
		return Result{}, err
	}
	if partBytes > stage.Bytes {
		return Result{}, fmt.Errorf("%w: stage of %d bytes for parts of %d", ErrWindow, stage.Bytes, partBytes)
	}
	u, err := c.create(ctx, name, src.Bytes, partBytes, opts)
	if err != nil {
		return Result{}, err
	}
	slots := stage.split(partBytes, orDefault(opts.Concurrency, c.cfg.Concurrency))
	_, parallel := src.Reader.(io.ReaderAt)
	group, gctx := errgroup.WithContext(ctx)
	var readErr error
	for i := range u.parts {
		var slot Window
		select {
		case slot = <-slots:
		case <-gctx.Done():
			readErr = gctx.Err()
		}
		if readErr != nil {
			break
		}
		at := int64(i) * partBytes
		w := slot.section(0, min(partBytes, src.Bytes-at))
		last := i == len(u.parts)-1
		if !parallel {
			if readErr = src.fill(w, at, last); readErr != nil {
				break
			}
		}
		group.Go(func() error {
			defer func() { slots <- slot }()
			if parallel {
				if err := src.fill(w, at, last); err != nil {
					return err
				}
			}
			return u.put(gctx, i, w)
		})
	}
	if err := group.Wait(); err != nil {
		readErr = err // the cause of a cancelled read, too
	}
	return u.finish(ctx, readErr)
}

// split cuts the window into at most n slots of slotBytes.
func (w Window) split(slotBytes int64, n int) chan Window {
	n = int(max(1, min(int64(n), w.Bytes/slotBytes)))
	slots := make(chan Window, n)
	for i := range n {
		slots <- w.section(int64(i)*slotBytes, slotBytes)
	}
	return slots
}

// fill reads the source's bytes from at on into the window. last: the source must end there.
func (s Source) fill(w Window, at int64, last bool) error {
	mem := w.mem()
	var err error
	if r, ok := s.Reader.(io.ReaderAt); ok {
		var n int
		if n, err = r.ReadAt(mem, at); n == len(mem) {
			err = nil
		}
	} else {
		_, err = io.ReadFull(s.Reader, mem)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("client: read source: %w before %d bytes", io.ErrUnexpectedEOF, at+w.Bytes)
	}
	if err != nil {
		return fmt.Errorf("client: read source: %w", err)
	}
	if !last {
		return nil
	}
	var more [1]byte
	var n int
	if r, ok := s.Reader.(io.ReaderAt); ok {
		n, _ = r.ReadAt(more[:], at+w.Bytes) // only whether a byte is there counts
	} else {
		n, _ = io.ReadFull(s.Reader, more[:])
	}
	if n > 0 {
		return fmt.Errorf("client: read source: %w: longer than %d bytes", ErrWindow, at+w.Bytes)
	}
	return nil
}
