package native_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/native"
)

// mlx5Headers tells whether infiniband/mlx5dv.h is there.
func mlx5Headers(cc string) bool {
	return exec.Command(cc, "-E", "-include", "infiniband/mlx5dv.h", "-x", "c", "/dev/null", "-o", os.DevNull).Run() == nil
}

// TestDCCore runs testdata/dc.c: what libmlx5 gets from the core, and what the core does when it fails. It compiles
// against the real headers, with the warnings of strict as errors.
func TestDCCore(t *testing.T) {
	cc := compiler(t)
	verbsHeaders(t, cc)
	if !mlx5Headers(cc) {
		t.Skip("no infiniband/mlx5dv.h")
	}
	program := filepath.Join(t.TempDir(), "dc")
	args := append(append([]string{"-g", "-O1", "-o", program}, strict...), "testdata/dc.c")
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

// TestCoreWithoutMlx5: where only infiniband/mlx5dv.h is missing the core compiles and links all the same.
func TestCoreWithoutMlx5(t *testing.T) {
	cc := compiler(t)
	library := filepath.Join(t.TempDir(), "core.so")
	args := append([]string{"-shared", "-Wl,--no-undefined", "-DNV_NO_MLX5_HEADERS", "-o", library}, strict...)
	if build(t, cc, append(append(args, coreFiles(t)...), "-ldl")...) != nil {
		t.Error("the core does not link")
	}
}

// TestMlx5Symbols: where libmlx5.so.1 is installed, all functions that DC needs of it and of libibverbs are found in
// them; else the reason says what is missing. No adapter is needed.
func TestMlx5Symbols(t *testing.T) {
	library, err := native.Open(native.Options{})
	if err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := library.Close(); err != nil {
			t.Error(err)
		}
	}()
	want := ""
	switch {
	case !mlx5Headers(compiler(t)):
		want = native.ReasonNoMlx5Headers
	case !installed(t, "libmlx5.so.1"):
		want = native.ReasonNoMlx5
	}
	for range 2 { // the second one finds it open
		var unavailable *native.UnavailableError
		err := library.DC()
		if got := errors.As(err, &unavailable); got != (want != "") || got && unavailable.Reason != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// installed asks the dynamic linker's own list.
func installed(t *testing.T, library string) bool {
	t.Helper()
	for _, name := range []string{"ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"} {
		if out, err := exec.Command(name, "-p").Output(); err == nil {
			return strings.Contains(string(out), library)
		}
	}
	t.Skip("no ldconfig")
	return false
}

// TestDestinationHidesItsKey: no verb of fmt prints the access key of a DCT.
func TestDestinationHidesItsKey(t *testing.T) {
	d := native.Destination{DCT: 5, Key: 123454321}
	for _, verb := range []string{"%v", "%+v", "%#v", "%d", "%x", "%s", "%q"} {
		for _, arg := range []any{d, &d, []native.Destination{d}, struct{ D native.Destination }{d}} {
			text := fmt.Sprintf(verb, arg)
			if strings.Contains(text, fmt.Sprint(d.Key)) || strings.Contains(text, fmt.Sprintf("%x", d.Key)) {
				t.Errorf("%s of %T prints a key: %s", verb, arg, text)
			}
		}
	}
}
