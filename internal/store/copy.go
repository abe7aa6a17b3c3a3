package store

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"sync"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// copyBuffers is how many buffers a copy asks for: one is written while the next ones are read.
const copyBuffers = 4

// copied is how the payload of a copy is named.
type copied struct {
	hash io.Writer
	seal Seal
}

// withMD5 fills in the store's own ETag when the caller brought no Seal.
func withMD5(h io.Writer, seal Seal) copied {
	if seal != nil {
		return copied{h, seal}
	}
	sum := md5.New()
	return copied{sum, sealMD5(sum)}
}

func sealMD5(sum hash.Hash) Seal {
	return func(context.Context, Payload) (Digest, error) {
		return Digest{ETag: hex.EncodeToString(sum.Sum(nil))}, nil
	}
}

// copyPayload writes the opened range of o as a new payload.
func (s *Store) copyPayload(ctx context.Context, o *Object, c copied) (*written, Digest, error) {
	w, err := s.copyBytes(ctx, o, c.hash)
	if err != nil {
		return nil, Digest{}, err
	}
	digest, err := c.seal(ctx, Payload{Size: w.size, CRC64NVME: w.crc})
	if err != nil {
		s.discard(ctx, w)
		return nil, Digest{}, err
	}
	return w, digest, nil
}

func (s *Store) copyBytes(ctx context.Context, o *Object, hash io.Writer) (*written, error) {
	if o.Len == 0 {
		return &written{}, nil
	}
	if s.o.CopyShare == nil {
		return nil, fmt.Errorf("copy without buffers: %w", ErrUnavailable)
	}
	buffers, err := s.o.CopyShare.Reserve(ctx, copyBuffers)
	if err != nil {
		return nil, err
	}
	defer buffers.Close()
	pipe := arena.NewPipe(buffers, o.Len)
	var reader sync.WaitGroup
	reader.Go(func() {
		if err := o.Read(ctx, 0, o.Len, pipe); err != nil {
			pipe.Close(err)
			return
		}
		_ = pipe.Done(ctx) // its error reaches the writer
	})
	w, err := s.writePayload(ctx, hashed{pipe, hash})
	pipe.Close(err)
	reader.Wait()
	pipe.Close(err) // what was delivered in between
	return w, err
}

// hashed is a Source whose bytes pass a hash.
type hashed struct {
	arena.Source
	hash io.Writer // may be nil
}

func (h hashed) Next(ctx context.Context) (arena.Buffer, error) {
	b, err := h.Source.Next(ctx)
	if err != nil || h.hash == nil {
		return b, err
	}
	if _, err := h.hash.Write(b.Bytes()); err != nil {
		b.Release()
		return arena.Buffer{}, fmt.Errorf("store: hash: %w", err)
	}
	return b, nil
}

// Copy writes a copy of an object; the payload is rewritten. A copy onto itself is allowed.
func (s *Store) Copy(ctx context.Context, r CopyRequest) (ObjectInfo, error) {
	record, err := recordOfMeta(r.Meta)
	if err != nil {
		return ObjectInfo{}, err
	}
	t, err := s.begin(ctx, r.Bucket, r.Key, r.If)
	if err != nil {
		return ObjectInfo{}, err
	}
	src, err := s.open(ctx, OpenRequest{Bucket: r.SourceBucket, Key: r.SourceKey}, r.SourceIf.checkSource)
	if err != nil {
		return ObjectInfo{}, err
	}
	defer src.Close()
	c := withMD5(r.Hash, r.Seal)
	if r.Seal == nil && src.version.Manifest == nil {
		c = copied{nil, keepDigest(src.version)}
	}
	w, digest, err := s.copyPayload(ctx, src, c)
	if err != nil {
		return ObjectInfo{}, err
	}
	v := &metapb.Version{
		Etag: digest.ETag, Checksums: recordsOfChecksums(digest.Checksums), Meta: record,
	}
	if !r.Replace {
		v.Meta = src.version.Meta
	}
	return s.commitObject(ctx, t, w, v)
}

// keepDigest names a copy like its source: the bytes are the same.
func keepDigest(v *metapb.Version) Seal {
	return func(context.Context, Payload) (Digest, error) {
		d := Digest{ETag: v.Etag}
		for _, c := range checksumsOfRecords(v.Checksums) {
			if !c.Composite {
				d.Checksums = append(d.Checksums, c)
			}
		}
		return d, nil
	}
}
