package meta

import (
	"context"
	"fmt"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// ScanChunks calls fn for every chunk of a payload in order, reading its pages when it has any.
func ScanChunks(ctx context.Context, r kv.Reader, p *metapb.Payload, fn func(*metapb.Chunk) error) error {
	if err := each(p.GetChunks(), fn); err != nil || p.GetPages() == 0 {
		return err
	}
	owner, err := IDFrom(p.Owner)
	if err != nil {
		return err
	}
	for i := range p.Pages {
		page, err := GetChunkPage(ctx, r, owner, i)
		if err != nil {
			return fmt.Errorf("meta: chunk list of %s, page %d: %w", owner, i, err)
		}
		if err := each(page.Chunks, fn); err != nil {
			return err
		}
	}
	return nil
}

func each(chunks []*metapb.Chunk, fn func(*metapb.Chunk) error) error {
	for _, c := range chunks {
		if err := fn(c); err != nil {
			return err
		}
	}
	return nil
}
