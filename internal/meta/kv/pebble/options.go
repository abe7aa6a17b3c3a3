package pebble

import (
	"runtime"
	"time"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

const (
	// formatVersion is the format that new files have. Raising it is a one-way step of the store.
	formatVersion = pdb.FormatValueSeparation

	// memTableBytes × memTables bounds what is not flushed yet. At 5,000 inline payloads of 4 KiB a
	// second a table fills in 1.5 s, and four of them ride out a slow flush.
	memTableBytes = 32 << 20
	memTables     = 4

	// steadyMemTables are usually there: the one written to, and one that is flushed or kept for use
	// again. Pebble takes their memory out of its cache, so it comes on top of what blocks may have.
	steadyMemTables = 2

	// l0Stop is the depth of level 0 that stops writes, far above where compactions begin: short
	// bursts must not stall.
	l0Compact = 4
	l0Stop    = 48

	// openFiles bounds file descriptors.
	openFiles = 1000

	// blockBytes of a table: two or three usual records with their keys compressed by prefix.
	blockBytes = 8 << 10

	// filterBits per key keep 99 of 100 look-ups of missing keys away from the disk.
	filterBits = 10

	// separateBytes is where a value goes to a blob file, so that compactions do not copy inline
	// payloads again and again; records without payload stay beside their keys. blobDepth bounds
	// the blob files behind one table, blobAge and blobGarbage say when one is rewritten for space.
	separateBytes = 1 << 10
	blobDepth     = 10
	blobAge       = 5 * time.Minute
	blobGarbage   = 0.3
)

func options(cfg Config, g *guard, l logger) *pdb.Options {
	o := &pdb.Options{
		FS:                          g,
		ErrorIfNotExists:            cfg.MustExist,
		CacheSize:                   cfg.CacheBytes + steadyMemTables*memTableBytes,
		FormatMajorVersion:          formatVersion,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: memTables,
		L0CompactionThreshold:       l0Compact,
		L0StopWritesThreshold:       l0Stop,
		MaxOpenFiles:                openFiles,
		Logger:                      l,
		EventListener:               l.events(),
		CompactionConcurrencyRange: func() (lower, upper int) {
			return 1, max(1, runtime.GOMAXPROCS(0)/2)
		},
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = blockBytes
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(filterBits)
		o.Levels[i].FilterType = pdb.TableFilter
	}
	o.Experimental.ValueSeparationPolicy = func() pdb.ValueSeparationPolicy {
		return pdb.ValueSeparationPolicy{
			Enabled:               true,
			MinimumSize:           separateBytes,
			MaxBlobReferenceDepth: blobDepth,
			RewriteMinimumAge:     blobAge,
			TargetGarbageRatio:    blobGarbage,
		}
	}
	if cfg.tune != nil {
		cfg.tune(o)
	}
	return o
}
