package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/client"
)

// check is one finding of the doctor.
type check struct {
	Type   string `json:"type"` // "check"
	Name   string `json:"name"`
	Status string `json:"status"` // "ok", "no" or "unknown"
	Detail string `json:"detail"`
}

func found(name, format string, args ...any) check {
	return check{"check", name, "ok", fmt.Sprintf(format, args...)}
}

func missing(name, format string, args ...any) check {
	return check{"check", name, "no", fmt.Sprintf(format, args...)}
}

func unknown(name, format string, args ...any) check {
	return check{"check", name, "unknown", fmt.Sprintf(format, args...)}
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "say which fabrics are possible on this machine, and why others are not",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			checks := machineChecks(osRoot{})
			checks = append(checks, a.nodeChecks(c.Context())...)
			for _, k := range checks {
				if err := a.emit(k, fmt.Sprintf("%-8s %-18s %s", k.Status, k.Name, k.Detail)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// machine is where the doctor looks; tests have another one.
type machine interface {
	read(path string) (string, error)
	glob(pattern string) []string
	memlock() (uint64, error)
}

type osRoot struct{}

func (osRoot) read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

func (osRoot) glob(pattern string) []string {
	names, _ := filepath.Glob(pattern) // fails for bad patterns only
	return names
}

func (osRoot) memlock() (uint64, error) {
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l)
	return l.Cur, err
}

// machineChecks looks at this machine.
func machineChecks(m machine) []check {
	checks := []check{kernelCheck(m), memfdCheck(), found("tcp", "works wherever HTTP does"), hostCheck()}
	checks = append(checks, memlockCheck(m), hugePagesCheck(m))
	return append(checks, verbsChecks(m)...)
}

func kernelCheck(m machine) check {
	release, err := m.read("/proc/sys/kernel/osrelease")
	if err != nil {
		return unknown("kernel", "%v", err)
	}
	return found("kernel", "%s %s, %d processors", release, runtime.GOARCH, runtime.NumCPU())
}

// memfdCheck tries what shm regions need: a memfd that takes seals.
func memfdCheck() check {
	fd, err := unix.MemfdCreate("penstock-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return missing("shm", "no memory file: %v", err)
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return missing("shm", "memory files take no seals: %v", err)
	}
	return found("shm", "sealed memory files work; needs a node on this host")
}

func hostCheck() check {
	id := client.LocalHostID()
	if id == "" {
		return missing("host id", "neither /etc/machine-id nor a boot id: a node here cannot be told from others")
	}
	return found("host id", "%s", id)
}

func memlockCheck(m machine) check {
	limit, err := m.memlock()
	switch {
	case err != nil:
		return unknown("memlock", "%v", err)
	case limit == unix.RLIM_INFINITY:
		return found("memlock", "unlimited")
	case limit < 1<<30:
		return missing("memlock", "%d bytes may be locked: verbs needs as much as the arena and regions", limit)
	}
	return found("memlock", "%d bytes may be locked", limit)
}

func hugePagesCheck(m machine) check {
	for _, dir := range m.glob("/sys/kernel/mm/hugepages/hugepages-*") {
		if n, err := m.read(filepath.Join(dir, "nr_hugepages")); err == nil && n != "0" {
			return found("huge pages", "%s of %s reserved", n, strings.TrimPrefix(filepath.Base(dir), "hugepages-"))
		}
	}
	mode, err := m.read("/sys/kernel/mm/transparent_hugepage/enabled")
	if err == nil && !strings.Contains(mode, "[never]") {
		return found("huge pages", "none reserved; transparent ones: %s", mode)
	}
	return missing("huge pages", "none reserved, no transparent ones: more translation misses at high rates")
}

// verbsChecks look for what RDMA over a NIC (or soft-RoCE) needs. Nothing is loaded or opened.
func verbsChecks(m machine) []check {
	var checks []check
	if devices := m.glob("/sys/class/infiniband/*"); len(devices) > 0 {
		checks = append(checks, found("verbs devices", "%s", strings.Join(baseNames(devices), ", ")))
	} else {
		checks = append(checks, missing("verbs devices", "no RDMA device: no NIC with a driver, and no soft-RoCE link"))
	}
	if nodes := m.glob("/dev/infiniband/uverbs*"); len(nodes) > 0 {
		checks = append(checks, found("verbs access", "%s", strings.Join(nodes, ", ")))
	} else {
		checks = append(checks, missing("verbs access",
			"no /dev/infiniband/uverbs*: ib_uverbs is not loaded or not visible here"))
	}
	var libs []string
	for _, dir := range []string{"/usr/lib", "/usr/lib64", "/usr/lib/*-linux-gnu", "/usr/local/lib"} {
		libs = append(libs, m.glob(dir+"/libibverbs.so*")...)
	}
	if len(libs) > 0 {
		checks = append(checks, found("libibverbs", "%s", libs[0]))
	} else {
		checks = append(checks, missing("libibverbs", "not installed (package rdma-core or libibverbs1)"))
	}
	return append(checks, missing("rc, dc", "not offered by this version"))
}

func baseNames(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = filepath.Base(p)
	}
	return out
}

// nodeChecks asks the configured node and tries each of its fabrics with one session.
func (a *app) nodeChecks(ctx context.Context) []check {
	cl, err := a.connect()
	if err != nil {
		return []check{unknown("node", "%v", err)}
	}
	defer cl.Close()
	info, err := cl.NodeInfo(ctx)
	if err != nil {
		return []check{missing("node", "%s: %v", cl.Endpoint(), err)}
	}
	checks := []check{found("node", "%s at %s", info.Node, cl.Endpoint())}
	if info.Host == client.LocalHostID() {
		checks = append(checks, found("node host", "this host"))
	} else {
		checks = append(checks, missing("node host", "another host: shm cannot reach it"))
	}
	for _, f := range info.Fabrics {
		checks = append(checks, a.tryFabric(ctx, f.Name))
	}
	return checks
}

// tryFabric opens a session and announces a small region.
func (a *app) tryFabric(ctx context.Context, fabric string) check {
	name := "node " + fabric
	cfg := a.clientConfig()
	cfg.Fabric, cfg.AllowHTTPFallback = client.Fabric(fabric), false
	cl, err := client.New(cfg)
	if err != nil {
		return missing(name, "%v", err)
	}
	defer cl.Close()
	r, err := cl.Alloc(1 << 20)
	if err != nil {
		return missing(name, "%v", err)
	}
	defer r.Close()
	if err := cl.Probe(ctx, r); err != nil {
		var refused *client.DeclinedError
		if errors.As(err, &refused) && refused.Cause == nil {
			return missing(name, "%s", refused.Reason)
		}
		return missing(name, "%v", err)
	}
	return found(name, "a session opens and takes a region")
}
