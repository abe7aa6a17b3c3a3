package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// Object is one version of an object, opened for reading. One goroutine uses it at a time.
type Object struct {
	Info ObjectInfo
	Size int64 // of the selected part, or of the object
	Off  int64 // start of the opened range within Size
	Len  int64 // length of the opened range

	chunks  chunk.Engine
	pieces  []piece
	unpin   func()
	version *metapb.Version
}

// Stat describes an object without opening it.
func (s *Store) Stat(ctx context.Context, r OpenRequest) (info ObjectInfo, err error) {
	err = s.view(ctx, func(reader kv.Reader) error {
		h, err := findObject(ctx, reader, r.Bucket, r.Key)
		if err != nil {
			return err
		}
		if err := r.If.checkRead(h.Current); err != nil {
			return err
		}
		info = objectInfo(r.Bucket, r.Key, h.Current)
		info.Part, err = selectPart(ctx, reader, h.Current, r.Part)
		return err
	})
	return info, err
}

// Open resolves an object at one snapshot and pins what Range chose. Close it. Of an object that is
// replaced or deleted meanwhile it opens the new version, or none.
func (s *Store) Open(ctx context.Context, r OpenRequest) (*Object, error) {
	return s.open(ctx, r, r.If.checkRead)
}

func (s *Store) open(ctx context.Context, r OpenRequest, check func(*metapb.Version) error) (*Object, error) {
	for try := 1; ; try++ {
		o := &Object{chunks: s.chunks, unpin: func() {}}
		err := s.view(ctx, func(reader kv.Reader) error { return o.resolve(ctx, reader, r, check) })
		if err != nil {
			return nil, err
		}
		err = o.pin(ctx, s.pinner)
		if err == nil {
			return o, nil
		}
		if !errors.Is(err, chunk.ErrNotFound) {
			return nil, wrap(err)
		}
		if try == openTries {
			return nil, fmt.Errorf("chunk of a visible object: %w: %w", ErrCorrupt, err)
		}
	}
}

func (o *Object) resolve(
	ctx context.Context, reader kv.Reader, r OpenRequest, check func(*metapb.Version) error,
) error {
	h, err := findObject(ctx, reader, r.Bucket, r.Key)
	if err != nil {
		return err
	}
	v := h.Current
	if err := check(v); err != nil {
		return err
	}
	o.version = v
	o.Info = objectInfo(r.Bucket, r.Key, v)
	if o.Info.Part, err = selectPart(ctx, reader, v, r.Part); err != nil {
		return err
	}
	var base int64
	o.Size = v.Size
	if o.Info.Part != nil {
		base, o.Size = o.Info.Part.Offset, o.Info.Part.Size
	}
	o.Off, o.Len = 0, o.Size
	if r.Range != nil {
		if o.Off, o.Len, err = r.Range(&o.Info, o.Size); err != nil {
			return err
		}
	}
	if o.Off < 0 || o.Len < 0 || o.Off > o.Size || o.Len > o.Size-o.Off {
		return fmt.Errorf("range [%d, +%d) of %d bytes: %w", o.Off, o.Len, o.Size, ErrRange)
	}
	return o.collect(ctx, reader, h, newWindow(base+o.Off, o.Len))
}

func (o *Object) collect(ctx context.Context, reader kv.Reader, h meta.Head, w *window) error {
	if o.Len == 0 {
		return nil
	}
	v := h.Current
	var err error
	if v.Manifest != nil {
		err = w.manifest(ctx, reader, v.Manifest)
	} else {
		err = w.payload(ctx, reader, stored{v.Payload, h.Inline, v.Size, v.Crc64Nvme})
	}
	if err != nil {
		return err
	}
	o.pieces = w.pieces
	var n int64
	for _, p := range o.pieces {
		n += p.rng.Len
	}
	if n != o.Len {
		return fmt.Errorf("record covers %d bytes of %d: %w", n, o.Len, ErrCorrupt)
	}
	return nil
}

func (o *Object) pin(ctx context.Context, pinner chunk.Pinner) error {
	if pinner == nil {
		return nil
	}
	var refs []chunk.Ref
	for _, p := range o.pieces {
		if p.inline == nil {
			refs = append(refs, p.ref)
		}
	}
	if len(refs) == 0 {
		return nil
	}
	unpin, err := pinner.Pin(ctx, refs...)
	if err == nil {
		o.unpin = unpin
	}
	return err
}

// Read delivers the bytes [off, off+n) of the opened range to dst, at positions 0..n, and does not
// call dst.Done. Errors: ErrRange, ErrCorrupt, ErrUnavailable, dst's errors, ctx's error.
//
// Chunks are read one after another, since one goroutine calls a sink at a time; the engine overlaps
// reading, verification and delivery inside of a chunk, and a delivery goes on while the next
// chunk is read.
func (o *Object) Read(ctx context.Context, off, n int64, dst arena.Sink) error {
	if off < 0 || n < 0 || off > o.Len || n > o.Len-off {
		return fmt.Errorf("read [%d, +%d) of %d bytes: %w", off, n, o.Len, ErrRange)
	}
	var at int64 // of the piece, within the opened range
	for _, p := range o.pieces {
		lo, hi := max(off, at), min(off+n, at+p.rng.Len)
		if lo < hi {
			part := p
			part.rng = chunk.Range{Off: p.rng.Off + lo - at, Len: hi - lo}
			if err := o.readPiece(ctx, part, arena.SectionSink(dst, lo-off)); err != nil {
				return err
			}
		}
		at += p.rng.Len
	}
	return nil
}

func (o *Object) readPiece(ctx context.Context, p piece, dst arena.Sink) error {
	if p.inline != nil {
		b, err := p.bytes()
		if err != nil {
			return err
		}
		return arena.DeliverBytes(ctx, dst, 0, b)
	}
	err := o.chunks.Read(ctx, p.ref, p.rng, dst)
	if errors.Is(err, chunk.ErrNotFound) {
		return fmt.Errorf("pinned chunk: %w: %w", ErrCorrupt, err)
	}
	return wrap(err)
}

// Inline returns the whole opened range, verified, when it lives in the metadata, so that a small
// answer needs no arena buffer. The bytes must not be changed. false: use Read. ErrCorrupt.
func (o *Object) Inline() ([]byte, bool, error) {
	switch {
	case o.Len == 0:
		return nil, true, nil
	case len(o.pieces) == 1 && o.pieces[0].inline != nil:
		b, err := o.pieces[0].bytes()
		return b, true, err
	}
	return nil, false, nil
}

// Close unpins. Closing twice does nothing.
func (o *Object) Close() {
	o.unpin()
	o.unpin = func() {}
}
