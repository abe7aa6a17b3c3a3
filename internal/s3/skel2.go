package s3

import (
	"net/http"
	"net/url"
)

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
