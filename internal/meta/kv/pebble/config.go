package pebble

import (
	"log/slog"
	"time"

	pdb "github.com/cockroachdb/pebble/v2"

	"github.com/penstock-store/penstock/internal/vfs"
)

// DefaultCacheBytes is the block cache when Config says nothing: small beside the gateway's other
// memory, enough for the index and filter blocks of some ten million keys.
const DefaultCacheBytes = 64 << 20

// Config says how to open an engine.
type Config struct {
	// FS holds the files; Dir is the engine's own directory in it, created when missing.
	FS  vfs.FS
	Dir string
	// MustExist refuses, with ErrMissing, a Dir without an engine instead of creating one there.
	MustExist bool
	// CacheBytes is for the cache of uncompressed blocks. 0 means DefaultCacheBytes. Unflushed
	// writes come on top of it: 64 MiB, and another 64 MiB when flushing falls behind.
	CacheBytes int64
	// Logger gets the engine's events. nil discards them.
	Logger *slog.Logger
	// OnFatal is called once, with the cause, when the engine stops accepting writes by itself.
	// It must return soon and must not call the engine. nil is allowed.
	OnFatal func(error)

	tune  func(*pdb.Options) // tests make files small, so that much happens to them
	pause time.Duration      // tests want it short; 0 is tablePause
}
