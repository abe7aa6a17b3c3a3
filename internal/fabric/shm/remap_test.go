package shm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
)

// TestForeignRemapped puts a file in the place of announced memory, which the server cannot see: its writes reach
// the file only where the client's mapping could write it, too. Whatever the mapping is, a read-only file stays
// as it is, and the session lives. Oracle: the file's bytes.
func TestForeignRemapped(t *testing.T) {
	NeedForeign(t)
	const size = 8192
	original := bytes.Repeat([]byte{1}, size)
	for _, tc := range []struct {
		name              string
		open, prot, flags int
		changed           bool // the file
	}{
		{"read-only file, shared", os.O_RDONLY, unix.PROT_READ, unix.MAP_SHARED, false},
		{"read-only file, private", os.O_RDONLY, unix.PROT_READ, unix.MAP_PRIVATE, false},
		{"read-only file, private and writable", os.O_RDONLY, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE, false},
		{"file, private, no access", os.O_RDWR, unix.PROT_NONE, unix.MAP_PRIVATE, false},
		{"file, mapped shared for reading", os.O_RDWR, unix.PROT_READ, unix.MAP_SHARED, false},
		{"file, mapped shared for writing", os.O_RDWR, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED, true},
	} {
		f := newFabric(t, fabric.Limits{}, "")
		c := attached(t, f)
		b := anonymous(t, size)
		if h := c.announce(1, b); h.Type != frame.RegionOK {
			t.Fatal(h.Status)
		}
		name := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(name, original, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(name, tc.open, 0)
		if err != nil {
			t.Fatal(err)
		}
		r := c.open(f, 1, size, fabric.Grant{Direction: fabric.ForGet})
		_, err = unix.MmapPtr(int(file.Fd()), 0, pointer(addressOf(b)), size, tc.prot, tc.flags|unix.MAP_FIXED)
		if err != nil {
			t.Fatal(err)
		}
		writeErr := r.Write(t.Context(), 0, filled(newBuffer(t), 9).Slice(0, size))
		if closeErr := r.Close(); (closeErr == nil) != (writeErr == nil) {
			t.Errorf("%s: write %v, close %v", tc.name, writeErr, closeErr)
		}
		_ = file.Close()
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if changed := !bytes.Equal(got, original); changed != tc.changed || tc.changed && writeErr != nil {
			t.Errorf("%s: file changed %v, write %v", tc.name, changed, writeErr)
		}
		c.alive(tc.name)
	}
}
