package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// testCase is one row of the table.
type testCase struct {
	name string
	run  func(context.Context, *run) error
	only []string // clients; empty: all
}

// cases in the order in which a client meets them. Each uses keys of its own.
func cases() []testCase {
	all := []testCase{
		{name: "bucket", run: caseBucket},
		{name: "put-get", run: func(ctx context.Context, r *run) error {
			return r.store(ctx, "small.bin", "small", 100_003)
		}},
		{name: "empty", run: func(ctx context.Context, r *run) error { return r.store(ctx, "empty.bin", "empty", 0) }},
		{name: "head", run: caseHead},
		{name: "range", run: caseRange},
		{name: "range-outside", run: caseRangeOutside},
		{name: "threshold", run: caseThreshold},
		{name: "multipart", run: func(ctx context.Context, r *run) error { return r.parts(ctx, "", r.part) }},
		{name: "multipart-manager", only: []string{"aws-go"}, run: func(ctx context.Context, r *run) error {
			return r.parts(ctx, "manager", 5*mib)
		}},
		{name: "restart", only: []string{"boto3", "aws-go"}, run: caseRestart},
		{name: "abort", run: caseAbort},
		{name: "copy", run: caseCopy},
		{name: "copy-keep-metadata", run: caseCopyKeep},
		{name: "copy-replace", run: caseCopyReplace},
		{name: "copy-multipart", run: caseCopyParts},
		{name: "delete", run: caseDelete},
		{name: "delete-many", run: caseDeleteMany},
		{name: "missing", run: caseMissing},
		{name: "put-if-absent", run: casePutIfAbsent},
		{name: "put-if-match", run: casePutIfMatch},
		{name: "get-if", run: caseGetIf},
		{name: "presign-get", run: func(ctx context.Context, r *run) error { return r.presignGet(ctx, "") }},
		{name: "presign-put", run: func(ctx context.Context, r *run) error { return r.presignPut(ctx, "") }},
		{name: "presign-get-v4", only: []string{"aws-cli", "boto3", "boto3-crt"},
			run: func(ctx context.Context, r *run) error { return r.presignGet(ctx, "v4") }},
		{name: "presign-put-v4", only: []string{"boto3", "boto3-crt"},
			run: func(ctx context.Context, r *run) error { return r.presignPut(ctx, "v4") }},
		{name: "metadata", run: caseMetadata},
		{name: "metadata-spaces", run: caseMetadataSpaces},
		{name: "metadata-utf8", run: caseMetadataUTF8},
		{name: "headers", run: caseHeaders},
		{name: "list-1101", run: caseListMany},
		{name: "list-delimiter", run: caseListDelimiter},
		{name: "list-odd", run: caseListOdd},
		{name: "sync", run: caseSync},
		{name: "virtual-host", run: caseVirtualHost},
		{name: "sum-wrong", run: caseWrongSum},
	}
	for _, algo := range algorithms {
		all = append(all, testCase{name: "sum-" + strings.ToLower(algo), run: func(ctx context.Context, r *run) error {
			return r.sum(ctx, algo)
		}})
	}
	for _, k := range oddKeys() {
		all = append(all, testCase{name: "key-" + k.name, run: func(ctx context.Context, r *run) error {
			return r.odd(ctx, k.name, k.key)
		}})
	}
	return all
}

type oddKey struct{ name, key string }

// oddKeys are all valid: UTF-8 of 1 to 1,024 bytes.
func oddKeys() []oddKey {
	return []oddKey{
		{"space", "a b/ c  d.txt"},
		{"plus", "a+b/c++.txt"},
		{"percent", "100%/%41%2F%zz"},
		{"marks", `it's (1) [x] {y} ~!,;:@&=$#?^|"<>.txt`},
		{"star", "a*b/**.txt"},
		{"backslash", `a\b\c.txt`},
		{"nfc", "caf\u00e9.txt"},
		{"nfd", "cafe\u0301.txt"},
		{"emoji", "🚰/💧.bin"},
		{"slashes", "a//b///c"},
		{"lead", "/lead/a"},
		{"trail", "folder/"},
		{"dots", "a/./b/../c"},
		{"tab", "tab\there"},
		{"control", "a\x01b\x7f"},
		{"1024", strings.Repeat("k23456789/", 102) + "last"},
	}
}

// odd puts, reads and lists one odd key in a bucket of its own.
func (r *run) odd(ctx context.Context, name, key string) error {
	bucket := r.bucket + "-key-" + name
	if err := r.raw.makeBucket(ctx, bucket); err != nil {
		return err
	}
	path, data, err := r.file("odd", 777)
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, order{Op: "put", Bucket: bucket, Key: key, File: path}); err != nil {
		return err
	}
	if _, err := r.raw.verify(ctx, bucket, key, data, 0); err != nil {
		return err
	}
	if _, err := r.fetch(ctx, order{Op: "get", Bucket: bucket, Key: key}, data); err != nil {
		return err
	}
	return r.listed(ctx, order{Bucket: bucket}, map[string]int64{key: 777}, nil)
}

func caseBucket(ctx context.Context, r *run) error {
	name := r.bucket + "-made"
	if _, err := r.must(ctx, order{Op: "mkbucket", Bucket: name}); err != nil {
		return err
	}
	if err := r.raw.put(ctx, name, "x", []byte("x")); err != nil {
		return err
	}
	if err := r.refused(ctx, order{Op: "rmbucket", Bucket: name}, 409, "BucketNotEmpty", "NotEmpty"); err != nil {
		return err
	}
	if _, err := r.raw.want(ctx, call{method: "DELETE", bucket: name, key: "x"}, 204); err != nil {
		return err
	}
	if _, err := r.must(ctx, order{Op: "rmbucket", Bucket: name}); err != nil {
		return err
	}
	_, err := r.raw.want(ctx, call{method: "HEAD", bucket: name}, 404)
	return err
}

func caseHead(ctx context.Context, r *run) error {
	for _, size := range []int64{0, 12_345} {
		data := content("head", size)
		if err := r.raw.put(ctx, r.bucket, "head.bin", data); err != nil {
			return err
		}
		a, err := r.must(ctx, order{Op: "head", Key: "head.bin"})
		if err != nil {
			return err
		}
		if tag := strings.Trim(a.ETag, `"`); a.Size != size || (tag != "" && tag != md5Hex(data)) {
			return fmt.Errorf("head: size %d, ETag %s; want %d, %s", a.Size, a.ETag, size, md5Hex(data))
		}
	}
	return nil
}

func caseRange(ctx context.Context, r *run) error {
	data := content("range", 300_000)
	if err := r.raw.put(ctx, r.bucket, "range.bin", data); err != nil {
		return err
	}
	size := len(data)
	for _, c := range []struct {
		text     string
		from, to int
	}{
		{"bytes=0-9", 0, 10}, {"bytes=65530-65545", 65530, 65546}, {"bytes=-7", size - 7, size},
		{"bytes=299990-", size - 10, size}, {"bytes=5-5", 5, 6}, {"bytes=299990-999999", size - 10, size},
	} {
		if _, err := r.fetch(ctx, order{Op: "get", Key: "range.bin", Range: c.text}, data[c.from:c.to]); err != nil {
			return err
		}
	}
	return nil
}

func caseRangeOutside(ctx context.Context, r *run) error {
	if err := r.raw.put(ctx, r.bucket, "short.bin", []byte("short")); err != nil {
		return err
	}
	return r.refused(ctx, order{
		Op: "get", Key: "short.bin", Range: "bytes=100-200", File: filepath.Join(r.dir, "out"),
	}, 416, "InvalidRange")
}

// transfer uploads and downloads by the client's own manager.
func (r *run) transfer(ctx context.Context, key, way string, size, part int64) (etag string, err error) {
	path, data, err := r.file("transfer", size)
	if err != nil {
		return "", err
	}
	defer os.Remove(path) // large
	if _, err := r.must(ctx, order{Op: "upload", Key: key, File: path, Way: way}); err != nil {
		return "", err
	}
	got, err := r.raw.verify(ctx, r.bucket, key, data, part)
	if err != nil {
		return "", err
	}
	if _, err := r.fetch(ctx, order{Op: "download", Key: key, Way: way}, data); err != nil {
		return "", err
	}
	return got.header.Get("ETag"), nil
}

// caseThreshold is about where one request becomes many: one byte below, at it, one above.
func caseThreshold(ctx context.Context, r *run) error {
	for _, d := range []int64{-1, 0, 1} {
		etag, err := r.transfer(ctx, "threshold.bin", "", r.threshold+d, r.part)
		if err != nil {
			return fmt.Errorf("threshold %+d: %w", d, err)
		}
		byParts := d > 0 || (d == 0 && r.inclusive)
		if strings.Contains(etag, "-") != byParts {
			return fmt.Errorf("threshold %+d: ETag %s, by parts expected: %t", d, etag, byParts)
		}
	}
	return nil
}

// parts moves two parts and a bit (more where the client's threshold is above that).
func (r *run) parts(ctx context.Context, way string, part int64) error {
	size := 2*part + 12_345
	etag, err := r.transfer(ctx, "parts.bin", way, size, part)
	if err == nil && !strings.HasSuffix(etag, `-3"`) {
		err = fmt.Errorf("upload of %d bytes: ETag %s, want 3 parts", size, etag)
	}
	return err
}

func caseAbort(ctx context.Context, r *run) error {
	bucket, key := r.bucket+"-abort", "un finished+.bin"
	if err := r.raw.makeBucket(ctx, bucket); err != nil {
		return err
	}
	path, _, err := r.file("abort", 70_000)
	if err != nil {
		return err
	}
	var no *cannotError
	a, err := r.must(ctx, order{Op: "mpstart", Bucket: bucket, Key: key, File: path})
	if errors.As(err, &no) { // then it lists and aborts that of somebody else
		a.ID, err = r.raw.startUpload(ctx, bucket, key)
	}
	if err != nil {
		return err
	}
	listed, err := r.must(ctx, order{Op: "mplist", Bucket: bucket})
	if err != nil {
		return err
	}
	if !slices.Equal(listed.Uploads, []upload{{key, a.ID}}) {
		return fmt.Errorf("mplist: %v, want %s %s", listed.Uploads, key, a.ID)
	}
	if _, err := r.must(ctx, order{Op: "mpabort", Bucket: bucket, Key: key, ID: a.ID}); err != nil {
		return err
	}
	left, err := r.raw.uploads(ctx, bucket)
	if err == nil && len(left) != 0 {
		err = fmt.Errorf("mpabort: left %v", left)
	}
	return err
}

func (r *run) source(ctx context.Context, key string, size int64) ([]byte, error) {
	data := content("copy", size)
	_, err := r.raw.want(ctx, call{method: "PUT", bucket: r.bucket, key: key, body: data, header: map[string]string{
		"Content-Type": "text/x-source", "X-Amz-Meta-Color": "blue",
	}}, 200)
	return data, err
}

func caseCopy(ctx context.Context, r *run) error {
	const from, to = "copy/from +%é&.txt", "copy/to =@é.txt"
	data, err := r.source(ctx, from, 123_456)
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, order{Op: "copy", FromBucket: r.bucket, FromKey: from, Key: to}); err != nil {
		return err
	}
	_, err = r.raw.verify(ctx, r.bucket, to, data, 0)
	return err
}

func caseCopyKeep(ctx context.Context, r *run) error {
	if _, err := r.source(ctx, "copy/keep", 1000); err != nil {
		return err
	}
	o := order{Op: "copy", FromBucket: r.bucket, FromKey: "copy/keep", Key: "copy/kept"}
	if _, err := r.must(ctx, o); err != nil {
		return err
	}
	got, err := r.raw.want(ctx, call{method: "HEAD", bucket: r.bucket, key: o.Key}, 200)
	if err != nil {
		return err
	}
	return has(got.header, "Content-Type", "text/x-source", "X-Amz-Meta-Color", "blue")
}

// has compares headers: name, value, name, value…
func has(h http.Header, pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if got := h.Get(pairs[i]); got != pairs[i+1] {
			return fmt.Errorf("header %s is %q, want %q", pairs[i], got, pairs[i+1])
		}
	}
	return nil
}

func caseCopyReplace(ctx context.Context, r *run) error {
	data, err := r.source(ctx, "copy/plain", 1000)
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, order{
		Op: "copy", FromBucket: r.bucket, FromKey: "copy/plain", Key: "copy/replaced",
		Meta: map[string]string{"shape": "round"}, Type: "text/x-new",
	}); err != nil {
		return err
	}
	got, err := r.raw.verify(ctx, r.bucket, "copy/replaced", data, 0)
	if err != nil {
		return err
	}
	return has(got.header, "Content-Type", "text/x-new", "X-Amz-Meta-Shape", "round", "X-Amz-Meta-Color", "")
}

func caseCopyParts(ctx context.Context, r *run) error {
	const part = 5 * mib
	data, err := r.source(ctx, "copy/big +é", 2*part+4321)
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, order{
		Op: "copy", FromBucket: r.bucket, FromKey: "copy/big +é", Key: "copy/big-parts", Part: part,
	}); err != nil {
		return err
	}
	got, err := r.raw.verify(ctx, r.bucket, "copy/big-parts", data, part)
	if err == nil && !strings.HasSuffix(got.header.Get("ETag"), `-3"`) {
		err = fmt.Errorf("copy: ETag %s, want 3 parts", got.header.Get("ETag"))
	}
	return err
}

func caseDelete(ctx context.Context, r *run) error {
	if err := r.raw.put(ctx, r.bucket, "gone", []byte("x")); err != nil {
		return err
	}
	if _, err := r.must(ctx, order{Op: "delete", Key: "gone"}); err != nil {
		return err
	}
	_, err := r.raw.want(ctx, call{method: "HEAD", bucket: r.bucket, key: "gone"}, 404)
	return err
}

func caseDeleteMany(ctx context.Context, r *run) error {
	keys := []string{"many/x 1", "many/x+2", "many/é", "many/a&b<c>d"}
	for _, k := range keys {
		if err := r.raw.put(ctx, r.bucket, k, []byte(k)); err != nil {
			return err
		}
	}
	if _, err := r.must(ctx, order{Op: "deletemany", Keys: keys}); err != nil {
		return err
	}
	left, err := r.raw.keys(ctx, r.bucket, "many/")
	if err == nil && len(left) != 0 {
		err = fmt.Errorf("deletemany: left %v", left)
	}
	return err
}

func caseMissing(ctx context.Context, r *run) error {
	out := filepath.Join(r.dir, "out")
	if err := r.refused(ctx, order{Op: "get", Key: "no-such-key", File: out}, 404, "NoSuchKey"); err != nil {
		return err
	}
	if err := r.refused(ctx, order{Op: "head", Key: "no-such-key"}, 404, "NotFound"); err != nil {
		return err
	}
	return r.refused(ctx, order{Op: "list", Bucket: "no-such-bucket-here"}, 404, "NoSuchBucket")
}

func casePutIfAbsent(ctx context.Context, r *run) error {
	path, data, err := r.file("absent", 1000)
	if err != nil {
		return err
	}
	o := order{Op: "put", Key: "absent.bin", File: path, IfNoneMatch: "*"}
	if _, err := r.must(ctx, o); err != nil {
		return err
	}
	if o.File, _, err = r.file("absent-other", 1000); err != nil {
		return err
	}
	if err := r.refused(ctx, o, 412, "PreconditionFailed"); err != nil {
		return err
	}
	_, err = r.raw.verify(ctx, r.bucket, o.Key, data, 0)
	return err
}

func casePutIfMatch(ctx context.Context, r *run) error {
	old := content("old", 500)
	if err := r.raw.put(ctx, r.bucket, "match.bin", old); err != nil {
		return err
	}
	path, data, err := r.file("match", 1000)
	if err != nil {
		return err
	}
	o := order{Op: "put", Key: "match.bin", File: path, IfMatch: `"` + md5Hex(data) + `"`}
	if err := r.refused(ctx, o, 412, "PreconditionFailed"); err != nil {
		return err
	}
	if _, err := r.raw.verify(ctx, r.bucket, o.Key, old, 0); err != nil {
		return err
	}
	o.IfMatch = `"` + md5Hex(old) + `"`
	if _, err := r.must(ctx, o); err != nil {
		return err
	}
	_, err = r.raw.verify(ctx, r.bucket, o.Key, data, 0)
	return err
}

func caseGetIf(ctx context.Context, r *run) error {
	data := content("if", 2000)
	if err := r.raw.put(ctx, r.bucket, "if.bin", data); err != nil {
		return err
	}
	same, other := `"`+md5Hex(data)+`"`, `"`+md5Hex(nil)+`"`
	past, future := time.Now().Add(-time.Hour).Unix(), time.Now().Add(-time.Second).Unix()+60
	base := order{Op: "get", Key: "if.bin", File: filepath.Join(r.dir, "out")}
	for _, c := range []struct {
		set    func(*order)
		status int
	}{
		{func(o *order) { o.IfMatch = same }, 200},
		{func(o *order) { o.IfMatch = other }, 412},
		{func(o *order) { o.IfNoneMatch = other }, 200},
		{func(o *order) { o.IfNoneMatch = same }, 304},
		{func(o *order) { o.IfModified = past }, 200},
		{func(o *order) { o.IfUnmodified = future }, 200},
		{func(o *order) { o.IfUnmodified = past }, 412},
	} {
		o := base
		c.set(&o)
		if c.status == 200 {
			if _, err := r.fetch(ctx, o, data); err != nil {
				return err
			}
			continue
		}
		if err := r.refused(ctx, o, c.status, "PreconditionFailed"); err != nil {
			return err
		}
	}
	return nil
}

// plain is a request by a client that knows nothing but a URL.
func (r *run) plain(ctx context.Context, method, url string, body []byte) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return reply{}, fmt.Errorf("presigned: %w", err)
	}
	resp, err := r.node.http.Do(req)
	if err != nil {
		return reply{}, fmt.Errorf("presigned: %w", err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		return reply{}, fmt.Errorf("presigned: read: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return reply{}, fmt.Errorf("presigned %s %s: status %d: %s", method, url, resp.StatusCode, clip(b.String()))
	}
	return reply{resp.StatusCode, resp.Header, b.Bytes()}, nil
}

func (r *run) presignGet(ctx context.Context, way string) error {
	const key = "signed/get +é.bin"
	data := content("presign", 5000)
	if err := r.raw.put(ctx, r.bucket, key, data); err != nil {
		return err
	}
	a, err := r.must(ctx, order{Op: "presignget", Key: key, Way: way})
	if err != nil {
		return err
	}
	got, err := r.plain(ctx, http.MethodGet, a.URL, nil)
	if err == nil && !bytes.Equal(got.body, data) {
		err = fmt.Errorf("presigned: %d bytes that differ from the %d put", len(got.body), len(data))
	}
	return err
}

func (r *run) presignPut(ctx context.Context, way string) error {
	const key = "signed/put +é.bin"
	data := content("presign-put", 5000)
	a, err := r.must(ctx, order{Op: "presignput", Key: key, Way: way})
	if err != nil {
		return err
	}
	if _, err := r.plain(ctx, http.MethodPut, a.URL, data); err != nil {
		return err
	}
	_, err = r.raw.verify(ctx, r.bucket, key, data, 0)
	return err
}

func caseMetadata(ctx context.Context, r *run) error {
	path, data, err := r.file("meta", 1000)
	if err != nil {
		return err
	}
	meta := map[string]string{"color": "blue", "two-words": "one, two three=4"}
	if _, err := r.must(ctx, order{Op: "put", Key: "meta.bin", File: path, Meta: meta}); err != nil {
		return err
	}
	got, err := r.raw.verify(ctx, r.bucket, "meta.bin", data, 0)
	if err != nil {
		return err
	}
	if err := has(got.header, "X-Amz-Meta-Color", "blue", "X-Amz-Meta-Two-Words", meta["two-words"]); err != nil {
		return err
	}
	a, err := r.fetch(ctx, order{Op: "get", Key: "meta.bin"}, data)
	if err != nil {
		return err
	}
	for k, v := range meta {
		if a.Meta[k] != v {
			return fmt.Errorf("get: metadata %v, want %s=%q", a.Meta, k, v)
		}
	}
	return nil
}

// caseMetadataSpaces has a value that signatures see with one blank where it has two.
func caseMetadataSpaces(ctx context.Context, r *run) error {
	path, data, err := r.file("meta", 1000)
	if err != nil {
		return err
	}
	o := order{Op: "put", Key: "meta-spaces.bin", File: path, Meta: map[string]string{"gap": "a  b"}}
	if _, err := r.must(ctx, o); err != nil {
		return err
	}
	got, err := r.raw.verify(ctx, r.bucket, o.Key, data, 0)
	if err != nil {
		return err
	}
	return has(got.header, "X-Amz-Meta-Gap", "a  b")
}

func caseMetadataUTF8(ctx context.Context, r *run) error {
	const value = "grün ☃"
	path, data, err := r.file("meta", 1000)
	if err != nil {
		return err
	}
	meta := map[string]string{"name": value}
	if _, err := r.must(ctx, order{Op: "put", Key: "meta-utf8.bin", File: path, Meta: meta}); err != nil {
		return err
	}
	a, err := r.fetch(ctx, order{Op: "get", Key: "meta-utf8.bin"}, data)
	if err != nil {
		return err
	}
	plain, err := (&mime.WordDecoder{}).DecodeHeader(a.Meta["name"])
	if err == nil && plain != value {
		err = fmt.Errorf("get: metadata %q, want %q", a.Meta["name"], value)
	}
	return err
}

func caseHeaders(ctx context.Context, r *run) error {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(content("zip", 5000)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	path := filepath.Join(r.dir, "in-zip")
	if err := os.WriteFile(path, zipped.Bytes(), 0o600); err != nil {
		return err
	}
	const mimeType, cache = "text/x-odd; charset=utf-8", "max-age=60, private"
	if _, err := r.must(ctx, order{
		Op: "put", Key: "headers.gz", File: path, Type: mimeType, Encoding: "gzip", Cache: cache,
	}); err != nil {
		return err
	}
	got, err := r.raw.want(ctx, call{method: "GET", bucket: r.bucket, key: "headers.gz",
		header: map[string]string{"Accept-Encoding": "identity"}}, 200)
	if err != nil {
		return err
	}
	if !bytes.Equal(got.body, zipped.Bytes()) {
		return errors.New("headers: what was stored is not what was sent")
	}
	if err := has(got.header, "Content-Type", mimeType, "Content-Encoding", "gzip", "Cache-Control", cache); err != nil {
		return err
	}
	a, err := r.must(ctx, order{Op: "head", Key: "headers.gz"})
	if err == nil && a.Type != "" && a.Type != mimeType {
		err = fmt.Errorf("head: type %q, want %q", a.Type, mimeType)
	}
	return err
}
