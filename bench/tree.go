package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-store/penstock/client"
)

// File is one file of a tree and the key under which it is stored.
type File struct {
	Name  string // absolute
	Key   string
	Bytes int64
}

// ListTree lists the regular files below dir with keys below prefix.
func ListTree(dir, prefix string) ([]File, error) {
	var files []File
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		files = append(files, File{name, prefix + filepath.ToSlash(rel), info.Size()})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("bench: list %s: %w", dir, err)
	}
	return files, nil
}

// Tree is files and how they are moved: Concurrency at once, through windows of the region.
type Tree struct {
	Bucket      string
	Files       []File
	Region      *client.Region
	Concurrency int
}

// Moved is what a pass over files moved.
type Moved struct {
	Objects     int64
	Bytes       int64
	FabricBytes int64
}

// PutTree stores the files.
func PutTree(ctx context.Context, c *client.Client, t Tree) (Moved, error) {
	var sum totals
	err := t.each(ctx, func(ctx context.Context, w client.Window, f File) error {
		src, err := os.Open(f.Name)
		if err != nil {
			return err
		}
		defer src.Close()
		res, err := c.Upload(ctx, w, client.Source{Reader: src, Bytes: f.Bytes},
			client.ObjectName{Bucket: t.Bucket, Key: f.Key}, client.PutOptions{Concurrency: t.Concurrency})
		sum.add(res)
		return err
	})
	return sum.moved, err
}

// CompareTree reads every file's object into registered memory and compares every byte with the file.
// It fails on the first difference.
func CompareTree(ctx context.Context, c *client.Client, t Tree) (Moved, error) {
	var sum totals
	err := t.each(ctx, func(ctx context.Context, w client.Window, f File) error {
		file, err := os.Open(f.Name)
		if err != nil {
			return err
		}
		defer file.Close()
		res, err := c.Download(ctx, w, client.ObjectName{Bucket: t.Bucket, Key: f.Key}, &comparer{file: file},
			client.GetOptions{Concurrency: t.Concurrency})
		if err != nil {
			return err
		}
		if res.Bytes != f.Bytes {
			return fmt.Errorf("bench: %s has %d bytes, its file %d", f.Key, res.Bytes, f.Bytes)
		}
		sum.add(res)
		return nil
	})
	return sum.moved, err
}

type totals struct {
	mu    sync.Mutex
	moved Moved
}

func (t *totals) add(r client.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moved.Objects++
	t.moved.Bytes += r.Bytes
	t.moved.FabricBytes += r.FabricBytes
}

// each calls f for every file with a window of its own.
func (t Tree) each(ctx context.Context, f func(context.Context, client.Window, File) error) error {
	each := int64(len(t.Region.Bytes())) / int64(t.Concurrency)
	windows := make(chan client.Window, t.Concurrency)
	for i := range t.Concurrency {
		windows <- t.Region.Window(int64(i)*each, each)
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(t.Concurrency)
	for _, file := range t.Files {
		if gctx.Err() != nil {
			break
		}
		w := <-windows
		group.Go(func() error {
			defer func() { windows <- w }()
			if err := f(gctx, w, file); err != nil {
				return fmt.Errorf("%s: %w", file.Key, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// ErrDiffers says that an object's bytes are not those of its file.
var ErrDiffers = errors.New("bench: bytes differ")

// comparer is an io.WriterAt that compares what it is given with a file.
type comparer struct {
	file *os.File
}

// WriteAt implements io.WriterAt.
func (c *comparer) WriteAt(p []byte, off int64) (int, error) {
	const piece = 256 << 10
	own := make([]byte, min(piece, len(p)))
	for at := 0; at < len(p); {
		n := min(len(own), len(p)-at)
		got, err := c.file.ReadAt(own[:n], off+int64(at))
		if err != nil && !errors.Is(err, io.EOF) {
			return at, err
		}
		if string(own[:got]) != string(p[at:at+n]) {
			return at, fmt.Errorf("%w: within %d bytes at %d", ErrDiffers, n, off+int64(at))
		}
		at += n
	}
	return len(p), nil
}
