package pebble

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	pdb "github.com/cockroachdb/pebble/v2"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// snap is a durable state.
type snap struct {
	e       *Engine
	version atomic.Pointer[version] // nil once closed
}

var _ kv.Snap = (*snap)(nil)

// Snapshot implements kv.Engine. It does not wait.
func (e *Engine) Snapshot(ctx context.Context) (kv.Snap, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := e.failure.reads(); err != nil {
		return nil, err
	}
	v := e.versions.acquire()
	if v == nil {
		return nil, kv.ErrClosed
	}
	s := &snap{e: e}
	s.version.Store(v)
	return s, nil
}

// enter returns the state to read; leave of the gate must follow.
func (s *snap) enter() (*pdb.Snapshot, error) {
	v := s.version.Load()
	if v == nil || !s.e.gate.enter() {
		return nil, kv.ErrClosed
	}
	if err := s.e.failure.reads(); err != nil {
		s.e.gate.leave()
		return nil, err
	}
	return v.snap, nil
}

// Get implements kv.Reader.
func (s *snap) Get(ctx context.Context, key []byte) ([]byte, error) {
	state, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer s.e.gate.leave()
	return get(ctx, state, key)
}

// Scan implements kv.Reader.
func (s *snap) Scan(ctx context.Context, from, to []byte, fn func(k, v []byte) (kv.Next, error)) error {
	state, err := s.enter()
	if err != nil {
		return err
	}
	defer s.e.gate.leave()
	return scan(ctx, state, scanRange{from: from, to: to}, fn)
}

// Close implements kv.Snap.
func (s *snap) Close() error {
	if v := s.version.Swap(nil); v != nil {
		s.e.versions.release(v)
	}
	return nil
}

func get(ctx context.Context, state *pdb.Snapshot, key []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	value, closer, err := state.Get(key)
	if err != nil {
		if errors.Is(err, pdb.ErrNotFound) {
			return nil, kv.ErrNotFound
		}
		return nil, fmt.Errorf("pebble: get key: %w", err)
	}
	out := append([]byte{}, value...)
	if err := closer.Close(); err != nil {
		return nil, fmt.Errorf("pebble: get key: %w", err)
	}
	return out, nil
}
