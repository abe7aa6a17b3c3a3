package store

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"math"

	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// CreateUpload starts a multipart upload.
func (s *Store) CreateUpload(ctx context.Context, r UploadRequest) (UploadInfo, error) {
	record, err := recordOfMeta(r.Meta)
	if err != nil {
		return UploadInfo{}, err
	}
	if len(r.Key) == 0 || len(r.Key) > MaxKeyBytes {
		return UploadInfo{}, fmt.Errorf("key of %d bytes: %w", len(r.Key), ErrTooLarge)
	}
	now := s.o.Now()
	id := meta.NewUploadID(now.UnixMilli())
	u := &metapb.Upload{
		InitiatedNs: now.UnixNano(), Owner: r.Owner, Meta: record,
		ChecksumAlgorithm: r.ChecksumAlgorithm, ChecksumType: r.ChecksumType,
	}
	_, err = s.commit(ctx, func(tx kv.Tx) error {
		b, err := findBucket(ctx, tx, r.Bucket)
		if err != nil {
			return err
		}
		return meta.PutUpload(tx, b.Id, r.Key, id, u)
	})
	if err != nil {
		return UploadInfo{}, err
	}
	return uploadInfo(r.Bucket, r.Key, id, u), nil
}

// openUpload is an upload as a request names it.
type openUpload struct {
	bucket, key string
	bucketID    uint64
	id          meta.ID
	record      *metapb.Upload
}

// findUpload reads an open upload at one state.
func findUpload(ctx context.Context, r kv.Reader, bucket, key, id string) (openUpload, error) {
	u := openUpload{bucket: bucket, key: key}
	b, err := findBucket(ctx, r, bucket)
	if err != nil {
		return u, err
	}
	u.bucketID = b.Id
	ok := false
	if u.id, ok = meta.ParseID(id); !ok || len(key) > MaxKeyBytes {
		return u, fmt.Errorf("upload id is malformed: %w", ErrNoSuchUpload)
	}
	u.record, err = meta.GetUpload(ctx, r, b.Id, key, u.id)
	if errors.Is(err, kv.ErrNotFound) {
		err = fmt.Errorf("upload %s: %w", id, ErrNoSuchUpload)
	}
	return u, err
}

// lock takes the upload for a transaction: shared for a part, exclusive for its end. It rechecks
// that bucket and upload still are what findUpload saw.
func (u openUpload) lock(ctx context.Context, tx kv.Tx, mode kv.LockMode) error {
	if err := tx.Lock(ctx, meta.UploadKey(u.bucketID, u.key, u.id), mode); err != nil {
		return err
	}
	if err := sameBucket(ctx, tx, u.bucket, u.bucketID); err != nil {
		return err
	}
	_, err := meta.GetUpload(ctx, tx, u.bucketID, u.key, u.id)
	if errors.Is(err, kv.ErrNotFound) {
		return fmt.Errorf("upload %s: %w", u.id, ErrNoSuchUpload)
	}
	return err
}

// Upload describes an open upload: before a part is taken, to know which checksums it needs.
func (s *Store) Upload(ctx context.Context, bucket, key, id string) (info UploadInfo, err error) {
	err = s.view(ctx, func(r kv.Reader) error {
		u, err := findUpload(ctx, r, bucket, key, id)
		if err == nil {
			info = uploadInfo(bucket, key, u.id, u.record)
		}
		return err
	})
	return info, err
}

// beginPart checks a part before its payload is taken.
func (s *Store) beginPart(ctx context.Context, bucket, key, id string, number int) (u openUpload, err error) {
	if number < 1 || number > MaxParts {
		return u, fmt.Errorf("part %d of at most %d: %w", number, MaxParts, ErrInvalidPart)
	}
	err = s.view(ctx, func(r kv.Reader) error {
		u, err = findUpload(ctx, r, bucket, key, id)
		return err
	})
	return u, err
}

// PutPart writes one part, replacing the one of the same number.
func (s *Store) PutPart(ctx context.Context, r PartRequest) (PartInfo, error) {
	u, err := s.beginPart(ctx, r.Bucket, r.Key, r.UploadID, r.Number)
	if err != nil {
		return PartInfo{}, err
	}
	w, err := s.writePayload(ctx, r.Source)
	if err != nil {
		return PartInfo{}, err
	}
	digest, err := r.Seal(ctx, Payload{Size: w.size, CRC64NVME: w.crc})
	if err != nil {
		s.discard(ctx, w)
		return PartInfo{}, err
	}
	return s.commitPart(ctx, u, r.Number, w, digest)
}

// CopyPart fills a part from an object.
func (s *Store) CopyPart(ctx context.Context, r CopyPartRequest) (PartInfo, error) {
	u, err := s.beginPart(ctx, r.Bucket, r.Key, r.UploadID, r.Number)
	if err != nil {
		return PartInfo{}, err
	}
	src, err := s.open(ctx, OpenRequest{
		Bucket: r.SourceBucket, Key: r.SourceKey,
		Range: func(_ *ObjectInfo, size int64) (int64, int64, error) {
			if r.Len < 0 {
				return r.Off, size - r.Off, nil
			}
			return r.Off, r.Len, nil
		},
	}, r.SourceIf.checkSource)
	if err != nil {
		return PartInfo{}, err
	}
	defer src.Close()
	c := copied{r.Hash, r.Seal, r.BeforeCommit}
	if r.Seal == nil {
		sum := md5.New()
		c.hash, c.seal = sum, sealMD5(sum, nil)
	}
	w, digest, err := s.copyPayload(ctx, src, c)
	if err != nil {
		return PartInfo{}, err
	}
	return s.commitPart(ctx, u, r.Number, w, digest)
}

// commitPart makes a written payload a part of its upload. The part before it, if there is one,
// becomes garbage.
func (s *Store) commitPart(
	ctx context.Context, u openUpload, number int, w *written, digest Digest,
) (PartInfo, error) {
	part := &metapb.Part{
		Size: w.size, Etag: digest.ETag, Crc64Nvme: w.crc,
		Checksums: recordsOfChecksums(digest.Checksums), Payload: w.record,
	}
	replaced := false
	unknown, err := s.commit(ctx, func(tx kv.Tx) error {
		if err := u.lock(ctx, tx, kv.Shared); err != nil {
			return err
		}
		old, err := meta.GetPart(ctx, tx, u.id, number)
		if replaced = err == nil; replaced {
			err = s.dropPayload(tx, old.Payload)
		} else if errors.Is(err, kv.ErrNotFound) {
			err = nil
		}
		if err != nil {
			return err
		}
		owner := &metapb.Owner{Bucket: u.bucketID, Key: []byte(u.key), Upload: u.id[:]}
		if err := s.putOwner(ctx, tx, w, owner); err != nil {
			return err
		}
		part.ModifiedNs = s.nowNs()
		return meta.PutPart(tx, u.id, number, meta.Part{Part: part, Inline: w.inline})
	})
	if err != nil {
		if !unknown {
			s.discard(ctx, w)
		}
		return PartInfo{}, err
	}
	if replaced {
		s.o.OnGarbage()
	}
	return partInfo(number, 0, part), nil
}

// Abort ends an upload and discards its parts. ErrNoSuchUpload when it is not open.
func (s *Store) Abort(ctx context.Context, bucket, key, id string) error {
	var u openUpload
	err := s.view(ctx, func(r kv.Reader) (err error) {
		u, err = findUpload(ctx, r, bucket, key, id)
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.commit(ctx, func(tx kv.Tx) error {
		if err := u.lock(ctx, tx, kv.Exclusive); err != nil {
			return err
		}
		g := &metapb.Garbage{What: &metapb.Garbage_Upload{Upload: u.id[:]}}
		if err := meta.PutGarbage(tx, s.nowNs(), g); err != nil {
			return err
		}
		return meta.DeleteUpload(tx, u.bucketID, key, u.id)
	})
	if err == nil {
		s.o.OnGarbage()
	}
	return err
}

// ListParts returns one page of an open upload's parts. Offsets are not filled: they depend on which
// parts Complete will list.
func (s *Store) ListParts(ctx context.Context, r PartListRequest) (page PartListPage, err error) {
	limit := clampLimit(r.Limit)
	err = s.view(ctx, func(reader kv.Reader) error {
		u, err := findUpload(ctx, reader, r.Bucket, r.Key, r.UploadID)
		if err != nil {
			return err
		}
		page.Upload = uploadInfo(r.Bucket, r.Key, u.id, u.record)
		n := meta.AllNumbers()
		n.First = min(max(r.After, 0), math.MaxUint16-2) + 1
		return meta.ScanParts(ctx, reader, u.id, n, func(number int, p meta.Part) (kv.Next, error) {
			if len(page.Parts) == limit {
				page.Truncated = limit > 0
				return kv.Next{Stop: true}, nil
			}
			page.Parts = append(page.Parts, partInfo(number, 0, p.Part))
			page.Next = number
			return kv.Next{}, nil
		})
	})
	return page, err
}
