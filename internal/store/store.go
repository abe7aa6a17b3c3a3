// Package store implements object semantics: buckets, objects, conditional writes, multipart
// uploads and listings, over ordered metadata and immutable chunks.
//
// Called by: gateway, work, admin. It knows no HTTP and no fabric: bytes come from an arena.Source
// and go to an arena.Sink.
//
// Invariants:
//  1. A write returns nil only when payload and metadata are durable; nothing is visible before.
//  2. Every mutation reads and writes the key's head record and rechecks preconditions and the
//     bucket's id in the transaction that commits it.
//  3. No commit starts once ctx has ended.
//  4. A reader pins the chunks of the version it opened; they stay readable until Close.
//  5. A chunk is referred to by exactly one owner record from the commit that makes it visible until
//     it was deleted; overwriting or deleting queues it in the same transaction.
//  6. Chunks are discarded after a failed write only when it is certain that it was not committed.
//
// Lock order, inside transactions: an upload, then heads by ascending key.
//
// What it does not do: authentication, protocol limits, XML, checksum algorithms other than CRC64NVME
// and the ETags of multipart uploads and copies, deleting garbage (work).
package store

import "errors"

// Sentinels; the gateway has one table that maps each to an S3 error.
var (
	ErrNoSuchBucket      = errors.New("store: bucket does not exist")
	ErrBucketExists      = errors.New("store: bucket exists and belongs to someone else")
	ErrBucketOwned       = errors.New("store: bucket exists and belongs to the caller")
	ErrBucketNotEmpty    = errors.New("store: bucket is not empty")
	ErrNoSuchKey         = errors.New("store: key does not exist")
	ErrNoSuchUpload      = errors.New("store: upload does not exist")
	ErrInvalidPart       = errors.New("store: part is missing or its ETag or checksum differs")
	ErrPartOrder         = errors.New("store: parts are not in ascending order")
	ErrPartTooSmall      = errors.New("store: a part other than the last is below 5 MiB")
	ErrPrecondition      = errors.New("store: precondition failed")
	ErrNotModified       = errors.New("store: not modified")
	ErrConditionConflict = errors.New("store: conditional write lost against a concurrent one")
	ErrChecksumMismatch  = errors.New("store: declared checksum of the whole object differs")
	ErrSizeMismatch      = errors.New("store: declared size of the whole object differs")
	ErrNoSpace           = errors.New("store: no space left beyond the reserve")
	ErrCorrupt           = errors.New("store: stored bytes fail verification")
	ErrNoSuchPart        = errors.New("store: part number does not exist")
	ErrRange             = errors.New("store: range lies outside of the object")
	ErrInvalidMarker     = errors.New("store: marker or upload id is malformed")
	ErrTooLarge          = errors.New("store: key, metadata or payload over the limit")
	ErrUnavailable       = errors.New("store: temporarily unavailable")
)
