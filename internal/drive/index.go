package drive

import (
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/penstock-store/penstock/internal/vfs/pebblefs"
)

const (
	// indexFormat is pinned, so that a drive written by one build opens in the next.
	indexFormat = pebble.FormatValueSeparation

	// indexCacheBytes holds the hot index blocks of a drive: about 200,000 entries.
	indexCacheBytes = 16 << 20

	// indexMemTableBytes bounds what is replayed at open, 30,000 entries.
	indexMemTableBytes = 4 << 20

	// indexQueue is how many batches may wait for the committer; more only wait outside of it.
	indexQueue = 256

	// bloomBits per key keep look-ups of absent keys (every Append does one) off the medium.
	bloomBits = 10
)

// index is the Pebble store of a drive.
//
// All writes go through one goroutine, which commits what is waiting as one batch. It writes no
// more after the first failure, and answers everybody with it.
type index struct {
	db    *pebble.DB
	cache *pebble.Cache
	watch *watch
	files *indexFS
	todo  chan *indexWrite
	stop  chan struct{}
	wg    sync.WaitGroup
}

// indexWrite is a set of changes that are committed together.
type indexWrite struct {
	put    []keyValue
	remove [][]byte
	sync   bool // wait until it is durable, and all before it
	done   chan error
}

type keyValue struct{ key, value []byte }

// openIndex opens the index of a drive; a missing one is created empty.
func openIndex(cfg *Config) (*index, error) {
	ix := &index{
		cache: pebble.NewCache(indexCacheBytes),
		watch: newWatch(cfg.Log),
		todo:  make(chan *indexWrite, indexQueue),
		stop:  make(chan struct{}),
	}
	ix.files = &indexFS{FS: pebblefs.New(cfg.FS), watch: ix.watch, stop: ix.stop}
	opts := &pebble.Options{
		FS:                 ix.files,
		Cache:              ix.cache,
		MemTableSize:       indexMemTableBytes,
		FormatMajorVersion: indexFormat,
		Logger:             ix.watch,
		EventListener:      ix.watch.listener(),
	}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBits)
	}
	db, err := openStore(path.Join(cfg.Dir, indexDir), opts)
	if failure := ix.watch.failure(); failure != nil {
		close(ix.stop)
		if db != nil {
			_ = db.Close() // it has seen success where there was none
		}
		err = failure
	}
	if err != nil {
		ix.cache.Unref()
		return nil, fmt.Errorf("index: open: %w", err)
	}
	ix.db = db
	ix.files.opened.Store(true)
	ix.wg.Go(ix.commitLoop)
	return ix, nil
}

// openStore opens the Pebble store; it panics on some corrupt files.
func openStore(dir string, opts *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, fmt.Errorf("index: open: %v: %w", p, ErrCorrupt)
		}
	}()
	return pebble.Open(dir, opts)
}

func (ix *index) close() error {
	close(ix.stop)
	ix.wg.Wait()
	err := ix.db.Close()
	ix.cache.Unref()
	if failure := ix.watch.failure(); failure != nil {
		return fmt.Errorf("index: close: %w", failure)
	}
	if err != nil {
		return fmt.Errorf("index: close: %w", err)
	}
	return nil
}

func (ix *index) commitLoop() {
	for {
		select {
		case <-ix.stop:
			return
		case w := <-ix.todo:
			group := []*indexWrite{w}
			for len(group) < indexQueue && len(ix.todo) > 0 {
				group = append(group, <-ix.todo)
			}
			err := ix.commit(group)
			for _, w := range group {
				w.done <- err
			}
		}
	}
}

func (ix *index) commit(group []*indexWrite) error {
	if err := ix.watch.failure(); err != nil {
		return err
	}
	b := ix.db.NewBatch()
	opts := pebble.NoSync
	for _, w := range group {
		if w.sync {
			opts = pebble.Sync
		}
		for _, kv := range w.put {
			if err := b.Set(kv.key, kv.value, nil); err != nil {
				return errors.Join(fmt.Errorf("index: put: %w", err), b.Close())
			}
		}
		for _, key := range w.remove {
			if err := b.Delete(key, nil); err != nil {
				return errors.Join(fmt.Errorf("index: delete: %w", err), b.Close())
			}
		}
	}
	if b.Empty() { // a sync of what came before
		if err := b.LogData(nil, nil); err != nil {
			return errors.Join(fmt.Errorf("index: log: %w", err), b.Close())
		}
	}
	err := b.Commit(opts)
	if err == nil {
		err = ix.watch.failure()
	}
	if err != nil {
		ix.watch.fail(fmt.Errorf("index: commit: %w", err))
		return ix.watch.failure() // the batch may still be in use inside Pebble
	}
	return b.Close()
}

// write commits w and waits. An error is final: the index takes no more writes. The drive calls it
// only before close.
func (ix *index) write(w *indexWrite) error {
	w.done = make(chan error, 1)
	select {
	case ix.todo <- w:
	case <-ix.watch.failed:
		return ix.watch.failure()
	}
	select {
	case err := <-w.done:
		return err
	case <-ix.watch.failed: // the commit under way may never return
		return ix.watch.failure()
	}
}

// get finds a record; ErrNotFound.
func (ix *index) get(k Key) (entry, error) {
	key := k.indexKey()
	v, closer, err := ix.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return entry{}, ErrNotFound
	}
	if err != nil {
		return entry{}, fmt.Errorf("index: get %s: %w", k, err)
	}
	e, err := decodeEntry(key, v)
	return e, errors.Join(err, closer.Close())
}

// version returns the id of the drive that the index is complete for; ErrNotFound when it was
// never completed.
func (ix *index) version() (UUID, error) {
	v, closer, err := ix.db.Get([]byte{prefixVersion})
	if errors.Is(err, pebble.ErrNotFound) {
		return UUID{}, ErrNotFound
	}
	if err != nil {
		return UUID{}, fmt.Errorf("index: get version: %w", err)
	}
	var id UUID
	if err = shape("version", []byte{prefixVersion}, v, 1, versionValueBytes); err == nil {
		id = UUID(v[1:])
	}
	return id, errors.Join(err, closer.Close())
}

func versionValue(id UUID) []byte { return append([]byte{formatVersion}, id[:]...) }

// scan calls fn for every entry of a prefix, ascending, at one moment.
func (ix *index) scan(prefix byte, fn func(key, value []byte) error) (err error) {
	it, err := ix.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return fmt.Errorf("index: scan: %w", err)
	}
	defer func() {
		if closeErr := it.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("index: scan: %w", closeErr))
		}
	}()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("index: scan: %w", err)
		}
		if err := fn(it.Key(), v); err != nil {
			return err
		}
	}
	return nil
}
