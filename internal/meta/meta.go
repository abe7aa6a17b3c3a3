// Package meta holds the typed records of the metadata and their keys, over the kv contract.
// docs/format.md has the key space as a table.
//
// Called by: store (objects, buckets, uploads), work (garbage, orphans), iam (access keys).
//
// Invariants:
//  1. The byte order of head and upload keys is the byte order of S3 keys, whatever bytes those hold.
//  2. A bucket's name appears in one record; everything else carries its id, which is new with every
//     creation. So a bucket that was deleted and made again shares nothing with its predecessor.
//  3. A record is a protocol buffer; fields that this binary does not know survive a rewrite.
//  4. A head or part value is its record and behind it the inline payload, so that a reader gets the
//     payload without a copy.
//  5. No value exceeds kv.MaxValueBytes: longer lists are cut into pages.
//
// What it does not do: object semantics, transactions that span several records (store).
package meta

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// FormatVersion is the layout that this package reads and writes.
const FormatVersion = 1

// Limits of the records. Together they keep every value below kv.MaxValueBytes.
const (
	// ChunksPerPage is how many chunk references one record holds: at about 40 bytes each, 32 KiB.
	ChunksPerPage = 800
	// RunsInHead is how many runs of parts a head holds itself. Uploads with parts of one size have
	// two; a longer list would make listings slow.
	RunsInHead = 64
	// RunsPerPage is how many runs one manifest page holds: at about 10 bytes each, 25 KiB.
	RunsPerPage = 2500
)

var (
	// ErrNotFound says that there is no such access key. Other records: kv.ErrNotFound.
	ErrNotFound = errors.New("meta: access key not found")
	// ErrCorrupt says that a record or a key cannot be read.
	ErrCorrupt = errors.New("meta: record is malformed")
	// ErrFormat says that the metadata have a layout that this binary does not know.
	ErrFormat = errors.New("meta: unknown format version")
)

// ID names an upload, or the owner of chunks: 16 bytes, never used twice.
type ID [16]byte

// NewID returns a random id.
func NewID() ID {
	var id ID
	_, _ = rand.Read(id[:]) // never fails: crypto/rand.Read ends the process instead
	return id
}

// NewUploadID returns an id that sorts by time of creation among the uploads of a key: 48 bits of
// Unix milliseconds and 80 random bits.
func NewUploadID(unixMilli int64) ID {
	id := NewID()
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(unixMilli))
	copy(id[:6], ms[2:])
	return id
}

// ParseID reads the form that String writes.
func ParseID(s string) (ID, bool) {
	var id ID
	if len(s) != 2*len(id) {
		return ID{}, false
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil || id.String() != s {
		return ID{}, false
	}
	return id, true
}

// IDFrom reads an id out of a record.
func IDFrom(b []byte) (ID, error) {
	if len(b) != len(ID{}) {
		return ID{}, fmt.Errorf("meta: id of %d bytes: %w", len(b), ErrCorrupt)
	}
	return ID(b), nil
}

// String is the lower-case hex form.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// message is a pointer to T that is a protocol buffer.
type message[T any] interface {
	*T
	proto.Message
}

func get[T any, P message[T]](ctx context.Context, r kv.Reader, key []byte) (*T, error) {
	value, err := r.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return decode[T, P](value)
}

func decode[T any, P message[T]](value []byte) (*T, error) {
	record := new(T)
	if err := proto.Unmarshal(value, P(record)); err != nil {
		return nil, fmt.Errorf("meta: decode %T: %w: %w", record, ErrCorrupt, err)
	}
	return record, nil
}

func put(tx kv.Tx, key []byte, record proto.Message) error {
	value, err := proto.Marshal(record)
	if err != nil {
		return fmt.Errorf("meta: encode %T: %w", record, err)
	}
	return tx.Put(key, value)
}

func exists(ctx context.Context, r kv.Reader, key []byte) (bool, error) {
	_, err := r.Get(ctx, key)
	if errors.Is(err, kv.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// encodeWithPayload frames a record and the payload behind it: uvarint length of the record, the
// record, the payload.
func encodeWithPayload(record proto.Message, inline []byte) ([]byte, error) {
	n := proto.Size(record)
	value := make([]byte, 0, binary.MaxVarintLen32+n+len(inline))
	value = binary.AppendUvarint(value, uint64(n))
	value, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(value, record)
	if err != nil {
		return nil, fmt.Errorf("meta: encode %T: %w", record, err)
	}
	return append(value, inline...), nil
}

// decodeWithPayload is the inverse. The payload is a view of value.
func decodeWithPayload[T any, P message[T]](value []byte) (*T, []byte, error) {
	n, w := binary.Uvarint(value)
	if w <= 0 || n > uint64(len(value)-w) {
		return nil, nil, fmt.Errorf("meta: value of %d bytes has no whole record: %w", len(value), ErrCorrupt)
	}
	end := w + int(n)
	record, err := decode[T, P](value[w:end])
	return record, value[end:len(value):len(value)], err
}

// Open checks the layout, writes the format record of an empty engine, and starts a process epoch:
// a new number; every older epoch is dead from here on, so a process that still ran under one could
// commit no chunk any more. Durable when it returns.
func Open(ctx context.Context, e kv.Engine, nowNs int64) (epoch uint64, err error) {
	err = e.Txn(ctx, func(tx kv.Tx) error {
		found, err := checkFormat(ctx, tx)
		if err == nil && !found {
			err = put(tx, formatKey(), &metapb.Format{Version: FormatVersion})
		}
		if err != nil {
			return err
		}
		if epoch, err = nextNumber(ctx, tx, counterKey("epoch")); err != nil {
			return err
		}
		var dead [][]byte
		from, to := family(tagEpoch)
		err = tx.Scan(ctx, from, to, func(key, _ []byte) (kv.Next, error) {
			dead = append(dead, append([]byte(nil), key...))
			return kv.Next{}, nil
		})
		if err != nil {
			return err
		}
		for _, key := range dead {
			if err := tx.Delete(key); err != nil {
				return err
			}
		}
		return put(tx, epochKey(epoch), &metapb.Epoch{StartedNs: nowNs})
	})
	return epoch, err
}

// checkFormat refuses a layout that this binary does not know.
func checkFormat(ctx context.Context, r kv.Reader) (found bool, err error) {
	f, err := get[metapb.Format](ctx, r, formatKey())
	switch {
	case errors.Is(err, kv.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case f.Version != FormatVersion:
		return false, fmt.Errorf("meta: open version %d: %w", f.Version, ErrFormat)
	}
	return true, nil
}

// EpochAlive tells whether chunks of that epoch may still be committed.
func EpochAlive(ctx context.Context, r kv.Reader, epoch uint64) (bool, error) {
	return exists(ctx, r, epochKey(epoch))
}

func nextNumber(ctx context.Context, tx kv.Tx, key []byte) (uint64, error) {
	c, err := get[metapb.Counter](ctx, tx, key)
	if errors.Is(err, kv.ErrNotFound) {
		c, err = &metapb.Counter{}, nil
	}
	if err != nil {
		return 0, err
	}
	c.Value++
	return c.Value, put(tx, key, c)
}
