package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// testPackages are run from their own directories, as go test does, in this order. Run narrows them to what depends
// on a device: what needs a fake one or none runs everywhere. Limit is for a guest on a busy machine of two cores.
var testPackages = []struct {
	path, run string
	limit     time.Duration
}{
	{"native", "", 3 * time.Minute},
	{"native/fakeverbs", "^TestDevice", 2 * time.Minute},
	{"internal/rail", "OnRealDevices$", 2 * time.Minute},
	{"internal/fabric/verbs/initiator", "", 2 * time.Minute},
	{"internal/fabric/verbs", "OnDevices$", 2 * time.Minute},
	{"client/target", "^TestRC(Transfer|Fenced?(AfterLost|NeedsNoServer)|Forget|(Broken|Shares)\\w*|Refused|Pathless)$",
		2 * time.Minute},
	{suite, "", 15 * time.Minute},
}

// suite is the end-to-end suite.
const suite = "test/rdma"

// figuresFile is where it keeps its figures, a line of JSON each.
const figuresFile = "figures.jsonl"

// plan is the program of this run.
func (h *harness) plan(only *regexp.Regexp) (program, error) {
	root, err := os.Getwd()
	if err != nil {
		return program{}, fmt.Errorf("guest: find root: %w", err)
	}
	p := program{Results: resultsDir, Scratch: scratchDir}
	if h.host {
		p.Results, p.Scratch = h.resultsDir(), filepath.Join(h.dir, "scratch")
		if h.scratch != "" {
			p.Scratch = h.scratch
		}
		if err := os.MkdirAll(filepath.Join(p.Scratch, "tmp"), 0o755); err != nil {
			return p, fmt.Errorf("guest: make scratch: %w", err)
		}
	}
	p.Env = []string{"PENSTOCK_TEST_VERBS=device", "PENSTOCK_TEST_BINARY=" + h.binary("penstock"),
		"TMPDIR=" + filepath.Join(p.Scratch, "tmp"), "HOME=" + p.Scratch}
	if h.shell != "" {
		p.Steps = []step{{Name: "command", Dir: root, Command: []string{"/bin/sh", "-c", h.shell}, Limit: h.limit}}
		return p, nil
	}
	p.Steps = []step{
		{Name: "devices", Command: []string{"ibv_devinfo"}, Limit: time.Minute},
		perftestStep("write"), perftestStep("read"),
		{Name: "doctor", Command: []string{h.binary("penstock"), "doctor", "rdma"}, Limit: time.Minute},
	}
	for _, t := range testPackages {
		dir := filepath.Join(root, t.path)
		if files, err := filepath.Glob(filepath.Join(dir, "*_test.go")); err != nil || len(files) == 0 {
			continue // not in this tree
		}
		s := step{
			Name: stepName(t.path), Dir: dir, Limit: t.limit + slack, Tests: true, // it ends itself, and says where it was
			Command: []string{h.binary(stepName(t.path) + ".test"), "-test.v",
				"-test.run=" + cmp.Or(h.tests, t.run), "-test.timeout=" + t.limit.String()},
		}
		if t.path == suite {
			s.Env = h.suiteEnv(p.Results)
		}
		p.Steps = append(p.Steps, s)
	}
	p.Steps = slices.DeleteFunc(p.Steps, func(s step) bool { return !only.MatchString(s.Name) })
	if len(p.Steps) == 0 {
		return p, fmt.Errorf("guest: choose steps by %q: none is left", only)
	}
	return p, nil
}

// suiteEnv is for the end-to-end suite: its figures are kept, and in the guest it has time, and a rail that it may take
// down.
func (h *harness) suiteEnv(results string) []string {
	env := []string{
		"PENSTOCK_TEST_RECORD=" + filepath.Join(results, figuresFile),
		"PENSTOCK_TEST_BOUNDS=" + os.Getenv("PENSTOCK_TEST_BOUNDS"),
	}
	if h.host {
		if h.link != "" {
			env = append(env, "PENSTOCK_TEST_LINK="+h.link)
		}
		return env
	}
	return append(env, "PENSTOCK_TEST_SLOW=3", "PENSTOCK_TEST_LINK="+vethDevice)
}

func stepName(path string) string { return strings.ReplaceAll(path, "/", "-") }

func (h *harness) binary(name string) string { return filepath.Join(h.dir, "bin", name) }

// buildTags are those of make build: nothing but the verbs is C.
const buildTags = "netgo,osusergo,pebblegozstd"

// makeBinaries builds with cgo, so that verbs are in.
func (h *harness) makeBinaries(ctx context.Context, p program) error {
	cgo := []string{"CGO_ENABLED=1"}
	command := []string{"go", "build", "-tags", buildTags, "-o", h.binary("penstock"), "./cmd/penstock"}
	if err := h.build(ctx, "", cgo, command); err != nil {
		return err
	}
	for _, t := range testPackages {
		name := stepName(t.path)
		if !slices.ContainsFunc(p.Steps, func(s step) bool { return s.Name == name }) {
			continue
		}
		command := []string{"go", "test", "-tags", buildTags, "-c", "-o", h.binary(name + ".test"), "./" + t.path}
		if err := h.build(ctx, "", cgo, command); err != nil {
			return err
		}
	}
	return nil
}

// perftestScript runs both ends of a perftest on the first device: it shows whether the machine itself works. The
// acknowledgement timeout is 1 s (-u 18), as the guest may stand still for long. The client tries until the server
// listens; its last line of output is the figure, in MB of 2^20 bytes. One that moved nothing fails.
const perftestScript = `set -u
device=$(ls /sys/class/infiniband | head -n 1)
common="-d $device -s 1048576 -D 2 -t 16 -Q 1 -u 18 -F --output=bandwidth"
timeout 45 ib_${operation}_bw $common > server.out 2>&1 &
for try in $(seq 50); do
  timeout 30 ib_${operation}_bw $common 127.0.0.1 > client.out 2>&1 && break
  grep -q "connect" client.out || break
  sleep 0.2
done
wait
figure=$(tail -n 1 client.out | grep -E '^ *[0-9]+\.[0-9]+ *$' | grep -vE '^ *0\.0+ *$') ||
  { cat server.out client.out; exit 1; }
echo $figure MiB/s
`

func perftestStep(operation string) step {
	return step{
		Name: "perftest-" + operation, Limit: 2 * time.Minute,
		Command: []string{"/bin/sh", "-c", perftestScript}, Env: []string{"operation=" + operation},
	}
}
