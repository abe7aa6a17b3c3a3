package s3

import (
	"net/http"
	"strings"
	"time"
)

// Conditions are the preconditions of a request. Empty means not given; a date that is not valid
// counts as not given, as RFC 9110 says.
type Conditions struct {
	IfMatch, IfNoneMatch               string // raw: "*" or a list of ETags
	IfModifiedSince, IfUnmodifiedSince time.Time
}

// ParseConditions reads If-Match, If-None-Match, If-Modified-Since and If-Unmodified-Since.
func ParseConditions(h http.Header) Conditions { return parseConditions(h, "") }

// ParseCopyConditions reads x-amz-copy-source-if-*. A copy answers PreconditionFailed where a read
// would answer that nothing was modified.
func ParseCopyConditions(h http.Header) Conditions { return parseConditions(h, "X-Amz-Copy-Source-") }

func parseConditions(h http.Header, prefix string) Conditions {
	date := func(name string) time.Time {
		t, err := http.ParseTime(h.Get(prefix + name))
		if err != nil {
			return time.Time{}
		}
		return t.UTC()
	}
	return Conditions{
		IfMatch:           strings.Join(h[prefix+"If-Match"], ","),
		IfNoneMatch:       strings.Join(h[prefix+"If-None-Match"], ","),
		IfModifiedSince:   date("If-Modified-Since"),
		IfUnmodifiedSince: date("If-Unmodified-Since"),
	}
}

// State is the present state of an object for If-Range. Its conditions are evaluated by the store, in
// the transaction that they guard.
type State struct {
	Exists   bool
	ETag     string // without quotes
	Modified time.Time
}

// IfRangeHolds says whether a Range is to be honoured under an If-Range header (RFC 9110 §13.1.5).
// "" holds; otherwise the strong ETag must be equal, or the date the exact time of modification.
func IfRangeHolds(header string, s State) bool {
	header = strings.TrimSpace(header)
	if header == "" {
		return true
	}
	if t, err := http.ParseTime(header); err == nil {
		return s.Exists && s.Modified.Truncate(time.Second).Equal(t)
	}
	return s.Exists && !strings.HasPrefix(header, "W/") && TrimETag(header) == s.ETag
}
