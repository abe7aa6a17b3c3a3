package gateway

import (
	"context"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
)

// copySource reads and authorises the source of a copy.
func (c *call) copySource() (s3.CopySource, error) {
	src, err := s3.ParseCopySource(c.r.Header.Get("X-Amz-Copy-Source"))
	if err != nil {
		return src, err
	}
	if src.VersionID != "" && src.VersionID != "null" {
		return src, s3.New(s3.NoSuchVersion, "").With("VersionId", src.VersionID)
	}
	if src.Bucket != c.target.Bucket || c.r.Header.Get("X-Amz-Source-Expected-Bucket-Owner") != "" {
		err = c.authorise(src.Bucket, "X-Amz-Source-Expected-Bucket-Owner")
	}
	return src, err
}

// directive reads x-amz-metadata-directive and its like.
func (c *call) directive(name string) (replace bool, err error) {
	switch c.r.Header.Get(name) {
	case "", "COPY":
		return false, nil
	case "REPLACE":
		return true, nil
	}
	return false, s3.Errorf(s3.InvalidArgument, "%s is neither COPY nor REPLACE.", strings.ToLower(name))
}

func (c *call) copyObject() error {
	src, err := c.copySource()
	if err != nil {
		return err
	}
	replace, err := c.directive("X-Amz-Metadata-Directive")
	if err != nil {
		return err
	}
	if _, err := c.directive("X-Amz-Tagging-Directive"); err != nil {
		return err
	}
	algorithm, err := s3.ParseAlgorithm(c.r.Header.Get("X-Amz-Checksum-Algorithm"))
	if err != nil {
		return err
	}
	r := store.CopyRequest{
		SourceBucket: src.Bucket, SourceKey: src.Key, SourceIf: store.Conditions(s3.ParseCopyConditions(c.r.Header)),
		Bucket: c.target.Bucket, Key: c.target.Key, If: c.writeConditions(), Replace: replace,
	}
	if replace {
		if r.Meta, err = c.objectMeta(); err != nil {
			return err
		}
	} else if src.Bucket == r.Bucket && src.Key == r.Key && algorithm == s3.NoAlgorithm {
		return s3.New(s3.InvalidRequest, "An object is copied to itself only with new metadata (REPLACE).")
	}
	ctx := c.r.Context()
	if err := c.checkCopySize(ctx, src); err != nil {
		return err
	}
	if algorithm != s3.NoAlgorithm {
		d := s3.NewDigester(s3.Declared{}, s3.DigestOptions{MD5: true, Also: algorithm, ExternalCRC64NVME: true})
		r.Hash, r.Seal = d, sealDigest(d)
	}
	info, err := c.g.o.Store.Copy(ctx, r)
	if err != nil {
		return c.sourceError(err)
	}
	return c.answerXML(s3.CopyObjectResult{
		ETag: info.ETag, Modified: info.Modified,
		Checksums: toS3(info.Checksums), ChecksumType: checksumType(info.Checksums),
	})
}

// checkCopySize refuses what one request may not copy. The size may change until the copy; then the
// store copies what it finds.
func (c *call) checkCopySize(ctx context.Context, src s3.CopySource) error {
	info, err := c.g.o.Store.Stat(ctx, store.OpenRequest{Bucket: src.Bucket, Key: src.Key})
	if err != nil {
		return c.sourceError(err)
	}
	if info.Size > maxPutBytes {
		return s3.New(s3.InvalidRequest, "One request copies at most 5 GiB.")
	}
	return nil
}

// sourceError makes conditions on the source fail as S3 does: never with 304.
func (c *call) sourceError(err error) error {
	if e := answerOf(err); e.Status == http.StatusNotModified {
		return s3.New(s3.PreconditionFailed, "").Wrap(err)
	}
	return err
}

func sealDigest(d *s3.Digester) store.Seal {
	return func(_ context.Context, p store.Payload) (store.Digest, error) {
		sums, err := d.Finish(s3.Final{CRC64NVME: p.CRC64NVME})
		if err != nil {
			return store.Digest{}, err
		}
		return store.Digest{ETag: hex.EncodeToString(sums.MD5), Checksums: toStore(sums.Checksums)}, nil
	}
}

func (c *call) uploadPartCopy() error {
	number, err := s3.ParsePartNumber(c.query.Get("partNumber"))
	if err != nil {
		return err
	}
	src, err := c.copySource()
	if err != nil {
		return err
	}
	off, n, err := s3.ParseCopyRange(c.r.Header.Get("X-Amz-Copy-Source-Range"))
	if err != nil {
		return err
	}
	if n > maxPutBytes {
		return s3.New(s3.InvalidRequest, "One request copies at most 5 GiB.")
	}
	ctx := c.r.Context()
	if n < 0 {
		if err := c.checkCopySize(ctx, src); err != nil {
			return err
		}
	}
	r := store.CopyPartRequest{
		SourceBucket: src.Bucket, SourceKey: src.Key, SourceIf: store.Conditions(s3.ParseCopyConditions(c.r.Header)),
		Off: off, Len: n, Bucket: c.target.Bucket, Key: c.target.Key, UploadID: c.query.Get("uploadId"), Number: number,
	}
	upload, err := c.g.o.Store.Upload(ctx, r.Bucket, r.Key, r.UploadID)
	if err != nil {
		return err
	}
	algorithm, err := s3.ParseAlgorithm(upload.ChecksumAlgorithm)
	if err != nil {
		return err
	}
	if algorithm != s3.NoAlgorithm {
		d := s3.NewDigester(s3.Declared{}, s3.DigestOptions{MD5: true, Also: algorithm, ExternalCRC64NVME: true})
		r.Hash, r.Seal = d, sealDigest(d)
	}
	part, err := c.g.o.Store.CopyPart(ctx, r)
	if err != nil {
		return c.sourceError(err)
	}
	return c.answerXML(s3.CopyPartResult{ETag: part.ETag, Modified: part.Modified, Checksums: toS3(part.Checksums)})
}
