package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// piece is a range of one chunk, or of an inline payload.
type piece struct {
	ref    chunk.Ref
	inline []byte // the whole inline payload, crc its sum; nil: a chunk
	crc    uint64
	rng    chunk.Range
}

// bytes verifies an inline payload and returns the wanted range of it.
func (p piece) bytes() ([]byte, error) {
	if checksum.Sum(p.inline) != p.crc {
		return nil, fmt.Errorf("inline payload of %d bytes: %w", len(p.inline), ErrCorrupt)
	}
	return p.inline[p.rng.Off : p.rng.Off+p.rng.Len], nil
}

// window collects the pieces of [off, off+n) while payloads are walked in order. at is the position
// of the next payload byte.
type window struct {
	at, off, end int64
	pieces       []piece
}

func newWindow(off, n int64) *window { return &window{off: off, end: off + n} }

// take adds what the next length bytes contribute; build makes the piece.
func (w *window) take(length int64, build func() piece) {
	lo, hi := max(w.off, w.at), min(w.end, w.at+length)
	if lo < hi {
		p := build()
		p.rng = chunk.Range{Off: lo - w.at, Len: hi - lo}
		w.pieces = append(w.pieces, p)
	}
	w.at += length
}

// payload walks one payload of size bytes whose sum is crc.
func (w *window) payload(ctx context.Context, r kv.Reader, p stored) error {
	end := w.at + p.size
	if w.end <= w.at || end <= w.off {
		w.at = end
		return nil
	}
	if len(p.record.GetOwner()) == 0 {
		if int64(len(p.inline)) != p.size {
			return fmt.Errorf("inline payload of %d bytes instead of %d: %w", len(p.inline), p.size, ErrCorrupt)
		}
		w.take(p.size, func() piece { return piece{inline: p.inline, crc: p.crc} })
		return nil
	}
	err := ScanRefs(ctx, r, p.record, func(ref chunk.Ref) error {
		w.take(ref.Length, func() piece { return piece{ref: ref} })
		return nil
	})
	if err == nil && w.at != end {
		err = fmt.Errorf("chunks end at %d instead of %d: %w", w.at, end, ErrCorrupt)
	}
	return err
}

// stored is where the bytes of an object or of a part are.
type stored struct {
	record *metapb.Payload
	inline []byte
	size   int64
	crc    uint64
}

// manifest walks the parts of a completed upload, reading the records of those parts only that
// contribute.
func (w *window) manifest(ctx context.Context, r kv.Reader, m *metapb.Manifest) error {
	upload, err := meta.IDFrom(m.Upload)
	if err != nil {
		return err
	}
	runs, err := meta.Runs(ctx, r, m)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if w.at >= w.end {
			return nil
		}
		if w.at+run.Bytes() <= w.off {
			w.at += run.Bytes()
			continue
		}
		if err := w.run(ctx, r, upload, run); err != nil {
			return err
		}
	}
	return nil
}

func (w *window) run(ctx context.Context, r kv.Reader, upload meta.ID, run meta.Run) error {
	n := meta.Numbers{First: run.First, Last: run.First + run.Count - 1}
	if run.Size == 0 {
		return nil // one empty last part
	}
	if skip := max(w.off-w.at, 0) / run.Size; skip > 0 {
		n.First += int(skip)
		w.at += skip * run.Size
	}
	n.Last = min(n.Last, n.First+int((w.end-w.at-1)/run.Size))
	next := n.First
	err := meta.ScanParts(ctx, r, upload, n, func(number int, p meta.Part) (kv.Next, error) {
		if number != next || p.Size != run.Size {
			return kv.Next{}, fmt.Errorf("part %d of %d bytes where %d is due: %w", number, p.Size, next, ErrCorrupt)
		}
		next++
		inline := append([]byte(nil), p.Inline...) // valid only during the call
		return kv.Next{}, w.payload(ctx, r, stored{p.Payload, inline, p.Size, p.Crc64Nvme})
	})
	if err == nil && next != n.Last+1 {
		err = fmt.Errorf("part %d of upload %s is missing: %w", next, upload, ErrCorrupt)
	}
	return err
}

// findObject reads the head of a key; the preconditions of a read are not checked here.
func findObject(ctx context.Context, r kv.Reader, bucket, key string) (meta.Head, error) {
	b, err := findBucket(ctx, r, bucket)
	if err != nil {
		return meta.Head{}, err
	}
	h, err := meta.GetHead(ctx, r, b.Id, key)
	if errors.Is(err, kv.ErrNotFound) {
		return meta.Head{}, fmt.Errorf("key of %d bytes: %w", len(key), ErrNoSuchKey)
	}
	return h, err
}

// selectPart finds the part that a request names. Without one, or with part 1 of an object written in
// one piece, it is the whole.
func selectPart(ctx context.Context, r kv.Reader, v *metapb.Version, number int) (*PartInfo, error) {
	if number == 0 {
		return nil, nil
	}
	if v.Manifest == nil {
		if number != 1 {
			return nil, fmt.Errorf("part %d: %w", number, ErrNoSuchPart)
		}
		return &PartInfo{
			Number: 1, Size: v.Size, ETag: v.Etag, Modified: timeOf(v.ModifiedNs),
			CRC64NVME: v.Crc64Nvme, Checksums: checksumsOfRecords(v.Checksums),
		}, nil
	}
	runs, err := meta.Runs(ctx, r, v.Manifest)
	if err != nil {
		return nil, err
	}
	upload, err := meta.IDFrom(v.Manifest.Upload)
	if err != nil {
		return nil, err
	}
	var offset int64
	for _, run := range runs {
		if i := number - run.First; i >= 0 && i < run.Count {
			p, err := meta.GetPart(ctx, r, upload, number)
			if err != nil {
				return nil, fmt.Errorf("part %d of upload %s: %w: %w", number, upload, ErrCorrupt, err)
			}
			info := partInfo(number, offset+int64(i)*run.Size, p.Part)
			return &info, nil
		}
		offset += run.Bytes()
	}
	return nil, fmt.Errorf("part %d: %w", number, ErrNoSuchPart)
}
