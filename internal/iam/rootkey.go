package iam

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-store/penstock/internal/meta"
)

// CredentialsFile is the name of root's credentials in the data directory. Its form is that of the
// AWS shared credentials file, so AWS_SHARED_CREDENTIALS_FILE may point at it.
const CredentialsFile = "credentials"

// maxCredentialsBytes bounds the file: it holds two short lines.
const maxCredentialsBytes = 64 << 10

// ErrCredentials says that the credentials file cannot be used as it is.
var ErrCredentials = errors.New("iam: credentials file is unusable")

// RootKey returns root's key of the data directory and creates it at the first start: random, mode
// 0600, whole and synced before it gets its name. created tells whether it did.
func RootKey(dataDir string) (key Key, path string, created bool, err error) {
	path = filepath.Join(dataDir, CredentialsFile)
	key, err = readCredentials(path)
	if !errors.Is(err, os.ErrNotExist) {
		return key, path, false, err
	}
	key = NewKey(Root)
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", key.ID, string(key.Secret))
	if err := writeDurably(path, []byte(text)); err != nil {
		return Key{}, path, false, fmt.Errorf("credentials: write: %w", err)
	}
	return key, path, true, nil
}

func readCredentials(path string) (Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return Key{}, fmt.Errorf("credentials: open: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Key{}, fmt.Errorf("credentials: stat: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return Key{}, fmt.Errorf("%w: %s has mode %v, others may read it; want 0600", ErrCredentials, path, info.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCredentialsBytes))
	if err != nil {
		return Key{}, fmt.Errorf("credentials: read: %w", err)
	}
	key := Key{Principal: Root, Created: info.ModTime().UTC().Truncate(time.Second)}
	section := "default"
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if name, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSuffix(name, "]")
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || section != "default" {
			continue
		}
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			key.ID = strings.TrimSpace(value)
		case "aws_secret_access_key":
			key.Secret = meta.Secret(strings.TrimSpace(value))
		}
	}
	if key.ID == "" || key.Secret == "" {
		return Key{}, fmt.Errorf("%w: %s names no key and secret under [default]", ErrCredentials, path)
	}
	return key, nil
}

// writeDurably makes the file appear whole or not at all, also after a power loss.
func writeDurably(path string, text []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, CredentialsFile+".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
