package s3

import (
	"fmt"
	"math"
	"net/http"
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

// TestConditions: what the headers of a request and of a copy's source say. They are evaluated, in the
// order of RFC 9110 §13.2.2, by the store.
func TestConditions(t *testing.T) {
	modified := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := modified.Format(http.TimeFormat)
	for _, prefix := range []string{"", "X-Amz-Copy-Source-"} {
		parse := ParseConditions
		if prefix != "" {
			parse = ParseCopyConditions
		}
		for _, c := range []struct {
			name   string
			values []string
			want   Conditions
		}{
			{"Range", []string{"x"}, Conditions{}},
			{"If-Match", []string{`"abc"`}, Conditions{IfMatch: `"abc"`}},
			{"If-Match", []string{`"a"`, `W/"b", c`}, Conditions{IfMatch: `"a",W/"b", c`}},
			{"If-None-Match", []string{"*"}, Conditions{IfNoneMatch: "*"}},
			{"If-Modified-Since", []string{at}, Conditions{IfModifiedSince: modified}},
			{"If-Unmodified-Since", []string{at}, Conditions{IfUnmodifiedSince: modified}},
			{"If-Modified-Since", []string{"yesterday"}, Conditions{}},
			{"If-Unmodified-Since", []string{""}, Conditions{}},
		} {
			if got := parse(http.Header{prefix + c.name: c.values}); got != c.want {
				t.Errorf("%s%s %q: %+v, want %+v", prefix, c.name, c.values, got, c.want)
			}
		}
	}
}

func TestIfRangeHolds(t *testing.T) {
	modified := time.Date(2026, 1, 2, 3, 4, 5, 999, time.UTC)
	at := func(d time.Duration) string { return modified.Add(d).Format(http.TimeFormat) }
	here := State{Exists: true, ETag: "abc", Modified: modified}
	for header, want := range map[string]bool{
		"": true, `"abc"`: true, "abc": true, `W/"abc"`: false, `"x"`: false, at(0): true, at(time.Second): false,
		at(-time.Second): false, "*": false,
	} {
		if got := IfRangeHolds(header, here); got != want {
			t.Errorf("If-Range %q: %v", header, got)
		}
	}
}
