package arena_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
)

func TestGuardTurnsAFaultIntoAnError(t *testing.T) {
	fd, err := unix.MemfdCreate("guard", unix.MFD_CLOEXEC)
	if err != nil {
		t.Skipf("no memfd here: %v", err)
	}
	defer unix.Close(fd)
	page := os.Getpagesize()
	if err := unix.Ftruncate(fd, int64(2*page)); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(fd, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	if err := arena.Guard(func() { memory[page] = 1 }); err != nil {
		t.Fatalf("sound memory: %v", err)
	}
	if err := unix.Ftruncate(fd, int64(page)); err != nil {
		t.Fatal(err)
	}
	if err := arena.Guard(func() { memory[page] = 2 }); !errors.Is(err, arena.ErrMapped) {
		t.Fatalf("truncated memory: got %v, want ErrMapped", err)
	}
}

func TestGuardPassesOtherPanicsOn(t *testing.T) {
	defer func() {
		if got := recover(); got != "broken invariant" {
			t.Fatalf("recovered %v", got)
		}
	}()
	_ = arena.Guard(func() { panic("broken invariant") })
}
