package s3

import (
	"io"
	"time"
)

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
	MaxKeys                                  int
	Truncated                                bool
	EncodeURL                                bool
	Objects                                  []ObjectEntry
	Prefixes                                 []string
}

// LocationResult is LocationConstraint; us-east-1 is answered as empty.
type LocationResult struct{ AWSRegion string }

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

// Marshal returns a message as an XML document with declaration and namespace.
func Marshal(m Message) []byte { return nil }

// DeleteRequest is the body of DeleteObjects.
type DeleteRequest struct {
	Quiet   bool
	Objects []DeleteEntry
}

// DeleteEntry is one object to delete.
type DeleteEntry struct {
	Key, VersionID string
	ETag           string // condition: "" not given
	Size           int64  // condition: < 0 not given
	Modified       time.Time
}

// CompletePart is one part of a CompleteRequest.
type CompletePart struct {
	Number    int
	ETag      string // quotes removed
	Checksums []Checksum
}

// CompleteRequest is the body of CompleteMultipartUpload.
type CompleteRequest struct{ Parts []CompletePart }

// ReadDelete reads a Delete body: 1 to 1000 objects.
func ReadDelete(r io.Reader) (DeleteRequest, error) { return DeleteRequest{}, nil }

// ReadComplete reads a CompleteMultipartUpload body: 1 to 10000 parts, ascending.
func ReadComplete(r io.Reader) (CompleteRequest, error) { return CompleteRequest{}, nil }

// ReadCreateBucket reads a CreateBucketConfiguration body; an empty body gives "".
func ReadCreateBucket(r io.Reader) (awsRegion string, err error) { return "", nil }

// ReadError reads an error answer, for clients. Status is that of the answer.
func ReadError(status int, r io.Reader) *Error { return nil }

// AppendXML appends the error document.
func (e *Error) AppendXML(dst []byte) []byte { return dst }

type xmlWriter struct{}

func (ListBucketsResult) encode(*xmlWriter) {}
func (ListResult) encode(*xmlWriter)        {}
func (ListV2Result) encode(*xmlWriter)      {}
func (LocationResult) encode(*xmlWriter)    {}
func (DeleteResult) encode(*xmlWriter)      {}
func (CopyObjectResult) encode(*xmlWriter)  {}
func (CopyPartResult) encode(*xmlWriter)    {}
func (InitiateResult) encode(*xmlWriter)    {}
func (CompleteResult) encode(*xmlWriter)    {}
func (ListPartsResult) encode(*xmlWriter)   {}
func (ListUploadsResult) encode(*xmlWriter) {}
