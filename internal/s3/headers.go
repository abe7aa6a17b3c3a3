package s3

import (
	"net/http"
	"net/url"
	"strings"
)

// MaxUserMetadata is the sum of the bytes of all names (without x-amz-meta-) and values.
const MaxUserMetadata = 2 << 10

// ParseUserMetadata reads x-amz-meta-* (lower-case names without the prefix), at most 2 KB. Values
// are kept as they came, RFC 2047 words and bytes outside ASCII included.
func ParseUserMetadata(h http.Header) (map[string]string, error) {
	var meta map[string]string
	total := 0
	for name, values := range h {
		const prefix = "x-amz-meta-"
		if len(name) < len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) {
			continue
		}
		key, value := strings.ToLower(name[len(prefix):]), strings.Join(values, ",")
		if !isLowerToken(key) || !isFieldValue(value) {
			return nil, New(InvalidArgument, "A user metadata header is not valid.").
				With("ArgumentName", strings.ToLower(name))
		}
		if total += len(key) + len(value); total > MaxUserMetadata {
			return nil, New(MetadataTooLarge, "").With("MaxSizeAllowed", "2048")
		}
		if meta == nil {
			meta = make(map[string]string)
		}
		meta[key] = value
	}
	return meta, nil
}

// ContentHeaders are the system metadata of an object that a client sets.
type ContentHeaders struct {
	ContentType, ContentEncoding, ContentDisposition, ContentLanguage, CacheControl, Expires string
	WebsiteRedirect, StorageClass                                                            string
}

// ParseContentHeaders reads them; aws-chunked is dropped from Content-Encoding, and a storage class
// must be one whose objects can be read at once.
func ParseContentHeaders(h http.Header) (ContentHeaders, error) {
	c := ContentHeaders{
		ContentType:        h.Get("Content-Type"),
		ContentEncoding:    StripAWSChunked(strings.Join(h["Content-Encoding"], ",")),
		ContentDisposition: h.Get("Content-Disposition"),
		ContentLanguage:    strings.Join(h["Content-Language"], ","),
		CacheControl:       strings.Join(h["Cache-Control"], ","),
		Expires:            h.Get("Expires"),
		WebsiteRedirect:    h.Get("X-Amz-Website-Redirect-Location"),
		StorageClass:       h.Get("X-Amz-Storage-Class"),
	}
	for _, v := range []string{c.ContentType, c.ContentEncoding, c.ContentDisposition, c.ContentLanguage,
		c.CacheControl, c.Expires, c.WebsiteRedirect} {
		if !isFieldValue(v) {
			return ContentHeaders{}, New(InvalidArgument, "A content header has a control character.")
		}
	}
	switch c.StorageClass {
	case "", "STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR":
	default:
		return ContentHeaders{}, New(InvalidStorageClass, "").With("StorageClassRequested", c.StorageClass)
	}
	if r := c.WebsiteRedirect; r != "" && !strings.HasPrefix(r, "/") &&
		!strings.HasPrefix(r, "http://") && !strings.HasPrefix(r, "https://") {
		return ContentHeaders{}, New(InvalidArgument,
			"The website redirect location must begin with /, http:// or https://.")
	}
	return c, nil
}

// ResponseOverrides reads response-content-type and its like from a query: canonical header name →
// value.
func ResponseOverrides(q url.Values) (map[string]string, error) {
	var out map[string]string
	for _, name := range []string{"Content-Type", "Content-Encoding", "Content-Disposition", "Content-Language",
		"Cache-Control", "Expires"} {
		values, ok := q["response-"+strings.ToLower(name)]
		if !ok {
			continue
		}
		if len(values) != 1 || !isFieldValue(values[0]) {
			return nil, New(InvalidArgument, "A response header override is not valid.").
				With("ArgumentName", "response-"+strings.ToLower(name))
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[name] = values[0]
	}
	return out, nil
}
