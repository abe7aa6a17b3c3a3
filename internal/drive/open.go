package drive

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"time"

	"github.com/penstock-store/penstock/internal/vfs"
)

const (
	defaultReserveBytes   = 1 << 30
	defaultReservePercent = 2
)

// normal checks the configuration and fills in the defaults.
func (c Config) normal() (Config, error) {
	if c.SegmentBytes == 0 {
		c.SegmentBytes = DefaultSegmentBytes
	}
	if c.ReserveBytes == 0 && c.ReservePercent == 0 {
		c.ReserveBytes, c.ReservePercent = defaultReserveBytes, defaultReservePercent
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	c.Grace = max(0, c.Grace)
	if c.openReads == 0 {
		c.openReads = maxOpenReads
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.FS == nil || c.Dir == "" || c.SegmentBytes < MinSegmentBytes || c.SegmentBytes%unit != 0 {
		return c, fmt.Errorf("drive: configuration: segments of %d bytes in %q: %w", c.SegmentBytes, c.Dir, ErrInvalid)
	}
	return c, nil
}

// mayRemain are names that a Format which was cut off, or the making of a file system, leaves.
var mayRemain = []string{superblockTmp, indexDir, segmentsDir, lockName, "lost+found"}

// Format makes the empty or missing directory cfg.Dir a drive of the set cfg.Set and returns its
// id. It is durable when it returns. A directory that holds anything else is refused with
// ErrForeign, a drive with ErrExist.
func Format(cfg Config) (UUID, error) {
	cfg, err := cfg.normal()
	if err != nil {
		return UUID{}, err
	}
	id, err := format(&cfg)
	if err != nil {
		return UUID{}, fmt.Errorf("drive: format %s: %w", cfg.Dir, noSpace(err))
	}
	return id, nil
}

func format(cfg *Config) (UUID, error) {
	fs := cfg.FS
	if err := vfs.MakeDir(fs, cfg.Dir); err != nil {
		return UUID{}, err
	}
	names, err := fs.List(cfg.Dir)
	if err != nil {
		return UUID{}, err
	}
	for _, n := range names {
		if n == superblockName {
			return UUID{}, ErrExist
		}
		if !slices.Contains(mayRemain, n) {
			return UUID{}, fmt.Errorf("directory holds %s: %w", n, ErrForeign)
		}
	}
	segments := path.Join(cfg.Dir, segmentsDir)
	if left, err := fs.List(segments); err == nil && len(left) > 0 {
		return UUID{}, fmt.Errorf("segments without a superblock: %w", ErrForeign)
	}
	if err := fs.MkdirAll(segments); err != nil {
		return UUID{}, err
	}
	sb := superblock{drive: newUUID(), set: cfg.Set, created: cfg.Now().UnixNano()}
	_, _ = rand.Read(sb.secret[:]) // never fails, says its documentation
	tmp := path.Join(cfg.Dir, superblockTmp)
	if err := writeFile(fs, tmp, sb.encode()); err != nil {
		return UUID{}, err
	}
	if err := fs.SyncDir(cfg.Dir); err != nil { // the segments directory
		return UUID{}, err
	}
	if err := fs.Rename(tmp, path.Join(cfg.Dir, superblockName)); err != nil {
		return UUID{}, err
	}
	return sb.drive, fs.SyncDir(cfg.Dir)
}

// writeFile makes a file durable, its name excepted.
func writeFile(fs vfs.FS, name string, p []byte) error {
	f, err := fs.Open(name, vfs.Write|vfs.Create|vfs.Truncate)
	if err != nil {
		return err
	}
	err = writeFull(f, p, 0)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// readSuperblock reads and checks the superblock of a drive that must belong to the set.
func readSuperblock(cfg *Config) (*superblock, error) {
	f, err := cfg.FS.Open(path.Join(cfg.Dir, superblockName), 0)
	if errors.Is(err, vfs.ErrNotExist) {
		return nil, fmt.Errorf("superblock: %w: %w", ErrForeign, err)
	}
	if err != nil {
		return nil, err
	}
	p := make([]byte, superblockBytes)
	n, err := f.ReadAt(p, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	sb, err := decodeSuperblock(p[:n])
	if err != nil {
		return nil, err
	}
	if sb.set != cfg.Set {
		return nil, fmt.Errorf("superblock: drive of set %s, not %s: %w", sb.set, cfg.Set, ErrForeign)
	}
	return sb, nil
}

// Open locks and opens a drive and recovers what an unclean stop left: unsealed segments are
// scanned and reconciled with the index; a missing index is built anew. ctx ends a long recovery;
// the next Open begins it again. Errors: ErrForeign, ErrNewer, ErrCorrupt, vfs.ErrLocked, those of
// the device.
func Open(ctx context.Context, cfg Config) (*Drive, error) {
	cfg, err := cfg.normal()
	if err != nil {
		return nil, err
	}
	d, err := open(ctx, &cfg)
	if err != nil {
		return nil, fmt.Errorf("drive: open %s: %w", cfg.Dir, err)
	}
	return d, nil
}

func open(ctx context.Context, cfg *Config) (_ *Drive, err error) {
	sb, err := readSuperblock(cfg)
	if err != nil {
		return nil, err
	}
	lock, err := cfg.FS.Lock(path.Join(cfg.Dir, lockName))
	if err != nil {
		return nil, err
	}
	d := &Drive{
		cfg: *cfg, super: sb, lock: lock,
		smalls:   newFreeList(smallKept, smallBytes),
		metas:    newFreeList(metaKept, metaBytes),
		bounces:  newFreeList(bounceKept, bounceBytes),
		wakeup:   make(chan struct{}, 1),
		turns:    make(chan struct{}, 1),
		segments: map[uint64]*segment{},
		writing:  map[Key]struct{}{},
		deleting: map[Key]chan struct{}{},
	}
	d.turns <- struct{}{}
	if err := d.recover(ctx); err != nil {
		if d.index != nil {
			err = errors.Join(err, d.index.close())
		}
		return nil, errors.Join(err, d.closeFiles(), lock.Close())
	}
	maintenance, halt := context.WithCancel(context.Background())
	d.halt = halt
	if !cfg.manualTurns {
		d.wg.Go(func() { d.maintain(maintenance) })
	}
	return d, nil
}
