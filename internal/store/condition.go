package store

import (
	"fmt"
	"strings"
	"time"

	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// checkRead evaluates the preconditions of a GET or HEAD on an existing version, in the order of
// RFC 9110 §13.2.2. Dates compare in whole seconds, the granularity of HTTP dates.
func (c Conditions) checkRead(v *metapb.Version) error {
	modified := time.Unix(0, v.ModifiedNs).Truncate(time.Second)
	if c.IfMatch != "" {
		if !matchStrong(c.IfMatch, v.Etag) {
			return fmt.Errorf("if-match: %w", ErrPrecondition)
		}
	} else if !c.IfUnmodifiedSince.IsZero() && modified.After(c.IfUnmodifiedSince) {
		return fmt.Errorf("if-unmodified-since: %w", ErrPrecondition)
	}
	if c.IfNoneMatch != "" {
		if matchWeak(c.IfNoneMatch, v.Etag) {
			return fmt.Errorf("if-none-match: %w", ErrNotModified)
		}
	} else if !c.IfModifiedSince.IsZero() && !modified.After(c.IfModifiedSince) {
		return fmt.Errorf("if-modified-since: %w", ErrNotModified)
	}
	return nil
}

// checkSource is checkRead for the source of a copy, where "not modified" fails like the others.
func (c Conditions) checkSource(v *metapb.Version) error {
	if err := c.checkRead(v); err != nil {
		return fmt.Errorf("copy source: %w", ErrPrecondition)
	}
	return nil
}

// checkWrite evaluates the preconditions of a write; v is nil when the key does not exist. If-Match
// on a missing key is S3's 404.
func (c Conditions) checkWrite(v *metapb.Version) error {
	if c.IfMatch != "" {
		if v == nil {
			return fmt.Errorf("if-match: %w", ErrNoSuchKey)
		}
		if !matchStrong(c.IfMatch, v.Etag) {
			return fmt.Errorf("if-match: %w", ErrPrecondition)
		}
	}
	if v == nil {
		return nil
	}
	if c.IfNoneMatch != "" && (matchWeak(c.IfNoneMatch, v.Etag) || !readable(c.IfNoneMatch)) {
		return fmt.Errorf("if-none-match: %w", ErrPrecondition) // unreadable: nothing is overwritten on a guess
	}
	if c.IfMatch == "" && !c.IfUnmodifiedSince.IsZero() &&
		time.Unix(0, v.ModifiedNs).Truncate(time.Second).After(c.IfUnmodifiedSince) {
		return fmt.Errorf("if-unmodified-since: %w", ErrPrecondition)
	}
	return nil
}

// check evaluates the limits of a delete; v is nil when the key does not exist.
func (o DeleteOnly) check(v *metapb.Version) error {
	switch {
	case v == nil:
		return nil
	case o.Size != nil && *o.Size != v.Size:
		return fmt.Errorf("size %d: %w", v.Size, ErrPrecondition)
	case !o.Modified.IsZero() && time.Unix(0, v.ModifiedNs).Unix() != o.Modified.Unix():
		return fmt.Errorf("modification time: %w", ErrPrecondition)
	}
	return nil
}

// isConditional tells whether anything is asked for.
func (c Conditions) isConditional() bool {
	return c.IfMatch != "" || c.IfNoneMatch != "" || !c.IfModifiedSince.IsZero() || !c.IfUnmodifiedSince.IsZero()
}

// matchStrong is the comparison of If-Match: a weak tag matches nothing.
func matchStrong(header, etag string) bool {
	matched, _ := matchList(header, func(tag string, weak bool) bool { return !weak && tag == etag })
	return matched
}

// matchWeak is the comparison of If-None-Match.
func matchWeak(header, etag string) bool {
	matched, _ := matchList(header, func(tag string, _ bool) bool { return tag == etag })
	return matched
}

// readable says whether a header is "*" or a list of ETags.
func readable(header string) bool {
	_, ok := matchList(header, func(string, bool) bool { return false })
	return ok
}

// matchList looks for a tag that match accepts in a header value: "*", which matches everything, or a list. ok is
// false when the list cannot be read; then nothing matches. Tags without quotes, which some clients
// send, go up to the next comma and hold no quote.
func matchList(header string, match func(tag string, weak bool) bool) (matched, ok bool) {
	rest := strings.TrimSpace(header)
	if rest == "*" {
		return true, true
	}
	for {
		if rest = strings.TrimLeft(rest, " \t,"); rest == "" { // RFC 9110 §5.6.1: empty elements are ignored
			return matched, true
		}
		tail, weak := strings.CutPrefix(rest, "W/")
		tag, after, ok := cutTag(tail)
		if !ok {
			return false, false
		}
		matched = matched || match(tag, weak)
		rest = after
	}
}

// cutTag takes one tag from the start of a list. What follows it begins with a comma, or is empty.
func cutTag(list string) (tag, rest string, ok bool) {
	quoted, isQuoted := strings.CutPrefix(list, `"`)
	if !isQuoted {
		i := strings.IndexByte(list, ',')
		if i < 0 {
			i = len(list)
		}
		tag = strings.TrimSpace(list[:i])
		return tag, list[i:], tag != "" && !strings.ContainsAny(tag, "\"*")
	}
	if tag, rest, ok = strings.Cut(quoted, `"`); !ok {
		return "", "", false
	}
	rest = strings.TrimLeft(rest, " \t")
	return tag, rest, rest == "" || rest[0] == ','
}

// unquote strips the quotes of one ETag.
func unquote(etag string) string {
	etag = strings.TrimSpace(etag)
	if len(etag) >= 2 && etag[0] == '"' && etag[len(etag)-1] == '"' {
		return etag[1 : len(etag)-1]
	}
	return etag
}
