package pebble

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// tablePause is how long the first new table file waits after one could not be written; each
	// failure in a row doubles it up to tablePauseMax. Pebble itself tries again at once.
	tablePause    = 100 * time.Millisecond
	tablePauseMax = 5 * time.Second
)

var errDead = errors.New("pebble: write file: the engine has failed")

// guard stands between Pebble and its files. Pebble panics when its log or manifest cannot be
// written; so the guard tells the engine of the first such error and shows Pebble success. From
// then on nothing that Pebble does reaches the disk: no later write may become durable after a lost
// one, and no file may be removed because of a manifest that is not there.
//
// Errors of tables go to Pebble, which writes them again under another name; the guard slows it
// down. Errors of blob files cannot: Pebble 2.1.7 dereferences nil when the end of one cannot be
// written. The guard shows success, and fails the table that goes with the blob file, which Pebble
// then removes together with it. Should Pebble put a spoiled file into its manifest all the same
// (it rewrites blob files without a table), the engine fails.
type guard struct {
	pvfs.FS
	failure *failure
	unit    time.Duration // tablePause
	opened  atomic.Bool   // Open has finished; an engine that fails before is not given out

	tables  atomic.Int32  // table files in a row that could not be written
	stalled atomic.Bool   // Pebble holds committers until it has flushed a memtable
	closing chan struct{} // closed when the engine begins to close
	once    sync.Once
	letGo   chan struct{} // closed when a failed engine must not wait for its tables any more

	mu       sync.Mutex
	tableErr error
	spoiled  map[string]bool // blob files that lack bytes which Pebble believes written
}

func newGuard(fs pvfs.FS, f *failure, unit time.Duration) *guard {
	return &guard{
		FS: fs, failure: f, unit: unit, spoiled: make(map[string]bool),
		closing: make(chan struct{}), letGo: make(chan struct{}),
	}
}

func isTable(name string) bool    { return strings.HasSuffix(name, ".sst") }
func isBlobFile(name string) bool { return strings.HasSuffix(name, ".blob") }
func isManifest(name string) bool { return strings.Contains(name, "MANIFEST-") }

// rebuildable reports whether Pebble can write a file again under another name.
func rebuildable(name string) bool { return isTable(name) || isBlobFile(name) }

func (g *guard) dead() bool { return g.failure.writes() != nil }

// discards reports whether tables, too, end in nothing. A failed engine keeps what it has in memory,
// for its readers; but an Open without hope has to return, Close has to end, and Pebble must not hold
// a committer until a flush that never comes.
func (g *guard) discards() bool {
	if !g.dead() {
		return false
	}
	select {
	case <-g.letGo:
		return true
	default:
		return !g.opened.Load()
	}
}

func (g *guard) release() { g.once.Do(func() { close(g.letGo) }) }

// stall notes that Pebble stops committers, or lets them go on.
func (g *guard) stall(on bool) {
	g.stalled.Store(on)
	if on && g.dead() {
		g.release()
	}
}

// died is called once, after the engine has failed.
func (g *guard) died() {
	select {
	case <-g.closing:
		g.release()
	default:
		if g.stalled.Load() {
			g.release()
		}
	}
}

// close ends the pauses. It comes before the wait for calls under way.
func (g *guard) close() {
	close(g.closing)
	if g.dead() {
		g.release()
	}
}

// tableFailures returns how many table files in a row could not be written, and the last error.
func (g *guard) tableFailures() (int, error) {
	n := int(g.tables.Load())
	if n == 0 {
		return 0, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return n, g.tableErr
}

// check judges the error of a call that changes a file. It returns what to tell Pebble.
func (g *guard) check(verb, name string, err error) error {
	if err == nil {
		return nil
	}
	if rebuildable(name) {
		g.count(err)
		return err
	}
	g.failure.set(fmt.Errorf("pebble: %s %s: %w", verb, name, err), failWrites)
	return nil
}

// count notes that a table file could not be written. Pebble does not return from its Open before it
// has flushed what the log holds, so there a few failures end the engine.
func (g *guard) count(err error) {
	g.mu.Lock()
	g.tableErr = err
	n := g.tables.Add(1)
	g.mu.Unlock()
	if n >= maxFlushFailures && !g.opened.Load() {
		g.failure.set(err, failAll)
	}
}

// spoil notes that a blob file lacks what Pebble believes written.
func (g *guard) spoil(name string, err error) {
	g.count(err)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spoiled[name] = true
}

func (g *guard) isSpoiled(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.spoiled[name]
}

// spoiledErr returns why some blob file is spoiled, or nil if none is.
func (g *guard) spoiledErr() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.spoiled) == 0 {
		return nil
	}
	return fmt.Errorf("pebble: write blob file: %w", g.tableErr)
}

// pause holds back a new table file after failures, and for good once the engine has failed. When the
// engine closes, a table that cannot be written ends it: the log has what the table would hold.
func (g *guard) pause() {
	if n, err := g.tableFailures(); n > 0 && !g.dead() {
		timer := time.NewTimer(min(g.unit<<min(n-1, 10), tablePauseMax))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-g.closing:
			g.failure.set(fmt.Errorf("pebble: write table: %w", err), failWrites)
		}
	}
	if g.dead() && !g.discards() {
		<-g.letGo
	}
}

// made wraps a file made for writing.
func (g *guard) made(verb, name string, f pvfs.File, err error) (pvfs.File, error) {
	if err := g.check(verb, name, err); err != nil {
		return nil, err
	}
	if f == nil {
		f = nullFile{}
	}
	return &guardedFile{File: f, g: g, name: name}, nil
}

// Create implements vfs.FS.
func (g *guard) Create(name string, c pvfs.DiskWriteCategory) (pvfs.File, error) {
	if rebuildable(name) {
		g.pause()
	}
	if g.dead() {
		return nullFile{}, nil
	}
	f, err := g.FS.Create(name, c)
	return g.made("create", name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (g *guard) ReuseForWrite(oldName, newName string, c pvfs.DiskWriteCategory) (pvfs.File, error) {
	if g.dead() {
		return nullFile{}, nil
	}
	f, err := g.FS.ReuseForWrite(oldName, newName, c)
	return g.made("reuse", newName, f, err)
}

// OpenReadWrite implements vfs.FS.
func (g *guard) OpenReadWrite(
	name string, c pvfs.DiskWriteCategory, opts ...pvfs.OpenOption,
) (pvfs.File, error) {
	if g.dead() {
		return nullFile{}, nil
	}
	f, err := g.FS.OpenReadWrite(name, c, opts...)
	return g.made("open", name, f, err)
}

// OpenDir implements vfs.FS. The directory is wrapped for its Sync.
func (g *guard) OpenDir(name string) (pvfs.File, error) {
	f, err := g.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &guardedFile{File: f, g: g, name: name}, nil
}

// Remove implements vfs.FS.
func (g *guard) Remove(name string) error {
	if g.dead() {
		return nil
	}
	g.mu.Lock()
	delete(g.spoiled, name)
	g.mu.Unlock()
	return g.FS.Remove(name)
}

// RemoveAll implements vfs.FS.
func (g *guard) RemoveAll(name string) error {
	if g.dead() {
		return nil
	}
	return g.FS.RemoveAll(name)
}

// Rename implements vfs.FS.
func (g *guard) Rename(oldName, newName string) error {
	if g.dead() {
		return nil
	}
	return g.check("rename", newName, g.FS.Rename(oldName, newName))
}

// Link implements vfs.FS.
func (g *guard) Link(oldName, newName string) error {
	if g.dead() {
		return nil
	}
	return g.check("link", newName, g.FS.Link(oldName, newName))
}

// Unwrap implements vfs.FS.
func (g *guard) Unwrap() pvfs.FS { return g.FS }
