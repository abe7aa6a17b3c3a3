package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/sink"
	"github.com/penstock-store/penstock/internal/store"
)

// selection is what a GET or HEAD asks of an object, and, once it is resolved, what that came to.
type selection struct {
	open      store.OpenRequest
	overrides map[string]string

	spec     s3.RangeSpec
	hasRange bool
	ifRange  string

	partial  bool // the answer is a range of the object
	off, len int64
	total    int64
}

// selects reads part number, range, conditions and overrides. Nothing of them is resolved yet.
func (c *call) selects() (*selection, error) {
	s := &selection{open: store.OpenRequest{Bucket: c.target.Bucket, Key: c.target.Key, If: c.readConditions()}}
	if v := c.r.Header["Range"]; len(v) > 0 {
		s.spec, s.hasRange = s3.ParseRange(v[0])
		s.ifRange = c.r.Header.Get("If-Range")
	}
	if len(c.query) == 0 {
		s.open.Range = s.resolve
		return s, nil
	}
	if c.query.Has("partNumber") {
		n, err := s3.ParsePartNumber(c.query.Get("partNumber"))
		if err != nil {
			return nil, err
		}
		if s.hasRange {
			return nil, s3.New(s3.InvalidRequest, "A request names either a Range or a partNumber.")
		}
		s.open.Part = n
	}
	var err error
	if s.overrides, err = s3.ResponseOverrides(c.query); err != nil {
		return nil, err
	}
	s.open.Range = s.resolve
	return s, nil
}

// resolve chooses the bytes once the size is known.
func (s *selection) resolve(info *store.ObjectInfo, size int64) (off, n int64, err error) {
	s.partial, s.off, s.len, s.total = false, 0, size, info.Size
	switch {
	case s.open.Part > 0:
		s.partial = size > 0 // no Content-Range can name an empty part
		if info.Part != nil {
			s.off = info.Part.Offset
		}
	case s.hasRange && s3.IfRangeHolds(s.ifRange, s3.State{Exists: true, ETag: info.ETag, Modified: info.Modified}):
		s.off, s.len, s.partial, err = s.spec.Resolve(size)
		return s.off, s.len, err
	}
	return 0, size, nil
}

func (s *selection) status() int {
	if s.partial {
		return http.StatusPartialContent
	}
	return http.StatusOK
}

// wholeSums returns the checksums that hold for exactly the selected bytes, if any are known: of the
// whole object, or of a whole part.
func (s *selection) wholeSums(info *store.ObjectInfo) (sums []store.Checksum, crc uint64, ok bool) {
	switch {
	case s.open.Part > 0 && info.Part != nil:
		return info.Part.Checksums, info.Part.CRC64NVME, true
	case s.len == info.Size:
		return info.Checksums, info.CRC64NVME, true
	}
	return nil, 0, false
}

// answerChecksums answers the checksums of the selected bytes when the client wants them. The type is that
// of the object also for a part of it.
func (c *call) answerChecksums(s *selection, info *store.ObjectInfo) {
	if !c.wantsChecksum() {
		return
	}
	if sums, crc, ok := s.wholeSums(info); ok {
		h := c.w.Header()
		setChecksums(h, sums, crc)
		h["X-Amz-Checksum-Type"] = []string{string(typeOf(info.Checksums))}
	}
}

// head sets the headers of a GET or HEAD but those of its length.
func (c *call) head(s *selection, info *store.ObjectInfo) {
	c.describe(info, s.overrides)
	if s.partial {
		c.w.Header()["Content-Range"] = []string{s3.ContentRange(s.off, s.len, s.total)}
	}
}

func (c *call) headObject() error {
	s, err := c.selects()
	if err != nil {
		return err
	}
	info, err := c.g.o.Store.Stat(c.r.Context(), s.open)
	if err != nil {
		return c.readError(err, &info)
	}
	size := info.Size
	if info.Part != nil {
		size = info.Part.Size
	}
	if _, _, err := s.resolve(&info, size); err != nil {
		return err
	}
	c.head(s, &info)
	c.answerChecksums(s, &info)
	c.w.Header()["Content-Length"] = []string{strconv.FormatInt(s.len, 10)}
	c.writeHeader(s.status())
	return nil
}

// readError adds what a 304 says of the object.
func (c *call) readError(err error, info *store.ObjectInfo) error {
	if !errors.Is(err, store.ErrNotModified) || info.ETag == "" {
		return err
	}
	return s3.New(s3.NotModified, "").WithHeader("Etag", quote(info.ETag)).
		WithHeader("Last-Modified", info.Modified.UTC().Format(http.TimeFormat))
}

func (c *call) getObject() error {
	s, err := c.selects()
	if err != nil {
		return err
	}
	grant, err := c.tokenOf()
	if err != nil {
		return err
	}
	if grant != nil {
		err := c.getByFabric(s, grant)
		var d *declined
		if !c.bySpec || !errors.As(err, &d) {
			return err
		}
		c.announce(d) // client memory was not touched: the payload goes into the body
	}
	ctx := c.r.Context()
	obj, err := c.g.o.Store.Open(ctx, s.open)
	if err != nil {
		return c.notModified(err, s)
	}
	defer obj.Close()
	c.path = pathHTTP
	c.head(s, &obj.Info)
	c.answerChecksums(s, &obj.Info)
	c.w.Header()["Content-Length"] = []string{strconv.FormatInt(s.len, 10)}
	if s.len == 0 {
		c.writeHeader(s.status())
		return nil
	}
	if text, ok, err := obj.Inline(); ok || err != nil {
		if err != nil {
			return err
		}
		c.writeHeader(s.status())
		n, _ := c.w.Write(text) // a client that went away is no error of ours
		c.moved = int64(n)
		return nil
	}
	return c.sendBody(ctx, obj, s)
}

// notModified asks for the ETag that a 304 carries.
func (c *call) notModified(err error, s *selection) error {
	if !errors.Is(err, store.ErrNotModified) {
		return err
	}
	info, statErr := c.g.o.Store.Stat(c.r.Context(), store.OpenRequest{Bucket: s.open.Bucket, Key: s.open.Key})
	if statErr != nil {
		return err
	}
	return c.readError(err, &info)
}

// sendBody moves the payload through arena buffers. The header goes out with the first verified
// bytes, so that what fails before them is still answered as an error.
func (c *call) sendBody(ctx context.Context, obj *store.Object, s *selection) error {
	reservation, err := c.reserveHTTP(ctx, s.len)
	if err != nil {
		return err
	}
	defer reservation.Close()
	overlap := c.g.bodies.Add(1) <= int64(c.g.cores)
	defer c.g.bodies.Add(-1)
	dst := sink.NewHTTP(&lateHeader{c: c, status: s.status()}, reservation, s.len, overlap)
	err = obj.Read(ctx, 0, s.len, dst)
	if doneErr := dst.Done(ctx); err == nil {
		err = doneErr
	}
	c.moved = dst.Bytes()
	return err
}

// lateHeader sends the header of the answer with the first payload bytes.
type lateHeader struct {
	c      *call
	status int
}

// Write implements io.Writer. One goroutine at a time calls it.
func (l *lateHeader) Write(p []byte) (int, error) {
	if !l.c.wrote {
		l.c.writeHeader(l.status)
	}
	return l.c.w.Write(p)
}

// reserveHTTP takes buffers for n payload bytes over HTTP.
func (c *call) reserveHTTP(ctx context.Context, n int64) (*arena.Reservation, error) {
	if n <= SmallBufferBytes {
		return c.g.o.Arena.Share(ShareSmall).Reserve(ctx, smallDepth)
	}
	depth := httpDepth
	if n <= HTTPBufferBytes {
		depth = 1
	}
	return c.g.o.Arena.Share(ShareHTTP).Reserve(ctx, depth)
}
