// Package shim_test builds the C files of native/shim and checks them from outside: against known answers, and against
// a real node. Without a C compiler its tests are skipped.
package shim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/native/fakeverbs"
)

// source is where the C files lie.
const source = "../../native/shim"

// strict are the flags under which they compile without a warning.
var strict = []string{
	"-std=c11", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-Wpedantic", "-fPIC", "-pthread",
}

// onDevices tells whether this run has an RDMA device, and is for the tests of it only: their names end in OnDevices.
func onDevices() bool { return os.Getenv("PENSTOCK_TEST_VERBS") == "device" }

func compiler(t testing.TB) string {
	t.Helper()
	if tests, _, _ := strings.Cut(t.Name(), "/"); onDevices() != strings.HasSuffix(tests, "OnDevices") {
		t.Skip("a test of devices, or none: PENSTOCK_TEST_VERBS=device chooses")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	return cc
}

func files(t testing.TB) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(source, "cs_*.c"))
	if err != nil || len(names) == 0 {
		t.Fatalf("files of the shim: %v %v", names, err)
	}
	return names
}

// builds are the programs of this run, so that each is compiled once.
var builds = struct {
	mu  sync.Mutex
	dir string
}{}

func TestMain(m *testing.M) {
	var err error
	if builds.dir, err = os.MkdirTemp("", "penstock-shim-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(builds.dir) // nothing depends on it
	os.Exit(code)
}

// program compiles one of testdata with all of the shim, under sanitizers where the machine has them.
func program(t testing.TB, name, sanitizers string) string {
	t.Helper()
	return build(t, name, sanitizers, files(t)...)
}

// fakedProgram is the driver with faked adapters in its process.
func fakedProgram(t testing.TB, sanitizers string) string {
	t.Helper()
	faked := filepath.Join(source, "..", "fakeverbs")
	names, err := filepath.Glob(filepath.Join(faked, "fk_*.c"))
	if err != nil || len(names) == 0 {
		t.Fatalf("files of the faked adapter: %v %v", names, err)
	}
	if !fakeverbs.Supported() {
		t.Skip("no headers of verbs, or no cgo")
	}
	names = append(names, withTable(t, "fakenic.c")...)
	return build(t, "driver", sanitizers, append(names, "-D_GNU_SOURCE=", "-I", faked, "-I", filepath.Dir(faked))...)
}

func build(t testing.TB, name, sanitizers string, with ...string) string {
	t.Helper()
	cc := compiler(t)
	builds.mu.Lock()
	defer builds.mu.Unlock()
	out := filepath.Join(builds.dir, fmt.Sprint(name, "-", sanitizers, "-", len(with)))
	if _, err := os.Stat(out); err == nil {
		return out
	}
	args := []string{"-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", source, "-o", out,
		filepath.Join("testdata", name+".c")}
	args = append(append(append(args, with...), verbsFiles()...), "-ldl")
	guarded := append([]string{"-fsanitize=" + sanitizers, "-fno-sanitize-recover=undefined"}, args...)
	text, err := exec.Command(cc, guarded...).CombinedOutput()
	if err != nil {
		t.Logf("without the sanitizers: %v\n%s", err, text)
		text, err = exec.Command(cc, args...).CombinedOutput()
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	return out
}

// shared links files as a library.
func shared(t testing.TB, names ...string) string {
	t.Helper()
	so := filepath.Join(t.TempDir(), "shim.so") // its users know it by this path
	args := []string{"-g", "-O1", "-std=c11", "-D_GNU_SOURCE=", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden",
		"-I", source, "-o", so}
	args = append(append(args, names...), verbsFiles()...)
	if text, err := exec.Command(compiler(t), append(args, "-ldl")...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return so
}

// linked is the driver as a user of the library, without sanitizers: quick to compile.
func linked(t testing.TB, so string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "driver")
	text, err := exec.Command(compiler(t), "-std=c11", "-O1", "-pthread", "-I", source, "-o", out,
		filepath.Join("testdata", "driver.c"), so).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// TestNoWarnings under any compiler of this machine.
func TestNoWarnings(t *testing.T) {
	compiler(t)
	for _, name := range []string{"gcc", "clang"} {
		cc, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		for _, file := range files(t) {
			args := append([]string{"-O2", "-c", file, "-o", filepath.Join(t.TempDir(), "out.o")}, strict...)
			if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
				t.Errorf("%s %s: %v\n%s", name, file, err, text)
			}
		}
	}
}
