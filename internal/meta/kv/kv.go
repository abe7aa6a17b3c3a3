// Package kv is the contract for ordered transactional key-value engines under the metadata.
//
// Called by: meta. Implemented by kv/pebble; kvtest is the conformance suite.
//
// Invariants of every engine:
//  1. Transactions are serialisable. A transaction function may run several times; it must have no
//     effect but through its Tx.
//  2. When Txn returns nil the writes are durable (survive power loss).
//  3. Nothing is visible before it is durable: what Snapshot or Tx lets a caller act on has been
//     synced before Snapshot or Txn returns. (An embedded engine shows a batch to readers before its
//     log is synced, so Snapshot waits for the sync that covers it, and so does a Txn that wrote
//     nothing.)
//  4. Iteration is in ascending byte order of keys.
//
// What it does not do: record encoding, key layout (meta).
package kv

import (
	"context"
	"errors"
)

// Limits that every serious engine fits (FoundationDB, TiKV and PostgreSQL included).
const (
	MaxKeyBytes   = 4 << 10  // 1 KiB of layout and an S3 key of 1,024 bytes, each byte escaped
	MaxValueBytes = 64 << 10 // 16 KiB inline payload and its record, a page of a chunk list
	MaxTxnBytes   = 1 << 20  // sum of keys and values written
)

var (
	// ErrNotFound says that the key does not exist.
	ErrNotFound = errors.New("kv: key not found")
	// ErrConflict says that a transaction lost against others more often than the retry limit.
	ErrConflict = errors.New("kv: transaction conflict persists")
	// ErrTooLarge says that a key, a value or a transaction is over a limit.
	ErrTooLarge = errors.New("kv: size limit exceeded")
	// ErrClosed says that the engine is closed, or that a sync failed and it accepts no more writes.
	ErrClosed = errors.New("kv: engine closed")
	// ErrUnavailable says that the engine cannot accept writes for now (its disk is full, its
	// server away). Nothing was written. Reads may go on, and a later try may succeed.
	ErrUnavailable = errors.New("kv: engine unavailable for writes")
)

// LockMode is how Tx.Lock holds a key until the end of the transaction.
type LockMode int

// Lock modes. Any number of transactions hold a key Shared, only one Exclusive.
const (
	Shared LockMode = iota
	Exclusive
)

// Reader reads a consistent state. A Get or Scan ends early with the error of ctx when that ends.
type Reader interface {
	// Get returns the value, which the caller may keep but not change, or ErrNotFound.
	Get(ctx context.Context, key []byte) ([]byte, error)

	// Scan calls fn for the keys in [from, to), ascending. The slices are valid only during the
	// call. fn returns what to do next; nil as `to` means no upper bound.
	Scan(ctx context.Context, from, to []byte, fn func(key, value []byte) (Next, error)) error
}

// Next says how a Scan goes on. The zero value is: with the next key.
type Next struct {
	Stop bool   // end the scan
	Seek []byte // if not nil, go on at the first key ≥ Seek, which must be > the current key
}

// Tx is one try of a transaction. It reads its own writes. Not for concurrent use. Once a call has
// returned an error other than ErrNotFound, or fn of a Scan one of its own, fn should return it;
// after ErrTooLarge or a lost conflict the transaction cannot commit. Put and Delete copy what they
// are given. Keys are not empty.
type Tx interface {
	Reader
	Put(key, value []byte) error
	Delete(key []byte) error

	// Lock takes the key for the rest of the transaction and waits for its holders. Locks are
	// advisory among transactions that call Lock; plain reads and writes are protected by conflict
	// detection anyway. An engine may answer a deadlock by retrying the transaction.
	Lock(ctx context.Context, key []byte, mode LockMode) error
}

// Snap is a consistent, durable state, for any number of concurrent readers. Close it after them.
// It may be closed after its engine.
type Snap interface {
	Reader
	Close() error
}

// Engine is an ordered transactional KV.
type Engine interface {
	// Txn runs fn and commits. If fn returns an error nothing is written and the error is
	// returned. Conflicts are retried up to a limit, then ErrConflict. No commit starts after ctx
	// has ended; one that has started is waited for, so an error of ctx means: nothing written.
	// ErrClosed may mean that the outcome of a commit under way is unknown.
	Txn(ctx context.Context, fn func(Tx) error) error
	// Snapshot returns a state that holds every transaction whose Txn had returned nil before.
	Snapshot(ctx context.Context) (Snap, error)
	Limits() Limits
	// Close ends waiting for locks, waits for calls under way and closes. Later calls of anything
	// but Close return ErrClosed.
	Close() error
}

// Limits of an engine; at least the constants above.
type Limits struct {
	KeyBytes, ValueBytes, TxnBytes int
}
