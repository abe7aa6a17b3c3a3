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
// on verbs; Limit is for a guest on a busy machine of two cores.
var testPackages = []struct {
	path, run string
	limit     time.Duration
}{
	{"native", "", 2 * time.Minute},
	{"internal/rail", "", 2 * time.Minute},
	{"internal/fabric/verbs/initiator", "", 2 * time.Minute},
	{"internal/fabric/verbs", "", 2 * time.Minute},
	{"client/target", "", 2 * time.Minute},
	{suite, "", 5 * time.Minute},
}

// suite is the end-to-end suite.
const suite = "test/rdma"

// figuresFile is where it keeps its figures, a line of JSON each.
const figuresFile = "figures.jsonl"

// floors are the runs of perftest that transfers are compared with.
var floors = []struct {
	operation string
	bytes     int
}{{"write", 1 << 20}, {"read", 1 << 20}, {"write", 4 << 20}, {"read", 4 << 20}}

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
		"PENSTOCK_TEST_FLOOR=" + filepath.Join(p.Results, floorFile),
		"TMPDIR=" + filepath.Join(p.Scratch, "tmp"), "HOME=" + p.Scratch}
	p.Steps = append(p.Steps, step{Name: "devices", Command: []string{"ibv_devinfo"}, Limit: time.Minute})
	for _, f := range floors {
		p.Steps = append(p.Steps, floorStep(f.operation, f.bytes, filepath.Join(p.Results, floorFile)))
	}
	p.Steps = append(p.Steps, step{Name: "doctor", Command: []string{h.binary("penstock"), "doctor", "rdma"},
		Limit: time.Minute})
	for _, t := range testPackages {
		dir := filepath.Join(root, t.path)
		if files, err := filepath.Glob(filepath.Join(dir, "*_test.go")); err != nil || len(files) == 0 {
			continue // not in this tree
		}
		s := step{
			Name: stepName(t.path), Dir: dir, Limit: t.limit, Tests: true,
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
	env := []string{"PENSTOCK_TEST_RECORD=" + filepath.Join(results, figuresFile)}
	if h.host {
		return env
	}
	return append(env, "PENSTOCK_TEST_SLOW=3", "PENSTOCK_TEST_LINK="+vethDevice)
}

func stepName(path string) string { return strings.ReplaceAll(path, "/", "-") }

func (h *harness) binary(name string) string { return filepath.Join(h.dir, "bin", name) }

// makeBinaries builds with cgo, so that verbs are in.
func (h *harness) makeBinaries(ctx context.Context, p program) error {
	cgo := []string{"CGO_ENABLED=1"}
	if err := h.build(ctx, "", cgo, []string{"go", "build", "-o", h.binary("penstock"), "./cmd/penstock"}); err != nil {
		return err
	}
	for _, t := range testPackages {
		name := stepName(t.path)
		if !slices.ContainsFunc(p.Steps, func(s step) bool { return s.Name == name }) {
			continue
		}
		command := []string{"go", "test", "-c", "-o", h.binary(name + ".test"), "./" + t.path}
		if err := h.build(ctx, "", cgo, command); err != nil {
			return err
		}
	}
	return nil
}

// floorFile is where the figures of perftest are, a line per operation and size.
const floorFile = "floor"

// floorSeconds is how long each run of perftest takes.
const floorSeconds = 3

// floorScript runs both ends of a perftest on the first device, with the same depth and size as a transfer has, and
// an acknowledgement timeout of 1 s (-u 18) as the guest may stand still for long. The client tries until the server
// listens; its last line of output is the figure, in MB of 2^20 bytes. One that moved nothing fails.
const floorScript = `set -u
device=$(ls /sys/class/infiniband | head -n 1)
common="-d $device -x 1 -s $bytes -D $seconds -t 16 -Q 1 -u 18 -F --output=bandwidth"
timeout 45 ib_${operation}_bw $common > server.out 2>&1 &
for try in $(seq 50); do
  timeout 30 ib_${operation}_bw $common 127.0.0.1 > client.out 2>&1 && break
  grep -q "connect" client.out || break
  sleep 0.2
done
wait
figure=$(tail -n 1 client.out | grep -E '^ *[0-9]+\.[0-9]+ *$' | grep -vE '^ *0\.0+ *$') || { cat server.out client.out; exit 1; }
echo "$operation $bytes" $figure | tee -a "$file"
`

func floorStep(operation string, bytes int, file string) step {
	return step{
		Name: fmt.Sprintf("floor-%s-%dMiB", operation, bytes>>20), Limit: time.Minute,
		Command: []string{"/bin/sh", "-c", floorScript},
		Env: []string{"operation=" + operation, fmt.Sprintf("bytes=%d", bytes), fmt.Sprintf("seconds=%d", floorSeconds),
			"file=" + file},
	}
}
