package s3

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"strings"

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
)

var algorithmNames = [...]string{"", "CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"}

var algorithmHeaders = [...]string{
	"", "X-Amz-Checksum-Crc32", "X-Amz-Checksum-Crc32c", "X-Amz-Checksum-Crc64nvme",
	"X-Amz-Checksum-Sha1", "X-Amz-Checksum-Sha256",
}

var algorithmSizes = [...]int{0, 4, 4, 8, sha1.Size, sha256.Size}

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
	return NoAlgorithm, New(InvalidRequest, "The checksum algorithm must be CRC32, CRC32C, CRC64NVME, SHA1 or SHA256.")
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
