package drive

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/vfs"
)

// scanBytes is the piece in which a segment is read by a scan.
const scanBytes = 1 << 20

// scan looks for the records of a segment that was not sealed, or is not known to be.
type scan struct {
	ctx    context.Context
	file   vfs.File
	secret *secret
	id     UUID
	number uint64
	size   int64
	log    *slog.Logger
	trust  bool // the segment is sealed: records need no check of their payload
	// distrust: a sync of the segment failed. What the page cache shows of records without an entry
	// need not be on the medium, and none of them was acknowledged.
	distrust bool
	indexed  []entry // records that the index has here; whole, whatever their header says now
	pending  []pending

	found    []entry // valid records that the index lacks
	refused  int     // records whose payload does not verify: never acknowledged
	end      int64   // behind the last record
	damaged  bool    // something could not be read: nothing may be freed
	occupied []span  // places of indexed, pending and found records
}

// span is a range of the segment.
type span struct{ from, to int64 }

func (s *scan) run() error {
	for _, e := range s.indexed {
		s.occupied = append(s.occupied, span{e.offset, e.offset + e.space()})
	}
	for _, p := range s.pending {
		s.occupied = append(s.occupied, span{p.offset, p.offset + p.length})
	}
	sortSpans(s.occupied)
	known := slices.Clone(s.occupied)
	buf := vfs.AlignedBytes(scanBytes)
	off := int64(recordsOffset)
	for _, data := range s.dataRanges() {
		for off = max(off, data.from); off+unit <= s.size && off < data.to; {
			if err := context.Cause(s.ctx); err != nil {
				return err
			}
			next, err := s.window(off, buf, known)
			if err != nil {
				return err
			}
			off = next
		}
	}
	sortSpans(s.occupied)
	s.end = recordsOffset
	for _, o := range s.occupied {
		s.end = max(s.end, o.to)
	}
	return nil
}

// dataRanges are the ranges that may hold bytes, so that preallocated space need not be read.
func (s *scan) dataRanges() []span {
	whole := []span{{recordsOffset, s.size}}
	seeker, ok := s.file.(vfs.DataSeeker)
	if !ok {
		return whole
	}
	var ranges []span
	for off := int64(recordsOffset); ; {
		from, to, err := seeker.NextData(off)
		if errors.Is(err, io.EOF) {
			return ranges
		}
		if err != nil || to <= off {
			return whole
		}
		ranges = append(ranges, span{from &^ (unit - 1), alignUp(to)})
		off = to
	}
}

func sortSpans(s []span) {
	slices.SortFunc(s, func(a, b span) int { return cmp.Compare(a.from, b.from) })
}

// skip returns the end of the known record that covers off, or off.
func skip(known []span, off int64) int64 {
	i, found := slices.BinarySearchFunc(known, off, func(s span, at int64) int { return cmp.Compare(s.from, at) })
	if !found {
		i--
	}
	if i >= 0 && i < len(known) && off < known[i].to {
		return known[i].to
	}
	return off
}

// window tries every unit of the piece at off and returns where to go on.
func (s *scan) window(off int64, buf []byte, known []span) (int64, error) {
	if to := skip(known, off); to > off {
		return to, nil
	}
	n := min(int64(len(buf)), s.size-off)
	if _, err := s.file.ReadAt(buf[:n], off); err != nil && !errors.Is(err, io.EOF) {
		if n > unit { // find what is readable around the bad place
			return s.window(off, buf[:unit], known)
		}
		s.log.Error("segment: read while scanning", slog.Int64("offset", off), slog.Any("error", err))
		s.damaged = true
		return off + unit, nil
	}
	for in := int64(0); in+unit <= n; in += unit {
		if to := skip(known, off+in); to > off+in {
			return to, nil
		}
		if string(buf[in:in+8]) != magicRecord {
			continue
		}
		space, err := s.try(buf[in:in+unit], off+in)
		if err != nil {
			return 0, err
		}
		if space > 0 {
			return off + in + space, nil
		}
	}
	return off + max(n&^(unit-1), unit), nil
}

// try looks at a unit that begins like a header and returns the space of a valid record, or 0.
func (s *scan) try(header []byte, off int64) (int64, error) {
	at := place{s.id, off}
	r, footerCRC, err := decodeHeader(s.secret, header, at)
	if err != nil || off+recordSpace(r.Length) > s.size {
		return 0, nil
	}
	raw := make([]byte, alignUp(footerLength(r.Length)))
	if _, err := s.file.ReadAt(raw, off+unit+alignUp(r.Length)); err != nil {
		s.log.Error("footer: read while scanning", slog.Int64("offset", off), slog.Any("error", err))
		s.damaged = true
		return 0, nil
	}
	blocks, crc, err := decodeFooter(raw, r.Key, r.Length, at)
	if err != nil || crc != footerCRC {
		return 0, nil
	}
	whole := s.trust
	if !whole && !s.distrust {
		if whole, err = s.verify(off+unit, r.Length, blocks); err != nil {
			return 0, err
		}
	}
	if !whole {
		s.refused++
		return recordSpace(r.Length), nil
	}
	s.found = append(s.found, entry{Record: r, segment: s.number, offset: off})
	s.occupied = append(s.occupied, span{off, off + recordSpace(r.Length)})
	return recordSpace(r.Length), nil
}

// verify compares a payload with its checksums. A payload that cannot be read counts as whole: it
// may have been acknowledged, and it is better to know of it; readers verify what they get.
func (s *scan) verify(off, length int64, blocks []uint64) (bool, error) {
	buf := make([]byte, BlockBytes)
	for i, crc := range blocks {
		if err := context.Cause(s.ctx); err != nil {
			return false, err
		}
		p := buf[:min(BlockBytes, length-int64(i)*BlockBytes)]
		if _, err := s.file.ReadAt(p, off+int64(i)*BlockBytes); err != nil {
			s.log.Error("payload: read while scanning", slog.Int64("offset", off), slog.Any("error", err))
			s.damaged = true
			return true, nil
		}
		if checksum.Sum(p) != crc {
			return false, nil
		}
	}
	return true, nil
}

// punchGaps frees what no record occupies, durably: unfinished and refused records.
func (s *scan) punchGaps() error {
	if s.damaged || s.trust {
		return nil
	}
	from := int64(recordsOffset)
	punched := false
	for _, o := range append(slices.Clone(s.occupied), span{s.end, s.end}) {
		if o.from > from {
			if err := s.free(from, o.from); err != nil {
				return err
			}
			punched = true
		}
		from = max(from, o.to)
	}
	if !punched {
		return nil
	}
	return s.file.Sync()
}

// free punches a gap. Where that is not possible every unit of it that looks like a header is
// overwritten.
func (s *scan) free(from, to int64) error {
	err := s.file.Punch(from, to-from)
	if !errors.Is(err, vfs.ErrNotSupported) {
		return err
	}
	head, zero := make([]byte, unit), make([]byte, unit)
	for ; from < to; from += unit {
		if _, err := s.file.ReadAt(head, from); err != nil {
			return err
		}
		if string(head[:8]) == magicRecord {
			if err := writeFull(s.file, zero, from); err != nil {
				return err
			}
		}
	}
	return nil
}

// anyRecord says whether something in a file begins like a record header.
func anyRecord(f vfs.File, size int64) (bool, error) {
	buf := make([]byte, scanBytes)
	for off := int64(0); off < size; off += scanBytes {
		n, err := f.ReadAt(buf, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		for in := 0; in+unit <= n; in += unit {
			if string(buf[in:in+8]) == magicRecord {
				return true, nil
			}
		}
	}
	return false, nil
}
