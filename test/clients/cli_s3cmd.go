package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// s3cmdCLI is s3cmd with a settings file that only says where the node is and who calls.
type s3cmdCLI struct {
	command
	binary, settings string
}

func newS3cmd(c command, binary string, n *node) (*s3cmdCLI, error) {
	s := &s3cmdCLI{command: c, binary: binary, settings: filepath.Join(c.dir, "s3cfg")}
	bucket := n.host // path style
	if strings.HasPrefix(n.host, virtualDomain) {
		bucket = "%(bucket)s." + n.host
	}
	text := fmt.Sprintf("[default]\naccess_key = %s\nsecret_key = %s\nhost_base = %s\nhost_bucket = %s\nuse_https = %t\n",
		n.accessKey, n.secretKey, n.host, bucket, n.scheme == "https")
	if n.scheme == "https" {
		text += "ca_certs_file = " + n.ca.caFile + "\n"
	}
	if host, port, ok := strings.Cut(n.proxy, ":"); ok {
		text += "proxy_host = " + host + "\nproxy_port = " + port + "\n"
	}
	if err := os.WriteFile(s.settings, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("s3cmd: write settings: %w", err)
	}
	text += "multipart_copy_chunk_size_mb = 5\n"
	if err := os.WriteFile(s.settings+"-parts", []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("s3cmd: write settings: %w", err)
	}
	return s, nil
}

func (c *s3cmdCLI) close() error { return nil }

func (c *s3cmdCLI) tool(ctx context.Context, args ...string) (outcome, error) {
	return c.run(ctx, c.binary, append([]string{"-c", c.settings, "--no-progress"}, args...)...)
}

func (c *s3cmdCLI) simple(ctx context.Context, args ...string) (answer, error) {
	return said(c.tool(ctx, args...))
}

func (c *s3cmdCLI) do(ctx context.Context, o order) (answer, error) {
	if o.conditional() {
		return cannot("has no conditions")
	}
	switch o.Op {
	case "mkbucket":
		return c.simple(ctx, "mb", "s3://"+o.Bucket)
	case "rmbucket":
		return c.simple(ctx, "rb", "s3://"+o.Bucket)
	case "put":
		return c.put(ctx, o)
	case "get":
		if o.Range != "" {
			return cannot("has no ranges")
		}
		a, err := c.simple(ctx, "get", "--force", s3URL(o.Bucket, o.Key), o.File)
		if err != nil || a.Error != "" {
			return a, err
		}
		return c.head(ctx, o)
	case "head":
		return c.head(ctx, o)
	case "upload":
		return c.simple(ctx, "put", o.File, s3URL(o.Bucket, o.Key))
	case "download":
		return c.simple(ctx, "get", "--force", s3URL(o.Bucket, o.Key), o.File)
	case "copy":
		return c.copy(ctx, o)
	case "list":
		return c.list(ctx, o)
	case "delete":
		return c.simple(ctx, "del", s3URL(o.Bucket, o.Key))
	case "deletemany":
		args := []string{"del"}
		for _, k := range o.Keys {
			args = append(args, s3URL(o.Bucket, k))
		}
		return c.simple(ctx, args...)
	case "presignget":
		return c.simple(ctx, "signurl", s3URL(o.Bucket, o.Key), "+3600")
	case "sync":
		return c.simple(ctx, "sync", "--delete-removed", o.File+"/", s3URL(o.Bucket, o.Prefix))
	case "syncdown":
		return c.simple(ctx, "sync", "--delete-removed", s3URL(o.Bucket, o.Prefix), o.File+"/")
	case "mplist", "mpabort":
		return c.uploads(ctx, o)
	}
	return cannot("no operation " + o.Op)
}

func (c *s3cmdCLI) put(ctx context.Context, o order) (answer, error) {
	if o.Algo != "" {
		return cannot("sends no checksum but the SHA-256 of the signature")
	}
	args := []string{"put"}
	for k, v := range o.Meta {
		args = append(args, "--add-header=x-amz-meta-"+k+":"+v)
	}
	if o.Type != "" {
		args = append(args, "--mime-type="+o.Type)
	}
	if o.Encoding != "" {
		args = append(args, "--add-header=Content-Encoding:"+o.Encoding)
	}
	if o.Cache != "" {
		args = append(args, "--add-header=Cache-Control:"+o.Cache)
	}
	return c.simple(ctx, append(args, o.File, s3URL(o.Bucket, o.Key))...)
}

func (c *s3cmdCLI) head(ctx context.Context, o order) (answer, error) {
	out, err := c.tool(ctx, "info", s3URL(o.Bucket, o.Key))
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	a := answer{Meta: map[string]string{}}
	for line := range strings.Lines(out.stdout) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch {
		case !ok:
		case name == "File size":
			if a.Size, err = strconv.ParseInt(value, 10, 64); err != nil {
				return answer{}, fmt.Errorf("s3cmd: read size: %w", err)
			}
		case name == "MIME type":
			a.Type = value
		case name == "MD5 sum":
			a.ETag = value
		case strings.HasPrefix(name, "x-amz-meta-"):
			a.Meta[strings.TrimPrefix(name, "x-amz-meta-")] = value
		}
	}
	return a, nil
}

func (c *s3cmdCLI) copy(ctx context.Context, o order) (answer, error) {
	if o.Part != 0 {
		lower := *c
		lower.settings += "-parts"
		return lower.simple(ctx, "cp", s3URL(o.FromBucket, o.FromKey), s3URL(o.Bucket, o.Key))
	}
	args := []string{"cp"}
	for k, v := range o.Meta {
		args = append(args, "--add-header=x-amz-meta-"+k+":"+v)
	}
	if o.Meta != nil {
		args = append(args, "--mime-type="+o.Type)
	}
	return c.simple(ctx, append(args, s3URL(o.FromBucket, o.FromKey), s3URL(o.Bucket, o.Key))...)
}

var (
	s3cmdLine = regexp.MustCompile(`(?m)^\d\S+ \d\S+ +(\d+)  s3://([^/\n]+)/(.*)$`)
	s3cmdDir  = regexp.MustCompile(`(?m)^ +DIR  s3://[^/\n]+/(.*)$`)
)

func (c *s3cmdCLI) list(ctx context.Context, o order) (answer, error) {
	args := []string{"ls", s3URL(o.Bucket, o.Prefix)}
	switch o.Delimiter {
	case "/":
	case "":
		args = append(args, "--recursive")
	default:
		return cannot("the only delimiter of a listing is /")
	}
	out, err := c.tool(ctx, args...)
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	var a answer
	for _, m := range s3cmdLine.FindAllStringSubmatch(out.stdout, -1) {
		size, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			return answer{}, fmt.Errorf("s3cmd: read size: %w", err)
		}
		a.Items = append(a.Items, item{Key: m[3], Size: size})
	}
	for _, m := range s3cmdDir.FindAllStringSubmatch(out.stdout, -1) {
		a.Prefixes = append(a.Prefixes, m[1])
	}
	return a, nil
}

func (c *s3cmdCLI) uploads(ctx context.Context, o order) (answer, error) {
	if o.Op == "mpabort" {
		return c.simple(ctx, "abortmp", s3URL(o.Bucket, o.Key), o.ID)
	}
	out, err := c.tool(ctx, "multipart", "s3://"+o.Bucket)
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	var a answer
	for line := range strings.Lines(out.stdout) {
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(fields) == 3 && strings.HasPrefix(fields[1], "s3://") {
			_, key, _ := strings.Cut(strings.TrimPrefix(fields[1], "s3://"), "/")
			a.Uploads = append(a.Uploads, upload{key, fields[2]})
		}
	}
	return a, nil
}
