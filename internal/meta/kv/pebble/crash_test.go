package pebble

import (
	"io"
	"strings"
	"sync"
	"testing"

	pdb "github.com/cockroachdb/pebble/v2"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/kv/kvtest"
	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
)

func TestCrash(t *testing.T) {
	for name, tune := range map[string]func(*pdb.Options){"": nil, "SmallFiles": smallFiles} {
		t.Run(name, func(t *testing.T) {
			kvtest.RunCrash(t, func(testing.TB) kvtest.Disk {
				return newDisk(crashfs.New(crashfs.Options{}), Config{tune: tune})
			})
		})
	}
}

// smallFiles make a flush, a new log and often a compaction happen every few transactions.
func smallFiles(o *pdb.Options) {
	o.MemTableSize = 32 << 10
	o.L0CompactionThreshold = 1
	o.LBaseMaxBytes = 64 << 10
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = 16 << 10
	}
	o.MaxManifestFileSize = 1 << 10
	p := o.Experimental.ValueSeparationPolicy()
	p.RewriteMinimumAge, p.TargetGarbageRatio = 0, 0.05
	o.Experimental.ValueSeparationPolicy = func() pdb.ValueSeparationPolicy { return p }
}

// disk is a crashable disk with an engine on it.
type disk struct {
	moment
	fs  *crashfs.FS
	on  *tapFS
	cfg Config
}

func newDisk(fs *crashfs.FS, cfg Config) *disk {
	d := &disk{moment: moment{fs.Image, cfg}, fs: fs, on: &tapFS{FS: fs}, cfg: cfg}
	d.cfg.FS, d.cfg.Dir = d.on, "/drive/kv"
	return d
}

func (d *disk) Open() (kv.Engine, error) { return Open(d.cfg) }

func (d *disk) Watch(fn func(kvtest.Moment)) {
	if fn == nil {
		d.fs.Hook(nil)
		return
	}
	d.fs.Hook(func(p crashfs.Point) { fn(moment{p.Image, d.cfg}) })
}

func (d *disk) HoldSyncs() (held <-chan struct{}, release func()) {
	first, let := make(chan struct{}, 1), make(chan struct{})
	d.on.tap(func(op, _ string) error {
		if op == "sync" {
			select {
			case first <- struct{}{}:
			default:
			}
			<-let
		}
		return nil
	})
	return first, func() { d.on.tap(nil); close(let) }
}

// moment makes images.
type moment struct {
	image func(crashfs.Mode, uint64) *crashfs.FS
	cfg   Config
}

func (m moment) Fail(s kvtest.Survival, seed uint64) kvtest.Disk {
	mode := map[kvtest.Survival]crashfs.Mode{
		kvtest.Nothing: crashfs.LoseAll, kvtest.Everything: crashfs.KeepAll, kvtest.Some: crashfs.KeepSome,
	}[s]
	return newDisk(m.image(mode, seed), m.cfg)
}

// tapFS calls a function before each change of its files, which may wait or return an error in
// place of the change.
type tapFS struct {
	vfs.FS

	mu     sync.Mutex
	before func(op, name string) error
}

func (f *tapFS) tap(before func(op, name string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

func (f *tapFS) ask(op, name string) error {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(op, name)
}

func (f *tapFS) Open(name string, flags vfs.Flag) (vfs.File, error) {
	if flags&vfs.Create != 0 {
		if err := f.ask("create", name); err != nil {
			return nil, err
		}
	}
	file, err := f.FS.Open(name, flags)
	if err != nil {
		return nil, err
	}
	return &tapFile{File: file, fs: f, name: name}, nil
}

func (f *tapFS) Remove(name string) error {
	if err := f.ask("remove", name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *tapFS) Rename(oldName, newName string) error {
	if err := f.ask("rename", newName); err != nil {
		return err
	}
	return f.FS.Rename(oldName, newName)
}

func (f *tapFS) MkdirAll(dir string) error {
	if err := f.ask("mkdir", dir); err != nil {
		return err
	}
	return f.FS.MkdirAll(dir)
}

func (f *tapFS) SyncDir(dir string) error {
	if err := f.ask("syncdir", dir); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

func (f *tapFS) Lock(name string) (io.Closer, error) {
	if err := f.ask("lock", name); err != nil {
		return nil, err
	}
	return f.FS.Lock(name)
}

type tapFile struct {
	vfs.File
	fs   *tapFS
	name string
}

func (f *tapFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fs.ask("write", f.name); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *tapFile) Sync() error {
	if err := f.fs.ask("sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }
