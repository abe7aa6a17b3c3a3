package meta

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/metapb"
)

// MaxAccessKeyBytes is the longest access key id: AWS's are 16 to 128 characters.
const MaxAccessKeyBytes = 128

// Secret is a secret access key. It prints redacted; convert it to a string to use it.
type Secret string

// String hides the secret.
func (Secret) String() string { return "redacted" }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return "redacted" }

// LogValue hides the secret.
func (Secret) LogValue() slog.Value { return slog.StringValue("redacted") }

// AccessKey is a pair of credentials of a principal.
type AccessKey struct {
	ID          string
	Secret      Secret
	Principal   string // principal id; "root" is root's
	Created     time.Time
	Description string
}

// AccessKeys is where access keys are kept.
type AccessKeys struct{ KV kv.Engine }

// Put stores a key durably, replacing one of the same id.
func (a AccessKeys) Put(ctx context.Context, k AccessKey) error {
	if len(k.ID) == 0 || len(k.ID) > MaxAccessKeyBytes {
		return fmt.Errorf("meta: access key id of %d bytes: %w", len(k.ID), kv.ErrTooLarge)
	}
	return a.KV.Txn(ctx, func(tx kv.Tx) error {
		return put(tx, accessKeyKey(k.ID), &metapb.AccessKey{
			Secret: string(k.Secret), Principal: k.Principal,
			CreatedNs: k.Created.UnixNano(), Description: k.Description,
		})
	})
}

// Get returns a key, or an error that wraps ErrNotFound.
func (a AccessKeys) Get(ctx context.Context, id string) (AccessKey, error) {
	s, err := a.KV.Snapshot(ctx)
	if err != nil {
		return AccessKey{}, err
	}
	record, err := get[metapb.AccessKey](ctx, s, accessKeyKey(id))
	if err = errors.Join(err, s.Close()); err != nil {
		return AccessKey{}, notFound("get", err)
	}
	return accessKeyOf(id, record), nil
}

func accessKeyOf(id string, r *metapb.AccessKey) AccessKey {
	return AccessKey{
		ID: id, Secret: Secret(r.Secret), Principal: r.Principal,
		Created: time.Unix(0, r.CreatedNs).UTC(), Description: r.Description,
	}
}

// List returns all keys, ascending by id.
func (a AccessKeys) List(ctx context.Context) ([]AccessKey, error) {
	s, err := a.KV.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var keys []AccessKey
	from, to := family(tagAccessKey)
	err = s.Scan(ctx, from, to, func(key, value []byte) (kv.Next, error) {
		record, err := decode[metapb.AccessKey](value)
		if err == nil {
			keys = append(keys, accessKeyOf(string(key[1:]), record))
		}
		return kv.Next{}, err
	})
	return keys, errors.Join(err, s.Close())
}

// Delete removes a key durably, or returns an error that wraps ErrNotFound.
func (a AccessKeys) Delete(ctx context.Context, id string) error {
	return a.KV.Txn(ctx, func(tx kv.Tx) error {
		if _, err := tx.Get(ctx, accessKeyKey(id)); err != nil {
			return notFound("delete", err)
		}
		return tx.Delete(accessKeyKey(id))
	})
}

func notFound(verb string, err error) error {
	if errors.Is(err, kv.ErrNotFound) {
		return fmt.Errorf("meta: %s: %w", verb, ErrNotFound)
	}
	return fmt.Errorf("meta: %s access key: %w", verb, err)
}
