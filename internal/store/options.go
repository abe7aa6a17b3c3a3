package store

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta/kv"
)

// Limits of the store.
const (
	// DefaultInlineBytes is the largest payload that lives in the metadata value: below it a chunk
	// of its own costs a second sync and 8 KiB of framing on a drive.
	DefaultInlineBytes = 16 << 10
	// MaxInlineBytes leaves room for the rest of the record in a value of kv.MaxValueBytes.
	MaxInlineBytes = 32 << 10
	// MaxListLimit is S3's page size.
	MaxListLimit = 1000
	// MaxKeyBytes is S3's limit of a key.
	MaxKeyBytes = 1024
	// MaxParts is S3's limit of parts in an upload.
	MaxParts = 10000
	// MinPartBytes is S3's lower limit of every part but the last.
	MinPartBytes = 5 << 20
	// CompletedKept is how long a repeated CompleteMultipartUpload is answered like the first: SDKs
	// retry for minutes, people for hours.
	CompletedKept = 24 * time.Hour
)

// Options of a Store. The engines stay the caller's and must outlive the Store.
type Options struct {
	KV     kv.Engine
	Chunks chunk.Engine
	Scheme chunk.Scheme // of new chunks

	InlineBytes int          // largest inline payload; 0 means DefaultInlineBytes, < 0 none at all
	ChunkBytes  int64        // largest chunk; 0 means chunk.MaxBytes
	MinPart     int64        // 0 means MinPartBytes; smaller in tests
	Copies      *arena.Share // buffers for copies on the server; without it they are ErrUnavailable
	AWSRegion   string       // of new buckets

	Now       func() time.Time // nil means time.Now
	Log       *slog.Logger     // nil discards
	OnGarbage func()           // called, not under a lock, when garbage was queued; nil: not
}

// Store is the object store. It has no goroutines of its own; all methods are safe for concurrent
// use.
type Store struct {
	options Options
}

// New opens the store and starts a new process epoch (a durable transaction).
func New(ctx context.Context, o Options) (*Store, error) { return nil, errors.ErrUnsupported }

// Epoch is the process epoch that chunks of this Store carry.
func (s *Store) Epoch() uint64 { return 0 }

// CreateBucket makes a bucket for b.Name and b.Owner; Created and AWSRegion are the store's.
// ErrBucketOwned and ErrBucketExists when the name is taken, by the same owner or by another.
func (s *Store) CreateBucket(ctx context.Context, b BucketInfo) (BucketInfo, error) {
	return BucketInfo{}, errors.ErrUnsupported
}

// HeadBucket describes a bucket.
func (s *Store) HeadBucket(ctx context.Context, name string) (BucketInfo, error) {
	return BucketInfo{}, errors.ErrUnsupported
}

// DeleteBucket removes a bucket that has no objects; its open uploads are aborted.
func (s *Store) DeleteBucket(ctx context.Context, name string) error { return errors.ErrUnsupported }

// ListBuckets returns one page of buckets.
func (s *Store) ListBuckets(ctx context.Context, r ListBucketsRequest) (BucketPage, error) {
	return BucketPage{}, errors.ErrUnsupported
}

// Stat describes an object without opening it.
func (s *Store) Stat(ctx context.Context, r OpenRequest) (ObjectInfo, error) {
	return ObjectInfo{}, errors.ErrUnsupported
}

// Open resolves an object at one snapshot and pins what Range chose. Close it.
func (s *Store) Open(ctx context.Context, r OpenRequest) (*Object, error) {
	return nil, errors.ErrUnsupported
}

// Object is one version of an object, opened for reading. One goroutine uses it at a time.
type Object struct {
	Info ObjectInfo
	Size int64 // of the selected part, or of the object
	Off  int64 // start of the opened range within Size
	Len  int64 // length of the opened range
}

// Read delivers the bytes [off, off+n) of the opened range to dst, at positions 0..n, and does not
// call dst.Done. Errors: ErrCorrupt, ErrUnavailable, dst's errors, ctx's error.
func (o *Object) Read(ctx context.Context, off, n int64, dst arena.Sink) error {
	return errors.ErrUnsupported
}

// Inline returns the whole opened range, verified, when it lives in the metadata, so that a small
// answer needs no arena buffer. The bytes must not be changed. false: use Read. ErrCorrupt.
func (o *Object) Inline() ([]byte, bool, error) { return nil, false, errors.ErrUnsupported }

// Close unpins. Closing twice does nothing.
func (o *Object) Close() {}

// Put writes an object. Preconditions are checked before the first byte is taken from r.Source, and
// again in the transaction that commits.
func (s *Store) Put(ctx context.Context, r PutRequest) (ObjectInfo, error) {
	return ObjectInfo{}, errors.ErrUnsupported
}

// Delete removes an object. Deleting what does not exist is no error, unless r.If asks for it.
func (s *Store) Delete(ctx context.Context, r DeleteRequest) error { return errors.ErrUnsupported }

// DeleteMany removes objects of one bucket in transactions of bounded size. The errors are by
// index; an error for the whole (no such bucket) is at every index.
func (s *Store) DeleteMany(ctx context.Context, bucket string, rs []DeleteRequest) []error {
	return []error{errors.ErrUnsupported}
}

// Copy writes a copy of an object; the payload is rewritten.
func (s *Store) Copy(ctx context.Context, r CopyRequest) (ObjectInfo, error) {
	return ObjectInfo{}, errors.ErrUnsupported
}

// List returns one page of objects.
func (s *Store) List(ctx context.Context, r ListRequest) (ListPage, error) {
	return ListPage{}, errors.ErrUnsupported
}

// CreateUpload starts a multipart upload.
func (s *Store) CreateUpload(ctx context.Context, r UploadRequest) (UploadInfo, error) {
	return UploadInfo{}, errors.ErrUnsupported
}

// Upload describes an open upload: before a part is taken, to know which checksums it needs.
func (s *Store) Upload(ctx context.Context, bucket, key, id string) (UploadInfo, error) {
	return UploadInfo{}, errors.ErrUnsupported
}

// PutPart writes one part, replacing the one of the same number.
func (s *Store) PutPart(ctx context.Context, r PartRequest) (PartInfo, error) {
	return PartInfo{}, errors.ErrUnsupported
}

// CopyPart fills a part from an object.
func (s *Store) CopyPart(ctx context.Context, r CopyPartRequest) (PartInfo, error) {
	return PartInfo{}, errors.ErrUnsupported
}

// Complete makes the object of an upload. Parts that r does not list become garbage.
func (s *Store) Complete(ctx context.Context, r CompleteRequest) (ObjectInfo, error) {
	return ObjectInfo{}, errors.ErrUnsupported
}

// Abort ends an upload and discards its parts. ErrNoSuchUpload when it is not open.
func (s *Store) Abort(ctx context.Context, bucket, key, id string) error {
	return errors.ErrUnsupported
}

// ListParts returns one page of an open upload's parts.
func (s *Store) ListParts(ctx context.Context, r PartListRequest) (PartListPage, error) {
	return PartListPage{}, errors.ErrUnsupported
}

// ListUploads returns one page of a bucket's open uploads.
func (s *Store) ListUploads(ctx context.Context, r UploadListRequest) (UploadListPage, error) {
	return UploadListPage{}, errors.ErrUnsupported
}
