package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
)

// Modes of entries.
const (
	modeDir  = 0o040755
	modeFile = 0o100755
)

// writeInitramfs makes the archive that the kernel unpacks as its first root: this program as /init and the modules,
// whose names sort in the order of loading.
func writeInitramfs(path, program string, modules []string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("guest: make initramfs: %w", err)
	}
	defer func() {
		if e := f.Close(); err == nil && e != nil {
			err = fmt.Errorf("guest: make initramfs: %w", e)
		}
	}()
	w := &archive{w: bufio.NewWriter(f)}
	for _, dir := range []string{"dev", "proc", "sys", "host", "upper", "root", "modules"} {
		w.entry(dir, modeDir, nil)
	}
	w.file("init", program)
	for i, m := range modules {
		w.file(fmt.Sprintf("modules/%03d-%s", i, filepath.Base(m)), m)
	}
	w.entry("TRAILER!!!", 0, nil)
	if w.err == nil {
		w.err = w.w.Flush()
	}
	if w.err != nil {
		return fmt.Errorf("guest: make initramfs: %w", w.err)
	}
	return nil
}

// archive writes the format "newc" of cpio: a header of hexadecimal fields, name and content, each padded to four
// bytes (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel). The first error stays.
type archive struct {
	w     *bufio.Writer
	inode int
	err   error
}

func (a *archive) file(name, from string) {
	if a.err != nil {
		return
	}
	content, err := os.ReadFile(from)
	if err != nil {
		a.err = err
		return
	}
	a.entry(name, modeFile, content)
}

func (a *archive) entry(name string, mode int, content []byte) {
	if a.err != nil {
		return
	}
	a.inode++
	fields := []int{a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0}
	header := "070701"
	for _, f := range fields {
		header += fmt.Sprintf("%08x", f)
	}
	header += name + "\x00"
	a.padded([]byte(header))
	a.padded(content)
}

func (a *archive) padded(b []byte) {
	for _, part := range [][]byte{b, make([]byte, -len(b)&3)} {
		if _, err := a.w.Write(part); err != nil && a.err == nil {
			a.err = err
		}
	}
}
