package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// rcloneCLI is rclone with its s3 backend, set up by environment: provider Other, the rest default.
type rcloneCLI struct {
	command
	binary string
	flags  []string
}

func newRclone(c command, binary string, n *node) *rcloneCLI {
	c.env = append(append([]string{}, c.env...), "RCLONE_CONFIG="+filepath.Join(c.dir, "rclone.conf"),
		"RCLONE_CONFIG_T_TYPE=s3", "RCLONE_CONFIG_T_PROVIDER=Other", "RCLONE_CONFIG_T_ENV_AUTH=true",
		"RCLONE_CONFIG_T_ENDPOINT="+n.endpoint(), "RCLONE_CONFIG_T_REGION=us-east-1", "RCLONE_RETRIES_SLEEP=100ms")
	if strings.HasPrefix(n.host, virtualDomain) {
		c.env = append(c.env, "RCLONE_CONFIG_T_FORCE_PATH_STYLE=false") // this provider's default is true
	}
	r := &rcloneCLI{command: c, binary: binary}
	if n.scheme == "https" {
		r.flags = []string{"--ca-cert", n.ca.caFile}
	}
	return r
}

func (c *rcloneCLI) close() error { return nil }

func (c *rcloneCLI) tool(ctx context.Context, args ...string) (outcome, error) {
	return c.run(ctx, c.binary, append(append([]string{}, c.flags...), args...)...)
}

func (c *rcloneCLI) simple(ctx context.Context, args ...string) (answer, error) {
	return said(c.tool(ctx, args...))
}

func remote(bucket, key string) string { return "t:" + bucket + "/" + key }

// smallParts makes transfers by parts happen at sizes that a test can afford.
func smallParts() []string {
	return []string{"--s3-upload-cutoff", "6Mi", "--s3-copy-cutoff", "5Mi", "--s3-chunk-size", "5Mi"}
}

func (c *rcloneCLI) do(ctx context.Context, o order) (answer, error) {
	if o.conditional() {
		return cannot("has no conditions")
	}
	switch o.Op {
	case "mkbucket":
		return c.simple(ctx, "mkdir", "t:"+o.Bucket)
	case "rmbucket":
		return c.simple(ctx, "rmdir", "t:"+o.Bucket)
	case "put":
		return c.put(ctx, o)
	case "get":
		return c.get(ctx, o)
	case "upload":
		return c.simple(ctx, append(smallParts(), "copyto", o.File, remote(o.Bucket, o.Key))...)
	case "download":
		return c.simple(ctx, "copyto", remote(o.Bucket, o.Key), o.File)
	case "copy":
		return c.copy(ctx, o)
	case "head", "list":
		return c.list(ctx, o)
	case "delete":
		return c.simple(ctx, "deletefile", remote(o.Bucket, o.Key))
	case "deletemany":
		return c.deleteMany(ctx, o)
	case "presignget":
		return c.simple(ctx, "link", "--expire", "1h", remote(o.Bucket, o.Key))
	case "sync":
		a, err := c.simple(ctx, "sync", o.File, remote(o.Bucket, o.Prefix))
		if err != nil || a.Error != "" {
			return a, err
		}
		return c.simple(ctx, "check", o.File, remote(o.Bucket, o.Prefix))
	case "syncdown":
		return c.simple(ctx, "sync", remote(o.Bucket, o.Prefix), o.File)
	case "mplist", "mpabort":
		return c.uploads(ctx, o)
	}
	return cannot("no operation " + o.Op)
}

func (c *rcloneCLI) put(ctx context.Context, o order) (answer, error) {
	if o.Algo != "" {
		return cannot("chooses its checksum itself")
	}
	var args []string
	for k, v := range o.Meta {
		args = append(args, "--metadata", "--metadata-set", k+"="+v)
	}
	for _, h := range [][2]string{{"content-type", o.Type}, {"content-encoding", o.Encoding}, {"cache-control", o.Cache}} {
		if h[1] != "" {
			args = append(args, "--metadata", "--metadata-set", h[0]+"="+h[1])
		}
	}
	return c.simple(ctx, append(args, "copyto", o.File, remote(o.Bucket, o.Key))...)
}

// get writes a range by cat, a whole object by copyto.
func (c *rcloneCLI) get(ctx context.Context, o order) (answer, error) {
	if o.Range == "" {
		a, err := c.simple(ctx, "copyto", remote(o.Bucket, o.Key), o.File)
		if err != nil || a.Error != "" {
			return a, err
		}
		return c.list(ctx, order{Op: "head", Bucket: o.Bucket, Key: o.Key})
	}
	from, to, _ := strings.Cut(strings.TrimPrefix(o.Range, "bytes="), "-")
	args := []string{"cat", remote(o.Bucket, o.Key)}
	switch {
	case from == "":
		args = append(args, "--tail", to)
	case to == "":
		args = append(args, "--offset", from)
	default:
		first, err := strconv.ParseInt(from, 10, 64)
		if err != nil {
			return answer{}, fmt.Errorf("rclone: range: %w", err)
		}
		last, err := strconv.ParseInt(to, 10, 64)
		if err != nil {
			return answer{}, fmt.Errorf("rclone: range: %w", err)
		}
		args = append(args, "--offset", from, "--count", strconv.FormatInt(last-first+1, 10))
	}
	out, err := c.tool(ctx, args...)
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	if err := os.WriteFile(o.File, []byte(out.stdout), 0o600); err != nil {
		return answer{}, fmt.Errorf("rclone: %w", err)
	}
	return answer{Size: int64(len(out.stdout))}, nil
}

func (c *rcloneCLI) copy(ctx context.Context, o order) (answer, error) {
	if o.Meta != nil {
		return cannot("a copy keeps its metadata")
	}
	var args []string
	if o.Part != 0 {
		args = smallParts()
	}
	return c.simple(ctx, append(args, "copyto", remote(o.FromBucket, o.FromKey), remote(o.Bucket, o.Key))...)
}

func (c *rcloneCLI) list(ctx context.Context, o order) (answer, error) {
	args := []string{"lsjson", "--metadata", "--stat", remote(o.Bucket, o.Key)}
	if o.Op == "list" {
		args = []string{"lsjson", "-R", "--files-only", "--no-modtime", "--no-mimetype", remote(o.Bucket, o.Prefix)}
		if o.Delimiter != "" {
			args = append([]string{"lsjson"}, args[3:]...)
		}
		if o.Delimiter != "" && o.Delimiter != "/" {
			return cannot("the only delimiter of a listing is /")
		}
	}
	out, err := c.tool(ctx, args...)
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	type entry struct {
		Path, MimeType string
		Size           int64
		IsDir          bool
		Metadata       map[string]string
	}
	if o.Op == "head" {
		var e entry
		if err := json.Unmarshal([]byte(out.stdout), &e); err != nil {
			return answer{}, fmt.Errorf("rclone: read answer: %w", err)
		}
		if e.IsDir { // what it takes a key for that does not exist
			return answer{Error: "a directory", Status: 404}, nil
		}
		return answer{
			Size: e.Size, Type: e.MimeType, Meta: e.Metadata, Encoding: e.Metadata["content-encoding"],
			Cache: e.Metadata["cache-control"],
		}, nil
	}
	var all []entry
	if err := json.Unmarshal([]byte(out.stdout), &all); err != nil {
		return answer{}, fmt.Errorf("rclone: read answer: %w: %s", err, clip(out.stdout))
	}
	var a answer
	for _, e := range all {
		if e.IsDir {
			a.Prefixes = append(a.Prefixes, o.Prefix+e.Path+"/")
			continue
		}
		a.Items = append(a.Items, item{Key: o.Prefix + e.Path, Size: e.Size})
	}
	return a, nil
}

func (c *rcloneCLI) deleteMany(ctx context.Context, o order) (answer, error) {
	file := filepath.Join(c.dir, "delete")
	if err := os.WriteFile(file, []byte(strings.Join(o.Keys, "\n")+"\n"), 0o600); err != nil {
		return answer{}, fmt.Errorf("rclone: %w", err)
	}
	return c.simple(ctx, "delete", "--files-from-raw", file, "t:"+o.Bucket)
}

func (c *rcloneCLI) uploads(ctx context.Context, o order) (answer, error) {
	if o.Op == "mpabort" { // all unfinished uploads of the bucket
		return c.simple(ctx, "backend", "cleanup", "t:"+o.Bucket, "-o", "max-age=1ms")
	}
	out, err := c.tool(ctx, "backend", "list-multipart-uploads", "t:"+o.Bucket)
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	var doc map[string][]struct{ Key, UploadId string }
	if err := json.Unmarshal([]byte(out.stdout), &doc); err != nil {
		return answer{}, fmt.Errorf("rclone: read answer: %w: %s", err, clip(out.stdout))
	}
	var a answer
	for _, u := range doc[o.Bucket] {
		a.Uploads = append(a.Uploads, upload{u.Key, u.UploadId})
	}
	return a, nil
}
