package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-store/penstock/client"
)

// Limits of cp.
const (
	defaultJobs = 4  // files at once: fills two cores and a fast link
	maxJobs     = 64 // more would only share the same line and memory

	// stageBytes is the registered memory of one cp: four parts of the largest chunk.
	stageBytes = 256 << 20
)

const cpHelp = `cp copies files and objects: file to object, object to file, object to object, and with
--recursive whole trees. "-" stands for stdin or stdout.

What is already complete is skipped. An upload is complete when the object has the file's length and is
not older than the file. A download is complete when the file has the object's length and its
modification time in whole seconds, which cp sets. A copy between objects is complete when the lengths
are equal and the target is not older. With --checksum the CRC64NVME of the contents is
compared instead of times. --force copies everything.

A download goes to a temporary file beside the target, which is renamed once the object is whole.
Directories are made as needed. Symbolic links and special files are not followed or copied; keys that
would leave the target directory ("..", empty or "." components) are refused. Modes, owners and
extended attributes are not kept.`

// copyOptions are cp's flags.
type copyOptions struct {
	recursive, checksum, force bool
	jobs                       int
	contentType                string
}

// item is one file or object to copy.
type item struct {
	name  string // for people: what is copied
	bytes int64
	// done tells whether the target is complete already; nil when that needs no look.
	done func(ctx context.Context) (bool, error)
	copy func(ctx context.Context, stage client.Window) (client.Result, error)
}

type copyLine struct {
	Type    string `json:"type"` // "copied", "skipped", "failed"
	Source  string `json:"source"`
	Target  string `json:"target"`
	Bytes   int64  `json:"bytes"`
	Path    string `json:"path,omitempty"`   // shm, rc, tcp or http
	Reason  string `json:"reason,omitempty"` // why no fabric carried it
	Message string `json:"error,omitempty"`
}

type copySummary struct {
	Type        string `json:"type"` // "summary"
	Copied      int64  `json:"copied"`
	Skipped     int64  `json:"skipped"`
	Failed      int64  `json:"failed"`
	Bytes       int64  `json:"bytes"`
	FabricBytes int64  `json:"fabric_bytes"`
}

func (a *app) cpCommand() *cobra.Command {
	var o copyOptions
	cmd := &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "copy files and objects, or trees of them",
		Long:  cpHelp,
		Args:  args(cobra.ExactArgs(2)),
		RunE: func(c *cobra.Command, list []string) error {
			if o.jobs < 1 || o.jobs > maxJobs {
				return usagef("--jobs %d is not within 1..%d", o.jobs, maxJobs)
			}
			if !isURI(list[0]) && !isURI(list[1]) {
				return usagef("neither %q nor %q is an object (s3://bucket/key)", list[0], list[1])
			}
			cl, err := a.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			cp := &copier{app: a, client: cl, opts: o}
			return cp.run(c.Context(), list[0], list[1])
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.recursive, "recursive", "r", false, "copy a tree")
	f.BoolVar(&o.checksum, "checksum", false, "compare contents, not times, to tell what is complete")
	f.BoolVar(&o.force, "force", false, "copy also what is complete")
	f.IntVarP(&o.jobs, "jobs", "j", defaultJobs, "files at once")
	f.StringVar(&o.contentType, "content-type", "", "content type of uploaded objects")
	return cmd
}

// copier is one cp.
type copier struct {
	app    *app
	client *client.Client
	opts   copyOptions

	mu      sync.Mutex // guards output and what follows
	summary copySummary
	cause   error // of the last failed item
}

func (cp *copier) run(ctx context.Context, source, target string) error {
	switch {
	case source == "-":
		return cp.fromStdin(ctx, target)
	case target == "-":
		return cp.toStdout(ctx, source)
	case !isURI(source):
		return cp.upload(ctx, source, target)
	case isURI(target):
		return cp.copyObjects(ctx, source, target)
	}
	return cp.download(ctx, source, target)
}

// onlyReader hides ReadAt: a pipe has the method but not the ability.
type onlyReader struct{ io.Reader }

// fromStdin stores stdin, whose length is not known before its end, through a temporary file.
func (cp *copier) fromStdin(ctx context.Context, target string) error {
	name, err := parseObject(target)
	if err != nil {
		return err
	}
	spool, err := os.CreateTemp("", "penstock-stdin-*")
	if err != nil {
		return fmt.Errorf("copy stdin: %w", err)
	}
	defer func() {
		_ = spool.Close() // the object is complete, or err says why not
		_ = os.Remove(spool.Name())
	}()
	n, err := io.Copy(spool, onlyReader{cp.app.env.Stdin})
	if err != nil {
		return fmt.Errorf("copy stdin: %w", err)
	}
	return cp.copyAll(ctx, []item{{
		name: "-", bytes: n,
		copy: func(ctx context.Context, stage client.Window) (client.Result, error) {
			return cp.client.Upload(ctx, stage, client.Source{Reader: spool, Bytes: n}, name,
				client.PutOptions{ContentType: cp.opts.contentType})
		},
	}}, target)
}

func (cp *copier) toStdout(ctx context.Context, source string) error {
	name, err := parseObject(source)
	if err != nil {
		return err
	}
	s, err := cp.client.Get(ctx, name.Bucket, name.Key, client.GetOptions{})
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := io.Copy(cp.app.env.Stdout, s); err != nil {
		return fmt.Errorf("copy %s: %w", source, err)
	}
	return nil
}

// upload copies a file or a directory into the store.
func (cp *copier) upload(ctx context.Context, source, target string) error {
	to, err := parseURI(target)
	if err != nil {
		return err
	}
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if !info.IsDir() {
		if !info.Mode().IsRegular() {
			return usagef("%s is not a regular file", source)
		}
		if to.Key == "" || strings.HasSuffix(to.Key, "/") {
			to.Key += filepath.Base(source)
		}
		return cp.copyAll(ctx, []item{cp.uploadItem(source, info, to, cp.headOf(to))}, "")
	}
	if !cp.opts.recursive {
		return usagef("%s is a directory: add --recursive", source)
	}
	items, err := cp.uploadItems(ctx, source, to)
	if err != nil {
		return err
	}
	return cp.copyAll(ctx, items, "")
}

// download copies an object or a prefix to files.
func (cp *copier) download(ctx context.Context, source, target string) error {
	from, err := parseURI(source)
	if err != nil {
		return err
	}
	if !cp.opts.recursive {
		if from.Key == "" {
			return usagef("%s is a bucket: add --recursive", source)
		}
		there, statErr := os.Stat(target)
		if strings.HasSuffix(target, string(filepath.Separator)) || (statErr == nil && there.IsDir()) {
			base := path.Base(from.Key)
			if reason := unsafeName(base); reason != "" {
				return usagef("%s has no file name (%s): name the target file", source, reason)
			}
			target = filepath.Join(target, base)
		}
		dir, err := openDir(filepath.Dir(target))
		if err != nil {
			return err
		}
		defer dir.Close()
		info, err := cp.client.Head(ctx, from.Bucket, from.Key)
		if err != nil {
			return err
		}
		e := client.Entry{Key: from.Key, Bytes: info.Bytes, ETag: info.ETag, LastModified: info.LastModified}
		return cp.copyAll(ctx, []item{cp.downloadItem(dir, filepath.Base(target), from, e)}, "")
	}
	dir, err := openDir(target)
	if err != nil {
		return err
	}
	defer dir.Close()
	items, err := cp.downloadItems(ctx, dir, from)
	if err != nil {
		return err
	}
	return cp.copyAll(ctx, items, "")
}

// copyObjects copies inside the store.
func (cp *copier) copyObjects(ctx context.Context, source, target string) error {
	from, err := parseURI(source)
	if err != nil {
		return err
	}
	to, err := parseURI(target)
	if err != nil {
		return err
	}
	if !cp.opts.recursive {
		if from.Key == "" {
			return usagef("%s is a bucket: add --recursive", source)
		}
		if to.Key == "" || strings.HasSuffix(to.Key, "/") {
			to.Key += path.Base(from.Key)
		}
		info, err := cp.client.Head(ctx, from.Bucket, from.Key)
		if err != nil {
			return err
		}
		e := client.Entry{Key: from.Key, Bytes: info.Bytes, ETag: info.ETag, LastModified: info.LastModified}
		return cp.copyAll(ctx, []item{cp.copyItem(from, e, to, cp.headOf(to))}, "")
	}
	from.Key, to.Key = folder(from.Key), folder(to.Key)
	there, err := cp.list(ctx, to)
	if err != nil {
		return err
	}
	var items []item
	for e, err := range cp.client.List(ctx, from.Bucket, client.ListOptions{Prefix: from.Key}) {
		if err != nil {
			return err
		}
		dst := client.ObjectName{Bucket: to.Bucket, Key: to.Key + strings.TrimPrefix(e.Key, from.Key)}
		if dst.Key == "" {
			continue
		}
		src := client.ObjectName{Bucket: from.Bucket, Key: e.Key}
		items = append(items, cp.copyItem(src, e, dst, there.look(dst.Key)))
	}
	return cp.copyAll(ctx, items, "")
}

// copyAll copies the items with bounded concurrency. It names failures and goes on.
func (cp *copier) copyAll(ctx context.Context, items []item, target string) error {
	jobs := max(1, min(cp.opts.jobs, len(items)))
	stage, err := cp.stage(items, jobs)
	if err != nil {
		return err
	}
	if stage != nil {
		defer stage.Close()
	}
	bar := cp.app.progress(items)
	slots := make(chan client.Window, jobs)
	for i := range jobs {
		w := client.Window{}
		if stage != nil {
			each := int64(len(stage.Bytes())) / int64(jobs)
			w = stage.Window(int64(i)*each, each)
		}
		slots <- w
	}
	var group errgroup.Group
	group.SetLimit(jobs)
	for _, it := range items {
		if ctx.Err() != nil {
			break
		}
		slot := <-slots
		group.Go(func() error {
			defer func() { slots <- slot }()
			err := cp.copyOne(ctx, it, slot, target)
			bar.add(it.bytes)
			return err
		})
	}
	err = group.Wait()
	bar.finish()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	return cp.finish(len(items))
}

// stage allocates the registered memory: no more than the items need.
func (cp *copier) stage(items []item, jobs int) (*client.Region, error) {
	var longest int64
	for _, it := range items {
		longest = max(longest, it.bytes)
	}
	if longest == 0 {
		return nil, nil
	}
	const granule = 64 << 10
	each := (min(longest, stageBytes/int64(jobs)) + granule - 1) / granule * granule
	// A part of a long object needs its minimum in one piece.
	if longest > each {
		each = max(each, client.MinPartBytes)
	}
	return cp.client.Alloc(each * int64(jobs))
}

// copyOne copies one item and reports it. Only errors of the output end the whole.
func (cp *copier) copyOne(ctx context.Context, it item, stage client.Window, target string) error {
	line := copyLine{Source: it.name, Target: target, Bytes: it.bytes}
	if source, dst, ok := strings.Cut(it.name, "\x00"); ok {
		line.Source, line.Target = source, dst
	}
	complete := false
	var err error
	if it.done != nil && !cp.opts.force {
		complete, err = it.done(ctx)
	}
	var res client.Result
	if err == nil && !complete {
		res, err = it.copy(ctx, stage)
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		cp.summary.Failed++
		line.Type, line.Message = "failed", err.Error()
		cp.app.complain(fmt.Errorf("copy %s: %w", printable(line.Source), err))
		cp.cause = err
		return cp.emitJSON(line)
	case complete:
		cp.summary.Skipped++
		line.Type = "skipped"
		return cp.emitJSON(line)
	}
	cp.summary.Copied++
	cp.summary.Bytes += res.Bytes
	cp.summary.FabricBytes += res.FabricBytes
	line.Type, line.Bytes, line.Path, line.Reason = "copied", res.Bytes, res.Path, res.Reason
	return cp.app.emit(line, fmt.Sprintf("copied %s to %s", printable(line.Source), printable(line.Target)))
}

// emitJSON reports what text output leaves out.
func (cp *copier) emitJSON(line copyLine) error {
	if !cp.app.json {
		return nil
	}
	return cp.app.emit(line, "")
}

// finish reports the sum. The failure of a single item decides the exit code by its kind.
func (cp *copier) finish(items int) error {
	cp.summary.Type = "summary"
	s := cp.summary
	if cp.app.json {
		if err := cp.app.emit(s, ""); err != nil {
			return err
		}
	} else if items != 1 {
		cp.app.note("%d copied (%d bytes, %d by a fabric), %d already complete, %d failed",
			s.Copied, s.Bytes, s.FabricBytes, s.Skipped, s.Failed)
	}
	switch {
	case s.Failed == 0:
		return nil
	case items == 1:
		return silentError{cp.cause}
	}
	return errPartial
}
