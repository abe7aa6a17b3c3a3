package drive

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/penstock-store/penstock/internal/vfs"
)

// Names inside a drive.
const (
	superblockName = "superblock"
	superblockTmp  = "superblock.tmp"
	lockName       = "lock"
	indexDir       = "index"
	retiredDir     = "index.old" // an index on its way out
	segmentsDir    = "segments"
	segmentSuffix  = ".seg"
	asideSuffix    = ".bad" // a segment whose header is lost; kept for a person to look at
)

// maxOpenReads bounds the segments that are kept open for reading, below common limits of
// descriptors per process with several drives.
const maxOpenReads = 512

// phase of a segment's life.
type phase int

const (
	filling phase = iota // takes records
	full                 // takes no more, some writers may be under way
	sealed
	broken // its fdatasync failed: neither written nor sealed until the next Open
)

// segment is one segment file.
type segment struct {
	number uint64
	id     UUID
	name   string

	// Guarded by Drive.mu.
	phase   phase
	size    int64 // of the file
	tail    int64 // next free place; the end once sealed
	writers int   // reservations that have not ended
	live    int   // records committed and not yet punched

	file   vfs.File // for writing; nil once sealed
	direct bool     // file bypasses the page cache
	sync   syncer   // of file

	buffered, unbuffered readFile
}

func (s *segment) place(offset int64) place { return place{s.id, offset} }

func segmentName(dir string, number uint64) string {
	return path.Join(dir, segmentsDir, fmt.Sprintf("%016x%s", number, segmentSuffix))
}

// parseSegmentName returns the number in a file name.
func parseSegmentName(base string) (uint64, bool) {
	hex, ok := strings.CutSuffix(base, segmentSuffix)
	if !ok || len(hex) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(hex, 16, 64)
	return n, err == nil
}

// newSegment returns the segment of a file that exists or is being made.
func (d *Drive) newSegment(number uint64, id UUID) *segment {
	s := &segment{number: number, id: id, name: segmentName(d.cfg.Dir, number)}
	s.buffered.open = func() (vfs.File, error) { return d.openRead(s.name, 0) }
	s.unbuffered.open = func() (vfs.File, error) { return d.openRead(s.name, vfs.Direct) }
	s.sync.sync = func() error { return s.file.Sync() }
	return s
}

func (d *Drive) openRead(name string, f vfs.Flag) (vfs.File, error) {
	file, err := d.cfg.FS.Open(name, f)
	if errors.Is(err, vfs.ErrNotExist) {
		return nil, fmt.Errorf("segment: open: %w: %w", ErrCorrupt, err)
	}
	return file, err
}

// newUUID is random.
func newUUID() (u UUID) {
	_, _ = rand.Read(u[:]) // never fails, says its documentation
	return u
}

// createSegment makes a segment for a record of need bytes: preallocated, its header and its name
// durable. It is not yet known to the drive.
func (d *Drive) createSegment(number uint64, need int64) (_ *segment, err error) {
	size, err := d.segmentSize(need)
	if err != nil {
		return nil, err
	}
	s := d.newSegment(number, newUUID())
	s.size, s.tail = size, recordsOffset
	const create = vfs.Write | vfs.Create | vfs.Excl
	if !d.cfg.BufferedWrites {
		s.file, err = d.cfg.FS.Open(s.name, create|vfs.Direct)
		s.direct = err == nil
	}
	if d.cfg.BufferedWrites || errors.Is(err, vfs.ErrNotSupported) {
		s.file, err = d.cfg.FS.Open(s.name, create)
		if errors.Is(err, vfs.ErrExist) { // some file systems create it before they refuse O_DIRECT
			s.file, err = d.cfg.FS.Open(s.name, vfs.Write)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("segment: create: %w", noSpace(err))
	}
	if err := d.fillNewSegment(s); err != nil {
		err = fmt.Errorf("segment: create: %w", noSpace(err))
		return nil, errors.Join(err, s.file.Close(), d.cfg.FS.Remove(s.name))
	}
	return s, nil
}

func (d *Drive) fillNewSegment(s *segment) error {
	if err := s.file.Preallocate(0, s.size); errors.Is(err, vfs.ErrNotSupported) {
		err = s.file.Truncate(s.size) // sparse: ENOSPC may then come later
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	h := segmentHeader{drive: d.super.drive, id: s.id, number: s.number, size: s.size}
	p := vfs.AlignedBytes(2 * unit)
	copy(p, h.encode(&d.super.secret))
	copy(p[unit:], p[:unit])
	if err := writeFull(s.file, p, 0); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return &syncError{err}
	}
	if err := d.cfg.FS.SyncDir(path.Join(d.cfg.Dir, segmentsDir)); err != nil {
		return &syncError{err}
	}
	return nil
}

// noSpace adds the drive's error to that of the file system.
func noSpace(err error) error {
	if errors.Is(err, vfs.ErrNoSpace) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// writeFull is WriteAt that never is short without an error.
func writeFull(f vfs.File, p []byte, off int64) error {
	n, err := f.WriteAt(p, off)
	if err == nil && n < len(p) {
		err = errShortWrite
	}
	return noSpace(err)
}

var errShortWrite = errors.New("short write")

// segmentSize returns the size of a new segment that leaves the reserve alone.
func (d *Drive) segmentSize(need int64) (int64, error) {
	least := recordsOffset + need
	size := max(least, d.cfg.SegmentBytes)
	space, reserve, ok, err := d.space()
	if err != nil {
		return 0, err
	}
	if !ok {
		return size, nil
	}
	size = min(size, (space.Free-reserve)&^(unit-1))
	if size < least {
		return 0, fmt.Errorf("segment: create: %d bytes free, %d of them reserved, %d needed: %w",
			space.Free, reserve, least, ErrNoSpace)
	}
	return size, nil
}

// space returns the space of the drive and what of it is reserved; false when it is not known.
func (d *Drive) space() (vfs.Space, int64, bool, error) {
	r, ok := d.cfg.FS.(vfs.SpaceReporter)
	if !ok {
		return vfs.Space{}, 0, false, nil
	}
	s, err := r.Space(d.cfg.Dir)
	if err != nil {
		return vfs.Space{}, 0, false, fmt.Errorf("drive: space: %w", err)
	}
	var reserve int64
	if !d.cfg.NoReserve {
		reserve = max(d.cfg.ReserveBytes, s.Total/100*int64(d.cfg.ReservePercent))
	}
	return s, reserve, true, nil
}

// readFile is a file that is opened when first needed and closed when idle and told so.
type readFile struct {
	open func() (vfs.File, error)

	mu   sync.Mutex
	file vfs.File
	refs int
	shut bool // close it as soon as nobody uses it; never open it again
}

// acquire returns the file, open until release. opened says that this call opened it.
func (r *readFile) acquire() (f vfs.File, opened bool, err error) {
	r.mu.Lock()
	if r.shut {
		r.mu.Unlock()
		return nil, false, ErrClosed
	}
	if r.file != nil {
		r.refs++
		f = r.file
		r.mu.Unlock()
		return f, false, nil
	}
	r.mu.Unlock()
	f, err = r.open()
	if err != nil {
		return nil, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.shut:
		return nil, false, errors.Join(ErrClosed, f.Close())
	case r.file != nil: // somebody else was faster
		r.refs++
		return r.file, false, f.Close()
	}
	r.file = f
	r.refs++
	return f, true, nil
}

func (r *readFile) release() error {
	r.mu.Lock()
	r.refs--
	f := r.takeIdle(r.shut)
	r.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.Close()
}

// takeIdle takes the file out if wanted and nobody uses it. r.mu is held.
func (r *readFile) takeIdle(wanted bool) vfs.File {
	if !wanted || r.refs > 0 {
		return nil
	}
	f := r.file
	r.file = nil
	return f
}

// closeIdle closes the file if nobody uses it, for good when shut; closed says that it did.
func (r *readFile) closeIdle(shut bool) (closed bool, err error) {
	r.mu.Lock()
	r.shut = r.shut || shut
	f := r.takeIdle(true)
	r.mu.Unlock()
	if f == nil {
		return false, nil
	}
	return true, f.Close()
}
