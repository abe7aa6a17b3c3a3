package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// s5cmdCLI is s5cmd with its defaults; --raw keeps it from taking keys for patterns.
type s5cmdCLI struct {
	command
	binary, endpoint string
}

func (c *s5cmdCLI) close() error { return nil }

func (c *s5cmdCLI) tool(ctx context.Context, args ...string) (outcome, error) {
	return c.run(ctx, c.binary, append([]string{"--json", "--endpoint-url", c.endpoint}, args...)...)
}

func (c *s5cmdCLI) simple(ctx context.Context, args ...string) (answer, error) {
	return said(c.tool(ctx, args...))
}

func (c *s5cmdCLI) do(ctx context.Context, o order) (answer, error) {
	if o.conditional() {
		return cannot("has no conditions")
	}
	switch o.Op {
	case "mkbucket":
		return c.simple(ctx, "mb", "s3://"+o.Bucket)
	case "rmbucket":
		return c.simple(ctx, "rb", "s3://"+o.Bucket)
	case "put", "upload":
		return c.put(ctx, o)
	case "get", "download":
		if o.Range != "" {
			return cannot("has no ranges")
		}
		a, err := c.simple(ctx, "cp", "--raw", s3URL(o.Bucket, o.Key), o.File)
		if err != nil || a.Error != "" || o.Op == "download" {
			return a, err
		}
		return c.head(ctx, o)
	case "head":
		return c.head(ctx, o)
	case "copy":
		return c.copy(ctx, o)
	case "list":
		return c.list(ctx, o)
	case "delete":
		return c.simple(ctx, "rm", "--raw", s3URL(o.Bucket, o.Key))
	case "deletemany":
		args := []string{"rm", "--raw"}
		for _, k := range o.Keys {
			args = append(args, s3URL(o.Bucket, k))
		}
		return c.simple(ctx, args...)
	case "presignget":
		return said(c.run(ctx, c.binary, "--endpoint-url", c.endpoint, "presign", s3URL(o.Bucket, o.Key)))
	case "sync":
		return c.simple(ctx, "sync", "--delete", o.File+"/", s3URL(o.Bucket, o.Prefix))
	case "syncdown":
		return c.simple(ctx, "sync", "--delete", s3URL(o.Bucket, o.Prefix)+"*", o.File+"/")
	}
	return cannot("no operation " + o.Op)
}

func (c *s5cmdCLI) put(ctx context.Context, o order) (answer, error) {
	if o.Algo != "" {
		return cannot("sends no checksum but the SHA-256 of the signature")
	}
	args := []string{"cp", "--raw"}
	for k, v := range o.Meta {
		args = append(args, "--metadata", k+"="+v)
	}
	args = flags(args, "--content-type", o.Type, "--content-encoding", o.Encoding, "--cache-control", o.Cache)
	return c.simple(ctx, append(args, o.File, s3URL(o.Bucket, o.Key))...)
}

func (c *s5cmdCLI) head(ctx context.Context, o order) (answer, error) {
	out, err := c.tool(ctx, "head", "--raw", s3URL(o.Bucket, o.Key))
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	var doc struct {
		Size        int64
		ETag        string            `json:"etag"`
		ContentType string            `json:"content_type"`
		Metadata    map[string]string `json:"metadata"`
	}
	if err := json.Unmarshal([]byte(out.stdout), &doc); err != nil {
		return answer{}, fmt.Errorf("s5cmd: read answer: %w: %s", err, clip(out.stdout))
	}
	a := answer{Size: doc.Size, ETag: doc.ETag, Type: doc.ContentType, Meta: map[string]string{}}
	for k, v := range doc.Metadata {
		a.Meta[strings.ToLower(k)] = v
	}
	return a, nil
}

func (c *s5cmdCLI) copy(ctx context.Context, o order) (answer, error) {
	if o.Part != 0 {
		return cannot("copies in one request only")
	}
	args := []string{"cp", "--raw"}
	if o.Meta != nil {
		args = append(args, "--metadata-directive", "REPLACE", "--content-type", o.Type)
	}
	for k, v := range o.Meta {
		args = append(args, "--metadata", k+"="+v)
	}
	return c.simple(ctx, append(args, s3URL(o.FromBucket, o.FromKey), s3URL(o.Bucket, o.Key))...)
}

func (c *s5cmdCLI) list(ctx context.Context, o order) (answer, error) {
	target := s3URL(o.Bucket, o.Prefix)
	switch o.Delimiter {
	case "/":
	case "":
		target += "*"
	default:
		return cannot("the only delimiter of a listing is /")
	}
	out, err := c.tool(ctx, "ls", "--etag", target)
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	var a answer
	for line := range strings.Lines(out.stdout) {
		var doc struct {
			Key, Type string
			ETag      string
			Size      int64
		}
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			return answer{}, fmt.Errorf("s5cmd: read answer: %w: %s", err, clip(line))
		}
		key := strings.TrimPrefix(doc.Key, "s3://"+o.Bucket+"/")
		if doc.Type == "directory" {
			a.Prefixes = append(a.Prefixes, key)
			continue
		}
		a.Items = append(a.Items, item{key, doc.Size, doc.ETag})
	}
	return a, nil
}
