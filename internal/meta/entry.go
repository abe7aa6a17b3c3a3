package meta

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// Entry is what a listing needs of a head record.
type Entry struct {
	Size         int64
	ETag         string
	ModifiedNs   int64
	CRC64NVME    uint64
	Checksums    []*metapb.Checksum
	StorageClass string
	Parts        uint32
}

// Field numbers of metapb that Entry is read from.
const (
	headCurrent = 2

	versionSize      = 1
	versionETag      = 2
	versionModified  = 3
	versionCRC       = 4
	versionChecksums = 5
	versionMeta      = 6
	versionManifest  = 8

	metaStorageClass = 8
	manifestParts    = 2
)

// DecodeEntry reads the same as DecodeHead, but only what Entry holds, in a fraction of the time: the
// rest of the record is stepped over, and only its framing is checked.
func DecodeEntry(value []byte) (Entry, error) {
	var e Entry
	n, w := binary.Uvarint(value)
	if w <= 0 || n > uint64(len(value)-w) {
		return e, fmt.Errorf("meta: value of %d bytes has no whole record: %w", len(value), ErrCorrupt)
	}
	found := false
	err := fields(value[w:w+int(n)], func(f field) error {
		if f.number != headCurrent || f.kind != protowire.BytesType {
			return nil
		}
		found = true
		return fields(f.bytes, e.version)
	})
	if err == nil && !found {
		err = fmt.Errorf("meta: head without a version: %w", ErrCorrupt)
	}
	return e, err
}

func (e *Entry) version(f field) error {
	switch f.kind {
	case protowire.VarintType:
		switch f.number {
		case versionSize:
			e.Size = int64(f.varint)
		case versionModified:
			e.ModifiedNs = int64(f.varint)
		}
	case protowire.Fixed64Type:
		if f.number == versionCRC {
			e.CRC64NVME = f.varint
		}
	case protowire.BytesType:
		return e.nested(f)
	}
	return nil
}

func (e *Entry) nested(f field) error {
	switch f.number {
	case versionETag:
		e.ETag = string(f.bytes)
	case versionChecksums:
		c, err := decode[metapb.Checksum](f.bytes)
		if err != nil {
			return err
		}
		e.Checksums = append(e.Checksums, c)
	case versionMeta:
		return fields(f.bytes, func(f field) error {
			if f.number == metaStorageClass && f.kind == protowire.BytesType {
				e.StorageClass = string(f.bytes)
			}
			return nil
		})
	case versionManifest:
		return fields(f.bytes, func(f field) error {
			if f.number == manifestParts && f.kind == protowire.VarintType {
				e.Parts = uint32(f.varint)
			}
			return nil
		})
	}
	return nil
}

// field is one field of an encoded record. A view.
type field struct {
	number protowire.Number
	kind   protowire.Type
	varint uint64 // also of fixed64
	bytes  []byte
}

// fields calls fn for each field of a record, in their order.
func fields(b []byte, fn func(field) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("meta: read field: %w: %w", ErrCorrupt, protowire.ParseError(n))
		}
		b = b[n:]
		f := field{number: number, kind: kind}
		switch kind {
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			f.varint, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return fmt.Errorf("meta: read field %d: %w: %w", number, ErrCorrupt, protowire.ParseError(n))
		}
		b = b[n:]
		if err := fn(f); err != nil {
			return err
		}
	}
	return nil
}
