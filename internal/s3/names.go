package s3

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

const (
	// MaxKeyBytes is the longest key.
	MaxKeyBytes = 1024

	minBucketName = 3
	maxBucketName = 63
)

// reservedPrefixes and reservedSuffixes are names that AWS keeps for itself; SDKs treat some of them
// specially (a bucket "…--x-s3" makes them open a session first).
const (
	reservedPrefixes = "xn-- sthree- amzn-s3-demo-"
	reservedSuffixes = "-s3alias --ol-s3 .mrap --x-s3 --table-s3"
)

// CheckBucketName returns InvalidBucketName unless a bucket may be created with the name.
func CheckBucketName(name string) error {
	bad := New(InvalidBucketName, "").With("BucketName", name)
	if len(name) < minBucketName || len(name) > maxBucketName {
		return bad
	}
	prev := byte('.') // a name starts and ends like a label: with a letter or digit
	onlyNumbers := true
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z':
			onlyNumbers = false
		case '0' <= c && c <= '9':
		case c == '-':
			onlyNumbers = false
			if prev == '.' {
				return bad
			}
		case c == '.':
			if prev == '.' || prev == '-' {
				return bad
			}
		default:
			return bad
		}
		prev = c
	}
	if prev == '.' || prev == '-' || onlyNumbers && strings.Count(name, ".") == 3 {
		return bad
	}
	for p := range strings.SplitSeq(reservedPrefixes, " ") {
		if strings.HasPrefix(name, p) {
			return bad
		}
	}
	for s := range strings.SplitSeq(reservedSuffixes, " ") {
		if strings.HasSuffix(name, s) {
			return bad
		}
	}
	return nil
}

// CheckKey returns KeyTooLong or InvalidArgument unless the key is 1..1024 bytes of UTF-8.
func CheckKey(key string) error {
	switch {
	case key == "":
		return New(InvalidArgument, "The key is empty.")
	case len(key) > MaxKeyBytes:
		return New(KeyTooLong, "")
	case !utf8.ValidString(key):
		return New(InvalidArgument, "The key is not valid UTF-8.")
	}
	return nil
}

// SplitHost returns the bucket of a virtual-host style Host, "" when it is one of the base domains
// itself, an address or anything else. Bases are lower case and without port.
func SplitHost(host string, bases []string) (bucket string) {
	host = hostName(host)
	best := ""
	for _, base := range bases {
		if len(base) <= len(best) || base == "" {
			continue
		}
		if host == base {
			return ""
		}
		if strings.HasSuffix(host, "."+base) {
			best = base
		}
	}
	if best == "" {
		return ""
	}
	return host[:len(host)-len(best)-1]
}

// hostName returns a Host header without its port, in lower case, without a final dot.
func hostName(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// Target is what a request addresses. Both empty: the service. Key empty: the bucket.
type Target struct{ Bucket, Key string }

// ParseTarget reads the raw, still encoded path; hostBucket is what SplitHost returned. The path is
// never cleaned: leading, double and trailing slashes and dots belong to the key.
func ParseTarget(rawPath, hostBucket string) (Target, error) {
	rest, ok := strings.CutPrefix(rawPath, "/")
	if !ok {
		return Target{}, New(InvalidURI, "")
	}
	t := Target{Bucket: hostBucket}
	if hostBucket == "" {
		raw, key, hasKey := strings.Cut(rest, "/")
		if t.Bucket, ok = unescape(raw, false); !ok {
			return Target{}, New(InvalidURI, "")
		}
		if t.Bucket == "" && hasKey || !utf8.ValidString(t.Bucket) {
			return Target{}, New(InvalidBucketName, "")
		}
		rest = key
	}
	if t.Key, ok = unescape(rest, false); !ok || !utf8.ValidString(t.Key) {
		return Target{}, New(InvalidURI, "")
	}
	if len(t.Key) > MaxKeyBytes {
		return Target{}, New(KeyTooLong, "")
	}
	return t, nil
}

// ParseQuery decodes a raw query; unlike net/url it fails on broken escapes and takes ";" as data.
func ParseQuery(raw string) (url.Values, error) {
	q := make(url.Values)
	n := 0
	for item := range strings.SplitSeq(raw, "&") {
		if item == "" {
			continue
		}
		name, value, _ := strings.Cut(item, "=")
		key, ok1 := unescape(name, true)
		val, ok2 := unescape(value, true)
		if n++; !ok1 || !ok2 || n > maxQueryPairs {
			return nil, New(InvalidURI, "The query is not validly encoded or has too many items.")
		}
		q[key] = append(q[key], val)
	}
	return q, nil
}

// CopySource is a parsed x-amz-copy-source.
type CopySource struct{ Bucket, Key, VersionID string }

// ParseCopySource reads x-amz-copy-source: bucket and key joined by "/", percent-encoded as a whole
// or in part, with or without a leading slash, and optionally ?versionId=. A "+" is a space,
// as for S3: some clients encode as for a query, and none that means a plus sends it raw.
func ParseCopySource(header string) (CopySource, error) {
	bad := New(InvalidArgument, "x-amz-copy-source must be bucket/key, percent-encoded.").
		With("ArgumentName", "x-amz-copy-source").With("ArgumentValue", header)
	path := header
	var c CopySource
	if i := strings.LastIndexByte(header, '?'); i >= 0 {
		if id, ok := strings.CutPrefix(header[i+1:], "versionId="); ok {
			if path, c.VersionID, ok = header[:i], "", id != ""; !ok {
				return CopySource{}, bad
			}
			if c.VersionID, ok = unescape(id, false); !ok || !isFieldValue(c.VersionID) {
				return CopySource{}, bad
			}
		}
	}
	path, ok := unescape(path, true)
	if !ok {
		return CopySource{}, bad
	}
	c.Bucket, c.Key, ok = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok || c.Bucket == "" || c.Key == "" || strings.HasPrefix(c.Bucket, "arn:") || !utf8.ValidString(c.Bucket) {
		return CopySource{}, bad
	}
	if err := CheckKey(c.Key); err != nil {
		return CopySource{}, err
	}
	return c, nil
}
