package meta

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

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

// PutAccessKey stores a key durably, replacing one of the same id.
func PutAccessKey(ctx context.Context, e kv.Engine, k AccessKey) error { return errors.ErrUnsupported }

// GetAccessKey returns a key, or an error that wraps kv.ErrNotFound.
func GetAccessKey(ctx context.Context, e kv.Engine, id string) (AccessKey, error) {
	return AccessKey{}, errors.ErrUnsupported
}

// ListAccessKeys returns all keys, ascending by id.
func ListAccessKeys(ctx context.Context, e kv.Engine) ([]AccessKey, error) {
	return nil, errors.ErrUnsupported
}

// DeleteAccessKey removes a key durably, or returns an error that wraps kv.ErrNotFound.
func DeleteAccessKey(ctx context.Context, e kv.Engine, id string) error { return errors.ErrUnsupported }
