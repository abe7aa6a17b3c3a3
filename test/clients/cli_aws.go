package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// awsCLI is the command line of AWS: s3 for transfers, s3api for single operations.
type awsCLI struct {
	command
	binary string
}

func (c *awsCLI) close() error { return nil }

// with makes one with settings below s3 in its file.
func (c *awsCLI) with(settings string) (*awsCLI, error) {
	other := *c
	file, err := os.CreateTemp(c.dir, "config-")
	if err != nil {
		return nil, fmt.Errorf("aws: write settings: %w", err)
	}
	_, err = fmt.Fprintf(file, "[default]\ns3 =\n  %s\n", settings)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("aws: write settings: %w", err)
	}
	other.env = append(slices.Clone(c.env), "AWS_CONFIG_FILE="+file.Name())
	return &other, nil
}

// api runs one operation of s3api; reply may be nil.
func (c *awsCLI) api(ctx context.Context, reply any, args ...string) (answer, error) {
	out, err := c.run(ctx, c.binary, append([]string{"--output", "json", "s3api"}, args...)...)
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	if reply != nil && strings.TrimSpace(out.stdout) != "" {
		if err := json.Unmarshal([]byte(out.stdout), reply); err != nil {
			return answer{}, fmt.Errorf("aws: read answer: %w: %s", err, clip(out.stdout))
		}
	}
	return answer{}, nil
}

func (c *awsCLI) s3(ctx context.Context, args ...string) (answer, error) {
	out, err := c.run(ctx, c.binary, append([]string{"s3"}, args...)...)
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	return answer{URL: strings.TrimSpace(out.stdout)}, nil
}

func s3URL(bucket, key string) string { return "s3://" + bucket + "/" + key }

// flags adds --name=value for what is set; the form with = takes values that begin with a dash.
func flags(args []string, pairs ...string) []string {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			args = append(args, pairs[i]+"="+pairs[i+1])
		}
	}
	return args
}

func isoTime(seconds int64) string {
	if seconds == 0 {
		return ""
	}
	return time.Unix(seconds, 0).UTC().Format(time.RFC3339)
}

func jsonText(v map[string]string) string {
	if v == nil {
		return ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(text)
}

func (c *awsCLI) do(ctx context.Context, o order) (answer, error) {
	at := []string{"--bucket=" + o.Bucket, "--key=" + o.Key}
	switch o.Op {
	case "mkbucket":
		return c.s3(ctx, "mb", "s3://"+o.Bucket)
	case "rmbucket":
		return c.s3(ctx, "rb", "s3://"+o.Bucket)
	case "put", "get", "head":
		return c.object(ctx, o, at)
	case "upload":
		return c.s3(ctx, "cp", "--only-show-errors", o.File, s3URL(o.Bucket, o.Key))
	case "download":
		return c.s3(ctx, "cp", "--only-show-errors", s3URL(o.Bucket, o.Key), o.File)
	case "copy":
		return c.copy(ctx, o, at)
	case "list":
		return c.list(ctx, o)
	case "delete":
		return c.api(ctx, nil, append([]string{"delete-object"}, at...)...)
	case "deletemany":
		return c.deleteMany(ctx, o)
	case "presignget":
		if o.Way == "v4" {
			v4, err := c.with("signature_version = s3v4")
			if err != nil {
				return answer{}, err
			}
			c = v4
		}
		return c.s3(ctx, "presign", s3URL(o.Bucket, o.Key))
	case "sync":
		return c.s3(ctx, "sync", "--only-show-errors", "--delete", o.File, s3URL(o.Bucket, o.Prefix))
	case "syncdown":
		return c.s3(ctx, "sync", "--only-show-errors", "--delete", s3URL(o.Bucket, o.Prefix), o.File)
	case "mpstart", "mplist", "mpabort":
		return c.uploads(ctx, o, at)
	}
	return cannot("no operation " + o.Op)
}

// described is what put-object, get-object and head-object print.
type described struct {
	ContentLength                                      int64
	ETag, ContentType, ContentEncoding, CacheControl   string
	Metadata                                           map[string]string
	ChecksumCRC32, ChecksumCRC32C, ChecksumCRC64NVME   string
	ChecksumSHA1, ChecksumSHA256, UploadId, NextMarker string
}

func (d described) answer() answer {
	return answer{
		Size: d.ContentLength, ETag: d.ETag, Meta: d.Metadata, Type: d.ContentType, Encoding: d.ContentEncoding,
		Cache: d.CacheControl, ID: d.UploadId, Sums: map[string]string{
			"CRC32": d.ChecksumCRC32, "CRC32C": d.ChecksumCRC32C, "SHA1": d.ChecksumSHA1,
			"SHA256": d.ChecksumSHA256, "CRC64NVME": d.ChecksumCRC64NVME,
		},
	}
}

func (c *awsCLI) object(ctx context.Context, o order, at []string) (answer, error) {
	var args []string
	switch o.Op {
	case "put":
		args = flags(append([]string{"put-object", "--body=" + o.File}, at...), "--metadata", jsonText(o.Meta),
			"--content-type", o.Type, "--content-encoding", o.Encoding, "--cache-control", o.Cache,
			"--if-match", o.IfMatch, "--if-none-match", o.IfNoneMatch, "--checksum-algorithm", o.Algo)
		if o.Sum != "" {
			names := map[string]string{"CRC32C": "crc32-c", "CRC64NVME": "crc64-nvme"}
			name := cmp.Or(names[o.Algo], strings.ToLower(o.Algo))
			args = flags(args, "--checksum-"+name, o.Sum)
		}
	case "get":
		args = flags(append([]string{"get-object"}, at...), "--range", o.Range, "--if-match", o.IfMatch,
			"--if-none-match", o.IfNoneMatch, "--if-modified-since", isoTime(o.IfModified),
			"--if-unmodified-since", isoTime(o.IfUnmodified))
		args = append(args, o.File)
	default:
		args = append([]string{"head-object", "--checksum-mode=ENABLED"}, at...)
	}
	var d described
	a, err := c.api(ctx, &d, args...)
	if err != nil || a.Error != "" {
		return a, err
	}
	return d.answer(), nil
}

func (c *awsCLI) copy(ctx context.Context, o order, at []string) (answer, error) {
	if o.Part != 0 {
		lower, err := c.with(fmt.Sprintf("multipart_threshold = %d\n  multipart_chunksize = %d", o.Part, o.Part))
		if err != nil {
			return answer{}, err
		}
		return lower.s3(ctx, "cp", "--only-show-errors", s3URL(o.FromBucket, o.FromKey), s3URL(o.Bucket, o.Key))
	}
	args := append([]string{"copy-object", "--copy-source=" + o.FromBucket + "/" + o.FromKey}, at...)
	if o.Meta != nil {
		args = flags(args, "--metadata-directive", "REPLACE", "--metadata", jsonText(o.Meta), "--content-type", o.Type)
	}
	return c.api(ctx, nil, args...)
}

func (c *awsCLI) list(ctx context.Context, o order) (answer, error) {
	var doc struct {
		Contents []struct {
			Key, ETag string
			Size      int64
		}
		CommonPrefixes []struct{ Prefix string }
	}
	args := flags([]string{"list-objects-v2", "--bucket=" + o.Bucket}, "--prefix", o.Prefix, "--delimiter", o.Delimiter)
	a, err := c.api(ctx, &doc, args...)
	for _, x := range doc.Contents {
		a.Items = append(a.Items, item{x.Key, x.Size, x.ETag})
	}
	for _, x := range doc.CommonPrefixes {
		a.Prefixes = append(a.Prefixes, x.Prefix)
	}
	return a, err
}

func (c *awsCLI) deleteMany(ctx context.Context, o order) (answer, error) {
	type object struct{ Key string }
	var doc struct{ Objects []object }
	for _, k := range o.Keys {
		doc.Objects = append(doc.Objects, object{k})
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return answer{}, fmt.Errorf("aws: %w", err)
	}
	var out struct{ Errors []struct{ Key, Code string } }
	a, err := c.api(ctx, &out, "delete-objects", "--bucket="+o.Bucket, "--delete", string(text))
	if err == nil && len(out.Errors) != 0 {
		a.Error, a.Code = out.Errors[0].Key, out.Errors[0].Code
	}
	return a, err
}

func (c *awsCLI) uploads(ctx context.Context, o order, at []string) (answer, error) {
	switch o.Op {
	case "mpstart":
		var d described
		a, err := c.api(ctx, &d, append([]string{"create-multipart-upload"}, at...)...)
		if err != nil || a.Error != "" {
			return a, err
		}
		a, err = c.api(ctx, nil, append([]string{
			"upload-part", "--upload-id=" + d.UploadId, "--part-number=1", "--body=" + o.File,
		}, at...)...)
		a.ID = d.UploadId
		return a, err
	case "mpabort":
		return c.api(ctx, nil, append([]string{"abort-multipart-upload", "--upload-id=" + o.ID}, at...)...)
	}
	var doc struct {
		Uploads []struct{ Key, UploadId string }
	}
	a, err := c.api(ctx, &doc, "list-multipart-uploads", "--bucket="+o.Bucket)
	for _, u := range doc.Uploads {
		a.Uploads = append(a.Uploads, upload{u.Key, u.UploadId})
	}
	return a, err
}
