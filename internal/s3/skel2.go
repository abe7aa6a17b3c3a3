package s3

import (
	"net/http"
	"net/url"
	"time"
)

// Algorithm is a checksum algorithm of S3.
type Algorithm uint8

// The algorithms. NoAlgorithm means that none was named.
const (
	NoAlgorithm Algorithm = iota
	CRC32
	CRC32C
	CRC64NVME
	SHA1
	SHA256
)

// String returns the name as in x-amz-checksum-algorithm, "" for NoAlgorithm.
func (a Algorithm) String() string { return "" }

// Header returns the canonical header name, e.g. X-Amz-Checksum-Crc32c.
func (a Algorithm) Header() string { return "" }

// ParseAlgorithm reads the name of an algorithm, any case. "" gives NoAlgorithm; an unknown name is InvalidRequest.
func ParseAlgorithm(s string) (Algorithm, error) { return 0, nil }

// Checksum is a value of an algorithm: base64, with "-N" when it is a multipart composite.
type Checksum struct {
	Algorithm Algorithm
	Value     string
}

// ChecksumType is how the checksum of a multipart object is made.
type ChecksumType string

// The checksum types.
const (
	Composite  ChecksumType = "COMPOSITE"
	FullObject ChecksumType = "FULL_OBJECT"
)

// Declared is what a request says of the digests of its payload.
type Declared struct {
	ContentMD5 []byte    // 16 bytes; nil: none
	Checksum   Checksum  // from a header; Algorithm is NoAlgorithm when none
	Trailer    Algorithm // value comes in the trailer
	Hint       Algorithm // x-amz-sdk-checksum-algorithm, only a hint
}

// ParseDeclared reads Content-MD5, x-amz-checksum-*, x-amz-trailer and x-amz-sdk-checksum-algorithm.
func ParseDeclared(h http.Header) (Declared, error) { return Declared{}, nil }

// Any says whether any digest is declared.
func (d Declared) Any() bool { return false }

// DigestOptions say what is computed beside what is needed to verify the declaration.
type DigestOptions struct {
	MD5               bool      // for the ETag
	Also              Algorithm // e.g. of the multipart upload
	ExternalCRC64NVME bool      // the caller gives CRC64NVME to Finish; do not compute it here
}

// Final is what is known once all bytes were read.
type Final struct {
	Trailer   http.Header
	CRC64NVME uint64 // with ExternalCRC64NVME
}

// Sums are the digests of a payload.
type Sums struct {
	MD5       []byte     // 16 bytes, nil unless computed
	Checksums []Checksum // declared and verified, or asked for by Also
}

// Digester computes the digests of a payload in one pass and compares them with the declaration.
type Digester struct{}

// NewDigester returns a Digester.
func NewDigester(d Declared, o DigestOptions) *Digester { return nil }

// Write adds bytes; it never fails and does not keep p.
func (d *Digester) Write(p []byte) (int, error) { return len(p), nil }

// Finish verifies all that was declared and returns the digests.
func (d *Digester) Finish(f Final) (Sums, error) { return Sums{}, nil }

// Part is a part for the composition of a checksum.
type Part struct {
	Size  int64
	Value string // base64 of the part's checksum
}

// ComposeChecksum makes the checksum of a multipart object from those of its parts.
func ComposeChecksum(a Algorithm, t ChecksumType, parts []Part) (Checksum, error) {
	return Checksum{}, nil
}

// DefaultChecksumType returns the type of an algorithm when the client names none, and
// ParseChecksumType checks a named one against the algorithm.
func DefaultChecksumType(a Algorithm) ChecksumType { return "" }

// ParseChecksumType reads x-amz-checksum-type for an algorithm.
func ParseChecksumType(s string, a Algorithm) (ChecksumType, error) { return "", nil }

// MultipartETag returns the ETag of a multipart object from the part ETags (32 hex digits, quotes
// and a "-N" suffix allowed), without quotes.
func MultipartETag(partETags []string) (string, error) { return "", nil }

// RangeSpec is a parsed Range header of one range.
type RangeSpec struct {
	First, Last int64 // Last < 0: to the end
	Suffix      int64 // ≥ 0: the last Suffix bytes; First and Last are unused
}

// ParseRange reads a Range header. ok is false when it is absent, not valid or has several ranges:
// then the whole object is answered.
func ParseRange(header string) (RangeSpec, bool) { return RangeSpec{}, false }

// Resolve returns offset and length in an object of a size. partial is false when the answer is 200.
// The error is InvalidRange with a Content-Range header.
func (s RangeSpec) Resolve(size int64) (off, n int64, partial bool, err error) {
	return 0, size, false, nil
}

// ContentRange formats "bytes first-last/size".
func ContentRange(off, n, size int64) string { return "" }

// ParsePartNumber reads a part number, 1..10000.
func ParsePartNumber(s string) (int, error) { return 0, nil }

// Conditions are the preconditions of a request.
type Conditions struct {
	IfMatch, IfNoneMatch               string
	IfModifiedSince, IfUnmodifiedSince time.Time
}

// ParseConditions reads If-Match, If-None-Match, If-Modified-Since and If-Unmodified-Since.
func ParseConditions(h http.Header) Conditions { return Conditions{} }

// ParseCopyConditions reads x-amz-copy-source-if-*.
func ParseCopyConditions(h http.Header) Conditions { return Conditions{} }

// Outcome is what preconditions say.
type Outcome uint8

// The outcomes.
const (
	Proceed Outcome = iota
	AnswerNotModified
	AnswerPreconditionFailed
)

// State is the present state of an object for conditions.
type State struct {
	Exists   bool
	ETag     string // without quotes
	Modified time.Time
}

// Evaluate applies RFC 9110 §13.2.2. read is true for GET and HEAD.
func (c Conditions) Evaluate(s State, read bool) Outcome { return Proceed }

// IfRangeHolds says whether a Range is to be honoured under an If-Range header ("" holds).
func IfRangeHolds(header string, s State) bool { return true }

// CheckBucketName returns InvalidBucketName unless a bucket may be created with the name.
func CheckBucketName(name string) error { return nil }

// CheckKey returns KeyTooLong or InvalidArgument unless the key is 1..1024 bytes of UTF-8.
func CheckKey(key string) error { return nil }

// SplitHost returns the bucket of a virtual-host style Host, given the base domains ("" when path style).
func SplitHost(host string, bases []string) (bucket string) { return "" }

// Target is what a request addresses. Both empty: the service.
type Target struct{ Bucket, Key string }

// ParseTarget reads the raw, still encoded path; hostBucket is what SplitHost returned.
func ParseTarget(rawPath, hostBucket string) (Target, error) { return Target{}, nil }

// ParseQuery decodes a raw query; unlike net/url it fails on bad escapes and takes ';' as data.
func ParseQuery(raw string) (url.Values, error) { return nil, nil }

// CopySource is a parsed x-amz-copy-source.
type CopySource struct{ Bucket, Key, VersionID string }

// ParseCopySource reads x-amz-copy-source.
func ParseCopySource(header string) (CopySource, error) { return CopySource{}, nil }

// ParseCopyRange reads x-amz-copy-source-range ("bytes=a-b", both given); "" is the whole object, n < 0.
func ParseCopyRange(header string) (off, n int64, err error) { return 0, -1, nil }

// ParseTagging reads an x-amz-tagging header.
func ParseTagging(header string) (map[string]string, error) { return nil, nil }

// ParseUserMetadata reads x-amz-meta-* (lower-case names without the prefix), at most 2 KB.
func ParseUserMetadata(h http.Header) (map[string]string, error) { return nil, nil }

// ContentHeaders are the system metadata of an object that a client sets.
type ContentHeaders struct {
	ContentType, ContentEncoding, ContentDisposition, ContentLanguage, CacheControl, Expires string
	WebsiteRedirect, StorageClass                                                            string
}

// ParseContentHeaders reads them; aws-chunked is dropped from Content-Encoding.
func ParseContentHeaders(h http.Header) (ContentHeaders, error) { return ContentHeaders{}, nil }

// ResponseOverrides reads response-content-type and its like from a query: header name → value.
func ResponseOverrides(q url.Values) (map[string]string, error) { return nil, nil }
