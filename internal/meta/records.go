package meta

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// GetBucket returns a bucket by name, or kv.ErrNotFound.
func GetBucket(ctx context.Context, r kv.Reader, name string) (*metapb.Bucket, error) {
	return get[metapb.Bucket](ctx, r, bucketKey(name))
}

// CreateBucket stores a bucket under a new id, which it sets in b.
func CreateBucket(ctx context.Context, tx kv.Tx, name string, b *metapb.Bucket) error {
	id, err := nextNumber(ctx, tx, counterKey("bucket"))
	if err != nil {
		return err
	}
	b.Id = id
	return put(tx, bucketKey(name), b)
}

// DeleteBucket removes the record of a bucket.
func DeleteBucket(tx kv.Tx, name string) error { return tx.Delete(bucketKey(name)) }

// ScanBuckets calls fn for the buckets with names that start with prefix and are > after.
func ScanBuckets(
	ctx context.Context, r kv.Reader, prefix, after string, fn func(string, *metapb.Bucket) (kv.Next, error),
) error {
	from, to := bucketKey(prefix), successor(bucketKey(prefix))
	if after >= prefix {
		from = append(bucketKey(after), 0)
	}
	return r.Scan(ctx, from, to, func(key, value []byte) (kv.Next, error) {
		b, err := decode[metapb.Bucket](value)
		if err != nil {
			return kv.Next{}, err
		}
		return fn(string(key[1:]), b)
	})
}

// Head is the head record of an S3 key and the payload behind it, if that is inline.
type Head struct {
	*metapb.Head
	Inline []byte // not to be changed
}

// GetHead returns the head of an S3 key, or kv.ErrNotFound.
func GetHead(ctx context.Context, r kv.Reader, bucket uint64, key string) (Head, error) {
	value, err := r.Get(ctx, HeadKey(bucket, key))
	if err != nil {
		return Head{}, err
	}
	return DecodeHead(value)
}

// DecodeHead reads the value of a head record; Inline is a view of value.
func DecodeHead(value []byte) (Head, error) {
	record, inline, err := decodeWithPayload[metapb.Head](value)
	if err != nil {
		return Head{}, err
	}
	if record.Current == nil {
		return Head{}, fmt.Errorf("meta: head without a version: %w", ErrCorrupt)
	}
	return Head{record, inline}, nil
}

// PutHead stores the head of an S3 key.
func PutHead(tx kv.Tx, bucket uint64, key string, h Head) error {
	value, err := encodeWithPayload(h.Head, h.Inline)
	if err != nil {
		return err
	}
	return tx.Put(HeadKey(bucket, key), value)
}

// DeleteHead removes the head of an S3 key.
func DeleteHead(tx kv.Tx, bucket uint64, key string) error { return tx.Delete(HeadKey(bucket, key)) }

// PutOwner says that chunks of that owner are referred to.
func PutOwner(tx kv.Tx, owner ID, o *metapb.Owner) error { return put(tx, ownerKey(owner), o) }

// DeleteOwner says that they are not any more.
func DeleteOwner(tx kv.Tx, owner ID) error { return tx.Delete(ownerKey(owner)) }

// OwnerAlive tells whether chunks of that owner are referred to.
func OwnerAlive(ctx context.Context, r kv.Reader, owner ID) (bool, error) {
	return exists(ctx, r, ownerKey(owner))
}

// PutChunkPage stores one page of an owner's chunk list.
func PutChunkPage(tx kv.Tx, owner ID, page uint32, p *metapb.ChunkPage) error {
	return put(tx, chunkPageKey(owner, page), p)
}

// DeleteChunkPage removes one page.
func DeleteChunkPage(tx kv.Tx, owner ID, page uint32) error {
	return tx.Delete(chunkPageKey(owner, page))
}

// GetChunkPage returns one page.
func GetChunkPage(ctx context.Context, r kv.Reader, owner ID, page uint32) (*metapb.ChunkPage, error) {
	return get[metapb.ChunkPage](ctx, r, chunkPageKey(owner, page))
}

// PageOwner is an owner that has chunk pages, and the epoch they were written in.
type PageOwner struct {
	Owner ID
	Epoch uint64
}

// ScanPageOwners calls fn for every owner after `after` that has chunk pages, ascending.
func ScanPageOwners(ctx context.Context, r kv.Reader, after *ID, fn func(PageOwner) (kv.Next, error)) error {
	from, to := family(tagChunkPage)
	if after != nil {
		_, from = idRange(tagChunkPage, *after)
	}
	return r.Scan(ctx, from, to, func(key, value []byte) (kv.Next, error) {
		if len(key) < 17 {
			return kv.Next{}, fmt.Errorf("meta: chunk page key of %d bytes: %w", len(key), ErrCorrupt)
		}
		page, err := decode[metapb.ChunkPage](value)
		if err != nil {
			return kv.Next{}, err
		}
		owner := ID(key[1:17])
		next, err := fn(PageOwner{Owner: owner, Epoch: page.Epoch})
		if next.Seek == nil {
			_, next.Seek = idRange(tagChunkPage, owner)
		}
		return next, err
	})
}

// CountChunkPages counts the pages of an owner, for one whose record is not there to say.
func CountChunkPages(ctx context.Context, r kv.Reader, owner ID) (n uint32, err error) {
	from, to := idRange(tagChunkPage, owner)
	err = r.Scan(ctx, from, to, func(_, _ []byte) (kv.Next, error) {
		n++
		return kv.Next{}, nil
	})
	return n, err
}

// PutUpload stores an open upload.
func PutUpload(tx kv.Tx, bucket uint64, key string, upload ID, u *metapb.Upload) error {
	return put(tx, UploadKey(bucket, key, upload), u)
}

// DeleteUpload removes the record of an upload; its parts stay.
func DeleteUpload(tx kv.Tx, bucket uint64, key string, upload ID) error {
	return tx.Delete(UploadKey(bucket, key, upload))
}

// GetUpload returns an open upload, or kv.ErrNotFound.
func GetUpload(ctx context.Context, r kv.Reader, bucket uint64, key string, upload ID) (*metapb.Upload, error) {
	return get[metapb.Upload](ctx, r, UploadKey(bucket, key, upload))
}

// DecodeUpload reads the value of an upload record.
func DecodeUpload(value []byte) (*metapb.Upload, error) { return decode[metapb.Upload](value) }

// Part is one part's record and the payload behind it, if that is inline.
type Part struct {
	*metapb.Part
	Inline []byte // not to be changed
}

// GetPart returns a part, or kv.ErrNotFound.
func GetPart(ctx context.Context, r kv.Reader, upload ID, number int) (Part, error) {
	value, err := r.Get(ctx, partKey(upload, number))
	if err != nil {
		return Part{}, err
	}
	record, inline, err := decodeWithPayload[metapb.Part](value)
	return Part{record, inline}, err
}

// PutPart stores a part.
func PutPart(tx kv.Tx, upload ID, number int, p Part) error {
	value, err := encodeWithPayload(p.Part, p.Inline)
	if err != nil {
		return err
	}
	return tx.Put(partKey(upload, number), value)
}

// DeletePart removes the record of a part.
func DeletePart(tx kv.Tx, upload ID, number int) error { return tx.Delete(partKey(upload, number)) }

// Numbers is an inclusive range of part numbers.
type Numbers struct{ First, Last int }

// AllNumbers holds every number that a part can have.
func AllNumbers() Numbers { return Numbers{0, math.MaxUint16 - 1} }

// ScanParts calls fn for the parts of an upload that have one of the numbers, ascending. Part.Inline
// is valid only during the call.
func ScanParts(
	ctx context.Context, r kv.Reader, upload ID, n Numbers, fn func(int, Part) (kv.Next, error),
) error {
	return r.Scan(ctx, partKey(upload, n.First), partKey(upload, n.Last+1), func(key, value []byte) (kv.Next, error) {
		if len(key) != 19 {
			return kv.Next{}, fmt.Errorf("meta: part key of %d bytes: %w", len(key), ErrCorrupt)
		}
		record, inline, err := decodeWithPayload[metapb.Part](value)
		if err != nil {
			return kv.Next{}, err
		}
		return fn(int(key[17])<<8|int(key[18]), Part{record, inline})
	})
}

// PutCompleted remembers how an upload ended.
func PutCompleted(tx kv.Tx, upload ID, c *metapb.Completed) error {
	return put(tx, completedKey(upload), c)
}

// GetCompleted returns how an upload ended, or kv.ErrNotFound.
func GetCompleted(ctx context.Context, r kv.Reader, upload ID) (*metapb.Completed, error) {
	return get[metapb.Completed](ctx, r, completedKey(upload))
}

// DeleteCompleted forgets it.
func DeleteCompleted(tx kv.Tx, upload ID) error { return tx.Delete(completedKey(upload)) }

// PutGarbage queues something to be deleted once dueNs (Unix nanoseconds) has passed.
func PutGarbage(tx kv.Tx, dueNs int64, g *metapb.Garbage) error {
	return put(tx, garbageKey(dueNs, NewID()), g)
}

// GarbageEntry is an entry of the queue and its key.
type GarbageEntry struct {
	Key []byte
	*metapb.Garbage
}

// DueGarbage returns up to limit entries that are due at dueNs and lie behind the key `after`, which
// may be nil, oldest first.
func DueGarbage(ctx context.Context, r kv.Reader, dueNs int64, after []byte, limit int) ([]GarbageEntry, error) {
	from := []byte{tagGarbage}
	if after != nil {
		from = append(slices.Clone(after), 0)
	}
	var entries []GarbageEntry
	err := r.Scan(ctx, from, garbageDue(dueNs+1), func(key, value []byte) (kv.Next, error) {
		g, err := decode[metapb.Garbage](value)
		if err != nil {
			return kv.Next{}, err
		}
		entries = append(entries, GarbageEntry{slices.Clone(key), g})
		return kv.Next{Stop: len(entries) == limit}, nil
	})
	return entries, err
}

// DropGarbage removes an entry that was worked off.
func DropGarbage(tx kv.Tx, e GarbageEntry) error { return tx.Delete(e.Key) }
