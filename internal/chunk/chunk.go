// Package chunk is the contract for engines that store immutable payload chunks.
//
// Called by: store. Implemented by chunk/local; chunktest is the conformance suite.
//
// Invariants of every engine:
//  1. Write returns only after the chunk is durable and was verified against what the Source gave.
//  2. Read delivers only bytes that were checked against their CRC64NVME in this very call.
//  3. A chunk has one immutable Owner and never changes; ids are never reused.
//  4. Buffers taken from a Source or a Sink are released by the time the call returns, except one
//     that a stuck device operation still uses; that one is released when the operation ends.
//
// What it does not do: names, versions, visibility (store and meta).
package chunk

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/internal/arena"
)

// MaxBytes is the largest chunk: large enough that per-chunk cost (a record, an fdatasync) is
// small beside the payload, small enough that one chunk is repaired in well under a second.
const MaxBytes = 64 << 20

var (
	// ErrNotFound says that no such chunk exists.
	ErrNotFound = errors.New("chunk: not found")
	// ErrCorrupt says that stored bytes failed verification and no redundancy could mend them.
	ErrCorrupt = errors.New("chunk: stored bytes fail verification")
	// ErrNoSpace says that no drive has room beyond its reserve. Nothing was stored.
	ErrNoSpace = errors.New("chunk: no space left beyond the reserve")
	// ErrSize says that a source's size is outside 1..MaxBytes or not what it yields, or that a range
	// is not inside the chunk. It is the caller's mistake.
	ErrSize = errors.New("chunk: size or range out of bounds")
	// ErrUnavailable says that too few drives are writable or readable now.
	ErrUnavailable = errors.New("chunk: too few drives available")
)

// ID names a chunk: 16 random bytes.
type ID [16]byte

// String is the lower-case hex form.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Owner is the upload or object version that a chunk belongs to: a 16-byte id, never a key.
// Epoch is the process epoch of the writer: a chunk without a referring owner is an orphan only
// when its epoch is dead.
type Owner struct {
	ID    [16]byte
	Epoch uint64
}

// Scheme is a redundancy scheme. The zero value is none: one shard, no redundancy.
type Scheme struct {
	Data   uint8 // k; 0 and 1 mean the whole chunk in one shard
	Parity uint8 // m
}

// Ref is all that a reader needs to find and verify a chunk. It is stored in object records.
type Ref struct {
	ID        ID
	Scheme    Scheme
	Length    int64  // payload bytes
	CRC64NVME uint64 // of the whole payload
}

// Range selects [Off, Off+Len) of a chunk's payload, within [0, Length].
type Range struct {
	Off, Len int64
}

// Check tells whether the range lies inside a payload of length bytes. Errors: ErrSize.
func (r Range) Check(length int64) error {
	if r.Off < 0 || r.Len < 0 || r.Off > length || r.Len > length-r.Off {
		return fmt.Errorf("range [%d, +%d) of %d bytes: %w", r.Off, r.Len, length, ErrSize)
	}
	return nil
}

// Health is what Verify found.
type Health struct {
	Shards    int // shards that the scheme wants
	Readable  int // shards that exist and verify
	Redundant int // shards that may still be lost without losing the chunk
}

// Engine stores chunks.
type Engine interface {
	// Write stores src.Size() ≤ MaxBytes bytes, > 0. When it returns a Ref the chunk is durable.
	// On any error, and when ctx ended before the commit, nothing is stored that a later orphan
	// check would not remove. Errors: ErrNoSpace, ErrUnavailable, src's errors, ctx's error.
	Write(ctx context.Context, o Owner, s Scheme, src arena.Source) (Ref, error)

	// Read delivers exactly r.Len bytes to dst, at positions 0..r.Len, and does not call dst.Done.
	// Errors: ErrNotFound, ErrCorrupt, ErrUnavailable, dst's errors, ctx's error.
	Read(ctx context.Context, ref Ref, r Range, dst arena.Sink) error

	// Delete removes the chunk durably; its space returns after a grace time and once no pinned
	// reader is left. Deleting what does not exist is no error.
	Delete(ctx context.Context, ref Ref) error

	// Verify reads every shard and reports. It never changes anything.
	Verify(ctx context.Context, ref Ref) (Health, error)
}

// Pinner is an optional ability: Pin keeps the chunks readable, even if deleted meanwhile, until
// the returned function is called (once). ErrNotFound, and nothing pinned, when one is gone
// already: the caller then looks its object record up again. A chunk that was deleted while somebody
// else pins it may be pinned or be ErrNotFound.
type Pinner interface {
	Pin(ctx context.Context, refs ...Ref) (unpin func(), err error)
}

// Walker is an optional ability, for the orphan check: Walk calls fn for every stored chunk with
// its owner. The order is undefined; chunks written or deleted meanwhile may or may not appear.
type Walker interface {
	Walk(ctx context.Context, fn func(Ref, Owner) error) error
}
