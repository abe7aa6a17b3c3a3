package native_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCoreOnAnAdapter runs testdata/nic.c, in which there is no Go: the core on the fake adapter, with its faults, with
// a driver that lies, and from many threads, under the sanitizers that there are.
func TestCoreOnAnAdapter(t *testing.T) {
	cc := compiler(t)
	verbsHeaders(t, cc)
	var files []string
	for _, pattern := range []string{"nv_*.c", "fakeverbs/fk_*.c"} {
		some, err := filepath.Glob(pattern)
		if err != nil || len(some) == 0 {
			t.Fatalf("%s: %v %v", pattern, some, err)
		}
		files = append(files, some...)
	}
	for _, name := range []string{"nic", "faults", "hostile", "threads"} {
		files = append(files, filepath.Join("testdata", name+".c"))
	}
	for _, sanitizer := range []string{"address,undefined", "thread"} {
		t.Run(sanitizer, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "nic")
			args := []string{
				"-g", "-O1", "-std=c11", "-D_GNU_SOURCE=", "-Wall", "-Wextra", "-Werror", "-I.", "-Ifakeverbs", "-Itestdata",
				"-fsanitize=" + sanitizer, "-fno-sanitize-recover=all", "-pthread", "-o", program,
			}
			if build(t, cc, append(append(args, files...), "-ldl", "-lm")...) != nil {
				if sanitized(t, cc, sanitizer) {
					t.FailNow()
				}
				t.Skip("the compiler has no such sanitizer")
			}
			for _, part := range []string{"faults", "hostile", "threads"} {
				if sanitizer == "thread" && part != "threads" {
					continue // one thread
				}
				out, err := exec.Command(program, part).CombinedOutput()
				if strings.Contains(string(out), "unexpected memory mapping") {
					t.Skip("the sanitizer does not run in this address space")
				}
				if err != nil {
					t.Errorf("%s: %v\n%s", part, err, out)
				}
			}
		})
	}
}

// sanitized tells whether the compiler can link with a sanitizer.
func sanitized(t *testing.T, cc, sanitizer string) bool {
	t.Helper()
	cmd := exec.Command(cc, "-fsanitize="+sanitizer, "-x", "c", "-", "-o", filepath.Join(t.TempDir(), "none"))
	cmd.Stdin = strings.NewReader("int main(void) { return 0; }\n")
	return cmd.Run() == nil
}
