package meta_test

import (
	"errors"
	"testing"

	"github.com/penstock-store/penstock/internal/meta"
)

// TestBind: the first call ties metadata to drives; later ones compare. Metadata that were made before
// there were bindings are bound when they are not older than the drives.
func TestBind(t *testing.T) {
	e := newEngine(t)
	set, one, two := [16]byte{1}, [16]byte{2}, [16]byte{3}
	bind := func(want error, d meta.Drives) {
		t.Helper()
		if err := meta.Bind(t.Context(), e, d); !errors.Is(err, want) {
			t.Fatalf("%+v: got %v, want %v", d, err, want)
		}
	}
	bind(meta.ErrStale, meta.Drives{Set: set, IDs: [][16]byte{one}, Records: 1})
	bind(meta.ErrStale, meta.Drives{Set: set, IDs: [][16]byte{one}, Epoch: 1, Records: 1})
	for epoch := range uint64(3) {
		got, err := meta.Open(t.Context(), e, 1)
		if err != nil || got != epoch+1 {
			t.Fatal(got, err) // what was refused has given out no epoch
		}
	}
	bind(meta.ErrStale, meta.Drives{Set: set, IDs: [][16]byte{one}, Epoch: 4, Records: 1})
	bind(nil, meta.Drives{Set: set, IDs: [][16]byte{one}, Epoch: 3, Records: 1})
	bind(nil, meta.Drives{Set: set, IDs: [][16]byte{one}, Epoch: 2, Records: 9})
	bind(meta.ErrStale, meta.Drives{Set: set, IDs: [][16]byte{one}, Epoch: 4, Records: 1})
	bind(meta.ErrForeign, meta.Drives{Set: set, IDs: [][16]byte{two}})
	bind(meta.ErrForeign, meta.Drives{Set: set, IDs: [][16]byte{one, two}})
	bind(meta.ErrForeign, meta.Drives{Set: two, IDs: [][16]byte{one}})
}
