package gateway

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"

	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/sink"
	"github.com/penstock-store/penstock/internal/store"
)

// maxPutBytes is S3's limit of one PutObject, UploadPart or copy.
const maxPutBytes = 5 << 30

// payload is the HTTP body of a PUT: decoded, hashed and bounded.
type payload struct {
	c      *call
	body   *s3.Body
	digest *s3.Digester
	size   int64
}

// newPayload checks what the headers say of the body. Nothing of it is read yet.
func (c *call) newPayload(also s3.Algorithm) (*payload, error) {
	spec, err := s3.ParseBodySpec(&c.request, c.identity)
	if err != nil {
		return nil, err
	}
	if spec.Size < 0 {
		return nil, s3.New(s3.MissingContentLength, "")
	}
	if spec.Size > maxPutBytes {
		return nil, s3.New(s3.EntityTooLarge, "One request stores at most 5 GiB.")
	}
	declared, err := s3.ParseDeclared(c.r.Header)
	if err != nil {
		return nil, err
	}
	return &payload{
		c:      c,
		body:   s3.NewBody(spec, c.identity, c.wireBody()),
		digest: s3.NewDigester(declared, s3.DigestOptions{MD5: true, Also: also, ExternalCRC64NVME: true}),
		size:   spec.Size,
	}, nil
}

// Read implements io.Reader: decoded bytes, summed in passing. io.EOF means that all was verified.
func (p *payload) Read(b []byte) (int, error) {
	n, err := p.body.Read(b)
	if n > 0 {
		_, _ = p.digest.Write(b[:n]) // never fails
	}
	return n, err
}

var _ io.Reader = (*payload)(nil)

// seal verifies what was declared and names the ETag, before the commit.
func (p *payload) seal(_ context.Context, all store.Payload) (store.Digest, error) {
	if err := p.body.Finish(); err != nil {
		return store.Digest{}, err
	}
	sums, err := p.digest.Finish(s3.Final{Trailer: p.body.Trailer(), CRC64NVME: all.CRC64NVME})
	if err != nil {
		return store.Digest{}, err
	}
	if err := p.c.checkPeer(); err != nil {
		return store.Digest{}, err
	}
	return store.Digest{ETag: hex.EncodeToString(sums.MD5), Checksums: toStore(sums.Checksums)}, nil
}

func (c *call) putObject() error {
	grant, err := c.tokenOf()
	if err != nil {
		return err
	}
	meta, err := c.objectMeta()
	if err != nil {
		return err
	}
	r := store.PutRequest{Bucket: c.target.Bucket, Key: c.target.Key, Meta: meta, If: c.writeConditions()}
	if grant != nil {
		return c.takeByFabric(grant, s3.NoAlgorithm, c.putInto(r))
	}
	return c.takeByHTTP(s3.NoAlgorithm, func(ctx context.Context, p *payload, src *sink.Body) error {
		r.Source, r.Seal = src, p.seal
		info, err := c.g.o.Store.Put(ctx, r)
		if err != nil {
			return err
		}
		return c.answerWritten(info.ETag, info.Checksums, info.CRC64NVME)
	})
}

// takeByHTTP reads the payload from the request's body. put has it stored and answers.
func (c *call) takeByHTTP(also s3.Algorithm, put func(context.Context, *payload, *sink.Body) error) error {
	p, err := c.newPayload(also)
	if err != nil {
		return err
	}
	ctx := c.r.Context()
	reservation, err := c.reserveHTTP(ctx, p.size)
	if err != nil {
		return err
	}
	defer reservation.Close()
	src := sink.NewBody(p, reservation, p.size)
	c.path = pathHTTP
	defer func() { c.moved = src.Bytes() }()
	return put(ctx, p, src)
}

// answerWritten answers a PUT that is durable.
func (c *call) answerWritten(etag string, sums []store.Checksum, crc uint64) error {
	h := c.w.Header()
	h["Etag"] = []string{quote(etag)}
	setChecksums(h, sums, crc)
	return c.answerEmpty(http.StatusOK)
}

func (c *call) uploadPart() error {
	number, err := s3.ParsePartNumber(c.query.Get("partNumber"))
	if err != nil {
		return err
	}
	grant, err := c.tokenOf()
	if err != nil {
		return err
	}
	r := store.PartRequest{
		Bucket: c.target.Bucket, Key: c.target.Key, UploadID: c.query.Get("uploadId"), Number: number,
	}
	upload, err := c.g.o.Store.Upload(c.r.Context(), r.Bucket, r.Key, r.UploadID)
	if err != nil {
		return err
	}
	also, err := s3.ParseAlgorithm(upload.ChecksumAlgorithm)
	if err != nil {
		return err
	}
	if grant != nil {
		return c.takeByFabric(grant, also, c.putPartInto(r))
	}
	return c.takeByHTTP(also, func(ctx context.Context, p *payload, src *sink.Body) error {
		r.Source, r.Seal = src, p.seal
		part, err := c.g.o.Store.PutPart(ctx, r)
		if err != nil {
			return err
		}
		return c.answerWritten(part.ETag, part.Checksums, part.CRC64NVME)
	})
}
