package s3

import "time"

// Namespace is the XML namespace of S3 answers.
const Namespace = "http://s3.amazonaws.com/doc/2006-03-01/"

// Message is an XML answer.
type Message interface{ encode(x *xmlWriter) }

// Owner is the owner of a bucket or object.
type Owner struct{ ID, DisplayName string }

// BucketEntry is one bucket of a ListBucketsResult.
type BucketEntry struct {
	Name      string
	Created   time.Time
	AWSRegion string // "": not answered
}

// ListBucketsResult is ListAllMyBucketsResult.
type ListBucketsResult struct {
	Owner             Owner
	Buckets           []BucketEntry
	Prefix            string
	ContinuationToken string // of the next page; "" at the end
}

// ObjectEntry is one object of a listing.
type ObjectEntry struct {
	Key          string
	Modified     time.Time
	ETag         string // without quotes
	Size         int64
	StorageClass string // "": STANDARD
	Algorithms   []string
	ChecksumType string
	Owner        *Owner // nil: not answered
}

// ListResult is ListBucketResult of version 1.
type ListResult struct {
	Bucket, Prefix, Marker, Delimiter string
	NextMarker                        string // answered only when not empty
	MaxKeys                           int
	Truncated                         bool
	EncodeURL                         bool // encoding-type=url
	Objects                           []ObjectEntry
	Prefixes                          []string
}

// ListV2Result is ListBucketResult of version 2.
type ListV2Result struct {
	Bucket, Prefix, StartAfter, Delimiter    string
	ContinuationToken, NextContinuationToken string
	Continued                                bool // the request had a token, which may be empty
	MaxKeys                                  int
	Truncated                                bool
	EncodeURL                                bool
	Objects                                  []ObjectEntry
	Prefixes                                 []string
}

// ListVersionsResult is ListVersionsResult of a bucket that never had versions: each object is the only
// and latest version of its key, with the id "null".
type ListVersionsResult struct {
	Bucket, Prefix, KeyMarker, VersionIDMarker, Delimiter string
	NextKeyMarker                                         string // last key or common prefix of a truncated page
	NextVersionIDMarker                                   string // "": NextKeyMarker is a common prefix
	MaxKeys                                               int
	Truncated                                             bool
	EncodeURL                                             bool
	Objects                                               []ObjectEntry
	Prefixes                                              []string
}

// NullVersion is the version id of an object that was stored without versioning.
const NullVersion = "null"

// LocationResult is LocationConstraint; us-east-1 is answered as empty.
type LocationResult struct{ AWSRegion string }

// ACLResult is AccessControlPolicy of what only its owner may use.
type ACLResult struct{ Owner Owner }

// Deleted is one success of a DeleteResult.
type Deleted struct{ Key, VersionID string }

// DeleteFailure is one failure of a DeleteResult.
type DeleteFailure struct {
	Key, VersionID string
	Code           Code
	Message        string
}

// DeleteResult answers DeleteObjects. With Quiet, only failures are answered.
type DeleteResult struct {
	Quiet   bool
	Deleted []Deleted
	Failed  []DeleteFailure
}

// CopyObjectResult answers CopyObject.
type CopyObjectResult struct {
	ETag         string
	Modified     time.Time
	Checksums    []Checksum
	ChecksumType ChecksumType
}

// CopyPartResult answers UploadPartCopy.
type CopyPartResult struct {
	ETag      string
	Modified  time.Time
	Checksums []Checksum
}

// InitiateResult is InitiateMultipartUploadResult.
type InitiateResult struct{ Bucket, Key, UploadID string }

// CompleteResult is CompleteMultipartUploadResult.
type CompleteResult struct {
	Location, Bucket, Key, ETag string
	Checksums                   []Checksum
	ChecksumType                ChecksumType
}

// PartEntry is one part of a ListPartsResult.
type PartEntry struct {
	Number    int
	Modified  time.Time
	ETag      string
	Size      int64
	Checksums []Checksum
}

// ListPartsResult answers ListParts.
type ListPartsResult struct {
	Bucket, Key, UploadID            string
	Initiator, Owner                 Owner
	StorageClass                     string
	PartNumberMarker, NextPartNumber int
	MaxParts                         int
	Truncated                        bool
	EncodeURL                        bool
	ChecksumAlgorithm                string
	ChecksumType                     string
	Parts                            []PartEntry
}

// ObjectParts is the element of that name in an AttributesResult.
type ObjectParts struct {
	Total                            int // of the object
	PartNumberMarker, NextPartNumber int
	MaxParts                         int
	Truncated                        bool
	Parts                            []PartEntry // Number, Size and Checksums
}

// AttributesResult answers GetObjectAttributes. What is nil or "" was not asked for, or does not exist.
type AttributesResult struct {
	ETag         string
	Checksums    []Checksum // a composite is answered without its "-N", as S3 does here
	ChecksumType ChecksumType
	Parts        *ObjectParts
	StorageClass string
	Size         *int64
}

// UploadEntry is one upload of a ListUploadsResult.
type UploadEntry struct {
	Key, UploadID     string
	Initiator, Owner  Owner
	StorageClass      string
	Initiated         time.Time
	ChecksumAlgorithm string
	ChecksumType      string
}

// ListUploadsResult is ListMultipartUploadsResult.
type ListUploadsResult struct {
	Bucket, KeyMarker, UploadIDMarker string
	NextKeyMarker, NextUploadIDMarker string
	Prefix, Delimiter                 string
	MaxUploads                        int
	Truncated                         bool
	EncodeURL                         bool
	Uploads                           []UploadEntry
	Prefixes                          []string
}
