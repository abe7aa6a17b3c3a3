package store

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// checksumCRC64NVME is the algorithm that the store itself knows.
const checksumCRC64NVME = "CRC64NVME"

// Complete makes the object of an upload. Parts that r does not list become garbage.
//
// One transaction does it all. It writes little, whatever the number of parts: the object refers to
// the part records as they lie, by runs of numbers, and the unlisted parts are queued as runs too. It
// reads every part record, in one scan, under the exclusive lock of the upload: 10,000 of them are
// some megabytes and tens of milliseconds.
func (s *Store) Complete(ctx context.Context, r CompleteRequest) (info ObjectInfo, err error) {
	if err := checkOrder(r.Parts); err != nil {
		return ObjectInfo{}, err
	}
	var u openUpload
	err = s.view(ctx, func(reader kv.Reader) error {
		u, err = findUpload(ctx, reader, r.Bucket, r.Key, r.UploadID)
		return err
	})
	if err != nil && !errors.Is(err, ErrNoSuchUpload) {
		return ObjectInfo{}, err
	}
	t := target{bucket: r.Bucket, key: r.Key, id: u.bucketID, cond: r.If}
	_, err = s.commit(ctx, func(tx kv.Tx) error {
		info, err = s.complete(ctx, tx, t, u, r)
		return err
	})
	if err != nil {
		return ObjectInfo{}, t.writeError(err)
	}
	s.o.OnGarbage()
	return info, nil
}

func (s *Store) complete(
	ctx context.Context, tx kv.Tx, t target, u openUpload, r CompleteRequest,
) (ObjectInfo, error) {
	err := u.lock(ctx, tx, kv.Exclusive)
	if errors.Is(err, ErrNoSuchUpload) {
		return repeated(ctx, tx, u, r.Parts, err)
	}
	if err != nil {
		return ObjectInfo{}, err
	}
	c := completion{upload: u, request: r, minPart: s.o.MinPart, etag: md5.New()}
	if err := c.scan(ctx, tx); err != nil {
		return ObjectInfo{}, err
	}
	if err := c.seal(); err != nil {
		return ObjectInfo{}, err
	}
	v, err := s.finish(ctx, tx, t, &c)
	if err != nil {
		return ObjectInfo{}, err
	}
	return objectInfo(r.Bucket, r.Key, v), nil
}

func checkOrder(parts []CompletePart) error {
	if len(parts) == 0 || len(parts) > MaxParts {
		return fmt.Errorf("list of %d parts: %w", len(parts), ErrInvalidPart)
	}
	for i, p := range parts {
		if p.Number < 1 || p.Number > MaxParts {
			return fmt.Errorf("part %d: %w", p.Number, ErrInvalidPart)
		}
		if i > 0 && p.Number <= parts[i-1].Number {
			return fmt.Errorf("part %d after %d: %w", p.Number, parts[i-1].Number, ErrPartOrder)
		}
	}
	return nil
}

// requestSum tells a repeated request from another one.
func requestSum(parts []CompletePart) []byte {
	h := sha256.New()
	for _, p := range parts {
		etag := strings.ToLower(unquote(p.ETag))
		_, _ = h.Write(binary.BigEndian.AppendUint32(nil, uint32(p.Number))) // hashes never fail
		_, _ = h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(etag))))
		_, _ = h.Write([]byte(etag))
	}
	return h.Sum(nil)
}

// repeated answers a request that has succeeded before; missing is the error otherwise.
func repeated(
	ctx context.Context, tx kv.Tx, u openUpload, parts []CompletePart, missing error,
) (ObjectInfo, error) {
	done, err := meta.GetCompleted(ctx, tx, u.id)
	if errors.Is(err, kv.ErrNotFound) {
		return ObjectInfo{}, missing
	}
	if err != nil {
		return ObjectInfo{}, err
	}
	if done.Bucket != u.bucketID || string(done.Key) != u.key || !bytes.Equal(done.Request, requestSum(parts)) {
		return ObjectInfo{}, missing
	}
	return objectInfo(u.bucket, u.key, done.Version), nil
}

// completion is one try to complete an upload.
type completion struct {
	upload  openUpload
	request CompleteRequest
	minPart int64

	etag     hash.Hash // MD5 over the raw ETags
	parts    []PartInfo
	runs     []meta.Run
	unlisted *metapb.PartList
	size     int64
	crc      uint64
	sums     []Checksum
}

// scan reads all parts of the upload and checks the listed ones.
func (c *completion) scan(ctx context.Context, tx kv.Tx) error {
	wanted := c.request.Parts
	err := meta.ScanParts(ctx, tx, c.upload.id, meta.AllNumbers(), func(number int, p meta.Part) (kv.Next, error) {
		if len(wanted) == 0 || number < wanted[0].Number {
			c.leaveOut(number)
			return kv.Next{}, nil
		}
		if number > wanted[0].Number {
			return kv.Next{}, fmt.Errorf("part %d was not uploaded: %w", wanted[0].Number, ErrInvalidPart)
		}
		err := c.add(wanted[0], p)
		wanted = wanted[1:]
		return kv.Next{}, err
	})
	if err == nil && len(wanted) > 0 {
		err = fmt.Errorf("part %d was not uploaded: %w", wanted[0].Number, ErrInvalidPart)
	}
	return err
}

func (c *completion) leaveOut(number int) {
	if c.unlisted == nil {
		c.unlisted = &metapb.PartList{Upload: c.upload.id[:]}
	}
	l := c.unlisted
	if n := len(l.First); n > 0 && int(l.First[n-1]+l.Count[n-1]) == number {
		l.Count[n-1]++
		return
	}
	l.First, l.Count = append(l.First, uint32(number)), append(l.Count, 1)
}

// add checks one listed part against its record.
func (c *completion) add(want CompletePart, p meta.Part) error {
	if !strings.EqualFold(unquote(want.ETag), p.Etag) {
		return fmt.Errorf("part %d has another ETag: %w", want.Number, ErrInvalidPart)
	}
	info := partInfo(want.Number, c.size, p.Part)
	for _, sum := range want.Checksums {
		if !agrees(info.Checksums, info.CRC64NVME, sum) {
			return fmt.Errorf("part %d has another %s: %w", want.Number, sum.Algorithm, ErrInvalidPart)
		}
	}
	raw, err := rawETag(p.Etag)
	if err != nil {
		return err
	}
	_, _ = c.etag.Write(raw) // hashes never fail
	c.parts = append(c.parts, info)
	c.runs = meta.AppendRun(c.runs, want.Number, p.Size)
	c.size += p.Size
	c.crc = checksum.Combine(c.crc, p.Crc64Nvme, p.Size)
	return nil
}

// rawETag is the 16 bytes that an ETag of 32 hex digits stands for. One that was written by RDMA ends
// in "-1", which does not count.
func rawETag(etag string) ([]byte, error) {
	digits, _, _ := strings.Cut(etag, "-")
	raw, err := hex.DecodeString(digits)
	if err != nil || len(raw) != md5.Size {
		return nil, fmt.Errorf("part ETag of %d characters: %w", len(etag), ErrCorrupt)
	}
	return raw, nil
}

// agrees tells whether a declared checksum is not contradicted: CRC64NVME is always known, others
// only when they were computed at the time of the upload.
func agrees(known []Checksum, crc uint64, declared Checksum) bool {
	if declared.Algorithm == checksumCRC64NVME {
		return declared.Value == checksum.Base64(crc)
	}
	for _, k := range known {
		if k.Algorithm == declared.Algorithm {
			if k.Composite && !declared.Composite { // clients may leave the number of parts out
				value, _, _ := strings.Cut(k.Value, "-")
				return value == declared.Value
			}
			return k.Value == declared.Value
		}
	}
	return false
}

// seal checks sizes and names the checksums of the whole.
func (c *completion) seal() error {
	for _, p := range c.parts[:len(c.parts)-1] {
		if p.Size < c.minPart {
			return fmt.Errorf("part %d of %d bytes: %w", p.Number, p.Size, ErrPartTooSmall)
		}
	}
	if c.request.ObjectSize >= 0 && c.request.ObjectSize != c.size {
		return fmt.Errorf("object of %d bytes, declared %d: %w", c.size, c.request.ObjectSize, ErrSizeMismatch)
	}
	if c.request.Seal != nil {
		u := c.upload
		sums, err := c.request.Seal(uploadInfo(u.bucket, u.key, u.id, u.record), c.parts, Payload{c.size, c.crc})
		if err != nil {
			return err
		}
		c.sums = sums
	}
	for _, declared := range c.request.Checksums {
		if !agrees(c.sums, c.crc, declared) {
			return fmt.Errorf("%s of the object: %w", declared.Algorithm, ErrChecksumMismatch)
		}
	}
	return nil
}

// finish writes the object and closes the upload.
func (s *Store) finish(ctx context.Context, tx kv.Tx, t target, c *completion) (*metapb.Version, error) {
	old, err := lockHead(ctx, tx, t)
	if err != nil {
		return nil, err
	}
	manifest, err := meta.PutManifest(tx, c.upload.id, c.runs)
	if err != nil {
		return nil, err
	}
	now := s.nowNs()
	v := &metapb.Version{
		Size: c.size, Etag: fmt.Sprintf("%x-%d", c.etag.Sum(nil), len(c.parts)), ModifiedNs: now,
		Crc64Nvme: c.crc, Checksums: recordsOfChecksums(c.sums), Meta: c.upload.record.Meta,
		Manifest: manifest,
	}
	if err := s.replace(tx, t, old, v, nil); err != nil {
		return nil, err
	}
	if c.unlisted != nil {
		g := &metapb.Garbage{What: &metapb.Garbage_Parts{Parts: c.unlisted}}
		if err := meta.PutGarbage(tx, now, g); err != nil {
			return nil, err
		}
	}
	if err := remember(tx, t, c, v); err != nil {
		return nil, err
	}
	return v, meta.DeleteUpload(tx, t.id, t.key, c.upload.id)
}

// remember keeps the answer for CompletedKept.
func remember(tx kv.Tx, t target, c *completion, v *metapb.Version) error {
	id := c.upload.id
	answer := proto.CloneOf(v)
	answer.Manifest = &metapb.Manifest{Parts: v.Manifest.Parts}
	done := &metapb.Completed{Bucket: t.id, Key: []byte(t.key), Request: requestSum(c.request.Parts), Version: answer}
	if err := meta.PutCompleted(tx, id, done); err != nil {
		return err
	}
	due := v.ModifiedNs + CompletedKept.Nanoseconds()
	return meta.PutGarbage(tx, due, &metapb.Garbage{What: &metapb.Garbage_Completed{Completed: id[:]}})
}
