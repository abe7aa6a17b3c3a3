package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-store/penstock/bench"
)

// maxShards bounds the test processes: each of them uses a core.
const maxShards = 8

// stopGrace is how long a test process may take to end after the limit of the run.
const stopGrace = 10 * time.Second

// unbuiltFiles are those whose whole feature is not built; they are only collected, unless all is run.
var unbuiltFiles = []string{"test_iam.py", "test_s3select.py", "test_sns.py", "test_sts.py"}

// testDir is where the suite has its tests.
const testDir = "s3tests/functional/"

// runner runs the suite in processes side by side. Each has principals and buckets of its own, as the
// tests look at all buckets of a principal.
type runner struct {
	dir    string // temporary directory
	suite  string
	python string
	shards int
	only   *regexp.Regexp // the tests that count
}

func (r runner) run(ctx context.Context, binary string, all bool) (_ map[string]result, _ []string, err error) {
	log, err := os.Create(filepath.Join(r.dir, "node.log"))
	if err != nil {
		return nil, nil, fmt.Errorf("conformance: run: %w", err)
	}
	defer log.Close()
	n, err := bench.StartNode(ctx, bench.NodeOptions{
		Binary: binary, Dir: filepath.Join(r.dir, "data"), Log: log,
		Flags: []string{"--storage-segment", "256MiB", "--storage-reserve", "64MiB", "--storage-grace", "5s"},
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, n.Stop()) }()
	for i := range r.shards {
		if err := r.configure(ctx, n, binary, i); err != nil {
			return nil, nil, err
		}
	}
	collected, err := r.collect(ctx)
	if err != nil {
		return nil, nil, err
	}
	results, err := r.runShards(ctx, collected, all)
	return results, collected, err
}

func (r runner) path(shard int, name string) string {
	return filepath.Join(r.dir, fmt.Sprintf("shard%d.%s", shard, name))
}

// pytest is a run of the test program with the configuration of a shard.
func (r runner) pytest(ctx context.Context, shard int, args ...string) *exec.Cmd {
	args = append([]string{"-B", "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short"}, args...)
	cmd := exec.CommandContext(ctx, r.python, args...)
	cmd.Dir = r.suite
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) } // it still writes its results
	cmd.WaitDelay = stopGrace
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "AWS_") && !strings.HasPrefix(v, "PYTEST_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "S3TEST_CONF="+r.path(shard, "conf"), "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null")
	return cmd
}

// collect lists all tests of the suite.
func (r runner) collect(ctx context.Context) ([]string, error) {
	out, err := output(r.pytest(ctx, 0, "--collect-only", testDir))
	if err != nil {
		return nil, fmt.Errorf("conformance: collect tests: %w: %s", err, out)
	}
	var tests []string
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if test, ok := strings.CutPrefix(s.Text(), testDir); ok && r.only.MatchString(test) {
			tests = append(tests, test)
		}
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("conformance: collect tests: none found: %s", out)
	}
	return tests, nil
}

// runShards deals the tests out one by one, as neighbours take about as long, and waits for all.
func (r runner) runShards(ctx context.Context, tests []string, all bool) (map[string]result, error) {
	dealt := make([][]string, r.shards)
	next := 0
	for _, test := range tests {
		file, _, _ := strings.Cut(test, "::")
		if all || !slices.Contains(unbuiltFiles, file) {
			dealt[next%r.shards] = append(dealt[next%r.shards], testDir+test)
			next++
		}
	}
	fmt.Fprintf(os.Stderr, "conformance: run %d of %d tests, which takes minutes; logs: %s\n",
		next, len(tests), r.path(0, "log"))
	errs := make([]error, r.shards)
	var wg sync.WaitGroup
	for i, shard := range dealt {
		wg.Go(func() { errs[i] = r.runShard(ctx, i, shard) })
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("conformance: run tests: %w", err) // what the shards say follows from it
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	results := map[string]result{}
	for i := range dealt {
		if err := readJUnit(r.path(i, "xml"), results); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func (r runner) runShard(ctx context.Context, shard int, tests []string) error {
	list := r.path(shard, "tests")
	if err := os.WriteFile(list, []byte(strings.Join(tests, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("conformance: run tests: %w", err)
	}
	log, err := os.Create(r.path(shard, "log"))
	if err != nil {
		return fmt.Errorf("conformance: run tests: %w", err)
	}
	defer log.Close()
	cmd := r.pytest(ctx, shard, "--junit-xml", r.path(shard, "xml"), "@"+list)
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil // tests failed; which ones may is decided elsewhere
	}
	if err != nil {
		return fmt.Errorf("conformance: run tests: shard %d: %w", shard, err)
	}
	return nil
}

// principals are the sections of the suite's configuration that name one.
var principals = []string{"s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root"}

// configure makes the principals of a shard and writes its configuration.
func (r runner) configure(ctx context.Context, n *bench.Node, binary string, shard int) error {
	host, port, ok := strings.Cut(strings.TrimPrefix(n.Endpoint, "http://"), ":")
	if !ok {
		return fmt.Errorf("conformance: configure: endpoint %s has no port", n.Endpoint)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[DEFAULT]\nhost = %s\nport = %s\nis_secure = False\nssl_verify = False\n", host, port)
	fmt.Fprintf(&b, "[fixtures]\nbucket prefix = conf%d-{random}-\n", shard)
	for _, section := range principals {
		name := fmt.Sprintf("%s-%d", strings.ReplaceAll(section, " ", "-"), shard)
		cmd := exec.CommandContext(ctx, binary, "admin", "key", "create", "--principal", name, "--json")
		cmd.Env = append(os.Environ(), n.Environment()...)
		out, err := output(cmd)
		if err != nil {
			return fmt.Errorf("conformance: configure: %w", err)
		}
		var key struct {
			AccessKey string `json:"access_key"`
			SecretKey string `json:"secret_key"`
		}
		if err := json.Unmarshal(out, &key); err != nil {
			return fmt.Errorf("conformance: configure: read key: %w", err)
		}
		fmt.Fprintf(&b, "[%s]\nuser_id = %s\ndisplay_name = %s\nemail = %s@example.com\naccess_key = %s\nsecret_key = %s\n",
			section, name, name, name, key.AccessKey, key.SecretKey)
		switch section {
		case "s3 main":
			b.WriteString("api_name = us-east-1\n")
		case "s3 tenant":
			b.WriteString("tenant = tenant\n")
		}
	}
	if err := os.WriteFile(r.path(shard, "conf"), []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("conformance: configure: %w", err)
	}
	return nil
}
