package meta

import (
	"context"
	"fmt"

	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// FromRef is the record of a chunk reference.
func FromRef(r chunk.Ref) *metapb.Chunk {
	return &metapb.Chunk{
		Id: r.ID[:], Length: r.Length, Crc64Nvme: r.CRC64NVME,
		Data: uint32(r.Scheme.Data), Parity: uint32(r.Scheme.Parity),
	}
}

// ToRef is the inverse.
func ToRef(c *metapb.Chunk) (chunk.Ref, error) {
	if len(c.Id) != len(chunk.ID{}) || c.Length <= 0 || c.Length > chunk.MaxBytes || c.Data > 255 || c.Parity > 255 {
		return chunk.Ref{}, fmt.Errorf("meta: chunk of %d bytes, id of %d: %w", c.Length, len(c.Id), ErrCorrupt)
	}
	return chunk.Ref{
		ID: chunk.ID(c.Id), Length: c.Length, CRC64NVME: c.Crc64Nvme,
		Scheme: chunk.Scheme{Data: uint8(c.Data), Parity: uint8(c.Parity)},
	}, nil
}

// ScanRefs calls fn for every chunk of a payload in order, reading its pages when it has any.
func ScanRefs(ctx context.Context, r kv.Reader, p *metapb.Payload, fn func(chunk.Ref) error) error {
	if err := eachRef(p.GetChunks(), fn); err != nil || p.GetPages() == 0 {
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
		if err := eachRef(page.Chunks, fn); err != nil {
			return err
		}
	}
	return nil
}

func eachRef(chunks []*metapb.Chunk, fn func(chunk.Ref) error) error {
	for _, c := range chunks {
		ref, err := ToRef(c)
		if err != nil {
			return err
		}
		if err := fn(ref); err != nil {
			return err
		}
	}
	return nil
}
