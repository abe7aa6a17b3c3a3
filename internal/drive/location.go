package drive

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/penstock-store/penstock/internal/vfs"
)

// Location is a pinned record. Safe for concurrent use.
type Location struct {
	d        *Drive
	p        *pinned
	released atomic.Bool
}

// Record describes it.
func (l *Location) Record() Record { return l.p.Record }

// ReadAt reads payload bytes [off, off+len(p)), which must lie inside the payload; it reads all of
// them or returns an error. The bytes are not verified here. Errors: ErrInvalid, those of the
// device, ErrCorrupt when the segment is gone or cut, ErrClosed.
func (l *Location) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > l.p.Length {
		return 0, fmt.Errorf("record: read %d bytes at %d of %d: %w", len(p), off, l.p.Length, ErrInvalid)
	}
	return l.d.readSegment(l.p.seg, p, l.p.offset+unit+off)
}

// BlockCRCs returns the CRC64NVMEs of blocks [first, first+n) from the verified footer, which is
// read once while the record is pinned. The slice must not be changed. Errors: ErrInvalid,
// ErrCorrupt, those of the device.
func (l *Location) BlockCRCs(first, n int) ([]uint64, error) {
	blocks, err := l.footer()
	if err != nil {
		return nil, err
	}
	if first < 0 || n < 0 || first+n > len(blocks) {
		return nil, fmt.Errorf("record: blocks %d and %d more of %d: %w", first, n, len(blocks), ErrInvalid)
	}
	return blocks[first : first+n : first+n], nil
}

func (l *Location) footer() ([]uint64, error) {
	p := l.p
	p.footerMu.Lock()
	defer p.footerMu.Unlock()
	if p.blocks != nil {
		return p.blocks, nil
	}
	buf := l.d.metas.get()
	defer l.d.metas.put(buf)
	raw := buf[:alignUp(footerLength(p.Length))]
	if _, err := l.d.readSegment(p.seg, raw, p.offset+unit+alignUp(p.Length)); err != nil {
		return nil, fmt.Errorf("footer: read: %w", err)
	}
	blocks, _, err := decodeFooter(raw, p.Key, p.Length, p.seg.place(p.offset))
	if err != nil {
		return nil, err
	}
	p.blocks = blocks
	return blocks, nil
}

// Release drops the pin. No other call may be under way or follow; a second Release does nothing.
func (l *Location) Release() {
	if !l.released.Swap(true) {
		l.d.pins.shard(l.p.Key).drop(l.p)
	}
}

// readSegment reads len(p) bytes at off of the file.
func (d *Drive) readSegment(seg *segment, p []byte, off int64) (n int, err error) {
	file := &seg.buffered
	aligned := off%unit == 0 && len(p)%unit == 0 && vfs.Aligned(p)
	if d.cfg.DirectReads && aligned && !d.directRefused.Load() {
		file = &seg.unbuffered
	}
	f, opened, err := file.acquire()
	if errors.Is(err, vfs.ErrNotSupported) && file == &seg.unbuffered {
		d.directRefused.Store(true)
		file = &seg.buffered
		f, opened, err = file.acquire()
	}
	if err != nil {
		return 0, err
	}
	if opened && d.openReads.Add(1) > d.cfg.openReads {
		d.closeIdleRead()
	}
	n, err = f.ReadAt(p, off)
	if n == len(p) {
		err = nil
	} else if errors.Is(err, io.EOF) || err == nil {
		err = fmt.Errorf("segment: read %d bytes at %d, got %d: %w", len(p), off, n, ErrCorrupt)
	}
	return n, errors.Join(err, file.release())
}

// closeIdleRead closes one segment file that nobody reads now.
func (d *Drive) closeIdleRead() {
	d.mu.Lock()
	candidates := make([]*readFile, 0, 2*len(d.segments))
	for _, s := range d.segments {
		candidates = append(candidates, &s.buffered, &s.unbuffered)
	}
	d.mu.Unlock()
	for _, r := range candidates {
		closed, err := r.closeIdle(false)
		if err != nil {
			d.cfg.Log.Warn("segment: close", slog.Any("error", err))
		}
		if closed {
			d.openReads.Add(-1)
			return
		}
	}
}
