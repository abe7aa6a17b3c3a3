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
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Where things are in the guest. The name of the initramfs's program tells it what it is.
const (
	initName    = "/init"
	eventPort   = "/dev/ttyS1"
	diskDevice  = "/dev/vda"
	moduleDir   = "/modules"
	resultsDir  = "/run/results"
	scratchDir  = "/run/scratch"
	programFile = "program.json"
	kernelLog   = "kernel.log"
	hostTag     = "host"
	resultsTag  = "results"
	guestPath   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// messageBytes is the largest message of 9p: what virtio takes.
	messageBytes = 512000
	// openFiles is for the tests of many sessions.
	openFiles = 1 << 17
)

// reap is process 1: it runs the rest as a child, so that orphans are reaped, and ends the guest with it.
func reap() {
	cmd := exec.Command(initName, "steps")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Println("guest: start steps:", err)
	} else {
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, 0, nil)
			if err != nil && !errors.Is(err, syscall.EINTR) || pid == cmd.Process.Pid {
				break
			}
		}
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {} // the kernel panics when process 1 ends
}

// steps prepares the guest and runs the program.
func steps() error {
	signal.Ignore(syscall.SIGHUP)
	if err := errors.Join(mount("proc", "/proc", "proc", ""), mount("sysfs", "/sys", "sysfs", ""),
		mount("devtmpfs", "/dev", "devtmpfs", "")); err != nil {
		return err
	}
	port, err := os.OpenFile(eventPort, os.O_WRONLY|syscall.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("open event port: %w", err)
	}
	emit := func(e event) {
		line, err := json.Marshal(e)
		if err == nil {
			_, err = port.Write(append(line, '\n'))
		}
		if err != nil {
			fmt.Println("guest: write event:", err)
		}
	}
	p, err := prepare()
	if err != nil {
		emit(event{Penstock: eventError, Why: err.Error()})
		return err
	}
	emit(event{Penstock: eventReady})
	p.run(context.Background(), emit)
	unix.Sync()
	return nil
}

func mount(source, target, kind, data string) error {
	return mountFlags(source, target, kind, data, 0)
}

func mountFlags(source, target, kind, data string, flags uintptr) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// prepare makes the guest what the steps expect: the host's files, a disk, two rails.
func prepare() (program, error) {
	var p program
	if err := loadModules(); err != nil {
		return p, err
	}
	if err := enterHost(); err != nil {
		return p, err
	}
	text, err := os.ReadFile(filepath.Join(resultsDir, programFile))
	if err != nil {
		return p, fmt.Errorf("read program: %w", err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("read program: %w", err)
	}
	log, err := os.Create(filepath.Join(resultsDir, kernelLog))
	if err != nil {
		return p, fmt.Errorf("make kernel log: %w", err)
	}
	go copyKernelLog(log)
	if err := os.Setenv("PATH", guestPath); err != nil {
		return p, err
	}
	if err := mount(diskDevice, scratchDir, "ext4", ""); err != nil {
		return p, err
	}
	if err := os.MkdirAll(filepath.Join(scratchDir, "tmp"), 0o777); err != nil {
		return p, fmt.Errorf("make scratch: %w", err)
	}
	for limit, most := range map[int]uint64{unix.RLIMIT_MEMLOCK: unix.RLIM_INFINITY, unix.RLIMIT_NOFILE: openFiles} {
		if err := unix.Setrlimit(limit, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return p, fmt.Errorf("set limit: %w", err)
		}
	}
	return p, makeRails()
}

func loadModules() error {
	files, err := filepath.Glob(moduleDir + "/*")
	if err != nil {
		return err
	}
	for _, name := range files { // sorted
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("load module: %w", err)
		}
		err = errors.Join(unix.FinitModule(int(f.Fd()), "", 0), f.Close())
		if err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return nil
}

// enterHost makes the host's root, read-only below a tmpfs, the root of this process.
func enterHost() error {
	share := fmt.Sprintf("trans=virtio,version=9p2000.L,msize=%d", messageBytes)
	if err := errors.Join(
		mountFlags(hostTag, "/host", "9p", share+",cache=loose", unix.MS_RDONLY),
		mount("tmpfs", "/upper", "tmpfs", ""),
		os.MkdirAll("/upper/up", 0o755), os.MkdirAll("/upper/work", 0o755),
		mount("overlay", "/root", "overlay", "lowerdir=/host,upperdir=/upper/up,workdir=/upper/work"),
	); err != nil {
		return err
	}
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if err := mountFlags(dir, "/root"+dir, "", "", unix.MS_MOVE); err != nil {
			return err
		}
	}
	if err := errors.Join(unix.Chroot("/root"), os.Chdir("/")); err != nil {
		return fmt.Errorf("enter host's root: %w", err)
	}
	return errors.Join(mount("tmpfs", "/run", "tmpfs", ""), mount("tmpfs", "/dev/shm", "tmpfs", ""),
		mount("devpts", "/dev/pts", "devpts", ""),
		mount(resultsTag, resultsDir, "9p", share+",cache=none"))
}

// The rails: rxe0 on the virtual network card, rxe1 on one end of a veth pair. A device gets its IPv4 address first,
// so that the table of GIDs has the mapped one; jumbo frames, so that packets carry 4096 bytes.
const (
	cardDevice, cardAddress = "eth0", "10.97.0.1/24"
	vethDevice, vethAddress = "rail1", "10.98.0.1/24"
)

func makeRails() error {
	for _, line := range []string{
		"ip link set lo up",
		"ip link add " + vethDevice + " type veth peer name " + vethDevice + "p",
		"ip link set " + vethDevice + "p mtu 9000 up",
		"ip address add " + cardAddress + " dev " + cardDevice, "ip link set " + cardDevice + " mtu 9000 up",
		"ip address add " + vethAddress + " dev " + vethDevice, "ip link set " + vethDevice + " mtu 9000 up",
		"rdma link add rxe0 type rxe netdev " + cardDevice,
		"rdma link add rxe1 type rxe netdev " + vethDevice,
	} {
		words := strings.Fields(line)
		if err := tool(words[0], words[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func tool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// cardNoise is said whenever someone asks for the port of a virtual network card.
const cardNoise = "speed is unknown, defaulting to"

// copyKernelLog copies the kernel's messages until the guest ends.
func copyKernelLog(to io.Writer) {
	from, err := os.Open("/dev/kmsg")
	if err != nil {
		fmt.Println("guest: open kernel log:", err)
		return
	}
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			if errors.Is(err, syscall.EPIPE) { // records were overwritten before they were read
				continue
			}
			return
		}
		// priority,sequence,microseconds,flags;message
		if head, message, ok := strings.Cut(line, ";"); ok && !strings.Contains(message, cardNoise) {
			fields := strings.Split(head, ",")
			_, _ = fmt.Fprintf(to, "%s %s", fields[min(2, len(fields)-1)], message)
		}
	}
}
