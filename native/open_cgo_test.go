//go:build cgo

package native_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/native"
)

// TestRF_25_NoLibrary: the dynamic linker's words come through.
func TestRF_25_NoLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnone.so")
	_, err := native.Open(native.Options{Path: path})
	u := wantUnavailable(t, err, native.ReasonNoLibrary)
	if !strings.Contains(u.Detail, path) {
		t.Errorf("detail %q does not name %s", u.Detail, path)
	}
	if err := os.WriteFile(path, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = native.Open(native.Options{Path: path})
	wantUnavailable(t, err, native.ReasonNoLibrary)
}

// TestRF_28_NoSymbol: each function that is not optional is missed by its name. The libraries are made here.
func TestRF_28_NoSymbol(t *testing.T) {
	cc := compiler(t)
	source, err := os.ReadFile("nv_lib.c")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"get_device_list"}
	for line := range strings.Lines(string(source)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "MUST("); ok {
			names = append(names, strings.TrimSuffix(name, "),"))
		}
	}
	if len(names) < 20 {
		t.Fatalf("only %d functions found", len(names))
	}
	for i, missing := range names {
		if i > 2 && i < len(names)-1 && testing.Short() {
			continue
		}
		path := stubLibrary(t, cc, missing, names)
		_, err := native.Open(native.Options{Path: path})
		u := wantUnavailable(t, err, native.ReasonNoSymbol)
		if u.Detail != "ibv_"+missing {
			t.Errorf("without ibv_%s: detail %q", missing, u.Detail)
		}
	}
	l, err := native.Open(native.Options{Path: stubLibrary(t, cc, "", names)})
	if err != nil {
		t.Fatalf("all but the optional functions are there: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// stubLibrary compiles a library with functions of these names, but for one.
func stubLibrary(t *testing.T, cc, missing string, names []string) string {
	t.Helper()
	dir := t.TempDir()
	var text strings.Builder
	for _, name := range names {
		if name != missing {
			text.WriteString("void *ibv_" + name + "(void) { return 0; }\n")
		}
	}
	source, path := filepath.Join(dir, "stub.c"), filepath.Join(dir, "libstub.so")
	if err := os.WriteFile(source, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", path, source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return path
}

func wantUnavailable(t *testing.T, err error, reason string) *native.UnavailableError {
	t.Helper()
	var u *native.UnavailableError
	if !errors.As(err, &u) || !errors.Is(err, native.ErrNotSupported) || u.Reason != reason {
		t.Fatalf("error %v, want reason %s", err, reason)
	}
	return u
}

// TestClosedLibrary: a library that was closed says so, as often as it is closed.
func TestClosedLibrary(t *testing.T) {
	l, err := native.Open(native.Options{})
	if errors.Is(err, native.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Devices(); err != nil {
		t.Errorf("devices: %v", err)
	}
	if _, err := l.OpenDevice("no such device"); !errors.Is(err, native.ErrVerbs) {
		t.Errorf("open of no device: %v", err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Devices(); !errors.Is(err, native.ErrClosed) {
		t.Errorf("devices after close: %v", err)
	}
	if _, err := l.OpenDevice("x"); !errors.Is(err, native.ErrClosed) {
		t.Errorf("open after close: %v", err)
	}
}
