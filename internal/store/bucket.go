package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// MaxBucketNameBytes is S3's limit.
const MaxBucketNameBytes = 63

// CreateBucket makes a bucket for b.Name and b.Owner; Created and AWSRegion are the store's.
// ErrBucketOwned and ErrBucketExists when the name is taken, by the same owner or by another.
func (s *Store) CreateBucket(ctx context.Context, b BucketInfo) (BucketInfo, error) {
	if len(b.Name) == 0 || len(b.Name) > MaxBucketNameBytes {
		return BucketInfo{}, fmt.Errorf("bucket name of %d bytes: %w", len(b.Name), ErrTooLarge)
	}
	b.Created, b.AWSRegion = timeOf(s.nowNs()), s.o.AWSRegion
	_, err := s.commit(ctx, func(tx kv.Tx) error {
		old, err := meta.GetBucket(ctx, tx, b.Name)
		switch {
		case err == nil && old.Owner == b.Owner:
			return fmt.Errorf("bucket %q: %w", b.Name, ErrBucketOwned)
		case err == nil:
			return fmt.Errorf("bucket %q: %w", b.Name, ErrBucketExists)
		case !errors.Is(err, kv.ErrNotFound):
			return err
		}
		return meta.CreateBucket(ctx, tx, b.Name, &metapb.Bucket{
			CreatedNs: b.Created.UnixNano(), Owner: b.Owner, AwsRegion: b.AWSRegion,
		})
	})
	if err != nil {
		return BucketInfo{}, err
	}
	return b, nil
}

// HeadBucket describes a bucket.
func (s *Store) HeadBucket(ctx context.Context, name string) (info BucketInfo, err error) {
	err = s.view(ctx, func(r kv.Reader) error {
		b, err := findBucket(ctx, r, name)
		if err == nil {
			info = bucketInfo(name, b)
		}
		return err
	})
	return info, err
}

// pinned is the key of a context's value: the id of the bucket of that name.
type pinned string

// Pin returns a context in which calls find b under its name, or no bucket at all. What was decided
// about a bucket (that its owner is the caller) then cannot be applied to another one, which took the
// name in the meantime. It is part of the context, and not of each request, so that no operation can
// leave it out.
func Pin(ctx context.Context, b BucketInfo) context.Context {
	return context.WithValue(ctx, pinned(b.Name), b.ID)
}

// findBucket reads the record of a bucket, of the pinned one if there is a pin. Everything that acts in
// a bucket goes through it.
func findBucket(ctx context.Context, r kv.Reader, name string) (*metapb.Bucket, error) {
	b, err := meta.GetBucket(ctx, r, name)
	if errors.Is(err, kv.ErrNotFound) {
		return nil, fmt.Errorf("bucket %q: %w", name, ErrNoSuchBucket)
	}
	if err != nil {
		return nil, err
	}
	if id, ok := ctx.Value(pinned(name)).(uint64); ok && b.Id != id {
		return nil, fmt.Errorf("bucket %q was deleted and made again: %w", name, ErrNoSuchBucket)
	}
	return b, nil
}

// sameBucket finds the bucket and checks that it still is the one of that id: a write that began
// before a bucket was deleted must not appear in a new one of the same name.
func sameBucket(ctx context.Context, r kv.Reader, name string, id uint64) error {
	b, err := findBucket(ctx, r, name)
	if err != nil {
		return err
	}
	if b.Id != id {
		return fmt.Errorf("bucket %q was deleted and made again: %w", name, ErrNoSuchBucket)
	}
	return nil
}

// DeleteBucket removes a bucket that has no objects; its open uploads are aborted. A write that has
// not committed yet fails afterwards, since its transaction reads the bucket's record.
func (s *Store) DeleteBucket(ctx context.Context, name string) error {
	_, err := s.commit(ctx, func(tx kv.Tx) error {
		b, err := findBucket(ctx, tx, name)
		if err != nil {
			return err
		}
		if found, err := isAnyIn(ctx, tx, meta.Heads(b.Id)); err != nil {
			return err
		} else if found {
			return fmt.Errorf("bucket %q: %w", name, ErrBucketNotEmpty)
		}
		uploads, err := isAnyIn(ctx, tx, meta.Uploads(b.Id))
		if err != nil {
			return err
		}
		if uploads {
			g := &metapb.Garbage{What: &metapb.Garbage_Bucket{Bucket: b.Id}}
			if err := meta.PutGarbage(tx, s.nowNs(), g); err != nil {
				return err
			}
		}
		return meta.DeleteBucket(tx, name)
	})
	if err == nil {
		s.o.OnGarbage()
	}
	return err
}

func isAnyIn(ctx context.Context, r kv.Reader, p meta.Prefix) (found bool, err error) {
	err = r.Scan(ctx, p.First(""), p.End(""), func(_, _ []byte) (kv.Next, error) {
		found = true
		return kv.Next{Stop: true}, nil
	})
	return found, err
}

// ListBuckets returns one page of buckets.
func (s *Store) ListBuckets(ctx context.Context, r ListBucketsRequest) (page BucketPage, err error) {
	limit := r.Limit
	if limit <= 0 || limit > MaxListLimit {
		limit = MaxListLimit
	}
	err = s.view(ctx, func(reader kv.Reader) error {
		return meta.ScanBuckets(ctx, reader, r.Prefix, r.After, func(name string, b *metapb.Bucket) (kv.Next, error) {
			if r.Owner != "" && b.Owner != r.Owner {
				return kv.Next{}, nil
			}
			if len(page.Buckets) == limit {
				page.Truncated = true
				return kv.Next{Stop: true}, nil
			}
			page.Buckets = append(page.Buckets, bucketInfo(name, b))
			page.Last = name
			return kv.Next{}, nil
		})
	})
	return page, err
}
