package drive

import (
	"encoding/binary"
	"fmt"
)

// Key prefixes of the index.
const (
	prefixRecord  = 'c'
	prefixPending = 'p'
	prefixSegment = 's'
	prefixVersion = 'v'
)

const (
	recordKeyBytes    = 1 + 16 + 1
	recordValueBytes  = 68
	pendingKeyBytes   = 1 + 8 + 8
	pendingValueBytes = 1 + 8 + 8 + 17
	segmentKeyBytes   = 1 + 8
	segmentValueBytes = 1 + 1 + 16 + 8
	versionValueBytes = 1 + 16
)

// entry is a record and where it lies.
type entry struct {
	Record
	segment uint64 // number
	offset  int64
}

func (e *entry) space() int64 { return recordSpace(e.Length) }

// pending is a deleted record that has not been punched.
type pending struct {
	Key
	segment uint64
	offset  int64
	length  int64 // of the whole record in the segment
	deleted int64 // Unix seconds
}

// States of a segment in the index.
const (
	stateOpen   = 0
	stateSealed = 1
	stateBroken = 2 // one of its syncs failed; every acknowledged record of it has a durable entry
)

// segmentEntry is what the index knows of a segment.
type segmentEntry struct {
	number uint64
	state  byte
	id     UUID
	end    int64 // when sealed
}

func (k Key) indexKey() []byte {
	p := make([]byte, 0, recordKeyBytes)
	p = append(p, prefixRecord)
	p = append(p, k.Chunk[:]...)
	return append(p, k.Shard)
}

func (e *entry) indexValue() []byte {
	p := make([]byte, 0, recordValueBytes)
	p = append(p, formatVersion, e.Data, e.Parity, 0)
	p = append(p, e.Owner[:]...)
	p = appendU64(p, e.Epoch)
	p = appendU64(p, uint64(e.Length))
	p = appendU64(p, uint64(e.ChunkLength))
	p = appendU64(p, e.ChunkCRC)
	p = appendU64(p, e.segment)
	return appendU64(p, uint64(e.offset))
}

// shape checks the lengths and the version byte of an index entry.
func shape(what string, key, value []byte, keyBytes, valueBytes int) error {
	if len(key) != keyBytes || len(value) < 1 {
		return fmt.Errorf("index: %s entry of %d and %d bytes: %w", what, len(key), len(value), ErrCorrupt)
	}
	if value[0] > formatVersion {
		return fmt.Errorf("index: %s entry of version %d: %w", what, value[0], ErrNewer)
	}
	if len(value) != valueBytes {
		return fmt.Errorf("index: %s entry of %d bytes: %w", what, len(value), ErrCorrupt)
	}
	return nil
}

func decodeEntry(key, v []byte) (entry, error) {
	if err := shape("record", key, v, recordKeyBytes, recordValueBytes); err != nil {
		return entry{}, err
	}
	e := entry{
		Record: Record{
			Key:  Key{Chunk: [16]byte(key[1:17]), Shard: key[17]},
			Data: v[1], Parity: v[2], Owner: [16]byte(v[4:20]), Epoch: u64(v[20:]),
			Length: int64(u64(v[28:])), ChunkLength: int64(u64(v[36:])), ChunkCRC: u64(v[44:]),
		},
		segment: u64(v[52:]), offset: int64(u64(v[60:])),
	}
	if err := e.check(); err != nil {
		return entry{}, fmt.Errorf("index: record entry: %w: %w", ErrCorrupt, err)
	}
	if e.offset < recordsOffset || e.offset%unit != 0 {
		return entry{}, fmt.Errorf("index: record entry at offset %d: %w", e.offset, ErrCorrupt)
	}
	return e, nil
}

func (p *pending) indexKey() []byte {
	b := make([]byte, 0, pendingKeyBytes)
	b = append(b, prefixPending)
	b = binary.BigEndian.AppendUint64(b, p.segment)
	return binary.BigEndian.AppendUint64(b, uint64(p.offset))
}

func (p *pending) indexValue() []byte {
	b := make([]byte, 0, pendingValueBytes)
	b = append(b, formatVersion)
	b = appendU64(b, uint64(p.deleted))
	b = appendU64(b, uint64(p.length))
	b = append(b, p.Chunk[:]...)
	return append(b, p.Shard)
}

func decodePending(key, v []byte) (pending, error) {
	if err := shape("pending", key, v, pendingKeyBytes, pendingValueBytes); err != nil {
		return pending{}, err
	}
	p := pending{
		Key:     Key{Chunk: [16]byte(v[17:33]), Shard: v[33]},
		segment: binary.BigEndian.Uint64(key[1:]), offset: int64(binary.BigEndian.Uint64(key[9:])),
		deleted: int64(u64(v[1:])), length: int64(u64(v[9:])),
	}
	if p.offset < recordsOffset || p.offset%unit != 0 || p.length < unit || p.length > recordSpace(MaxPayloadBytes) {
		return pending{}, fmt.Errorf("index: pending entry of %d at %d: %w", p.length, p.offset, ErrCorrupt)
	}
	return p, nil
}

func segmentIndexKey(number uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixSegment}, number)
}

func (s *segmentEntry) indexValue() []byte {
	b := make([]byte, 0, segmentValueBytes)
	b = append(b, formatVersion, s.state)
	b = append(b, s.id[:]...)
	return appendU64(b, uint64(s.end))
}

func decodeSegmentEntry(key, v []byte) (segmentEntry, error) {
	if err := shape("segment", key, v, segmentKeyBytes, segmentValueBytes); err != nil {
		return segmentEntry{}, err
	}
	s := segmentEntry{
		number: binary.BigEndian.Uint64(key[1:]), state: v[1], id: UUID(v[2:18]), end: int64(u64(v[18:])),
	}
	if s.state > stateBroken {
		return segmentEntry{}, fmt.Errorf("index: segment entry with state %d: %w", s.state, ErrCorrupt)
	}
	if s.state == stateSealed && (s.end < recordsOffset || s.end%unit != 0) {
		return segmentEntry{}, fmt.Errorf("index: segment entry with end %d: %w", s.end, ErrCorrupt)
	}
	return s, nil
}
