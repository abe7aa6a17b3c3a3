package native_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuilds: each way to build gives a program that starts, and says why it has no verbs. None needs libibverbs.
func TestBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the standard library's cgo parts again")
	}
	compiler(t)
	none := filepath.Join(t.TempDir(), "libnone.so")
	builds := []struct {
		name, want string
		env        []string
		verbs      bool
	}{
		{"without cgo", "no-cgo", []string{"CGO_ENABLED=0"}, false},
		{"without headers", "no-headers", []string{"CGO_ENABLED=1", "CGO_CFLAGS=-O2 -DNV_NO_HEADERS"}, false},
		{"with verbs", "no-library", []string{"CGO_ENABLED=1"}, true},
	}
	for _, b := range builds {
		t.Run(b.name, func(t *testing.T) {
			if b.verbs {
				verbsHeaders(t, compiler(t))
			}
			program := filepath.Join(t.TempDir(), "reason")
			cmd := exec.Command("go", "build", "-tags", "netgo,osusergo", "-o", program, "./testdata/reason")
			cmd.Env = append(os.Environ(), b.env...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("go build: %v\n%s", err, out)
			}
			file, err := elf.Open(program)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			needed, err := file.ImportedLibraries()
			if err != nil {
				t.Fatal(err)
			}
			for _, library := range needed {
				if strings.Contains(library, "verbs") {
					t.Errorf("needs %s", library)
				}
			}
			out, err := exec.Command(program, none).Output()
			if got := strings.TrimSpace(string(out)); err != nil || got != b.want {
				t.Errorf("%q %v, want %s", got, err, b.want)
			}
		})
	}
}
