package fakeverbs_test

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestStrictC: the C files compile without a warning, with the headers of verbs and without.
func TestStrictC(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	files, err := filepath.Glob("fk_*.c")
	if err != nil || len(files) == 0 {
		t.Fatalf("files: %v %v", files, err)
	}
	for _, flag := range []string{"-DNDEBUG", "-DNV_NO_HEADERS"} {
		for _, file := range files {
			out, err := exec.Command(cc, "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-I..",
				flag, "-c", file, "-o", filepath.Join(t.TempDir(), "out.o")).CombinedOutput()
			if err != nil {
				t.Errorf("%s %s: %v\n%s", flag, file, err, out)
			}
		}
	}
}
