package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-store/penstock/client"
)

type bucketLine struct {
	Type    string    `json:"type"` // "bucket"
	Bucket  string    `json:"bucket"`
	Created time.Time `json:"created"`
}

type entryLine struct {
	Type         string            `json:"type"` // "object" or "prefix"
	Bucket       string            `json:"bucket"`
	Key          string            `json:"key"`
	Bytes        int64             `json:"bytes"`
	ETag         string            `json:"etag,omitempty"`
	LastModified *time.Time        `json:"last_modified,omitempty"`
	ContentType  string            `json:"content_type,omitempty"`
	Checksum     string            `json:"crc64nvme,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`
}

const timeLayout = "2006-01-02 15:04:05"

func (a *app) lsCommand() *cobra.Command {
	var recursive bool
	cmd := &cobra.Command{
		Use:   "ls [s3://bucket[/prefix]]",
		Short: "list buckets, or the objects of one",
		Args:  args(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, list []string) error {
			cl, err := a.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			if len(list) == 0 {
				return a.listBuckets(c.Context(), cl)
			}
			name, err := parseURI(list[0])
			if err != nil {
				return err
			}
			opts := client.ListOptions{Prefix: name.Key, Delimiter: "/"}
			if recursive {
				opts.Delimiter = ""
			}
			return a.listObjects(c.Context(), cl, name.Bucket, opts)
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "all keys below the prefix")
	return cmd
}

func (a *app) listBuckets(ctx context.Context, cl *client.Client) error {
	for b, err := range cl.ListBuckets(ctx) {
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s  %s", b.Created.UTC().Format(timeLayout), b.Name)
		if err := a.emit(bucketLine{"bucket", b.Name, b.Created.UTC()}, text); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) listObjects(ctx context.Context, cl *client.Client, bucket string, opts client.ListOptions) error {
	for e, err := range cl.List(ctx, bucket, opts) {
		if err != nil {
			return err
		}
		line := entryLine{Type: "object", Bucket: bucket, Key: e.Key, Bytes: e.Bytes, ETag: e.ETag}
		text := fmt.Sprintf("%s %12d  %s", e.LastModified.UTC().Format(timeLayout), e.Bytes, printable(e.Key))
		if e.IsPrefix {
			line.Type = "prefix"
			text = fmt.Sprintf("%*s  %s", len(timeLayout)+13, "PREFIX", printable(e.Key))
		} else {
			at := e.LastModified.UTC()
			line.LastModified = &at
		}
		if err := a.emit(line, text); err != nil {
			return err
		}
	}
	return nil
}

// printable keeps a key from moving the cursor: control characters are shown escaped.
func printable(key string) string {
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f || r == '�' }) {
		return strconv.Quote(key)
	}
	return key
}

func (a *app) statCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stat s3://bucket/key",
		Short: "show what is known of an object",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, list []string) error {
			name, err := parseObject(list[0])
			if err != nil {
				return err
			}
			cl, err := a.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			info, err := cl.Head(c.Context(), name.Bucket, name.Key)
			if err != nil {
				return err
			}
			at := info.LastModified.UTC()
			return a.emit(entryLine{
				Type: "object", Bucket: name.Bucket, Key: name.Key, Bytes: info.Bytes, ETag: info.ETag,
				LastModified: &at, ContentType: info.ContentType, Checksum: info.Checksum, Metadata: info.Metadata,
			}, statText(name, info))
		},
	}
}

func statText(name client.ObjectName, info client.ObjectInfo) string {
	var b strings.Builder
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-14s%s\n", label, value)
		}
	}
	line("object", printable(uriOf(name)))
	line("bytes", strconv.FormatInt(info.Bytes, 10))
	line("etag", info.ETag)
	line("modified", info.LastModified.UTC().Format(timeLayout))
	line("content type", info.ContentType)
	line("crc64nvme", info.Checksum)
	names := make([]string, 0, len(info.Metadata))
	for n := range info.Metadata {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		line("meta", n+"="+info.Metadata[n])
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (a *app) catCommand() *cobra.Command {
	var span string
	cmd := &cobra.Command{
		Use:   "cat s3://bucket/key",
		Short: "write an object to stdout",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, list []string) error {
			name, err := parseObject(list[0])
			if err != nil {
				return err
			}
			var opts client.GetOptions
			if span != "" {
				if opts.Range, err = parseSpan(span); err != nil {
					return err
				}
			}
			cl, err := a.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			s, err := cl.Get(c.Context(), name.Bucket, name.Key, opts)
			if err != nil {
				return err
			}
			defer s.Close()
			if _, err := io.Copy(a.env.Stdout, s); err != nil {
				return fmt.Errorf("cat %s: %w", uriOf(name), err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&span, "range", "", "bytes first-last, counted from 0, last included")
	return cmd
}

func parseSpan(s string) (*client.Range, error) {
	first, last, ok := strings.Cut(s, "-")
	a, err1 := strconv.ParseUint(first, 10, 62)
	b, err2 := strconv.ParseUint(last, 10, 62)
	if !ok || err1 != nil || err2 != nil || b < a {
		return nil, usagef("range %q is not first-last", s)
	}
	return &client.Range{Offset: int64(a), Bytes: int64(b-a) + 1}, nil
}

func (a *app) mbCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mb s3://bucket",
		Short: "make a bucket",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, list []string) error {
			return a.onBucket(list[0], func(cl *client.Client, bucket string) error {
				return cl.CreateBucket(c.Context(), bucket)
			})
		},
	}
}

// onBucket runs one call and reports the bucket.
func (a *app) onBucket(arg string, call func(*client.Client, string) error) error {
	bucket, err := parseBucket(arg)
	if err != nil {
		return err
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := call(cl, bucket); err != nil {
		return err
	}
	return a.emit(struct {
		Type   string `json:"type"`
		Bucket string `json:"bucket"`
	}{"bucket", bucket}, bucket)
}

func (a *app) rbCommand() *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use:   "rb s3://bucket",
		Short: "remove a bucket, which must be empty",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, list []string) error {
			return a.onBucket(list[0], func(cl *client.Client, bucket string) error {
				if force {
					if err := a.confirm(yes, "remove all objects of "+bucket); err != nil {
						return err
					}
					if err := a.removeTree(c.Context(), cl, client.ObjectName{Bucket: bucket}); err != nil {
						return err
					}
				}
				return cl.DeleteBucket(c.Context(), bucket)
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove its objects first")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) rmCommand() *cobra.Command {
	var recursive, yes bool
	cmd := &cobra.Command{
		Use:   "rm s3://bucket/key…",
		Short: "remove objects",
		Args:  args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, list []string) error {
			names := make([]client.ObjectName, len(list))
			for i, arg := range list {
				parse := parseObject
				if recursive {
					parse = parseURI
				}
				var err error
				if names[i], err = parse(arg); err != nil {
					return err
				}
			}
			if recursive {
				if err := a.confirm(yes, "remove everything below "+strings.Join(list, ", ")); err != nil {
					return err
				}
			}
			cl, err := a.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			for _, name := range names {
				if recursive {
					err = a.removeTree(c.Context(), cl, name)
				} else if err = cl.Delete(c.Context(), name.Bucket, name.Key); err == nil {
					err = a.emitRemoved(name)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "all keys that begin with the given one")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) emitRemoved(name client.ObjectName) error {
	return a.emit(struct {
		Type   string `json:"type"`
		Bucket string `json:"bucket"`
		Key    string `json:"key"`
	}{"removed", name.Bucket, name.Key}, "removed "+printable(uriOf(name)))
}

// removeTree removes all keys below a prefix, a page at a time.
func (a *app) removeTree(ctx context.Context, cl *client.Client, under client.ObjectName) error {
	const page = 1000
	failed := false
	flush := func(keys []string) error {
		failures, err := cl.DeleteMany(ctx, under.Bucket, keys)
		if err != nil {
			return err
		}
		refused := map[string]bool{}
		for _, f := range failures {
			failed, refused[f.Key] = true, true
			a.complain(fmt.Errorf("remove %s: %s: %s", uriOf(client.ObjectName{Bucket: under.Bucket, Key: f.Key}),
				f.Code, f.Message))
		}
		for _, key := range keys {
			if refused[key] {
				continue
			}
			if err := a.emitRemoved(client.ObjectName{Bucket: under.Bucket, Key: key}); err != nil {
				return err
			}
		}
		return nil
	}
	var keys []string
	for e, err := range cl.List(ctx, under.Bucket, client.ListOptions{Prefix: under.Key}) {
		if err != nil {
			return err
		}
		if keys = append(keys, e.Key); len(keys) == page {
			if err := flush(keys); err != nil {
				return err
			}
			keys = keys[:0]
		}
	}
	if len(keys) > 0 {
		if err := flush(keys); err != nil {
			return err
		}
	}
	if failed {
		return errPartial
	}
	return nil
}

// confirm asks on a terminal and refuses without one, unless yes.
func (a *app) confirm(yes bool, what string) error {
	if yes {
		return nil
	}
	if f, ok := a.env.Stdin.(interface{ Fd() uintptr }); !ok || !onTerminal(a.env.Stderr) || f == nil {
		return usagef("to %s, add --yes", what)
	}
	fmt.Fprintf(a.env.Stderr, "%s? [y/N] ", what)
	line, err := bufio.NewReader(a.env.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read answer: %w", err)
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return usagef("not confirmed: %s", what)
	}
	return nil
}
