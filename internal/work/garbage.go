package work

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
	"github.com/penstock-store/penstock/internal/store"
)

// RunOnce works off all that is due. An entry that fails stays in the queue and does not hold up
// others; its error is in the result.
func (c *Collector) RunOnce(ctx context.Context) (Stats, error) {
	c.running.Lock()
	defer c.running.Unlock()
	var stats Stats
	for {
		before := stats.Entries
		err := c.pass(ctx, &stats)
		if err != nil || stats.Entries == before {
			return stats, err
		}
	}
}

// pass goes through the queue once. Working off an entry may queue others, hence more passes.
func (c *Collector) pass(ctx context.Context, stats *Stats) error {
	var errs []error
	var after []byte
	due := c.o.Now().UnixNano()
	for {
		entries, err := c.due(ctx, due, after)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for _, e := range entries {
			if err := c.workOff(ctx, e, stats); err != nil {
				if ctx.Err() != nil {
					return err
				}
				errs = append(errs, err)
				continue
			}
			stats.Entries++
		}
		if len(entries) < entryBatch {
			return errors.Join(errs...)
		}
		after = entries[len(entries)-1].Key
	}
}

func (c *Collector) due(ctx context.Context, due int64, after []byte) (entries []meta.GarbageEntry, err error) {
	err = c.view(ctx, func(r kv.Reader) error {
		entries, err = meta.DueGarbage(ctx, r, due, after, entryBatch)
		return err
	})
	return entries, err
}

func (c *Collector) view(ctx context.Context, fn func(kv.Reader) error) error {
	snap, err := c.o.KV.Snapshot(ctx)
	if err != nil {
		return err
	}
	return errors.Join(fn(snap), snap.Close())
}

func (c *Collector) workOff(ctx context.Context, e meta.GarbageEntry, stats *Stats) error {
	switch what := e.What.(type) {
	case *metapb.Garbage_Payload:
		return c.payload(ctx, e, what.Payload, stats)
	case *metapb.Garbage_Upload:
		upload, err := meta.IDFrom(what.Upload)
		if err != nil {
			return err
		}
		if err := c.parts(ctx, upload, meta.AllNumbers(), stats); err != nil {
			return err
		}
		return c.drop(ctx, e, func(tx kv.Tx) error { return meta.DeleteManifestPages(ctx, tx, upload) })
	case *metapb.Garbage_Parts:
		return c.partList(ctx, e, what.Parts, stats)
	case *metapb.Garbage_Bucket:
		return c.bucket(ctx, e, what.Bucket)
	case *metapb.Garbage_Completed:
		upload, err := meta.IDFrom(what.Completed)
		if err != nil {
			return err
		}
		return c.drop(ctx, e, func(tx kv.Tx) error { return meta.DeleteCompleted(tx, upload) })
	}
	return fmt.Errorf("garbage entry of an unknown kind: %w", meta.ErrCorrupt)
}

// drop removes an entry and what else belongs to that, in one transaction.
func (c *Collector) drop(ctx context.Context, e meta.GarbageEntry, also func(kv.Tx) error) error {
	return c.o.KV.Txn(ctx, func(tx kv.Tx) error {
		if err := also(tx); err != nil {
			return err
		}
		return meta.DropGarbage(tx, e)
	})
}

// payload deletes the chunks, then owner, pages and entry together: what the queue names is no orphan,
// and its pages are there as long as the entry is.
func (c *Collector) payload(ctx context.Context, e meta.GarbageEntry, p *metapb.Payload, stats *Stats) error {
	if err := c.chunks(ctx, p, stats); err != nil {
		return err
	}
	return c.drop(ctx, e, func(tx kv.Tx) error { return dropOwner(tx, p) })
}

func dropOwner(tx kv.Tx, p *metapb.Payload) error {
	if len(p.GetOwner()) == 0 {
		return nil // inline, or orphans
	}
	owner, err := meta.IDFrom(p.Owner)
	if err != nil {
		return err
	}
	if err := meta.DeleteOwner(tx, owner); err != nil {
		return err
	}
	for page := range p.Pages {
		if err := meta.DeleteChunkPage(tx, owner, page); err != nil {
			return err
		}
	}
	return nil
}

// chunks deletes all chunks of a payload durably.
func (c *Collector) chunks(ctx context.Context, p *metapb.Payload, stats *Stats) error {
	var group errgroup.Group
	group.SetLimit(deleteParallel)
	err := c.view(ctx, func(r kv.Reader) error {
		return store.ScanRefs(ctx, r, p, func(ref chunk.Ref) error {
			stats.Chunks++
			stats.Bytes += ref.Length
			group.Go(func() error { return c.o.Chunks.Delete(ctx, ref) })
			return ctx.Err()
		})
	})
	return errors.Join(err, group.Wait())
}

// part is a part that is to be deleted.
type part struct {
	number  int
	payload *metapb.Payload
}

// parts deletes the parts of an upload that have the numbers, batch by batch.
func (c *Collector) parts(ctx context.Context, upload meta.ID, n meta.Numbers, stats *Stats) error {
	for {
		batch, err := c.partBatch(ctx, upload, n)
		if err != nil || len(batch) == 0 {
			return err
		}
		for _, p := range batch {
			if err := c.chunks(ctx, p.payload, stats); err != nil {
				return err
			}
		}
		err = c.o.KV.Txn(ctx, func(tx kv.Tx) error {
			for _, p := range batch {
				if err := dropPart(tx, upload, p); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || len(batch) < partBatch {
			return err
		}
	}
}

func (c *Collector) partBatch(ctx context.Context, upload meta.ID, n meta.Numbers) (batch []part, err error) {
	err = c.view(ctx, func(r kv.Reader) error {
		return meta.ScanParts(ctx, r, upload, n, func(number int, p meta.Part) (kv.Next, error) {
			batch = append(batch, part{number, p.Payload})
			return kv.Next{Stop: len(batch) == partBatch}, nil
		})
	})
	return batch, err
}

func dropPart(tx kv.Tx, upload meta.ID, p part) error {
	if err := dropOwner(tx, p.payload); err != nil {
		return err
	}
	return meta.DeletePart(tx, upload, p.number)
}

func (c *Collector) partList(ctx context.Context, e meta.GarbageEntry, l *metapb.PartList, stats *Stats) error {
	upload, err := meta.IDFrom(l.Upload)
	if err != nil {
		return err
	}
	if len(l.First) != len(l.Count) {
		return fmt.Errorf("garbage with lists of %d and %d: %w", len(l.First), len(l.Count), meta.ErrCorrupt)
	}
	for i, first := range l.First {
		n := meta.Numbers{First: int(first), Last: int(min(first+l.Count[i]-1, math.MaxUint16-1))}
		if err := c.parts(ctx, upload, n, stats); err != nil {
			return err
		}
	}
	return c.drop(ctx, e, func(kv.Tx) error { return nil })
}

// bucket aborts the uploads of a deleted bucket.
func (c *Collector) bucket(ctx context.Context, e meta.GarbageEntry, bucket uint64) error {
	type open struct {
		key    string
		upload meta.ID
	}
	family := meta.Uploads(bucket)
	for {
		var batch []open
		err := c.o.KV.Txn(ctx, func(tx kv.Tx) error {
			batch = batch[:0]
			err := tx.Scan(ctx, family.First(""), family.End(""), func(k, _ []byte) (kv.Next, error) {
				key, upload, err := family.Key(k)
				batch = append(batch, open{key, upload})
				return kv.Next{Stop: len(batch) == partBatch}, err
			})
			if err != nil {
				return err
			}
			for _, u := range batch {
				g := &metapb.Garbage{What: &metapb.Garbage_Upload{Upload: u.upload[:]}}
				if err := meta.PutGarbage(tx, c.o.Now().UnixNano(), g); err != nil {
					return err
				}
				if err := meta.DeleteUpload(tx, bucket, u.key, u.upload); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(batch) < partBatch {
			return c.drop(ctx, e, func(kv.Tx) error { return nil })
		}
	}
}
