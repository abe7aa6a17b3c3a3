package model

import (
	"cmp"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Codes of errors, named as in S3. A Target answers with an *Error.
const (
	NoSuchKey     = "NoSuchKey"
	NoSuchUpload  = "NoSuchUpload"
	Precondition  = "PreconditionFailed"
	NotModified   = "NotModified"
	InvalidPart   = "InvalidPart"
	EntityTooTiny = "EntityTooSmall"
	InvalidRange  = "InvalidRange"
)

// Error is an answer that is not a success.
type Error struct{ Code string }

func (e *Error) Error() string { return "model: " + e.Code }

// Object is what a key holds.
type Object struct {
	Body []byte
	ETag string // without quotes
	Type string // content type
	User map[string]string
}

// Put is a write of one object.
type Put struct {
	Key  string
	Body []byte
	Type string
	User map[string]string

	IfMatch, IfNoneMatch string // with quotes, or "*"
}

// Get is a read; Len < 0 means to the end.
type Get struct {
	Key      string
	Off, Len int64
	Part     int // 0: by range

	IfMatch, IfNoneMatch string
}

// Part is one part of an upload, or an entry of the list that completes it.
type Part struct {
	Number int
	Body   []byte
	ETag   string
}

// List asks for one page.
type List struct {
	Prefix, Delimiter, After string
	Limit                    int
}

// Entry is one key of a page.
type Entry struct {
	Key, ETag string
	Size      int64
}

// Page is one page of a listing.
type Page struct {
	Entries   []Entry
	Prefixes  []string
	Truncated bool
	Last      string // After of the next page
}

// State is a bucket as maps.
type State struct {
	Objects map[string]Object
	Uploads map[string]*Upload // by id
}

// Upload is an open upload.
type Upload struct {
	Key   string
	Type  string
	Parts map[int]Part
}

// NewState is an empty bucket.
func NewState() *State {
	return &State{Objects: map[string]Object{}, Uploads: map[string]*Upload{}}
}

// Put is what a store must do.
func (s *State) Put(p Put) (etag string, err error) {
	if err := s.writable(p.Key, p.IfMatch, p.IfNoneMatch); err != nil {
		return "", err
	}
	sum := md5.Sum(p.Body)
	o := Object{Body: p.Body, ETag: hex.EncodeToString(sum[:]), Type: p.Type, User: p.User}
	s.Objects[p.Key] = o
	return o.ETag, nil
}

func (s *State) writable(key, ifMatch, ifNoneMatch string) error {
	o, ok := s.Objects[key]
	switch {
	case ifMatch != "" && !ok:
		return &Error{NoSuchKey}
	case ifMatch != "" && !matches(ifMatch, o.ETag):
		return &Error{Precondition}
	case ifNoneMatch != "" && ok && matches(ifNoneMatch, o.ETag):
		return &Error{Precondition}
	}
	return nil
}

func matches(header, etag string) bool { return header == "*" || header == `"`+etag+`"` }

// Get is what a store must answer.
func (s *State) Get(g Get) (Object, error) {
	o, ok := s.Objects[g.Key]
	switch {
	case !ok:
		return Object{}, &Error{NoSuchKey}
	case g.IfMatch != "" && !matches(g.IfMatch, o.ETag):
		return Object{}, &Error{Precondition}
	case g.IfNoneMatch != "" && matches(g.IfNoneMatch, o.ETag):
		return Object{}, &Error{NotModified}
	}
	size := int64(len(o.Body))
	if g.Len < 0 {
		g.Len = size - g.Off
	}
	if g.Off < 0 || g.Len < 0 || g.Off+g.Len > size {
		return Object{}, &Error{InvalidRange}
	}
	o.Body = o.Body[g.Off : g.Off+g.Len]
	return o, nil
}

// Copy is what a store must do.
func (s *State) Copy(from, to string) (etag string, err error) {
	o, ok := s.Objects[from]
	if !ok {
		return "", &Error{NoSuchKey}
	}
	if strings.Contains(o.ETag, "-") { // a copy is one piece
		sum := md5.Sum(o.Body)
		o.ETag = hex.EncodeToString(sum[:])
	}
	s.Objects[to] = o
	return o.ETag, nil
}

// Complete is what a store must do.
func (s *State) Complete(id string, list []Part, minPart int) (etag string, err error) {
	u, ok := s.Uploads[id]
	if !ok {
		return "", &Error{NoSuchUpload}
	}
	var body, sums []byte
	for i, want := range list {
		have, ok := u.Parts[want.Number]
		if !ok || have.ETag != want.ETag {
			return "", &Error{InvalidPart}
		}
		if i < len(list)-1 && len(have.Body) < minPart {
			err = cmp.Or(err, error(&Error{EntityTooTiny}))
		}
		sum := md5.Sum(have.Body)
		sums = append(sums, sum[:]...)
		body = append(body, have.Body...)
	}
	if err != nil {
		return "", err
	}
	etag = fmt.Sprintf("%x-%d", md5.Sum(sums), len(list))
	s.Objects[u.Key] = Object{Body: body, ETag: etag, Type: u.Type}
	delete(s.Uploads, id)
	return etag, nil
}

// List is what a store must answer, found by looking at every key.
func (s *State) List(l List) Page {
	var page Page
	add := func(name string) bool {
		if len(page.Entries)+len(page.Prefixes) == l.Limit {
			page.Truncated = l.Limit > 0
			return false
		}
		page.Last = name
		return true
	}
	for _, key := range slices.Sorted(maps.Keys(s.Objects)) {
		rest, ok := strings.CutPrefix(key, l.Prefix)
		if !ok || key <= l.After {
			continue
		}
		if before, _, found := strings.Cut(rest, l.Delimiter); found && l.Delimiter != "" {
			common := l.Prefix + before + l.Delimiter
			if common <= l.After || slices.Contains(page.Prefixes, common) {
				continue
			}
			if !add(common) {
				break
			}
			page.Prefixes = append(page.Prefixes, common)
			continue
		}
		if !add(key) {
			break
		}
		o := s.Objects[key]
		page.Entries = append(page.Entries, Entry{key, o.ETag, int64(len(o.Body))})
	}
	return page
}
