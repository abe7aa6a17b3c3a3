package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// check is one finding of the doctor.
type check struct {
	Type   string `json:"type"` // "check"
	Name   string `json:"name"`
	Status string `json:"status"` // "ok", "no" or "unknown"
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"` // what to do
}

func found(name, format string, args ...any) check {
	return check{Type: "check", Name: name, Status: "ok", Detail: fmt.Sprintf(format, args...)}
}

func missing(name, format string, args ...any) check {
	return check{Type: "check", Name: name, Status: "no", Detail: fmt.Sprintf(format, args...)}
}

func unknown(name, format string, args ...any) check {
	return check{Type: "check", Name: name, Status: "unknown", Detail: fmt.Sprintf(format, args...)}
}

func checkOf(c rail.Check) check {
	return check{Type: "check", Name: c.Name, Status: string(c.State), Detail: c.Detail, Remedy: c.Remedy}
}

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "say which fabrics are possible on this machine, and why others are not",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			checks := machineChecks(rail.Host())
			checks = append(checks, verbsChecks(rail.Host())...)
			checks = append(checks, a.nodeChecks(c.Context())...)
			for _, k := range checks {
				text := fmt.Sprintf("%-8s %-18s %s", k.Status, k.Name, withRemedy(k.Detail, k.Remedy))
				if err := a.emit(k, text); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.AddCommand(a.doctorRDMACommand())
	return cmd
}

// machineChecks looks at this machine.
func machineChecks(m rail.Machine) []check {
	checks := []check{kernelCheck(m), memfdCheck(), found("tcp", "works wherever HTTP does"), hostCheck()}
	memlock := rail.MemlockCheck(m, config.Default().Arena.Bytes()+rail.ProbeBytes)
	checks = append(checks, checkOf(memlock), hugePagesCheck(m))
	for _, c := range rail.KernelChecks(m) {
		checks = append(checks, checkOf(c))
	}
	return checks
}

func kernelCheck(m rail.Machine) check {
	release, err := m.Read("/proc/sys/kernel/osrelease")
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

func hugePagesCheck(m rail.Machine) check {
	for _, dir := range m.Glob("/sys/kernel/mm/hugepages/hugepages-*") {
		if n, err := m.Read(filepath.Join(dir, "nr_hugepages")); err == nil && n != "0" {
			return found("huge pages", "%s of %s reserved", n, strings.TrimPrefix(filepath.Base(dir), "hugepages-"))
		}
	}
	mode, err := m.Read("/sys/kernel/mm/transparent_hugepage/enabled")
	if err == nil && !strings.Contains(mode, "[never]") {
		return found("huge pages", "none reserved; transparent ones: %s", mode)
	}
	return missing("huge pages", "none reserved, no transparent ones: more translation misses at high rates")
}

// verbsChecks open the library and look at the rails. `penstock doctor rdma` says more.
func verbsChecks(m rail.Machine) []check {
	library, err := native.Open(native.Options{})
	checks := []check{checkOf(rail.LibraryCheck(err))}
	var rails []rail.Rail
	var skipped []rail.Skipped
	if err == nil {
		defer library.Close()
		rails, skipped, err = rail.Discover(library, rail.Options{})
	}
	if err != nil {
		return append(checks, missing("dc", "off: %v", err), missing("rc", "off: %v", err))
	}
	ports := rail.RailChecks(m, rails, skipped)[0]
	return append(checks, dcCheck(library, rails),
		check{"check", "rc", string(ports.State), ports.Detail, "see penstock doctor rdma"})
}

// dcCheck tells which adapters of the rails have what dc needs.
func dcCheck(library *native.Library, rails []rail.Rail) check {
	if err := library.DC(); err != nil {
		return missing("dc", "off: %v", err)
	}
	var with []string
	why := error(&native.UnavailableError{Reason: native.ReasonNoDevice})
	for _, r := range rails {
		device, err := library.OpenDevice(r.Device)
		if err == nil {
			err = errors.Join(device.DC(), device.Close())
		}
		if err != nil {
			why = err
			continue
		}
		with = append(with, r.Name())
	}
	if len(with) == 0 {
		return missing("dc", "off: %v", why)
	}
	return found("dc", "%s: not yet run on hardware", strings.Join(with, ", "))
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
	if fabric == client.PathDC {
		return found(name, "this machine has targets, which take a region; not yet run on hardware")
	}
	return found(name, "a session opens and takes a region")
}
