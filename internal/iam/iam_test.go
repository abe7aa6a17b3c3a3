package iam_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/internal/iam"
)

// memory is a Storage whose map is the oracle for what was made durable.
type memory struct {
	mu   sync.Mutex
	keys map[string]iam.Key
	fail error
}

func (m *memory) Put(_ context.Context, k iam.Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.keys[k.ID] = k
	return nil
}

func (m *memory) Delete(_ context.Context, accessKey string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	delete(m.keys, accessKey)
	return nil
}

func (m *memory) List(context.Context) ([]iam.Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []iam.Key
	for _, k := range m.keys {
		all = append(all, k)
	}
	return all, nil
}

func open(t *testing.T, m *memory, revoked func(string)) (*iam.Keys, iam.Key) {
	t.Helper()
	root := iam.NewKey(iam.Root)
	keys, err := iam.Open(context.Background(), iam.Options{Storage: m, Root: root, Revoked: revoked})
	if err != nil {
		t.Fatal(err)
	}
	return keys, root
}

func TestKeysLiveAcrossOpenAndEndAtDelete(t *testing.T) {
	ctx := context.Background()
	m := &memory{keys: map[string]iam.Key{}}
	var revoked []string
	keys, root := open(t, m, func(p string) { revoked = append(revoked, p) })

	alice, err := keys.Create(ctx, "alice")
	if err != nil {
		t.Fatal(err)
	}
	own, err := keys.Create(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if own.Principal == "" || own.Principal == iam.Root || own.Principal == alice.Principal {
		t.Errorf("a key without a name got principal %q", own.Principal)
	}
	again, _ := open(t, m, nil)
	for _, k := range []*iam.Keys{keys, again} {
		got, err := k.Lookup(alice.ID)
		if err != nil || got != alice {
			t.Errorf("lookup: %+v, %v", got, err)
		}
	}
	if got, err := keys.Lookup(root.ID); err != nil || got.Principal != iam.Root {
		t.Errorf("root: %+v, %v", got, err)
	}
	if len(keys.List()) != 3 {
		t.Errorf("%d keys listed, want 3", len(keys.List()))
	}
	for _, k := range keys.List() {
		if k.Secret != "" {
			t.Error("a secret is listed")
		}
	}
	if err := keys.Delete(ctx, alice.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Lookup(alice.ID); !errors.Is(err, iam.ErrNoSuchKey) {
		t.Errorf("deleted key: %v", err)
	}
	if len(revoked) != 1 || revoked[0] != "alice" {
		t.Errorf("revoked %v, want alice once", revoked)
	}
	if err := keys.Delete(ctx, alice.ID); !errors.Is(err, iam.ErrNoSuchKey) {
		t.Errorf("second delete: %v", err)
	}
	if err := keys.Delete(ctx, root.ID); !errors.Is(err, iam.ErrRootKey) {
		t.Errorf("delete of root: %v", err)
	}
}

func TestNothingChangesWhenStorageFails(t *testing.T) {
	ctx := context.Background()
	m := &memory{keys: map[string]iam.Key{}}
	keys, _ := open(t, m, func(string) { t.Error("revoked") })
	k, err := keys.Create(ctx, "bob")
	if err != nil {
		t.Fatal(err)
	}
	m.fail = errors.New("disk on fire")
	if _, err := keys.Create(ctx, "carol"); !errors.Is(err, m.fail) {
		t.Errorf("create: %v", err)
	}
	if err := keys.Delete(ctx, k.ID); !errors.Is(err, m.fail) {
		t.Errorf("delete: %v", err)
	}
	if _, err := keys.Lookup(k.ID); err != nil {
		t.Errorf("the key is gone though its delete was not stored: %v", err)
	}
	if n := len(keys.List()); n != 2 {
		t.Errorf("%d keys, want 2", n)
	}
}

func TestPrincipalNames(t *testing.T) {
	keys, _ := open(t, &memory{keys: map[string]iam.Key{}}, nil)
	for name, ok := range map[string]bool{
		"root": true, "a": true, "team-7.x_y": true, "-a": false, ".a": false, "A": false, "a b": false, "a/b": false,
		strings.Repeat("x", 64): true, strings.Repeat("x", 65): false, "ä": false, "a\n": false,
		iam.Anonymous: false, iam.Anonymous + "s": true,
	} {
		_, err := keys.Create(context.Background(), name)
		if ok != (err == nil) || err != nil && !errors.Is(err, iam.ErrPrincipal) {
			t.Errorf("%q: %v, want ok=%v", name, err, ok)
		}
	}
}

func TestSecretsPrintRedacted(t *testing.T) {
	k := iam.NewKey("x")
	out := fmt.Sprintf("%v %+v %#v %s %q", k, k, k, k.Secret, k.Secret)
	if strings.Contains(out, string(k.Secret)) {
		t.Errorf("secret in %s", out)
	}
}

func TestRootKeyIsMadeOnceAndPrivate(t *testing.T) {
	dir := t.TempDir()
	k, path, created, err := iam.RootKey(dir)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	again, _, created, err := iam.RootKey(dir)
	if err != nil || created || again.ID != k.ID || again.Secret != k.Secret || again.Principal != iam.Root {
		t.Fatalf("second start: %+v, created %v, %v", again, created, err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := iam.RootKey(dir); !errors.Is(err, iam.ErrCredentials) {
		t.Errorf("readable by others: %v", err)
	}
}

func FuzzCredentials(f *testing.F) {
	f.Add("[default]\naws_access_key_id = A\naws_secret_access_key = B\n")
	f.Add("[other]\naws_access_key_id = A\naws_secret_access_key = B\n")
	f.Add("aws_access_key_id=\n\x00=")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, iam.CredentialsFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		k, _, created, err := iam.RootKey(dir)
		if created || (err == nil) != (k.ID != "" && k.Secret != "") {
			t.Errorf("created %v, key %v, error %v", created, k, err)
		}
	})
}
