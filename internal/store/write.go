package store

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// written is a payload that is durable (chunks and pages) or held (inline), but that nothing refers
// to yet.
type written struct {
	stored
	owner meta.ID
	refs  []chunk.Ref // to discard them
	pages uint32
}

// writePayload takes all of src. On an error nothing is left but what discard could not remove.
func (s *Store) writePayload(ctx context.Context, src arena.Source) (*written, error) {
	size := src.Size()
	if size < 0 {
		return nil, fmt.Errorf("payload of %d bytes: %w", size, ErrTooLarge)
	}
	if size <= int64(s.o.InlineBytes) || size == 0 {
		return readInline(ctx, src)
	}
	w := &written{owner: meta.NewID()}
	w.record, w.size = &metapb.Payload{Owner: w.owner[:]}, size
	if err := s.writeChunks(ctx, w, src); err != nil {
		s.discard(ctx, w)
		return nil, wrap(err)
	}
	return w, nil
}

func readInline(ctx context.Context, src arena.Source) (*written, error) {
	w := &written{}
	w.size = src.Size()
	w.inline = make([]byte, 0, w.size)
	for {
		b, err := src.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if int64(len(w.inline)+b.Len()) <= w.size {
			w.inline = append(w.inline, b.Bytes()...)
		} else {
			err = fmt.Errorf("source gives more than its %d bytes: %w", w.size, ErrSizeMismatch)
		}
		b.Release()
		if err != nil {
			return nil, err
		}
	}
	if int64(len(w.inline)) != w.size {
		return nil, fmt.Errorf("source of %d bytes gave %d: %w", w.size, len(w.inline), io.ErrUnexpectedEOF)
	}
	w.crc = checksum.Sum(w.inline)
	return w, nil
}

// writeChunks writes src chunk by chunk. Chunk lists that outgrow one record go to pages as they
// fill; a page nobody refers to is found by its dead epoch, like a chunk.
func (s *Store) writeChunks(ctx context.Context, w *written, src arena.Source) error {
	owner := chunk.Owner{ID: w.owner, Epoch: s.epoch}
	sections := arena.NewSections(src)
	for sections.Left() > 0 {
		ref, err := s.chunks.Write(ctx, owner, s.o.Scheme, sections.Section(s.o.ChunkBytes))
		if err != nil {
			return err
		}
		w.refs = append(w.refs, ref)
		w.crc = checksum.Combine(w.crc, ref.CRC64NVME, ref.Length)
		if len(w.record.Chunks) == meta.ChunksPerPage {
			if err := s.writePage(ctx, w); err != nil {
				return err
			}
		}
		w.record.Chunks = append(w.record.Chunks, RecordOf(ref))
	}
	if w.pages > 0 {
		if err := s.writePage(ctx, w); err != nil {
			return err
		}
	}
	w.record.Pages = w.pages
	return nil
}

func (s *Store) writePage(ctx context.Context, w *written) error {
	page := &metapb.ChunkPage{Epoch: s.epoch, Chunks: w.record.Chunks}
	_, err := s.commit(ctx, func(tx kv.Tx) error { return meta.PutChunkPage(tx, w.owner, w.pages, page) })
	w.pages++ // also after an error: discard deletes what may be there
	w.record.Chunks = nil
	return err
}

// discard deletes what a failed write left, as far as that works in a short time. It runs although
// ctx may have ended. What remains is removed by the orphan check of a later start.
func (s *Store) discard(ctx context.Context, w *written) {
	if len(w.refs) == 0 && w.pages == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	var errs []error
	for _, ref := range w.refs {
		if err := s.chunks.Delete(ctx, ref); err != nil {
			errs = append(errs, err)
			break // the drive is in trouble, or time is up
		}
	}
	for page := range w.pages {
		_, err := s.commit(ctx, func(tx kv.Tx) error { return meta.DeleteChunkPage(tx, w.owner, page) })
		if err != nil {
			errs = append(errs, err)
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		s.o.Log.WarnContext(ctx, "unreferenced chunks stay until the next orphan check", "error", err)
	}
}

// putOwner says in the committing transaction that the chunks are referred to from now on. The epoch
// is rechecked: had another process declared it dead, the orphan check might remove them.
func (s *Store) putOwner(ctx context.Context, tx kv.Tx, w *written, o *metapb.Owner) error {
	if w.record == nil {
		return nil // inline
	}
	alive, err := meta.EpochAlive(ctx, tx, s.epoch)
	if err != nil {
		return err
	}
	if !alive {
		return fmt.Errorf("epoch %d was ended by another process: %w", s.epoch, ErrUnavailable)
	}
	o.Epoch = s.epoch
	return meta.PutOwner(tx, w.owner, o)
}

// dropPayload queues a payload that nothing refers to after this transaction. Its owner stays until
// the queue entry was worked off.
func (s *Store) dropPayload(tx kv.Tx, p *metapb.Payload) error {
	if len(p.GetOwner()) == 0 {
		return nil // inline
	}
	return meta.PutGarbage(tx, s.nowNs(), &metapb.Garbage{What: &metapb.Garbage_Payload{Payload: p}})
}

// dropVersion queues what a version consists of.
func (s *Store) dropVersion(tx kv.Tx, v *metapb.Version) error {
	if v.Manifest != nil {
		g := &metapb.Garbage{What: &metapb.Garbage_Upload{Upload: v.Manifest.Upload}}
		return meta.PutGarbage(tx, s.nowNs(), g)
	}
	return s.dropPayload(tx, v.Payload)
}

// target is the key that a write is about.
type target struct {
	bucket, key string
	id          uint64 // of the bucket
	cond        Conditions
}

// begin checks a write before its payload is taken.
func (s *Store) begin(ctx context.Context, bucket, key string, cond Conditions) (t target, err error) {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return target{}, fmt.Errorf("key of %d bytes: %w", len(key), ErrTooLarge)
	}
	t = target{bucket: bucket, key: key, cond: cond}
	err = s.view(ctx, func(r kv.Reader) error {
		b, err := findBucket(ctx, r, bucket)
		if err != nil {
			return err
		}
		t.id = b.Id
		if !cond.isConditional() {
			return nil
		}
		h, err := headOrNone(ctx, r, t)
		if err != nil {
			return err
		}
		return cond.checkWrite(h.GetCurrent())
	})
	return t, err
}

// headOrNone returns a Head whose record is nil when there is none.
func headOrNone(ctx context.Context, r kv.Reader, t target) (meta.Head, error) {
	h, err := meta.GetHead(ctx, r, t.id, t.key)
	if errors.Is(err, kv.ErrNotFound) {
		return meta.Head{}, nil
	}
	return h, err
}

// lockHead takes the head for writing and rechecks the bucket and the preconditions. Writers of one
// key wait for each other instead of losing conflicts.
func lockHead(ctx context.Context, tx kv.Tx, t target) (meta.Head, error) {
	if err := tx.Lock(ctx, meta.HeadKey(t.id, t.key), kv.Exclusive); err != nil {
		return meta.Head{}, err
	}
	if err := sameBucket(ctx, tx, t.bucket, t.id); err != nil {
		return meta.Head{}, err
	}
	h, err := headOrNone(ctx, tx, t)
	if err != nil {
		return meta.Head{}, err
	}
	return h, t.cond.checkWrite(h.GetCurrent())
}

// replace makes v the current version of a head from lockHead and queues the one before.
func (s *Store) replace(tx kv.Tx, t target, old meta.Head, v *metapb.Version, inline []byte) error {
	head := old.Head
	if head == nil {
		head = &metapb.Head{}
	} else if err := s.dropVersion(tx, head.Current); err != nil {
		return err
	}
	head.Sequence++ // the rest of the record stays, also what this binary does not know
	head.Current = v
	return meta.PutHead(tx, t.id, t.key, meta.Head{Head: head, Inline: inline})
}

// writeError names the outcome of a conditional write that lost too often as what it is.
func (t target) writeError(err error) error {
	if err != nil && t.cond.isConditional() && errors.Is(err, kv.ErrConflict) {
		return fmt.Errorf("%w: %w", ErrConditionConflict, err)
	}
	return err
}

// Put writes an object. Preconditions are checked before the first byte is taken from r.Source, and
// again in the transaction that commits.
func (s *Store) Put(ctx context.Context, r PutRequest) (ObjectInfo, error) {
	record, err := recordOfMeta(r.Meta)
	if err != nil {
		return ObjectInfo{}, err
	}
	t, err := s.begin(ctx, r.Bucket, r.Key, r.If)
	if err != nil {
		return ObjectInfo{}, err
	}
	w, err := s.writePayload(ctx, r.Source)
	if err != nil {
		return ObjectInfo{}, err
	}
	digest, err := r.Seal(ctx, Payload{Size: w.size, CRC64NVME: w.crc})
	if err != nil {
		s.discard(ctx, w)
		return ObjectInfo{}, err
	}
	return s.commitObject(ctx, t, w, &metapb.Version{
		Etag: digest.ETag, Checksums: recordsOfChecksums(digest.Checksums), Meta: record,
	})
}

// commitObject makes a written payload the current version of its key.
func (s *Store) commitObject(ctx context.Context, t target, w *written, v *metapb.Version) (ObjectInfo, error) {
	v.Size, v.Crc64Nvme, v.Payload = w.size, w.crc, w.record
	replaced := false
	unknown, err := s.commit(ctx, func(tx kv.Tx) error {
		old, err := lockHead(ctx, tx, t)
		if err != nil {
			return err
		}
		replaced = old.Head != nil
		v.ModifiedNs = s.nowNs()
		if err := s.putOwner(ctx, tx, w, &metapb.Owner{Bucket: t.id, Key: []byte(t.key)}); err != nil {
			return err
		}
		return s.replace(tx, t, old, v, w.inline)
	})
	if err != nil {
		if !unknown {
			s.discard(ctx, w)
		}
		return ObjectInfo{}, t.writeError(err)
	}
	if replaced {
		s.o.OnGarbage()
	}
	return objectInfo(t.bucket, t.key, v), nil
}
