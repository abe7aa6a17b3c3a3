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

// testPackage is a step of tests.
type testPackage struct {
	path, run string
	limit     time.Duration
	lane      int
}

// longFactor is how much longer the long forms may take.
const longFactor = 4

// testPackages are run from their own directories, as go test does, in this order. Run narrows them to what depends
// on a device: what needs a fake one or none runs everywhere. Limit is for a guest on a busy machine of two cores.
var testPackages = []testPackage{
	{"native", "", 3 * time.Minute, 1},
	{"native/fakeverbs", "^TestDevice", 2 * time.Minute, 1},
	{"internal/rail", "OnRealDevices$", 2 * time.Minute, 1},
	{"internal/fabric/verbs/initiator", "", 4 * time.Minute, 1},
	{"internal/fabric/verbs", "OnDevices$", 5 * time.Minute, 2},
	{"internal/fabric/hip", "", 4 * time.Minute, 1},
	{"client/target", "^TestRC(Transfer|Fenced?(AfterLost|NeedsNoServer)|Forget|(Broken|Shares)\\w*|Refused|Pathless)$",
		2 * time.Minute, 1},
	{"test/shim", "OnDevices$", 10 * time.Minute, 2},
	{suite, "", 15 * time.Minute, 0}, // it counts the objects of all processes
}

// clientsVariables name the directory where make e2e has installed clients of others, and which of them.
var clientsVariables = []string{"PENSTOCK_TEST_MSC", "PENSTOCK_TEST_MSC_PINNED"}

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
	for _, name := range clientsVariables {
		if value := os.Getenv(name); value != "" {
			p.Env = append(p.Env, name+"="+value)
		}
	}
	if h.shell != "" {
		p.Steps = []step{{Name: "command", Dir: root, Command: []string{"/bin/sh", "-c", h.shell}, Limit: h.limit}}
		return h.waits(p, 0), nil
	}
	p.Steps = []step{
		{Name: "devices", Command: []string{"ibv_devinfo"}, Limit: time.Minute},
		h.perftestStep("write"), h.perftestStep("read"),
		{Name: "doctor", Command: []string{h.binary("penstock"), "doctor", "rdma"}, Limit: time.Minute},
	}
	for _, t := range testPackages {
		dir := filepath.Join(root, t.path)
		if files, err := filepath.Glob(filepath.Join(dir, "*_test.go")); err != nil || len(files) == 0 {
			continue // not in this tree
		}
		p.Steps = append(p.Steps, h.testStep(t, dir, p.Results))
	}
	p.Steps = slices.DeleteFunc(p.Steps, func(s step) bool { return !only.MatchString(s.Name) })
	if len(p.Steps) == 0 {
		return p, fmt.Errorf("guest: choose steps by %q: none is left", only)
	}
	first := slices.IndexFunc(p.Steps, func(s step) bool { return strings.HasPrefix(s.Command[0], h.dir) })
	if first < 0 {
		return p, nil
	}
	return h.waits(p, first), nil
}

// waits has a guest wait for what is built before a step.
func (h *harness) waits(p program, before int) program {
	if !h.host {
		p.Steps = slices.Insert(p.Steps, before, buildStep())
	}
	return p
}

func (h *harness) testStep(t testPackage, dir, results string) step {
	limit := t.limit
	if h.long {
		limit *= longFactor
	}
	s := step{
		Name: stepName(t.path), Dir: dir, Tests: true, Lane: t.lane,
		Limit: limit + slack, // it ends itself, and says where it was
		Command: []string{h.testBinary(t.path), "-test.v", "-test.run=" + cmp.Or(h.tests, t.run),
			"-test.timeout=" + limit.String()},
	}
	if t.path == suite {
		s.Env = h.suiteEnv(results)
	}
	return s
}

// suiteEnv is for the end-to-end suite: its figures are kept, and in the guest it has time, and a rail that it may take
// down.
func (h *harness) suiteEnv(results string) []string {
	env := []string{
		"PENSTOCK_TEST_RECORD=" + filepath.Join(results, figuresFile),
		"PENSTOCK_TEST_BOUNDS=" + os.Getenv("PENSTOCK_TEST_BOUNDS"),
	}
	if h.long {
		env = append(env, "PENSTOCK_TEST_LONG=1")
	}
	if dir := os.Getenv("PENSTOCK_TEST_CLIENTS"); dir != "" { // the guest sees this machine's files
		if whole, err := filepath.Abs(dir); err == nil { // its steps run elsewhere
			dir = whole
		}
		env = append(env, "PENSTOCK_TEST_CLIENTS="+dir)
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

// testBinary is the compiled test of a package.
func (h *harness) testBinary(path string) string { return h.binary(filepath.Base(path) + ".test") }

// buildFlags are those of make build, so that nothing is compiled twice; without symbols, linking takes half the time.
var buildFlags = []string{"-tags", "netgo,osusergo,pebblegozstd", "-trimpath", "-ldflags", "-s -w"}

// makeBinaries builds with cgo, so that verbs are in.
func (h *harness) makeBinaries(ctx context.Context, p program) error {
	cgo := []string{"CGO_ENABLED=1"}
	command := append([]string{"go", "build", "-o", h.binary("penstock")}, buildFlags...)
	if err := h.build(ctx, "", cgo, append(command, "./cmd/penstock")); err != nil {
		return err
	}
	command = append([]string{"go", "test", "-c", "-o", h.binary("")}, buildFlags...)
	before := len(command)
	for _, t := range testPackages {
		if slices.ContainsFunc(p.Steps, func(s step) bool { return s.Name == stepName(t.path) }) {
			command = append(command, "./"+t.path)
		}
	}
	if len(command) == before {
		return nil
	}
	return h.build(ctx, "", cgo, command)
}

// buildStep is how a guest, which boots while this machine builds, waits for what is built.
func buildStep() step {
	return step{
		Name: "build", Dir: resultsDir, Limit: buildLimit,
		Command: []string{"/bin/sh", "-c", "until [ -e " + builtFile + " ]; do sleep 0.1; done"},
	}
}

const (
	// builtFile appears among the results when everything is built.
	builtFile = "built"
	// buildLimit is for a machine of two cores that has compiled nothing yet, and emulates a guest meanwhile.
	buildLimit = 20 * time.Minute
)

// perftestScript runs both ends of a perftest on the first device: it shows whether the machine itself works. The
// acknowledgement timeout is 1 s (-u 18), as the guest may stand still for long. The client tries until the server
// listens; its last line of output is the figure, in MB of 2^20 bytes. One that moved nothing fails.
const perftestScript = `set -u
device=$(ls /sys/class/infiniband | head -n 1)
common="-d $device -s 1048576 $span -t 16 -Q 1 -u 18 -F --output=bandwidth"
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

// perftestStep moves a hundred messages in the guest, which takes it a second, and for two seconds on adapters.
func (h *harness) perftestStep(operation string) step {
	span := "-n 100"
	if h.host {
		span = "-D 2"
	}
	return step{
		Name: "perftest-" + operation, Limit: 2 * time.Minute,
		Command: []string{"/bin/sh", "-c", perftestScript}, Env: []string{"operation=" + operation, "span=" + span},
	}
}
