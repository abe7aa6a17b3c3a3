package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
)

// Limits of the store.
const (
	// DefaultInlineBytes is the largest payload that lives in the metadata value: below it a chunk
	// of its own costs a second sync and 8 KiB of framing on a drive.
	DefaultInlineBytes = 16 << 10
	// MaxInlineBytes leaves room for the rest of the record in a value of kv.MaxValueBytes.
	MaxInlineBytes = 32 << 10
	// MaxListLimit is S3's page size.
	MaxListLimit = 1000
	// MaxKeyBytes is S3's limit of a key.
	MaxKeyBytes = 1024
	// MaxParts is S3's limit of parts in an upload.
	MaxParts = 10000
	// MinPartBytes is S3's lower limit of every part but the last.
	MinPartBytes = 5 << 20
	// CompletedKept is how long a repeated CompleteMultipartUpload is answered like the first: SDKs
	// retry for minutes, people for hours.
	CompletedKept = 24 * time.Hour
	// MaxMetaBytes is the largest ObjectMeta as a record: S3 allows 8 KiB of headers in all.
	MaxMetaBytes = 8 << 10

	discardTimeout = 5 * time.Second // best effort; what it leaves is found by the orphan check
	openTries      = 3               // an object replaced as often while it is opened is too hot to read
)

// Options of a Store. The engines stay the caller's and must outlive the Store.
type Options struct {
	KV     kv.Engine
	Chunks chunk.Engine
	Scheme chunk.Scheme // of new chunks

	InlineBytes int          // largest inline payload; 0 means DefaultInlineBytes, < 0 none at all
	ChunkBytes  int64        // largest chunk; 0 means chunk.MaxBytes
	MinPart     int64        // 0 means MinPartBytes; smaller in tests
	CopyShare   *arena.Share // buffers for copies on the server; without it they are ErrUnavailable
	AWSRegion   string       // of new buckets

	Now       func() time.Time // nil means time.Now
	Log       *slog.Logger     // nil discards
	OnGarbage func()           // called, not under a lock, when garbage was queued; nil: not
}

// Store is the object store. It has no goroutines of its own; all methods are safe for concurrent
// use.
type Store struct {
	kv     kv.Engine
	chunks chunk.Engine
	pinner chunk.Pinner // nil when the engine has no pins
	o      Options      // with the defaults filled in
	epoch  uint64
}

// New opens the store and starts a new process epoch (a durable transaction).
func New(ctx context.Context, o Options) (*Store, error) {
	if o.KV == nil || o.Chunks == nil {
		return nil, errors.New("store: new without engines")
	}
	if o.InlineBytes == 0 {
		o.InlineBytes = DefaultInlineBytes
	}
	o.InlineBytes = min(o.InlineBytes, MaxInlineBytes)
	if o.ChunkBytes <= 0 {
		o.ChunkBytes = chunk.MaxBytes
	}
	if o.MinPart <= 0 {
		o.MinPart = MinPartBytes
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnGarbage == nil {
		o.OnGarbage = func() {}
	}
	epoch, err := meta.Open(ctx, o.KV, o.Now().UnixNano())
	if err != nil {
		return nil, fmt.Errorf("store: open: %w", wrap(err))
	}
	s := &Store{kv: o.KV, chunks: o.Chunks, o: o, epoch: epoch}
	s.pinner, _ = o.Chunks.(chunk.Pinner)
	return s, nil
}

// Epoch is the process epoch that chunks of this Store carry.
func (s *Store) Epoch() uint64 { return s.epoch }

func (s *Store) nowNs() int64 { return s.o.Now().UnixNano() }

// view runs fn at a snapshot.
func (s *Store) view(ctx context.Context, fn func(kv.Reader) error) error {
	snap, err := s.kv.Snapshot(ctx)
	if err != nil {
		return wrap(err)
	}
	if err := fn(snap); err != nil {
		_ = snap.Close() // a reader's close has nothing to add to the first error
		return wrap(err)
	}
	return wrap(snap.Close())
}

// commit runs fn in a transaction that is not committed once ctx has ended. unknown says that an
// error left open whether the transaction took place; its chunks must not be discarded then.
func (s *Store) commit(ctx context.Context, fn func(kv.Tx) error) (unknown bool, err error) {
	reached := false
	err = s.kv.Txn(ctx, func(tx kv.Tx) error {
		reached = false
		if err := fn(tx); err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		reached = true
		return nil
	})
	if err == nil {
		return false, nil
	}
	nothing := errors.Is(err, kv.ErrConflict) || errors.Is(err, kv.ErrTooLarge) ||
		errors.Is(err, kv.ErrUnavailable) || isEnd(ctx, err)
	if errors.Is(err, kv.ErrClosed) {
		nothing = false // whatever else the chain of a dead engine's error holds
	}
	return reached && !nothing, wrap(err)
}

// isEnd tells whether err is about the end of ctx, after which engines write nothing.
func isEnd(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

// wrap adds the store's sentinel to an error of the engines below.
func wrap(err error) error {
	for _, m := range [...]struct{ below, own error }{
		{kv.ErrConflict, ErrUnavailable}, {kv.ErrClosed, ErrUnavailable}, {kv.ErrUnavailable, ErrUnavailable},
		{kv.ErrTooLarge, ErrTooLarge}, {meta.ErrCorrupt, ErrCorrupt},
		{kv.ErrNotFound, ErrCorrupt}, // of a record that another one refers to; the rest is named before
		{chunk.ErrNoSpace, ErrNoSpace}, {chunk.ErrUnavailable, ErrUnavailable},
		{chunk.ErrCorrupt, ErrCorrupt},
	} {
		if errors.Is(err, m.below) && !errors.Is(err, m.own) {
			return fmt.Errorf("%w: %w", m.own, err)
		}
	}
	return err
}
