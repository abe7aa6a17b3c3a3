package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-store/penstock/client"
)

// label is an item's name: source and target.
func label(source, target string) string { return source + "\x00" + target }

// look finds what is at a target; nil when there is nothing.
type look func(ctx context.Context) (*client.Entry, error)

// headOf looks at one object by HEAD.
func (cp *copier) headOf(n client.ObjectName) look {
	return func(ctx context.Context) (*client.Entry, error) {
		info, err := cp.client.Head(ctx, n.Bucket, n.Key)
		if errors.Is(err, client.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return &client.Entry{Key: n.Key, Bytes: info.Bytes, ETag: info.ETag, LastModified: info.LastModified}, nil
	}
}

// listing is what is below a prefix.
type listing map[string]client.Entry

func (l listing) look(key string) look {
	return func(context.Context) (*client.Entry, error) {
		if e, ok := l[key]; ok {
			return &e, nil
		}
		return nil, nil
	}
}

func (cp *copier) list(ctx context.Context, under client.ObjectName) (listing, error) {
	l := listing{}
	if cp.opts.force {
		return l, nil
	}
	for e, err := range cp.client.List(ctx, under.Bucket, client.ListOptions{Prefix: under.Key}) {
		if err != nil {
			return nil, err
		}
		l[e.Key] = e
	}
	return l, nil
}

// uploadItems walks a directory.
func (cp *copier) uploadItems(ctx context.Context, dir string, to client.ObjectName) ([]item, error) {
	to.Key = folder(to.Key)
	there, err := cp.list(ctx, to)
	if err != nil {
		return nil, err
	}
	var items []item
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		if d.IsDir() {
			return ctx.Err()
		}
		if !d.Type().IsRegular() {
			cp.app.note("not copied: %s is no regular file", printable(name))
			return nil
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		info, err := d.Info()
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		dst := client.ObjectName{Bucket: to.Bucket, Key: to.Key + filepath.ToSlash(rel)}
		items = append(items, cp.uploadItem(name, info, dst, there.look(dst.Key)))
		return nil
	})
	return items, err
}

func (cp *copier) uploadItem(file string, info fs.FileInfo, to client.ObjectName, at look) item {
	return item{
		name: label(file, uriOf(to)), bytes: info.Size(),
		done: func(ctx context.Context) (bool, error) {
			e, err := at(ctx)
			if err != nil || e == nil || e.Bytes != info.Size() {
				return false, err
			}
			if cp.opts.checksum {
				return cp.sameContent(ctx, file, to)
			}
			// Object times have whole seconds: a file changed within the same second is copied again.
			return !e.LastModified.Before(info.ModTime()), nil
		},
		copy: func(ctx context.Context, stage client.Window) (client.Result, error) {
			if !utf8.ValidString(to.Key) {
				return client.Result{}, fmt.Errorf("name %q is not UTF-8, which keys must be", to.Key)
			}
			f, err := os.Open(file)
			if err != nil {
				return client.Result{}, err
			}
			defer f.Close()
			now, err := f.Stat()
			if err != nil {
				return client.Result{}, err
			}
			return cp.client.Upload(ctx, stage, client.Source{Reader: f, Bytes: now.Size()}, to,
				client.PutOptions{ContentType: cp.opts.contentType, Concurrency: cp.partsAtOnce()})
		},
	}
}

// partsAtOnce keeps all requests of a cp together near the number of jobs.
func (cp *copier) partsAtOnce() int { return max(1, cp.opts.jobs) }

// sameContent compares a file with an object's checksum.
func (cp *copier) sameContent(ctx context.Context, file string, n client.ObjectName) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return cp.sameBytes(ctx, f, n)
}

func (cp *copier) sameBytes(ctx context.Context, r io.Reader, n client.ObjectName) (bool, error) {
	info, err := cp.client.Head(ctx, n.Bucket, n.Key)
	if err != nil || info.Checksum == "" {
		return false, err
	}
	sum := client.NewChecksum()
	if _, err := io.Copy(sum, r); err != nil {
		return false, err
	}
	return client.EncodeChecksum(sum.Sum64()) == info.Checksum, nil
}

func (cp *copier) copyItem(from client.ObjectName, e client.Entry, to client.ObjectName, at look) item {
	return item{
		name: label(uriOf(from), uriOf(to)), bytes: 0, // the bytes do not pass through here
		done: func(ctx context.Context) (bool, error) {
			if from == to {
				return true, nil
			}
			there, err := at(ctx)
			if err != nil || there == nil || there.Bytes != e.Bytes {
				return false, err
			}
			if !cp.opts.checksum {
				return !there.LastModified.Before(e.LastModified), nil
			}
			a, err := cp.client.Head(ctx, from.Bucket, from.Key)
			if err != nil {
				return false, err
			}
			b, err := cp.client.Head(ctx, to.Bucket, to.Key)
			return err == nil && a.Checksum != "" && a.Checksum == b.Checksum, err
		},
		copy: func(ctx context.Context, _ client.Window) (client.Result, error) {
			_, err := cp.client.CopyObject(ctx, from, to)
			return client.Result{Bytes: e.Bytes, Path: client.PathHTTP}, err
		},
	}
}

// openDir makes a directory and opens it as the root that no download leaves, not even through a
// symbolic link inside it.
func openDir(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("copy: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("copy: %w", err)
	}
	return root, nil
}

// unsafeName says why a key's path below the prefix cannot be a file name; empty when it can.
func unsafeName(rel string) string {
	if rel == "" {
		return "no name"
	}
	if strings.ContainsRune(rel, 0) {
		return "a zero byte in the name"
	}
	for part := range strings.SplitSeq(rel, "/") {
		switch part {
		case "", ".", "..":
			return fmt.Sprintf("a component %q in the name", part)
		}
	}
	return ""
}

// downloadItems lists a prefix.
func (cp *copier) downloadItems(ctx context.Context, dir *os.Root, from client.ObjectName) ([]item, error) {
	from.Key = folder(from.Key)
	var items []item
	for e, err := range cp.client.List(ctx, from.Bucket, client.ListOptions{Prefix: from.Key}) {
		if err != nil {
			return nil, err
		}
		rel := strings.TrimPrefix(e.Key, from.Key)
		src := client.ObjectName{Bucket: from.Bucket, Key: e.Key}
		if strings.HasSuffix(e.Key, "/") && e.Bytes == 0 {
			items = append(items, cp.folderItem(dir, strings.TrimSuffix(rel, "/"), src))
			continue
		}
		if reason := unsafeName(rel); reason != "" {
			items = append(items, refusedItem(src, reason))
			continue
		}
		items = append(items, cp.downloadItem(dir, rel, src, e))
	}
	return items, nil
}

func refusedItem(src client.ObjectName, reason string) item {
	return item{name: label(uriOf(src), ""), copy: func(context.Context, client.Window) (client.Result, error) {
		return client.Result{}, fmt.Errorf("key cannot be a file: %s", reason)
	}}
}

// folderItem makes the directory that an empty object with a trailing slash stands for.
func (cp *copier) folderItem(dir *os.Root, rel string, src client.ObjectName) item {
	if rel != "" {
		if reason := unsafeName(rel); reason != "" {
			return refusedItem(src, reason)
		}
	}
	return item{
		name: label(uriOf(src), filepath.Join(dir.Name(), rel)),
		copy: func(context.Context, client.Window) (client.Result, error) {
			if rel == "" {
				return client.Result{}, nil
			}
			return client.Result{}, dir.MkdirAll(rel, 0o777)
		},
	}
}

// downloadItem copies an object to the file rel below dir.
func (cp *copier) downloadItem(dir *os.Root, rel string, from client.ObjectName, object client.Entry) item {
	it := item{name: label(uriOf(from), filepath.Join(dir.Name(), rel)), bytes: object.Bytes}
	it.done = func(ctx context.Context) (bool, error) {
		info, err := dir.Lstat(rel)
		if err != nil {
			return false, nil // not there, or not readable: copying will say why
		}
		if !info.Mode().IsRegular() || info.Size() != object.Bytes {
			return false, nil
		}
		if !cp.opts.checksum {
			// cp sets whole seconds; a file written since has a fraction, or another second.
			return info.ModTime().Equal(object.LastModified.Truncate(time.Second)), nil
		}
		f, err := dir.Open(rel)
		if err != nil {
			return false, err
		}
		defer f.Close()
		return cp.sameBytes(ctx, f, from)
	}
	it.copy = func(ctx context.Context, stage client.Window) (client.Result, error) {
		return cp.downloadFile(ctx, dir, rel, from, stage)
	}
	return it
}

// downloadFile reads into a temporary file beside the target and renames it when it is whole.
func (cp *copier) downloadFile(
	ctx context.Context, dir *os.Root, rel string, from client.ObjectName, stage client.Window,
) (_ client.Result, err error) {
	parent := path.Dir(rel)
	if err := dir.MkdirAll(parent, 0o777); err != nil {
		return client.Result{}, err
	}
	if info, err := dir.Lstat(rel); err == nil && info.IsDir() {
		return client.Result{}, fmt.Errorf("%s is a directory", filepath.Join(dir.Name(), rel))
	}
	f, temp, err := createTemp(dir, parent)
	if err != nil {
		return client.Result{}, err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // err says what went wrong; the file is no one's result
			_ = dir.Remove(temp)
		}
	}()
	res, err := cp.client.Download(ctx, stage, from, f, client.GetOptions{Concurrency: cp.partsAtOnce()})
	if err != nil {
		return client.Result{}, err
	}
	if err := f.Close(); err != nil {
		return client.Result{}, err
	}
	if at := res.Object.LastModified; !at.IsZero() {
		if err := dir.Chtimes(temp, time.Time{}, at.Truncate(time.Second)); err != nil {
			return client.Result{}, err
		}
	}
	return res, dir.Rename(temp, rel)
}

// createTemp makes a new file in a directory below the root.
func createTemp(dir *os.Root, parent string) (*os.File, string, error) {
	const attempts = 100 // names are random: a second collision in a row means something else is wrong
	for range attempts {
		name := path.Join(parent, ".penstock-"+randomName()+".part")
		f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		return f, name, err
	}
	return nil, "", fmt.Errorf("no free temporary name in %s", filepath.Join(dir.Name(), parent))
}
