// Command guest runs the tests that need RDMA verbs on real ones: soft-RoCE in an emulated machine, whose kernel is
// unpacked for it and whose root is this machine's, read-only; or, with -host, on this machine's own adapters.
//
// Called by: make test-rdma, make test-rdma-host, .ci/run.
//
// One program is both sides: as /init it prepares the guest and runs the steps (init.go, step.go); else it installs,
// builds, boots, follows the events and judges (main.go, qemu.go, kernel.go). What runs is a list of steps (plan.go).
//
// Invariants:
//  1. A run passes only if the guest wrote its end marker and every step began, ended and did not fail; a step of tests
//     only if a test ran, too.
//  2. A guest from which nothing comes for longer than its step's limit is killed; a panic or an oops ends it.
//  3. Nothing of this machine is written to but the run's own directory and the cache, nor any network reached by the
//     guest. With -host, steps run as processes of this machine.
//  4. Runs share nothing but the cache, so several may go on at once.
//
// In steps PENSTOCK_TEST_VERBS is "device": a device is there, and a test that does not find it must fail, not skip.
// PENSTOCK_TEST_BINARY names a penstock built with cgo. TMPDIR takes O_DIRECT, which a tmpfs of the guest does not.
//
// What it does not do: speeds of hardware; dynamically connected queue pairs, which soft-RoCE has not.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// exitNoDevice is the exit code of -host on a machine without adapters.
const exitNoDevice = 77

var (
	errFailed   = errors.New("guest: steps failed")
	errFull     = errors.New("guest: the disk of the run's directory is full; TMPDIR says where it is")
	errBuild    = errors.New("guest: what it runs was not built")
	errNoDevice = errors.New("guest: this machine has no RDMA device (" + devicesDir + " is empty); " +
		"make test-rdma runs the same steps on an emulated one")
)

const devicesDir = "/sys/class/infiniband"

// harness is one run.
type harness struct {
	machine
	host    bool
	cache   string
	results string
	scratch string
	only    string
	tests   string
	shell   string
	limit   time.Duration // of shell
	link    string
	list    bool
	long    bool
	verbose bool
	dir     string // of this run
	began   time.Time
	root    string // of the files that are looked for; empty: /
	user    int    // who runs this: packages are installed by 0 only
	out     io.Writer
}

func main() {
	if os.Args[0] == initName {
		guestMain()
	}
	h := harness{machine: standard(), out: os.Stdout, user: os.Geteuid()}
	flag.BoolVar(&h.host, "host", false, "run the steps on this machine's own adapters, without a guest")
	flag.StringVar(&h.only, "run", "", "only steps whose names match this regular expression")
	flag.StringVar(&h.tests, "tests", "", "in steps of tests, only those whose names match this regular expression")
	flag.StringVar(&h.shell, "command", "", "run this shell command, at the root of the tree, instead of the steps")
	flag.DurationVar(&h.limit, "limit", 10*time.Minute, "how long -command may take")
	flag.StringVar(&h.link, "link", "", "with -host: the network device of a rail that tests may take down")
	flag.BoolVar(&h.list, "list", false, "print the names of the steps and end")
	flag.BoolVar(&h.long, "long", os.Getenv("PENSTOCK_TEST_LONG") != "", "run the long forms of the end-to-end suite")
	flag.BoolVar(&h.verbose, "v", false, "print the whole output of every step")
	flag.StringVar(&h.results, "results", "", "keep the output of the steps and the kernel's messages here; without it, "+
		"only those of a failed run are kept, in the cache")
	flag.StringVar(&h.scratch, "scratch", "", "with -host: where nodes keep data; the file system must take O_DIRECT")
	flag.StringVar(&h.cache, "cache", ".cache/guest", "directory of the unpacked kernel")
	flag.BoolVar(&h.KVM, "kvm", false, "let the guest use this machine's processor, where nested virtualisation works")
	flag.StringVar(&h.CPU, "cpu", h.CPU, "the processor that is emulated")
	flag.IntVar(&h.CPUs, "smp", h.CPUs, "processors of the guest")
	flag.IntVar(&h.MemoryMB, "memory", h.MemoryMB, "MiB of the guest")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := h.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	switch {
	case errors.Is(err, errNoDevice):
		return exitNoDevice
	case err != nil:
		return 1
	}
	return 0
}

// guestMain does not return.
func guestMain() {
	if os.Getpid() == 1 {
		reap()
	}
	if err := steps(); err != nil {
		fmt.Println("guest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (h *harness) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(h.out, format, args...)
}

// command runs a tool whose output is wanted only when it fails.
func (h *harness) command(ctx context.Context, dir, name string, args ...string) error {
	return h.build(ctx, dir, nil, append([]string{name}, args...))
}

func (h *harness) build(ctx context.Context, dir string, env, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // go's compilers end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitDelay
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("guest: %v: %w: %s", command, err, out)
	}
	return nil
}

func (h *harness) run(ctx context.Context) (err error) {
	only, err := regexp.Compile(h.only)
	if err != nil {
		return fmt.Errorf("guest: read -run: %w", err)
	}
	if h.cache, err = filepath.Abs(h.cache); err != nil {
		return fmt.Errorf("guest: find cache: %w", err)
	}
	if h.dir, err = os.MkdirTemp("", "penstock-guest-"); err != nil {
		return fmt.Errorf("guest: make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(h.dir)) }()
	p, err := h.plan(only)
	if err != nil {
		return err
	}
	if h.list {
		for _, s := range p.Steps {
			h.printf("%-24s %v\n", s.Name, s.Limit)
		}
		return nil
	}
	if h.host && !h.hasDevice() {
		return errNoDevice
	}
	h.began = time.Now()
	if err := h.installPackages(ctx, !h.host); err != nil {
		return err
	}
	if err := os.MkdirAll(h.resultsDir(), 0o755); err != nil {
		return fmt.Errorf("guest: make results: %w", err)
	}
	if h.host {
		err = h.here(ctx, p)
	} else {
		err = h.inGuest(ctx, p)
	}
	if err != nil {
		err = errors.Join(err, h.room())
	}
	if err != nil && h.results == "" {
		err = errors.Join(err, h.keepResults())
	}
	return err
}

// leastRoom is what the run's directory must have left for its failure to be of something else.
const leastRoom = 16 << 20

// room tells whether the disk is full: then output is missing, and the guest's disk has errors.
func (h *harness) room() error {
	var s unix.Statfs_t
	if err := unix.Statfs(h.dir, &s); err != nil || s.Bavail*uint64(s.Bsize) >= leastRoom {
		return nil // or nothing is known
	}
	return fmt.Errorf("%w: %s", errFull, h.dir)
}

// here builds and runs the program on this machine.
func (h *harness) here(ctx context.Context, p program) error {
	if err := h.makeBinaries(ctx, p); err != nil {
		return fmt.Errorf("%w: %w", errBuild, err)
	}
	h.printf("%-24s %7.1f s\n", "build", time.Since(h.began).Seconds())
	v := &verdict{harness: h, program: p}
	p.run(ctx, v.see)
	return v.judge(ctx.Err())
}

// inGuest boots a guest that runs the program, and builds meanwhile.
func (h *harness) inGuest(ctx context.Context, p program) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	marker := filepath.Join(h.resultsDir(), builtFile)
	if err := os.Remove(marker); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier run
		return fmt.Errorf("guest: clear results: %w", err)
	}
	built := make(chan error, 1)
	go func() {
		err := h.makeBinaries(ctx, p)
		if err == nil {
			err = os.WriteFile(marker, nil, 0o644)
		}
		if err != nil {
			err = fmt.Errorf("%w: %w", errBuild, err)
			cancel(err)
		}
		built <- err
	}()
	v := &verdict{harness: h, program: p}
	command, err := h.machineFor(ctx, p)
	if err == nil {
		v.booted = time.Now()
		w := watcher{program: p, boot: bootLimit, slack: slack, seen: v.see}
		err = w.watch(ctx, command, os.Stderr)
	}
	cancel(nil)
	failure := <-built
	switch {
	case failure != nil && errors.Is(context.Cause(ctx), failure): // the guest ended because of it
		return failure
	case v.booted.IsZero():
		return err
	}
	return v.judge(err)
}

// keepResults leaves the output of a failed run in the cache.
func (h *harness) keepResults() error {
	kept, err := os.MkdirTemp(h.cache, "failed-")
	if err != nil {
		return fmt.Errorf("guest: keep results: %w", err)
	}
	if err := os.CopyFS(kept, os.DirFS(h.resultsDir())); err != nil {
		return fmt.Errorf("guest: keep results: %w", err)
	}
	h.printf("whole output in %s\n", kept)
	return nil
}

func (h *harness) hasDevice() bool {
	names, err := os.ReadDir(filepath.Join("/", h.root, devicesDir))
	return err == nil && len(names) > 0
}

func (h *harness) resultsDir() string {
	if h.results != "" {
		if dir, err := filepath.Abs(h.results); err == nil {
			return dir
		}
	}
	return filepath.Join(h.dir, "results")
}

// machineFor makes a guest that will run the program: the result is QEMU's command line.
func (h *harness) machineFor(ctx context.Context, p program) ([]string, error) {
	k, err := h.kernel(ctx)
	if err != nil {
		return nil, err
	}
	h.printf("kernel %s\n", k.name)
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("guest: write program: %w", err)
	}
	if err := os.WriteFile(filepath.Join(h.resultsDir(), programFile), text, 0o644); err != nil {
		return nil, fmt.Errorf("guest: write program: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("guest: find this program: %w", err)
	}
	initramfs := filepath.Join(h.dir, "initramfs")
	if err := writeInitramfs(initramfs, self, k.modules); err != nil {
		return nil, err
	}
	disk := filepath.Join(h.dir, "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		return nil, fmt.Errorf("guest: make disk: %w", err)
	}
	if err := os.Truncate(disk, diskBytes); err != nil {
		return nil, fmt.Errorf("guest: make disk: %w", err)
	}
	maker := filepath.Join("/", h.root, makeFileSystem)
	if err := h.command(ctx, "", maker, "-q", "-O", "^has_journal", disk); err != nil { // it lives one run
		return nil, err
	}
	return h.qemu(k, initramfs, disk, h.resultsDir()), nil
}
