package s3

import (
	"math"
	"strconv"
	"strings"
)

// MaxPartNumber is the highest part number.
const MaxPartNumber = 10000

// RangeSpec is a parsed Range header of one range.
type RangeSpec struct {
	First int64 // < 0: the last Last bytes
	Last  int64 // inclusive; math.MaxInt64: to the end
}

// ParseRange reads a Range header. ok is false when it is absent, not valid or has several ranges:
// then the whole object is answered (RFC 9110 §14.2; S3 answers several ranges with the whole).
func ParseRange(header string) (RangeSpec, bool) {
	unit, set, found := strings.Cut(header, "=")
	if !found || !strings.EqualFold(strings.TrimSpace(unit), "bytes") {
		return RangeSpec{}, false
	}
	first, last, found := strings.Cut(strings.Trim(set, " \t"), "-")
	first, last = strings.Trim(first, " \t"), strings.Trim(last, " \t")
	if !found || first == "" && last == "" {
		return RangeSpec{}, false
	}
	s := RangeSpec{First: -1, Last: math.MaxInt64}
	var ok bool
	if first != "" {
		if s.First, ok = parsePosition(first); !ok {
			return RangeSpec{}, false
		}
	}
	if last != "" {
		if s.Last, ok = parsePosition(last); !ok {
			return RangeSpec{}, false
		}
	}
	if s.First > s.Last {
		return RangeSpec{}, false
	}
	return s, true
}

// parsePosition reads digits; what does not fit an int64 is the largest one, beyond every object.
func parsePosition(s string) (int64, bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return math.MaxInt64, s != ""
	}
	return n, true
}

// Resolve returns offset and length in an object of a size. partial is false when the answer is 200:
// that is so only for a suffix of an empty object. The error is InvalidRange with a Content-Range
// header.
func (s RangeSpec) Resolve(size int64) (off, n int64, partial bool, err error) {
	if s.First < 0 {
		switch {
		case s.Last == 0:
			return 0, 0, false, s.unsatisfiable(size)
		case size == 0:
			return 0, 0, false, nil
		}
		n = min(s.Last, size)
		return size - n, n, true, nil
	}
	if s.First >= size {
		return 0, 0, false, s.unsatisfiable(size)
	}
	return s.First, min(s.Last, size-1) - s.First + 1, true, nil
}

func (s RangeSpec) unsatisfiable(size int64) *Error {
	length := strconv.FormatInt(size, 10)
	return New(InvalidRange, "").With("RangeRequested", s.String()).With("ActualObjectSize", length).
		WithHeader("Content-Range", "bytes */"+length)
}

// String formats the range as a Range header.
func (s RangeSpec) String() string {
	switch {
	case s.First < 0:
		return "bytes=-" + strconv.FormatInt(s.Last, 10)
	case s.Last == math.MaxInt64:
		return "bytes=" + strconv.FormatInt(s.First, 10) + "-"
	}
	return "bytes=" + strconv.FormatInt(s.First, 10) + "-" + strconv.FormatInt(s.Last, 10)
}

// ContentRange formats "bytes first-last/size" of a range that is not empty.
func ContentRange(off, n, size int64) string {
	b := make([]byte, 0, 64)
	b = strconv.AppendInt(append(b, "bytes "...), off, 10)
	b = strconv.AppendInt(append(b, '-'), off+n-1, 10)
	return string(strconv.AppendInt(append(b, '/'), size, 10))
}

// ParsePartNumber reads a part number, 1..10000.
func ParsePartNumber(s string) (int, error) {
	n, ok := parseDecimal(s)
	if !ok || n < 1 || n > MaxPartNumber {
		return 0, New(InvalidArgument, "The part number must be 1 to 10000.").
			With("ArgumentName", "partNumber").With("ArgumentValue", s)
	}
	return int(n), nil
}

// ParseLimit reads max-keys and its like: "" gives 1000, larger values too; what is not a number
// that fits 31 bits is InvalidArgument.
func ParseLimit(name, s string) (int, error) {
	const pageLimit = 1000
	if s == "" {
		return pageLimit, nil
	}
	n, ok := parseDecimal(s)
	if !ok || n > math.MaxInt32 {
		return 0, New(InvalidArgument, name+" must be a number from 0 to 2147483647.").
			With("ArgumentName", name).With("ArgumentValue", s)
	}
	return int(min(n, pageLimit)), nil
}

// ParseCopyRange reads x-amz-copy-source-range ("bytes=a-b", both given). "" is the whole object,
// n < 0.
func ParseCopyRange(header string) (off, n int64, err error) {
	if header == "" {
		return 0, -1, nil
	}
	s, ok := ParseRange(header)
	if !ok || s.First < 0 || s.Last == math.MaxInt64 {
		return 0, 0, New(InvalidArgument, "x-amz-copy-source-range must have the form bytes=first-last.").
			With("ArgumentName", "x-amz-copy-source-range").With("ArgumentValue", header)
	}
	return s.First, s.Last - s.First + 1, nil
}
