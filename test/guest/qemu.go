package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// machine says how the guest runs.
type machine struct {
	KVM      bool
	CPU      string
	CPUs     int
	MemoryMB int
}

// standard is the guest of the gate. Nehalem has no PCLMUL and no AVX: emulated, they cost more than what Go and the
// kernel do without them. Measured on two shared cores: CRC64NVME 470 MB/s, and 53 to 130 MB/s on Westmere, Haswell and
// max; CRC32C 120 MB/s, SHA-256 20 MB/s, copies 800 MB/s, HTTP 60 MB/s; a direct write of 1 MiB takes 2 ms, 4 KiB with
// fsync 0.6 ms.
func standard() machine { return machine{CPU: "Nehalem", CPUs: 2, MemoryMB: 4096} }

// diskBytes is the size of the guest's disk: a sparse file, of which only what is written takes room.
const diskBytes = 16 << 30

// qemu makes the command line. Results come back by a share of 9p, events by the second serial port, which is
// QEMU's standard output; the console goes to a file. A full disk of this machine is the guest's error (werror): QEMU
// would stop the guest until there is room.
func (m machine) qemu(k kernel, initramfs, disk, results string) []string {
	accel, cpu := "tcg,thread=multi", m.CPU
	if m.KVM {
		accel, cpu = "kvm", "host"
	}
	return []string{"qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", accel, "-cpu", cpu, "-smp", strconv.Itoa(m.CPUs), "-m", strconv.Itoa(m.MemoryMB),
		"-kernel", k.image, "-initrd", initramfs, "-append", kernelArguments,
		"-serial", "file:" + filepath.Join(results, consoleLog), "-serial", "stdio",
		"-netdev", "user,id=card,restrict=on,ipv6=off", "-device", "virtio-net-pci,netdev=card,romfile=",
		"-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=host,mount_tag=" + hostTag,
		"-fsdev", "local,id=results,path=" + results + ",security_model=none,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=results,mount_tag=" + resultsTag,
		"-drive", "file=" + disk + ",if=none,id=disk,format=raw,cache=unsafe,werror=report",
		"-device", "virtio-blk-pci,drive=disk"}
}

// kernelArguments: a panic and an oops end the guest at once, since -no-reboot makes a reboot QEMU's end; emulated
// code needs no mitigations; the clock stays the TSC even where the host's load makes it look unsteady, since each look
// at another one costs microseconds; a guest that waits for the host's processors is not locked up.
const kernelArguments = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable nowatchdog"

const consoleLog = "console.log"

// Limits of what is no step.
const (
	bootLimit = 3 * time.Minute // about 5 s on a quiet machine; the gate's are not
	// slack is what a step may take beyond its limit: the guest ends it, the host ends a guest that does not.
	slack = 30 * time.Second
)

var (
	errNoMarker = errors.New("guest: ended without its end marker")
	errHung     = errors.New("guest: hung")
	errEnded    = errors.New("guest: ended badly")
	errGuest    = errors.New("guest: could not be prepared")
)

// watcher follows the events of a guest and knows how long the next one may take.
type watcher struct {
	program program
	boot    time.Duration
	slack   time.Duration
	seen    func(event)
	done    bool
	running map[string]time.Time // steps under way, and when they must have ended
}

// watch runs command, which is QEMU, until it ends by itself, and returns an error unless its end marker came. A guest
// from which nothing comes in time is killed. Lines that are no events are passed over: firmware writes some.
func (w *watcher) watch(ctx context.Context, command []string, diagnostics io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = diagnostics
	cmd.WaitDelay = waitDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("guest: make pipe: %w", err)
	}
	cmd.Stdout = write
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		return errors.Join(fmt.Errorf("guest: start: %w", err), read.Close())
	}
	timer := time.AfterFunc(w.boot, func() { cancel(errHung) })
	defer timer.Stop()
	var failure error
	for lines := bufio.NewScanner(read); lines.Scan(); {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Penstock == "" {
			continue
		}
		timer.Reset(w.next(e))
		failure = errors.Join(failure, w.note(e))
	}
	_, _ = io.Copy(io.Discard, read) // after a line that was too long
	err = read.Close()
	if e := cmd.Wait(); e != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", errEnded, e))
	}
	if cause := context.Cause(ctx); cause != nil {
		err = errors.Join(cause, err)
	}
	if !w.done {
		err = errors.Join(errNoMarker, err)
	}
	return errors.Join(failure, err)
}

// next says how long the event after e may take: as long as the step under way that may take the longest.
func (w *watcher) next(e event) time.Duration {
	if w.running == nil {
		w.running = map[string]time.Time{}
	}
	delete(w.running, e.Step)
	if e.Penstock == eventBegin {
		for _, s := range w.program.Steps {
			if s.Name == e.Step {
				w.running[s.Name] = time.Now().Add(s.Limit)
			}
		}
	}
	wait := time.Duration(0)
	for _, end := range w.running {
		wait = max(wait, time.Until(end))
	}
	return wait + w.slack
}

func (w *watcher) note(e event) error {
	w.seen(e)
	switch e.Penstock {
	case eventError:
		return fmt.Errorf("%w: %s", errGuest, e.Why)
	case eventDone:
		w.done = true
	}
	return nil
}
