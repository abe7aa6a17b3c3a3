package s3

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/penstock-store/penstock/internal/checksum"
)

// ChecksumType is how the checksum of a multipart object is made.
type ChecksumType string

// The checksum types.
const (
	Composite  ChecksumType = "COMPOSITE"   // checksum of the checksums of the parts, with "-N"
	FullObject ChecksumType = "FULL_OBJECT" // checksum of all bytes
)

// DefaultChecksumType returns the type of a multipart upload's algorithm when the client names none.
func DefaultChecksumType(a Algorithm) ChecksumType {
	switch a {
	case NoAlgorithm:
		return ""
	case CRC64NVME:
		return FullObject
	}
	return Composite
}

// ParseChecksumType reads x-amz-checksum-type for an algorithm; "" gives its default.
func ParseChecksumType(s string, a Algorithm) (ChecksumType, error) {
	t := ChecksumType(strings.ToUpper(s))
	switch {
	case s == "":
		return DefaultChecksumType(a), nil
	case t != Composite && t != FullObject:
		return "", New(InvalidRequest, "x-amz-checksum-type must be COMPOSITE or FULL_OBJECT.")
	case a == NoAlgorithm:
		return "", New(InvalidRequest, "x-amz-checksum-type needs x-amz-checksum-algorithm.")
	case t == Composite && a == CRC64NVME || t == FullObject && !a.isCRC():
		return "", New(InvalidRequest, "The checksum type "+string(t)+" cannot be used with "+a.String()+".")
	}
	return t, nil
}

// Part is a part for the composition of a checksum.
type Part struct {
	Size  int64
	Value string // base64 of the part's checksum
}

// ComposeChecksum makes the checksum of a multipart object from those of its parts, in their order.
func ComposeChecksum(a Algorithm, t ChecksumType, parts []Part) (Checksum, error) {
	if len(parts) == 0 {
		return Checksum{}, New(InvalidRequest, "A checksum needs at least one part.")
	}
	if _, err := ParseChecksumType(string(t), a); err != nil || t == "" {
		return Checksum{}, New(InvalidRequest, "The checksum type does not fit the algorithm.")
	}
	h := a.hash()
	var crc uint64
	for i, p := range parts {
		raw, ok := a.decode(p.Value)
		if !ok || p.Size < 0 {
			return Checksum{}, New(InvalidPart, "A part has no valid "+a.String()+" checksum.")
		}
		switch {
		case t == Composite:
			h.Write(raw)
		case i == 0:
			crc = crcValue(raw)
		default:
			crc = combineCRC(a, crc, crcValue(raw), p.Size)
		}
	}
	if t == Composite {
		return Checksum{a, compositeValue(h.Sum(nil), len(parts))}, nil
	}
	return Checksum{a, crcBase64(a, crc)}, nil
}

func crcValue(raw []byte) uint64 {
	if len(raw) == 4 {
		return uint64(binary.BigEndian.Uint32(raw))
	}
	return binary.BigEndian.Uint64(raw)
}

func crcBase64(a Algorithm, crc uint64) string {
	if a == CRC64NVME {
		return checksum.Base64(crc)
	}
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, uint32(crc)))
}

// combineCRC returns the CRC of two adjacent pieces, the second of which has lenB bytes.
func combineCRC(a Algorithm, x, y uint64, lenB int64) uint64 {
	switch a {
	case CRC32:
		return uint64(combineCRC32(crc32.IEEE, uint32(x), uint32(y), lenB))
	case CRC32C:
		return uint64(combineCRC32(crc32.Castagnoli, uint32(x), uint32(y), lenB))
	}
	return checksum.Combine(x, y, lenB)
}

// combineCRC32 moves x past lenB bytes, a multiplication by x^(8·lenB) modulo the polynomial, and
// adds y. Initial value and final XOR of both cancel out. Polynomials are reflected: the highest bit
// is the coefficient of x^0.
func combineCRC32(poly, x, y uint32, lenB int64) uint32 {
	const one = 1 << 31
	shift := uint32(one)               // x^0
	square := uint32(one >> 8)         // x^8: one byte
	for n := lenB; n > 0; n = n >> 1 { // binary exponentiation
		if n&1 != 0 {
			shift = multiply32(poly, shift, square)
		}
		square = multiply32(poly, square, square)
	}
	return multiply32(poly, shift, x) ^ y
}

// multiply32 multiplies two reflected polynomials modulo poly.
func multiply32(poly, a, b uint32) uint32 {
	var product uint32
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			product ^= b
		}
		b = b>>1 ^ poly&-(b&1)
	}
	return product
}

// TrimETag removes the quotes of an ETag, which clients send or leave out.
func TrimETag(tag string) string {
	tag = strings.TrimSpace(tag)
	if len(tag) >= 2 && tag[0] == '"' && tag[len(tag)-1] == '"' {
		return tag[1 : len(tag)-1]
	}
	return tag
}
