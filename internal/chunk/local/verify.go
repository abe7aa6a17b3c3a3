package local

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/internal/chunk"
)

// Verify implements chunk.Engine. What cannot be read counts as what is wrong.
func (e *Engine) Verify(ctx context.Context, ref chunk.Ref) (chunk.Health, error) {
	health := chunk.Health{Shards: 1}
	err := e.run(ctx, "verify", func(c *call) error {
		job, err := e.open(ctx, c, ref, chunk.Range{Len: ref.Length})
		if err != nil {
			return err
		}
		defer job.at.Release()
		p := make([]byte, min(pieceBytes, ref.Length))
		for off := int64(0); off < ref.Length; off += pieceBytes {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			piece := p[:min(pieceBytes, ref.Length-off)]
			if _, err := job.at.ReadAt(piece, off); err != nil {
				e.counters.deviceErrors.Add(1)
				return fmt.Errorf("chunk %v: read drive %v: %w: %w", ref.ID, e.drive.ID(), chunk.ErrCorrupt, err)
			}
			if err := job.check(piece, off); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, chunk.ErrCorrupt):
		e.counters.corrupt.Add(1)
		return health, nil
	case err != nil:
		return chunk.Health{}, err
	}
	health.Readable = 1
	return health, nil
}
