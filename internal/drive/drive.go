package drive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
)

// Drive is an open drive. Safe for concurrent use.
type Drive struct {
	cfg   Config
	super *superblock
	lock  io.Closer
	index *index
	pins  pinTable

	smalls, metas, bounces freeList

	openReads     atomic.Int64 // segment files open for reading
	directRefused atomic.Bool  // the file system does not read with O_DIRECT

	wakeup chan struct{}      // asks for a turn of maintenance
	turns  chan struct{}      // holds one token: one turn at a time
	halt   context.CancelFunc // ends maintenance
	wg     sync.WaitGroup     // maintenance
	ops    sync.WaitGroup     // calls and Writers under way; Add only while mu is held and not closed

	mu         sync.Mutex
	closed     bool
	mode       Mode
	cause      error
	segments   map[uint64]*segment
	active     *segment
	nextNumber uint64
	rolling    chan struct{}         // closed when the segment being created is there or failed
	writing    map[Key]struct{}      // records being written
	deleting   map[Key]chan struct{} // closed when that Delete has ended
	queue      []pending             // deleted, not yet punched; ascending by time
	trash      []extent              // places of aborted records

	records, recordBytes int64
	pendingBytes         int64

	newestEpoch uint64 // of the records that Open found; written by Open only
}

// extent is a range of a segment.
type extent struct {
	seg       *segment
	off, size int64
}

// ID is the drive's id.
func (d *Drive) ID() UUID { return d.super.drive }

// NewestEpoch is the highest epoch of the records that were there at Open, 0 when there were none.
func (d *Drive) NewestEpoch() uint64 { return d.newestEpoch }

// State says what the drive takes.
func (d *Drive) State() State {
	_ = d.writable() // notices a failed index
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return State{Mode: Closed, Cause: ErrClosed}
	}
	return State{Mode: d.mode, Cause: d.cause}
}

// Stats counts. It asks the file system for its space.
func (d *Drive) Stats() (Stats, error) {
	space, reserve, _, err := d.space()
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Stats{
		Records: d.records, RecordBytes: d.recordBytes,
		Pending: int64(len(d.queue)), PendingBytes: d.pendingBytes,
		Segments: len(d.segments), Space: space, Reserve: reserve,
	}
	for _, seg := range d.segments {
		s.SegmentBytes += seg.size
	}
	return s, err
}

// enter begins a call, leave ends it; Close waits for those between.
func (d *Drive) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	d.ops.Add(1)
	return nil
}

func (d *Drive) leave() { d.ops.Done() }

// writable returns ErrReadOnly and its cause once a sync or the index failed.
func (d *Drive) writable() error {
	if err := d.index.watch.failure(); err != nil {
		return d.fail(nil, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mode != ReadWrite {
		return fmt.Errorf("%w: %w", ErrReadOnly, d.cause)
	}
	return nil
}

// fail makes the drive read-only. seg is the segment whose sync failed, or nil. It returns err as
// ErrReadOnly.
func (d *Drive) fail(seg *segment, err error) error {
	d.mu.Lock()
	first := d.mode == ReadWrite
	if first {
		d.mode, d.cause = ReadOnly, err
	}
	mark := seg != nil && seg.phase != broken
	if mark {
		seg.phase = broken
		if d.active == seg {
			d.active = nil
		}
	}
	d.mu.Unlock()
	if mark {
		// Best effort: if this fails, too, then only until the page cache is gone could the next Open
		// find a record that is not on the medium and that nobody was promised.
		e := segmentEntry{number: seg.number, state: stateBroken, id: seg.id}
		put := []keyValue{{segmentIndexKey(seg.number), e.indexValue()}}
		if markErr := d.index.write(&indexWrite{put: put, sync: true}); markErr != nil {
			err = errors.Join(err, markErr)
		}
	}
	if first {
		d.cfg.Log.Error("drive is read-only now", slog.String("drive", d.ID().String()),
			slog.String("dir", d.cfg.Dir), slog.Any("error", err))
	}
	if errors.Is(err, ErrReadOnly) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrReadOnly, err)
}

// Append reserves the place of a record. The Writer must be ended by Commit or Abort. It waits
// only for a new segment to be created. Errors: ErrNoSpace, ErrReadOnly, ErrExist, ErrInvalid,
// ErrClosed, ctx's error, those of the device.
func (d *Drive) Append(ctx context.Context, r Record) (*Writer, error) {
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("record: append: %w", err)
	}
	if err := d.enter(); err != nil {
		return nil, fmt.Errorf("record: append: %w", err)
	}
	w, err := d.reserve(ctx, r)
	if err != nil {
		d.leave()
		return nil, fmt.Errorf("record: append %s: %w", r.Key, err)
	}
	return w, nil
}

func (d *Drive) reserve(ctx context.Context, r Record) (*Writer, error) {
	if err := d.announce(r.Key); err != nil {
		return nil, err
	}
	need := recordSpace(r.Length)
	for {
		d.mu.Lock()
		if d.mode != ReadWrite {
			d.mu.Unlock()
			d.retract(r.Key)
			return nil, d.writable()
		}
		if seg := d.active; seg != nil && seg.tail+need <= seg.size {
			offset := seg.tail
			seg.tail += need
			seg.writers++
			d.mu.Unlock()
			return d.newWriter(seg, r, offset), nil
		}
		wait := d.rolling
		if wait == nil {
			d.rolling = make(chan struct{})
			number := d.nextNumber
			d.nextNumber++
			d.mu.Unlock()
			if err := d.roll(number, need); err != nil {
				d.retract(r.Key)
				return nil, err
			}
			continue
		}
		d.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			d.retract(r.Key)
			return nil, context.Cause(ctx)
		}
	}
}

func (d *Drive) newWriter(seg *segment, r Record, offset int64) *Writer {
	w := &Writer{d: d, seg: seg, rec: r, offset: offset}
	if recordSpace(r.Length) <= smallBytes {
		w.small = d.smalls.get()
	} else {
		w.meta = d.metas.get()
	}
	return w
}

// announce notes that a record is being written, if it does not exist.
func (d *Drive) announce(k Key) error {
	d.mu.Lock()
	_, busy := d.writing[k]
	if !busy {
		d.writing[k] = struct{}{}
	}
	d.mu.Unlock()
	if busy {
		return ErrExist
	}
	_, err := d.index.get(k)
	if err == nil || d.pins.shard(k).has(k) {
		err = ErrExist
	}
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	d.retract(k)
	return err
}

func (d *Drive) retract(k Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.writing, k)
}

// roll creates the next segment and makes it the active one. The caller has set d.rolling.
func (d *Drive) roll(number uint64, need int64) error {
	seg, err := d.createSegment(number, need)
	var failed *syncError
	if errors.As(err, &failed) {
		err = d.fail(nil, err)
	}
	if err == nil {
		s := segmentEntry{number: number, id: seg.id}
		put := []keyValue{{segmentIndexKey(number), s.indexValue()}}
		if err = d.index.write(&indexWrite{put: put}); err != nil {
			err = errors.Join(d.fail(nil, err), seg.file.Close())
		}
	}
	d.mu.Lock()
	close(d.rolling)
	d.rolling = nil
	if err == nil {
		if d.active != nil {
			d.active.phase = full
		}
		d.active = seg
		d.segments[number] = seg
	}
	d.mu.Unlock()
	d.wake() // the one before may be ready to be sealed
	return err
}

// pin finds and pins a record.
func (d *Drive) pin(k Key) (*pinned, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	shard := d.pins.shard(k)
	for {
		p, claims := shard.again(k)
		if p != nil {
			return p, nil
		}
		e, err := d.index.get(k)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		seg := d.segments[e.segment]
		d.mu.Unlock()
		if seg == nil {
			if _, now := shard.again(k); now != claims {
				continue // deleted, punched and its segment removed since
			}
			return nil, fmt.Errorf("segment %d is missing: %w", e.segment, ErrCorrupt)
		}
		if p := shard.add(e, seg, claims); p != nil {
			return p, nil
		}
	}
}

// Lookup finds a record and pins it: the Location stays readable, even if the record is deleted
// meanwhile, until its Release. Errors: ErrNotFound, ErrClosed, those of the index.
func (d *Drive) Lookup(k Key) (*Location, error) {
	p, err := d.pin(k)
	if err != nil {
		return nil, fmt.Errorf("record: look up %s: %w", k, err)
	}
	return &Location{d: d, p: p}, nil
}

// Pin is a Lookup that only pins: until unpin is called a Lookup of k succeeds, even if the record
// is deleted meanwhile. Errors: ErrNotFound, ErrClosed, those of the index.
func (d *Drive) Pin(k Key) (unpin func(), err error) {
	l, err := d.Lookup(k)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

// Delete removes records durably in one step. Their space returns after the grace and once no pin
// is left; a reader that pinned a record before goes on reading it. Records that do not exist are
// no error. It works on a full drive. Errors: ErrReadOnly, ErrClosed, those of the index.
func (d *Drive) Delete(keys ...Key) error {
	if err := d.enter(); err != nil {
		return fmt.Errorf("record: delete: %w", err)
	}
	defer d.leave()
	if err := d.writable(); err != nil {
		return fmt.Errorf("record: delete: %w", err)
	}
	done := d.beginDelete(keys)
	gone, err := d.remove(keys)
	d.mu.Lock()
	for _, p := range gone {
		d.records--
		d.recordBytes -= p.length
		d.pendingBytes += p.length
	}
	d.queue = append(d.queue, gone...)
	for _, k := range keys {
		delete(d.deleting, k)
	}
	d.mu.Unlock()
	close(done)
	if err != nil {
		return fmt.Errorf("record: delete: %w", err)
	}
	return nil
}

// beginDelete waits until no other Delete works on any of the keys and takes them.
func (d *Drive) beginDelete(keys []Key) chan struct{} {
	done := make(chan struct{})
	for {
		d.mu.Lock()
		var busy chan struct{}
		for _, k := range keys {
			if c := d.deleting[k]; c != nil {
				busy = c
			}
		}
		if busy == nil {
			for _, k := range keys {
				d.deleting[k] = done
			}
			d.mu.Unlock()
			return done
		}
		d.mu.Unlock()
		<-busy
	}
}

// remove takes the records out of the index and queues them, durably.
func (d *Drive) remove(keys []Key) ([]pending, error) {
	now := d.cfg.Now().Unix()
	w := &indexWrite{sync: true} // also when there is nothing to remove: an earlier delete may be under way
	var gone []pending
	seen := make(map[Key]struct{}, len(keys))
	for _, k := range keys {
		if _, twice := seen[k]; twice {
			continue
		}
		seen[k] = struct{}{}
		e, err := d.index.get(k)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p := pending{Key: k, segment: e.segment, offset: e.offset, length: e.space(), deleted: now}
		w.remove = append(w.remove, k.indexKey())
		w.put = append(w.put, keyValue{p.indexKey(), p.indexValue()})
		gone = append(gone, p)
	}
	if err := d.index.write(w); err != nil {
		return nil, d.fail(nil, err)
	}
	return gone, nil
}

// Walk calls fn for every record, ascending by key. Records written or deleted meanwhile may or
// may not appear. An error of fn ends the walk and is returned.
func (d *Drive) Walk(ctx context.Context, fn func(Record) error) error {
	if err := d.enter(); err != nil {
		return fmt.Errorf("drive: walk: %w", err)
	}
	defer d.leave()
	return d.index.scan(prefixRecord, func(key, value []byte) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		e, err := decodeEntry(key, value)
		if err != nil {
			return err
		}
		return fn(e.Record)
	})
}

// Close waits for the calls and Writers under way, seals the segment being written and closes the
// drive. Locations cannot be read afterwards, reads under way end normally.
func (d *Drive) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return fmt.Errorf("drive: close: %w", ErrClosed)
	}
	d.closed = true
	d.mu.Unlock()
	d.ops.Wait()
	d.halt()
	d.wg.Wait()
	d.mu.Lock()
	if d.active != nil {
		d.active.phase = full
		d.active = nil
	}
	writable := d.mode == ReadWrite
	d.mu.Unlock()
	var errs []error
	if writable {
		errs = append(errs, d.sealReady(), d.removeDead())
	}
	errs = append(errs, d.closeFiles(), d.index.close(), d.lock.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("drive: close: %w", err)
	}
	return nil
}

func (d *Drive) closeFiles() error {
	var errs []error
	for _, s := range d.segments {
		if s.file != nil {
			errs = append(errs, s.file.Close())
			s.file = nil
		}
		for _, r := range []*readFile{&s.buffered, &s.unbuffered} {
			_, err := r.closeIdle(true)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
