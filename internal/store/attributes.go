package store

import (
	"context"
	"fmt"

	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// Attributes describes an object and, as a page, the parts that it was completed from.
func (s *Store) Attributes(ctx context.Context, r AttributesRequest) (a Attributes, err error) {
	err = s.view(ctx, func(reader kv.Reader) error {
		a = Attributes{}
		h, err := findObject(ctx, reader, r.Bucket, r.Key)
		if err != nil {
			return err
		}
		a.Info = objectInfo(r.Bucket, r.Key, h.Current)
		if err := r.If.checkRead(h.Current); err != nil {
			return err
		}
		if h.Current.Manifest == nil || r.Limit <= 0 {
			return nil
		}
		return a.page(ctx, reader, h.Current.Manifest, r.After, clampLimit(r.Limit))
	})
	return a, err
}

// page reads the records of at most limit parts with numbers above after, and of one more to know whether
// there is more.
func (a *Attributes) page(ctx context.Context, r kv.Reader, m *metapb.Manifest, after, limit int) error {
	upload, err := meta.IDFrom(m.Upload)
	if err != nil {
		return err
	}
	runs, err := meta.Runs(ctx, r, m)
	if err != nil {
		return err
	}
	var offset int64 // of the run
	for _, run := range runs {
		first, last := max(run.First, after+1), run.First+run.Count-1
		if first <= last {
			if len(a.Parts) == limit {
				a.Truncated = true
				return nil
			}
			if room := limit - len(a.Parts); last-first+1 > room {
				last, a.Truncated = first+room-1, true
			}
			n := meta.Numbers{First: first, Last: last}
			if err := a.run(ctx, r, upload, section{run, offset, n}); err != nil {
				return err
			}
		}
		if a.Truncated {
			return nil
		}
		offset += run.Bytes()
	}
	return nil
}

// section is the wanted numbers of one run, which begins at an offset of the object.
type section struct {
	run    meta.Run
	offset int64
	wanted meta.Numbers
}

func (a *Attributes) run(ctx context.Context, r kv.Reader, upload meta.ID, s section) error {
	next := s.wanted.First
	err := meta.ScanParts(ctx, r, upload, s.wanted, func(number int, p meta.Part) (kv.Next, error) {
		if number != next || p.Size != s.run.Size {
			return kv.Next{}, fmt.Errorf("part %d of %d bytes where %d is due: %w", number, p.Size, next, ErrCorrupt)
		}
		next++
		a.Parts = append(a.Parts, partInfo(number, s.offset+int64(number-s.run.First)*s.run.Size, p.Part))
		return kv.Next{}, nil
	})
	if err == nil && next != s.wanted.Last+1 {
		err = fmt.Errorf("part %d of upload %s is missing: %w", next, upload, ErrCorrupt)
	}
	return err
}
