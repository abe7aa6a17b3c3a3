package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	pdb "github.com/cockroachdb/pebble/v2"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// scanCheckEvery is the number of keys between looks at ctx: some 100 µs of scanning.
const scanCheckEvery = 128

var errSeekBack = errors.New("pebble: scan: seek at or before the current key")

// scanFunc is what a Scan calls.
type scanFunc = func(key, value []byte) (kv.Next, error)

// scanRange is what a scan covers.
type scanRange struct {
	from, to []byte
	own      *writes        // laid over the state, or nil
	seen     func(keyRange) // told each piece of the state that the scan has looked at, or nil
}

// cursor merges a state with the writes of the transaction that reads it.
type cursor struct {
	scanRange
	it    *pdb.Iterator
	valid bool   // it stands on a key
	next  *write // next own write, or nil
}

func scan(ctx context.Context, state *pdb.Snapshot, r scanRange, fn scanFunc) (err error) {
	if err := ctx.Err(); err != nil || (r.to != nil && bytes.Compare(r.from, r.to) >= 0) {
		return err
	}
	if len(r.from) == 0 {
		r.from = nil // Pebble wants "no bound" told apart from an empty one
	}
	it, err := state.NewIterWithContext(ctx, &pdb.IterOptions{LowerBound: r.from, UpperBound: r.to})
	if err != nil {
		return fmt.Errorf("pebble: scan: %w", err)
	}
	defer func() {
		if cerr := it.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("pebble: scan: %w", cerr)
		}
	}()
	c := &cursor{scanRange: r, it: it}
	return c.run(ctx, fn)
}

func (c *cursor) run(ctx context.Context, fn scanFunc) error {
	start := c.from
	c.seek(start)
	for n := 1; ; n++ {
		key, value, err := c.current()
		if err != nil || key == nil {
			c.look(start, c.to)
			return err
		}
		next, err := fn(key, value)
		if err != nil || next.Stop {
			c.lookTo(start, key)
			return err
		}
		if n%scanCheckEvery == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if next.Seek == nil {
			c.step(key)
			continue
		}
		if bytes.Compare(next.Seek, key) <= 0 {
			return errSeekBack
		}
		c.lookTo(start, key)
		start = bytes.Clone(next.Seek)
		if c.to != nil && bytes.Compare(start, c.to) >= 0 {
			return nil
		}
		c.seek(start)
	}
}

// lookTo reports [from, key] as looked at.
func (c *cursor) lookTo(from, key []byte) {
	if c.seen != nil {
		c.seen(keyRange{from: bytes.Clone(from), to: successor(key)})
	}
}

// look reports [from, to) as looked at.
func (c *cursor) look(from, to []byte) {
	if c.seen != nil {
		c.seen(keyRange{from: bytes.Clone(from), to: bytes.Clone(to)})
	}
}

// seek goes to the first key ≥ key.
func (c *cursor) seek(key []byte) {
	if len(key) == 0 {
		c.valid = c.it.First()
	} else {
		c.valid = c.it.SeekGE(key)
	}
	c.loadOwn(key, false)
}

// step goes behind key, the current one. fn may have written meanwhile.
func (c *cursor) step(key []byte) {
	c.loadOwn(key, true)
	if c.valid && bytes.Equal(c.it.Key(), key) {
		c.valid = c.it.Next()
	}
}

func (c *cursor) loadOwn(key []byte, after bool) {
	if c.own == nil {
		return
	}
	c.next = c.own.from(key, after)
	if c.next != nil && c.to != nil && bytes.Compare(c.next.key, c.to) >= 0 {
		c.next = nil
	}
}

// current returns the key and value that the cursor stands on, skipping what the transaction has
// deleted. A nil key says that there is none.
func (c *cursor) current() (key, value []byte, err error) {
	for {
		if c.next == nil || (c.valid && bytes.Compare(c.it.Key(), c.next.key) < 0) {
			break
		}
		if !c.next.deleted {
			return c.next.key, c.next.value, nil
		}
		c.step(c.next.key)
	}
	if !c.valid {
		if err := c.it.Error(); err != nil {
			return nil, nil, fmt.Errorf("pebble: scan: %w", err)
		}
		return nil, nil, nil
	}
	value, err = c.it.ValueAndErr()
	if err != nil {
		return nil, nil, fmt.Errorf("pebble: scan: read value: %w", err)
	}
	return nonNil(c.it.Key()), value, nil
}

// nonNil tells the empty key from no key.
func nonNil(key []byte) []byte {
	if key == nil {
		return []byte{}
	}
	return key
}
