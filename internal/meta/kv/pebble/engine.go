package pebble

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"

	pdb "github.com/cockroachdb/pebble/v2"
	pvfs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/vfs/pebblefs"
)

// ErrMissing says that there is no engine where one must be. Nothing was removed.
var ErrMissing = errors.New("pebble: no engine in the directory")

// Engine is an open engine. Safe for concurrent use.
type Engine struct {
	db      *pdb.DB
	guard   *guard
	failure *failure
	gate    *gate
	seed    maphash.Seed
	ages    atomic.Uint64

	commits        commits
	commitPanicked atomic.Bool // Pebble's commit path is unusable, and so is its Close
	versions       versions
	locks          *lockTable
	hot            [hotStripes]chan struct{} // each holds one token of whoever heads that queue
	turn           chan struct{}             // holds one token of the transaction that has the turn
	values         sync.Pool                 // *[]byte, value memory of transactions
}

var _ kv.Engine = (*Engine)(nil)

// Open opens the engine in cfg.Dir, created when missing, and recovers what the log holds.
func Open(cfg Config) (*Engine, error) { return open(cfg, pebblefs.New(cfg.FS)) }

// open opens the engine on a file system of Pebble's kind.
func open(cfg Config, fs pvfs.FS) (*Engine, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.CacheBytes = cmp.Or(cfg.CacheBytes, DefaultCacheBytes)
	f := &failure{}
	g := newGuard(fs, f, cmp.Or(cfg.pause, tablePause))
	f.onFatal = func(err error) {
		g.died()
		if cfg.OnFatal != nil {
			cfg.OnFatal(err)
		}
	}
	db, err := openPebble(cfg, g)
	if err != nil {
		return nil, fmt.Errorf("pebble: open %s: %w", cfg.Dir, err)
	}
	g.opened.Store(true)
	e := &Engine{
		db: db, guard: g, failure: f, gate: newGate(), seed: maphash.MakeSeed(),
		locks: newLockTable(), turn: make(chan struct{}, 1),
		commits: commits{tracker: newTracker(), open: newGroup()},
	}
	for i := range e.hot {
		e.hot[i] = make(chan struct{}, 1)
	}
	// Open has flushed what the log held, so all that can be read is durable.
	e.versions.publish(&version{snap: db.NewSnapshot()})
	return e, nil
}

// openPebble opens the database, or says why not.
func openPebble(cfg Config, g *guard) (db *pdb.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, panicked(p)
		}
	}()
	db, err = pdb.Open(cfg.Dir, options(cfg, g, logger{log: cfg.Logger, guard: g}))
	if errors.Is(err, pdb.ErrDBDoesNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrMissing, err)
	}
	if err != nil {
		return nil, err
	}
	if cause := g.failure.writes(); cause != nil {
		g.close()
		_ = db.Close() // it has seen success where there was none
		return nil, cause
	}
	return db, nil
}

// Limits implements kv.Engine.
func (e *Engine) Limits() kv.Limits {
	return kv.Limits{KeyBytes: kv.MaxKeyBytes, ValueBytes: kv.MaxValueBytes, TxnBytes: kv.MaxTxnBytes}
}

// Close implements kv.Engine. It returns the error that ended the engine's writing, if one did; what
// was acknowledged is safe all the same.
func (e *Engine) Close() error {
	if !e.gate.close(e.guard.close) {
		return nil
	}
	if e.commitPanicked.Load() {
		return e.failure.writes() // Pebble would wait for ever
	}
	e.versions.close()
	err := e.db.Close()
	if cause := e.failure.writes(); cause != nil {
		return cause
	}
	if err != nil {
		return fmt.Errorf("pebble: close: %w", err)
	}
	return nil
}
