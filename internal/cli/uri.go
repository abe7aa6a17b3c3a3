package cli

import (
	"strings"

	"github.com/penstock-store/penstock/client"
)

const scheme = "s3://"

func isURI(s string) bool { return strings.HasPrefix(s, scheme) }

// parseURI reads s3://bucket or s3://bucket/key. Nothing in the key is special or escaped.
func parseURI(s string) (client.ObjectName, error) {
	rest, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return client.ObjectName{}, usagef("%q is not s3://bucket[/key]", s)
	}
	bucket, key, _ := strings.Cut(rest, "/")
	if bucket == "" {
		return client.ObjectName{}, usagef("%q names no bucket", s)
	}
	return client.ObjectName{Bucket: bucket, Key: key}, nil
}

// parseObject is parseURI with a key.
func parseObject(s string) (client.ObjectName, error) {
	n, err := parseURI(s)
	if err == nil && n.Key == "" {
		err = usagef("%q names no object", s)
	}
	return n, err
}

// parseBucket is parseURI without a key. A bare name is taken too.
func parseBucket(s string) (string, error) {
	if !isURI(s) {
		s = scheme + s
	}
	n, err := parseURI(s)
	if err == nil && n.Key != "" {
		err = usagef("%q is an object, not a bucket", s)
	}
	return n.Bucket, err
}

func uriOf(n client.ObjectName) string { return scheme + n.Bucket + "/" + n.Key }

// folder makes a key prefix that stands for a folder: empty, or ending in a slash.
func folder(prefix string) string {
	if prefix == "" || strings.HasSuffix(prefix, "/") {
		return prefix
	}
	return prefix + "/"
}
