package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// toolbox is where the clients of one kind of run are installed: pinned or newest.
type toolbox struct {
	source string // test/clients
	dir    string // below the cache
	pinned bool
	env    []string
}

// What is asked for by name; all else comes with it.
var (
	pyNames = map[string][]string{ // by virtual environment
		"py": {"awscli", "boto3", "obstore", "s3cmd", "s5cmd"}, "pycrt": {"boto3", "botocore[crt]"},
	}
	jsNames = []string{"@aws-sdk/client-s3", "@aws-sdk/lib-storage", "@aws-sdk/s3-request-presigner"}
	goNames = []string{
		"github.com/rclone/rclone", "github.com/minio/minio-go/v7", "github.com/aws/aws-sdk-go-v2/config",
		"github.com/aws/aws-sdk-go-v2/service/s3", "github.com/aws/aws-sdk-go-v2/feature/s3/manager",
		"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager",
	}
)

func (t *toolbox) py(name string) string  { return t.venv("py", name) }
func (t *toolbox) bin(name string) string { return filepath.Join(t.dir, "bin", name) }
func (t *toolbox) venv(env, name string) string {
	return filepath.Join(t.dir, env, "bin", name)
}
func (t *toolbox) js() string           { return filepath.Join(t.dir, "js") }
func (t *toolbox) versionsFile() string { return filepath.Join(t.source, "versions.txt") }

func (t *toolbox) tool(ctx context.Context, dir, name string, args ...string) (string, error) {
	out, err := command{env: t.env, dir: dir}.run(ctx, name, args...)
	if err == nil && out.code != 0 {
		err = fmt.Errorf("%s %s: exit code %d: %s", name, args[0], out.code, clip(out.stderr+out.stdout))
	}
	return out.stdout, err
}

// install brings all clients: the recorded versions when pinned, else the newest of the indexes.
func (t *toolbox) install(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(t.dir, "bin"), 0o755); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.installGo(ctx) })
	g.Go(func() error { return errors.Join(t.installPython(ctx, "py"), t.installPython(ctx, "pycrt")) })
	g.Go(func() error { return t.installJS(ctx) })
	return g.Wait()
}

// pins are the recorded packages of one language, as its installer takes them.
func (t *toolbox) pins(language string) ([]string, error) {
	text, err := os.ReadFile(t.versionsFile())
	if err != nil {
		return nil, fmt.Errorf("install: read versions: %w", err)
	}
	var pins []string
	for line := range strings.Lines(string(text)) {
		if pin, ok := strings.CutPrefix(strings.TrimSpace(line), language+" "); ok {
			pins = append(pins, pin)
		}
	}
	if len(pins) == 0 {
		return nil, fmt.Errorf("install: versions.txt: no %s package", language)
	}
	return pins, nil
}

// current says whether what was installed last is what is wanted now; done notes it.
func (t *toolbox) current(language string, pins []string) bool {
	text, err := os.ReadFile(filepath.Join(t.dir, language+".installed"))
	return err == nil && string(text) == strings.Join(pins, "\n")
}

func (t *toolbox) done(language string, pins []string) error {
	return os.WriteFile(filepath.Join(t.dir, language+".installed"), []byte(strings.Join(pins, "\n")), 0o644)
}

func (t *toolbox) installPython(ctx context.Context, env string) error {
	args := append([]string{"install", "--upgrade"}, pyNames[env]...)
	var pins []string
	if t.pinned {
		var err error
		if pins, err = t.pins(env); err != nil {
			return err
		}
		if t.current(env, pins) {
			return nil
		}
		args = append([]string{"install", "--no-deps"}, pins...)
	}
	pip := t.venv(env, "pip")
	if _, err := os.Stat(pip); errors.Is(err, os.ErrNotExist) {
		if _, err := t.tool(ctx, t.dir, "python3", "-m", "venv", filepath.Join(t.dir, env)); err != nil {
			return err
		}
	}
	args = append([]string{"-q", "--disable-pip-version-check"}, args...)
	if _, err := t.tool(ctx, t.dir, pip, args...); err != nil {
		return err
	}
	return t.done(env, pins)
}

func (t *toolbox) installJS(ctx context.Context) error {
	if err := os.MkdirAll(t.js(), 0o755); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	manifest := `{"private": true, "type": "module"}`
	if err := os.WriteFile(filepath.Join(t.js(), "package.json"), []byte(manifest), 0o644); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	var pins []string
	if t.pinned {
		var err error
		if pins, err = t.pins("js"); err != nil {
			return err
		}
	}
	if !t.pinned || !t.current("js", pins) {
		names := pins
		if !t.pinned {
			for _, n := range jsNames {
				names = append(names, n+"@latest")
			}
		}
		args := append([]string{"install", "--no-audit", "--no-fund", "--no-package-lock", "--save-exact"}, names...)
		if _, err := t.tool(ctx, t.js(), "npm", args...); err != nil {
			return err
		}
		if err := t.done("js", pins); err != nil {
			return err
		}
	}
	// modules are looked up from where the program lies
	program, err := os.ReadFile(filepath.Join(t.source, "js", "client.mjs"))
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	return os.WriteFile(filepath.Join(t.js(), "client.mjs"), program, 0o644)
}

func (t *toolbox) installGo(ctx context.Context) error {
	dir := filepath.Join(t.source, "gocli")
	if !t.pinned {
		dir = filepath.Join(t.dir, "gocli")
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("install: %w", err)
		}
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(t.source, "gocli"))); err != nil {
			return fmt.Errorf("install: %w", err)
		}
		get := []string{"get"}
		for _, n := range goNames {
			get = append(get, n+"@latest")
		}
		if _, err := t.tool(ctx, dir, "go", get...); err != nil {
			return err
		}
		if _, err := t.tool(ctx, dir, "go", "mod", "tidy"); err != nil {
			return err
		}
	}
	_, err := t.tool(ctx, dir, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(t.dir, "bin")+"/",
		"./awsgo", "./miniogo", "./rclone")
	return err
}

// pyPackages and jsPackages list all that is installed, as pins.
func (t *toolbox) pyPackages(ctx context.Context, env string) ([]string, error) {
	out, err := t.tool(ctx, t.dir, t.venv(env, "pip"), "--disable-pip-version-check", "freeze")
	return strings.Fields(out), err
}

func (t *toolbox) jsPackages() ([]string, error) {
	var found []string
	for _, pattern := range []string{"*", "@*/*"} {
		files, err := filepath.Glob(filepath.Join(t.js(), "node_modules", pattern, "package.json"))
		if err != nil {
			return nil, fmt.Errorf("versions: %w", err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				return nil, fmt.Errorf("versions: %w", err)
			}
			var p struct{ Name, Version string }
			if err := json.Unmarshal(text, &p); err != nil {
				return nil, fmt.Errorf("versions: %s: %w", f, err)
			}
			found = append(found, p.Name+"@"+p.Version)
		}
	}
	slices.Sort(found)
	return found, nil
}

// versions of what is asked for by name, for people.
func (t *toolbox) versions(ctx context.Context) ([]string, error) {
	var lines []string
	for _, env := range []string{"py", "pycrt"} {
		py, err := t.pyPackages(ctx, env)
		if err != nil {
			return nil, err
		}
		for _, p := range py {
			name, _, _ := strings.Cut(p, "==")
			line := strings.Replace(p, "==", " ", 1)
			wanted := slices.Contains(pyNames["py"], name) || name == "botocore" || name == "awscrt"
			if wanted && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	js, err := t.jsPackages()
	if err != nil {
		return nil, err
	}
	for _, p := range js {
		if at := strings.LastIndexByte(p, '@'); slices.Contains(jsNames, p[:at]) {
			lines = append(lines, p[:at]+" "+p[at+1:])
		}
	}
	for _, name := range []string{"awsgo", "miniogo", "rclone"} {
		info, err := buildinfo.ReadFile(t.bin(name))
		if err != nil {
			return nil, fmt.Errorf("versions: %w", err)
		}
		for _, d := range info.Deps {
			linked := d.Path + " " + d.Version
			if slices.Contains(goNames, d.Path) && !slices.Contains(lines, linked) {
				lines = append(lines, linked)
			}
		}
	}
	for _, c := range [][]string{{t.py("s5cmd"), "version"}, {t.py("python"), "--version"}, {"node", "--version"}} {
		out, err := t.tool(ctx, t.dir, c[0], c[1:]...)
		if err != nil {
			return nil, err
		}
		lines = append(lines, filepath.Base(c[0])+" "+strings.TrimPrefix(strings.TrimSpace(out), "Python "))
	}
	return lines, nil
}

// record writes what was installed into the repository, for pinned runs.
func (t *toolbox) record(ctx context.Context) error {
	js, err := t.jsPackages()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.WriteString("# What pinned runs install beside gocli/go.mod. Written by a run with RECORD=1.\n")
	for _, env := range []string{"py", "pycrt"} {
		py, err := t.pyPackages(ctx, env)
		if err != nil {
			return err
		}
		for _, p := range py {
			b.WriteString(env + " " + p + "\n")
		}
	}
	for _, p := range js {
		b.WriteString("js " + p + "\n")
	}
	if err := os.WriteFile(t.versionsFile(), b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(t.dir, "gocli", name))
		if err != nil {
			return fmt.Errorf("record: %w", err)
		}
		if err := os.WriteFile(filepath.Join(t.source, "gocli", name), text, 0o644); err != nil {
			return fmt.Errorf("record: %w", err)
		}
	}
	return nil
}
