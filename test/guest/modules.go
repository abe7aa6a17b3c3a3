package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// modules are what the guest needs and its kernel does not have built in. Nothing depends on crc32_generic
// by name, but without a crc32 of the kernel's crypto no rxe device can be made; crc32c likewise for ext4.
var modules = []string{"virtio_pci", "virtio_net", "virtio_blk", "9p", "9pnet_virtio", "overlay", "crc32c_generic",
	"ext4", "crc32_generic", "veth", "dummy", "ib_uverbs", "rdma_rxe", "rdma_ucm"}

// moduleFiles lists the files of modules with what they depend on, in the order of loading.
func moduleFiles(root string, names []string) ([]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if base := filepath.Base(path); err == nil && !d.IsDir() && strings.HasSuffix(base, ".ko") {
			files[moduleName(base)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("guest: list modules: %w", err)
	}
	var order []string
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = moduleName(name)
		if seen[name] {
			return nil
		}
		seen[name] = true
		path, ok := files[name]
		if !ok {
			return fmt.Errorf("guest: find module %s below %s: %w", name, root, fs.ErrNotExist)
		}
		needs, err := dependencies(path)
		if err != nil {
			return err
		}
		for _, need := range needs {
			if err := add(need); err != nil {
				return err
			}
		}
		order = append(order, path)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleName is the name that dependencies use: files may have hyphens where modules have underscores.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(file, ".ko"), "-", "_")
}

// dependencies reads the list that each module carries.
func dependencies(path string) ([]string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("guest: read module: %w", err)
	}
	f, err := elf.NewFile(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("guest: read module %s: %w", path, err)
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("guest: read module %s: no section .modinfo", path)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("guest: read module %s: %w", path, err)
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(entry, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
