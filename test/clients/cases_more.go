package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// manyKeys are more than one page of a listing, in eleven directories.
func manyKeys() map[string]int64 {
	want := map[string]int64{}
	for i := range 1101 {
		want[fmt.Sprintf("d%02d/key %04d", i%11, i)] = int64(i % 7)
	}
	return want
}

func caseListMany(ctx context.Context, r *run) error {
	return r.listed(ctx, order{Bucket: r.shared}, manyKeys(), nil)
}

func caseListDelimiter(ctx context.Context, r *run) error {
	var dirs []string
	for i := range 11 {
		dirs = append(dirs, fmt.Sprintf("d%02d/", i))
	}
	if err := r.listed(ctx, order{Bucket: r.shared, Delimiter: "/"}, map[string]int64{}, dirs); err != nil {
		return err
	}
	want := manyKeys()
	maps.DeleteFunc(want, func(k string, _ int64) bool { return !strings.HasPrefix(k, "d03/") })
	return r.listed(ctx, order{Bucket: r.shared, Delimiter: "/", Prefix: "d03/"}, want, nil)
}

// caseListOdd lists keys that the oracle put. Control characters have their own case.
func caseListOdd(ctx context.Context, r *run) error {
	want := map[string]int64{}
	bucket := r.bucket + "-odd"
	if err := r.raw.makeBucket(ctx, bucket); err != nil {
		return err
	}
	for i, k := range oddKeys() {
		if k.name == "control" {
			continue
		}
		want[k.key] = int64(i)
		if err := r.raw.put(ctx, bucket, k.key, content("odd", int64(i))); err != nil {
			return err
		}
	}
	return r.listed(ctx, order{Bucket: bucket}, want, nil)
}

func (r *run) sum(ctx context.Context, algo string) error {
	path, data, err := r.file("sum", 66_000)
	if err != nil {
		return err
	}
	key := "sum-" + algo
	if _, err := r.must(ctx, order{Op: "put", Key: key, File: path, Algo: algo}); err != nil {
		return err
	}
	got, err := r.raw.verify(ctx, r.bucket, key, data, 0)
	if err != nil {
		return err
	}
	if err := has(got.header, "x-amz-checksum-"+algo, sumOf(algo, data)); err != nil {
		return err
	}
	if _, err := r.fetch(ctx, order{Op: "get", Key: key}, data); err != nil {
		return err
	}
	a, err := r.must(ctx, order{Op: "head", Key: key})
	if err == nil && a.Sums != nil && a.Sums[algo] != sumOf(algo, data) {
		err = fmt.Errorf("head: checksums %v, want %s %s", a.Sums, algo, sumOf(algo, data))
	}
	return err
}

// caseWrongSum claims a sum of other bytes: nothing may be stored.
func caseWrongSum(ctx context.Context, r *run) error {
	path, data, err := r.file("wrong", 66_000)
	if err != nil {
		return err
	}
	data[0] ^= 1
	for _, algo := range algorithms {
		key := "wrong-" + algo
		o := order{Op: "put", Key: key, File: path, Algo: algo, Sum: sumOf(algo, data)}
		if err := r.refused(ctx, o, 400, "BadDigest"); err != nil {
			return fmt.Errorf("%s: %w", algo, err)
		}
		if _, err := r.raw.want(ctx, call{method: "HEAD", bucket: r.bucket, key: key}, 404); err != nil {
			return err
		}
	}
	return nil
}

// tree is a set of files: contents by slash separated path.
type tree map[string][]byte

func (t tree) write(dir string) error {
	for name, data := range t {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("tree: %w", err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return fmt.Errorf("tree: %w", err)
		}
	}
	return nil
}

func readTree(dir string) (tree, error) {
	t := tree{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		t[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("tree: read: %w", err)
	}
	return t, nil
}

// mirrored compares a tree with what lies below the prefix.
func (r *run) mirrored(ctx context.Context, prefix string, t tree) error {
	want := map[string]int64{}
	for name, data := range t {
		want[prefix+name] = int64(len(data))
	}
	got, err := r.raw.keys(ctx, r.bucket, prefix)
	if err != nil {
		return err
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("sync: %s", difference(got, want))
	}
	for name, data := range t {
		if _, err := r.raw.verify(ctx, r.bucket, prefix+name, data, r.part); err != nil {
			return err
		}
	}
	return nil
}

func caseSync(ctx context.Context, r *run) error {
	const prefix = "tree/"
	t := tree{
		"a.txt": content("a", 1000), "dir/b c.txt": content("b", 2000), "dir/deep/é+%.bin": content("c", 70_000),
		"empty": {}, "big.bin": content("big", 9*mib),
	}
	from, to := filepath.Join(r.dir, "from"), filepath.Join(r.dir, "to")
	if err := errors.Join(t.write(from), os.MkdirAll(to, 0o755)); err != nil {
		return err
	}
	up := order{Op: "sync", File: from, Prefix: prefix}
	if _, err := r.must(ctx, up); err != nil {
		return err
	}
	if err := r.mirrored(ctx, prefix, t); err != nil {
		return err
	}
	delete(t, "dir/b c.txt")
	if err := os.Remove(filepath.Join(from, "dir", "b c.txt")); err != nil {
		return fmt.Errorf("tree: %w", err)
	}
	change := tree{"a.txt": content("a", 1001), "new file": content("n", 10)}
	maps.Copy(t, change)
	if err := change.write(from); err != nil {
		return err
	}
	if _, err := r.must(ctx, up); err != nil {
		return err
	}
	if err := r.mirrored(ctx, prefix, t); err != nil {
		return err
	}
	if _, err := r.must(ctx, order{Op: "syncdown", File: to, Prefix: prefix}); err != nil {
		return err
	}
	back, err := readTree(to)
	if err != nil {
		return err
	}
	if !maps.EqualFunc(back, t, slices.Equal[[]byte]) {
		return fmt.Errorf("sync down: files %q, want %q, or their contents differ", slices.Sorted(maps.Keys(back)),
			slices.Sorted(maps.Keys(t)))
	}
	return nil
}

// caseVirtualHost reaches the node by a name, so that the bucket goes into the host name.
func caseVirtualHost(ctx context.Context, r *run) error {
	p, err := newProxy(r.node.host)
	if err != nil {
		return err
	}
	defer p.close()
	_, port, _ := strings.Cut(r.node.host, ":")
	named := *r
	named.node = &node{
		scheme: r.node.scheme, host: virtualDomain + ":" + port, accessKey: r.node.accessKey,
		secretKey: r.node.secretKey, ca: r.node.ca, proxy: strings.TrimPrefix(p.url(), "http://"),
	}
	named.cmd.dir = filepath.Join(r.dir, "virtual")
	if err := os.MkdirAll(named.cmd.dir, 0o755); err != nil {
		return fmt.Errorf("scratch: %w", err)
	}
	named.cmd.env = append(named.node.environment(named.cmd.dir), "E2E_VIRTUAL=1")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		named.cmd.env = append(named.cmd.env, name+"="+p.url())
	}
	if named.client, err = r.start(r.tools, named.cmd, named.node); err != nil {
		return err
	}
	defer named.client.close()
	if err := named.store(ctx, "virtual/a +é.bin", "virtual", 100_000); err != nil {
		return err
	}
	want := map[string]int64{"virtual/a +é.bin": 100_000}
	if err := named.listed(ctx, order{Prefix: "virtual/"}, want, nil); err != nil {
		return err
	}
	if r.name == "aws-js" { // resolves the names itself instead of asking a proxy: its URLs tell
		a, err := named.must(ctx, order{Op: "presignget", Key: "virtual"})
		if err == nil && !strings.HasPrefix(a.URL, r.node.scheme+"://"+r.bucket+"."+named.node.host+"/") {
			err = fmt.Errorf("the bucket is not in the host: %s", a.URL)
		}
		return err
	}
	if hosts := p.hosts(); !slices.Contains(hosts, r.bucket+"."+named.node.host) {
		return fmt.Errorf("the bucket is not in the host: %q", hosts)
	}
	return nil
}

// caseRestart has the node killed in the middle of an upload and started again: the client's own
// retries must bring the upload to its end.
func caseRestart(ctx context.Context, r *run) error {
	own, err := newNode(r.node.binary, filepath.Join(r.dir, "restart-data"), r.node.scheme, r.node.ca)
	if err != nil {
		return err
	}
	if err := own.start(ctx); err != nil {
		return err
	}
	breaker, err := newBreaker(ctx, own)
	if err != nil {
		return errors.Join(err, own.stop())
	}
	front := *own // what the client sees
	front.host = breaker.listener.Addr().String()
	fragile := *r
	fragile.node, fragile.raw, fragile.cmd.env = own, raw{own}, front.environment(r.dir)
	err = fragile.interrupted(ctx, &front)
	return errors.Join(err, breaker.close(), own.stop(), os.RemoveAll(own.dir))
}

func (r *run) interrupted(ctx context.Context, front *node) error {
	var err error
	if r.client, err = r.start(r.tools, r.cmd, front); err != nil {
		return err
	}
	defer r.client.close()
	if err := r.raw.makeBucket(ctx, r.bucket); err != nil {
		return err
	}
	_, err = r.transfer(ctx, "restarted.bin", "", 8*r.part, r.part)
	return err
}

// crossKeys are what a client leaves for the others: one object in one request, one in parts.
func crossKeys(name string) (small, large string) {
	return "cross/" + name + " +é.bin", "cross/" + name + "-large.bin"
}

const (
	crossSmallBytes = 200_001
	crossLargeBytes = 9*mib + 3
)

// leave puts what the others will read.
func (r *run) leave(ctx context.Context) error {
	small, large := crossKeys(r.name)
	path, _, err := r.file("cross", crossSmallBytes)
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, order{Op: "put", Bucket: crossBucket, Key: small, File: path}); err != nil {
		return err
	}
	if path, _, err = r.file("cross", crossLargeBytes); err != nil {
		return err
	}
	_, err = r.must(ctx, order{Op: "upload", Bucket: crossBucket, Key: large, File: path})
	return err
}

// readOthers reads the small object of every other client and the large one of the next.
func (r *run) readOthers(ctx context.Context, names []string) error {
	self := slices.Index(names, r.name)
	for _, other := range names {
		if other == r.name {
			continue
		}
		small, _ := crossKeys(other)
		want := content(other+"cross", crossSmallBytes)
		if _, err := r.fetch(ctx, order{Op: "get", Bucket: crossBucket, Key: small}, want); err != nil {
			return err
		}
	}
	next := names[(self+1)%len(names)]
	_, large := crossKeys(next)
	_, err := r.fetch(ctx, order{Op: "download", Bucket: crossBucket, Key: large}, content(next+"cross", crossLargeBytes))
	return err
}
