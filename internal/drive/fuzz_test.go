package drive

import (
	"bytes"
	"testing"

	"github.com/penstock-store/penstock/internal/checksum"
)

// The oracle of these targets: a parser never panics; what it accepts passes the stated limits and
// encodes to the bytes it was read from, reserved ones excepted. Every input is tried as it is, and
// once more with a valid checksum and MAC, because no random input has those.

func testSecret() *secret { return &secret{1, 2, 3} }

// block makes a whole block of an input.
func block(p []byte, n int) []byte {
	b := make([]byte, n)
	copy(b, p)
	return b
}

func FuzzRecordHeader(f *testing.F) {
	good := make([]byte, unit)
	r := record(7, 100_000)
	encodeHeader(good, testSecret(), &r, place{UUID{9}, recordsOffset}, 42)
	f.Add(good[:160], int64(recordsOffset))
	f.Add(good[:90], int64(recordsOffset))
	f.Add([]byte(magicRecord), int64(0))
	f.Fuzz(func(t *testing.T, p []byte, offset int64) {
		_, _, _ = decodeHeader(testSecret(), p, place{UUID{9}, offset}) // must not panic
		b := block(p, unit)
		testSecret().endorse(labelRecord, b, recordMACAt)
		at := place{UUID(b[96:112]), int64(u64(b[112:]))}
		r, crc, err := decodeHeader(testSecret(), b, at)
		if err != nil {
			return
		}
		if r.check() != nil {
			t.Fatalf("accepted %+v", r)
		}
		again := make([]byte, unit)
		encodeHeader(again, testSecret(), &r, at, crc)
		clearReserved(b, 8, 16, 35, 40)
		if !bytes.Equal(again[16:recordMACAt], b[16:recordMACAt]) {
			t.Fatalf("read % x\nwrote % x", b[:recordMACAt], again[:recordMACAt])
		}
		if _, _, err := decodeHeader(testSecret(), b, place{at.segment, at.offset + unit}); err == nil {
			t.Fatal("accepted at another place")
		}
		if _, _, err := decodeHeader(&secret{5}, b, at); err == nil {
			t.Fatal("accepted under another secret")
		}
	})
}

// clearReserved zeroes pairs of [from, to).
func clearReserved(p []byte, bounds ...int) {
	for i := 0; i+1 < len(bounds); i += 2 {
		clear(p[bounds[i]:bounds[i+1]])
	}
}

func FuzzFooter(f *testing.F) {
	r := record(7, 200_000)
	good := make([]byte, unit)
	encodeFooter(good, &r, place{UUID{9}, recordsOffset}, []uint64{1, 2, 3, 4})
	f.Add(good[:footerLength(200_000)], int64(200_000))
	f.Add(good[:80], int64(1))
	f.Add([]byte{}, int64(MaxPayloadBytes))
	f.Fuzz(func(t *testing.T, p []byte, length int64) {
		length = min(max(length, 1), MaxPayloadBytes)
		at := place{UUID{9}, recordsOffset}
		_, _, _ = decodeFooter(p, key(7), length, at) // must not panic
		n := int(alignUp(footerLength(length)))
		b := block(p, n)
		end := footerBlocksAt + blockCount(length)*crcBytes
		putU64(b[end:], checksum.Sum(b[:end]))
		k, where := Key{Chunk: [16]byte(b[16:32]), Shard: b[32]}, place{UUID(b[48:64]), int64(u64(b[64:]))}
		blocks, crc, err := decodeFooter(b, k, length, where)
		if err != nil {
			return
		}
		if len(blocks) != blockCount(length) {
			t.Fatalf("%d blocks for %d bytes", len(blocks), length)
		}
		again := make([]byte, n)
		encodeFooter(again, &Record{Key: k, Length: length}, where, blocks)
		clearReserved(b, 8, 12, 33, 40)
		clearReserved(again, 8, 12)
		if !bytes.Equal(again[:end], b[:end]) || crc == 0 && again[end] != 0 {
			t.Fatalf("read % x\nwrote % x", b[:end], again[:end])
		}
	})
}

func FuzzSuperblock(f *testing.F) {
	sb := superblock{drive: UUID{1}, set: UUID{2}, secret: secret{3}, created: 4}
	f.Add(sb.encode()[:88])
	f.Add(sb.encode()[:40])
	f.Add([]byte(magicSuperblock))
	f.Fuzz(func(t *testing.T, p []byte) {
		_, _ = decodeSuperblock(p) // must not panic
		b := block(p, superblockBytes)
		putU64(b[superblockCRCAt:], checksum.Sum(b[:superblockCRCAt]))
		got, err := decodeSuperblock(b)
		if err != nil {
			return
		}
		if again, err := decodeSuperblock(got.encode()); err != nil || *again != *got {
			t.Fatalf("read %+v, then %+v, %v", got, again, err)
		}
	})
}

func FuzzSegmentBlocks(f *testing.F) {
	h := segmentHeader{drive: UUID{1}, id: UUID{2}, number: 3, size: 1 << 30}
	f.Add(h.encode(testSecret())[:segmentCRCAt+crcBytes])
	e := seal{id: UUID{2}, end: 1 << 20}
	f.Add(e.encode(testSecret())[:sealCRCAt+crcBytes])
	f.Add([]byte(magicSegment))
	f.Fuzz(func(t *testing.T, p []byte) {
		_, _ = decodeSegmentHeader(testSecret(), p) // must not panic
		_, _ = decodeSeal(testSecret(), p)
		b := block(p, unit)
		testSecret().endorse(labelSegment, b, segmentMACAt)
		if h, err := decodeSegmentHeader(testSecret(), b); err == nil {
			if again, err := decodeSegmentHeader(testSecret(), h.encode(testSecret())); err != nil || *again != *h {
				t.Fatalf("read %+v, then %+v, %v", h, again, err)
			}
			if _, err := decodeSegmentHeader(&secret{5}, b); err == nil {
				t.Fatal("accepted under another secret")
			}
		}
		b = block(p, unit)
		testSecret().endorse(labelSeal, b, sealMACAt)
		if e, err := decodeSeal(testSecret(), b); err == nil {
			if again, err := decodeSeal(testSecret(), e.encode(testSecret())); err != nil || *again != *e {
				t.Fatalf("read %+v, then %+v, %v", e, again, err)
			}
		}
	})
}

func FuzzIndexEntries(f *testing.F) {
	e := entry{Record: record(7, 100), segment: 3, offset: recordsOffset}
	f.Add(e.indexKey(), e.indexValue())
	p := pending{Key: key(7), segment: 3, offset: recordsOffset, length: recordSpace(100), deleted: 5}
	f.Add(p.indexKey(), p.indexValue())
	s := segmentEntry{number: 3, state: stateSealed, id: UUID{1}, end: recordsOffset}
	f.Add(segmentIndexKey(3), s.indexValue())
	f.Fuzz(func(t *testing.T, k, v []byte) {
		if e, err := decodeEntry(k, v); err == nil {
			if e.check() != nil || e.offset < recordsOffset || e.offset%unit != 0 {
				t.Fatalf("accepted %+v", e)
			}
			if again, err := decodeEntry(e.indexKey(), e.indexValue()); err != nil || again != e {
				t.Fatalf("read %+v, then %+v, %v", e, again, err)
			}
		}
		if p, err := decodePending(k, v); err == nil {
			if again, err := decodePending(p.indexKey(), p.indexValue()); err != nil || again != p {
				t.Fatalf("read %+v, then %+v, %v", p, again, err)
			}
		}
		if s, err := decodeSegmentEntry(k, v); err == nil {
			if again, err := decodeSegmentEntry(segmentIndexKey(s.number), s.indexValue()); err != nil || again != s {
				t.Fatalf("read %+v, then %+v, %v", s, again, err)
			}
		}
		_, _ = parseSegmentName(string(k))
	})
}
