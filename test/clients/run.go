package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kind is one client under test and what its defaults are.
type kind struct {
	name      string
	threshold int64 // bytes up to which an upload is one request; multi: from it on
	inclusive bool  // an upload of exactly threshold goes by parts already
	part      int64
	start     func(t *toolbox, c command, n *node) (client, error)
}

const mib = 1 << 20

// kinds are all clients. The thresholds are the clients' own defaults but rclone's, whose 200 MiB
// is lowered by an option to keep the runs short.
func kinds() []kind {
	program := func(name string, args ...string) func(*toolbox, command, *node) (client, error) {
		return func(t *toolbox, c command, _ *node) (client, error) { return startLibrary(c, name, args...) }
	}
	python := func(env, file string) func(*toolbox, command, *node) (client, error) {
		return func(t *toolbox, c command, n *node) (client, error) {
			return program(t.venv(env, "python"), filepath.Join(t.source, "py", file))(t, c, n)
		}
	}
	linked := func(name string) func(*toolbox, command, *node) (client, error) {
		return func(t *toolbox, c command, n *node) (client, error) { return program(t.bin(name))(t, c, n) }
	}
	return []kind{
		{"aws-cli", 8 * mib, true, 8 * mib, func(t *toolbox, c command, n *node) (client, error) {
			cli := &awsCLI{c, t.py("aws")}
			if n.proxy != "" { // for a custom endpoint the default is path style
				return cli.with("addressing_style = virtual")
			}
			return cli, nil
		}},
		{"boto3", 8 * mib, true, 8 * mib, python("py", "boto.py")},
		{"boto3-crt", 8 * mib, true, 8 * mib, python("pycrt", "boto.py")}, // other checksums than without CRT
		{"aws-go", 16 * mib, true, 8 * mib, linked("awsgo")},
		{"aws-js", 5 * mib, false, 5 * mib, func(t *toolbox, c command, n *node) (client, error) {
			return program("node", filepath.Join(t.js(), "client.mjs"))(t, c, n)
		}},
		{"minio-go", 16 * mib, false, 16 * mib, linked("miniogo")},
		{"rclone", 6 * mib, true, 5 * mib, func(t *toolbox, c command, n *node) (client, error) {
			return newRclone(c, t.bin("rclone"), n), nil
		}},
		{"s3cmd", 15 * mib, false, 15 * mib, func(t *toolbox, c command, n *node) (client, error) {
			return newS3cmd(c, t.py("s3cmd"), n)
		}},
		{"s5cmd", 50 * mib, false, 50 * mib, func(t *toolbox, c command, n *node) (client, error) {
			return &s5cmdCLI{c, t.py("s5cmd"), n.endpoint()}, nil
		}},
		{"obstore", 5 * mib, false, 5 * mib, python("py", "obs.py")},
	}
}

// run is one client on one node.
type run struct {
	kind
	tools  *toolbox
	node   *node
	raw    raw
	client client
	cmd    command
	bucket string // its own
	shared string // the one that all clients of the node read
	dir    string // scratch
}

// orderTimeout bounds one order, a process started for it included: far beyond the slowest, so
// that only a client that hangs meets it.
const orderTimeout = 90 * time.Second

// content is a function of name and size.
func content(name string, size int64) []byte {
	var seed [32]byte
	copy(seed[8:], name)
	binary.LittleEndian.PutUint64(seed[:], uint64(size))
	data := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(data) // never fails
	return data
}

// file writes content for an upload.
func (r *run) file(name string, size int64) (string, []byte, error) {
	path, data := filepath.Join(r.dir, "in-"+name), content(r.name+name, size)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return "", nil, fmt.Errorf("scratch: %w", err)
	}
	return path, data, nil
}

// do gives an order to the client.
func (r *run) do(ctx context.Context, o order) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	if o.Bucket == "" {
		o.Bucket = r.bucket
	}
	a, err := r.client.do(ctx, o)
	if err == nil && a.Cannot != "" {
		err = &cannotError{a.Cannot}
	}
	return a, err
}

// must gives an order that has to succeed.
func (r *run) must(ctx context.Context, o order) (answer, error) {
	a, err := r.do(ctx, o)
	if err == nil && a.Error != "" {
		err = &refusedError{o.Op, a}
	}
	return a, err
}

// refused gives an order that has to fail with the status or one of the codes.
func (r *run) refused(ctx context.Context, o order, status int, codes ...string) error {
	a, err := r.do(ctx, o)
	switch {
	case err != nil:
		return err
	case a.Error == "":
		return fmt.Errorf("%s: done, want status %d", o.Op, status)
	case a.Status != status && !slices.Contains(codes, a.Code):
		return fmt.Errorf("want status %d: %w", status, &refusedError{o.Op, a})
	}
	return nil
}

// fetch reads an object by the client and compares the bytes.
func (r *run) fetch(ctx context.Context, o order, want []byte) (answer, error) {
	o.File = filepath.Join(r.dir, "out")
	if err := os.RemoveAll(o.File); err != nil {
		return answer{}, fmt.Errorf("scratch: %w", err)
	}
	a, err := r.must(ctx, o)
	if err != nil {
		return a, err
	}
	got, err := os.ReadFile(o.File)
	if err != nil {
		return a, fmt.Errorf("%s: read what was fetched: %w", o.Op, err)
	}
	if !bytes.Equal(got, want) {
		return a, fmt.Errorf("%s %q %s: %d bytes that differ from the %d expected", o.Op, o.Key, o.Range, len(got), len(want))
	}
	return a, nil
}

// store puts by the client, reads by the oracle and by the client.
func (r *run) store(ctx context.Context, key, name string, size int64) error {
	path, data, err := r.file(name, size)
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, order{Op: "put", Key: key, File: path}); err != nil {
		return err
	}
	if _, err := r.raw.verify(ctx, r.bucket, key, data, r.part); err != nil {
		return err
	}
	_, err = r.fetch(ctx, order{Op: "get", Key: key}, data)
	return err
}

// listed compares a listing by the client with the model.
func (r *run) listed(ctx context.Context, o order, want map[string]int64, prefixes []string) error {
	o.Op = "list"
	a, err := r.must(ctx, o)
	if err != nil {
		return err
	}
	got := map[string]int64{}
	for _, i := range a.Items {
		if _, twice := got[i.Key]; twice {
			return fmt.Errorf("list: key %q twice", i.Key)
		}
		got[i.Key] = i.Size
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("list: %s", difference(got, want))
	}
	slices.Sort(a.Prefixes)
	if !slices.Equal(a.Prefixes, prefixes) {
		return fmt.Errorf("list: prefixes %q, want %q", a.Prefixes, prefixes)
	}
	return nil
}

func difference(got, want map[string]int64) string {
	var missing, more []string
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if size, ok := got[k]; !ok || size != want[k] {
			missing = append(missing, fmt.Sprintf("%q", k))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if size, ok := want[k]; !ok || size != got[k] {
			more = append(more, fmt.Sprintf("%q", k))
		}
	}
	return clip(fmt.Sprintf("%d entries, want %d; missing or of another size: %s; unexpected: %s", len(got), len(want),
		strings.Join(missing, " "), strings.Join(more, " ")))
}

// attempt runs one case and keeps a panic of it from ending the others.
func (r *run) attempt(ctx context.Context, c testCase) error {
	err := c.run(ctx, r)
	var no *cannotError
	if err == nil || errors.As(err, &no) {
		return err
	}
	return fmt.Errorf("%s %s %s: %w", r.name, r.node.scheme, c.name, err)
}
