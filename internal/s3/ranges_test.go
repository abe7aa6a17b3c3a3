package s3

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestS3_63/64: ranges, the empty object. Oracle: slicing a string.
func TestS3_63_Ranges(t *testing.T) {
	for _, c := range []struct {
		header string
		size   int64
		want   string // "whole", "416", or "off+n"
	}{
		{"", 10, "whole"}, {"bytes=0-9", 10, "0+10"}, {"bytes=0-0", 10, "0+1"}, {"bytes=3-", 10, "3+7"},
		{"bytes=-3", 10, "7+3"}, {"bytes=-30", 10, "0+10"}, {"bytes=5-100", 10, "5+5"}, {"bytes=9-9", 10, "9+1"},
		{"bytes=10-", 10, "416"}, {"bytes=10-20", 10, "416"}, {"bytes=-0", 10, "416"}, {"bytes=-0", 0, "416"},
		{"bytes=0-", 0, "416"}, {"bytes=0-0", 0, "416"}, {"bytes=-5", 0, "whole"},
		{"bytes=5-3", 10, "whole"}, {"bytes=a-b", 10, "whole"}, {"bytes=-", 10, "whole"}, {"bytes=", 10, "whole"},
		{"bytes=1-2,4-5", 10, "whole"}, {"items=0-1", 10, "whole"}, {"bytes 0-1", 10, "whole"},
		{"bytes=0x1-2", 10, "whole"}, {"bytes=+1-2", 10, "whole"}, {"bytes=1-2-3", 10, "whole"},
		{"BYTES=0-1", 10, "0+2"}, {"bytes= 0 - 1 ", 10, "0+2"}, {"bytes=--5", 10, "whole"},
		{"bytes=0-99999999999999999999999", 10, "0+10"}, {"bytes=99999999999999999999999-", 10, "416"},
		{"bytes=-99999999999999999999999", 10, "0+10"}, {"bytes=9223372036854775807-", 10, "416"},
	} {
		got := "whole"
		if s, ok := ParseRange(c.header); ok {
			off, n, partial, err := s.Resolve(c.size)
			switch {
			case err != nil:
				got = "416"
				e := AsError(err)
				if e.Status != 416 || e.Header["Content-Range"] != fmt.Sprintf("bytes */%d", c.size) {
					t.Errorf("%q: %+v", c.header, e)
				}
			case partial:
				got = fmt.Sprintf("%d+%d", off, n)
				if off < 0 || n < 1 || off+n > c.size {
					t.Errorf("%q: %s lies outside", c.header, got)
				}
			case off != 0 || n != c.size:
				t.Errorf("%q: whole is %d+%d", c.header, off, n)
			}
			if again, ok := ParseRange(s.String()); !ok || again != s {
				t.Errorf("%q prints as %q", c.header, s)
			}
		}
		if got != c.want {
			t.Errorf("%q of %d: %s, want %s", c.header, c.size, got, c.want)
		}
	}
	if got := ContentRange(5, 3, 10); got != "bytes 5-7/10" {
		t.Error(got)
	}
}

func TestCopyRangeAndNumbers(t *testing.T) {
	for header, want := range map[string]string{
		"": "0 -1", "bytes=0-9": "0 10", "bytes=5-5": "5 1", "bytes=5-": "bad", "bytes=-5": "bad", "0-9": "bad",
		"bytes=9-0": "bad", "bytes=0-9,11-12": "bad",
	} {
		off, n, err := ParseCopyRange(header)
		got := fmt.Sprint(off, n)
		if err != nil {
			got = "bad"
		}
		if got != want {
			t.Errorf("%q: %s", header, got)
		}
	}
	for s, want := range map[string]int{"1": 1, "10000": 10000, "0": -1, "10001": -1, "": -1, "-1": -1, "1x": -1,
		"99999999999999999999": -1} {
		if n, err := ParsePartNumber(s); want < 0 && !IsCode(err, InvalidArgument) || want > 0 && n != want {
			t.Errorf("%q: %d %v", s, n, err)
		}
	}
	for s, want := range map[string]int{"": 1000, "0": 0, "7": 7, "1000": 1000, "5000": 1000, "2147483647": 1000,
		"2147483648": -1, "-1": -1, "x": -1} {
		if n, err := ParseLimit("max-keys", s); want < 0 && !IsCode(err, InvalidArgument) || want >= 0 && n != want {
			t.Errorf("%q: %d %v", s, n, err)
		}
	}
	if math.MaxInt64-1 > int64(maxDecodedLength) && maxDecodedLength < 5<<40 {
		t.Error("objects of 5 TiB do not fit")
	}
}

// TestS3_66/68: preconditions in the order of RFC 9110 §13.2.2.
func TestS3_68_Conditions(t *testing.T) {
	modified := time.Date(2026, 1, 2, 3, 4, 5, 999, time.UTC)
	at := func(d time.Duration) string { return modified.Add(d).Format(http.TimeFormat) }
	here := State{Exists: true, ETag: "abc", Modified: modified}
	for _, c := range []struct {
		header      string // name: value, several joined by " | "
		missing     bool
		read, write Outcome
	}{
		{"", false, Proceed, Proceed},
		{`If-Match: "abc"`, false, Proceed, Proceed},
		{`If-Match: abc`, false, Proceed, Proceed},
		{`If-Match: *`, false, Proceed, Proceed},
		{`If-Match: "x", "a,b" , "abc"`, false, Proceed, Proceed},
		{`If-Match: "x"`, false, AnswerPreconditionFailed, AnswerPreconditionFailed},
		{`If-Match: W/"abc"`, false, AnswerPreconditionFailed, AnswerPreconditionFailed},
		{`If-Match: "abc`, false, AnswerPreconditionFailed, AnswerPreconditionFailed},
		{`If-Match: *`, true, AnswerPreconditionFailed, AnswerPreconditionFailed},
		{`If-None-Match: *`, false, AnswerNotModified, AnswerPreconditionFailed},
		{`If-None-Match: *`, true, Proceed, Proceed},
		{`If-None-Match: "abc"`, false, AnswerNotModified, AnswerPreconditionFailed},
		{`If-None-Match: W/"abc"`, false, AnswerNotModified, AnswerPreconditionFailed},
		{`If-None-Match: "x"`, false, Proceed, Proceed},
		{`If-None-Match: "abc"`, true, Proceed, Proceed},
		{"If-Modified-Since: " + at(0), false, AnswerNotModified, Proceed},
		{"If-Modified-Since: " + at(-time.Second), false, Proceed, Proceed},
		{"If-Modified-Since: yesterday", false, Proceed, Proceed},
		{"If-Unmodified-Since: " + at(0), false, Proceed, Proceed},
		{"If-Unmodified-Since: " + at(-time.Second), false, AnswerPreconditionFailed, AnswerPreconditionFailed},
		{"If-Unmodified-Since: " + at(-time.Second), true, Proceed, Proceed},
		{`If-Match: "abc" | If-Unmodified-Since: ` + at(-time.Hour), false, Proceed, Proceed},
		{`If-Match: "x" | If-Unmodified-Since: ` + at(0), false, AnswerPreconditionFailed, AnswerPreconditionFailed},
		{`If-None-Match: "x" | If-Modified-Since: ` + at(0), false, Proceed, Proceed},
		{`If-None-Match: "abc" | If-Modified-Since: ` + at(-time.Hour), false, AnswerNotModified,
			AnswerPreconditionFailed},
		{`If-Match: "x" | If-None-Match: "abc"`, false, AnswerPreconditionFailed, AnswerPreconditionFailed},
	} {
		for _, prefix := range []string{"", "X-Amz-Copy-Source-"} {
			h := http.Header{}
			for line := range strings.SplitSeq(c.header, " | ") {
				if name, value, ok := strings.Cut(line, ": "); ok {
					h.Add(prefix+name, value)
				}
			}
			cond := ParseConditions(h)
			if prefix != "" {
				cond = ParseCopyConditions(h)
			}
			s := here
			if c.missing {
				s = State{}
			}
			if got := cond.Evaluate(s, true); got != c.read {
				t.Errorf("%s, read: %d, want %d", c.header, got, c.read)
			}
			if got := cond.Evaluate(s, false); got != c.write {
				t.Errorf("%s, write: %d, want %d", c.header, got, c.write)
			}
		}
	}
	for header, want := range map[string]bool{
		"": true, `"abc"`: true, "abc": true, `W/"abc"`: false, `"x"`: false, at(0): true, at(time.Second): false,
		at(-time.Second): false, "*": false,
	} {
		if got := IfRangeHolds(header, here); got != want {
			t.Errorf("If-Range %q: %v", header, got)
		}
	}
}
