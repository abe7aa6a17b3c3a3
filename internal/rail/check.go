package rail

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/native"
)

// State is how a Check came out.
type State string

// States of a Check.
const (
	OK      State = "ok"
	No      State = "no"
	Unknown State = "unknown"
)

// Check is one fact that RDMA depends on.
type Check struct {
	Name   string
	State  State
	Detail string
	Remedy string // what to do; with OK: what would be better
}

// Names of checks.
const (
	checkDevices   = "verbs devices" // what the kernel has
	checkAccess    = "verbs access"  // device files
	checkLibrary   = "libibverbs"
	checkDrivers   = "verbs drivers" // of the library, for the kernel's devices
	checkMemlock   = "memlock"
	checkPorts     = "rail ports"
	checkAddresses = "rail addresses"
	checkMTU       = "rail mtu"
)

// What to do, where more than one thing asks for it.
const (
	remedyDevice = "install the driver of the adapter, or make a soft-RoCE one: " +
		"modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0"
	remedyPort    = "check the cable and the switch, and bring the network device up: ip link set dev eth0 up"
	remedyAddress = "give its network device an IP address"
	remedyAccess  = "give this user read and write access to /dev/infiniband/uverbs*, by a udev rule or the files' group"
	remedyMemlock = "ulimit -l unlimited; for a service LimitMEMLOCK=infinity; in a container --ulimit memlock=-1"
)

// KernelChecks look at what the kernel offers. Nothing is loaded or opened.
func KernelChecks(m Machine) []Check {
	devices, files := kernelDevices(m), m.Glob("/dev/infiniband/uverbs*")
	check := Check{Name: checkDevices, State: OK, Detail: strings.Join(devices, ", ")}
	if len(devices) == 0 {
		check = Check{checkDevices, No, "no RDMA device: no NIC with a driver, and no soft-RoCE link", remedyDevice}
	}
	return []Check{check, accessCheck(m, files)}
}

// kernelDevices are the adapters that the kernel has, whether or not the library can use them.
func kernelDevices(m Machine) []string {
	paths := m.Glob("/sys/class/infiniband/*")
	for i, p := range paths {
		paths[i] = filepath.Base(p)
	}
	slices.SortFunc(paths, natural)
	return paths
}

func accessCheck(m Machine, files []string) Check {
	loaded := len(m.Glob("/sys/class/infiniband_verbs"))+len(m.Glob("/sys/module/ib_uverbs")) > 0
	switch {
	case len(files) == 0 && !loaded:
		return Check{checkAccess, No, "no /dev/infiniband/uverbs*: kernel module ib_uverbs is not loaded",
			"modprobe ib_uverbs"}
	case len(files) == 0 && len(m.Glob("/sys/class/infiniband_verbs/uverbs*")) == 0:
		return Check{checkAccess, No, "no /dev/infiniband/uverbs*: ib_uverbs is loaded and has no device", remedyDevice}
	case len(files) == 0:
		return Check{checkAccess, No, "no /dev/infiniband/uverbs*: ib_uverbs is loaded, its files are not visible here",
			"in a container, pass the devices: --device=/dev/infiniband; else start udev, or make them as " +
				"/sys/class/infiniband_verbs/uverbs*/dev say"}
	}
	for _, f := range files {
		if err := m.Writable(f); err != nil {
			return Check{checkAccess, No, fmt.Sprintf("%s: %v", f, err), remedyAccess}
		}
	}
	return Check{Name: checkAccess, State: OK, Detail: strings.Join(files, ", ")}
}

// LibraryCheck says how native.Open ended.
func LibraryCheck(err error) Check {
	if err == nil {
		return Check{Name: checkLibrary, State: OK, Detail: "opens"}
	}
	var off *native.UnavailableError
	if !errors.As(err, &off) {
		return Check{checkLibrary, No, err.Error(), ""}
	}
	detail, remedy := Explain(off.Reason)
	if off.Detail != "" {
		detail += " (" + off.Detail + ")"
	}
	return Check{checkLibrary, No, off.Reason + ": " + detail, remedy}
}

// Explain says a reason of native.UnavailableError in words, and what to do about it.
func Explain(reason string) (words, remedy string) {
	switch reason {
	case native.ReasonNoCgo:
		return "this program was built without cgo", "run make build where a C compiler and the headers of libibverbs " +
			"(libibverbs-dev, rdma-core-devel) are"
	case native.ReasonNoHeaders:
		return "this program was built without the headers of libibverbs",
			"install libibverbs-dev (or rdma-core-devel) and run make build again"
	case native.ReasonNoLibrary:
		return "libibverbs.so.1 does not open", "install libibverbs1 and ibverbs-providers (or rdma-core, libibverbs)"
	case native.ReasonNoSymbol:
		return "libibverbs is too old", "install a newer rdma-core"
	case native.ReasonNoDevice:
		return "there is no RDMA device", remedyDevice
	}
	return reason, ""
}

// DriverCheck compares what the kernel has with what the library can use: each kind of adapter needs a driver of its
// own in user space, and devices of one may be hidden.
func DriverCheck(m Machine, devices []Device) Check {
	names := deviceNames(devices)
	var lost []string
	for _, name := range kernelDevices(m) {
		if !slices.Contains(names, name) {
			lost = append(lost, name)
		}
	}
	for _, d := range devices {
		if d.Err != nil {
			return Check{checkDrivers, No, d.Name + " " + notOpen(d.Err), ""}
		}
	}
	switch {
	case len(lost) > 0:
		return Check{checkDrivers, No, "libibverbs has no driver for " + strings.Join(lost, ", ") +
			", or may not open it", "install ibverbs-providers (or rdma-core), and see " + checkAccess}
	case len(names) == 0:
		return Check{checkDrivers, No, native.ReasonNoDevice + ": libibverbs knows no device", "see " + checkDevices}
	}
	return Check{Name: checkDrivers, State: OK, Detail: strings.Join(names, ", ")}
}

// RailChecks look at ports, addresses and MTUs.
func RailChecks(m Machine, rails []Rail, skipped []Skipped) []Check {
	checks := []Check{portCheck(rails, skipped)}
	if len(rails) > 0 {
		checks = append(checks, addressCheck(rails), mtuCheck(m, rails))
	}
	return checks
}

func portCheck(rails []Rail, skipped []Skipped) Check {
	var up, down []string
	for _, r := range rails {
		if r.Up {
			up = append(up, r.Name())
		} else {
			down = append(down, r.Name())
		}
	}
	switch {
	case len(rails) == 0 && len(skipped) == 0:
		return Check{checkPorts, No, "no port", remedyDevice}
	case len(rails) == 0:
		return Check{checkPorts, No, "no port can be used: " + skipped[0].Name + " " + skipped[0].Reason, ""}
	case len(up) == 0:
		return Check{checkPorts, No, "down: " + strings.Join(down, ", "), remedyPort}
	case len(down) > 0:
		return Check{checkPorts, OK, "up: " + strings.Join(up, ", ") + "; down: " + strings.Join(down, ", "), remedyPort}
	}
	return Check{Name: checkPorts, State: OK, Detail: "up: " + strings.Join(up, ", ")}
}

func addressCheck(rails []Rail) Check {
	check := Check{Name: checkAddresses, State: OK}
	var list []string
	for _, r := range rails {
		a := r.Address()
		switch {
		case !a.IsValid():
			list = append(list, fmt.Sprintf("%s LID %d", r.Name(), r.LID))
			continue
		case a.IsLoopback():
			check.Remedy = r.Name() + " is reached from this host only: use a network device that others reach"
		case a.IsLinkLocalUnicast():
			check.Remedy = r.Name() + " is reached on its own link only: give " + r.Network + " an IPv4 address"
		}
		list = append(list, r.Name()+" "+a.String())
	}
	check.Detail = strings.Join(list, ", ")
	return check
}

// Bytes of a RoCEv2 packet around a payload of the MTU, as the kernel counts them.
const roceOverhead = 96

func mtuCheck(m Machine, rails []Rail) Check {
	check := Check{Name: checkMTU, State: OK}
	var list []string
	for _, r := range rails {
		text := fmt.Sprintf("%s %d", r.Name(), r.MTU)
		if network, err := m.Read("/sys/class/net/" + r.Network + "/mtu"); err == nil && r.Network != "" {
			text += " (" + r.Network + " has " + network + ")"
		}
		list = append(list, text)
		if r.MTU < 4096 && r.Network != "" && check.Remedy == "" {
			check.Remedy = fmt.Sprintf("larger packets cost less: with an MTU of %d or more on %s, the switches and the "+
				"other ends, %s uses 4096", 4096+roceOverhead, r.Network, r.Name())
		}
	}
	check.Detail = strings.Join(list, ", ")
	return check
}

// MemlockCheck compares what this process may lock with the bytes that it wants to register. A node registers its
// arena once for each rail, and the kernel counts each time.
func MemlockCheck(m Machine, need uint64) Check {
	limit, err := m.Memlock()
	switch {
	case err != nil:
		return Check{checkMemlock, Unknown, err.Error(), ""}
	case limit == unix.RLIM_INFINITY:
		return Check{Name: checkMemlock, State: OK, Detail: "unlimited"}
	case privileged(m):
		return Check{Name: checkMemlock, State: OK, Detail: fmt.Sprintf("limit %s, which this process may exceed "+
			"(CAP_IPC_LOCK)", mebibytes(limit))}
	case limit < need:
		return Check{checkMemlock, No, fmt.Sprintf("%s may be locked, %s are needed", mebibytes(limit), mebibytes(need)),
			remedyMemlock}
	}
	return Check{Name: checkMemlock, State: OK, Detail: fmt.Sprintf("%s may be locked, %s are needed", mebibytes(limit),
		mebibytes(need))}
}

func mebibytes(n uint64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// capIPCLock is the bit of CAP_IPC_LOCK (linux/capability.h).
const capIPCLock = 14

// privileged tells whether the limit does not hold for this process: it has CAP_IPC_LOCK, and not in a user namespace
// of its own, where the kernel does not count it.
func privileged(m Machine) bool {
	status, err := m.Read("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(status) {
		text, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		ids, errMap := m.Read("/proc/self/uid_map")
		return err == nil && errMap == nil && set&(1<<capIPCLock) != 0 &&
			slices.Equal(strings.Fields(ids), []string{"0", "0", "4294967295"})
	}
	return false
}
