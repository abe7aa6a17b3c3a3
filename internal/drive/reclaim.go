package drive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"time"

	"github.com/penstock-store/penstock/internal/vfs"
)

// turnInterval is how often the queue of deleted records is looked at. Space returns after a grace
// of minutes, so seconds more do not matter.
const turnInterval = 10 * time.Second

// syncError marks an error as that of a failed sync, which makes the drive read-only.
type syncError struct{ err error }

func (e *syncError) Error() string { return e.err.Error() }
func (e *syncError) Unwrap() error { return e.err }

// wake asks for a turn of maintenance soon.
func (d *Drive) wake() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}

// maintain takes turns until ctx ends.
func (d *Drive) maintain(ctx context.Context) {
	t := time.NewTicker(turnInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wakeup:
		case <-t.C:
		}
		if d.writable() != nil {
			continue
		}
		if err := d.turn(ctx); err != nil && ctx.Err() == nil {
			d.cfg.Log.Warn("drive maintenance", slog.String("dir", d.cfg.Dir), slog.Any("error", err))
		}
	}
}

// Reclaim punches the deleted records whose grace is over and that nobody pins, seals full
// segments and removes dead ones, now instead of at the next turn of the background work.
func (d *Drive) Reclaim(ctx context.Context) error {
	if err := d.enter(); err != nil {
		return fmt.Errorf("drive: reclaim: %w", err)
	}
	defer d.leave()
	if err := d.writable(); err != nil {
		return fmt.Errorf("drive: reclaim: %w", err)
	}
	return d.turn(ctx)
}

// turn does what is due. One turn runs at a time; only turns seal, punch and remove segments.
func (d *Drive) turn(ctx context.Context) error {
	select {
	case <-d.turns:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { d.turns <- struct{}{} }()
	if err := d.sealReady(); err != nil {
		return err
	}
	if err := d.punchDue(ctx); err != nil {
		return err
	}
	return d.removeDead()
}

// sealReady seals the full segments that no writer uses.
func (d *Drive) sealReady() error {
	d.mu.Lock()
	var ready []*segment
	for _, s := range d.segments {
		if s.phase == full && s.writers == 0 {
			ready = append(ready, s)
		}
	}
	d.mu.Unlock()
	// The places of aborted records are punched before their segment is sealed, so that a sealed
	// segment holds only whole records.
	if err := d.punchTrash(); err != nil {
		return err
	}
	for _, s := range ready {
		if err := d.seal(s); err != nil {
			return err
		}
	}
	return nil
}

func (d *Drive) punchTrash() error {
	d.mu.Lock()
	trash := d.trash
	d.trash = nil
	d.mu.Unlock()
	bySegment := map[*segment][]extent{}
	for _, x := range trash {
		bySegment[x.seg] = append(bySegment[x.seg], x)
	}
	for seg, xs := range bySegment {
		if err := d.punch(seg, xs); err != nil {
			d.mu.Lock()
			for _, left := range bySegment {
				d.trash = append(d.trash, left...)
			}
			d.mu.Unlock()
			return err
		}
		delete(bySegment, seg)
	}
	return nil
}

// punch frees ranges of a segment, each of which begins with a record header, durably.
func (d *Drive) punch(seg *segment, xs []extent) (err error) {
	file, sync := seg.file, seg.sync.wait
	if file == nil {
		file, err = d.cfg.FS.Open(seg.name, vfs.Write)
		if err != nil {
			return fmt.Errorf("segment: open for punching: %w", err)
		}
		sync = file.Sync
		defer func() { err = errors.Join(err, file.Close()) }()
	}
	for _, x := range xs {
		if err := punchRange(file, x.off, x.size); err != nil {
			return fmt.Errorf("segment: punch: %w", err)
		}
	}
	if err := sync(); err != nil {
		broken := seg
		if seg.file == nil {
			broken = nil // sealed: nothing is written to it
		}
		return d.fail(broken, fmt.Errorf("segment %s: sync: %w", seg.name, err))
	}
	return nil
}

// punchRange frees a range. Where that is not possible its header is overwritten, so that no scan
// finds the record again, and the space returns with the whole segment.
func punchRange(f vfs.File, off, n int64) error {
	err := f.Punch(off, n)
	if errors.Is(err, vfs.ErrNotSupported) {
		return writeFull(f, vfs.AlignedBytes(unit), off)
	}
	return err
}

// seal ends a full segment that no writer uses.
func (d *Drive) seal(s *segment) error {
	d.mu.Lock()
	live, end := s.live, s.tail
	d.mu.Unlock()
	if live > 0 {
		if err := d.writeSeal(s, end); err != nil {
			return err
		}
		if err := s.file.Truncate(end); err != nil {
			end = s.size // the next Open tries again
			d.cfg.Log.Warn("segment: cut to its end", slog.String("segment", s.name), slog.Any("error", err))
		}
	}
	if err := s.file.Close(); err != nil {
		d.cfg.Log.Warn("segment: close", slog.String("segment", s.name), slog.Any("error", err))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.file = nil
	s.phase = sealed
	s.size = end
	return nil
}

// writeSeal makes the seal durable in the segment, then in the index.
func (d *Drive) writeSeal(s *segment, end int64) error {
	p := vfs.AlignedBytes(unit)
	mark := seal{id: s.id, end: end}
	copy(p, mark.encode(&d.super.secret))
	if err := writeFull(s.file, p, sealOffset); err != nil {
		return fmt.Errorf("segment: seal: %w", err)
	}
	if err := s.sync.wait(); err != nil {
		return d.fail(s, fmt.Errorf("segment %s: sync: %w", s.name, err))
	}
	e := segmentEntry{number: s.number, state: stateSealed, id: s.id, end: end}
	put := []keyValue{{segmentIndexKey(s.number), e.indexValue()}}
	if err := d.index.write(&indexWrite{put: put, sync: true}); err != nil {
		return d.fail(nil, err)
	}
	return nil
}

// punchDue punches what was deleted long enough ago and is not pinned, then forgets it.
func (d *Drive) punchDue(ctx context.Context) error {
	due := d.takeDue()
	bySegment := map[*segment][]pending{}
	for _, p := range due {
		d.mu.Lock()
		seg := d.segments[p.segment]
		d.mu.Unlock()
		bySegment[seg] = append(bySegment[seg], p)
	}
	var firstErr error
	for seg, ps := range bySegment {
		err := context.Cause(ctx)
		if err == nil {
			err = d.punchPending(seg, ps)
		}
		if err == nil {
			continue
		}
		d.mu.Lock()
		d.queue = append(ps, d.queue...)
		d.mu.Unlock()
		if firstErr == nil {
			firstErr = err
		}
	}
	return firstErr
}

// takeDue takes the records that may be punched out of the queue.
func (d *Drive) takeDue() []pending {
	latest := d.cfg.Now().Add(-d.cfg.Grace).Unix()
	d.mu.Lock()
	n := 0 // the queue is in the order of time: what is not due yet need not be looked at
	for n < len(d.queue) && d.queue[n].deleted <= latest {
		n++
	}
	old := d.queue[:n:n]
	d.mu.Unlock()
	if n == 0 {
		return nil
	}
	var due, kept []pending
	for _, p := range old {
		if d.pins.shard(p.Key).claim(p.Key) {
			due = append(due, p)
		} else {
			kept = append(kept, p)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = d.queue[n:] // it may have grown at its end meanwhile
	if len(kept) > 0 {
		d.queue = append(kept, d.queue...)
	}
	return due
}

func (d *Drive) punchPending(seg *segment, ps []pending) error {
	xs := make([]extent, len(ps))
	w := &indexWrite{}
	var bytes int64
	for i, p := range ps {
		xs[i] = extent{seg, p.offset, p.length}
		w.remove = append(w.remove, p.indexKey())
		bytes += p.length
	}
	if err := d.punch(seg, xs); err != nil {
		return err
	}
	if err := d.index.write(w); err != nil {
		return d.fail(nil, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	seg.live -= len(ps)
	d.pendingBytes -= bytes
	return nil
}

// removeDead removes the sealed segments that hold no record.
func (d *Drive) removeDead() error {
	d.mu.Lock()
	var dead []*segment
	for n, s := range d.segments {
		if s.phase == sealed && s.live == 0 {
			dead = append(dead, s)
			delete(d.segments, n)
		}
	}
	d.mu.Unlock()
	if len(dead) == 0 {
		return nil
	}
	w := &indexWrite{}
	var errs []error
	for _, s := range dead {
		for _, r := range []*readFile{&s.buffered, &s.unbuffered} {
			closed, err := r.closeIdle(true)
			errs = append(errs, err)
			if closed {
				d.openReads.Add(-1)
			}
		}
		if err := d.cfg.FS.Remove(s.name); err != nil && !errors.Is(err, vfs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("segment: remove: %w", err)) // the next Open tries again
			continue
		}
		w.remove = append(w.remove, segmentIndexKey(s.number))
	}
	if err := d.cfg.FS.SyncDir(path.Join(d.cfg.Dir, segmentsDir)); err != nil {
		return errors.Join(append(errs, d.fail(nil, fmt.Errorf("segments: sync: %w", err)))...)
	}
	if err := d.index.write(w); err != nil {
		errs = append(errs, d.fail(nil, err))
	}
	return errors.Join(errs...)
}
