package meta

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// Families of keys, by their first byte. docs/format.md has the table.
const (
	tagAccessKey = 'a'
	tagBucket    = 'b'
	tagChunkPage = 'c'
	tagCompleted = 'd'
	tagEpoch     = 'e'
	tagFormat    = 'f'
	tagGarbage   = 'g'
	tagHead      = 'h'
	tagManifest  = 'm'
	tagCounter   = 'n'
	tagOwner     = 'o'
	tagPart      = 'p'
	tagBinding   = 's'
	tagUpload    = 'u'
)

// S3 keys are escaped so that any byte may occur and order is kept: 0x00 is written as 0x00 0xff and
// the end as 0x00 0x01.
const (
	escapeByte = 0x00
	escapedNul = 0xff
	terminator = 0x01
)

func formatKey() []byte                 { return []byte{tagFormat} }
func bindingKey() []byte                { return []byte{tagBinding} }
func counterKey(name string) []byte     { return append([]byte{tagCounter}, name...) }
func epochKey(epoch uint64) []byte      { return binary.BigEndian.AppendUint64([]byte{tagEpoch}, epoch) }
func bucketKey(name string) []byte      { return append([]byte{tagBucket}, name...) }
func accessKeyKey(id string) []byte     { return append([]byte{tagAccessKey}, id...) }
func ownerKey(owner ID) []byte          { return append([]byte{tagOwner}, owner[:]...) }
func completedKey(upload ID) []byte     { return append([]byte{tagCompleted}, upload[:]...) }
func idKey(tag byte, id ID) []byte      { return append(append(make([]byte, 0, 24), tag), id[:]...) }
func garbageKey(due int64, i ID) []byte { return append(garbageDue(due), i[:]...) }

// garbageDue is where entries that are due at a time begin.
func garbageDue(dueNs int64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, 25), tagGarbage), uint64(max(dueNs, 0)))
}

func chunkPageKey(owner ID, page uint32) []byte {
	return binary.BigEndian.AppendUint32(idKey(tagChunkPage, owner), page)
}

func manifestPageKey(upload ID, page uint32) []byte {
	return binary.BigEndian.AppendUint32(idKey(tagManifest, upload), page)
}

// partKey needs number in 0..65535; S3's are 1..10000.
func partKey(upload ID, number int) []byte {
	return binary.BigEndian.AppendUint16(idKey(tagPart, upload), uint16(min(max(number, 0), math.MaxUint16)))
}

// HeadKey is where the head record of an S3 key lies.
func HeadKey(bucket uint64, key string) []byte {
	return appendEnd(Prefix{tagHead, bucket}.with(key, 2))
}

// UploadKey is where an open upload lies.
func UploadKey(bucket uint64, key string, upload ID) []byte {
	k := appendEnd(Prefix{tagUpload, bucket}.with(key, 2+len(upload)))
	return append(k, upload[:]...)
}

func appendEnd(b []byte) []byte { return append(b, escapeByte, terminator) }

func appendEscaped(b []byte, key string) []byte {
	for {
		i := strings.IndexByte(key, escapeByte)
		if i < 0 {
			return append(b, key...)
		}
		b = append(append(b, key[:i]...), escapeByte, escapedNul)
		key = key[i+1:]
	}
}

// unescape reads an escaped key up to its end and returns what follows.
func unescape(b []byte) (key string, rest []byte, err error) {
	if i := bytes.IndexByte(b, escapeByte); i >= 0 && i+1 < len(b) && b[i+1] == terminator {
		return string(b[:i]), b[i+2:], nil // the usual case: nothing was escaped
	}
	var out []byte
	for {
		i := bytes.IndexByte(b, escapeByte)
		if i < 0 || i+1 >= len(b) {
			return "", nil, fmt.Errorf("meta: key without an end: %w", ErrCorrupt)
		}
		out = append(out, b[:i]...)
		switch b[i+1] {
		case terminator:
			return string(out), b[i+2:], nil
		case escapedNul:
			out = append(out, escapeByte)
		default:
			return "", nil, fmt.Errorf("meta: key with escape %#02x: %w", b[i+1], ErrCorrupt)
		}
		b = b[i+2:]
	}
}

// Prefix is a family of keys of one bucket that are ordered by S3 key: heads or uploads.
type Prefix struct {
	tag    byte
	bucket uint64
}

// Heads is the family of a bucket's head records.
func Heads(bucket uint64) Prefix { return Prefix{tagHead, bucket} }

// Uploads is the family of a bucket's open uploads.
func Uploads(bucket uint64) Prefix { return Prefix{tagUpload, bucket} }

func (p Prefix) with(s string, room int) []byte {
	b := make([]byte, 0, 1+8+len(s)+room+8)
	b = append(b, p.tag)
	b = binary.BigEndian.AppendUint64(b, p.bucket)
	return appendEscaped(b, s)
}

// First is where the keys begin whose S3 key starts with prefix.
func (p Prefix) First(prefix string) []byte { return p.with(prefix, 0) }

// End is the first key behind all whose S3 key starts with prefix.
func (p Prefix) End(prefix string) []byte { return successor(p.with(prefix, 0)) }

// After is the first key behind all that belong to exactly this S3 key.
func (p Prefix) After(key string) []byte {
	b := appendEnd(p.with(key, 2))
	b[len(b)-1] = terminator + 1 // escapedNul, which follows in longer keys, is larger
	return b
}

// Key reads the S3 key out of a key of the family, and the upload id for Uploads.
func (p Prefix) Key(k []byte) (key string, upload ID, err error) {
	if len(k) < 9 || k[0] != p.tag {
		return "", ID{}, fmt.Errorf("meta: key of %d bytes is no member of its family: %w", len(k), ErrCorrupt)
	}
	key, rest, err := unescape(k[9:])
	switch {
	case err != nil:
		return "", ID{}, err
	case p.tag == tagUpload:
		upload, err = IDFrom(rest)
	case len(rest) != 0:
		err = fmt.Errorf("meta: key with %d bytes behind its end: %w", len(rest), ErrCorrupt)
	}
	return key, upload, err
}

// successor is the first key behind all that start with b.
func successor(b []byte) []byte {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0xff {
			b = append([]byte(nil), b[:i+1]...)
			b[i]++
			return b
		}
	}
	return nil // families have tags below 0xff, so this is not reached
}

func family(tag byte) (from, to []byte) { return []byte{tag}, []byte{tag + 1} }

func idRange(tag byte, id ID) (from, to []byte) {
	from = idKey(tag, id)
	return from, successor(from)
}
