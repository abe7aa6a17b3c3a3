package drive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"

	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/pebblefs"
)

// recovery is what Open learns before the drive is used.
type recovery struct {
	d          *Drive
	rebuilding bool
	files      []uint64                 // segment files, ascending
	known      map[uint64]*segmentEntry // segments in the index
	entries    map[uint64][]entry       // records in the index, of segments that are not sealed there
	live       map[uint64]int           // records and pending ones of each segment
	pending    map[uint64][]pending
}

// recover opens the index and brings it and the segments together.
func (d *Drive) recover(ctx context.Context) error {
	segments := path.Join(d.cfg.Dir, segmentsDir)
	if err := vfs.MakeDir(d.cfg.FS, segments); err != nil { // it is there, unless somebody took it away
		return err
	}
	r := &recovery{
		d: d, known: map[uint64]*segmentEntry{}, entries: map[uint64][]entry{},
		live: map[uint64]int{}, pending: map[uint64][]pending{},
	}
	names, err := d.cfg.FS.List(segments)
	if err != nil {
		return err
	}
	for _, name := range names {
		if n, ok := parseSegmentName(name); ok {
			r.files = append(r.files, n)
			d.nextNumber = max(d.nextNumber, n+1)
		}
	}
	slices.Sort(r.files)
	if err := r.openIndex(); err != nil {
		return err
	}
	if err := r.load(); err != nil {
		return err
	}
	for _, n := range r.files {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := r.segment(ctx, n); err != nil {
			return err
		}
	}
	if err := r.missing(); err != nil {
		return err
	}
	slices.SortStableFunc(d.queue, func(a, b pending) int { return cmp.Compare(a.deleted, b.deleted) })
	if err := d.removeDead(); err != nil {
		return err
	}
	if !r.rebuilding {
		return nil
	}
	version := keyValue{[]byte{prefixVersion}, versionValue(d.super.drive)}
	return d.index.write(&indexWrite{put: []keyValue{version}, sync: true})
}

// openIndex opens the index, or starts a new one when there is none that is complete.
func (r *recovery) openIndex() error {
	d := r.d
	dir := path.Join(d.cfg.Dir, indexDir)
	if _, err := d.cfg.FS.Stat(dir); err == nil && !d.cfg.RebuildIndex {
		if d.index, err = openIndex(&d.cfg); err != nil {
			return err
		}
		id, err := d.index.version()
		if err == nil && id == d.super.drive {
			return nil
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err := d.index.close(); err != nil {
			d.index = nil
			return err
		}
		d.index = nil
	} else if err != nil && !errors.Is(err, vfs.ErrNotExist) {
		return err
	}
	if len(r.files) > 0 {
		d.cfg.Log.Warn("index is built from the segments", slog.String("dir", d.cfg.Dir))
	}
	r.rebuilding = true
	if err := r.retire(dir); err != nil {
		return err
	}
	if err := d.cfg.FS.MkdirAll(dir); err != nil {
		return err
	}
	if err := d.cfg.FS.SyncDir(d.cfg.Dir); err != nil {
		return err
	}
	var err error
	d.index, err = openIndex(&d.cfg)
	return err
}

// retire takes the index away in one step, because half of one cannot be opened nor be told from a
// damaged one.
func (r *recovery) retire(dir string) error {
	fs := pebblefs.New(r.d.cfg.FS)
	old := path.Join(r.d.cfg.Dir, retiredDir)
	if err := fs.RemoveAll(old); err != nil { // left by a retire that was cut off
		return err
	}
	err := r.d.cfg.FS.Rename(dir, old)
	if errors.Is(err, vfs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.d.cfg.FS.SyncDir(r.d.cfg.Dir); err != nil {
		return err
	}
	return fs.RemoveAll(old)
}

// load reads the index.
func (r *recovery) load() error {
	d := r.d
	err := d.index.scan(prefixSegment, func(key, value []byte) error {
		s, err := decodeSegmentEntry(key, value)
		r.known[s.number] = &s
		d.nextNumber = max(d.nextNumber, s.number+1)
		return err
	})
	if err != nil {
		return err
	}
	err = d.index.scan(prefixRecord, func(key, value []byte) error {
		e, err := decodeEntry(key, value)
		if err != nil {
			return err
		}
		d.records++
		d.recordBytes += e.space()
		d.newestEpoch = max(d.newestEpoch, e.Epoch)
		r.live[e.segment]++
		d.nextNumber = max(d.nextNumber, e.segment+1)
		if s := r.known[e.segment]; s == nil || s.state != stateSealed {
			r.entries[e.segment] = append(r.entries[e.segment], e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.index.scan(prefixPending, func(key, value []byte) error {
		p, err := decodePending(key, value)
		if err != nil {
			return err
		}
		r.pending[p.segment] = append(r.pending[p.segment], p)
		r.live[p.segment]++
		d.nextNumber = max(d.nextNumber, p.segment+1)
		return nil
	})
}

// adopt makes a sealed segment known to the drive.
func (r *recovery) adopt(s *segment) {
	s.phase = sealed
	s.live = r.live[s.number]
	r.d.segments[s.number] = s
	for _, p := range r.pending[s.number] {
		r.d.queue = append(r.d.queue, p)
		r.d.pendingBytes += p.length
	}
}

// segment brings one segment file in order.
func (r *recovery) segment(ctx context.Context, number uint64) error {
	d := r.d
	known := r.known[number]
	if known == nil || known.state != stateSealed {
		return r.unsealed(ctx, number)
	}
	s := d.newSegment(number, known.id)
	info, err := d.cfg.FS.Stat(s.name)
	if err != nil {
		return err
	}
	s.size, s.tail = info.SizeBytes, known.end
	switch {
	case s.size > known.end: // stopped between sealing and cutting
		if err := r.cut(s, known.end); err != nil {
			return err
		}
	case s.size < known.end:
		d.cfg.Log.Error("segment is shorter than its records", slog.String("segment", s.name),
			slog.Int64("size", s.size), slog.Int64("end", known.end))
	}
	r.adopt(s)
	return nil
}

func (r *recovery) cut(s *segment, end int64) error {
	f, err := r.d.cfg.FS.Open(s.name, vfs.Write)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(end), f.Close()); err != nil {
		return err
	}
	s.size = end
	return nil
}

// missing looks at what the index says of segments that have no file.
func (r *recovery) missing() error {
	d := r.d
	w := &indexWrite{sync: true}
	for n, s := range r.known {
		if _, found := slices.BinarySearch(r.files, n); !found && r.live[n]-len(r.pending[n]) == 0 {
			w.remove = append(w.remove, segmentIndexKey(s.number))
		}
	}
	for n, count := range r.live {
		if _, found := slices.BinarySearch(r.files, n); found && d.segments[n] != nil {
			continue
		}
		for _, p := range r.pending[n] {
			w.remove = append(w.remove, p.indexKey())
		}
		if count -= len(r.pending[n]); count == 0 {
			continue
		}
		d.cfg.Log.Error("segment is missing", slog.Uint64("segment", n), slog.Int("records", count))
		s := d.newSegment(n, UUID{}) // its records are found and cannot be read: they need repair
		s.phase, s.live = sealed, count
		d.segments[n] = s
	}
	if len(w.remove) == 0 {
		return nil
	}
	// Synced, because an entry that came back could meet a new segment of the same number.
	return d.index.write(w)
}

// unsealed scans a segment that was in use, reconciles it with the index, and seals it.
func (r *recovery) unsealed(ctx context.Context, number uint64) (err error) {
	d := r.d
	s := d.newSegment(number, UUID{})
	s.file, err = d.cfg.FS.Open(s.name, vfs.Write)
	if err != nil {
		return err
	}
	defer func() {
		if s.file != nil {
			err = errors.Join(err, s.file.Close())
			s.file = nil
		}
	}()
	if s.size, err = s.file.Size(); err != nil {
		return err
	}
	ended, err := r.identify(s)
	if errors.Is(err, ErrCorrupt) {
		return r.headless(s)
	}
	if err != nil {
		return err
	}
	sc := &scan{
		ctx: ctx, file: s.file, secret: &d.super.secret, id: s.id, size: s.size, number: number,
		log: d.cfg.Log, trust: ended && r.rebuilding, indexed: r.entries[number], pending: r.pending[number],
	}
	if known := r.known[number]; known != nil {
		sc.distrust = known.state == stateBroken
	}
	if err := sc.run(); err != nil {
		return err
	}
	return r.settle(s, sc)
}

// identify reads the segment's id from its header, or from the index, and whether it bears a seal.
func (r *recovery) identify(s *segment) (ended bool, err error) {
	p := make([]byte, recordsOffset)
	n, err := s.file.ReadAt(p, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	p = append(p[:n], make([]byte, recordsOffset-n)...)
	sec := &r.d.super.secret
	h, err := decodeSegmentHeader(sec, p[:unit])
	if err != nil {
		h, err = decodeSegmentHeader(sec, p[unit:2*unit])
	}
	if err == nil && (h.drive != r.d.super.drive || h.number != s.number) {
		err = fmt.Errorf("segment header: of another segment: %w", ErrCorrupt)
	}
	if err == nil {
		s.id = h.id
	} else if known := r.known[s.number]; known != nil {
		s.id = known.id
	} else {
		return false, err
	}
	e, err := decodeSeal(sec, p[sealOffset:recordsOffset])
	return err == nil && e.id == s.id, nil
}

// headless ends a segment without a header. One that was being created is removed; one that seems
// to hold records is put aside.
func (r *recovery) headless(s *segment) error {
	d := r.d
	found, err := anyRecord(s.file, s.size)
	if err != nil {
		return err
	}
	if found || len(r.entries[s.number]) > 0 {
		d.cfg.Log.Error("segment has no readable header and is put aside", slog.String("segment", s.name))
		return d.cfg.FS.Rename(s.name, s.name+asideSuffix)
	}
	return d.cfg.FS.Remove(s.name)
}

// settle writes down what the scan of a segment found.
func (r *recovery) settle(s *segment, sc *scan) error {
	d := r.d
	if err := sc.punchGaps(); err != nil {
		return err
	}
	s.tail = sc.end
	w := &indexWrite{}
	for _, e := range sc.found {
		w.put = append(w.put, keyValue{e.indexKey(), e.indexValue()})
		d.records++
		d.recordBytes += e.space()
		d.newestEpoch = max(d.newestEpoch, e.Epoch)
		r.live[s.number]++
	}
	if len(w.put) > 0 {
		if err := d.index.write(w); err != nil {
			return err
		}
	}
	d.cfg.Log.Info("segment recovered", slog.String("segment", s.name), slog.Int("found", len(sc.found)),
		slog.Int("indexed", len(sc.indexed)), slog.Int("refused", sc.refused))
	r.adopt(s) // seal sees how many records are live
	if sc.damaged {
		// Not sealed, so that the next Open looks again, and not removed.
		s.phase = broken
		return nil
	}
	return d.seal(s)
}
