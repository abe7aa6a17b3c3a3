package pebble

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// pooledValueBytes bounds the value memory that goes back to the pool: it fits the usual inline
// payload with its record several times over.
const pooledValueBytes = 128 << 10

// write is the newest write of a transaction to a key.
type write struct {
	key     []byte
	value   []byte
	deleted bool
	slot    uint32
}

// writes are the writes of a transaction, sorted by key. Keys have memory of their own, as the
// tracker keeps them; values live in one buffer that is used again.
type writes struct {
	sorted []*write
	bytes  int
	values []byte
	pool   *sync.Pool
}

func (s *writes) find(key []byte) (int, bool) {
	return slices.BinarySearchFunc(s.sorted, key, func(w *write, key []byte) int {
		return bytes.Compare(w.key, key)
	})
}

// from returns the first write with a key ≥ key, or > key when after is set.
func (s *writes) from(key []byte, after bool) *write {
	i, found := s.find(key)
	if found && after {
		i++
	}
	if i == len(s.sorted) {
		return nil
	}
	return s.sorted[i]
}

func (s *writes) set(w write) error {
	if len(w.key) > kv.MaxKeyBytes {
		return fmt.Errorf("pebble: write key of %d bytes: %w", len(w.key), kv.ErrTooLarge)
	}
	if len(w.value) > kv.MaxValueBytes {
		return fmt.Errorf("pebble: write value of %d bytes: %w", len(w.value), kv.ErrTooLarge)
	}
	i, found := s.find(w.key)
	total := s.bytes + len(w.key) + len(w.value)
	if found {
		total -= len(s.sorted[i].key) + len(s.sorted[i].value)
	}
	if total > kv.MaxTxnBytes {
		return fmt.Errorf("pebble: write transaction of %d bytes: %w", total, kv.ErrTooLarge)
	}
	s.bytes = total
	w.value = s.keep(w.value)
	if found {
		s.sorted[i].value, s.sorted[i].deleted = w.value, w.deleted
		return nil
	}
	w.key = bytes.Clone(w.key)
	s.sorted = slices.Insert(s.sorted, i, &w)
	return nil
}

// keep copies a value. When the buffer grows, values kept before stay where they were.
func (s *writes) keep(value []byte) []byte {
	if len(value) == 0 {
		return nil
	}
	if s.values == nil {
		if b, ok := s.pool.Get().(*[]byte); ok {
			s.values = (*b)[:0]
		}
	}
	if len(s.values)+len(value) > cap(s.values) {
		s.values = make([]byte, 0, max(4<<10, 2*cap(s.values), len(value)))
	}
	n := len(s.values)
	s.values = append(s.values, value...)
	return s.values[n:len(s.values):len(s.values)]
}

// free gives the value memory back. The writes must not be used afterwards.
func (s *writes) free() {
	if s.values != nil && cap(s.values) <= pooledValueBytes {
		b := s.values[:0]
		s.pool.Put(&b)
	}
	s.values, s.sorted = nil, nil
}
