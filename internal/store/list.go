package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
)

func clampLimit(limit int) int { return min(max(limit, 0), MaxListLimit) }

// walk is one ordered pass over a family of keys of a bucket that rolls keys up to common prefixes.
type walk struct {
	family            meta.Prefix
	prefix, delimiter string
	from              []byte // first key to look at; nil: the first with the prefix
	marker            string // common prefixes ≤ this were answered before
	limit             int

	// entry is called for a key that is not rolled up; prefixed for a common prefix.
	entry    func(key string, upload meta.ID, value []byte) error
	prefixed func(common string)

	taken     int
	truncated bool
}

// run walks. Below a common prefix nothing is read: the scan seeks to what follows it.
func (w *walk) run(ctx context.Context, r kv.Reader) error {
	if w.limit == 0 {
		return nil
	}
	from := w.family.First(w.prefix)
	if string(w.from) > string(from) {
		from = w.from
	}
	return r.Scan(ctx, from, w.family.End(w.prefix), func(k, value []byte) (kv.Next, error) {
		key, upload, err := w.family.Key(k)
		if err != nil {
			return kv.Next{}, err
		}
		common, rolled := w.roll(key)
		if rolled && common <= w.marker {
			return kv.Next{Seek: w.family.End(common)}, nil
		}
		if w.taken == w.limit {
			w.truncated = true
			return kv.Next{Stop: true}, nil
		}
		w.taken++
		if rolled {
			w.prefixed(common)
			return kv.Next{Seek: w.family.End(common)}, nil
		}
		return kv.Next{}, w.entry(key, upload, value)
	})
}

// roll returns the common prefix that a key belongs to.
func (w *walk) roll(key string) (string, bool) {
	if w.delimiter == "" {
		return "", false
	}
	i := strings.Index(key[len(w.prefix):], w.delimiter)
	if i < 0 {
		return "", false
	}
	return key[:len(w.prefix)+i+len(w.delimiter)], true
}

// firstEntries is the room that a page begins with: many listings are of a few keys, or of one.
const firstEntries = 16

// roomFor makes room for the whole page in the second step: entries are large, and growing the usual
// way would copy a full page several times.
func roomFor(list []ObjectInfo, limit int) []ObjectInfo {
	if len(list) == 0 {
		return make([]ObjectInfo, 0, min(limit, firstEntries))
	}
	return slices.Grow(list, limit-len(list))
}

// List returns one page of objects.
func (s *Store) List(ctx context.Context, r ListRequest) (page ListPage, err error) {
	err = s.view(ctx, func(reader kv.Reader) error {
		b, err := findBucket(ctx, reader, r.Bucket)
		if err != nil {
			return err
		}
		w := walk{
			family: meta.Heads(b.Id), prefix: r.Prefix, delimiter: r.Delimiter,
			marker: r.StartAfter, limit: clampLimit(r.Limit),
		}
		if r.StartAfter != "" {
			w.from = w.family.After(r.StartAfter)
		}
		w.prefixed = func(common string) {
			page.Prefixes = append(page.Prefixes, common)
			page.Last = common
		}
		w.entry = func(key string, _ meta.ID, value []byte) error {
			e, err := meta.DecodeEntry(value)
			if err != nil {
				return err
			}
			if len(page.Objects) == cap(page.Objects) {
				page.Objects = roomFor(page.Objects, w.limit)
			}
			page.Objects = append(page.Objects, ObjectInfo{
				Bucket: r.Bucket, Key: key, Size: e.Size, ETag: e.ETag, Modified: timeOf(e.ModifiedNs),
				Meta: ObjectMeta{StorageClass: e.StorageClass}, CRC64NVME: e.CRC64NVME,
				Checksums: checksumsOfRecords(e.Checksums), PartCount: int(e.Parts),
			})
			page.Last = key
			return nil
		}
		err = w.run(ctx, reader)
		page.Truncated = w.truncated
		return err
	})
	return page, err
}

// ListUploads returns one page of a bucket's open uploads.
func (s *Store) ListUploads(ctx context.Context, r UploadListRequest) (page UploadListPage, err error) {
	err = s.view(ctx, func(reader kv.Reader) error {
		b, err := findBucket(ctx, reader, r.Bucket)
		if err != nil {
			return err
		}
		w := walk{
			family: meta.Uploads(b.Id), prefix: r.Prefix, delimiter: r.Delimiter,
			marker: r.KeyMarker, limit: clampLimit(r.Limit),
		}
		if w.from, err = uploadStart(w.family, b.Id, r); err != nil {
			return err
		}
		w.prefixed = func(common string) {
			page.Prefixes = append(page.Prefixes, common)
			page.NextKeyMarker, page.NextUploadIDMarker = common, ""
		}
		w.entry = func(key string, id meta.ID, value []byte) error {
			u, err := meta.DecodeUpload(value)
			if err != nil {
				return err
			}
			page.Uploads = append(page.Uploads, uploadInfo(r.Bucket, key, id, u))
			page.NextKeyMarker, page.NextUploadIDMarker = key, id.String()
			return nil
		}
		err = w.run(ctx, reader)
		page.Truncated = w.truncated
		return err
	})
	return page, err
}

// uploadStart is where a page of uploads begins: behind all uploads of the marker's key, or behind one
// of them. Without a key marker the id marker does not count, as in S3.
func uploadStart(family meta.Prefix, bucket uint64, r UploadListRequest) ([]byte, error) {
	switch {
	case r.KeyMarker == "":
		return nil, nil
	case r.UploadIDMarker == "":
		return family.After(r.KeyMarker), nil
	}
	id, ok := meta.ParseID(r.UploadIDMarker)
	if !ok {
		return nil, fmt.Errorf("upload id marker: %w", ErrInvalidMarker)
	}
	return append(meta.UploadKey(bucket, r.KeyMarker, id), 0), nil
}
