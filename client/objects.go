package client

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// ObjectInfo is what headers say of an object.
type ObjectInfo struct {
	Bytes        int64  // length of the whole object; -1 when the answer does not say
	ETag         string // with its quotes removed
	LastModified time.Time
	ContentType  string
	Metadata     map[string]string // x-amz-meta-*, names in lower case without the prefix
	Checksum     string            // CRC64NVME of the whole object, base64; empty when unknown
}

func objectInfo(h http.Header) ObjectInfo {
	info := ObjectInfo{
		Bytes:       -1,
		ETag:        unquote(h.Get("Etag")),
		ContentType: h.Get("Content-Type"),
		Metadata:    map[string]string{},
	}
	if t, err := http.ParseTime(h.Get("Last-Modified")); err == nil {
		info.LastModified = t
	}
	if t := h.Get(headerCRCType); t == "" || t == "FULL_OBJECT" {
		info.Checksum = h.Get(headerCRC)
	}
	for name, values := range h {
		if rest, ok := strings.CutPrefix(strings.ToLower(name), "x-amz-meta-"); ok {
			info.Metadata[rest] = strings.Join(values, ",")
		}
	}
	return info
}

func unquote(etag string) string { return strings.Trim(strings.TrimPrefix(etag, "W/"), `"`) }

func quote(etag string) string {
	if etag == "*" || strings.HasPrefix(etag, `"`) {
		return etag
	}
	return `"` + etag + `"`
}

// Conditions of a request; empty fields do not count. ETags may be quoted or not.
type Conditions struct {
	IfMatch     string
	IfNoneMatch string // "*": the object must not exist
}

func (c Conditions) set(h http.Header) {
	if c.IfMatch != "" {
		h.Set("If-Match", quote(c.IfMatch))
	}
	if c.IfNoneMatch != "" {
		h.Set("If-None-Match", quote(c.IfNoneMatch))
	}
}

func (c Conditions) empty() bool { return c == Conditions{} }

// Head returns what is known of an object. Errors: *Error (ErrNotFound …).
func (c *Client) Head(ctx context.Context, bucket, key string) (ObjectInfo, error) {
	if err := checkNames(bucket, key, true); err != nil {
		return ObjectInfo{}, err
	}
	h := http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}
	resp, err := c.request(ctx, &call{method: http.MethodHead, bucket: bucket, key: key, header: h})
	if err != nil {
		return ObjectInfo{}, fmt.Errorf("client: head %s/%s: %w", bucket, key, err)
	}
	resp.Body.Close()
	info := objectInfo(resp.Header)
	info.Bytes = resp.ContentLength
	return info, nil
}

// Delete removes an object. A missing one is no error, as in S3.
func (c *Client) Delete(ctx context.Context, bucket, key string) error {
	if err := checkNames(bucket, key, true); err != nil {
		return err
	}
	if err := c.plain(ctx, &call{method: http.MethodDelete, bucket: bucket, key: key}); err != nil {
		return fmt.Errorf("client: delete %s/%s: %w", bucket, key, err)
	}
	return nil
}

// plain sends a call whose answer has no content of interest.
func (c *Client) plain(ctx context.Context, k *call) error {
	resp, err := c.request(ctx, k)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody)) // keeps the connection usable
	resp.Body.Close()
	return err
}

// maxDelete is S3's limit of keys in one DeleteObjects request.
const maxDelete = 1000

// DeleteFailure is one key that DeleteMany could not remove.
type DeleteFailure struct {
	Key, Code, Message string
}

type deleteXML struct {
	XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ Delete"`
	Quiet   bool
	Object  []deleteKeyXML
}

type deleteKeyXML struct{ Key string }

// inXML tells whether XML 1.0 can carry the key: most control characters have no form in it, not even
// an escaped one.
func inXML(key string) bool {
	return utf8.ValidString(key) && !strings.ContainsFunc(key, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF
	})
}

// DeleteMany removes the keys, 1,000 per request; a key that XML cannot carry gets a request of its
// own. It returns the keys that the server refused; the error is of a request as a whole.
func (c *Client) DeleteMany(ctx context.Context, bucket string, keys []string) ([]DeleteFailure, error) {
	if err := checkNames(bucket, "", false); err != nil {
		return nil, err
	}
	var failures []DeleteFailure
	var alone []string
	keys = slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		if inXML(key) {
			return false
		}
		alone = append(alone, key)
		return true
	})
	for _, key := range alone {
		var refused *Error
		err := c.Delete(ctx, bucket, key)
		if errors.As(err, &refused) {
			failures = append(failures, DeleteFailure{key, refused.Code, refused.Message})
		} else if err != nil {
			return failures, err
		}
	}
	for len(keys) > 0 {
		page := keys[:min(len(keys), maxDelete)]
		keys = keys[len(page):]
		body := deleteXML{Quiet: true}
		for _, key := range page {
			body.Object = append(body.Object, deleteKeyXML{key})
		}
		doc, err := xml.Marshal(body)
		if err != nil {
			return failures, fmt.Errorf("client: delete from %s: %w", bucket, err)
		}
		sum := md5.Sum(doc) // every server takes it; the newer checksums not all
		var out struct {
			Error []DeleteFailure
		}
		_, err = c.document(ctx, &call{
			method: http.MethodPost, bucket: bucket, query: url.Values{"delete": {""}}, body: doc,
			header: http.Header{
				"Content-Md5":  {base64.StdEncoding.EncodeToString(sum[:])},
				"Content-Type": {"application/xml"},
			},
		}, &out)
		if err != nil {
			return failures, fmt.Errorf("client: delete from %s: %w", bucket, err)
		}
		failures = append(failures, out.Error...)
	}
	return failures, nil
}

// CopyObject copies inside the store. A copy onto itself without new metadata is refused by S3.
// Errors: *Error.
func (c *Client) CopyObject(ctx context.Context, from, to ObjectName) (ObjectInfo, error) {
	if err := checkNames(from.Bucket, from.Key, true); err != nil {
		return ObjectInfo{}, err
	}
	if err := checkNames(to.Bucket, to.Key, true); err != nil {
		return ObjectInfo{}, err
	}
	var out struct {
		ETag              string
		LastModified      time.Time
		ChecksumCRC64NVME string
	}
	source := escape(from.Bucket, false) + "/" + escape(from.Key, true)
	_, err := c.document(ctx, &call{
		method: http.MethodPut, bucket: to.Bucket, key: to.Key,
		header: http.Header{"X-Amz-Copy-Source": {source}},
	}, &out)
	if err != nil {
		return ObjectInfo{}, fmt.Errorf("client: copy %s/%s to %s/%s: %w",
			from.Bucket, from.Key, to.Bucket, to.Key, err)
	}
	return ObjectInfo{
		Bytes: -1, ETag: unquote(out.ETag), LastModified: out.LastModified, Checksum: out.ChecksumCRC64NVME,
	}, nil
}

// ObjectName is a bucket and a key.
type ObjectName struct{ Bucket, Key string }

// CreateBucket creates a bucket. Errors: *Error (BucketAlreadyOwnedByYou …).
func (c *Client) CreateBucket(ctx context.Context, bucket string) error {
	return c.bucketCall(ctx, http.MethodPut, bucket)
}

// DeleteBucket removes an empty bucket. Errors: *Error (BucketNotEmpty …).
func (c *Client) DeleteBucket(ctx context.Context, bucket string) error {
	return c.bucketCall(ctx, http.MethodDelete, bucket)
}

// HeadBucket tells whether the bucket exists and may be used: nil, or an *Error.
func (c *Client) HeadBucket(ctx context.Context, bucket string) error {
	return c.bucketCall(ctx, http.MethodHead, bucket)
}

func (c *Client) bucketCall(ctx context.Context, method, bucket string) error {
	if err := checkNames(bucket, "", false); err != nil {
		return err
	}
	if err := c.plain(ctx, &call{method: method, bucket: bucket}); err != nil {
		return fmt.Errorf("client: bucket %s %s: %w", strings.ToLower(method), bucket, err)
	}
	return nil
}
