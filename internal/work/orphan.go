package work

import (
	"context"
	"fmt"

	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
	"github.com/penstock-store/penstock/internal/store"
)

// found is a chunk that Walk reported.
type found struct {
	ref   chunk.Ref
	owner chunk.Owner
}

// CheckOrphans queues chunks that a dead epoch left behind without an owner, and removes such pages of
// chunk lists; RunOnce then deletes the chunks. It may run beside requests. An engine without
// chunk.Walker has its pages checked only.
func (c *Collector) CheckOrphans(ctx context.Context) (Stats, error) {
	c.running.Lock()
	defer c.running.Unlock()
	var stats Stats
	if walker, ok := c.o.Chunks.(chunk.Walker); ok {
		if err := c.checkNewest(ctx, walker); err != nil {
			return stats, err
		}
		if err := c.walk(ctx, walker, &stats); err != nil {
			return stats, err
		}
	}
	return stats, c.checkPages(ctx, &stats)
}

// checkNewest guards against metadata that are older than the chunks.
func (c *Collector) checkNewest(ctx context.Context, walker chunk.Walker) error {
	return walker.Walk(ctx, func(ref chunk.Ref, o chunk.Owner) error {
		if o.Epoch > c.o.Epoch {
			return fmt.Errorf("chunk %s has epoch %d, the metadata are at %d: %w",
				ref.ID, o.Epoch, c.o.Epoch, ErrForeignMetadata)
		}
		return nil
	})
}

func (c *Collector) walk(ctx context.Context, walker chunk.Walker, stats *Stats) error {
	var batch []found
	judge := func() error {
		n, err := c.judge(ctx, batch)
		stats.Orphans += n
		batch = batch[:0]
		return err
	}
	err := walker.Walk(ctx, func(ref chunk.Ref, o chunk.Owner) error {
		if o.Epoch == c.o.Epoch {
			return nil // alive: this process wrote it
		}
		batch = append(batch, found{ref, o})
		if len(batch) < orphanBatch {
			return nil
		}
		return judge()
	})
	if err != nil {
		return err
	}
	return judge()
}

// judge queues those of a batch that are orphans. Most chunks have an owner, so a snapshot sorts those
// out before the transaction that decides.
func (c *Collector) judge(ctx context.Context, batch []found) (orphans int, err error) {
	var suspects []found
	err = c.view(ctx, func(r kv.Reader) error {
		suspects, err = ownerless(ctx, r, batch)
		return err
	})
	if err != nil || len(suspects) == 0 {
		return 0, err
	}
	err = c.o.KV.Txn(ctx, func(tx kv.Tx) error {
		confirmed, err := ownerless(ctx, tx, suspects)
		if err != nil {
			return err
		}
		orphans = len(confirmed)
		if orphans == 0 {
			return nil
		}
		p := &metapb.Payload{}
		for _, f := range confirmed {
			p.Chunks = append(p.Chunks, store.RecordOf(f.ref))
		}
		g := &metapb.Garbage{What: &metapb.Garbage_Payload{Payload: p}}
		return meta.PutGarbage(tx, c.o.Now().UnixNano(), g)
	})
	return orphans, err
}

// ownerless returns the chunks of dead epochs to which nothing refers.
func ownerless(ctx context.Context, r kv.Reader, batch []found) ([]found, error) {
	var out []found
	for _, f := range batch {
		alive, err := meta.OwnerAlive(ctx, r, f.owner.ID)
		if err != nil {
			return nil, err
		}
		if alive {
			continue
		}
		if alive, err = meta.EpochAlive(ctx, r, f.owner.Epoch); err != nil {
			return nil, err
		}
		if !alive {
			out = append(out, f)
		}
	}
	return out, nil
}

// checkPages removes pages of chunk lists whose writer died before it committed.
func (c *Collector) checkPages(ctx context.Context, stats *Stats) error {
	var after *meta.ID
	for {
		var owner *meta.PageOwner
		err := c.view(ctx, func(r kv.Reader) error {
			return meta.ScanPageOwners(ctx, r, after, func(o meta.PageOwner) (kv.Next, error) {
				owner = &o
				return kv.Next{Stop: true}, nil
			})
		})
		if err != nil || owner == nil {
			return err
		}
		after = &owner.Owner
		if err := c.judgePages(ctx, *owner, stats); err != nil {
			return err
		}
	}
}

// judgePages removes an owner's pages unless it is alive; the chunks are found by themselves.
func (c *Collector) judgePages(ctx context.Context, o meta.PageOwner, stats *Stats) error {
	if o.Epoch == c.o.Epoch {
		return nil
	}
	removed := 0
	err := c.o.KV.Txn(ctx, func(tx kv.Tx) error {
		removed = 0
		f := found{owner: chunk.Owner{ID: o.Owner, Epoch: o.Epoch}}
		orphans, err := ownerless(ctx, tx, []found{f})
		if err != nil || len(orphans) == 0 {
			return err
		}
		n, err := meta.CountChunkPages(ctx, tx, o.Owner)
		if err != nil {
			return err
		}
		for page := range n {
			if err := meta.DeleteChunkPage(tx, o.Owner, page); err != nil {
				return err
			}
		}
		removed = int(n)
		return nil
	})
	stats.Orphans += removed
	return err
}
