package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
)

const hugePage = 2 << 20

// hugeMemory is memory with huge pages of the machine's pool. Errors: fabric.ErrNotSupported when the pool
// has too few.
func hugeMemory(size int64, populate bool) (int, error) {
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return -1, fmt.Errorf("huge pages: %w: %w", fabric.ErrNotSupported, err)
	}
	err = unix.Ftruncate(fd, size)
	if err == nil && populate {
		if err = unix.Fallocate(fd, 0, 0, size); errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("huge pages: %w: %w", fabric.ErrNotSupported, err)
		}
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	}
	if err != nil {
		_ = unix.Close(fd) // the first error is what counts
		return -1, err
	}
	return fd, nil
}

func needHuge(t *testing.T, size int64, populate bool) int {
	t.Helper()
	fd, err := hugeMemory(size, populate)
	if errors.Is(err, fabric.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestHugePages announces memfds of huge pages: whole ones are taken, moved both ways and severed, sparse ones
// and wrong sizes are refused as ever.
func TestHugePages(t *testing.T) {
	const size = 4 * hugePage
	good := needHuge(t, size, true)
	sparse := needHuge(t, size, false)
	f := newFabric(t, fabric.Limits{}, "")
	c := connect(t, f)
	for name, tc := range map[string]struct {
		fd   int
		size uint64
		want frame.Status
	}{
		"sparse": {sparse, size, frame.StatusSparse}, "smaller": {good, size - 4096, frame.StatusSize},
		"larger": {good, size + hugePage, frame.StatusSize},
	} {
		c.send(frame.Header{Type: frame.Region, Region: 1, Size: tc.size}, tc.fd)
		if h := c.receive(); h.Status != tc.want {
			t.Errorf("%s: %s, want %s", name, h.Status, tc.want)
		}
	}
	get := c.window(f, good, size, fabric.ForGet, time.Now().Add(patience))
	b := filled(newBuffer(t), 9)
	if err := errors.Join(get.Write(t.Context(), size-1<<20, b), get.Close()); err != nil {
		t.Fatal(err)
	}
	view, err := unix.Mmap(good, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(view) }()
	if view[size-1<<20-1] != 0 || view[size-1<<20] != 9 || view[size-1] != 9 {
		t.Error("wrong bytes in huge pages")
	}
	late := c.open(f, 1, size, fabric.Grant{Direction: fabric.ForGet, Deadline: time.Now().Add(100 * time.Millisecond)})
	window, err := late.(fabric.Mapper).Map(0, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := late.Close(); !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("close while mapped: %v", err)
	}
	clear(window) // lands in the memory that took the place
	if view[size-1] != 9 {
		t.Error("a late write reached huge pages")
	}
	late.(fabric.Mapper).Unmap(0, size)
}

// TestClientTakesHugePages: the kernel's own word, in smaps, on the pages of the client's memory.
func TestClientTakesHugePages(t *testing.T) {
	needHuge(t, 4*hugePage, true)
	for size, want := range map[int]string{2 * hugePage: "2048 kB", 2*hugePage + 1: "4 kB", 4096: "4 kB"} {
		m, err := target.NewMemory(size)
		if err != nil {
			t.Fatal(err)
		}
		maps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		_, own, found := strings.Cut(string(maps), fmt.Sprintf("\n%x-", addressOf(m.Bytes())))
		if _, own, _ = strings.Cut(own, "KernelPageSize:"); !found || !strings.HasPrefix(strings.TrimSpace(own), want) {
			t.Errorf("memory of %d bytes: found %v, pages of %.20s, want %s", size, found, strings.TrimSpace(own), want)
		}
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	}
}
