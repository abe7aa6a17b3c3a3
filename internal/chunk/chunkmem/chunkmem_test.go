package chunkmem_test

import (
	"testing"

	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/chunk/chunkmem"
	"github.com/penstock-store/penstock/internal/chunk/chunktest"
)

func TestEngine(t *testing.T) {
	chunktest.Run(t, func(*testing.T) chunktest.Subject {
		e := chunkmem.New()
		return chunktest.Subject{
			Engine:  e,
			Corrupt: func(ref chunk.Ref, off int64) error { e.Corrupt(ref.ID, off); return nil },
			Close:   func() error { return nil },
		}
	})
}
