package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

const doctorRDMAHelp = `doctor rdma says whether this machine can move payloads by RDMA, and why not: what the
kernel and libibverbs offer, each device, port and GID, the rails that a node would use and the
ports that it would not, and locked memory. Then it moves bytes over each rail from this machine to
itself, and compares them. Nothing is changed, no node is needed, and no privilege beyond what RDMA
itself asks.

Exit codes: 0 every rail that is up works; 5 some do not; 1 RDMA is off, no rail is up, or none works;
2 a --device does not exist. With --device, a rail that is down counts as one that does not work.`

// loopbackBudget is how long each direction of a rail is timed: long enough for a figure, short enough for many rails.
const loopbackBudget = 300 * time.Millisecond

// rdmaDoctor is one run of `penstock doctor rdma`; tests have another machine and library.
type rdmaDoctor struct {
	app     *app
	machine rail.Machine
	open    func() (*native.Library, error)
	need    uint64 // bytes that a node registers for each rail
	devices []string
	size    int
	budget  time.Duration // of the timed run of each direction of a rail
}

func (a *app) doctorRDMACommand() *cobra.Command {
	var devices []string
	var size, path string
	cmd := &cobra.Command{
		Use:   "rdma",
		Short: "say why RDMA is on or off here, and try each rail by a transfer to itself",
		Long:  doctorRDMAHelp,
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			bytes, err := config.ParseBytes(size)
			if err != nil {
				return usageError{err}
			}
			if bytes < 1 || bytes > rail.MaxLoopbackSize {
				return usagef("size %s is not between 1 and %s", size, config.Bytes(rail.MaxLoopbackSize))
			}
			d := rdmaDoctor{
				app: a, machine: rail.Host(), need: config.Default().Arena.Bytes(), devices: devices, size: int(bytes),
				budget: loopbackBudget,
				open:   func() (*native.Library, error) { return native.Open(native.Options{Path: path}) },
			}
			return d.run(c.Context())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&devices, "device", nil, "device or device/port, as mlx5_0 or mlx5_0/1; default: all")
	f.StringVar(&path, "library", "", "path of libibverbs, as rdma.verbs_library; empty: the system's")
	f.StringVar(&size, "size", config.Bytes(rail.DefaultLoopbackSize).String(),
		"bytes of one operation of the timed runs, at most "+config.Bytes(rail.MaxLoopbackSize).String())
	return cmd
}

// portLine is a port of an adapter.
type portLine struct {
	Type       string    `json:"type"` // "port"
	Name       string    `json:"name"`
	State      string    `json:"state"` // "active" or "down"
	Link       string    `json:"link"`  // "ethernet", "infiniband" or "unknown"
	LID        uint16    `json:"lid"`
	MTU        int       `json:"mtu"`
	MaxMessage uint32    `json:"max_message_bytes"`
	GIDs       []gidLine `json:"gids"`
}

// gidLine is an entry of a port's table.
type gidLine struct {
	Index   int    `json:"index"`
	GID     string `json:"gid"`
	GIDType string `json:"gid_type"` // "rocev2", "rocev1" or "infiniband"
	Network string `json:"network,omitempty"`
	Used    bool   `json:"used"` // a rail has it
}

// deviceLine is an adapter.
type deviceLine struct {
	Type     string `json:"type"` // "device"
	Name     string `json:"name"`
	GUID     string `json:"guid"`
	Firmware string `json:"firmware,omitempty"`
	NUMANode int    `json:"numa_node"` // -1: not known
	Ports    int    `json:"ports"`
	MaxQP    int    `json:"max_qp"`
	MaxReads int    `json:"max_reads"`
	Error    string `json:"error,omitempty"`
}

// railLine is a port that a node would use.
type railLine struct {
	Type     string `json:"type"` // "rail"
	Name     string `json:"name"`
	Up       bool   `json:"up"`
	Reason   string `json:"reason,omitempty"` // why it is not up
	Address  string `json:"address,omitempty"`
	GIDIndex int    `json:"gid_index"`
	GID      string `json:"gid"`
	LID      uint16 `json:"lid"`
	Network  string `json:"network,omitempty"`
	MTU      int    `json:"mtu"`
	NUMANode int    `json:"numa_node"`
}

// skippedLine is a device or port that a node would not use.
type skippedLine struct {
	Type   string `json:"type"` // "skipped"
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// loopbackLine is a transfer from a rail to itself.
type loopbackLine struct {
	Type      string  `json:"type"` // "loopback"
	Name      string  `json:"name"` // of the rail
	Status    string  `json:"status"`
	Size      int     `json:"size_bytes"`     // of the timed operations
	Compared  []int   `json:"compared_bytes"` // sizes of the operations whose bytes were compared
	LatencyUS float64 `json:"latency_us"`     // of a write of 1 byte and a read of it
	WriteGBps float64 `json:"write_gbps"`     // 10⁹ bytes per second
	ReadGBps  float64 `json:"read_gbps"`
	Step      string  `json:"step,omitempty"` // at which it failed
	Error     string  `json:"error,omitempty"`
	Remedy    string  `json:"remedy,omitempty"`
}

// resultLine is the last one.
type resultLine struct {
	Type   string `json:"type"` // "result"
	Status string `json:"status"`
	Rails  int    `json:"rails"`
	Up     int    `json:"up"`
	Passed int    `json:"passed"`
	Detail string `json:"detail"`
}

// errRDMAOff ends with ExitFailure; its cause was printed.
var errRDMAOff = errors.New("rdma is off")

func (d rdmaDoctor) run(ctx context.Context) error {
	if err := d.checks(rail.KernelChecks(d.machine)...); err != nil {
		return err
	}
	library, err := d.open()
	if err := d.checks(rail.LibraryCheck(err)); err != nil {
		return err
	}
	if err != nil {
		return d.off(rail.LibraryCheck(err).Detail)
	}
	defer library.Close()
	devices, err := rail.Look(library)
	if err != nil {
		return d.off(err.Error())
	}
	drivers := rail.DriverCheck(d.machine, devices)
	if err := d.checks(drivers); err != nil {
		return err
	}
	if len(devices) == 0 {
		return d.off(drivers.Detail)
	}
	return d.rails(ctx, library, devices)
}

func (d rdmaDoctor) memlock(rails int) rail.Check {
	return rail.MemlockCheck(d.machine, d.need*uint64(rails)+rail.ProbeBytes)
}

// off ends where there is no device to look at.
func (d rdmaDoctor) off(why string) error {
	if err := d.checks(d.memlock(1)); err != nil {
		return err
	}
	return d.result(nil, 0, why)
}

// rails lists the devices and tries the rails.
func (d rdmaDoctor) rails(ctx context.Context, library *native.Library, devices []rail.Device) error {
	rails, skipped, err := rail.Rails(devices, rail.Options{Devices: d.devices})
	if errors.Is(err, rail.ErrUnknown) {
		return usageError{err}
	} else if err != nil {
		return err
	}
	checks := rail.RailChecks(d.machine, rails, skipped)
	checks = append(checks, d.memlock(max(1, len(rails))))
	if err := d.checks(checks...); err != nil {
		return err
	}
	if err := d.list(devices, rails, skipped); err != nil {
		return err
	}
	passed := 0
	for _, r := range rails {
		if !r.Up && len(d.devices) == 0 {
			continue
		}
		ok, err := d.loopback(ctx, library, r)
		if err != nil {
			return err
		}
		if ok {
			passed++
		}
	}
	return d.result(rails, passed, "")
}

// say prints one line: what it is about, its name, and the rest.
func (d rdmaDoctor) say(v any, kind, name, format string, args ...any) error {
	return d.app.emit(v, fmt.Sprintf("%-8s %-18s %s", kind, name, fmt.Sprintf(format, args...)))
}

func withRemedy(text, remedy string) string {
	if remedy == "" {
		return text
	}
	return text + "\n" + strings.Repeat(" ", 28) + "→ " + remedy
}

func (d rdmaDoctor) checks(list ...rail.Check) error {
	for _, c := range list {
		k := checkOf(c)
		if err := d.say(k, k.Status, k.Name, "%s", withRemedy(k.Detail, k.Remedy)); err != nil {
			return err
		}
	}
	return nil
}

func (d rdmaDoctor) list(devices []rail.Device, rails []rail.Rail, skipped []rail.Skipped) error {
	for _, v := range devices {
		if err := d.device(v, rails); err != nil {
			return err
		}
	}
	for _, r := range rails {
		line := railLine{
			Type: "rail", Name: r.Name(), Up: r.Up, Reason: r.Reason, GIDIndex: r.GIDIndex, GID: gidText(r.GID), LID: r.LID,
			Network: r.Network, MTU: r.MTU, NUMANode: r.NUMANode,
		}
		state := "up"
		if !r.Up {
			state = r.Reason
		}
		where := fmt.Sprintf("LID %d", r.LID)
		if a := r.Address(); a.IsValid() {
			line.Address, where = a.String(), a.String()+" on "+firstOf(r.Network, "a device not visible here")
		}
		if err := d.say(line, "rail", line.Name, "%s, %s, GID %d, MTU %d, NUMA node %s", state, where, r.GIDIndex, r.MTU,
			numaText(r.NUMANode)); err != nil {
			return err
		}
	}
	for _, s := range skipped {
		if err := d.say(skippedLine{"skipped", s.Name, s.Reason}, "skipped", s.Name, "%s", s.Reason); err != nil {
			return err
		}
	}
	return nil
}

// device prints an adapter, its ports and their tables.
func (d rdmaDoctor) device(v rail.Device, rails []rail.Rail) error {
	line := deviceLine{
		Type: "device", Name: v.Name, GUID: fmt.Sprintf("%016x", v.GUID), Firmware: v.Firmware, NUMANode: v.NUMANode,
		Ports: v.DeviceInfo.Ports, MaxQP: v.MaxQP, MaxReads: v.MaxReads,
	}
	text := fmt.Sprintf("GUID %s, firmware %s, NUMA node %s, ports %d, queue pairs %d, reads at once %d", line.GUID,
		firstOf(v.Firmware, "unknown"), numaText(v.NUMANode), line.Ports, v.MaxQP, v.MaxReads)
	if v.Err != nil {
		line.Error, text = v.Err.Error(), v.Err.Error()
	}
	if err := d.say(line, "device", v.Name, "%s", text); err != nil {
		return err
	}
	for _, p := range v.Ports {
		line, text := portOf(v.Name, p, rails)
		if err := d.say(line, "port", line.Name, "%s", text); err != nil {
			return err
		}
	}
	return nil
}

// portOf is a port, and the text of it with a line for each entry of its table.
func portOf(device string, p native.PortInfo, rails []rail.Rail) (portLine, string) {
	line := portLine{
		Type: "port", Name: rail.Rail{Device: device, Port: p.Number}.Name(), State: "down", Link: "unknown", LID: p.LID,
		MTU: p.MTU, MaxMessage: p.MaxMessage, GIDs: []gidLine{},
	}
	if p.State == native.PortActive {
		line.State = "active"
	}
	switch p.Link {
	case native.LinkEthernet:
		line.Link = "ethernet"
	case native.LinkInfiniBand:
		line.Link = "infiniband"
	}
	text := fmt.Sprintf("%s, %s, MTU %d, messages of %s at most", line.State, line.Link, p.MTU,
		config.Bytes(p.MaxMessage))
	for _, g := range p.GIDs {
		entry := gidLine{Index: g.Index, GID: gidText(g.Raw), GIDType: "infiniband", Network: g.Network}
		switch g.Type {
		case native.GIDRoCEv1:
			entry.GIDType = "rocev1"
		case native.GIDRoCEv2:
			entry.GIDType = "rocev2"
		}
		used := ""
		for _, r := range rails {
			if r.Name() == line.Name && r.GIDIndex == g.Index {
				entry.Used, used = true, " (used)"
			}
		}
		line.GIDs = append(line.GIDs, entry)
		text += fmt.Sprintf("\n%-8s %-18s %s %s %s%s", "gid", fmt.Sprintf("%s %d", line.Name, g.Index), entry.GID,
			entry.GIDType, g.Network, used)
	}
	return line, text
}

// loopback tries a rail and prints how that went. It returns an error only where printing failed.
func (d rdmaDoctor) loopback(ctx context.Context, l *native.Library, r rail.Rail) (bool, error) {
	line := loopbackLine{Type: "loopback", Name: r.Name(), Status: string(rail.OK), Size: d.size, Compared: []int{}}
	report, err := d.transfer(ctx, l, r)
	if err != nil {
		line.Status, line.Error, line.Remedy = string(rail.No), err.Error(), rail.Remedy(err)
		var failed *rail.LoopbackError
		if errors.As(err, &failed) {
			line.Step = string(failed.Step)
		}
		return false, d.say(line, line.Status, "loopback "+r.Name(), "%s", withRemedy(line.Error, line.Remedy))
	}
	line.Size, line.Compared = report.Size, report.Compared
	line.LatencyUS = float64(report.Latency) / float64(time.Microsecond)
	line.WriteGBps, line.ReadGBps = report.Write.GBps(), report.Read.GBps()
	return true, d.say(line, line.Status, "loopback "+r.Name(),
		"%s writes %.3f GB/s, reads %.3f GB/s; 1 byte over and back %.1f µs; %d sizes compared",
		config.Bytes(report.Size), line.WriteGBps, line.ReadGBps, line.LatencyUS, len(line.Compared))
}

func (d rdmaDoctor) transfer(ctx context.Context, l *native.Library, r rail.Rail) (rail.Report, error) {
	device, err := l.OpenDevice(r.Device)
	if err != nil {
		return rail.Report{}, err
	}
	report, err := rail.Loopback(ctx, device, r, rail.LoopbackOptions{Size: d.size, Budget: d.budget})
	return report, errors.Join(err, device.Close())
}

// result prints the last line and chooses the exit code.
func (d rdmaDoctor) result(rails []rail.Rail, passed int, off string) error {
	line := resultLine{Type: "result", Status: string(rail.OK), Rails: len(rails), Passed: passed}
	for _, r := range rails {
		if r.Up {
			line.Up++
		}
	}
	tried := line.Up
	if len(d.devices) > 0 {
		tried = len(rails)
	}
	var err error
	switch {
	case off != "":
		line.Detail, err = off, errRDMAOff
	case line.Rails == 0:
		line.Detail, err = "no port of this machine is a rail", errRDMAOff
	case tried == 0:
		line.Detail, err = "no rail is up", errRDMAOff
	default:
		line.Detail = fmt.Sprintf("%d of %d rails up, %d passed", line.Up, line.Rails, passed)
		switch {
		case passed == 0:
			err = errRDMAOff
		case passed < tried:
			err = errPartial
		}
	}
	word := "rdma on"
	if err != nil {
		line.Status = string(rail.No)
	}
	if passed == 0 {
		word = "rdma off"
	}
	if printed := d.say(line, line.Status, word, "%s", line.Detail); printed != nil || err == nil {
		return printed
	}
	return silentError{err}
}

func gidText(gid [16]byte) string {
	a := netip.AddrFrom16(gid)
	if a.Is4In6() {
		return "::ffff:" + a.Unmap().String()
	}
	return a.String()
}

func numaText(node int) string {
	if node < 0 {
		return "unknown"
	}
	return strconv.Itoa(node)
}
