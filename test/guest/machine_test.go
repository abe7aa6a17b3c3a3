package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// scripts makes shell scripts the only programs that are found.
func scripts(t *testing.T, bodies map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, body := range bodies {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\ncd "+dir+"\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	return dir
}

// furnished is a root that has the files of all packages but some.
func furnished(t *testing.T, without ...string) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, p := range packages {
		if slices.Contains(without, p.name) {
			continue
		}
		file := filepath.Join(root, p.file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestPackages: what is missing is installed by root where apt-get does so, and named otherwise.
func TestPackages(t *testing.T) {
	const works, fails = `echo "$@" >> asked`, `echo "$@" >> asked; echo no network >&2; exit 100`
	for _, c := range []struct {
		name    string
		without []string
		apt     string
		user    int
		host    bool
		asked   string // of apt-get
		want    error
	}{
		{"all there", nil, works, 0, false, "", nil},
		{"root", []string{"qemu-system-x86", "perftest"}, works, 0, false,
			"update -qq\ninstall -y -qq --no-install-recommends qemu-system-x86 perftest\n", nil},
		{"a user", []string{"perftest"}, works, 1000, false, "", errMissing},
		{"a user, all there", nil, works, 1000, false, "", nil},
		{"apt-get fails", []string{"perftest"}, fails, 0, false, "update -qq\n", errMissing},
		{"no apt-get", []string{"perftest"}, "", 0, false, "", errMissing},
		{"on the host's adapters", []string{"qemu-system-x86"}, works, 1000, true, "", nil},
		{"on the host's adapters, perftest", []string{"perftest"}, works, 1000, true, "", errMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			programs := map[string]string{}
			if c.apt != "" {
				programs["apt-get"] = c.apt
			}
			dir := scripts(t, programs)
			var out bytes.Buffer
			h := &harness{root: furnished(t, c.without...), user: c.user, out: &out}
			err := h.installPackages(t.Context(), !c.host)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if err != nil && !strings.Contains(out.String(), c.without[0]) {
				t.Errorf("%q does not name %s", out.String(), c.without[0])
			}
			asked, err := os.ReadFile(filepath.Join(dir, "asked"))
			if err != nil && c.asked != "" || string(asked) != c.asked {
				t.Errorf("apt-get was asked %q, want %q: %v", asked, c.asked, err)
			}
		})
	}
}

// TestHostWithoutDevice has an exit code of its own, before anything is installed or built.
func TestHostWithoutDevice(t *testing.T) {
	scripts(t, nil)
	for _, root := range []string{t.TempDir(), furnished(t)} {
		h := &harness{host: true, root: root, cache: t.TempDir(), shell: "true", out: io.Discard}
		if code := exitCode(h.run(t.Context())); code != exitNoDevice {
			t.Errorf("exit code %d, want %d", code, exitNoDevice)
		}
	}
	if code := exitCode(errFailed); code != 1 {
		t.Errorf("exit code %d of a failed run", code)
	}
	if code := exitCode(nil); code != 0 {
		t.Errorf("exit code %d of a good run", code)
	}
}

// TestBootsWhileItBuilds plays QEMU and go by scripts. A guest waits for what is built; the one that fails first ends
// the other, and is the run's failure.
func TestBootsWhileItBuilds(t *testing.T) {
	const (
		ready = `echo '{"penstock":"ready"}'; echo '{"penstock":"begin","step":"build"}'; `
		waits = `until [ -e "$results/built" ]; do /bin/sleep 0.1; done; `
		ends  = `: > "$results/build.log"; : > "$results/command.log"; echo '{"penstock":"end","step":"build"}'; ` +
			`echo '{"penstock":"begin","step":"command"}'; echo '{"penstock":"end","step":"command"}'; ` +
			`echo '{"penstock":"done"}'`
		hangs = "while :; do /bin/sleep 1; done"
	)
	for _, c := range []struct {
		name, qemu, build string
		want              error // nil: the run passes
	}{
		{"both work", ready + waits + ends,
			"/bin/sleep 0.5", nil},
		{"the build fails", ready + hangs, "echo no compiler; exit 1", errBuild},
		{"the guest fails", ready + "exit 1", hangs, errNoMarker},
		{"the guest cannot be prepared", `echo '{"penstock":"error","why":"no rail"}'`, hangs, errGuest},
		{"both fail, the guest first", "exit 1", "/bin/sleep 2; exit 1", errNoMarker},
	} {
		t.Run(c.name, func(t *testing.T) {
			results := t.TempDir()
			scripts(t, map[string]string{"qemu-system-x86_64": "results=" + results + "; " + c.qemu, "go": c.build})
			h := &harness{root: furnished(t), cache: t.TempDir(), results: results, shell: "true", limit: time.Minute,
				out: io.Discard}
			kernel := filepath.Join(h.kernels(), "linux-image-6.1.0-1-amd64")
			if err := os.MkdirAll(kernel, 0o755); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			err := h.run(t.Context())
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || errors.Is(err, errBuild) != (c.want == errBuild) {
				t.Errorf("verdict %v, want %v", err, c.want)
			}
		})
	}
}

// TestKeepsAFailedRun: its output stays in the cache and is named.
func TestKeepsAFailedRun(t *testing.T) {
	scripts(t, map[string]string{"qemu-system-x86_64": "exit 1", "go": ":"})
	var out bytes.Buffer
	h := &harness{root: furnished(t), cache: t.TempDir(), shell: "true", limit: time.Minute, out: &out}
	if err := os.MkdirAll(filepath.Join(h.kernels(), "linux-image-6.1.0-1-amd64"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.run(t.Context()); !errors.Is(err, errNoMarker) {
		t.Errorf("verdict %v", err)
	}
	kept, err := filepath.Glob(filepath.Join(h.cache, "failed-*", programFile))
	if err != nil || len(kept) != 1 || !strings.Contains(out.String(), filepath.Dir(kept[0])) {
		t.Errorf("kept %q, %v; said %s", kept, err, out.String())
	}
	if _, err := os.Stat(h.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run's own directory is still there: %v", err)
	}
}
