package drive

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/penstock-store/penstock/internal/vfs"
)

const (
	// smallBytes is the largest record that is gathered in memory and written at once by Commit: a
	// payload of 128 KiB. One write costs a small record less than three.
	smallBytes = unit + 128<<10 + unit

	// smallKept and metaKept bound the idle buffers kept for the next writers: 64 writers at a
	// time saturate any drive.
	smallKept, metaKept = 64, 64

	// bounceBytes is the piece in which unaligned memory is copied for a direct write.
	bounceBytes = 256 << 10
	bounceKept  = 8

	// A meta buffer holds a header, the last unit of a payload that ends inside it, and a footer.
	metaTailAt   = unit
	metaFooterAt = 2 * unit
	metaBytes    = metaFooterAt + (footerBlocksAt+MaxPayloadBytes/BlockBytes*crcBytes+crcBytes+unit-1)/unit*unit
)

// freeList keeps some aligned buffers for the next user.
type freeList struct {
	idle  chan []byte
	bytes int
}

func newFreeList(kept, bytes int) freeList { return freeList{make(chan []byte, kept), bytes} }

func (l freeList) get() []byte {
	select {
	case p := <-l.idle:
		return p
	default:
		return vfs.AlignedBytes(l.bytes)
	}
}

func (l freeList) put(p []byte) {
	select {
	case l.idle <- p:
	default:
	}
}

// Writer writes one record. WriteAt may be called concurrently for disjoint pieces; Commit or
// Abort comes last.
type Writer struct {
	d      *Drive
	seg    *segment
	rec    Record
	offset int64 // of the header

	small []byte // the whole record, when it is gathered
	meta  []byte // header, tail and footer otherwise

	written atomic.Int64
	tail    atomic.Bool // meta holds the last, part-filled unit of the payload
	failed  atomic.Bool // a WriteAt failed
	ended   atomic.Bool
}

// Record is the record being written.
func (w *Writer) Record() Record { return w.rec }

// WriteAt writes p at off of the payload and returns when the device has it (not yet durable). off
// must be a multiple of vfs.Alignment, and so must len(p) unless p ends the payload. Memory that is
// not aligned to vfs.Alignment is copied first. Every payload byte is written exactly once. After
// an error the record cannot be committed. Errors: ErrInvalid, ErrNoSpace, those of the device.
func (w *Writer) WriteAt(p []byte, off int64) (int, error) {
	if w.ended.Load() {
		return 0, fmt.Errorf("record: write: %w", ErrClosed)
	}
	end := off + int64(len(p))
	if off < 0 || off%unit != 0 || end > w.rec.Length || (len(p)%unit != 0 && end != w.rec.Length) {
		return 0, fmt.Errorf("record: write %d bytes at %d of %d: %w", len(p), off, w.rec.Length, ErrInvalid)
	}
	if err := w.place(p, off); err != nil {
		w.failed.Store(true)
		return 0, fmt.Errorf("record: write: %w", err)
	}
	w.written.Add(int64(len(p)))
	return len(p), nil
}

// place moves the bytes to the record's memory or to the device.
func (w *Writer) place(p []byte, off int64) error {
	if w.small != nil {
		copy(w.small[unit+off:], p)
		return nil
	}
	whole := len(p) &^ (unit - 1)
	if whole < len(p) {
		clear(w.meta[metaTailAt:metaFooterAt])
		copy(w.meta[metaTailAt:], p[whole:])
		w.tail.Store(true)
	}
	at := w.offset + unit + off
	p = p[:whole]
	if !w.seg.direct || vfs.Aligned(p) {
		if len(p) == 0 {
			return nil
		}
		return writeFull(w.seg.file, p, at)
	}
	buf := w.d.bounces.get()
	defer w.d.bounces.put(buf)
	for len(p) > 0 {
		n := copy(buf, p)
		if err := writeFull(w.seg.file, buf[:n], at); err != nil {
			return err
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}

// Commit writes header and footer, waits for an fdatasync that it shares with concurrent commits,
// and makes the record visible. A context that has ended before that fdatasync aborts instead. On
// any error the record is not visible and its space is given back. Errors: ErrInvalid, ErrReadOnly,
// ErrNoSpace, ErrClosed, the context's error, those of the device.
func (w *Writer) Commit(ctx context.Context, s Sums) error {
	if w.ended.Swap(true) {
		return fmt.Errorf("record: commit: %w", ErrClosed)
	}
	if err := w.commit(ctx, s); err != nil {
		w.finish(false)
		return fmt.Errorf("record: commit: %w", err)
	}
	w.finish(true)
	return nil
}

var errWriteFailed = errors.New("a write of its payload failed")

func (w *Writer) commit(ctx context.Context, s Sums) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := w.d.writable(); err != nil {
		return err
	}
	switch n := w.written.Load(); {
	case w.failed.Load():
		return errWriteFailed
	case n != w.rec.Length:
		return fmt.Errorf("%d of %d bytes written: %w", n, w.rec.Length, ErrInvalid)
	case len(s.Blocks) != blockCount(w.rec.Length):
		return fmt.Errorf("%d block checksums for %d bytes: %w", len(s.Blocks), w.rec.Length, ErrInvalid)
	}
	w.rec.ChunkCRC = s.Chunk
	if err := w.writeEnds(s.Blocks); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := w.d.writable(); err != nil {
		return err
	}
	if err := w.seg.sync.wait(); err != nil {
		return w.d.fail(w.seg, fmt.Errorf("segment %s: sync: %w", w.seg.name, err))
	}
	e := entry{Record: w.rec, segment: w.seg.number, offset: w.offset}
	put := []keyValue{{e.indexKey(), e.indexValue()}}
	if err := w.d.index.write(&indexWrite{put: put}); err != nil {
		return w.d.fail(nil, err)
	}
	if w.d.writable() != nil {
		// A later sync failed meanwhile. The next Open may not believe what it finds in that segment,
		// so the entry has to be durable.
		if err := w.d.index.write(&indexWrite{sync: true}); err != nil {
			return w.d.fail(nil, err)
		}
	}
	return nil
}

// writeEnds writes the header and the footer, and the payload of a gathered record.
func (w *Writer) writeEnds(blocks []uint64) error {
	at, sec := w.seg.place(w.offset), &w.d.super.secret
	padded, footer := alignUp(w.rec.Length), alignUp(footerLength(w.rec.Length))
	if w.small != nil {
		clear(w.small[unit+w.rec.Length : unit+padded])
		crc := encodeFooter(w.small[unit+padded:unit+padded+footer], &w.rec, at, blocks)
		encodeHeader(w.small, sec, &w.rec, at, crc)
		return writeFull(w.seg.file, w.small[:unit+padded+footer], w.offset)
	}
	crc := encodeFooter(w.meta[metaFooterAt:metaFooterAt+footer], &w.rec, at, blocks)
	encodeHeader(w.meta, sec, &w.rec, at, crc)
	from, off := int64(metaFooterAt), w.offset+unit+padded
	if w.tail.Load() {
		from, off = metaTailAt, off-unit
	}
	if err := writeFull(w.seg.file, w.meta[from:metaFooterAt+footer], off); err != nil {
		return err
	}
	return writeFull(w.seg.file, w.meta[:unit], w.offset)
}

// Abort gives the place back. After Commit it does nothing, so it may be deferred.
func (w *Writer) Abort() {
	if !w.ended.Swap(true) {
		w.finish(false)
	}
}

// finish ends the reservation.
func (w *Writer) finish(committed bool) {
	d := w.d
	if w.small != nil {
		d.smalls.put(w.small)
	}
	if w.meta != nil {
		d.metas.put(w.meta)
	}
	space := recordSpace(w.rec.Length)
	d.mu.Lock()
	delete(d.writing, w.rec.Key)
	w.seg.writers--
	if committed {
		d.records++
		d.recordBytes += space
		w.seg.live++
	} else {
		d.trash = append(d.trash, extent{w.seg, w.offset, space})
	}
	turn := !committed || w.seg.phase == full && w.seg.writers == 0
	d.mu.Unlock()
	if turn {
		d.wake()
	}
	d.leave()
}
