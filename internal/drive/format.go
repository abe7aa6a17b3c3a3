package drive

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/penstock-store/penstock/internal/checksum"
)

// Sizes of docs/format.md.
const (
	formatVersion = 1

	unit            = 4096 // records, headers and footers start at multiples of it
	superblockBytes = 2 * unit
	sealOffset      = 2 * unit
	recordsOffset   = 3 * unit

	superblockCRCAt = unit - 8
	segmentMACAt    = 64
	segmentCRCAt    = segmentMACAt + sha256.Size
	sealMACAt       = 40
	sealCRCAt       = sealMACAt + sha256.Size
	recordMACAt     = 120
	recordCRCAt     = recordMACAt + sha256.Size
	footerBlocksAt  = 72
	crcBytes        = 8
)

const (
	magicSuperblock = "PNSTKDRV"
	magicSegment    = "PNSTKSEG"
	magicSeal       = "PNSTKEND"
	magicRecord     = "PNSTKREC"
	magicFooter     = "PNSTKFTR"

	labelSegment = "penstock segment 1"
	labelSeal    = "penstock seal 1"
	labelRecord  = "penstock record 1"
)

// MinSegmentBytes holds the three blocks at the front and a small record.
const MinSegmentBytes = 16 * unit

// secret keys the MACs of one drive. It prints redacted.
type secret [32]byte

func (secret) String() string   { return "[secret]" }
func (secret) GoString() string { return "[secret]" }

func (s *secret) mac(label string, p []byte) []byte {
	h := hmac.New(sha256.New, s[:])
	h.Write([]byte(label))
	h.Write(p)
	return h.Sum(nil)
}

func alignUp(n int64) int64 { return (n + unit - 1) &^ (unit - 1) }

func blockCount(length int64) int { return int((length + BlockBytes - 1) / BlockBytes) }

func footerLength(length int64) int64 {
	return footerBlocksAt + int64(blockCount(length))*crcBytes + crcBytes
}

// recordSpace is what a record with a payload of length bytes takes in a segment.
func recordSpace(length int64) int64 {
	return unit + alignUp(length) + alignUp(footerLength(length))
}

func u32(p []byte) uint32       { return binary.LittleEndian.Uint32(p) }
func u64(p []byte) uint64       { return binary.LittleEndian.Uint64(p) }
func putU32(p []byte, v uint32) { binary.LittleEndian.PutUint32(p, v) }
func putU64(p []byte, v uint64) { binary.LittleEndian.PutUint64(p, v) }

func appendU64(p []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(p, v) }

// preamble checks magic and version of a block. The version of the superblock is that of the whole
// drive; elsewhere a higher one is damage.
func preamble(what, magic string, p []byte, least int) error {
	if len(p) < least || string(p[:8]) != magic {
		return fmt.Errorf("%s: no magic: %w", what, ErrCorrupt)
	}
	if v := u32(p[8:]); v > formatVersion {
		err := ErrCorrupt
		if magic == magicSuperblock {
			err = ErrNewer
		}
		return fmt.Errorf("%s: version %d: %w", what, v, err)
	}
	return nil
}

// summed checks the CRC of the bytes before at.
func summed(what string, p []byte, at int) error {
	if checksum.Sum(p[:at]) != u64(p[at:]) {
		return fmt.Errorf("%s: checksum: %w", what, ErrCorrupt)
	}
	return nil
}

// authentic checks CRC, then MAC; the MAC covers the bytes before macAt, the CRC the MAC too.
func (s *secret) authentic(what, label string, p []byte, macAt int) error {
	crcAt := macAt + sha256.Size
	if err := summed(what, p, crcAt); err != nil {
		return err
	}
	if !hmac.Equal(s.mac(label, p[:macAt]), p[macAt:crcAt]) {
		return fmt.Errorf("%s: not written by this drive: %w", what, ErrCorrupt)
	}
	return nil
}

// endorse appends MAC and CRC in place.
func (s *secret) endorse(label string, p []byte, macAt int) {
	crcAt := macAt + sha256.Size
	copy(p[macAt:crcAt], s.mac(label, p[:macAt]))
	putU64(p[crcAt:], checksum.Sum(p[:crcAt]))
}

type superblock struct {
	drive, set UUID
	secret     secret
	created    int64 // Unix nanoseconds
}

// encode returns both copies.
func (s *superblock) encode() []byte {
	p := make([]byte, superblockBytes)
	copy(p, magicSuperblock)
	putU32(p[8:], formatVersion)
	copy(p[16:], s.drive[:])
	copy(p[32:], s.set[:])
	copy(p[48:], s.secret[:])
	putU64(p[80:], uint64(s.created))
	putU64(p[superblockCRCAt:], checksum.Sum(p[:superblockCRCAt]))
	copy(p[unit:], p[:unit])
	return p
}

func decodeSuperblockCopy(p []byte) (*superblock, error) {
	if err := preamble("superblock", magicSuperblock, p, unit); err != nil {
		return nil, err
	}
	if err := summed("superblock", p, superblockCRCAt); err != nil {
		return nil, err
	}
	return &superblock{
		drive: UUID(p[16:32]), set: UUID(p[32:48]), secret: secret(p[48:80]), created: int64(u64(p[80:])),
	}, nil
}

// decodeSuperblock uses the first copy that verifies. Bytes without a magic are foreign.
func decodeSuperblock(p []byte) (*superblock, error) {
	if len(p) < superblockBytes {
		p = append(bytes.Clone(p), make([]byte, superblockBytes-len(p))...)
	}
	sb, first := decodeSuperblockCopy(p[:unit])
	if first == nil {
		return sb, nil
	}
	sb, second := decodeSuperblockCopy(p[unit : 2*unit])
	if second == nil {
		return sb, nil
	}
	if string(p[:8]) != magicSuperblock && string(p[unit:unit+8]) != magicSuperblock {
		return nil, fmt.Errorf("superblock: no magic: %w", ErrForeign)
	}
	return nil, first
}

type segmentHeader struct {
	drive, id UUID
	number    uint64
	size      int64
}

// encode returns one copy.
func (h *segmentHeader) encode(s *secret) []byte {
	p := make([]byte, unit)
	copy(p, magicSegment)
	putU32(p[8:], formatVersion)
	copy(p[16:], h.drive[:])
	copy(p[32:], h.id[:])
	putU64(p[48:], h.number)
	putU64(p[56:], uint64(h.size))
	s.endorse(labelSegment, p, segmentMACAt)
	return p
}

func decodeSegmentHeader(s *secret, p []byte) (*segmentHeader, error) {
	if err := preamble("segment header", magicSegment, p, unit); err != nil {
		return nil, err
	}
	if err := s.authentic("segment header", labelSegment, p, segmentMACAt); err != nil {
		return nil, err
	}
	return &segmentHeader{
		drive: UUID(p[16:32]), id: UUID(p[32:48]), number: u64(p[48:]), size: int64(u64(p[56:])),
	}, nil
}

type seal struct {
	id  UUID
	end int64
}

func (e *seal) encode(s *secret) []byte {
	p := make([]byte, unit)
	copy(p, magicSeal)
	putU32(p[8:], formatVersion)
	copy(p[16:], e.id[:])
	putU64(p[32:], uint64(e.end))
	s.endorse(labelSeal, p, sealMACAt)
	return p
}

func decodeSeal(s *secret, p []byte) (*seal, error) {
	if err := preamble("seal", magicSeal, p, unit); err != nil {
		return nil, err
	}
	if err := s.authentic("seal", labelSeal, p, sealMACAt); err != nil {
		return nil, err
	}
	return &seal{id: UUID(p[16:32]), end: int64(u64(p[32:]))}, nil
}

// place is where a record lies.
type place struct {
	segment UUID
	offset  int64
}

// encodeHeader fills the first unit bytes of p with the header of r.
func encodeHeader(p []byte, s *secret, r *Record, at place, footerCRC uint64) {
	clear(p[:unit])
	copy(p, magicRecord)
	putU32(p[8:], formatVersion)
	copy(p[16:], r.Chunk[:])
	p[32], p[33], p[34] = r.Shard, r.Data, r.Parity
	copy(p[40:], r.Owner[:])
	putU64(p[56:], r.Epoch)
	putU64(p[64:], uint64(r.Length))
	putU64(p[72:], uint64(r.ChunkLength))
	putU64(p[80:], r.ChunkCRC)
	putU64(p[88:], footerCRC)
	copy(p[96:], at.segment[:])
	putU64(p[112:], uint64(at.offset))
	s.endorse(labelRecord, p, recordMACAt)
}

// decodeHeader checks a header read at a place and returns the record and the footer's CRC.
func decodeHeader(s *secret, p []byte, at place) (Record, uint64, error) {
	if err := preamble("record header", magicRecord, p, unit); err != nil {
		return Record{}, 0, err
	}
	if err := s.authentic("record header", labelRecord, p, recordMACAt); err != nil {
		return Record{}, 0, err
	}
	if UUID(p[96:112]) != at.segment || u64(p[112:]) != uint64(at.offset) {
		return Record{}, 0, fmt.Errorf("record header: made for another place: %w", ErrCorrupt)
	}
	r := Record{
		Key:  Key{Chunk: [16]byte(p[16:32]), Shard: p[32]},
		Data: p[33], Parity: p[34],
		Owner: [16]byte(p[40:56]), Epoch: u64(p[56:]),
		Length: int64(u64(p[64:])), ChunkLength: int64(u64(p[72:])), ChunkCRC: u64(p[80:]),
	}
	if err := r.check(); err != nil {
		return Record{}, 0, fmt.Errorf("record header: %w: %w", ErrCorrupt, err)
	}
	return r, u64(p[88:]), nil
}

// check looks at the lengths of a record.
func (r *Record) check() error {
	if r.Length < 1 || r.Length > MaxPayloadBytes || r.ChunkLength < 1 || r.ChunkLength > MaxPayloadBytes {
		return fmt.Errorf("record: payload of %d bytes in a chunk of %d: %w", r.Length, r.ChunkLength, ErrInvalid)
	}
	return nil
}

// encodeFooter fills p, of alignUp(footerLength(r.Length)) bytes, and returns the footer's CRC.
func encodeFooter(p []byte, r *Record, at place, blocks []uint64) uint64 {
	clear(p)
	copy(p, magicFooter)
	putU32(p[8:], formatVersion)
	putU32(p[12:], uint32(len(blocks)))
	copy(p[16:], r.Chunk[:])
	p[32] = r.Shard
	putU64(p[40:], uint64(r.Length))
	copy(p[48:], at.segment[:])
	putU64(p[64:], uint64(at.offset))
	for i, crc := range blocks {
		putU64(p[footerBlocksAt+i*crcBytes:], crc)
	}
	end := footerBlocksAt + len(blocks)*crcBytes
	crc := checksum.Sum(p[:end])
	putU64(p[end:], crc)
	return crc
}

// decodeFooter checks the footer of record k with a payload of length bytes and returns the CRCs of
// the blocks and its own.
func decodeFooter(p []byte, k Key, length int64, at place) ([]uint64, uint64, error) {
	n := blockCount(length)
	end := footerBlocksAt + n*crcBytes
	if err := preamble("footer", magicFooter, p, end+crcBytes); err != nil {
		return nil, 0, err
	}
	if err := summed("footer", p, end); err != nil {
		return nil, 0, err
	}
	if u32(p[12:]) != uint32(n) || [16]byte(p[16:32]) != k.Chunk || p[32] != k.Shard ||
		u64(p[40:]) != uint64(length) || UUID(p[48:64]) != at.segment || u64(p[64:]) != uint64(at.offset) {
		return nil, 0, fmt.Errorf("footer: of another record: %w", ErrCorrupt)
	}
	blocks := make([]uint64, n)
	for i := range blocks {
		blocks[i] = u64(p[footerBlocksAt+i*crcBytes:])
	}
	return blocks, u64(p[end:]), nil
}
