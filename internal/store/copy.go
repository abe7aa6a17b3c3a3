package store

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// copyBuffers is how many buffers a copy asks for: one is written while the next ones are read.
const copyBuffers = 4

// copied is how the payload of a copy is named, and what is asked before it is committed.
type copied struct {
	hash   io.Writer
	seal   Seal
	before func() error // may be nil
}

// sealMD5 is the store's own ETag, with checksums that are known already.
func sealMD5(sum hash.Hash, known []Checksum) Seal {
	return func(context.Context, Payload) (Digest, error) {
		return Digest{ETag: hex.EncodeToString(sum.Sum(nil)), Checksums: known}, nil
	}
}

// copyPayload writes the opened range of o as a new payload.
func (s *Store) copyPayload(ctx context.Context, o *Object, c copied) (*written, Digest, error) {
	w, err := s.copyBytes(ctx, o, c.hash)
	if err != nil {
		return nil, Digest{}, err
	}
	digest, err := c.seal(ctx, Payload{Size: w.size, CRC64NVME: w.crc})
	if err == nil && c.before != nil {
		err = c.before()
	}
	if err != nil {
		s.discard(ctx, w)
		return nil, Digest{}, err
	}
	return w, digest, nil
}

func (s *Store) copyBytes(ctx context.Context, o *Object, hash io.Writer) (w *written, err error) {
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
	defer func() { // also when an engine panics
		pipe.Close(err)
		reader.Wait()
		pipe.Close(err) // what was delivered in between
	}()
	reader.Go(func() {
		if err := o.Read(ctx, 0, o.Len, pipe); err != nil {
			pipe.Close(err)
			return
		}
		_ = pipe.Done(ctx) // its error reaches the writer
	})
	return s.writePayload(ctx, hashed{pipe, hash})
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
	c := copied{r.Hash, r.Seal, r.BeforeCommit}
	if r.Seal == nil {
		c.hash, c.seal = nameCopy(src.version)
	}
	w, digest, err := s.copyPayload(ctx, src, c)
	if err != nil {
		return ObjectInfo{}, err
	}
	v := &metapb.Version{
		Etag: digest.ETag, Checksums: recordsOfChecksums(digest.Checksums), Meta: record,
	}
	if !r.Replace {
		v.Meta = copiedMeta(src.version.Meta, r.Meta)
	}
	return s.commitObject(ctx, t, w, v)
}

// copiedMeta is the source's metadata with what belongs to the request.
func copiedMeta(source *metapb.ObjectMeta, own ObjectMeta) *metapb.ObjectMeta {
	m := &metapb.ObjectMeta{}
	if source != nil {
		m = proto.CloneOf(source)
	}
	m.StorageClass, m.WebsiteRedirect = own.StorageClass, own.WebsiteRedirect
	return m
}

// nameCopy names a copy like its source as far as that holds: the bytes are the same, but the copy has no parts.
func nameCopy(v *metapb.Version) (io.Writer, Seal) {
	var known []Checksum
	for _, c := range checksumsOfRecords(v.Checksums) {
		if !c.Composite {
			known = append(known, c)
		}
	}
	if v.Manifest != nil {
		sum := md5.New()
		return sum, sealMD5(sum, known)
	}
	return nil, func(context.Context, Payload) (Digest, error) { return Digest{v.Etag, known}, nil }
}
