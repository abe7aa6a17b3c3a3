package s3

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/zeebo/xxh3"

	"github.com/penstock-store/penstock/internal/checksum"
)

// Algorithm is a checksum algorithm of S3.
type Algorithm uint8

// The algorithms. NoAlgorithm means that none was named.
const (
	NoAlgorithm Algorithm = iota
	CRC32
	CRC32C
	CRC64NVME
	SHA1
	SHA256
	SHA512
	MD5
	XXHASH64
	XXHASH3
	XXHASH128
	algorithmCount
)

var algorithmNames = [algorithmCount]string{"", "CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256",
	"SHA512", "MD5", "XXHASH64", "XXHASH3", "XXHASH128"}

var algorithmHeaders = [algorithmCount]string{
	"", "X-Amz-Checksum-Crc32", "X-Amz-Checksum-Crc32c", "X-Amz-Checksum-Crc64nvme",
	"X-Amz-Checksum-Sha1", "X-Amz-Checksum-Sha256", "X-Amz-Checksum-Sha512", "X-Amz-Checksum-Md5",
	"X-Amz-Checksum-Xxhash64", "X-Amz-Checksum-Xxhash3", "X-Amz-Checksum-Xxhash128",
}

var algorithmSizes = [algorithmCount]int{0, 4, 4, 8, sha1.Size, sha256.Size, sha512.Size, md5.Size, 8, 8, 16}

// Algorithms returns all algorithms of S3.
func Algorithms() []Algorithm {
	all := make([]Algorithm, 0, algorithmCount-1)
	for a := NoAlgorithm + 1; a < algorithmCount; a++ {
		all = append(all, a)
	}
	return all
}

// String returns the name as in x-amz-checksum-algorithm, "" for NoAlgorithm.
func (a Algorithm) String() string {
	if int(a) >= len(algorithmNames) {
		return "unknown"
	}
	return algorithmNames[a]
}

// Header returns the canonical header name, e.g. X-Amz-Checksum-Crc32c.
func (a Algorithm) Header() string {
	if int(a) >= len(algorithmHeaders) {
		return ""
	}
	return algorithmHeaders[a]
}

// Element returns the name of the XML element, e.g. ChecksumCRC32C.
func (a Algorithm) Element() string { return "Checksum" + a.String() }

func (a Algorithm) size() int { return algorithmSizes[a] }

// isCRC says whether checksums of adjacent pieces can be combined.
func (a Algorithm) isCRC() bool { return a == CRC32 || a == CRC32C || a == CRC64NVME }

// ParseAlgorithm reads the name of an algorithm, any case. "" gives NoAlgorithm; an unknown name is
// InvalidRequest.
func ParseAlgorithm(s string) (Algorithm, error) {
	if s == "" {
		return NoAlgorithm, nil
	}
	if a := algorithmNamed(s); a != NoAlgorithm {
		return a, nil
	}
	return NoAlgorithm, New(InvalidRequest,
		"The checksum algorithm must be one of"+strings.Join(algorithmNames[:], " ")+".")
}

func algorithmNamed(s string) Algorithm {
	for i, name := range algorithmNames {
		if i > 0 && strings.EqualFold(name, s) {
			return Algorithm(i)
		}
	}
	return NoAlgorithm
}

// decode reads a checksum value of the algorithm, without "-N".
func (a Algorithm) decode(value string) ([]byte, bool) {
	b, err := base64.StdEncoding.Strict().DecodeString(value)
	return b, err == nil && len(b) == a.size() && a != NoAlgorithm
}

// hash returns a running checksum.
func (a Algorithm) hash() hash.Hash {
	switch a {
	case CRC32:
		return crc32.NewIEEE()
	case CRC32C:
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case SHA1:
		return sha1.New()
	case SHA256:
		return sha256.New()
	case SHA512:
		return sha512.New()
	case MD5:
		return md5.New()
	case XXHASH64:
		return xxhash.New()
	case XXHASH3:
		return xxh3.New()
	case XXHASH128:
		return xxh3.New128()
	case CRC64NVME:
		return new(crc64)
	}
	return nil
}

// crc64 is a hash.Hash of CRC64NVME.
type crc64 uint64

func (c *crc64) Write(p []byte) (int, error) {
	*c = crc64(checksum.Update(uint64(*c), p))
	return len(p), nil
}

func (c *crc64) Sum(b []byte) []byte { return binary.BigEndian.AppendUint64(b, uint64(*c)) }
func (c *crc64) Reset()              { *c = 0 }
func (c *crc64) Size() int           { return 8 }
func (c *crc64) BlockSize() int      { return 1 }
