package meta

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

var (
	// ErrForeign says that the metadata belong to other drives.
	ErrForeign = errors.New("meta: metadata belong to other drives")
	// ErrStale says that the drives hold what the metadata cannot know: they are new, or a backup.
	ErrStale = errors.New("meta: metadata are older than the drives")
)

// Drives is what was found on the drives of a node.
type Drives struct {
	Set     [16]byte   // that they say they belong to
	IDs     [][16]byte // at least one
	Records int64      // on all of them
	Epoch   uint64     // newest one of those records
}

// Bind ties the metadata to the drives at the first start, and later checks that they are the ones.
// It comes before Open, so that metadata that are refused give out no epoch: however often somebody
// tries, they do not catch up with the drives. Errors: ErrForeign, ErrStale, ErrFormat, those of the
// engine.
func Bind(ctx context.Context, e kv.Engine, d Drives) error {
	err := e.Txn(ctx, func(tx kv.Tx) error {
		if _, err := checkFormat(ctx, tx); err != nil {
			return err
		}
		bound, err := get[metapb.Binding](ctx, tx, bindingKey())
		if err == nil {
			if err := checkBinding(bound, d); err != nil {
				return err
			}
			return checkAge(ctx, tx, d)
		}
		if !errors.Is(err, kv.ErrNotFound) {
			return err
		}
		if err := checkAge(ctx, tx, d); err != nil {
			return err
		}
		b := &metapb.Binding{Set: d.Set[:]}
		for _, id := range d.IDs {
			b.Drives = append(b.Drives, bytes.Clone(id[:]))
		}
		return put(tx, bindingKey(), b)
	})
	if err != nil {
		return fmt.Errorf("meta: bind to drives: %w", err)
	}
	return nil
}

func checkBinding(bound *metapb.Binding, d Drives) error {
	if !bytes.Equal(bound.Set, d.Set[:]) {
		return fmt.Errorf("they know set %x, the drives are of set %x: %w", bound.Set, d.Set, ErrForeign)
	}
	for _, id := range d.IDs {
		if !slices.ContainsFunc(bound.Drives, func(known []byte) bool { return bytes.Equal(known, id[:]) }) {
			return fmt.Errorf("they do not know drive %x: %w", id, ErrForeign)
		}
	}
	return nil
}

// checkAge compares the epochs that were given out with those of the records.
func checkAge(ctx context.Context, r kv.Reader, d Drives) error {
	c, err := get[metapb.Counter](ctx, r, counterKey("epoch"))
	if errors.Is(err, kv.ErrNotFound) {
		c, err = &metapb.Counter{}, nil
	}
	switch {
	case err != nil:
		return err
	case c.Value == 0 && d.Records > 0:
		return fmt.Errorf("they are new, the drives hold %d records: %w", d.Records, ErrStale)
	case d.Epoch > c.Value:
		return fmt.Errorf("they are at epoch %d, the drives at %d: %w", c.Value, d.Epoch, ErrStale)
	}
	return nil
}
