// Package iam knows principals and their access keys.
//
// Called by: gateway (look up a key, per request), admin (create, list, delete), server (start).
//
// A principal is a name that owns buckets and fabric sessions. Each access key acts as its principal,
// with full rights to the buckets that this principal owns. The principal Root sees everything.
// Root's first key lives in a file of the data directory (or in the environment) and cannot be
// deleted here; all other keys are records of the metadata.
//
// Invariants:
//  1. Create and Delete return nil only when the change is durable; a deleted key is refused by
//     every Lookup that starts afterwards.
//  2. Lookup takes no lock: it reads an immutable table that changes replace as a whole.
//  3. Secrets print redacted and are never logged.
//
// Lock order: Keys.mu is held across a metadata transaction and never inside one.
//
// What it does not do: verifying signatures (s3), policies, several nodes.
package iam

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/meta"
)

// Root is the principal that sees everything.
const Root = "root"

// Anonymous is the principal of requests without a signature, where a node takes any. No key belongs to it.
const Anonymous = "anonymous"

// Limits.
const (
	MaxKeys           = 10_000 // the table of all keys is copied at each change and held in memory
	MaxPrincipalBytes = 64     // part of records and of every owner element in answers
)

var (
	// ErrNoSuchKey says that no such access key exists.
	ErrNoSuchKey = errors.New("iam: access key does not exist")
	// ErrKeyLimit says that MaxKeys exist.
	ErrKeyLimit = errors.New("iam: too many access keys")
	// ErrRootKey says that root's own key cannot be deleted.
	ErrRootKey = errors.New("iam: root's first key lives in the credentials file and cannot be deleted")
	// ErrPrincipal says that a principal's name is not allowed.
	ErrPrincipal = errors.New("iam: principal name is anonymous, or not 1 to 64 of a-z 0-9 . _ - " +
		"beginning with a letter or digit")
)

// Key is one access key. Its secret prints redacted.
type Key = meta.AccessKey

// Storage keeps keys durably; meta.AccessKeys is one.
type Storage interface {
	Put(ctx context.Context, k Key) error
	Delete(ctx context.Context, id string) error
	List(ctx context.Context) ([]Key, error)
}

// Options open a set of keys.
type Options struct {
	Storage Storage
	Root    Key // see RootKey
	// Revoked is called with the principal after one of its keys was deleted, so that its fabric
	// sessions end. It may be nil.
	Revoked func(principal string)
}

// Keys is the set of all access keys.
type Keys struct {
	storage Storage
	root    string
	revoked func(string)

	table atomic.Pointer[map[string]Key]
	mu    sync.Mutex // serialises changes of table
}

// Open loads all keys.
func Open(ctx context.Context, o Options) (*Keys, error) {
	stored, err := o.Storage.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("access keys: load: %w", err)
	}
	table := make(map[string]Key, len(stored)+1)
	for _, k := range stored {
		table[k.ID] = k
	}
	table[o.Root.ID] = o.Root
	k := &Keys{storage: o.Storage, root: o.Root.ID, revoked: o.Revoked}
	k.table.Store(&table)
	return k, nil
}

// Lookup finds a key. Errors: ErrNoSuchKey.
func (k *Keys) Lookup(accessKey string) (Key, error) {
	if key, ok := (*k.table.Load())[accessKey]; ok {
		return key, nil
	}
	return Key{}, ErrNoSuchKey
}

// List returns all keys without their secrets, ordered by principal and creation.
func (k *Keys) List() []Key {
	keys := slices.Collect(maps.Values(*k.table.Load()))
	for i := range keys {
		keys[i].Secret = ""
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Principal, b.Principal), a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return keys
}

// Create makes a key for the principal; an empty name makes a principal of its own for the key.
// Errors: ErrPrincipal, ErrKeyLimit, the storage's.
func (k *Keys) Create(ctx context.Context, principal string) (Key, error) {
	key := NewKey(principal)
	if principal == "" {
		key.Principal = "p-" + hex.EncodeToString(random(8))
	}
	if !validPrincipal(key.Principal) {
		return Key{}, fmt.Errorf("principal %q: %w", principal, ErrPrincipal)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	old := *k.table.Load()
	if len(old) >= MaxKeys {
		return Key{}, ErrKeyLimit
	}
	if err := k.storage.Put(ctx, key); err != nil {
		return Key{}, fmt.Errorf("access key: store: %w", err)
	}
	table := maps.Clone(old)
	table[key.ID] = key
	k.table.Store(&table)
	return key, nil
}

// Delete revokes a key and ends the fabric sessions of its principal. Errors: ErrNoSuchKey,
// ErrRootKey, the storage's.
func (k *Keys) Delete(ctx context.Context, accessKey string) error {
	key, err := k.remove(ctx, accessKey)
	if err != nil {
		return err
	}
	if k.revoked != nil {
		k.revoked(key.Principal)
	}
	return nil
}

func (k *Keys) remove(ctx context.Context, accessKey string) (Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := *k.table.Load()
	key, ok := old[accessKey]
	if !ok {
		return Key{}, fmt.Errorf("access key %q: %w", accessKey, ErrNoSuchKey)
	}
	if accessKey == k.root {
		return Key{}, ErrRootKey
	}
	if err := k.storage.Delete(ctx, accessKey); err != nil {
		return Key{}, fmt.Errorf("access key: delete: %w", err)
	}
	table := maps.Clone(old)
	delete(table, accessKey)
	k.table.Store(&table)
	return key, nil
}

// NewKey makes a random key: 90 bits of name, 240 bits of secret.
func NewKey(principal string) Key {
	name := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random(12))
	return Key{
		ID:        "PS" + name[:18],
		Secret:    meta.Secret(base64.RawURLEncoding.EncodeToString(random(30))),
		Principal: principal,
		Created:   time.Now().UTC().Truncate(time.Second),
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never returns an error: it ends the process instead
	return b
}

func validPrincipal(s string) bool {
	if s == "" || len(s) > MaxPrincipalBytes || s == Anonymous {
		return false
	}
	for i, c := range []byte(s) {
		alnum := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}
