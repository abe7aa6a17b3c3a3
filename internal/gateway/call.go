package gateway

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/token"
)

// call is one request under way. It belongs to one goroutine.
type call struct {
	g     *Gateway
	w     http.ResponseWriter // answer
	r     *http.Request
	id    string
	start time.Time

	op       op
	target   s3.Target
	query    url.Values
	request  s3.Request
	identity *s3.Identity
	claim    *fabric.Claim // of the token, if it has one of a session

	wrote  bool // the header of the answer is out
	unsafe bool // client memory may still change: no answer may go out
	status int
	path   path   // how the payload moved
	moved  int64  // payload bytes moved
	reason string // why RDMA was declined
	bySpec bool   // a decline is answered with 2xx
	early  bool   // the answer comes before the body was read

	// For the access log.
	answer counted
	window token.Descriptor // the token's; of no kind: none
	taken  int64            // bytes of the request's body
	code   string           // S3 error code of the answer
	cut    string           // why the answer was cut off
}

func (c *call) serve() error {
	rawPath, rawQuery := c.request.RawPath, c.request.RawQuery // what the signature covers, in any form of target
	bucket := s3.SplitHost(c.r.Host, c.g.o.Domains)
	if bucket == "" && isControl(rawPath) {
		return c.serveControl(rawPath)
	}
	var err error
	c.target, err = s3.ParseTarget(rawPath, bucket)
	if err != nil {
		return err
	}
	if c.query, err = s3.ParseQuery(rawQuery); err != nil {
		return err
	}
	var refused error
	c.op, refused = route(c.r.Method, c.target, c.query, c.r.Header)
	if c.op == opRefused && c.r.Method == http.MethodOptions {
		return refused // browsers do not sign preflights
	}
	if err := c.authenticate(); err != nil {
		return err
	}
	if c.takeHoisted() {
		c.op, refused = route(c.r.Method, c.target, c.query, c.r.Header)
	}
	if refused != nil {
		return refused
	}
	if c.takesToken() {
		if err := c.claimToken(); err != nil {
			return err
		}
	}
	if err := c.checkNames(); err != nil {
		return err
	}
	return c.dispatch()
}

func (c *call) authenticate() (err error) {
	if c.anonymous() {
		return nil
	}
	c.identity, err = c.g.verifier.Verify(c.r.Context(), &c.request)
	if err != nil && c.identity != nil { // refused for its time alone: the clocks may agree later
		_ = c.claimToken() // the refusal is the answer
		c.identity = nil
	}
	if err == nil {
		connOf(c.r.Context()).prove()
	}
	if c.op == opHeadBucket { // clients learn the region from a refusal, too
		c.w.Header().Set("X-Amz-Bucket-Region", c.g.o.AWSRegion)
	}
	return err
}

// takeHoisted adds the headers that a presigned URL carries in its query, and says whether there are any.
// Checksums there are left out, as S3 does: SDKs sign that of an empty body, before they know the real one.
// What only names an algorithm, a type or a mode stays.
func (c *call) takeHoisted() bool {
	for name := range c.identity.Hoisted {
		what, ok := strings.CutPrefix(name, "X-Amz-Checksum-")
		value := ok && what != "Mode" && what != "Algorithm" && what != "Type"
		if value || name == "X-Amz-Sdk-Checksum-Algorithm" {
			delete(c.identity.Hoisted, name)
		}
	}
	c.identity.ApplyHoisted(c.r.Header)
	return len(c.identity.Hoisted) > 0
}

func (c *call) checkNames() error {
	if c.target.Bucket != "" && c.op != opCreateBucket {
		if err := s3.CheckBucketName(c.target.Bucket); err != nil {
			return s3.New(s3.NoSuchBucket, "").With("BucketName", c.target.Bucket)
		}
	}
	if c.target.Key != "" {
		return s3.CheckKey(c.target.Key)
	}
	return nil
}

func (c *call) dispatch() error {
	if err := c.checkHeaders(); err != nil {
		return err
	}
	switch c.op {
	case opListBuckets:
		return c.listBuckets()
	case opCreateBucket:
		return c.createBucket()
	}
	if err := c.authorise(c.target.Bucket, "X-Amz-Expected-Bucket-Owner"); err != nil {
		return err
	}
	switch c.op {
	case opGetObject:
		return c.getObject()
	case opHeadObject:
		return c.headObject()
	case opPutObject:
		return c.putObject()
	case opUploadPart:
		return c.uploadPart()
	case opDeleteObject:
		return c.deleteObject()
	case opListObjectsV2:
		return c.listObjectsV2()
	case opListObjects:
		return c.listObjects()
	case opDeleteObjects:
		return c.deleteObjects()
	case opCopyObject:
		return c.copyObject()
	case opCreateUpload:
		return c.createUpload()
	case opUploadPartCopy:
		return c.uploadPartCopy()
	case opCompleteUpload:
		return c.completeUpload()
	case opAbortUpload:
		return c.abortUpload()
	case opListParts:
		return c.listParts()
	case opListVersions:
		return c.listVersions()
	case opListUploads:
		return c.listUploads()
	case opHeadBucket:
		return c.headBucket()
	case opDeleteBucket:
		return c.deleteBucket()
	case opBucketLocation:
		return c.bucketLocation()
	case opBucketConfig:
		return c.bucketConfig()
	case opObjectTags:
		return c.objectTags()
	case opObjectAttributes:
		return c.objectAttributes()
	case opGetACL:
		return c.getACL()
	case opPutACL:
		return c.putACL()
	}
	return s3.New(s3.NotImplemented, "")
}

// authorise lets a principal at its own buckets, and root at all. The header, when given, must name
// the owner. From here on the request finds this bucket under its name, and no other: the name may be
// deleted and taken by somebody else before the operation looks it up.
func (c *call) authorise(bucket, ownerHeader string) error {
	expected := c.r.Header.Get(ownerHeader)
	if c.identity.Principal == iam.Root && expected == "" {
		return nil // the operation itself finds out whether the bucket exists
	}
	b, err := c.g.o.Store.HeadBucket(c.r.Context(), bucket)
	if err != nil {
		return err
	}
	return c.enter(b, expected)
}

// enter lets the principal at a bucket that was found, and keeps the request to it. expected, when given, must be the
// owner.
func (c *call) enter(b store.BucketInfo, expected string) error {
	if c.identity.Principal != iam.Root && b.Owner != c.identity.Principal {
		return s3.New(s3.AccessDenied, "")
	}
	if expected != "" && expected != b.Owner {
		return s3.New(s3.AccessDenied, "The bucket belongs to another owner than expected.")
	}
	c.r = c.r.WithContext(store.Pin(c.r.Context(), b))
	return nil
}

// fail answers an error, once: after the header is out, the connection is cut instead, so that the
// client cannot take a part for the whole. It is cut, too, while an operation on client memory lingers: an
// answer would say that the memory does not change any more.
func (c *call) fail(err error) {
	if c.wrote || c.unsafe {
		c.status, c.cut = 0, c.cutWord(err) // what was answered is not what was meant
		c.g.log.Debug("answer cut off", "request_id", c.id, "op", c.op.String(), "error", err)
		panic(http.ErrAbortHandler)
	}
	h := c.w.Header()
	dropObjectHeaders(h)
	e := c.errorOf(err)
	for name, value := range e.Header {
		h.Set(name, value)
	}
	if e.Code == s3.RequestTimeout { // the rest of the body would be read for as long again
		h["Connection"] = []string{"close"}
	}
	c.limitBody()
	if !s3.HasBody(c.r.Method, e.Status) {
		c.writeHeader(e.Status)
		return
	}
	body := e.AppendXML(nil)
	h["Content-Type"] = xmlType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	c.writeHeader(e.Status)
	_, _ = c.w.Write(body) // nobody is left to tell
}

// errorOf makes an error the one to answer, sets the headers of a decline, and logs what is the server's fault.
func (c *call) errorOf(err error) (e *s3.Error) {
	var d *declined
	if errors.As(err, &d) {
		c.announce(d)
		e = s3.Errorf(s3.NotImplemented, "RDMA is declined: %s.", d.reason)
		if c.bySpec { // of a PUT: a GET is answered with its payload
			e.Status = http.StatusOK
		}
	} else {
		e = answerOf(err)
		e = c.fitError(e, err)
		if errors.Is(err, fabric.ErrBusy) {
			c.w.Header()[headerReason] = []string{reasonBusy}
		}
	}
	if e.Status >= http.StatusInternalServerError {
		level := c.g.log.Warn
		if e.Status != http.StatusInternalServerError || c.r.Context().Err() != nil {
			level = c.g.log.Debug // 503 and 501 are counted; a log line each would be a second load
		}
		level("request ended in error", "request_id", c.id, "op", c.op.String(), "code", string(e.Code), "error", err)
	}
	c.code = string(e.Code)
	e = e.Complete(c.request.RawPath, c.id)
	e.HostID = c.g.o.Node
	return e
}

// fitError makes the code fit the operation where S3 does.
func (c *call) fitError(e *s3.Error, err error) *s3.Error {
	switch {
	case errors.Is(err, store.ErrInvalidMarker) && c.query.Has("uploadId"):
		return s3.New(s3.NoSuchUpload, "").Wrap(err)
	case e.Code == s3.NoSuchKey && len(e.Fields) == 0: // of a copy's source it is named already
		return e.With("Key", c.target.Key)
	case e.Code == s3.NoSuchBucket:
		return e.With("BucketName", c.target.Bucket)
	}
	return e
}

// objectHeaders are what a success says of an object, or of a declined transfer whose payload is the body; an error
// must not.
var objectHeaders = []string{headerReply, headerReason, headerNeed, headerProtocolStatus,
	"Etag", "Last-Modified", "Accept-Ranges", "Content-Range", "Content-Length",
	"Content-Encoding", "Content-Disposition", "Content-Language", "Cache-Control", "Expires"}

func dropObjectHeaders(h http.Header) {
	for _, name := range objectHeaders {
		delete(h, name)
	}
}

func (c *call) writeHeader(status int) {
	c.wrote, c.status = true, status
	c.w.WriteHeader(status)
}

// xmlType and jsonType are shared by all answers; net/http only reads them.
var (
	xmlType  = []string{"application/xml"}
	jsonType = []string{"application/json"}
)

// answerXML answers 200 with a document.
func (c *call) answerXML(m s3.Message) error {
	return c.answerBytes(http.StatusOK, xmlType, s3.Marshal(m))
}

func (c *call) answerBytes(status int, contentType []string, body []byte) error {
	h := c.w.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	c.writeHeader(status)
	_, _ = c.w.Write(body) // the operation is done; a client that went away does not undo it
	return nil
}

// answerEmpty answers without a body.
func (c *call) answerEmpty(status int) error {
	if status != http.StatusNoContent {
		c.w.Header()["Content-Length"] = zeroLength
	}
	c.writeHeader(status)
	return nil
}

// zeroLength is shared by all answers; net/http only reads it.
var zeroLength = []string{"0"}

// body is the request's body as it comes off the wire, with limits in time: no read waits longer than
// the stall limit, and from then on the mean rate stays above the minimum.
type body struct {
	c     *call
	ctl   *http.ResponseController
	start time.Time
	n     int64
}

func (c *call) wireBody() *body {
	return &body{c: c, ctl: http.NewResponseController(c.w), start: time.Now()}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	l := &b.c.g.o.Limits
	deadline := time.Now().Add(l.Stall)
	if l.MinRate > 0 {
		earned := time.Duration(float64(b.n+int64(len(p))) / float64(l.MinRate) * float64(time.Second))
		if slow := b.start.Add(l.Stall + earned); slow.Before(deadline) {
			deadline = slow
		}
	}
	_ = b.ctl.SetReadDeadline(deadline) // test servers without a connection have none
	n, err := b.c.r.Body.Read(p)
	b.n += int64(n)
	b.c.taken += int64(n)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, s3.New(s3.RequestTimeout, "").Wrap(err)
	}
	if errors.Is(err, io.EOF) {
		_ = b.ctl.SetReadDeadline(time.Time{}) // net/http now watches the connection for its end
	}
	return n, err
}

// document reads a whole bounded body, within the budget of all documents, verified as declared.
// Call the returned function when the bytes are no longer needed.
func (c *call) document(limit int64) ([]byte, func(), error) {
	spec, err := s3.ParseBodySpec(&c.request, c.identity)
	if err != nil {
		return nil, nil, err
	}
	declared, err := s3.ParseDeclared(c.r.Header)
	if err != nil {
		return nil, nil, err
	}
	budget := limit
	if spec.Size >= 0 {
		budget = min(spec.Size, limit)
	}
	if spec.Size > limit {
		return nil, nil, s3.New(s3.MaxMessageLengthExceeded, "")
	}
	if !c.g.documents.TryAcquire(budget) {
		return nil, nil, slowDown("Too many documents in flight.")
	}
	release := func() { c.g.documents.Release(budget) }
	text, err := c.readDocument(spec, declared, limit)
	if err != nil {
		release()
		return nil, nil, err
	}
	return text, release, nil
}

func (c *call) readDocument(spec s3.BodySpec, declared s3.Declared, limit int64) ([]byte, error) {
	b := s3.NewBody(spec, c.identity, c.wireBody())
	text, err := io.ReadAll(io.LimitReader(b, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, s3.New(s3.MaxMessageLengthExceeded, "")
	}
	if err := b.Finish(); err != nil {
		return nil, err
	}
	d := s3.NewDigester(declared, s3.DigestOptions{})
	_, _ = d.Write(text) // never fails
	_, err = d.Finish(s3.Final{Trailer: b.Trailer()})
	return text, err
}
