package store

import (
	"context"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

func timeOf(ns int64) time.Time { return time.Unix(0, ns).UTC() }

func bucketInfo(name string, b *metapb.Bucket) BucketInfo {
	return BucketInfo{ID: b.Id, Name: name, Created: timeOf(b.CreatedNs), Owner: b.Owner, AWSRegion: b.AwsRegion}
}

// recordOfMeta copies m into a record. ErrTooLarge when it is over MaxMetaBytes.
func recordOfMeta(m ObjectMeta) (*metapb.ObjectMeta, error) {
	record := &metapb.ObjectMeta{
		ContentType: m.ContentType, ContentEncoding: m.ContentEncoding,
		ContentDisposition: m.ContentDisposition, ContentLanguage: m.ContentLanguage,
		CacheControl: m.CacheControl, Expires: m.Expires,
		WebsiteRedirect: m.WebsiteRedirect, StorageClass: m.StorageClass,
		User: maps.Clone(m.User), Tags: maps.Clone(m.Tags),
	}
	if n := proto.Size(record); n > MaxMetaBytes {
		return nil, fmt.Errorf("metadata of %d bytes: %w", n, ErrTooLarge)
	}
	return record, nil
}

func metaOfRecord(m *metapb.ObjectMeta) ObjectMeta {
	return ObjectMeta{
		ContentType: m.GetContentType(), ContentEncoding: m.GetContentEncoding(),
		ContentDisposition: m.GetContentDisposition(), ContentLanguage: m.GetContentLanguage(),
		CacheControl: m.GetCacheControl(), Expires: m.GetExpires(),
		WebsiteRedirect: m.GetWebsiteRedirect(), StorageClass: m.GetStorageClass(),
		User: m.GetUser(), Tags: m.GetTags(),
	}
}

func recordsOfChecksums(list []Checksum) []*metapb.Checksum {
	var records []*metapb.Checksum
	for _, c := range list {
		records = append(records, &metapb.Checksum{Algorithm: c.Algorithm, Value: c.Value, Composite: c.Composite})
	}
	return records
}

func checksumsOfRecords(records []*metapb.Checksum) []Checksum {
	var list []Checksum
	for _, c := range records {
		list = append(list, Checksum{c.Algorithm, c.Value, c.Composite})
	}
	return list
}

func objectInfo(bucket, key string, v *metapb.Version) ObjectInfo {
	return ObjectInfo{
		Bucket: bucket, Key: key, Size: v.Size, ETag: v.Etag, Modified: timeOf(v.ModifiedNs),
		Meta: metaOfRecord(v.Meta), CRC64NVME: v.Crc64Nvme, Checksums: checksumsOfRecords(v.Checksums),
		PartCount: int(v.GetManifest().GetParts()),
	}
}

func partInfo(number int, offset int64, p *metapb.Part) PartInfo {
	return PartInfo{
		Number: number, Offset: offset, Size: p.Size, ETag: p.Etag, Modified: timeOf(p.ModifiedNs),
		CRC64NVME: p.Crc64Nvme, Checksums: checksumsOfRecords(p.Checksums),
	}
}

func uploadInfo(bucket, key string, id meta.ID, u *metapb.Upload) UploadInfo {
	return UploadInfo{
		ID: id.String(), Bucket: bucket, Key: key, Owner: u.Owner, Initiated: timeOf(u.InitiatedNs),
		ChecksumAlgorithm: u.ChecksumAlgorithm, ChecksumType: u.ChecksumType,
		StorageClass: u.GetMeta().GetStorageClass(),
	}
}

// RefOf reads a chunk reference out of its record.
func RefOf(c *metapb.Chunk) (chunk.Ref, error) {
	if len(c.Id) != len(chunk.ID{}) || c.Length <= 0 || c.Length > chunk.MaxBytes || c.Data > 255 || c.Parity > 255 {
		return chunk.Ref{}, fmt.Errorf("chunk of %d bytes, id of %d: %w", c.Length, len(c.Id), meta.ErrCorrupt)
	}
	return chunk.Ref{
		ID: chunk.ID(c.Id), Length: c.Length, CRC64NVME: c.Crc64Nvme,
		Scheme: chunk.Scheme{Data: uint8(c.Data), Parity: uint8(c.Parity)},
	}, nil
}

// RecordOf is the inverse of RefOf.
func RecordOf(r chunk.Ref) *metapb.Chunk {
	return &metapb.Chunk{
		Id: r.ID[:], Length: r.Length, Crc64Nvme: r.CRC64NVME,
		Data: uint32(r.Scheme.Data), Parity: uint32(r.Scheme.Parity),
	}
}

// ScanRefs calls fn for every chunk of a payload in order.
func ScanRefs(ctx context.Context, r kv.Reader, p *metapb.Payload, fn func(chunk.Ref) error) error {
	return meta.ScanChunks(ctx, r, p, func(c *metapb.Chunk) error {
		ref, err := RefOf(c)
		if err != nil {
			return err
		}
		return fn(ref)
	})
}
