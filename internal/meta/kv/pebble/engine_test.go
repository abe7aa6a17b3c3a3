package pebble

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openMem(t testing.TB) *Engine {
	t.Helper()
	e, err := open(Config{Dir: "kv"}, pvfs.NewMem())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestCounterWithoutConflict needs more of the engine than the contract does: with 64 rivals over
// one key nobody may run out of tries.
func TestCounterWithoutConflict(t *testing.T) {
	e := openMem(t)
	ctx := context.Background()
	key := []byte("n")
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 20 {
				err := e.Txn(ctx, func(tx kv.Tx) error {
					v, err := tx.Get(ctx, key)
					if err != nil && !errors.Is(err, kv.ErrNotFound) {
						return err
					}
					var n int
					_, _ = fmt.Sscan(string(v), &n)
					return tx.Put(key, fmt.Append(nil, n+1))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	s, err := e.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if v, err := s.Get(ctx, key); err != nil || string(v) != "1280" {
		t.Fatalf("counter is %q, %v", v, err)
	}
}
