package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// kernelPattern matches the kernels that will do: Debian's 6.1, of which rxe is known to work, neither for clouds
// (it has no rxe) nor realtime.
const kernelPattern = `^linux-image-6\.1\.0-([0-9]+)-amd64$`

// kernel is an unpacked one.
type kernel struct {
	name    string
	image   string
	modules []string // files, in the order of loading
}

// makeFileSystem is called by its path, since /usr/sbin may not be in that of a user.
const makeFileSystem = "/usr/sbin/mkfs.ext4"

// packages are what the guest and the builds for it need: a file that shows that the package is there.
var packages = []struct{ file, name string }{
	{"/usr/bin/qemu-system-x86_64", "qemu-system-x86"},
	{"/usr/bin/gcc", "gcc"},
	{"/usr/include/stdlib.h", "libc6-dev"},
	{"/usr/include/infiniband/verbs.h", "libibverbs-dev"},
	{"/usr/bin/ibv_devinfo", "ibverbs-utils"},
	{"/etc/libibverbs.d/rxe.driver", "ibverbs-providers"},
	{"/usr/bin/ib_write_bw", "perftest"},
	{"/usr/bin/rdma", "iproute2"},
	{makeFileSystem, "e2fsprogs"},
}

var errMissing = errors.New("guest: packages of Debian are missing")

// installPackages installs what is missing, or says what must be.
func (h *harness) installPackages(ctx context.Context, guest bool) error {
	var missing []string
	for _, p := range packages {
		if _, err := os.Stat(filepath.Join("/", h.root, p.file)); err != nil &&
			(guest || !strings.HasPrefix(p.name, "qemu")) {
			missing = append(missing, p.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	h.printf("missing: %s\n", strings.Join(missing, " "))
	if h.user != 0 {
		return fmt.Errorf("%w: only root installs them", errMissing)
	}
	err := h.command(ctx, "", "apt-get", "update", "-qq")
	if err == nil {
		err = h.command(ctx, "", "apt-get",
			append([]string{"install", "-y", "-qq", "--no-install-recommends"}, missing...)...)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	return nil
}

// kernel returns the guest's kernel, from the cache or from the index of packages. The package is unpacked, never
// installed.
func (h *harness) kernel(ctx context.Context) (kernel, error) {
	names, err := filepath.Glob(filepath.Join(h.kernels(), "linux-image-*"))
	if err != nil {
		return kernel{}, err
	}
	if found := newest(names); found != "" {
		return readKernel(found)
	}
	name, err := h.offered(ctx)
	if err != nil {
		return kernel{}, err
	}
	h.printf("fetch %s\n", name)
	if err := os.MkdirAll(h.kernels(), 0o755); err != nil {
		return kernel{}, fmt.Errorf("guest: make cache: %w", err)
	}
	dir, err := os.MkdirTemp(h.cache, "fetch-")
	if err != nil {
		return kernel{}, fmt.Errorf("guest: make directory: %w", err)
	}
	k, err := h.fetch(ctx, name, dir)
	return k, errors.Join(err, os.RemoveAll(dir))
}

// offered asks the index for the newest kernel, and brings the index up to date when it has none.
func (h *harness) offered(ctx context.Context) (string, error) {
	for range 2 {
		out, err := exec.CommandContext(ctx, "apt-cache", "search", "--names-only", kernelPattern).Output()
		if err != nil {
			return "", fmt.Errorf("guest: search kernels: %w", err)
		}
		var names []string
		for line := range strings.Lines(string(out)) {
			name, _, _ := strings.Cut(line, " ")
			names = append(names, name)
		}
		if name := newest(names); name != "" {
			return name, nil
		}
		if err := h.command(ctx, "", "apt-get", "update", "-qq"); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("guest: find kernel %s: the index of packages has none", kernelPattern)
}

// newest returns the one of names with the highest number; others than kernels are passed over.
func newest(names []string) string {
	best, high := "", -1
	pattern := regexp.MustCompile(kernelPattern)
	for _, name := range names {
		m := pattern.FindStringSubmatch(filepath.Base(name))
		if m == nil {
			continue
		}
		if n, err := strconv.Atoi(m[1]); err == nil && n > high {
			best, high = name, n
		}
	}
	return best
}

// fetch unpacks a kernel in dir and moves what the guest needs of it into the cache.
func (h *harness) fetch(ctx context.Context, name, dir string) (kernel, error) {
	if err := h.command(ctx, dir, "apt-get", "download", "-qq", name); err != nil {
		return kernel{}, err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return kernel{}, fmt.Errorf("guest: download %s: %d files, want one: %w", name, len(debs), err)
	}
	tree := filepath.Join(dir, "tree")
	if err := h.command(ctx, dir, "dpkg-deb", "-x", debs[0], tree); err != nil {
		return kernel{}, err
	}
	images, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return kernel{}, fmt.Errorf("guest: unpack %s: %d images, want one: %w", name, len(images), err)
	}
	files, err := moduleFiles(filepath.Join(tree, "lib", "modules"), modules)
	if err != nil {
		return kernel{}, err
	}
	kept := filepath.Join(dir, "kept")
	if err := os.Mkdir(kept, 0o755); err != nil {
		return kernel{}, fmt.Errorf("guest: keep kernel: %w", err)
	}
	moves := [][2]string{{images[0], "vmlinuz"}}
	for i, f := range files {
		moves = append(moves, [2]string{f, fmt.Sprintf("%03d-%s", i, filepath.Base(f))})
	}
	for _, m := range moves {
		if err := os.Rename(m[0], filepath.Join(kept, m[1])); err != nil {
			return kernel{}, fmt.Errorf("guest: keep kernel: %w", err)
		}
	}
	// Another run may have been quicker: then its copy is used.
	place := filepath.Join(h.kernels(), name)
	if err := os.Rename(kept, place); err != nil && !errors.Is(err, fs.ErrExist) {
		return kernel{}, fmt.Errorf("guest: keep kernel: %w", err)
	}
	return readKernel(place)
}

// kernels is the directory of the kernels that were unpacked for this list of modules. What is in it never changes, so
// that several runs may use it.
func (h *harness) kernels() string {
	return filepath.Join(h.cache, fmt.Sprintf("modules-%08x", crc32.ChecksumIEEE([]byte(strings.Join(modules, "\n")))))
}

func readKernel(dir string) (kernel, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	return kernel{name: filepath.Base(dir), image: filepath.Join(dir, "vmlinuz"), modules: files}, err
}
