package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// BucketEntry is one bucket.
type BucketEntry struct {
	Name    string
	Created time.Time
}

// ListBuckets returns all buckets of the credentials, page by page. After an error the sequence ends.
func (c *Client) ListBuckets(ctx context.Context) iter.Seq2[BucketEntry, error] {
	return func(yield func(BucketEntry, error) bool) {
		token := ""
		for {
			var page struct {
				Buckets struct {
					Bucket []struct {
						Name         string
						CreationDate time.Time
					}
				}
				ContinuationToken string
			}
			q := url.Values{}
			if token != "" {
				q.Set("continuation-token", token)
			}
			if _, err := c.document(ctx, &call{method: http.MethodGet, query: q}, &page); err != nil {
				yield(BucketEntry{}, fmt.Errorf("client: list buckets: %w", err))
				return
			}
			for _, b := range page.Buckets.Bucket {
				if !yield(BucketEntry{Name: b.Name, Created: b.CreationDate}, nil) {
					return
				}
			}
			if page.ContinuationToken == "" || page.ContinuationToken == token {
				return
			}
			token = page.ContinuationToken
		}
	}
}

// Entry is one object or common prefix of a listing.
type Entry struct {
	Key          string // of a prefix: the prefix with its delimiter
	IsPrefix     bool
	Bytes        int64
	ETag         string // with its quotes removed
	LastModified time.Time
}

// ListOptions select what is listed.
type ListOptions struct {
	Prefix     string
	Delimiter  string // usually "/" or empty
	StartAfter string
	PageKeys   int // keys per request, 1..1000; 0: 1000
}

type listXML struct {
	EncodingType          string
	IsTruncated           bool
	NextContinuationToken string
	Contents              []struct {
		Key          string
		Size         int64
		ETag         string
		LastModified time.Time
	}
	CommonPrefixes []struct{ Prefix string }
}

// List returns the entries of a bucket in key order, page by page; objects and prefixes of one page
// are merged by name. After an error the sequence ends.
func (c *Client) List(ctx context.Context, bucket string, opts ListOptions) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := checkNames(bucket, "", false); err != nil {
			yield(Entry{}, err)
			return
		}
		q := url.Values{"list-type": {"2"}, "encoding-type": {"url"}}
		setQuery(q, "prefix", opts.Prefix)
		setQuery(q, "delimiter", opts.Delimiter)
		setQuery(q, "start-after", opts.StartAfter)
		if opts.PageKeys > 0 {
			q.Set("max-keys", strconv.Itoa(opts.PageKeys))
		}
		for {
			entries, next, err := c.listPage(ctx, bucket, q)
			if err != nil {
				yield(Entry{}, fmt.Errorf("client: list %s: %w", bucket, err))
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			q.Set("continuation-token", next)
			q.Del("start-after")
		}
	}
}

func setQuery(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func (c *Client) listPage(ctx context.Context, bucket string, q url.Values) ([]Entry, string, error) {
	var page listXML
	if _, err := c.document(ctx, &call{method: http.MethodGet, bucket: bucket, query: q}, &page); err != nil {
		return nil, "", err
	}
	decode := func(s string) (string, error) { return s, nil }
	if page.EncodingType == "url" {
		decode = url.QueryUnescape // S3 writes a space as "+" and a plus as "%2B"
	}
	entries := make([]Entry, 0, len(page.Contents)+len(page.CommonPrefixes))
	prefixes := page.CommonPrefixes
	takePrefixes := func(before string, all bool) error {
		for len(prefixes) > 0 {
			p, err := decode(prefixes[0].Prefix)
			if err != nil {
				return err
			}
			if !all && p > before {
				return nil
			}
			entries = append(entries, Entry{Key: p, IsPrefix: true})
			prefixes = prefixes[1:]
		}
		return nil
	}
	for _, o := range page.Contents {
		key, err := decode(o.Key)
		if err == nil {
			err = takePrefixes(key, false)
		}
		if err != nil {
			return nil, "", fmt.Errorf("%w: listing: %w", ErrProtocol, err)
		}
		entries = append(entries, Entry{
			Key: key, Bytes: o.Size, ETag: unquote(o.ETag), LastModified: o.LastModified,
		})
	}
	if err := takePrefixes("", true); err != nil {
		return nil, "", fmt.Errorf("%w: listing: %w", ErrProtocol, err)
	}
	if !page.IsTruncated {
		return entries, "", nil
	}
	if page.NextContinuationToken == "" || page.NextContinuationToken == q.Get("continuation-token") {
		return nil, "", fmt.Errorf("%w: listing is truncated but does not go on", ErrProtocol)
	}
	return entries, page.NextContinuationToken, nil
}
