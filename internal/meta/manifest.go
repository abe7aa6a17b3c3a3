package meta

import (
	"context"
	"fmt"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// Run is parts with consecutive numbers First, First+1, … and the same size.
type Run struct {
	First, Count int
	Size         int64 // of each part
}

// Bytes is the size of the whole run.
func (r Run) Bytes() int64 { return int64(r.Count) * r.Size }

// AppendRun adds one part to a list of runs; numbers ascend.
func AppendRun(runs []Run, number int, size int64) []Run {
	if n := len(runs); n > 0 {
		last := &runs[n-1]
		if last.First+last.Count == number && last.Size == size {
			last.Count++
			return runs
		}
	}
	return append(runs, Run{number, 1, size})
}

// PutManifest makes the manifest of a completed upload, and stores its pages when it needs any.
func PutManifest(tx kv.Tx, upload ID, runs []Run) (*metapb.Manifest, error) {
	m := &metapb.Manifest{Upload: upload[:]}
	for _, r := range runs {
		m.Parts += uint32(r.Count)
	}
	if len(runs) <= RunsInHead {
		fillRuns(m, runs)
		return m, nil
	}
	for len(runs) > 0 {
		n := min(len(runs), RunsPerPage)
		page := &metapb.Manifest{}
		fillRuns(page, runs[:n])
		if err := put(tx, manifestPageKey(upload, m.Pages), page); err != nil {
			return nil, err
		}
		m.Pages++
		runs = runs[n:]
	}
	return m, nil
}

func fillRuns(m *metapb.Manifest, runs []Run) {
	for _, r := range runs {
		m.First = append(m.First, uint32(r.First))
		m.Count = append(m.Count, uint32(r.Count))
		m.Size = append(m.Size, r.Size)
	}
}

// Runs returns the runs of a manifest, reading its pages when it has any.
func Runs(ctx context.Context, r kv.Reader, m *metapb.Manifest) ([]Run, error) {
	if m.Pages == 0 {
		return appendRuns(nil, m)
	}
	upload, err := IDFrom(m.Upload)
	if err != nil {
		return nil, err
	}
	var runs []Run
	for i := range m.Pages {
		page, err := get[metapb.Manifest](ctx, r, manifestPageKey(upload, i))
		if err != nil {
			return nil, fmt.Errorf("meta: manifest %s, page %d: %w", upload, i, err)
		}
		if runs, err = appendRuns(runs, page); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

func appendRuns(runs []Run, m *metapb.Manifest) ([]Run, error) {
	if len(m.First) != len(m.Count) || len(m.First) != len(m.Size) {
		return nil, fmt.Errorf("meta: manifest with lists of %d, %d and %d: %w",
			len(m.First), len(m.Count), len(m.Size), ErrCorrupt)
	}
	for i := range m.First {
		runs = append(runs, Run{int(m.First[i]), int(m.Count[i]), m.Size[i]})
	}
	return runs, nil
}

// DeleteManifestPages removes the pages of an upload's manifest.
func DeleteManifestPages(ctx context.Context, tx kv.Tx, upload ID) error {
	var keys [][]byte
	from, to := idRange(tagManifest, upload)
	err := tx.Scan(ctx, from, to, func(key, _ []byte) (kv.Next, error) {
		keys = append(keys, append([]byte(nil), key...))
		return kv.Next{}, nil
	})
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := tx.Delete(key); err != nil {
			return err
		}
	}
	return nil
}
