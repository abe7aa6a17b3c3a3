// Package checksum computes CRC64NVME and combines the sums of adjacent pieces.
//
// CRC64NVME is the CRC-64 of the NVM Express NVM Command Set specification (figure "64b CRC
// polynomials", polynomial 0xAD93D23594C93659, reflected, initial value and final XOR all ones).
// It is the checksum of every block on a drive, of every chunk and of every object.
//
// Called by: drive, chunk, store, s3, client, bench.
//
// Invariants:
//  1. Combine(Sum(a), Sum(b), len(b)) == Sum(a ++ b) for all a and b, the empty one included.
//  2. Nothing here allocates, except the text forms.
//
// Combining: the CRC of a ++ b is the CRC of a moved past len(b) zero bytes, which is a
// multiplication by x^(8·len(b)) modulo the polynomial over GF(2), XOR the CRC of b. Initial value and
// final XOR cancel out because they are equal.
//
// What it does not do: other S3 checksum algorithms (package s3).
package checksum

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/minio/crc64nvme"
)

// ErrFormat says that a text is no CRC64NVME as S3 writes it.
var ErrFormat = errors.New("checksum: not the base64 form of 8 bytes")

// Sum is the CRC64NVME of p.
func Sum(p []byte) uint64 { return crc64nvme.Checksum(p) }

// Update is the CRC64NVME of a payload whose sum so far is crc, continued by p. The sum of no
// bytes is 0.
func Update(crc uint64, p []byte) uint64 { return crc64nvme.Update(crc, p) }

// Base64 is the form of x-amz-checksum-crc64nvme: 8 big-endian bytes in standard base64.
func Base64(crc uint64) string {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], crc)
	return base64.StdEncoding.EncodeToString(raw[:])
}

// ParseBase64 reads the form that Base64 writes. It takes only the canonical form. Errors: ErrFormat.
func ParseBase64(s string) (uint64, error) {
	const textBytes = 12 // base64 of 8 bytes, padded
	if len(s) != textBytes {
		return 0, fmt.Errorf("%w: %d characters", ErrFormat, len(s))
	}
	var raw [9]byte // DecodedLen of 12 characters
	n, err := base64.StdEncoding.Strict().Decode(raw[:], []byte(s))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if n != 8 {
		return 0, fmt.Errorf("%w: %d bytes", ErrFormat, n)
	}
	return binary.BigEndian.Uint64(raw[:8]), nil
}
