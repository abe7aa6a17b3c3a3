package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/token"
)

// The messages of hipobj-rc-v2. All that can refuse a transfer is asked at the first; the bytes move at the second.
const (
	messagePrepare = hipPrefix + "prepare"
	messageReady   = hipPrefix + "ready"
	messageCancel  = hipPrefix + "cancel"
)

// serveMessage answers a message, and makes its errors those that the clients of the protocol know.
func (c *call) serveMessage(path string) error {
	if c.g.o.Exchange == nil || !c.g.o.RDMA.Enabled {
		return unsupportedProtocol()
	}
	var answer func() error
	switch path {
	case messagePrepare:
		c.op, answer = opHipPrepare, c.prepare
	case messageReady:
		c.op, answer = opHipReady, c.ready
	case messageCancel:
		c.op, answer = opHipCancel, c.cancel
	default:
		return unsupportedProtocol()
	}
	if err := c.authenticateMessage(); err != nil {
		return err
	}
	if err := c.checkMessage(); err != nil {
		return err
	}
	err := answer()
	if errors.Is(err, fabric.ErrNotGranted) { // the answer does not say of what
		c.g.log.Debug("message refused", "request_id", c.id, "peer", c.r.RemoteAddr, "error", err)
	}
	return messageError(err)
}

func (c *call) authenticateMessage() (err error) {
	if c.identity, err = c.g.verifier.VerifyMessage(c.r.Context(), &c.request); err != nil {
		return err
	}
	connOf(c.r.Context()).prove()
	return nil
}

// checkMessage checks what all messages have in common.
func (c *call) checkMessage() error {
	switch {
	case c.r.Method != http.MethodPost:
		return s3.New(s3.MethodNotAllowed, "")
	case c.request.RawQuery != "":
		return s3.New(s3.InvalidRequest, "A message has no query.")
	case c.r.ContentLength != 0 || len(c.r.TransferEncoding) > 0:
		return s3.New(s3.InvalidRequest, "A message has no body.")
	}
	return checkProtocol(c.r.Header)
}

// messageError is the answer that docs/wire.md has for an error of a message.
func messageError(err error) error {
	var d *declined
	switch {
	case err == nil:
		return nil
	case errors.As(err, &d):
		if d.reason == reasonArenaBusy {
			return slowDown("All buffers are in use; try again.")
		}
		return &declined{reason: d.reason, status: hipProtocolStatus}
	case errors.Is(err, fabric.ErrNoSession):
		return withStatus(http.StatusConflict,
			s3.New(s3.OperationAborted, "The session is unknown, has ended, or was used before.").Wrap(err))
	case errors.Is(err, fabric.ErrNotGranted):
		return s3.New(s3.AccessDenied, "The message does not fit its session or the client's address.").Wrap(err)
	case errors.Is(err, fabric.ErrTooLarge):
		return withStatus(http.StatusRequestEntityTooLarge, s3.New(s3.EntityTooLarge, "").Wrap(err))
	case errors.Is(err, errDeadline), errors.Is(err, fabric.ErrOverdue), errors.Is(err, context.DeadlineExceeded):
		return withStatus(http.StatusRequestTimeout,
			s3.New(s3.RequestTimeout, "The deadline of the transfer passed.").Wrap(err))
	}
	if reason, ok := fabric.Reason(err); ok {
		return &declined{reason: reason, status: hipProtocolStatus}
	}
	var own *s3.Error
	if errors.As(err, &own) && own.Status == http.StatusNotImplemented {
		return own.WithHeader(headerProtocolStatus, hipProtocolStatus)
	}
	return err
}

// held is what a session keeps from its first message for the second.
type held struct {
	op     op
	target s3.Target
	bucket store.BucketInfo

	object    *store.Object // GET: opened, so that what moves is what was asked for then
	selection *selection

	digests digests // PUT
	put     putFunc
}

// Close implements io.Closer, for the end of the session.
func (h *held) Close() error {
	if h.object != nil {
		h.object.Close()
	}
	return nil
}

// prepare answers the first message.
func (c *call) prepare() error {
	m, err := parsePrepare(c.r.Header)
	if err != nil {
		return err
	}
	c.target = m.target
	h, err := c.hold(&m)
	if err != nil {
		return err
	}
	got, err := c.g.o.Exchange.Prepare(c.r.Context(), fabric.Preparation{
		Principal: c.identity.Principal, Peer: c.peer(), Local: c.local(), Token: m.token, PSN: m.psn, Cookie: m.cookie,
		Direction: m.direction, Bytes: m.size, Held: h,
	})
	if err != nil {
		return err
	}
	if _, err := c.g.o.Keys.Lookup(c.identity.AccessKey); err != nil {
		// The key was revoked since it was verified, and its sessions were ended before this one was there.
		return errors.Join(err, c.end(got.ID))
	}
	c.answerPrepared(&got)
	return c.answerEmpty(http.StatusOK)
}

func (c *call) answerPrepared(p *fabric.Prepared) {
	own := token.Descriptor{Kind: token.HipObj, HipRC: true, QPN: p.QPN, GID: p.GID, Port: p.Port, LID: p.LID}
	h := c.w.Header()
	h["Cache-Control"] = []string{"no-store"}
	h[headerProtocol] = []string{hipProtocol}
	h[headerReply] = []string{"200:" + own.Encode()}
	h[headerSession] = []string{hex.EncodeToString(p.ID[:])}
	h[headerPSN] = []string{fmt.Sprintf("%06x", p.PSN)}
	h[headerQPN] = []string{strconv.FormatUint(uint64(p.QPN), 16)}
	h[headerMemory] = []string{strconv.FormatUint(p.Addr, 16)}
	h[headerMemoryKey] = []string{strconv.FormatUint(uint64(p.RKey), 16)}
}

// hold checks all that the same request over HTTP would be checked for, and keeps what the transfer needs.
func (c *call) hold(m *hipPrepare) (*held, error) {
	if err := c.checkNames(); err != nil {
		return nil, err
	}
	if err := c.checkHeaders(); err != nil {
		return nil, err
	}
	if c.r.Header["Range"] != nil || c.r.Header["X-Amz-Copy-Source"] != nil || c.r.Header["Content-Md5"] != nil {
		return nil, s3.New(s3.InvalidRequest, "A message has no Range, no source of a copy and no Content-MD5.")
	}
	b, err := c.g.o.Store.HeadBucket(c.r.Context(), m.target.Bucket)
	if err != nil {
		return nil, err
	}
	if err := c.enter(b, c.r.Header.Get("X-Amz-Expected-Bucket-Owner")); err != nil {
		return nil, err
	}
	h := &held{target: m.target, bucket: b}
	switch {
	case m.direction == fabric.ForGet:
		h.op, err = opGetObject, c.holdObject(h, m)
	case m.part > 0:
		h.op, err = opUploadPart, c.holdPart(h, m)
	default:
		h.op, err = opPutObject, c.holdPut(h, m)
	}
	return h, err
}

func (c *call) holdObject(h *held, m *hipPrepare) (err error) {
	s := &selection{open: store.OpenRequest{Bucket: m.target.Bucket, Key: m.target.Key, If: c.readConditions()}}
	s.open.Range = func(info *store.ObjectInfo, size int64) (off, n int64, err error) {
		if m.offset > size || m.size > size-m.offset { // less than was asked for would be taken for all of it
			return 0, 0, s3.New(s3.InvalidRange, "")
		}
		s.off, s.len, s.total, s.partial = m.offset, m.size, info.Size, m.size < info.Size
		return m.offset, m.size, nil
	}
	h.selection = s
	if h.object, err = c.g.o.Store.Open(c.r.Context(), s.open); err != nil {
		return c.notModified(err, s)
	}
	return nil
}

func (c *call) holdPut(h *held, m *hipPrepare) (err error) {
	r := store.PutRequest{Bucket: m.target.Bucket, Key: m.target.Key, If: c.writeConditions()}
	if r.Meta, err = c.objectMeta(); err != nil {
		return err
	}
	h.put = c.putInto(r)
	h.digests, err = c.memorySums(s3.NoAlgorithm)
	return err
}

func (c *call) holdPart(h *held, m *hipPrepare) error {
	r := store.PartRequest{Bucket: m.target.Bucket, Key: m.target.Key, UploadID: m.uploadID, Number: m.part}
	upload, err := c.g.o.Store.Upload(c.r.Context(), r.Bucket, r.Key, r.UploadID)
	if err != nil {
		return err
	}
	also, err := s3.ParseAlgorithm(upload.ChecksumAlgorithm)
	if err != nil {
		return err
	}
	h.put = c.putPartInto(r)
	h.digests, err = c.memorySums(also)
	return err
}

// final is what is answered of a transfer that is done.
type final struct {
	cookie uint32
	bytes  int64
	etag   string
	crc    uint64
	sums   []store.Checksum // PUT: what the client declared, as stored
}

// ready answers the second message, once the bytes have moved.
func (c *call) ready() error {
	id, r, err := parseReady(c.r.Header)
	if err != nil {
		return err
	}
	taken, err := c.g.o.Exchange.Take(id, c.identity.Principal, r)
	if err != nil {
		return err
	}
	done, err := c.transfer(taken)
	if err != nil {
		return err
	}
	h := c.w.Header()
	h[headerProtocol] = []string{hipProtocol}
	h[headerCookie] = []string{fmt.Sprintf("%08x", done.cookie)}
	h[headerBytes] = []string{strconv.FormatInt(done.bytes, 10)}
	h["Etag"], h[headerMovedETag] = []string{quote(done.etag)}, []string{quote(done.etag)}
	setChecksums(h, done.sums, done.crc)
	h[s3.CRC64NVME.Header()] = []string{checksum.Base64(done.crc)}
	h[headerMovedSum] = []string{"CRC64NVME " + checksum.Base64(done.crc)}
	status := http.StatusOK
	if c.op != opGetObject && c.identity.Service != s3.ServiceHipObj { // clients differ in what they take for success
		status = http.StatusNoContent
	}
	return c.answerEmpty(status)
}

// transfer moves the bytes of a session that is this call's. When it returns, the session has ended.
func (c *call) transfer(taken *fabric.Taken) (done final, err error) {
	defer taken.Finish()
	h, ok := taken.Held.(*held)
	if !ok {
		return done, fmt.Errorf("gateway: take session: it holds a %T", taken.Held)
	}
	c.op, c.target = h.op, h.target
	// The bucket is still that of the first message, and its owner too.
	c.r = c.r.WithContext(store.Pin(c.r.Context(), h.bucket))
	b, err := c.g.o.Store.HeadBucket(c.r.Context(), h.target.Bucket)
	if err != nil {
		return done, err
	}
	if err := c.enter(b, ""); err != nil {
		return done, err
	}
	g := &grant{window: token.Descriptor{Kind: token.HipObj, Size: taken.Bytes}, path: pathHip, remote: taken.Remote}
	g.deadline = earlier(taken.Deadline, c.arrived().Add(c.g.o.RDMA.Deadline))
	ctx, cancel := context.WithDeadlineCause(c.r.Context(), g.deadline, errDeadline)
	defer cancel()
	done = final{cookie: taken.Cookie, bytes: taken.Bytes}
	if h.object != nil {
		done.etag = h.object.Info.ETag
		done.crc, err = c.deliver(ctx, h.object, h.selection, g)
		return done, err
	}
	etag, p, err := c.receive(ctx, g, h.digests, h.put)
	if err != nil {
		return done, err
	}
	done.etag, done.crc, done.sums = etag, p.crc, toStore(p.sums)
	return done, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// cancel answers the third message: nothing touches the client's memory any more.
func (c *call) cancel() error {
	id, err := parseSession(c.r.Header)
	if err != nil {
		return err
	}
	if err := c.end(id); err != nil {
		return err
	}
	c.w.Header()[headerProtocol] = []string{hipProtocol}
	return c.answerEmpty(http.StatusNoContent)
}

// end ends a session of the principal. Where its memory may still change there is no answer.
func (c *call) end(id [16]byte) error {
	err := c.g.o.Exchange.Cancel(c.r.Context(), id, c.identity.Principal)
	c.unsafe = c.unsafe || errors.Is(err, fabric.ErrLingering)
	return err
}
