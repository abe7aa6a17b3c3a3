package native_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// strict are the flags under which the C code must compile without a warning.
var strict = []string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC"}

// compiler skips where there is none, and on the machines of the device tests, which are slow.
func compiler(t *testing.T) string {
	t.Helper()
	if os.Getenv("PENSTOCK_TEST_VERBS") == "device" {
		t.Skip("only tests of devices here")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	return cc
}

// verbsHeaders skips where infiniband/verbs.h is missing.
func verbsHeaders(t *testing.T, cc string) {
	t.Helper()
	cmd := exec.Command(cc, "-E", "-include", "infiniband/verbs.h", "-x", "c", "/dev/null", "-o", os.DevNull)
	if cmd.Run() != nil {
		t.Skip("no infiniband/verbs.h")
	}
}

func coreFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("nv_*.c")
	if err != nil || len(files) == 0 {
		t.Fatalf("core files: %v %v", files, err)
	}
	return files
}

func build(t *testing.T, cc string, args ...string) error {
	t.Helper()
	out, err := exec.Command(cc, args...).CombinedOutput()
	if err != nil {
		t.Logf("%s %s: %v\n%s", cc, strings.Join(args, " "), err, out)
	}
	return err
}

// TestCore runs testdata/core.c: every error path of the core against a table that fails.
func TestCore(t *testing.T) {
	cc := compiler(t)
	verbsHeaders(t, cc)
	program := filepath.Join(t.TempDir(), "core")
	args := append(append([]string{"-g", "-O1", "-o", program}, strict...), "testdata/core.c")
	args = append(append(args, coreFiles(t)...), "-ldl")
	sanitize := []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"}
	if build(t, cc, append(sanitize, args...)...) != nil {
		t.Log("without the sanitizers")
		if build(t, cc, args...) != nil {
			t.FailNow()
		}
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestCoreStandsAlone: with and without the headers the core needs nothing but the C library and its own functions,
// whose names begin with nv_, so neither linking nor starting needs libibverbs.
func TestCoreStandsAlone(t *testing.T) {
	cc := compiler(t)
	for _, flags := range [][]string{{"-O2"}, {"-O2", "-DNV_NO_HEADERS"}} {
		library := filepath.Join(t.TempDir(), "core.so")
		args := append(append([]string{"-shared", "-Wl,--no-undefined", "-o", library}, flags...), strict...)
		args = append(append(args, coreFiles(t)...), "-ldl")
		if build(t, cc, args...) != nil {
			t.Fatal("the core does not link")
		}
		out, err := exec.Command("nm", "-D", "--defined-only", library).Output()
		if err != nil {
			t.Skipf("no nm: %v", err)
		}
		count := 0
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			name := fields[len(fields)-1]
			if strings.HasPrefix(name, "_") { // the linker's own
				continue
			}
			if count++; !strings.HasPrefix(name, "nv_") {
				t.Errorf("%v: symbol %s", flags, name)
			}
		}
		if count < 20 {
			t.Errorf("%v: %d symbols", flags, count)
		}
	}
}

// TestCoreHasNoWarnings under any compiler of this machine, with the headers and without: also none about values that
// a conversion may change, and names that hide others.
func TestCoreHasNoWarnings(t *testing.T) {
	compiler(t)
	for _, name := range []string{"gcc", "clang"} {
		cc, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		for _, flag := range []string{"-DNV_HEADERS", "-DNV_NO_HEADERS"} {
			for _, file := range coreFiles(t) {
				args := append([]string{
					"-O2", "-Wconversion", "-Wshadow", "-Wpedantic", flag, "-c", file, "-o", filepath.Join(t.TempDir(), "out.o"),
				}, strict...)
				if build(t, cc, args...) != nil {
					t.Errorf("%s: %s with %s", name, file, flag)
				}
			}
		}
	}
}

// TestHeaderStandsAlone: nv_api.h and nv.h compile by themselves.
func TestHeaderStandsAlone(t *testing.T) {
	cc := compiler(t)
	for _, header := range []string{"nv_api.h", "nv.h"} {
		for _, flag := range []string{"-DNV_HEADERS", "-DNV_NO_HEADERS"} {
			args := append([]string{flag, "-fsyntax-only", "-include", header, "-x", "c", "/dev/null"}, strict...)
			if build(t, cc, args...) != nil {
				t.Errorf("%s with %s", header, flag)
			}
		}
	}
}
