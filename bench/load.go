package bench

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-store/penstock/client"
)

// loadWriters fill a node before it is measured: enough to keep its drives busy.
const loadWriters = 8

// Load stores the objects that the tasks will read, each prefix once.
func Load(ctx context.Context, c *client.Client, tasks []Task) error {
	seen := map[string]bool{}
	for _, t := range tasks {
		if t.Kind != Get || seen[t.Bucket+"/"+t.Prefix] {
			continue
		}
		seen[t.Bucket+"/"+t.Prefix] = true
		if err := load(ctx, c, t); err != nil {
			return fmt.Errorf("bench: load objects: %w", err)
		}
	}
	return nil
}

func load(ctx context.Context, c *client.Client, t Task) error {
	r, err := c.Alloc(t.ObjectBytes)
	if err != nil {
		return err
	}
	defer r.Close()
	fill(r.Bytes())
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(loadWriters)
	for i := range max(1, t.Objects) {
		group.Go(func() error { // windows that are only read may be shared
			_, err := c.PutFrom(gctx, r.All(), t.Bucket, t.key(i), client.PutOptions{})
			return err
		})
	}
	return group.Wait()
}

// EnsureBucket creates the bucket unless it is there.
func EnsureBucket(ctx context.Context, c *client.Client, bucket string) error {
	err := c.HeadBucket(ctx, bucket)
	if errors.Is(err, client.ErrNotFound) {
		err = c.CreateBucket(ctx, bucket)
	}
	return err
}
