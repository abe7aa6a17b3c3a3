package gateway

import (
	"context"
	"encoding/hex"
	"errors"
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
	r, err := c.copyRequest()
	if err != nil {
		return err
	}
	algorithm, err := s3.ParseAlgorithm(c.r.Header.Get("X-Amz-Checksum-Algorithm"))
	if err != nil {
		return err
	}
	if r.SourceBucket == r.Bucket && r.SourceKey == r.Key && !r.Replace && algorithm == s3.NoAlgorithm &&
		r.Meta.StorageClass == "" && r.Meta.WebsiteRedirect == "" {
		return s3.New(s3.InvalidRequest, "An object is copied to itself only with a change: new metadata (REPLACE), "+
			"storage class, website redirect location or checksum.")
	}
	src, err := c.copiedObject(c.r.Context(), r.SourceBucket, r.SourceKey)
	if err != nil {
		return err
	}
	if algorithm == s3.NoAlgorithm && checksumType(src.Checksums) == s3.Composite {
		// The copy is of one piece: it keeps the algorithm and gets a checksum of the whole.
		algorithm, _ = s3.ParseAlgorithm(src.Checksums[0].Algorithm) // stored ones are known
	}
	if algorithm != s3.NoAlgorithm {
		d := s3.NewDigester(s3.Declared{}, s3.DigestOptions{MD5: true, Also: algorithm, ExternalCRC64NVME: true})
		r.Hash, r.Seal = d, sealDigest(d)
	}
	return c.answerLong(func(ctx context.Context) (s3.Message, error) {
		info, err := c.g.o.Store.Copy(ctx, r)
		if err != nil {
			return nil, c.sourceError(err, r.SourceKey)
		}
		return s3.CopyObjectResult{
			ETag: info.ETag, Modified: info.Modified,
			Checksums: wholeChecksums(&info), ChecksumType: typeOf(info.Checksums),
		}, nil
	})
}

// copyRequest reads all headers of CopyObject but the checksum's.
func (c *call) copyRequest() (r store.CopyRequest, err error) {
	src, err := c.copySource()
	if err != nil {
		return r, err
	}
	if r.Replace, err = c.directive("X-Amz-Metadata-Directive"); err != nil {
		return r, err
	}
	if _, err = c.directive("X-Amz-Tagging-Directive"); err != nil {
		return r, err
	}
	if r.Meta, err = c.objectMeta(); err != nil {
		return r, err
	}
	r.SourceBucket, r.SourceKey = src.Bucket, src.Key
	r.SourceIf = store.Conditions(s3.ParseCopyConditions(c.r.Header))
	r.Bucket, r.Key, r.If = c.target.Bucket, c.target.Key, c.writeConditions()
	r.BeforeCommit = c.checkPeer
	return r, nil
}

// copiedObject looks at the source of a copy and refuses what one request may not copy. The size may change
// until the copy; then the store copies what it finds.
func (c *call) copiedObject(ctx context.Context, bucket, key string) (store.ObjectInfo, error) {
	info, err := c.g.o.Store.Stat(ctx, store.OpenRequest{Bucket: bucket, Key: key})
	if err != nil {
		return info, c.sourceError(err, key)
	}
	if info.Size > maxPutBytes {
		return info, s3.New(s3.InvalidRequest, "One request copies at most 5 GiB.")
	}
	return info, nil
}

// sourceError makes conditions on the source fail as S3 does, never with 304, and names a source that is missing.
func (c *call) sourceError(err error, key string) error {
	switch e := answerOf(err); {
	case e.Status == http.StatusNotModified:
		return s3.New(s3.PreconditionFailed, "").Wrap(err)
	case errors.Is(err, store.ErrNoSuchKey):
		return e.With("Key", key)
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
	r, err := c.copyPartRequest()
	if err != nil {
		return err
	}
	ctx := c.r.Context()
	upload, err := c.g.o.Store.Upload(ctx, r.Bucket, r.Key, r.UploadID)
	if err != nil {
		return err
	}
	algorithm, err := s3.ParseAlgorithm(upload.ChecksumAlgorithm)
	if err != nil {
		return err
	}
	src, err := c.copiedObject(ctx, r.SourceBucket, r.SourceKey)
	switch {
	case r.Len >= 0 && s3.IsCode(err, s3.InvalidRequest): // the whole is too large, a range of it need not be
	case err != nil:
		return err
	}
	if r.Off+max(r.Len, 0) > src.Size {
		return s3.Errorf(s3.InvalidArgument, "The range lies outside of the source object of %d bytes.", src.Size)
	}
	if algorithm != s3.NoAlgorithm {
		d := s3.NewDigester(s3.Declared{}, s3.DigestOptions{MD5: true, Also: algorithm, ExternalCRC64NVME: true})
		r.Hash, r.Seal = d, sealDigest(d)
	}
	return c.answerLong(func(ctx context.Context) (s3.Message, error) {
		part, err := c.g.o.Store.CopyPart(ctx, r)
		if err != nil {
			return nil, c.sourceError(err, r.SourceKey)
		}
		return s3.CopyPartResult{ETag: part.ETag, Modified: part.Modified, Checksums: toS3(part.Checksums)}, nil
	})
}

// copyPartRequest reads all headers of UploadPartCopy.
func (c *call) copyPartRequest() (r store.CopyPartRequest, err error) {
	if r.Number, err = s3.ParsePartNumber(c.query.Get("partNumber")); err != nil {
		return r, err
	}
	src, err := c.copySource()
	if err != nil {
		return r, err
	}
	if r.Off, r.Len, err = s3.ParseCopyRange(c.r.Header.Get("X-Amz-Copy-Source-Range")); err != nil {
		return r, err
	}
	if r.Len > maxPutBytes {
		return r, s3.New(s3.InvalidRequest, "One request copies at most 5 GiB.")
	}
	r.SourceBucket, r.SourceKey = src.Bucket, src.Key
	r.SourceIf = store.Conditions(s3.ParseCopyConditions(c.r.Header))
	r.Bucket, r.Key, r.UploadID = c.target.Bucket, c.target.Key, c.query.Get("uploadId")
	r.BeforeCommit = c.checkPeer
	return r, nil
}
