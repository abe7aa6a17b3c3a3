package store

import (
	"context"
	"io"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
)

// BucketInfo describes a bucket.
type BucketInfo struct {
	ID        uint64 // tells it from an earlier or later bucket of the same name; not set by CreateBucket
	Name      string
	Created   time.Time
	Owner     string // principal id
	AWSRegion string
}

// ObjectMeta is what a client sets on an object beside its bytes. Strings are stored as given.
type ObjectMeta struct {
	ContentType, ContentEncoding, ContentDisposition, ContentLanguage, CacheControl, Expires string
	WebsiteRedirect, StorageClass                                                            string

	User map[string]string // x-amz-meta-*, lower-case names without the prefix
	Tags map[string]string // reserved for object tagging
}

// Checksum is one S3 checksum value as it is answered, e.g. {"CRC32C", "yZRlqg=="}. A composite
// multipart value carries its "-N" suffix.
type Checksum struct {
	Algorithm string // S3's name of it, as CRC32C
	Value     string
	Composite bool
}

// ObjectInfo is the state of one version of one object.
type ObjectInfo struct {
	Bucket, Key string
	Size        int64
	ETag        string // without quotes
	Modified    time.Time
	Meta        ObjectMeta
	CRC64NVME   uint64     // of the whole payload; always known
	Checksums   []Checksum // of the whole payload: declared by the client and verified, or asked for
	PartCount   int        // 0 unless made by a multipart upload
	Part        *PartInfo  // the part that OpenRequest.Part selected; nil otherwise
}

// PartInfo is one part of an upload or of a completed object.
type PartInfo struct {
	Number    int // 1..10000
	Offset    int64
	Size      int64
	ETag      string
	Modified  time.Time
	CRC64NVME uint64
	Checksums []Checksum
}

// Conditions are the preconditions of a request, evaluated by rules of RFC 9110 §13 against the
// state in the same transaction that acts on it. Empty means not given.
type Conditions struct {
	IfMatch, IfNoneMatch string // raw header values: "*" or a list of (quoted) ETags
	IfModifiedSince      time.Time
	IfUnmodifiedSince    time.Time
}

// Payload is what is known of the bytes once all were read, before anything is committed.
type Payload struct {
	Size      int64
	CRC64NVME uint64
}

// Digest is what the gateway makes of the payload: the ETag and verified checksums to store.
type Digest struct {
	ETag      string
	Checksums []Checksum
}

// Seal is called once per write, after every payload byte was read and before the commit. The
// gateway verifies declared digests and trailers there and names the ETag. An error (a *s3.Error)
// aborts the write, nothing is stored.
type Seal func(ctx context.Context, p Payload) (Digest, error)

// OpenRequest names an object to read, or a part of it.
type OpenRequest struct {
	Bucket, Key string
	If          Conditions

	// Part selects one part by its number; 0 means the whole object. Of an object that was not made
	// by a multipart upload, part 1 is the whole of it. ErrNoSuchPart for others.
	Part int

	// Range chooses what to read once the size is known: size is that of the selected part, or of
	// the object, and off is relative to its start. nil means all of it. It is called again when the
	// object was replaced while it was being opened. Its error is Open's error. Stat ignores it.
	Range func(info *ObjectInfo, size int64) (off, n int64, err error)
}

// AttributesRequest asks for the state of an object and, when it was made by a multipart upload, for a page
// of its parts.
type AttributesRequest struct {
	Bucket, Key string
	If          Conditions
	After       int // first part number is > this
	Limit       int // 0: no parts
}

// Attributes is an object and a page of its parts at one snapshot.
type Attributes struct {
	Info      ObjectInfo
	Parts     []PartInfo
	Truncated bool
}

// DeleteRequest removes an object. In DeleteMany, Bucket is ignored.
type DeleteRequest struct {
	Bucket, Key string
	If          Conditions
	Only        DeleteOnly
}

// DeleteOnly limits a delete to an object of this size and date; zero fields do not count. Other than
// with Conditions, a key that does not exist is no error: what was to be deleted is gone.
type DeleteOnly struct {
	Size     *int64
	Modified time.Time // compared in whole seconds, as clients see it
}

// ListBucketsRequest asks for one page of buckets in name order.
type ListBucketsRequest struct {
	Owner  string // principal id; "" means everybody's
	Prefix string
	After  string // first name is > this
	Limit  int    // 0 means MaxListLimit
}

// BucketPage is one page of buckets.
type BucketPage struct {
	Buckets   []BucketInfo
	Truncated bool
	Last      string // After of the next page
}

// PutRequest writes an object in one piece.
type PutRequest struct {
	Bucket, Key string
	Meta        ObjectMeta
	If          Conditions
	Source      arena.Source
	Seal        Seal
}

// CopyRequest copies an object's payload and, unless Replace is set, its metadata.
type CopyRequest struct {
	SourceBucket, SourceKey string
	SourceIf                Conditions
	Bucket, Key             string
	If                      Conditions
	Replace                 bool       // take Meta instead of the source's
	Meta                    ObjectMeta // without Replace only StorageClass and WebsiteRedirect: they are never copied

	// Hash, if not nil, is given every payload byte in order before Seal is called; Seal then names
	// the ETag and checksums. Without Seal the store keeps the whole-object checksums of the source, and the
	// ETag of one that was written in one piece; of others it computes an MD5 ETag.
	Hash io.Writer
	Seal Seal

	BeforeCommit func() error // nil: none. Its error ends the copy, nothing is stored
}

// UploadRequest starts a multipart upload.
type UploadRequest struct {
	Bucket, Key       string
	Meta              ObjectMeta
	Owner             string // principal id
	ChecksumAlgorithm string // "" when the client named none
	ChecksumType      string // "", COMPOSITE or FULL_OBJECT
}

// UploadInfo describes an open upload.
type UploadInfo struct {
	ID                string
	Bucket, Key       string
	Owner             string
	Initiated         time.Time
	ChecksumAlgorithm string
	ChecksumType      string
	StorageClass      string
}

// PartRequest writes one part.
type PartRequest struct {
	Bucket, Key, UploadID string
	Number                int
	Source                arena.Source
	Seal                  Seal
}

// CopyPartRequest fills a part from a range of an object.
type CopyPartRequest struct {
	SourceBucket, SourceKey string
	SourceIf                Conditions
	Off, Len                int64 // Len < 0: from Off to the end; ErrRange when outside of the object
	Bucket, Key, UploadID   string
	Number                  int

	Hash         io.Writer // as in CopyRequest
	Seal         Seal      // nil: an MD5 ETag
	BeforeCommit func() error
}

// CompletePart is one entry of a CompleteMultipartUpload body.
type CompletePart struct {
	Number    int
	ETag      string     // quotes allowed
	Checksums []Checksum // as given by the client; compared when not empty
}

// CompleteSeal names the checksums of a completed object: COMPOSITE values are made from the parts' values,
// FULL_OBJECT ones are combined from them; the store knows neither algorithm (package s3 does).
// It runs inside the transaction, possibly several times: it must be quick and without effect, and
// must not keep parts. The ETag is the store's. CRC64NVME of the whole is in p and always stored.
type CompleteSeal func(u UploadInfo, parts []PartInfo, p Payload) ([]Checksum, error)

// CompleteRequest ends an upload. Repeating a request that succeeded answers the same again, for
// CompletedKept.
type CompleteRequest struct {
	Bucket, Key, UploadID string
	Parts                 []CompletePart
	If                    Conditions
	Checksums             []Checksum // of the whole object, as declared; compared with Seal's and CRC64NVME
	ObjectSize            int64      // x-amz-mp-object-size; < 0 when not given
	Seal                  CompleteSeal
}

// ListRequest asks for one page of a listing in key order.
type ListRequest struct {
	Bucket     string
	Prefix     string
	Delimiter  string
	StartAfter string // first key is > this; a common prefix that is ≤ this is not repeated
	Limit      int    // entries and common prefixes together; more than MaxListLimit means that
}

// ListPage is one page at one snapshot.
type ListPage struct {
	Objects   []ObjectInfo // of Meta only StorageClass is filled
	Prefixes  []string
	Truncated bool
	Last      string // StartAfter of the next page
}

// UploadListRequest asks for a page of open uploads, ordered by key and then by upload id.
type UploadListRequest struct {
	Bucket, Prefix, Delimiter string
	KeyMarker, UploadIDMarker string
	Limit                     int
}

// UploadListPage is one page of open uploads.
type UploadListPage struct {
	Uploads                           []UploadInfo
	Prefixes                          []string
	Truncated                         bool
	NextKeyMarker, NextUploadIDMarker string
}

// PartListRequest asks for a page of an upload's parts.
type PartListRequest struct {
	Bucket, Key, UploadID string
	After                 int // first part number is > this
	Limit                 int
}

// PartListPage is one page of an upload's parts.
type PartListPage struct {
	Upload    UploadInfo
	Parts     []PartInfo
	Truncated bool
	Next      int // part-number-marker of the next page
}
