package store

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
)

// deleteBatch bounds the keys of one deleting transaction: enough to share a sync, few enough that a
// conflict is cheap to repeat.
const deleteBatch = 100

// deleteBatchBytes bounds what one deleting transaction queues as garbage, well below kv.MaxTxnBytes:
// one more entry, of up to 64 KiB, always fits.
const deleteBatchBytes = kv.MaxTxnBytes / 2

// Delete removes an object. Deleting what does not exist is no error, unless r.If asks for it.
func (s *Store) Delete(ctx context.Context, r DeleteRequest) error {
	t, err := s.begin(ctx, r.Bucket, r.Key, r.If)
	if err != nil {
		return err
	}
	found := false
	_, err = s.commit(ctx, func(tx kv.Tx) error {
		h, err := lockDelete(ctx, tx, t, r.Only)
		if err != nil {
			return err
		}
		if found = h.Head != nil; !found {
			return nil
		}
		_, err = s.remove(tx, t, h)
		return err
	})
	if err == nil && found {
		s.o.OnGarbage()
	}
	return t.writeError(err)
}

// lockDelete is lockHead for a delete, with its own limits.
func lockDelete(ctx context.Context, tx kv.Tx, t target, only DeleteOnly) (meta.Head, error) {
	h, err := lockHead(ctx, tx, t)
	if err != nil {
		return meta.Head{}, err
	}
	return h, only.check(h.GetCurrent())
}

// remove deletes a head from lockHead and returns how many bytes that added to the transaction.
func (s *Store) remove(tx kv.Tx, t target, h meta.Head) (size int, err error) {
	if err := s.dropVersion(tx, h.Current); err != nil {
		return 0, err
	}
	return proto.Size(h.Current.Payload) + 4*len(t.key), meta.DeleteHead(tx, t.id, t.key)
}

// DeleteMany removes objects of one bucket in transactions of bounded size. The errors are by
// index; an error for the whole (no such bucket) is at every index.
func (s *Store) DeleteMany(ctx context.Context, bucket string, rs []DeleteRequest) []error {
	errs := make([]error, len(rs))
	order := make([]int, len(rs))
	for i := range order {
		order[i] = i
	}
	// Locks are taken in key order, so that two of these do not wait for each other.
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case rs[a].Key < rs[b].Key:
			return -1
		case rs[a].Key > rs[b].Key:
			return 1
		}
		return 0
	})
	for len(order) > 0 {
		n, err := s.deleteSome(ctx, bucket, rs, order[:min(len(order), deleteBatch)], errs)
		if err != nil {
			// The batch lost as a whole: each key for itself says why, or works.
			n = min(len(order), deleteBatch)
			for _, i := range order[:n] {
				errs[i] = s.Delete(ctx, DeleteRequest{
					Bucket: bucket, Key: rs[i].Key, If: rs[i].If, Only: rs[i].Only,
				})
			}
		}
		order = order[n:]
	}
	return errs
}

// deleteSome deletes as many of the indices as fit into one transaction, and says how many.
func (s *Store) deleteSome(
	ctx context.Context, bucket string, rs []DeleteRequest, indices []int, errs []error,
) (taken int, err error) {
	first, err := s.begin(ctx, bucket, "any", Conditions{})
	if err != nil {
		return 0, err
	}
	_, err = s.commit(ctx, func(tx kv.Tx) error {
		taken = 0
		for size := 0; taken < len(indices) && size < deleteBatchBytes; taken++ {
			i := indices[taken]
			t := target{bucket: bucket, key: rs[i].Key, id: first.id, cond: rs[i].If}
			errs[i] = nil
			h, err := lockDelete(ctx, tx, t, rs[i].Only)
			if isOwnFault(err) {
				errs[i] = err
				continue
			}
			if err != nil {
				return err
			}
			if h.Head == nil {
				continue
			}
			n, err := s.remove(tx, t, h)
			if err != nil {
				return err
			}
			size += n
		}
		return nil
	})
	if err == nil {
		s.o.OnGarbage()
	}
	return taken, err
}

// isOwnFault tells whether an error is about one key's precondition, not about the transaction.
func isOwnFault(err error) bool {
	return errors.Is(err, ErrPrecondition) || errors.Is(err, ErrNoSuchKey)
}
