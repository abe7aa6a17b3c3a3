package client

import (
	"encoding/binary"
	"hash"

	"github.com/penstock-store/penstock/internal/checksum"
)

// NewChecksum returns a running CRC64NVME, the checksum of every object.
func NewChecksum() hash.Hash64 { return new(crcHash) }

// EncodeChecksum writes a CRC64NVME as S3 does: base64 of its 8 big-endian bytes, as in
// ObjectInfo.Checksum.
func EncodeChecksum(crc uint64) string { return checksum.Base64(crc) }

// SumChecksum is EncodeChecksum of the CRC64NVME of p.
func SumChecksum(p []byte) string { return checksum.Base64(checksum.Sum(p)) }

type crcHash struct{ crc uint64 }

func (h *crcHash) Write(p []byte) (int, error) {
	h.crc = checksum.Update(h.crc, p)
	return len(p), nil
}

func (h *crcHash) Sum(b []byte) []byte { return binary.BigEndian.AppendUint64(b, h.crc) }
func (h *crcHash) Sum64() uint64       { return h.crc }
func (h *crcHash) Reset()              { h.crc = 0 }
func (h *crcHash) Size() int           { return 8 }
func (h *crcHash) BlockSize() int      { return 64 }
