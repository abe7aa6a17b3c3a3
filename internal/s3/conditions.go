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

// Any says whether there is any condition.
func (c Conditions) Any() bool { return c != Conditions{} }

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

// Evaluate applies RFC 9110 §13.2.2. read is true for GET and HEAD. For a missing object If-Match
// gives AnswerPreconditionFailed; S3 answers NoSuchKey instead, which is the caller's to know.
func (c Conditions) Evaluate(s State, read bool) Outcome {
	modified := s.Modified.Truncate(time.Second)
	switch {
	case c.IfMatch != "":
		if !s.Exists || !matchETag(c.IfMatch, s.ETag, false) {
			return AnswerPreconditionFailed
		}
	case !c.IfUnmodifiedSince.IsZero():
		if s.Exists && modified.After(c.IfUnmodifiedSince) {
			return AnswerPreconditionFailed
		}
	}
	switch {
	case c.IfNoneMatch != "":
		if s.Exists && matchETag(c.IfNoneMatch, s.ETag, true) {
			if read {
				return AnswerNotModified
			}
			return AnswerPreconditionFailed
		}
	case read && s.Exists && !c.IfModifiedSince.IsZero():
		if !modified.After(c.IfModifiedSince) {
			return AnswerNotModified
		}
	}
	return Proceed
}

// matchETag looks a tag up in "*" or a list. Our own tags are strong; weak says whether W/"x" in the
// list matches x. Tags without quotes, which many clients send, match too.
func matchETag(list, etag string, weak bool) bool {
	for rest := list; ; {
		rest = strings.TrimLeft(rest, " \t,")
		if rest == "" {
			return false
		}
		body, isWeak := strings.CutPrefix(rest, "W/")
		var tag string
		if strings.HasPrefix(body, `"`) {
			end := strings.IndexByte(body[1:], '"')
			if end < 0 {
				return false
			}
			tag, rest = body[1:1+end], body[end+2:]
		} else {
			tag, rest, _ = strings.Cut(body, ",")
			if tag = strings.TrimRight(tag, " \t"); tag == "*" && !isWeak {
				return true
			}
		}
		if tag == etag && (weak || !isWeak) {
			return true
		}
	}
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
