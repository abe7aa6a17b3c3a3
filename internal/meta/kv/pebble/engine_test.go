package pebble

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
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

// TestMustExist: an engine whose manifest cannot be found is not made anew, which would remove its
// tables as garbage.
func TestMustExist(t *testing.T) {
	fs := crashfs.New(crashfs.Options{})
	cfg := Config{FS: fs, Dir: "meta", MustExist: true}
	if _, err := Open(cfg); !errors.Is(err, ErrMissing) {
		t.Fatalf("got %v", err)
	}
	e, err := Open(Config{FS: fs, Dir: "meta"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(writeOne(t.Context(), e, 1), e.Close()); err != nil {
		t.Fatal(err)
	}
	names := func() []string {
		t.Helper()
		all, err := fs.List("meta")
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(all)
		return all
	}
	for _, n := range names() {
		if strings.HasPrefix(n, "marker.manifest") {
			if err := fs.Remove("meta/" + n); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := names()
	if _, err := Open(cfg); !errors.Is(err, ErrMissing) {
		t.Fatalf("got %v", err)
	}
	if after := names(); !slices.Equal(before, after) {
		t.Fatalf("%v became %v", before, after)
	}
}
