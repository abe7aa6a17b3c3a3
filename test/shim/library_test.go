package shim_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// library builds the library as its users get it.
func library(t *testing.T) string {
	t.Helper()
	compiler(t)
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("no make")
	}
	name := filepath.Join(t.TempDir(), "shim.so")
	out, err := exec.Command("make", "-C", "../..", "shim", "SHIM="+name).CombinedOutput()
	if err != nil {
		t.Fatalf("make shim: %v\n%s", err, out)
	}
	return name
}

// TestLibrary: it exports what its users look for and nothing else, and needs the C library alone.
func TestLibrary(t *testing.T) {
	f, err := elf.Open(library(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	needed, err := f.ImportedLibraries()
	if err != nil || len(needed) == 0 {
		t.Errorf("needs %v %v", needed, err)
	}
	for _, name := range needed {
		if !strings.HasPrefix(name, "libc.") && !strings.HasPrefix(name, "ld-") { // the linker has variables of threads
			t.Errorf("needs %s", name)
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"penstock_cuobj_last_error"}
	names := []string{"available", "register_buffer", "deregister_buffer", "get_rdma_token", "put_rdma_token"}
	for _, name := range names {
		want = append(want, "cuobj_"+name, "kvikio_cuobj_"+name)
	}
	var guarded, fortified bool
	for _, s := range symbols {
		guarded = guarded || s.Name == "__stack_chk_fail"
		fortified = fortified || strings.HasSuffix(s.Name, "_chk")
		if s.Section == elf.SHN_UNDEF || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
			continue
		}
		if i := slices.Index(want, s.Name); i >= 0 {
			want = slices.Delete(want, i, i+1)
		} else {
			t.Errorf("exports %s", s.Name)
		}
	}
	if len(want) > 0 {
		t.Errorf("does not export %v", want)
	}
	if !guarded || !fortified {
		t.Errorf("stack guarded %v, functions of the C library with bounds %v", guarded, fortified)
	}
}

// TestHTTPSIsRefusedAloud: once, also for programs that do not ask for reasons.
func TestHTTPSIsRefusedAloud(t *testing.T) {
	var d *driver
	t.Cleanup(func() { // after the driver's end, when all of standard error is there
		if got := d.text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "https is not supported") {
			t.Errorf("standard error: %q", got)
		}
	})
	d = newDriver(t, program(t, "driver", "address,undefined"), "PENSTOCK_CUOBJ_LOG=", "AWS_ENDPOINT_URL=https://node",
		"AWS_ACCESS_KEY_ID=A", "AWS_SECRET_ACCESS_KEY=S")
	d.want("0", "alloc 1 1000")
	for _, question := range []string{"available", "register 1", "available"} {
		if got := d.ask("%s", question); !strings.Contains(got, "https is not supported") {
			t.Errorf("%s: %s", question, got)
		}
	}
	d.want("0", "free 1")
}

// TestPython: ctypes, as Python clients use the library, with memory of a bytearray, in threads and in forked children.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	so := library(t)
	n := startNode(t)
	for _, fabric := range []string{"shm", "tcp"} {
		t.Run(fabric, func(t *testing.T) { ctypes(t, python, so, n.environment(fabric)) })
	}
}

func ctypes(t *testing.T, python, so string, environment []string) {
	t.Helper()
	args := append(unprivileged(t), python, "testdata/tokens.py", so)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "ok" {
		t.Errorf("%v\n%s", err, out)
	}
}
